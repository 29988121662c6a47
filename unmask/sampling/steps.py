"""One step of un-masking: the parts of a strategy, in the order in which they act.

Tensors keep the shape [B, L] of the canvas (or [B]): what a step works on is said by masks, and
only `Predictions` packs rows.
"""

from dataclasses import dataclass, field
from functools import partial

import torch
from jaxtyping import Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.streams import RowStreams
from unmask.sampling.attributes import AttributeGuidance, reveal_by_rates
from unmask.sampling.correctors import Corrector, Positions, WrittenText
from unmask.sampling.denoiser import Denoiser
from unmask.sampling.guidance import Guidance
from unmask.sampling.orders import Order, choose_first
from unmask.sampling.plans import Plan
from unmask.sampling.planting import Planting
from unmask.sampling.remasking import Remasking
from unmask.sampling.settings import CacheMode
from unmask.sampling.state import Predictions, StepState, StepTimes
from unmask.sampling.token_sampler import TokenSampler
from unmask.sampling.trajectory import TrajectoryRecord


@dataclass(frozen=True)
class Strategy:
    """How masks are filled: each part is a small function, and they combine freely."""

    steps: int
    plan: Plan
    order: Order
    sampler: TokenSampler = field(default_factory=TokenSampler)
    remasking: Remasking | None = None
    guidance: Guidance = 0.0
    block: int | None = None
    """Tokens of a block; blocks are filled from left to right. None: one block."""
    cache: CacheMode = "none"
    guesses: int = 0
    """Likeliest tokens that the trajectory keeps of every prediction."""
    corrector: Corrector | None = None
    """What rewrites written tokens after each step."""
    attribute: AttributeGuidance | None = None
    """A classifier that guides towards an attribute."""
    attribute_strength: Guidance = 1.0
    rates: bool = False
    """Whether guidance acts on rates: it then says how soon a token is written as well."""
    planting: Planting = field(default_factory=Planting)
    """Tokens that steps write whatever the model says."""
    clamp: bool = False
    """Whether steps over vectors head for the token vector nearest to the guess (Diffusion-LM)."""


@dataclass
class OpenBlock:
    """A block while it is filled: what its steps share, and what each leaves to the next."""

    inside: Positions
    steps: int
    num_start: Int[Tensor, "B"]
    """Masks of each row at its start."""
    last: Int[Tensor, "B"]
    """Each row's last step, which commits what is left, whatever the plan says. It is the row's
    own: how long its neighbours take must not matter."""
    num_open: int
    """Positions to fill; on the host, as the next is, so that the device need not be asked."""
    num_same: int = 0
    """Rows that have some and are the same as in the step before."""
    earlier: Predictions | None = None
    """What the step before predicted."""


