"""Least-squares concept erasure: states changed as little as possible, labels linearly gone.

LEACE (Belrose et al. 2023, arXiv 2306.03819). With Σ the covariance of the states, Σ_xz that of
states and one-hot labels, W = Σ^(-1/2) and U an orthonormal basis of the columns of W Σ_xz, the map

    r(x) = x - W⁺ U Uᵀ W (x - μ)

has zero covariance with the labels, so that no linear classifier does better on r(x) than one that
sees nothing, and of all affine maps with that property it has the least mean squared change. The
zero does not depend on Σ: a shrunk covariance (Ledoit and Wolf 2004) costs least-squares optimality
on the states at hand, not the erasure, and makes the directions less a matter of few samples.

An eraser of one direction's states is put on the other's around the mean of the latter
(`Eraser.recentre`): what a direction adds to all of its states is not what is asked about.
Controls: erasers of permuted labels, and random subspaces of the same rank that take as much
variance of the states they are put on.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.seeds import derive_seed
from unmask.data.facts import Fact
from unmask.net.model import Model
from unmask.representation.patched import (
    EMBEDDINGS,
    AnswerScore,
    StateChange,
    choose_canvas,
    collect_subjects,
    lay_out_prompt,
    score_patched,
)
from unmask.representation.prompts import put_before

LEAST_CORRELATION = 1e-7
"""Canonical correlations of states and labels below this are rounding."""
_HALVINGS = 60
"""Halvings of the interval in which a random subspace is looked for."""


class StateSet:
    """States of one place, and what erasers need of them, each computed once."""

    def __init__(self, values: Float[np.ndarray, "N D"]):
        self.mean = np.asarray(values, np.float64).mean(0)
        self.centred = values - self.mean

    @classmethod
    def of(cls, states: "StateSet | np.ndarray") -> "StateSet":
        return states if isinstance(states, StateSet) else cls(states)

    @cached_property
    def covariance(self) -> Float[np.ndarray, "D D"]:
        return self.centred.T @ self.centred / len(self.centred)

    @cached_property
    def axes(self) -> Float[np.ndarray, "D D"]:
        """Eigenvectors of the covariance, the largest variance last."""
        return np.linalg.eigh(self.covariance)[1]

    @cached_property
    def shrinkage(self) -> float:
        """Ledoit and Wolf's estimate."""
        from sklearn.covariance import ledoit_wolf_shrinkage

        return float(ledoit_wolf_shrinkage(self.centred, assume_centered=True))


@dataclass(frozen=True)
class Eraser:
    """The map x - outward inward (x - mean), a projection; float64 inside, whatever x is."""

    mean: Float[Tensor, "D"]
    inward: Float[Tensor, "r D"]
    """Uᵀ W."""
    outward: Float[Tensor, "D r"]
    """W⁺ U; `inward` times `outward` is the identity."""
    removed: float
    """Mean squared change of the states it was fitted to."""

    @property
    def rank(self) -> int:
        return len(self.inward)

    def recentre(self, states: StateSet | Float[np.ndarray, "N D"]) -> "Eraser":
        """An eraser of these directions around the mean of other states, such as reversed ones.

        What all of those share is then left alone, and only what tells them apart is taken.
        """
        states = StateSet.of(states)
        return _make_eraser(
            states.mean, self.inward.numpy(), self.outward.numpy(), states.covariance
        )

    def __call__(self, x: Float[Tensor, "*n D"]) -> Float[Tensor, "*n D"]:
        if self.rank == 0:
            return x
        mean, inward, outward = (
            part.to(x.device) for part in (self.mean, self.inward, self.outward)
        )
        exact = x.double()
        return (exact - (exact - mean) @ inward.T @ outward.T).to(x.dtype)


def fit_eraser(
    states: StateSet | Float[np.ndarray, "N D"],
    labels: Sequence[object],
    shrinkage: float | None = None,
) -> Eraser:
    """The eraser of the labels, of rank at most their number minus one.

    `shrinkage` in [0, 1] is how far the covariance is moved to a multiple of the identity;
    None estimates it by Ledoit and Wolf.
    """
    from sklearn.covariance import shrunk_covariance

    states = StateSet.of(states)
    one_hot = _encode(states.centred, labels)
    if shrinkage is not None and not 0 <= shrinkage <= 1:
        raise UserError(f"the shrinkage is {shrinkage}, expected 0 to 1, or None to estimate it.")
    shrinkage = states.shrinkage if shrinkage is None else shrinkage
    # 1. W and W⁺ from the eigenvalues of Σ; directions without variance have no say.
    values, vectors = np.linalg.eigh(shrunk_covariance(states.covariance, shrinkage))
    is_used = values > max(values[-1], 0) * len(values) * np.finfo(np.float64).eps
    roots, vectors = np.sqrt(values[is_used]), vectors[:, is_used]
    # 2. U from W Σ_xz, each column over the root of its label's share: the same column space, and
    #    the singular values are canonical correlations, in which rounding is told from signal.
    labelled = one_hot - one_hot.mean(0)
    cross = vectors.T @ (states.centred.T @ labelled / len(labelled)) / roots[:, None]
    weights = 1 / np.sqrt(one_hot.mean(0))
    left, correlations, _ = np.linalg.svd(cross * weights, full_matrices=False)
    basis = left[:, correlations > LEAST_CORRELATION]
    inward, outward = (vectors / roots @ basis).T, vectors * roots @ basis
    return _make_eraser(states.mean, inward, outward, states.covariance)


