"""Calls that train, a run and a sweep of one cell, both of one step; and what was drawn."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import unmask
from tests.training.runs import SMALL


def train(pieces: Any, out: Path, changes: Mapping[str, Any]) -> Any:
    words = ["data={source: reversal, facts: 2, vocab: 600, context: 80}", "batch.rows=2",
             "network={preset: tiny, changes: {layers: 1, width: 16}}", "budget.steps=1",
             "cadence={log: 1, facts: 0, samples: 0}"]  # fmt: skip
    given = {"recipe": "reversal-mdm", "out": out, "words": words, "device": "cpu"} | changes
    return unmask.train(given.pop("recipe"), given.pop("out"), *given.pop("words"), **given)


def run_small_sweep(pieces: Any, out: Path, changes: Mapping[str, Any]) -> Any:
    file = out.with_name("small-sweep.yaml")
    cost = {"verb": "perplexity", "data": str(pieces.folder / "perplexity.txt"), "value": "nll"}
    cost |= {"settings": {"repeats": 2, "limit": 20}}
    small = {key: value for key, value in SMALL.items() if key != "budget"}
    content = {"title": "One cell", "recipe": "reversal-mdm", "grids": [{"seed": [0]}],
               "changes": small | {"budget": {"steps": 1}}, "measures": {"cost": cost}}  # fmt: skip
    file.write_text(json.dumps(content))
    given = {"file": file, "out": out, "words": [], "device": "cpu"} | changes
    ended = unmask.run_sweep(given.pop("file"), given.pop("out"), *given.pop("words"), **given)
    assert ended.done == ["seed-0"], ended.failed
    return ended


def own_drawn(pieces: Any, out: Path) -> Any:
    """A text of the model, which begins as the fact does."""
    return unmask.sample(pieces.model, pieces.fact.prompt, steps=2, length=12)


def own_lines(pieces: Any, out: Path) -> Path:
    """The same as a line of another engine."""
    states = own_drawn(pieces, out).states[:, 0].tolist()
    line = {"prompt": pieces.fact.prompt, "states": states, "tokens": states[-1]}
    file = out.with_name("drawn.jsonl")
    file.write_text(json.dumps(line))
    return file
