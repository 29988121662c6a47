"""What training showed a model, where the record of its run and the data of that run are there."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from unmask.base.config import build
from unmask.base.errors import UserError
from unmask.base.runs import DIGESTS, RunRecord
from unmask.data.tokenizer import Tokenizer
from unmask.net.families import read_training
from unmask.net.hub import find_model
from unmask.training.examples import Examples
from unmask.training.mixture import Mixture, read_mixture
from unmask.training.recipe import Recipe

MOST_TOKENS = 2**23
"""Data with more are not read: that would take longer than a minute."""
_ROWS_AT_ONCE = 1024


def read_shown_texts(place: str) -> Iterator[str]:
    """Every text of the data that a model was trained on, and those of the one it started from.

    Data are left out that have changed since, that are not where they were, or that are long.
    """
    seen: set[str] = set()
    start: str | None = place
    while start is not None and start not in seen and (training := read_training(start)):
        seen.add(start)
        try:
            record = build(RunRecord, training, start)
            recipe = build(Recipe, record.settings, start)
        except UserError:
            return  # a later version's, say
        if (mixture := _read_same(start, record, recipe)) is not None:
            for examples in mixture.parts.values():
                yield from _list_texts(examples)
        start = recipe.start.model


def _read_same(place: str, record: RunRecord, recipe: Recipe) -> Mixture | None:
    """The data of a run; None where they cannot be read, are long, or are not what they were."""
    try:
        tokenizer = Tokenizer.load(find_model(place).path, mask="if any")
        mixture = read_mixture(recipe.data, tokenizer)
    except UserError:
        return None
    tokens = {
        name: part.num_rows * recipe.parts[name].context for name, part in mixture.parts.items()
    }
    kept = {name: part for name, part in mixture.parts.items() if tokens[name] <= MOST_TOKENS}
    if not kept:
        return None
    mixture = replace(mixture, parts=kept)
    # The model's own tokenizer may have a mask more than that of its data.
    digests = {part: each for part, each in mixture.digest().items() if part != "tokenizer"}
    before = record.inputs.get(DIGESTS)
    before = before.get("the data") if isinstance(before, dict) else None
    return mixture if isinstance(before, dict) and digests.items() <= before.items() else None


def _list_texts(examples: Examples) -> Iterator[str]:
    """The texts of all rows, cut at end tokens."""
    known = examples.tokenizer
    for first in range(0, examples.num_rows, _ROWS_AT_ONCE):
        rows = examples.take(range(first, min(first + _ROWS_AT_ONCE, examples.num_rows)))
        for row in rows.tokens.tolist():
            for is_end, text in groupby(row, lambda token: token == known.end_id):
                if not is_end:
                    yield known.decode(text)
