"""The denoising loop of masked models: guess, order, commit, until no mask is left."""

from dataclasses import replace

import torch
from jaxtyping import Bool
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.progress import track_inside
from unmask.base.streams import RowStreams
from unmask.net.model import Model
from unmask.sampling.canvas import Canvas
from unmask.sampling.constraints import Constraints, plant_phrases
from unmask.sampling.denoiser import Denoiser, make_denoiser
from unmask.sampling.guidance import guidance_schedule
from unmask.sampling.plans import Plan
from unmask.sampling.remasking import Remasking
from unmask.sampling.state import StepTimes
from unmask.sampling.steps import Strategy, Unmasker
from unmask.sampling.trajectory import Part, StateCallback, Trajectory, TrajectoryRecord, join_rows


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
    config = model.net.config
    block = config.block if strategy.block is None else strategy.block
    seen = None if config.open_block else config.block
    block_of = _number_blocks(canvas, block, seen, first_alone)  # [B, L]
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
        with model.net.taps.in_rows(rows.tolist()):
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
    """The blocks, masks that part the canvas, filled from left to right, each in its share of the
    steps."""
    plan, steps = strategy.plan, _share_steps(strategy.steps, len(blocks), strategy.plan)
    denoiser.rates = strategy.rates
    by_prompt = guidance_schedule(strategy.guidance, strategy.steps)
    by_attribute = guidance_schedule(strategy.attribute_strength, strategy.steps)
    strengths = list(zip(by_prompt, by_attribute, strict=True))
    unmasker = Unmasker(denoiser, record, strategy)
    for number, inside in enumerate(track_inside(blocks)):
        block = unmasker.enter_block(inside, steps)
        for step in track_inside(range(1, int(block.last.max()) + 1)):
            if plan.paces_itself and not block.num_open:
                break
            # A schedule of guidance runs on from block to block, and stays where it ended.
            strength = strengths[min(number * steps + step, len(strengths)) - 1]
            times = set_clock(strategy.remasking, step, steps)
            # Every purpose has numbers of its own, named by block and step.
            unmasker.take_step(block, step, times, strength, streams.at(number, step))
    strategy.planting.check_steps(record.step)
    return record.finish(denoiser.calls)


def set_clock(remasking: Remasking | None, step: int, steps: int) -> StepTimes:
    """The times of a step; plans that pace themselves may go on after the last one."""
    times = StepTimes.at(min(step, steps), steps)
    return times if remasking is None else remasking.set_clock(times)


def _number_blocks(
    canvas: Canvas, size: int | None, seen: int | None, first_alone: bool = False
) -> Tensor:
    """The block that each position belongs to, counted from where a row's writing starts.

    Where the network itself sees in blocks of `seen`, they are counted from a row's first position,
    the one that the prompt ends in being the first to be filled. With `first_alone` the first
    position of each of these is a block of its own: in a network whose row i predicts i + 1 it is
    read from the finished block before (Fast-dLLM v2's sampler).
    """
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
