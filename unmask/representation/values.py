"""v*: what the MLP of a layer must answer at a subject for the model to say the object.

Meng et al. 2022's search, with the ORIGINAL object as its target: a delta is added to the MLP's
output at the last subject token, after every prefix alike, and moved by Adam. Each fact has its
own delta, its own state of Adam and its own end; many facts share a batch and nothing else.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.base.config import adjust, check_arguments, list_settings
from unmask.base.progress import track_inside
from unmask.data.facts import Fact, FactTexts
from unmask.net.model import Model
from unmask.representation.prompts import Case, map_cases, prepare_case
from unmask.representation.settings import OF_KEYS, ROME_LOSS, Extraction, choose_extraction
from unmask.representation.value_loss import LossTerms, ValueLoss

WORSE = 0.1
"""Nats per token by which a search must miss v0 to count as diverged; Adam's last swing is less."""

Stopped = Literal["steps", "target", "loss", "not finite"]
_REASONS: tuple[Stopped, ...] = ("steps", "target", "loss", "not finite")
WatchSearch = Callable[[int], object]
"""Called with the number of each evaluation before it; what it raises ends the search."""
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
        """The distance from v0 in lengths of v0; infinite where v0 is nothing."""
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


@list_settings(Extraction, OF_KEYS)
@check_arguments(leave_out=("fact",))
def extract_value(
    model: Model,
    fact: Fact | FactTexts,
    layer: int,
    settings: Extraction | str | None = None,
    **changes: Any,
) -> Value:
    """The value v* = v0 + delta of the fact's object at the last token of its subject.

    delta is searched by gradient descent, so that the MLP's output at that token makes the model
    say the object.

    Args:
        model: Masked or causal.
        fact: A fact or its (subject, object, prompt).
        layer: Of the MLP that is changed, counted from 0.
        settings: How the value is searched, or the name of an objective: "seed", the study's, or
            "rome", the reference's (Meng et al. 2022).
        changes: Settings by name, as in `unmask.Extraction`:
        {settings}

    Returns:
        `v0`, `delta` and `v_star` [width], the losses on the way, the object's probability before
        and after, and why the search stopped.

    >>> model = unmask.load("reversal-mdm", device="cpu")
    >>> fact = unmask.read_facts("facts.csv")[0]
    >>> quick = unmask.Extraction(prefixes=1, search_steps=2)
    >>> value = unmask.extract_value(model, fact, 2, quick)
    >>> value.v_star.shape == (model.net.config.width,)
    True
    """
    chosen = choose_extraction(settings) if isinstance(settings, str) else settings
    chosen = adjust(extract_value, Extraction, chosen, changes, OF_KEYS)
    case = prepare_case(model, fact, layer, chosen)
    return find_values(model, [case], layer, chosen)[0]


def find_values(
    model: Model,
    cases: Sequence[Case],
    layer: int,
    settings: Extraction,
    loss: Callable[..., ValueLoss] = ValueLoss,
    watch: WatchSearch | None = None,
) -> list[Value]:
    """The values of many facts, in the order given, at the minimum of a `loss`."""
    config, itemsize = model.net.config, model.net.embedding.weight.dtype.itemsize
    length = max(case.length for case in cases)
    # What a row keeps for its gradient, at worst.
    streams = (config.layers - layer + 2) * length * (16 * config.width + 6 * config.widest_mlp)
    logits = 16 * max(case.num_targets for case in cases) * config.logit_rows

    def find(batch: Sequence[Case]) -> list[Value]:
        return search(loss(model, batch, layer, settings), layer, batch, watch)

    return map_cases(model, cases, find, streams * itemsize + logits)