class Unmasker:
    """Takes one step after the other; what is written goes into the record."""

    def __init__(self, denoiser: Denoiser, record: TrajectoryRecord, strategy: Strategy):
        self.denoiser, self.record, self.strategy = denoiser, record, strategy
        self.free = ~denoiser.canvas.fixed
        self.hidden = self.free & (record.tokens == denoiser.mask_id)
        """The masks that are left; those after the end of a shorter row are fixed and stay."""

    def enter_block(self, inside: Positions, steps: int) -> OpenBlock:
        """The block of these positions, before its first step."""
        self.denoiser.enter_block(inside, self.free)
        num_start = (self.hidden & inside).sum(-1)
        # A plan that paces itself has a step per mask.
        paces_itself = self.strategy.plan.paces_itself
        last = num_start if paces_itself else torch.full_like(num_start, steps)
        return OpenBlock(inside, steps, num_start, last, num_open=int(num_start.sum()))

    def take_step(
        self,
        block: OpenBlock,
        step: int,
        times: StepTimes,
        strengths: tuple[float, float],
        streams: RowStreams,
    ) -> None:
        """A step of a block, from 1, at the strengths of guidance by prompt and classifier."""
        strategy, record = self.strategy, self.record
        sampler = strategy.sampler.at(step, block.steps)
        planted = strategy.planting.by_step.get(record.step + 1)

        # 1. What the network says at the open positions, and a token proposed at each.
        predict = partial(_predict, self.denoiser, strategy.attribute, strengths, record.step + 1)
        open_ = self.hidden & block.inside
        predictions = predict(record.tokens, open_, block.num_open, block.num_same)
        record.keep_guesses(predictions)
        proposed = _propose(record.tokens, predictions, sampler, streams.at("values"))
        if planted is not None:
            proposed = torch.where(planted >= 0, planted, proposed)
        state = StepState(
            tokens=record.tokens,
            proposed=proposed,
            written=self.free & ~self.hidden & block.inside,
            written_confidence=record.confidence,
            step=step,
            steps=block.steps,
            num_start=block.num_start,
            times=times,
            remask_rate=0.0 if strategy.remasking is None else strategy.remasking.rate(times),
            predictions=predictions,
            last=block.earlier,
        )

        # 2. Which of them are committed, and which written tokens become masks again. What is
        #    planted is written now, on top of that, even where the model has written before.
        chosen, back = _choose(strategy, state, block.last, streams)
        if planted is not None:
            chosen, back = chosen | (planted >= 0), back & (planted < 0)

        # 3. Both are written.
        written, num_written = self._write(block, state, chosen, back, planted is not None)
        block.earlier = predictions
        del state  # it holds the predictions before these: [N, V] in float64

        # 4. Time stands still while a corrector rewrites what is written.
        if strategy.corrector is not None:
            text = WrittenText(
                tokens=record.tokens,
                written=written,
                num_written=num_written,
                confidence=record.confidence,
                entropy=record.entropy,
                mask_id=self.denoiser.mask_id,
                predict=predict,
                sampler=sampler,
            )
            strategy.corrector.correct(text, streams.at("corrector"))
            _keep_corrections(record, text, written)
        record.end_step(self.denoiser.calls)

    def _write(
        self,
        block: OpenBlock,
        state: StepState,
        chosen: Positions,
        back: Positions,
        has_plants: bool,
    ) -> tuple[Positions, list[int]]:
        """Commit the chosen tokens and take others back: what is written now, with its counts.

        Both at once: `back` was written before this step, so that the two never meet in a position.
        """
        record, open_ = self.record, state.open
        committed = chosen & open_
        self.hidden = self.hidden & ~chosen | back
        written = self.free & ~self.hidden & block.inside
        # The host asks the device once in a step, for all that it has to know.
        num_committed, block.num_open, block.num_same, *num_written = _ask(
            state, committed, back, self.hidden & block.inside, written, record.step + 1
        )
        confidence = state.confidence
        entropy = state.predictions.entropy_at(committed, num_committed)
        if has_plants:
            # Nothing was predicted where a token stood: the new one counts as given.
            confidence = torch.where(open_, confidence, 1.0)
            entropy = torch.where(open_, entropy, 0.0)
        record.write(chosen, state.proposed, confidence, entropy)
        if self.strategy.remasking is not None:
            record.take_back(back, self.denoiser.mask_id)
        return written, num_written


def _predict(
    denoiser: Denoiser,
    attribute: AttributeGuidance | None,
    strengths: tuple[float, float],
    step: int,
    tokens: Int[Tensor, "B L"],
    open_: Positions,
    number: int | None = None,
    same: int = 0,
) -> Predictions:
    """What the network says at the open positions, guided by the prompt and by a classifier."""
    # A GPU takes the number as it is, and a wrong one gives wrong positions: a CPU looks at it.
    num_open = int(open_.sum()) if open_.device.type == "cpu" else number
    if number not in (None, num_open):
        raise UserError(
            f"predictions at {number} positions were asked for, but {num_open} are open: give the "
            "number of open positions, or leave it out to have them counted."
        )
    with denoiser.model.net.taps.in_step(step):
        predictions = denoiser.predict(tokens, open_, strengths[0], number, same)
    if attribute is None:
        return predictions
    predictions, calls = attribute.guide(predictions, tokens, strengths[1], denoiser.mask_id)
    denoiser.calls += calls
    return predictions


