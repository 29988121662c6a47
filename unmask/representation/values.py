"""v*: what the MLP of a layer must answer at a subject for the model to say the object.

Meng et al. 2022's search, with the ORIGINAL object as its target: a delta is added to the MLP's
output at the last subject token, after every prefix alike, and moved by Adam. Each fact has its
own delta, its own state of Adam and its own end; many facts share a batch and nothing else.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.data.facts import Fact
from unmask.net.batches import fit_rows, map_batches
from unmask.net.model import Model
from unmask.representation.keys import check_fact, settle_prefixes
from unmask.representation.problem import Problem, Terms
from unmask.representation.settings import ROME_LOSS, Extraction, choose_extraction
from unmask.representation.states import Case, check_layer, lay_out_case

WORSE = 0.1
"""Nats per token by which a search must miss v0 to count as diverged; Adam's last swing is less."""

Stopped = Literal["steps", "target", "loss", "not finite"]
_REASONS: tuple[Stopped, ...] = ("steps", "target", "loss", "not finite")
_STEPS, _TARGET, _LOSS, _BROKEN = range(4)


@dataclass(frozen=True)
class Value:
    """The value of a fact's object at one layer, and how it was found."""

    layer: int
    v0: Float[Tensor, "D"]
    """The MLP's own output on the prompt without a prefix."""
    delta: Float[Tensor, "D"]
    losses: tuple[float, ...]
    """The whole loss at each evaluation; the first is that of v0."""
    nll_before: float
    """-log p of the object at v0, averaged over its tokens, patterns and prefixes, in nats."""
    nll: float
    kl: float
    p_before: float
    """The object's probability on the prompt without a prefix: the product over its tokens."""
    p_after: float
    stopped: Stopped
    prefixes: tuple[str, ...]

    @property
    def v_star(self) -> Float[Tensor, "D"]:
        return self.v0 + self.delta

    @property
    def distance(self) -> float:
        """How far the search went: ||v* - v0||."""
        return float(torch.linalg.vector_norm(self.delta))

    @property
    def relative_distance(self) -> float:
        """The same in lengths of v0; infinite where v0 is nothing."""
        size = float(torch.linalg.vector_norm(self.v0))
        return self.distance / size if size else float("inf")

    @property
    def updates(self) -> int:
        return len(self.losses) - 1

    @property
    def diverged(self) -> bool:
        """Whether the loss was not a number, or the search made the object clearly less likely.

        At the loss's minimum the object is no less likely than at v0, whatever the weights.
        """
        return self.stopped == "not finite" or self.nll > self.nll_before + WORSE


def value(
    model: Model,
    fact: Fact,
    layer: int,
    objective: str = "seed",
    prefixes: Sequence[str] | int = 4,
    **settings: Any,
) -> Value:
    """The value v* = v0 + delta of the fact's object at the last token of its subject.

    delta is searched by gradient descent, so that the MLP's output at that token makes the model
    say the object.

    Args:
        model: Masked or causal.
        fact: Prompt, subject and object.
        layer: Whose MLP's output is replaced, counted from 0.
        objective: "seed", the study's loss, or "rome", the reference's.
        prefixes: Texts that are put before the prompt, the empty one first; or how many to sample
            from the model.
        settings: Fields of `unmask.representation.settings.Extraction`, such as steps, lr, stop,
            revealed, guidance and seed.

    >>> model = unmask.load("reversal-mdm", device="cpu")
    >>> fact = unmask.read_facts("facts.csv")[0]
    >>> searched = unmask.value(model, fact, layer=2, prefixes=1, steps=2)
    >>> searched.v_star.shape == searched.v0.shape
    True
    """
    check_fact(fact)
    model.net.taps.require_none("the search for values")
    chosen = choose_extraction(objective, **settings)
    check_layer(model, layer)
    texts = settle_prefixes(model, prefixes, chosen)
    case = lay_out_case(model, fact, texts, chosen)
    return find_values(model, [case], layer, chosen, texts)[0]


def find_values(
    model: Model,
    cases: Sequence[Case],
    layer: int,
    settings: Extraction,
    prefixes: Sequence[str],
) -> list[Value]:
    """The values of many facts, in the order given."""
    values = dict(iterate_values(model, cases, layer, settings, prefixes))
    return [values[i] for i in range(len(cases))]


def iterate_values(
    model: Model,
    cases: Sequence[Case],
    layer: int,
    settings: Extraction,
    prefixes: Sequence[str],
) -> Iterator[tuple[int, Value]]:
    """The values with their cases' numbers, batch by batch as they are found."""
    for group in group_alike(model, cases):
        for numbers, values in _run(model, cases, group, layer, settings, tuple(prefixes)):
            yield from zip(numbers, values, strict=True)


def group_alike(model: Model, cases: Sequence[Case]) -> list[list[int]]:
    """The cases' numbers in groups that can be one batch, those with as many targets together."""
    groups = model.paradigm.group_rows([case.length for case in cases])
    return [
        sorted(group, key=lambda i: (cases[i].num_targets, cases[i].length)) for group in groups
    ]


