"""The denoising loop of masked models: guess, order, commit, until no mask is left."""

from dataclasses import dataclass, field, replace
from functools import partial

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.streams import RowStreams
from unmask.net.model import Model
from unmask.sampling.attributes import AttributeGuidance, reveal_by_rates
from unmask.sampling.canvas import Canvas
from unmask.sampling.constraints import Constraints, plant_phrases
from unmask.sampling.correctors import Corrector, WrittenText
from unmask.sampling.denoiser import Denoiser, make_denoiser
from unmask.sampling.guidance import Guidance, guidance_schedule
from unmask.sampling.orders import Order, choose_first
from unmask.sampling.plans import Plan
from unmask.sampling.planting import Planting
from unmask.sampling.remasking import Remasking
from unmask.sampling.settings import CacheMode
from unmask.sampling.state import Predictions, StepState, StepTimes
from unmask.sampling.token_sampler import TokenSampler
from unmask.sampling.trajectory import Part, StateCallback, Trajectory, TrajectoryRecord, join_rows


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


@torch.inference_mode()
def fill_masks(
    model: Model,
    canvas: Canvas,
    strategy: Strategy,
    streams: RowStreams,
    constraints: Constraints | None = None,
    keep_states: bool = True,
    watch: StateCallback | None = None,
) -> Trajectory:
    """The canvas with every mask filled, and how that went.

    Rows are filled together as far as they have as many blocks, since those share the steps.
    """
    constraints = constraints or Constraints()
    forbidden, planted = constraints.find_forbidden(model), 0

    # 1. Required phrases are written first, where the network finds them likeliest. They then count
    #    as given: everything else grows around them.
    if constraints.require:
        planter = Denoiser(model, canvas, forbidden)
        canvas = plant_phrases(planter, canvas, constraints)
        planted = planter.calls
    if bool(canvas.fixed.all()):
        return _start_record(model, canvas, keep_states).finish(planted)

    # 2. Rows with as many blocks make a part: blocks share the steps evenly, so that rows with
    #    another number of them would be at another step of another block at the same time.
    first_alone = model.blueprint.shift and strategy.plan.paces_itself
    seen = model.net.config.block
    block_of = _number_blocks(canvas, strategy.block, seen, first_alone)  # [B, L]
    num_blocks = block_of.masked_fill(canvas.fixed, 0).amax(-1) + 1  # [B]
    counts = num_blocks.unique().tolist()
    rows_of = [(num_blocks == count).nonzero()[:, 0] for count in counts]
    # As long as a part has not begun, whoever watches sees its canvas.
    parts: list[Part] = []
    if len(rows_of) > 1:
        parts = [
            (rows, _start_record(model, canvas.pick(rows), keep_states).finish(calls=0))
            for rows in rows_of
        ]

    # 3. Each part is sampled by itself. Streams belong to rows: a row draws the same numbers in any
    #    part, whatever came before it.
    for i, (count, rows) in enumerate(zip(counts, rows_of, strict=True)):
        part = canvas.pick(rows)
        blocks = [block_of[rows] == j for j in range(count)]
        # An exact cache keeps predictions without their rates.
        is_kept = strategy.cache != "exact" or not strategy.rates
        denoiser = make_denoiser(model, part, strategy.cache if is_kept else "none", forbidden)
        record = _start_record(model, part, keep_states, _show_all(watch, parts, i))
        record.num_guesses = strategy.guesses
        own = replace(strategy, planting=strategy.planting.pick(rows))
        trajectory = _fill_blocks(denoiser, record, blocks, own, streams.pick(rows))
        if parts:
            parts[i] = rows, trajectory

    # 4. Rows are put back into the order in which they were given.
    trajectory = join_rows(parts) if parts else trajectory
    return replace(trajectory, calls=trajectory.calls + planted)


def _start_record(
    model: Model, canvas: Canvas, keep_states: bool, watch: StateCallback | None = None
) -> TrajectoryRecord:
    return TrajectoryRecord(model, canvas.tokens, canvas.real, canvas.in_front, keep_states, watch)


def _show_all(watch: StateCallback | None, parts: list[Part], number: int) -> StateCallback | None:
    """A watcher of one part that shows all rows, those of the other parts as they are by then."""
    if watch is None or not parts:
        return watch
    rows, before, after = parts[number][0], parts[:number], parts[number + 1 :]
    return lambda state: watch(join_rows([*before, (rows, state), *after]))