def search(
    loss: ValueLoss, layer: int, cases: Sequence[Case], watch: WatchSearch | None = None
) -> list[Value]:
    """The values at the end of Adam's path, one per fact.

    A fact that has stopped stays where it is; one whose loss is not a number goes back to
    where it last was finite.
    """
    settings, last = loss.settings, max(1, loss.settings.search_steps) - 1
    delta = torch.zeros_like(loss.v0, requires_grad=True)  # [N, D]
    adam = torch.optim.Adam([delta], lr=settings.lr)
    kept = delta.detach().clone()  # each fact's delta where its loss last was finite
    is_active = torch.ones(loss.num_facts, dtype=torch.bool, device=delta.device)
    reason = torch.full_like(is_active, _STEPS, dtype=torch.long)
    curve: list[Tensor] = []  # the losses of active facts, [N] per evaluation
    first = final = torch.empty(0)  # log p, nll and KL [3, N] at v0, and where each fact ends
    for step in track_inside(range(last + 1)):
        if watch is not None:
            watch(step)
        # 1. The loss of every fact at its delta. The last evaluation needs no gradient.
        with torch.set_grad_enabled(step < last):
            terms = loss.evaluate(delta)
        losses = terms.loss.detach()
        curve.append(torch.where(is_active, losses, torch.nan))
        # 2. Keep where active facts are, unless their loss is not finite: these stop.
        is_sound = is_active & losses.isfinite()
        kept = torch.where(is_sound[:, None], delta.detach(), kept)
        now = torch.stack((terms.logp, terms.nll, terms.kl)).detach()
        if step == 0:
            first = final = now
        final = torch.where(is_sound, now, final)
        reason = torch.where(is_active & ~is_sound, _BROKEN, reason)
        # 3. Facts that have arrived stop as well.
        is_active = is_sound & ~_has_arrived(terms, settings)
        reason = torch.where(is_sound & ~is_active, _TARGET if settings.target else _LOSS, reason)
        # Asking whether any is left waits for the device: only where facts can stop early.
        if step == last or (settings.stop != "steps" and not bool(is_active.any())):
            break
        # 4. One update of Adam. Facts do not share anything: the gradient of the sum is each
        #    fact's own, and Adam's state is elementwise.
        (delta.grad,) = torch.autograd.grad(torch.where(is_active, terms.loss, 0.0).sum(), delta)
        adam.step()
        # 5. Shorten long deltas; facts that stopped, or broke in the update, go back to `kept`.
        with torch.no_grad():
            delta.copy_(_shorten(delta, loss.v0_norm, settings.clamp))
            is_sound = is_active & delta.isfinite().all(-1)
            reason = torch.where(is_active & ~is_sound, _BROKEN, reason)
            delta.copy_(torch.where(is_sound[:, None], delta, kept))
            is_active = is_sound
    return _collect(loss, layer, cases, kept, first, final, torch.stack(curve, -1), reason)


def _has_arrived(terms: LossTerms, settings: Extraction) -> Tensor:
    if settings.target is not None:
        return terms.logp.detach().exp() >= settings.target
    if settings.stop == "rome":
        return terms.loss.detach() < ROME_LOSS
    return torch.zeros_like(terms.loss, dtype=torch.bool)


def _shorten(delta: Tensor, v0_norm: Float[Tensor, "N"], clamp: float) -> Tensor:
    """The deltas, none longer than `clamp` lengths of v0; of any length where it is 0."""
    if not clamp:
        return delta
    length = torch.linalg.vector_norm(delta, dim=-1)
    return delta * (clamp * v0_norm / length.clamp(min=1e-30)).clamp(max=1.0)[:, None]


def _collect(
    loss: ValueLoss,
    layer: int,
    cases: Sequence[Case],
    delta: Tensor,
    first: Float[Tensor, "3 N"],
    final: Float[Tensor, "3 N"],
    curve: Float[Tensor, "N S"],
    reason: Tensor,
) -> list[Value]:
    # In float64: the product over the tokens of a long object is small.
    p_before, p_after = (logp.double().exp().tolist() for logp in (first[0], final[0]))
    nll_before, nll, kl = first[1].tolist(), final[1].tolist(), final[2].tolist()
    reasons, v0, delta = reason.tolist(), loss.v0.cpu(), delta.cpu()
    values = []
    for i, losses in enumerate(curve.tolist()):
        # An evaluation that a stopped fact did not take part in is not part of its curve; one
        # whose loss is not a number is its last.
        taken = [number for number in losses if number == number]
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
                prefixes=cases[i].prefixes,
            )
        )
    return values