def _run(
    model: Model,
    cases: Sequence[Case],
    group: Sequence[int],
    layer: int,
    settings: Extraction,
    prefixes: tuple[str, ...],
) -> Iterator[tuple[Sequence[int], Sequence[Value]]]:
    per_fact = len(cases[group[0]].rows)
    each = _count_bytes(model, [cases[i] for i in group], layer)

    def find(batch: Sequence[int]) -> list[Value]:
        problem = Problem(model, [cases[i] for i in batch], layer, settings)
        return search(problem, layer, prefixes)

    return map_batches(group, max(1, fit_rows(model, each) // per_fact), find)


def _count_bytes(model: Model, cases: Sequence[Case], layer: int) -> int:
    """Bytes that a row keeps for its gradient, at worst."""
    config, itemsize = model.net.config, model.net.embedding.weight.dtype.itemsize
    length = max(case.length for case in cases)
    streams = (config.layers - layer + 2) * length * (16 * config.width + 6 * config.mlp_width)
    return streams * itemsize + 16 * max(case.num_targets for case in cases) * config.logit_rows


def search(problem: Problem, layer: int, prefixes: tuple[str, ...] = ("",)) -> list[Value]:
    """The values at the end of Adam's path, one per fact.

    A fact that has stopped stays where it is; one whose loss is not a number goes back to
    where it last was finite.
    """
    settings, count = problem.settings, max(1, problem.settings.steps)
    delta = torch.zeros_like(problem.v0, requires_grad=True)
    adam = torch.optim.Adam([delta], lr=settings.lr)
    active = torch.ones(problem.num_facts, dtype=torch.bool, device=delta.device)
    reason = torch.full_like(active, _STEPS, dtype=torch.long)
    curve: list[Tensor] = []
    kept, ends, first = delta.detach().clone(), None, None
    for step in range(count):
        with torch.set_grad_enabled(step + 1 < count):
            terms = problem.evaluate(delta)
        finite = terms.loss.detach().isfinite()
        curve.append(torch.where(active, terms.loss.detach(), torch.nan))
        first = terms if first is None else first
        here = active & finite
        kept = torch.where(here[:, None], delta.detach(), kept)
        ends = _keep(here, terms, ends)
        reason = torch.where(active & ~finite, _BROKEN, reason)
        active = here & ~_has_arrived(terms, settings)
        reason = torch.where(here & ~active, _TARGET if settings.target else _LOSS, reason)
        if step + 1 == count or (settings.stop != "steps" and not bool(active.any())):
            break
        (delta.grad,) = torch.autograd.grad(torch.where(active, terms.loss, 0.0).sum(), delta)
        adam.step()
        with torch.no_grad():
            delta.copy_(_project(delta, problem.size, settings.clamp))
            sound = active & delta.isfinite().all(-1)
            reason = torch.where(active & ~sound, _BROKEN, reason)
            delta.copy_(torch.where(sound[:, None], delta, kept))
            active = sound
    assert ends is not None and first is not None
    return _collect(problem, layer, kept, first, ends, torch.stack(curve, -1), reason, prefixes)


def _has_arrived(terms: Terms, settings: Extraction) -> Tensor:
    if settings.target is not None:
        return terms.logp.detach().exp() >= settings.target
    if settings.stop == "rome":
        return terms.loss.detach() < ROME_LOSS
    return torch.zeros_like(terms.loss, dtype=torch.bool)


def _project(delta: Tensor, size: Float[Tensor, "N"], clamp: float | None) -> Tensor:
    """The delta, shortened where it is longer than `clamp` lengths of v0."""
    if clamp is None:
        return delta
    length = torch.linalg.vector_norm(delta, dim=-1)
    return delta * (clamp * size / length.clamp(min=1e-30)).clamp(max=1.0)[:, None]


def _keep(here: Tensor, terms: Terms, before: tuple[Tensor, ...] | None) -> tuple[Tensor, ...]:
    """log p, nll and KL at each fact's last finite evaluation."""
    now = tuple(term.detach() for term in (terms.logp, terms.nll, terms.kl))
    if before is None:
        return now
    return tuple(torch.where(here, new, old) for new, old in zip(now, before, strict=True))


def _collect(
    problem: Problem,
    layer: int,
    delta: Tensor,
    first: Terms,
    ends: tuple[Tensor, ...],
    curve: Tensor,
    reason: Tensor,
    prefixes: tuple[str, ...],
) -> list[Value]:
    # In float64: the product over the tokens of a long object is small.
    p_before = first.logp.detach().double().exp().tolist()
    nll_before = first.nll.tolist()
    p_after, nll, kl = ends[0].double().exp().tolist(), ends[1].tolist(), ends[2].tolist()
    curves, reasons = curve.tolist(), reason.tolist()
    v0, delta = problem.v0.cpu(), delta.cpu()
    # An evaluation that a stopped fact did not take part in is not part of its curve; one whose
    # loss is not a number is its last.
    values = []
    for i, losses in enumerate(curves):
        taken = [loss for loss in losses if loss == loss]
        if reasons[i] == _BROKEN and len(taken) < len(losses):
            taken.append(float("nan"))
        values.append(
            Value(
                layer=layer,
                v0=v0[i],
                delta=delta[i],
                losses=tuple(taken),
                nll_before=nll_before[i],
                nll=nll[i],
                kl=kl[i],
                p_before=p_before[i],
                p_after=p_after[i],
                stopped=_REASONS[reasons[i]],
                prefixes=prefixes,
            )
        )
    return values