def permute_labels(labels: Sequence[object], seed: int = 0) -> list[object]:
    """The labels in another order: what erasing as much that means nothing does."""
    order = np.random.default_rng(derive_seed(seed, "permuted labels")).permutation(len(labels))
    return [labels[i] for i in order]


def make_random_eraser(
    eraser: Eraser, states: StateSet | Float[np.ndarray, "N D"], seed: int = 0
) -> Eraser:
    """An orthogonal projection off a random subspace of the same rank that takes as much variance.

    As much as the eraser, centred there, takes of these states. The subspace lies between one drawn
    at random and the one of the largest (or smallest) variance. Where the eraser changes the states
    more than any subspace of its rank could, as it may where they are unlike those it was fitted
    to, that is met as nearly as can be: compare `removed`.
    """
    states = StateSet.of(states)
    covariance, vectors = states.covariance, states.axes
    wanted, rank = eraser.recentre(states).removed, eraser.rank
    generator = np.random.default_rng(derive_seed(seed, "random eraser"))
    drawn = np.linalg.qr(generator.normal(size=(len(vectors), rank)))[0]

    def measure(basis: np.ndarray) -> float:
        return float(np.trace(basis.T @ covariance @ basis))

    needs_more = measure(drawn) < wanted
    end = vectors[:, len(vectors) - rank :] if needs_more else vectors[:, :rank]
    # Turned within itself towards the drawn one (Procrustes), no mixture of the two is singular.
    left, _, right = np.linalg.svd(end.T @ drawn)
    end = end @ left @ right
    low, high, basis = 0.0, 1.0, drawn
    for _ in range(_HALVINGS if rank else 0):
        share = (low + high) / 2
        basis = np.linalg.qr((1 - share) * drawn + share * end)[0]
        if (measure(basis) < wanted) == needs_more:
            low = share
        else:
            high = share
    return _make_eraser(states.mean, basis.T, basis, covariance)


def collect_labelled(
    model: Model,
    facts: Sequence[Fact],
    prefixes: Sequence[str] = ("",),
    layers: Sequence[int] | None = None,
    tokens: Literal["last", "all"] = "last",
    length: int | None = None,
) -> tuple[dict[int, Float[np.ndarray, "N D"]], list[str]]:
    """States of subjects after each layer, each prompt after each prefix, with their facts.

    Of each prompt they are those of its last subject token, or of all of them. Prompts of one
    length share a canvas; name its `length` where facts are asked without prefixes later.
    """
    layers = range(model.net.config.layers) if layers is None else layers
    texts = [put_before(prefix, fact) for fact in facts for prefix in prefixes]
    prompts = [lay_out_prompt(model, text, []) for text in texts]
    states = collect_subjects(model, prompts, layers, choose_canvas(model, prompts, length))
    kept = [each[:, -1:] if tokens == "last" else each for each in states]
    labels = [
        text.fact_id for text, each in zip(texts, kept, strict=True) for _ in range(each.shape[1])
    ]
    stacked = torch.cat(kept, 1).double().cpu().numpy()
    return dict(zip(layers, stacked, strict=True)), labels


def ask_erased(
    model: Model, facts: Sequence[Fact], erasers: Mapping[int, Eraser], length: int | None = None
) -> list[AnswerScore]:
    """Each fact's own answer, with the erasers of some layers applied at all its subject tokens.

    Without erasers it is what the model says by itself. An eraser acts on the stream that leaves
    its layer; for "from layer l up" give one for every layer from l on.
    """
    prompts = [lay_out_prompt(model, fact, [fact]) for fact in facts]
    longest = max((prompt.subject[1] for prompt in prompts), default=0)
    spans = torch.tensor([prompt.subject for prompt in prompts], device=model.device)
    begins, ends = spans.reshape(-1, 2).T

    def change_by(eraser: Eraser) -> StateChange:
        def change(x: Float[Tensor, "R L D"], owners: Tensor) -> Float[Tensor, "R L D"]:
            at = torch.arange(longest, device=x.device)
            is_subject = (at >= begins[owners, None]) & (at < ends[owners, None])
            front = x[:, :longest]
            front = torch.where(is_subject[..., None], eraser(front), front)
            return torch.cat((front, x[:, longest:]), 1)

        return change

    changes = {layer: change_by(eraser) for layer, eraser in erasers.items()}
    return [scores[0] for scores in score_patched(model, prompts, changes, length)]


