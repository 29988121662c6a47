"""Linear probes: can a line read off which fact a subject belongs to, in phrasings it never saw?

Probes read the residual stream at the last subject token after each layer. They are fitted on some
phrasings and tested on others, within a direction and from one direction to the other: whether the
state of a name says what that of its description says.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from unmask.base.errors import UserError
from unmask.data.facts import Fact
from unmask.net.batches import count_row_bytes, fit_rows, map_batches
from unmask.net.model import Model
from unmask.representation.settings import Extraction
from unmask.representation.states import Case, lay_out_case, stack_rows
from unmask.representation.values import group_alike

HELD_OUT = 3
"""Every third phrasing is held out."""
PENALTY = 1.0


def probe(
    model: Model, facts: Sequence[Fact], length: int | None = None
) -> Iterator[dict[str, Any]]:
    """A row for each layer, direction fitted, direction tested and tested prompt: the fact it says.

    Tested prompts are in phrasings that no probe was fitted on.
    """
    if not can_probe(facts):
        raise UserError(
            f"probes need at least 2 facts in {HELD_OUT} phrasings in each direction, every third "
            "of them held out: ask more phrasings, or leave probes out."
        )
    streams = collect_streams(model, facts, length)
    held_out = _hold_out(facts)
    is_out = np.array([fact.phrasing in held_out for fact in facts])
    directions = np.array([fact.direction for fact in facts])
    labels = np.array([fact.fact_id for fact in facts])
    for layer in range(streams.shape[1]):
        for fitted in sorted(set(directions)):
            for tested in sorted(set(directions)):
                train, test = ~is_out & (directions == fitted), is_out & (directions == tested)
                predicted = fit_and_predict(
                    streams[train, layer], labels[train], streams[test, layer]
                )
                for i, label in zip(np.flatnonzero(test), predicted, strict=True):
                    yield {
                        "layer": layer,
                        "fitted": str(fitted),
                        "tested": str(tested),
                        "fact": facts[i].fact_id,
                        "phrasing": facts[i].phrasing,
                        "predicted": str(label),
                    }


def can_probe(facts: Sequence[Fact]) -> bool:
    """Whether every direction has two facts to fit to, and a phrasing that is held out."""
    held_out = _hold_out(facts)
    for direction in {fact.direction for fact in facts}:
        asked = [fact for fact in facts if fact.direction == direction]
        fitted = {fact.fact_id for fact in asked if fact.phrasing not in held_out}
        if len(fitted) < 2 or all(fact.phrasing not in held_out for fact in asked):
            return False
    return True


def _hold_out(facts: Sequence[Fact]) -> set[int]:
    """The phrasings that probes are tested on."""
    return set(sorted({fact.phrasing for fact in facts})[HELD_OUT - 1 :: HELD_OUT])


def fit_and_predict(train: np.ndarray, labels: np.ndarray, test: np.ndarray) -> np.ndarray:
    """The labels that a ridge classifier, fitted to standardised vectors, gives others.

    The others are centred by their own mean: what a direction or a phrasing adds to all is no clue.
    """
    from sklearn.linear_model import RidgeClassifier

    spread = train.std(0) + 1e-6
    one, other = (train - train.mean(0)) / spread, (test - test.mean(0)) / spread
    return RidgeClassifier(alpha=PENALTY * train.shape[1] ** 0.5).fit(one, labels).predict(other)


def collect_streams(
    model: Model, facts: Sequence[Fact], length: int | None = None
) -> Float[np.ndarray, "facts layers D"]:
    """The residual stream after every layer at the last subject token."""
    cases = [lay_out_case(model, fact, ("",), Extraction(length=length)) for fact in facts]
    rows = fit_rows(model, count_row_bytes(model, max(case.length for case in cases), 0))
    streams: dict[int, np.ndarray] = {}
    for group in group_alike(model, cases):
        batches = map_batches(group, rows, lambda batch: _record(model, [cases[i] for i in batch]))
        for numbers, recorded in batches:
            streams |= zip(numbers, recorded, strict=True)
    return np.stack([streams[i] for i in range(len(cases))])


@torch.inference_mode()
def _record(model: Model, cases: Sequence[Case]) -> list[np.ndarray]:
    net = model.net
    rows = stack_rows([case.rows[0] for case in cases], model.device)
    at = torch.arange(len(cases), device=model.device)
    x, taken = net.embed(rows.tokens), []
    for layer in range(net.config.layers):
        x = net.run_layers(x, layer, layer + 1)
        taken.append(x[at, rows.place].float())
    return list(torch.stack(taken, 1).cpu().numpy())
