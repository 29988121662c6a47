"""The masked cross-entropy bound, with the weights and normalisations of its peers by name.

| weighting  | mask probability   | weight | divided by                                            |
|------------|--------------------|--------|-------------------------------------------------------|
| `bound`    | p_t                | w_t    | rows: nats per row, the bound itself                  |
| `smdm`     | (1 - eps) t + eps  | 1 / p  | all positions, B L                                    |
| `smdm_sft` | (1 - eps) t + eps  | 1 / p  | B L minus all prompt lengths                          |
| `llada`    | (1 - eps) t + eps  | 1 / p  | each row by its answer and filling, then by rows      |
| `mdlm`     | (1 - eps) t        | 1 / t  | positions that may be noised                          |

With eps above 0 these are training losses, off the bound by O(eps); `bound` has none. `fixed_rate`
is `mdlm` at the one time t = rate, without eps: BERT's mean over the masked positions, divided by
their expected number, so that parts of a step add up.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unmask.base.errors import UserError, suggest
from unmask.base.streams import RowStreams
from unmask.net.transformer import Transformer
from unmask.noise.masked import Masked
from unmask.noise.process import check_clean_tokens
from unmask.noise.schedules import LinearSchedule, check_closed, check_times, clamp_open
from unmask.objectives.batch import Batch, choose_noised, drop_prompts
from unmask.objectives.targets import hidden_targets, targets_loss

Share = Literal["rows", "positions", "responses", "answers", "noised"]
SubjectRule = Literal[
    "usual", "never_masked", "no_loss", "not_with_object", "object_hidden",
    "loss_without_object",
]  # fmt: skip


@dataclass(frozen=True)
class MaskedWeighting:
    """How likely a mask is, how much its cross-entropy counts, what the sum is divided by."""

    share: Share
    eps: float = 0.0
    floor: bool = False
    """Whether eps is a floor under the mask probability (SMDM) or only taken off it (MDLM)."""
    rate: float | None = None
    """The mask probability where it is the same at all times."""

    def chance(self, process: Masked, t: Tensor) -> Tensor:
        """The probability that a position is masked at t."""
        if self.rate is not None:
            return torch.full_like(t, self.rate)
        if self.eps == 0:
            return process.schedule.noised(t)
        return (1 - self.eps) * t + (self.eps if self.floor else 0.0)

    def weight(self, process: Masked, t: Tensor) -> Tensor:
        """How much a masked position's cross-entropy counts at t."""
        if self.rate is not None:
            return torch.full_like(t, 1 / self.rate)
        if self.eps == 0:
            return process.schedule.weight(t)
        return 1 / (self.chance(process, t) if self.floor else t)

    def check(self, process: Masked) -> None:
        """Raise where the process's schedule is not the weighting's."""
        if self.eps and not isinstance(process.schedule, LinearSchedule):
            raise UserError(
                f"the peers' objectives have linear noise, but the process has "
                f"{type(process.schedule).__name__}: use the objective `bound`, or linear noise."
            )
        if not self.eps and self.rate is None:
            check_closed(process.schedule)

    def divide(self, batch: Batch, may: Bool[Tensor, "B L"]) -> Float[Tensor, "B"]:
        """What each row's sum is divided by."""
        rows, length = batch.tokens.shape
        ones = torch.ones(rows, dtype=torch.float64, device=batch.tokens.device)
        if self.share == "rows":
            return ones * rows
        if self.share == "positions":
            return ones * rows * length
        if self.share == "responses":
            return ones * (~batch.is_prompt()).sum()
        if self.share == "answers":
            return (~batch.is_prompt()).sum(-1).clamp(min=1).double() * rows
        return ones * may.sum()


WEIGHTINGS = {
    "bound": MaskedWeighting("rows"),
    "smdm": MaskedWeighting("positions", eps=1e-3, floor=True),
    "smdm_sft": MaskedWeighting("responses", eps=1e-3, floor=True),
    "llada": MaskedWeighting("answers", eps=1e-3, floor=True),
    "mdlm": MaskedWeighting("noised", eps=1e-3),
}


def get_weighting(name: str, rate: float | None = None) -> MaskedWeighting:
    """The weighting of that name; `rate` is for `fixed_rate` alone."""
    if name == "fixed_rate":
        return MaskedWeighting("noised", rate=rate)
    if name not in WEIGHTINGS:
        raise UserError(f"masked objective {name!r} is unknown: {suggest(name, WEIGHTINGS)}")
    return WEIGHTINGS[name]


@dataclass(frozen=True)
class Noised:
    """A batch masked for one step: what the network sees, and the weight of each position."""

    t: Float[Tensor, "B"]
    xt: Tensor
    hidden: Bool[Tensor, "B L"]
    weights: Float[Tensor, "B L"]
    """Weights of each hidden position's cross-entropy, all division done."""