def compare_erasers(
    model: Model,
    fitted: Mapping[str, Sequence[Fact]],
    questions: Mapping[str, Sequence[Fact]],
    prefixes: Sequence[str] = ("",),
    starts: Sequence[int] = (EMBEDDINGS, 0),
    tokens: Literal["last", "all"] = "all",
    shrinkage: float | None = None,
    length: int | None = None,
    seed: int = 0,
    draws: int = 3,
) -> Iterator[dict[str, Any]]:
    """A row for each question, direction fitted, eraser and layer from which on it acts.

    `fitted` and `questions` hold prompts by direction, of the same facts and each in phrasings of
    its own. From layer 0 on, the first layer's attention still reads the subject as it is; from -1
    on, nothing does. The first rows of a direction, `eraser` "none", are the model's own answers.
    `changed` is the mean squared change of a state, averaged over the layers that are erased;
    `states` how many states each eraser was fitted to. Permuted labels and random subspaces are
    drawn `draws` times.
    """
    # 1. States [N, D] of each direction and layer. One canvas for all: with prefixes, states are
    #    read where answers are asked without them.
    layers = range(EMBEDDINGS, model.net.config.layers)
    texts = [
        put_before(prefix, fact)
        for facts in fitted.values()
        for fact in facts
        for prefix in prefixes
    ]
    prompts = [lay_out_prompt(model, text, []) for text in texts]
    prompts += [
        lay_out_prompt(model, fact, [fact]) for facts in questions.values() for fact in facts
    ]
    length = choose_canvas(model, prompts, length)
    collected = {
        way: collect_labelled(model, facts, prefixes, layers, tokens, length)
        for way, facts in fitted.items()
    }

    def ask(way: str, applied: Mapping[int, Eraser], **columns: Any) -> Iterator[dict[str, Any]]:
        scores = ask_erased(model, questions[way], applied, length)
        for fact, score in zip(questions[way], scores, strict=True):
            question = {"direction": way, "fact": fact.fact_id, "phrasing": fact.phrasing}
            answer = {"logp": score.logp, "tokens": len(score.terms), "says": score.is_said}
            yield columns | question | answer

    for way in questions:
        # 2. The model's own answers.
        nothing = {"fitted": None, "eraser": "none", "draw": 0, "start": None}
        yield from ask(way, {}, **nothing, rank=0, changed=0.0, states=0)
    sets = {
        way: {layer: StateSet(vectors) for layer, vectors in states.items()}
        for way, (states, _) in collected.items()
    }
    for other, (_, labels) in collected.items():
        # 3. Erasers fitted to one direction: of its facts, and of permuted labels.
        fit = partial(_fit_layers, sets[other], shrinkage=shrinkage)
        erasers = {("fact", 0): fit(labels)}
        for draw in range(draws):
            erasers["permuted", draw] = fit(permute_labels(labels, derive_seed(seed, draw)))
        for way in questions:
            # 4. Put on in every direction about that direction's own mean, beside random subspaces
            #    that take as much.
            at = sets[way]
            put_on = {
                key: {layer: eraser.recentre(at[layer]) for layer, eraser in by_layer.items()}
                for key, by_layer in erasers.items()
            }
            for draw in range(draws):
                put_on["random", draw] = {
                    layer: make_random_eraser(eraser, at[layer], derive_seed(seed, draw))
                    for layer, eraser in erasers["fact", 0].items()
                }
            for ((kind, draw), by_layer), start in product(put_on.items(), starts):
                # 5. From each layer on, what the model answers then.
                above = {layer: eraser for layer, eraser in by_layer.items() if layer >= start}
                if not above:
                    raise UserError(
                        f"states are to be erased from layer {start} on: {model.name} has layers 0 "
                        f"to {len(layers) - 2}, and -1 for the stream before them."
                    )
                changed = float(np.mean([eraser.removed for eraser in above.values()]))
                rank = max(eraser.rank for eraser in above.values())
                columns = {"fitted": other, "eraser": kind, "draw": draw, "start": start}
                more = {"rank": rank, "changed": changed, "states": len(labels)}
                yield from ask(way, above, **columns, **more)


def _fit_layers(
    states: Mapping[int, StateSet], labels: Sequence[object], shrinkage: float | None
) -> dict[int, Eraser]:
    return {layer: fit_eraser(each, labels, shrinkage) for layer, each in states.items()}


def _encode(states: np.ndarray, labels: Sequence[object]) -> np.ndarray:
    """Labels as one-hot rows."""
    if states.ndim != 2 or len(states) != len(labels):
        raise UserError(
            f"states of shape {states.shape} and {len(labels)} labels were given: expected rows of "
            "states, one label each."
        )
    _, numbers = np.unique([str(label) for label in labels], return_inverse=True)
    if len(labels) == 0 or numbers.max() == 0:
        raise UserError("all states have one label: expected at least two to tell apart.")
    return np.eye(numbers.max() + 1)[numbers]


def _make_eraser(
    mean: np.ndarray, inward: np.ndarray, outward: np.ndarray, covariance: np.ndarray
) -> Eraser:
    removed = float(np.trace(outward @ (inward @ covariance @ inward.T) @ outward.T))
    parts = (torch.from_numpy(np.ascontiguousarray(part)) for part in (mean, inward, outward))
    return Eraser(*parts, removed)
