"""What a strategy sees of a step: the contract of orders, plans and remaskings.

Three small functions decide a step of un-masking, and each of them may be the caller's own:

    order(state, streams)   scores [B, L]: open positions with the highest ones are committed first
    plan(state, streams)    counts [B]: how many open positions of each row are committed
    remask(state, streams)  a mask [B, L]: written tokens that become masks again

All three get the same `StepState` and streams of random numbers of their own, from which they may
draw as much as they like. Every tensor has the shape of the canvas, whichever positions are open.
An order that commits first what changed least since the last step:

    def settled_first(state, streams):
        return -state.kl

    unmask.sample(model, prompts, order=settled_first)
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from unmask.net.transformer import locate


@dataclass(frozen=True)
class StepTimes:
    """One step back in time, under alpha = 1 - t unless a remasking says otherwise."""

    t: float
    s: float
    alpha_t: float
    alpha_s: float

    @classmethod
    def at(cls, step: int, steps: int) -> "StepTimes":
        """Step 1 starts at t = 1, the last ends at s = 0."""
        t, s = 1 - (step - 1) / steps, 1 - step / steps
        return cls(t, s, 1 - t, 1 - s)

    @property
    def highest_rate(self) -> float:
        """sigma_max: the most that can be masked again without leaving the marginal at s."""
        return min(1.0, (1 - self.alpha_s) / self.alpha_t) if self.alpha_t > 0 else 1.0

    def reveal_chance(self, rate: float) -> float:
        """The chance of a mask to become a token when tokens become masks at `rate`."""
        if self.alpha_t == 1:
            return 1.0
        return (self.alpha_s - (1 - rate) * self.alpha_t) / (1 - self.alpha_t)


@dataclass(frozen=True)
class Predictions:
    """log p at the open positions of a batch; at the others nothing is ever computed.

    Only this class knows that rows are packed: `pack` and `spread` lead to and from the canvas.
    """

    open: Bool[Tensor, "B L"]
    rows: Float[Tensor, "N V"]
    """log p(token) at the N open positions, row by row and from left to right, in float64; -inf
    for the mask and whatever else is never written."""
    log_z: Float[Tensor, "N"] | None = None
    """By how much guidance speeds each position up, as a logarithm; None where it does not."""

    @cached_property
    def positions(self) -> Int[Tensor, "N"]:
        """Where each row stands in the flattened canvas."""
        return locate(self.open, len(self.rows))

    def pack(self, values: Shaped[Tensor, "B L"]) -> Shaped[Tensor, "N"]:
        """Values at the open positions."""
        return values.flatten()[self.positions]

    def spread(self, values: Shaped[Tensor, "N *rest"], elsewhere: float) -> Tensor:
        """Values of the open positions, laid out as the canvas is: [B, L, *rest]."""
        return self._lay_out(values, self.positions, elsewhere)

    def _lay_out(self, values: Tensor, positions: Tensor, elsewhere: float) -> Tensor:
        size, rest = self.open.numel(), values.shape[1:]
        canvas = torch.full((size, *rest), elsewhere, dtype=values.dtype, device=values.device)
        return canvas.index_copy_(0, positions, values).view(*self.open.shape, *rest)

    @cached_property
    def entropy(self) -> Float[Tensor, "B L"]:
        """In nats; 0 at positions that are not open."""
        return self.spread(find_entropy(self.rows), 0.0)

    def entropy_at(self, chosen: Bool[Tensor, "B L"], number: int) -> Float[Tensor, "B L"]:
        """The entropy at some of the open positions, so many of them; anything elsewhere.

        Entropies take several passes over [N, V]: unless all are known by now, only the chosen
        rows are computed.
        """
        if "entropy" in self.__dict__:
            return self.entropy
        picked = locate(self.pack(chosen), number)
        return self._lay_out(find_entropy(self.rows[picked]), self.positions[picked], 0.0)


@dataclass(frozen=True)
class StepState:
    """One step as orders, plans and remaskings see it; positions of later blocks are not open.

    Summaries are computed where they are first read, at the open positions alone, and kept.
    """

    tokens: Int[Tensor, "B L"]
    """The canvas before the step, masks where nothing is written yet."""
    proposed: Int[Tensor, "B L"]
    """The text as it would be if all open positions were committed now: a proposed token at each
    of them, the canvas's elsewhere."""
    written: Bool[Tensor, "B L"]
    """Tokens of this block that earlier steps wrote, which may become masks again."""
    written_confidence: Float[Tensor, "B L"]
    """The probability a token had when it was written; 1 where it was given or is not written."""
    step: int
    """Within the block, from 1."""
    steps: int
    """How many steps the block has; the last one commits whatever is left."""
    num_start: Int[Tensor, "B"]
    """Masks of each row at the block's start."""
    times: StepTimes
    remask_rate: float
    """The chance that a written token is masked again, where it is the same for all; else 0."""
    predictions: Predictions
    """What the summaries are made of; how it is laid out may change."""
    last: Predictions | None = None
    """Predictions of the block's step before this one; None at its first."""

    @property
    def open(self) -> Bool[Tensor, "B L"]:
        """The masks of this block: what may be committed."""
        return self.predictions.open

    @cached_property
    def num_open(self) -> Int[Tensor, "B"]:
        """Masks that are left in the block."""
        return self.open.sum(-1)

    @cached_property
    def logp_proposed(self) -> Float[Tensor, "B L"]:
        """log p of each proposed token; -inf at positions that are not open."""
        chosen = self.predictions.pack(self.proposed)[:, None]
        return self.predictions.spread(self.predictions.rows.gather(-1, chosen)[:, 0], -torch.inf)

    @cached_property
    def confidence(self) -> Float[Tensor, "B L"]:
        """The probability of each proposed token; 0 at positions that are not open."""
        return self.logp_proposed.exp()

    @property
    def entropy(self) -> Float[Tensor, "B L"]:
        """The entropy of each prediction, in nats; 0 at positions that are not open."""
        return self.predictions.entropy

    @cached_property
    def margin(self) -> Float[Tensor, "B L"]:
        """The lead of the likeliest token's probability; 0 at positions that are not open."""
        best = self.predictions.rows.topk(2, dim=-1).values.exp()
        return self.predictions.spread(best[:, 0] - best[:, 1], 0.0)

    @cached_property
    def kl(self) -> Float[Tensor, "B L"]:
        """KL(prediction of this step || of the last), in nats; inf without one of the last."""
        now, before = self.predictions, self.last
        if before is None or not len(before.rows):
            return torch.full_like(self.confidence, torch.inf)
        # The row of the last step that stands for each open position, some row where none does.
        row = now.pack((before.open.flatten().cumsum(0) - 1).clamp(min=0).view_as(before.open))
        terms = now.rows.exp() * (now.rows - before.rows[row])
        # What is impossible now adds nothing: 0 log 0.
        sums = terms.masked_fill(now.rows == -torch.inf, 0.0).sum(-1).clamp(min=0)
        return now.spread(sums, torch.inf).masked_fill(~before.open, torch.inf)

    @cached_property
    def logp(self) -> Float[Tensor, "B L V"]:
        """All of log p, which is large; -inf at positions that are not open."""
        return self.predictions.spread(self.predictions.rows, -torch.inf)

    @cached_property
    def last_logp(self) -> Float[Tensor, "B L V"] | None:
        """All of the last step's log p; -inf at positions that were not open, None at the first."""
        return None if self.last is None else self.last.spread(self.last.rows, -torch.inf)


def find_entropy(logp: Float[Tensor, "*N V"]) -> Float[Tensor, "*N"]:
    """The entropy of each distribution, in nats."""
    return torch.special.entr(logp.exp()).sum(-1)


def entropy_at(logp: Float[Tensor, "*N V"], chosen: Bool[Tensor, "*N"]) -> Float[Tensor, "*N"]:
    """The entropy of the chosen distributions, which alone are computed; 0 elsewhere."""
    zeros = torch.zeros(chosen.shape, dtype=logp.dtype, device=logp.device)
    return zeros.masked_scatter(chosen, find_entropy(logp[chosen]))