def _fill_blocks(
    denoiser: Denoiser,
    record: TrajectoryRecord,
    blocks: list[Bool[Tensor, "B L"]],
    strategy: Strategy,
    streams: RowStreams,
) -> Trajectory:
    """The blocks filled from left to right, each in its share of the steps.

    `blocks` are masks of the canvas, which part it. All tensors below keep the shape [B, L] of the
    canvas (or [B]): what a step works on is said by masks, and only `Predictions` packs rows.
    """
    canvas, plan, remasking = denoiser.canvas, strategy.plan, strategy.remasking
    # The masks that are left [B, L]; those after the end of a shorter row are fixed and stay.
    hidden = ~canvas.fixed & (record.tokens == denoiser.mask_id)
    steps = _share_steps(strategy.steps, len(blocks), plan)
    denoiser.rates = strategy.rates
    strengths = list(
        zip(
            guidance_schedule(strategy.guidance, strategy.steps),
            guidance_schedule(strategy.attribute_strength, strategy.steps),
            strict=True,
        )
    )
    for number, inside in enumerate(blocks):
        denoiser.enter_block(inside & ~canvas.fixed)
        start = (hidden & inside).sum(-1)  # [B]
        # A row's last step commits what is left, whatever the plan says. It is the row's own: how
        # long its neighbours take must not matter. A plan that paces itself has a step per mask.
        last = start if plan.paces_itself else torch.full_like(start, steps)
        earlier: Predictions | None = None
        # Positions to fill, and rows that have some and are the same as in the step before.
        num_open, num_same = int(start.sum()), 0
        for step in range(1, int(last.max()) + 1):
            open_ = hidden & inside
            if plan.paces_itself and not num_open:
                break
            # Every purpose has numbers of its own, named by block and step.
            streams_now = streams.at(number, step)

            # 1. What the network says at the open positions, and a token proposed at each. A
            #    schedule of guidance runs on from block to block, and stays where it ended.
            strength = strengths[min(number * steps + step, len(strengths)) - 1]
            predict = partial(_predict, denoiser, strategy.attribute, strength, record.step + 1)
            predictions = predict(record.tokens, open_, num_open, num_same)
            record.keep_guesses(predictions)
            sampler = strategy.sampler.at(step, steps)
            times = set_clock(remasking, step, steps)
            proposed = _propose(record.tokens, predictions, sampler, streams_now.at("values"))
            planted = strategy.planting.by_step.get(record.step + 1)
            if planted is not None:
                proposed = torch.where(planted >= 0, planted, proposed)
            state = StepState(
                tokens=record.tokens,
                proposed=proposed,
                written=~canvas.fixed & ~hidden & inside,
                written_confidence=record.confidence,
                step=step,
                steps=steps,
                num_start=start,
                times=times,
                remask_rate=remasking.rate(times) if remasking is not None else 0.0,
                predictions=predictions,
                last=earlier,
            )

            # 2. How many of them are committed in each row [B].
            left = state.num_open
            count = _check_tensor("plan", plan.count(state, streams_now.at("count")), left)
            count = torch.where(step >= last, left, count)

            # 3. Which written tokens become masks again [B, L]; none at the last step.
            back = torch.zeros_like(open_)
            if remasking is not None and step < steps:
                back = remasking.choose(state, streams_now.at("remasking"))
                back = _check_tensor("remasking", back, open_) & state.written
                if plan.keeps_schedule:
                    # As many more are committed, which takes open positions that the plan leaves:
                    # no more go back than there are, the least confident first.
                    back = choose_first(-record.confidence, back, left - count)
                    count = count + back.sum(-1)

            # 4. Which of the proposed tokens are committed [B, L]: the first by the order's scores.
            #    Rates give each position a chance of its own instead.
            if predictions.log_z is not None and step < steps:
                chosen = reveal_by_rates(state, streams_now.at("rates"))
            else:
                scores = strategy.order(state, streams_now.at("order"))
                chosen = choose_first(_check_tensor("order", scores, open_).double(), open_, count)

            #    What is planted is written now, on top of what the plan says, and even where the
            #    model has written before.
            if planted is not None:
                chosen, back = chosen | (planted >= 0), back & (planted < 0)

            # 5. The host asks the device once in a step, for all that it has to know.
            hidden = hidden & ~chosen | back
            written = ~canvas.fixed & ~hidden & inside
            num_chosen, num_open, num_same, *num_written = _ask(
                state, chosen & open_, back, hidden & inside, written, record.step + 1
            )

            # 6. Both are written at once: `back` was written before this step, so that the two
            #    never meet in a position.
            entropy = predictions.entropy_at(chosen & open_, num_chosen)
            confidence = state.confidence
            if planted is not None:
                # Nothing was predicted where a token stood: the new one counts as given.
                confidence = torch.where(open_, confidence, 1.0)
                entropy = torch.where(open_, entropy, 0.0)
            record.write(chosen, state.proposed, confidence, entropy)
            if remasking is not None:
                record.take_back(back, denoiser.mask_id)
            earlier = predictions
            del state  # it holds the predictions before these: [N, V] in float64

            # 7. Time stands still while a corrector rewrites what is written.
            if strategy.corrector is not None:
                text = WrittenText(
                    record.tokens,
                    written,
                    num_written,
                    record.confidence,
                    record.entropy,
                    denoiser.mask_id,
                    predict,
                    sampler,
                )
                strategy.corrector.correct(text, streams_now.at("corrector"))
                _keep_corrections(record, text, written)
            record.end_step(denoiser.calls)
    strategy.planting.check_steps(record.step)
    return record.finish(denoiser.calls)


