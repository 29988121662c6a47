"""What a sampler does on a policy, exactly: texts, values of canvases, and the gradient.

A policy is a table of logits, a row for each canvas (`Lattice`). A sampler proposes a token at
every mask, commits `each` of them, chosen by its order, and goes on. The order by confidence
chooses positions by what is proposed, so that proposals which are not committed have a part in what
happens: the gradient of the expected reward has a term for every one of them. Where two proposals
are about to change places the expected reward jumps; the gradient is that between the jumps.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.experiments.gradients.canvases import Events, Lattice, sum_weights
from unmask.sampling.orders import choose_first


@dataclass(frozen=True)
class CanvasSampler:
    """Which masks go first, and how many a step commits."""

    order: str
    each: int = 1

    @property
    def name(self) -> str:
        return f"{self.order}, {self.each} a step"

    def steps(self, lattice: Lattice) -> int:
        return lattice.length // self.each

    def score(
        self, log_p: Float[Tensor, "*n L V"], drawn: Int[Tensor, "*n L"]
    ) -> Float[Tensor, "*n L"]:
        """What the order goes by, the highest first; of the random order, nothing."""
        if self.order == "confidence":
            return log_p.gather(-1, drawn[..., None])[..., 0]
        if self.order == "entropy":
            return (log_p.exp() * log_p).sum(-1)
        if self.order == "margin":
            first, second = log_p.exp().topk(2, dim=-1).values.unbind(-1)
            return first - second
        return -torch.arange(log_p.shape[-2], dtype=log_p.dtype).expand(log_p.shape[:-1])

    def choose(
        self,
        log_p: Float[Tensor, "*n L V"],
        drawn: Int[Tensor, "*n L"],
        open_: Bool[Tensor, "*n L"],
    ) -> Bool[Tensor, "*n L"]:
        """The positions that a step commits, by an order that leaves nothing to chance."""
        scores = self.score(log_p, drawn)
        flat = scores.flatten(0, -2)
        counts = torch.full((len(flat),), self.each)
        return choose_first(flat, open_.flatten(0, -2), counts).view_as(scores)


@dataclass(frozen=True, eq=False)
class SamplerLaw:
    """Policies under a sampler, with rewards of texts: all that follows without drawing."""

    lattice: Lattice
    sampler: CanvasSampler
    logits: Float[Tensor, "N R L V"]
    rewards: Float[Tensor, "N X"]

    @cached_property
    def events(self) -> Events:
        return Events.lay_out(self.lattice, self.sampler.each)

    @cached_property
    def log_p(self) -> Float[Tensor, "N R L V"]:
        return self.logits.log_softmax(-1)

    @cached_property
    def flow(self) -> Float[Tensor, "N E S"]:
        """The chance of each proposal on its canvas, and that these positions are committed."""
        events, places = self.events, torch.arange(self.lattice.length)
        own = self.log_p[:, events.canvas]  # [N, E, L, V]
        drawn = own[:, torch.arange(len(events.drawn))[:, None], places, events.drawn]
        chance = (drawn * events.masked).sum(-1).exp()
        if self.sampler.order == "random":
            share = events.fits.to(chance.dtype)
            share = (share / share.sum(-1, keepdim=True).clamp(min=1)).expand(len(chance), -1, -1)
        else:
            proposals, open_ = (
                x.expand(len(chance), -1, -1) for x in (events.drawn, events.masked)
            )
            picked = self.sampler.choose(own.detach(), proposals, open_)
            share = (picked[:, :, None] == events.chosen).all(-1).to(chance.dtype)
        return chance[..., None] * share

    @cached_property
    def value(self) -> Float[Tensor, "N C"]:
        """The expected reward from each canvas on, by recursion from the texts."""
        value = self.rewards.new_zeros(len(self.rewards), self.lattice.num_canvases)
        value = value.index_copy(1, self.lattice.text_codes, self.rewards)
        for own in self.events.levels(self.sampler.each):
            gains = (self.flow[:, own] * value[:, self.events.next[own]]).sum(-1)
            value = value.index_add(1, self.events.canvas[own], gains)
        return value

    @property
    def expected(self) -> Float[Tensor, "N"]:
        """The expected reward."""
        return self.value[:, self.lattice.start]

    @cached_property
    def reach(self) -> Float[Tensor, "N C"]:
        """The chance that a canvas is met."""
        reach = self.rewards.new_zeros(len(self.rewards), self.lattice.num_canvases)
        reach[:, self.lattice.start] = 1.0
        for own in reversed(self.events.levels(self.sampler.each)):
            going = reach[:, self.events.canvas[own], None] * self.flow[:, own]
            reach = reach.index_add(1, self.events.next[own].flatten(), going.flatten(1))
        return reach

    @cached_property
    def texts(self) -> Float[Tensor, "N X"]:
        """The chance of each text."""
        return self.reach[:, self.lattice.text_codes]

    @cached_property
    def advantages(self) -> Float[Tensor, "N X"]:
        """Rewards minus the expected one."""
        return self.rewards - self.expected[:, None]

    @cached_property
    def gains(self) -> Float[Tensor, "N E S"]:
        """The chance of each event and choice, times what the canvas it leaves is worth."""
        worth = self.value[:, self.events.next] - self.expected[:, None, None]
        return self.reach[:, self.events.canvas, None] * self.flow * worth * self.events.fits

    @cached_property
    def moves(self) -> Float[Tensor, "N C C"]:
        """The chance of a step from one canvas to another."""
        size = self.lattice.num_canvases
        place = (self.events.canvas[:, None] * size + self.events.next).flatten()
        moves = self.rewards.new_zeros(len(self.rewards), size * size)
        return moves.index_add(1, place, self.flow.flatten(1)).view(-1, size, size)

    def weigh_proposals(self) -> Float[Tensor, "N R L V"]:
        """The exact gradient, as weights of log-probabilities: every proposal is replayed."""
        events = self.events
        weights = self.gains.sum(-1)[..., None] * events.masked
        return sum_weights(self.lattice, events.canvas, events.drawn, weights)

    def weigh_committed(self) -> Float[Tensor, "N R L V"]:
        """Only the tokens that a step commits are replayed."""
        events = self.events
        weights = torch.einsum("nes,sl->nel", self.gains, events.chosen.to(self.gains.dtype))
        return sum_weights(self.lattice, events.canvas, events.drawn, weights)
