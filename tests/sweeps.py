"""A small sweep file on the toy language."""

import json
from pathlib import Path

import yaml

CHANGES = {
    "network": {"preset": "tiny", "changes": {"layers": 1}},
    "data": {"source": "toy", "context": 8},
    "budget.steps": 3,
    "batch.rows": 4,
    "schedule.warmup": 1,
    "cadence": {"facts": 0, "samples": 0, "log": 1},
    "machine.dtype": "float32",
}
BOUND = {"verb": "perplexity", "settings": {"repeats": 2}, "value": "nll", "per": "tokens"}
BOUND |= {"cluster": "document", "label": "nats per token"}
TEXTS = ["our cat is your friend", "we are your friend s", "dog s are our s"]


def write_sweep(folder: Path, **changes: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "text.jsonl"
    text.write_text("".join(json.dumps({"text": each}) + "\n" for each in TEXTS))
    bound = BOUND | {"data": str(text)}
    values = {
        "title": "A small sweep",
        "recipe": "toy-masked",
        "changes": CHANGES,
        "grids": [{"family": {"masked": {}, "causal": {"recipe": "toy-causal"}}, "seed": [0, 1]}],
        "measures": {"bound": bound},
        "figures": [{"value": "bound", "x": "family", "line": "family"}],
    }
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(values | changes, sort_keys=False))
    return path