def _check_tensor(what: str, given: object, like: Tensor) -> Tensor:
    """What a strategy returned, if it has the shape of `like`; a strategy may be the caller's."""
    if isinstance(given, Tensor) and given.shape == like.shape:
        return given
    shown = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
    raise UserError(
        f"the {what} returned {shown}: expected a tensor of shape {tuple(like.shape)}, which is "
        f"{'a number for each row' if like.ndim == 1 else 'one for each position of each row'}."
    )


def _propose(
    tokens: Int[Tensor, "B L"],
    predictions: Predictions,
    sampler: TokenSampler,
    streams: RowStreams,
) -> Int[Tensor, "B L"]:
    """A token for each open position; the others keep theirs."""
    draws = None
    if sampler.temperature:
        # Drawn for whole rows, so that a position's number does not depend on what is open.
        draws = predictions.pack(streams.uniform(tokens.shape[1]))
    proposed = predictions.spread(sampler.draw(predictions.rows, draws), 0)
    return torch.where(predictions.open, proposed, tokens)


def set_clock(remasking: Remasking | None, step: int, steps: int) -> StepTimes:
    """The times of a step; plans that pace themselves may go on after the last one."""
    times = StepTimes.at(min(step, steps), steps)
    return times if remasking is None else remasking.set_clock(times)


def _ask(
    state: StepState,
    chosen: Bool[Tensor, "B L"],
    back: Bool[Tensor, "B L"],
    open_: Bool[Tensor, "B L"],
    written: Bool[Tensor, "B L"],
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


def _predict(
    denoiser: Denoiser,
    attribute: AttributeGuidance | None,
    strengths: tuple[float, float],
    step: int,
    tokens: Int[Tensor, "B L"],
    open_: Bool[Tensor, "B L"],
    number: int,
    same: int = 0,
) -> Predictions:
    """What the network says at the open positions, guided by the prompt and by a classifier."""
    with denoiser.model.net.taps.in_step(step):
        predictions = denoiser.predict(tokens, open_, strengths[0], number, same)
    if attribute is None:
        return predictions
    predictions, calls = attribute.guide(predictions, tokens, strengths[1], denoiser.mask_id)
    denoiser.calls += calls
    return predictions


def _keep_corrections(
    record: TrajectoryRecord, text: WrittenText, written: Bool[Tensor, "B L"]
) -> None:
    """What a corrector made of the written tokens; whatever else it touched stays as it was."""
    tokens = _check_tensor("corrector", text.tokens, record.tokens)
    kept = written & (tokens != record.mask_id)
    record.rewrite(
        torch.where(kept, tokens, record.tokens),
        torch.where(kept, text.confidence, record.confidence),
        torch.where(kept, text.entropy, record.entropy),
    )


def _number_blocks(
    canvas: Canvas, block: int | None, seen: int | None, first_alone: bool = False
) -> Tensor:
    """The block that each position belongs to, counted from where a row's writing starts.

    Where the network itself sees in blocks of `seen`, they are these, or `block` counted likewise:
    from a row's first position, the one that the prompt ends in being the first to be filled. With
    `first_alone` the first position of each of these is a block of its own: in a network whose row
    i predicts i + 1 it is read from the finished block before (Fast-dLLM v2's sampler).
    """
    size = seen if block is None else block
    if size is None:
        return torch.zeros_like(canvas.tokens)
    positions = torch.arange(canvas.tokens.shape[1], device=canvas.tokens.device)
    if seen is not None:
        begins = positions % size == 0
        if first_alone:
            begins = begins | (positions % seen <= 1)
        number = begins.cumsum(0) - 1
        return (number - number[canvas.start.clamp(max=len(number) - 1)][:, None]).clamp(min=0)
    return (positions - canvas.start[:, None]).clamp(min=0) // size


def _share_steps(steps: int, num_blocks: int, plan: Plan) -> int:
    if plan.paces_itself:
        return max(1, steps // num_blocks)
    if steps % num_blocks:
        raise UserError(
            f"{steps} steps cannot be shared by {num_blocks} blocks: use a multiple of that."
        )
    return steps // num_blocks