def _propose(
    tokens: Int[Tensor, "B L"], predictions: Predictions, sampler: TokenSampler, streams: RowStreams
) -> Int[Tensor, "B L"]:
    """A token for each open position; the others keep theirs."""
    draws = None
    if sampler.temperature:
        # Drawn for whole rows, so that a position's number does not depend on what is open.
        draws = predictions.pack(streams.uniform(tokens.shape[1]))
    proposed = predictions.spread(sampler.draw(predictions.rows, draws), 0)
    return torch.where(predictions.open, proposed, tokens)


def _choose(
    strategy: Strategy, state: StepState, last: Int[Tensor, "B"], streams: RowStreams
) -> tuple[Positions, Positions]:
    """Proposed tokens that are committed, and written ones that become masks again."""
    # 1. How many each row commits: what the plan says, and at its last step all.
    count = strategy.plan.count(state, streams.at("count"))
    count = _check_tensor("plan", count, state.num_open)
    count = torch.where(state.step >= last, state.num_open, count)
    # 2. What goes back, for which more may be committed.
    back, count = _remask(strategy, state, count, streams.at("remasking"))
    # 3. The first by the order's scores. Rates give each position a chance of its own instead.
    if state.predictions.log_z is not None and state.step < state.steps:
        return reveal_by_rates(state, streams.at("rates")), back
    scores = _check_tensor("order", strategy.order(state, streams.at("order")), state.open)
    is_seen = scores.device.type == "cpu"  # to look would have a GPU wait
    # Where predictions are none either, the step says so itself, of the network.
    if scores.is_complex() or (
        is_seen and (scores.isnan() & state.open & ~state.confidence.isnan()).any()
    ):
        raise UserError("the order returned scores that are no numbers: expected one for each.")
    return choose_first(scores.double(), state.open, count), back


def _remask(
    strategy: Strategy, state: StepState, count: Int[Tensor, "B"], streams: RowStreams
) -> tuple[Positions, Int[Tensor, "B"]]:
    """Written tokens that become masks again, none at the last step; how many are committed now."""
    if strategy.remasking is None or state.step >= state.steps:
        return torch.zeros_like(state.open), count
    back = strategy.remasking.choose(state, streams)
    back = _check_tensor("remasking", back, state.open)
    if back.dtype != torch.bool:
        raise UserError(f"the remasking returned {back.dtype}: expected true or false for each.")
    back = back & state.written
    if strategy.plan.keeps_schedule:
        # As many more are committed, which takes open positions that the plan leaves: no more go
        # back than there are, the least confident first.
        back = choose_first(-state.written_confidence, back, state.num_open - count)
        count = count + back.sum(-1)
    return back, count


def _ask(
    state: StepState,
    chosen: Positions,
    back: Positions,
    open_: Positions,
    written: Positions,
    step: int,
) -> list[int]:
    """How many positions were chosen, how many are open now, and in how many rows nothing moved.

    After these, how many are written in each row. Raises where predictions are not numbers.
    """
    same = open_.any(-1) & ~(chosen | back).any(-1)
    is_nan = state.confidence.isnan().any() | state.written_confidence.isnan().any()
    counts = (is_nan, chosen.sum(), open_.sum(), same.sum())
    is_off, *numbers = torch.cat((torch.stack(counts), written.sum(-1))).tolist()
    if is_off:
        raise UserError(
            f"the network's logits are not numbers at step {step}: its weights, the guidance or "
            "the forbidden tokens are off."
        )
    return numbers


def _keep_corrections(record: TrajectoryRecord, text: WrittenText, written: Positions) -> None:
    """What a corrector made of the written tokens; whatever else it touched stays as it was."""
    tokens = _check_tensor("corrector", text.tokens, record.tokens)
    kept = written & (tokens != record.mask_id)
    record.rewrite(
        torch.where(kept, tokens, record.tokens),
        torch.where(kept, text.confidence, record.confidence),
        torch.where(kept, text.entropy, record.entropy),
    )


def _check_tensor(what: str, given: object, like: Tensor) -> Tensor:
    """What a strategy returned, if it has the shape of `like`; a strategy may be the caller's."""
    if isinstance(given, Tensor) and given.shape == like.shape:
        return given.to(like.device)
    shown = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
    raise UserError(
        f"the {what} returned {shown}: expected a tensor of shape {tuple(like.shape)}, which is "
        f"{'a number for each row' if like.ndim == 1 else 'one for each position of each row'}."
    )