def noise_batch(
    process: Masked,
    batch: Batch,
    t: Float[Tensor, "B"],
    streams: RowStreams,
    weighting: MaskedWeighting,
    response_only: bool = False,
    noise_filling: bool = True,
    drop_prompt: float = 0.0,
    whole_entities: float = 0.0,
) -> Noised:
    """Mask the batch at times t, row by row, and weigh what was masked."""
    check_times(t)
    check_clean_tokens(batch.tokens, process.num_states, process.mask_id)
    weighting.check(process)
    may = choose_noised(batch, response_only, noise_filling)
    chance = weighting.chance(process, t.double())[:, None]
    # What a row draws once comes first: it must not depend on the row's length.
    dropped = drop_prompts(batch, drop_prompt, streams)
    draws = streams.uniform(batch.tokens.shape[1])
    hidden = (tie_entities(draws, batch, whole_entities, streams) < chance) & may
    xt = torch.where(hidden | dropped, process.mask_id, batch.tokens)
    weight = weighting.weight(process, clamp_open(t)) / weighting.divide(batch, may)
    return Noised(t, xt, hidden, torch.where(hidden, weight[:, None], 0.0))


def tie_entities(
    draws: Float[Tensor, "B L"], batch: Batch, chance: float, streams: RowStreams
) -> Float[Tensor, "B L"]:
    """The draws that decide what is masked, in some rows one for all tokens of an entity.

    With the given chance a row's subject is masked whole or shown whole, and its object likewise;
    each with the probability that a token has, so that the weights stay what they are.
    """
    if not chance:
        return draws
    own = streams.at("whole").uniform(3)  # [B, 3]: one for each entity, one for the row
    for number in (0, 1):
        tied = batch.is_entity(number) & (own[:, 2:] < chance)
        draws = torch.where(tied, own[:, number : number + 1], draws)
    return draws


def spare_subject(
    noised: Noised, batch: Batch, rule: SubjectRule, streams: RowStreams, mask_id: int
) -> Noised:
    """The noised batch with the subject, which stands first in a line, treated by a rule.

    It is never masked; or masked without loss; or never masked while the object is: of two that
    both have masks one, drawn evenly, is shown whole. Or it is only predicted without the object:
    where it has masks, the whole object is masked; what that adds bears no loss. Or so in half of
    the rows, and in the others it is masked without loss, beside what is seen of its object.
    """
    if rule == "usual":
        return noised
    subject, hidden = batch.is_entity(0), noised.hidden
    if rule == "no_loss":
        return replace(noised, hidden=hidden & ~subject)
    object_ = batch.is_entity(1)
    if rule == "object_hidden":
        covered = object_ & (hidden & subject).any(-1, keepdim=True)
        return replace(noised, xt=torch.where(covered, mask_id, noised.xt))
    if rule == "loss_without_object":
        is_alone = streams.at("entity").uniform(1) < 0.5
        covered = object_ & is_alone & (hidden & subject).any(-1, keepdim=True)
        xt = torch.where(covered, mask_id, noised.xt)
        return replace(noised, xt=xt, hidden=hidden & (is_alone | ~subject))
    if rule == "never_masked":
        shown = subject
    else:
        meet = (hidden & subject).any(-1) & (hidden & object_).any(-1)
        keeps_subject = streams.at("entity").uniform(1) < 0.5
        shown = torch.where(keeps_subject, subject, object_) & meet[:, None]
    xt = torch.where(shown, batch.tokens, noised.xt)
    return replace(noised, xt=xt, hidden=hidden & ~shown)


def contaminate(noised: Noised, batch: Batch, chance: float, streams: RowStreams) -> Noised:
    """The noised batch, in some rows with tokens of another line's answer among those it shows.

    With the given chance a row is contaminated: of the tokens of its answer that are not masked, a
    share drawn evenly is that other line's. What is to be predicted stays the row's own, so that a
    model learns to write its answer even from states that hold something else.
    """
    if not chance:
        return noised
    if batch.foreign is None:
        raise UserError(
            "the rows have no answers of other lines: objective.contaminated is for facts."
        )
    rows, lines, length = batch.foreign.shape
    drawn = streams.at("contaminated")
    is_hit, share, line = drawn.uniform(3).split(1, dim=-1)  # [B, 1] each
    chosen = (lines * line).long().clamp(max=lines - 1)[..., None].expand(rows, 1, length)
    places = (is_hit < chance) & (drawn.at("places").uniform(length) < share)
    places &= ~noised.hidden & ~batch.is_prompt()
    foreign = batch.foreign.gather(1, chosen)[:, 0]
    return replace(noised, xt=torch.where(places, foreign, noised.xt))


def masked_loss(
    net: Transformer, process: Masked, batch: Batch, noised: Noised, shift: bool = False
) -> tuple[Float[Tensor, ""], Float[Tensor, "N"]]:
    """The loss, and the cross-entropies of the hidden positions (no gradient).

    Logits are computed where hidden positions are predicted, a chunk of them at a time: there, or
    shifted, one before them.
    """
    x = net.run_layers(net.embed(noised.xt, t=noised.t))
    targets = hidden_targets(batch, noised.hidden, noised.weights, shift)
    return targets_loss(net, x, targets, find_forbidden(net, process))


def find_forbidden(net: Transformer, process: Masked) -> int | None:
    """The row of the head that is the mask's, if it has one: it can never be predicted."""
    return process.mask_id if process.mask_id < net.config.logit_rows else None
