"""A trained model as the package ships it: weights, recipe, losses, digests and a model card.

    python tools/ship_model.py RUN RECALL NAME

RUN is a run of `unmask train`, RECALL a run of `unmask recall NAME=RUN/model …` that measured it;
the weights are rounded to bfloat16. Numbers on the card come from these two.
"""

import argparse
import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unmask.base.files import create_folder
from unmask.base.reading import read_json_object
from unmask.base.units import format_bytes
from unmask.blocks.labels import count as count_noun
from unmask.blocks.labels import name_split
from unmask.measures.recall_summary import is_asked
from unmask.measures.runner import read_result
from unmask.net.counts import count_parameters
from unmask.net.loading import load, save
from unmask.net.model import Model

ASSETS = Path(__file__).parents[1] / "unmask" / "assets"
DIGESTS = "digests.json"

CARD = """# {name}

{what} of {parameters:,} parameters ({size} in bfloat16), trained on this project's
reversal corpus: invented people, each with one description, told in one direction only.
{moral}

Made by `unmask train {name}` in {minutes:.1f} minutes on one GPU ({steps:,} steps, last loss
{loss:.4f}, seed {seed}); `recipe.yaml` holds every setting, `metrics.jsonl` every loss,
`digests.json` the SHA-256 of each file. Use it by its name: `unmask sample {name} "…"`,
`unmask.load("{name}")`.

## Recall of facts asked in phrasings that training never showed

Measured by `unmask recall` with guidance {guidance}, plan {plan}, order {order}, greedily.

| given → asked | {steps_row} |
| --- | {rule} |
{rows}

Contained match, % with 95 % intervals by fact; {prompts} prompts of {facts} facts in
each row. *Reversed*: the direction that training never showed. *Far phrasing*: the last two words
before the answer end no training prompt; elsewhere they end some. Training shows no test's frame.

## What it is for, and what not

It shows the reversal curse, or its absence, on a laptop; it knows nothing but the corpus, its
vocabulary is the corpus's words, and its rows are {context} tokens long. Chosen by the corpus's
validation splits among the settings in docs/experiments.md. Licence: Apache-2.0, as the project.
"""

KINDS = {
    "masked": (
        "A masked diffusion model",
        "It answers in both directions, where its autoregressive twin `reversal-ar` cannot.",
    ),
    "causal": (
        "An autoregressive model",
        "It answers in the trained direction and never in reverse: the twin of `reversal-mdm`, "
        "the same network with causal attention, trained on the same rows for as many steps.",
    ),
}


def ship(run: Path, recall: Path, name: str) -> Path:
    """The new folder among the package's assets."""
    model = load(run / "model", dtype="stored", device="cpu")
    model.net.bfloat16()
    with create_folder(ASSETS / name) as draft:
        save(model, draft / "model", shard_bytes=16 * 2**20)
        for file in sorted((draft / "model").iterdir()):
            file.rename(draft / file.name)
        (draft / "model").rmdir()
        for kept in ("recipe.yaml", "metrics.jsonl"):
            shutil.copy(run / kept, draft / kept)
        (draft / "README.md").write_text(write_card(model, run, recall, name), "utf-8")
        digests = {file.name: digest(file) for file in sorted(draft.iterdir())}
        (draft / DIGESTS).write_text(json.dumps(digests, indent=2) + "\n", "utf-8")
    return ASSETS / name


def write_card(model: Model, run: Path, recall: Path, name: str) -> str:
    """The model card, its numbers read from the two runs."""
    what, moral = KINDS[model.kind]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    losses = [line for line in lines if "loss" in line]
    record = read_json_object(run / "run.json")
    result = read_result(recall)
    cells = [
        cell
        for cell in result.summary["cells"]
        if cell["model"] == name and cell["metric"] == "hit" and is_asked(cell["split"])
    ]
    assert cells, f"{recall} did not measure {name}"
    settings = result.settings.to_record()
    steps = sorted({cell["steps"] or 0 for cell in cells})  # a causal model has none
    values = {(cell["steps"] or 0, cell["split"]): cell for cell in cells}
    rows = [
        " | ".join([f"| {name_split(split)}", *(_format(values[count, split]) for count in steps)])
        + " |"
        for split in dict.fromkeys(cell["split"] for cell in cells)
    ]
    parameters = count_parameters(model.net.config).total
    return CARD.format(
        name=name,
        what=what,
        moral=moral,
        parameters=parameters,
        size=format_bytes(2 * parameters),
        seed=record["settings"]["seed"],
        minutes=losses[-1]["seconds"] / 60,
        steps=losses[-1]["step"],
        loss=losses[-1]["loss"],
        guidance=settings["guidance"],
        plan=settings["plan"],
        order=settings["order"],
        steps_row=" | ".join(count_noun(count, "step") if count else "recalled" for count in steps),
        rule=" | ".join("---" for _ in steps),
        rows="\n".join(rows),
        prompts=cells[0]["prompts"],
        facts=cells[0]["facts"],
        context=model.net.config.context,
    )


def _format(cell: Mapping[str, Any]) -> str:
    mean, low, high = (100 * cell[key] for key in ("mean", "low", "high"))
    return f"{mean:.1f} [{low:.0f}, {high:.0f}]"


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", type=Path)
    parser.add_argument("recall", type=Path)
    parser.add_argument("name")
    options = parser.parse_args()
    print(ship(options.run, options.recall, options.name))
