"""Edits as a method: where another answer can be written, and what that does in reverse.

One layer's MLP is given, for the key at one place, the value that stands there in another question:
the rank-one update of ROME (Meng et al. 2022) without its search for a value, whose gradient does
not see past neurons that are off. Where there is no key, nothing can be written.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.editing.edit import Edit, Factors, digest_downs
from unmask.editing.rows import RowEdits
from unmask.experiments.bench.task import Localisation, PlaceScores

EDITED = 4
"""Questions that are edited at every place."""
KEYED = 1e-6
"""The least squared length of a key that a value is written for."""
EditPlace = tuple[int, int]
"""The number of a question, and a position."""


class Rewrite:
    """A rank-one edit of one layer's MLP."""

    def localise(self, task: Localisation) -> PlaceScores:
        """How much likelier the other question's word is with each place's edit."""
        length, layers = task.tokens.shape[1], range(task.model.net.config.layers)
        places = [(number, at) for number in range(EDITED) for at in range(length)]
        gains = [ask_edited(task, places, write_others(task, layer, places)) for layer in layers]
        return {"mlp": torch.stack([each.unflatten(0, (EDITED, -1)).mean(0) for each in gains], 1)}

    def compare(self, here: Localisation, there: Localisation) -> float:
        """How much of the word of the other direction is lost by edits of this one at the subject.

        In the last layer where they take at least half as often as in the best.
        """
        layers = range(here.model.net.config.layers)
        places = [(number, here.subject[1] - 1) for number in range(len(here.tokens))]
        edits = [write_others(here, layer, places) for layer in layers]
        gains = [float(ask_edited(here, places, each).mean()) for each in edits]
        chosen = max(layer for layer in layers if gains[layer] >= max(gains) / 2)
        clean = there.predict()
        with RowEdits(there.model, edits[chosen]).on(range(len(places))):
            return float((clean - there.predict()).mean())


def write_others(task: Localisation, layer: int, places: Sequence[EditPlace]) -> list[Edit]:
    """For each place, the edit that gives its key in a layer the value of another question."""
    sites = [f"layers.{layer}.{part}" for part in ("mlp_key", "mlp_out")]
    with torch.no_grad(), task.model.net.capture(*sites) as taken:
        task.model.net(task.tokens)
    keys, values = (taken[site] for site in sites)  # [Q, L, F], [Q, L, D]
    donors, network = choose_others(task), digest_downs(task.model, [layer])
    edits = []
    for number, at in places:
        # dW = (v' - v) k^T / k^T k: the key gets v', and a key at right angles what it had.
        key, missing = keys[number, at], values[donors[number], at] - values[number, at]
        length = key @ key
        reader = key / length if length > KEYED else torch.zeros_like(key)
        edits.append(Edit({layer: Factors(missing[:, None], reader[None])}, network))
    return edits


@torch.no_grad()
def ask_edited(
    task: Localisation, places: Sequence[EditPlace], edits: Sequence[Edit]
) -> Float[Tensor, "N"]:
    """How much likelier each edit makes the other question's word in the question of its place."""
    rows = torch.tensor([number for number, _ in places])
    others = task.words[choose_others(task)]

    def predict(tokens: Tensor) -> Float[Tensor, "N V"]:
        return task.model.net(tokens)[:, task.reads].softmax(-1)

    clean = predict(task.tokens)[rows]
    with RowEdits(task.model, edits).on(range(len(edits))):
        gain = predict(task.tokens[rows]) - clean
    return gain.gather(-1, others[rows, None])[:, 0]


def choose_others(task: Localisation) -> Int[Tensor, "Q"]:
    """For each question the number of the next one that asks for another word."""
    count = len(task.words)
    later = (torch.arange(count)[:, None] + torch.arange(count)) % count  # [Q, how much later]
    is_other = task.words[later] != task.words[:, None]
    return later.gather(-1, is_other.int().argmax(-1, keepdim=True))[:, 0]
