"""The denoising loop of masked models: guess, order, commit, until no mask is left."""

from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.streams import RowStreams
from unmask.net.model import Model
from unmask.sampling.canvas import Canvas
from unmask.sampling.constraints import Constraints, plant_phrases
from unmask.sampling.guess import Guess
from unmask.sampling.oracle import CacheMode, Oracle, make_oracle
from unmask.sampling.orders import Order, choose_first
from unmask.sampling.plans import Plan, Stage
from unmask.sampling.remasking import Remasking
from unmask.sampling.strength import Guidance, set_course
from unmask.sampling.times import Times
from unmask.sampling.trajectory import Part, Record, Trajectory, Watch, join_rows
from unmask.sampling.values import Values

DRAWS = 4
"""Numbers that a step may draw for each position: a value, an order, a count, a remasking."""
MOST_STEPS = 2**20
"""Of one block: each block has its own stretch of the random streams."""


@dataclass(frozen=True)
class Strategy:
    """How masks are filled: each part is a small function, and they combine freely."""

    steps: int
    plan: Plan
    order: Order
    values: Values = field(default_factory=Values)
    remasking: Remasking | None = None
    guidance: Guidance = 0.0
    block: int | None = None
    """Tokens of a block; blocks are filled from left to right. None: one block."""
    cache: CacheMode = "none"


@torch.inference_mode()
def fill_masks(
    model: Model,
    canvas: Canvas,
    strategy: Strategy,
    streams: RowStreams,
    constraints: Constraints | None = None,
    keep_states: bool = True,
    watch: Watch | None = None,
) -> Trajectory:
    """The canvas with every mask filled, and how that went.

    Rows are filled together as far as they have as many blocks, since those share the steps.
    """
    constraints = constraints or Constraints()
    forbidden, planted = constraints.find_forbidden(model), 0
    if constraints.require:
        planter = Oracle(model, canvas, forbidden)
        canvas = plant_phrases(planter, canvas, constraints)
        planted = planter.calls
    number = _number_blocks(canvas, strategy.block)
    num_blocks = number.masked_fill(canvas.fixed, 0).amax(-1) + 1
    if bool(canvas.fixed.all()):
        return Record(model, canvas.tokens, canvas.real, canvas.in_front, keep_states).finish(
            planted
        )
    counts = num_blocks.unique().tolist()
    parts: list[Part] = []
    for count in counts:
        rows = (num_blocks == count).nonzero()[:, 0]
        part = canvas.pick(rows)
        parts.append(
            (
                rows,
                Record(model, part.tokens, part.real, part.in_front, keep_states).finish(calls=0),
            )
        )
    for i, (count, (rows, _)) in enumerate(zip(counts, parts, strict=True)):
        part, drawn = canvas.pick(rows), RowStreams(streams.keys[rows], streams.pace)
        blocks = [number[rows] == j for j in range(count)]
        oracle = make_oracle(model, part, strategy.cache, forbidden)
        record = Record(
            model, part.tokens, part.real, part.in_front, keep_states, _show_all(watch, parts, i)
        )
        parts[i] = rows, _fill_blocks(oracle, record, blocks, strategy, drawn)
    found = parts[0][1] if len(parts) == 1 else join_rows(parts)
    return replace(found, calls=found.calls + planted)


def _show_all(watch: Watch | None, parts: list[Part], number: int) -> Watch | None:
    """A watcher of one part that shows all rows, those of the other parts as they are by then."""
    if watch is None or len(parts) == 1:
        return watch
    rows, before, after = parts[number][0], parts[:number], parts[number + 1 :]
    return lambda state: watch(join_rows([*before, (rows, state), *after]))


def _fill_blocks(
    oracle: Oracle,
    record: Record,
    blocks: list[Bool[Tensor, "B L"]],
    strategy: Strategy,
    streams: RowStreams,
) -> Trajectory:
    canvas, plan = oracle.canvas, strategy.plan
    hidden = ~canvas.fixed & (record.tokens == oracle.mask_id)
    shared = _share_steps(strategy.steps, len(blocks), plan)
    course = set_course(strategy.guidance, strategy.steps)
    for number, inside in enumerate(blocks):
        oracle.enter_block(inside & ~canvas.fixed)
        start = (hidden & inside).sum(-1)
        most = int(start.max()) if plan.paces_itself else shared
        for step in range(1, most + 1):
            open_ = hidden & inside
            if plan.paces_itself and not open_.any():
                break
            # Counted by block and step, not by what was drawn: neighbours may take more steps.
            streams.seek((number * MOST_STEPS + step - 1) * DRAWS * streams.pace)
            strength = course[min(number * shared + step, len(course)) - 1]
            logp = oracle.ask(record.tokens, open_, strength)
            guess = Guess(
                open_, logp, _propose(logp, open_, strategy.values.at(step, shared), streams)
            )
            _check_numbers(guess, record.step + 1)
            times = set_clock(strategy.remasking, step, shared)
            rate = strategy.remasking.rate(times) if strategy.remasking is not None else 0.0
            left = open_.sum(-1)
            count = plan.count(Stage(left, start, step, shared, guess, times, rate, streams))
            back = torch.zeros_like(open_)
            # Not at the last step, which leaves no mask behind.
            if strategy.remasking is not None and step < shared:
                written = ~canvas.fixed & ~hidden & inside
                back = strategy.remasking.choose(times, written, record.confidence, streams)
                if plan.holds_course:
                    # No more than there is room to make up for, the least confident first.
                    back = choose_first(-record.confidence, back, left - count)
                    count = count + back.sum(-1)
            chosen = choose_first(strategy.order(guess, streams), open_, count)
            record.write(
                chosen,
                guess.spread(guess.proposed, 0),
                guess.spread(guess.confidence, 0.0),
                guess.find_entropy_at(chosen),
            )
            if strategy.remasking is not None:
                record.take_back(back, oracle.mask_id)
            hidden = hidden & ~chosen | back
            record.end_step(oracle.calls)
    return record.finish(oracle.calls)


def _propose(
    logp: Tensor, open_: Bool[Tensor, "B L"], values: Values, streams: RowStreams
) -> Tensor:
    """A token for each open position."""
    draws = streams.uniform(open_.shape[1])[open_] if values.temperature else None
    return values.draw(logp, draws)


def set_clock(remasking: Remasking | None, step: int, steps: int) -> Times:
    """The times of a step; plans that pace themselves may go on after the last one."""
    times = Times.at(min(step, steps), steps)
    return times if remasking is None else remasking.set_clock(times)


def _check_numbers(guess: Guess, step: int) -> None:
    if guess.confidence.isnan().any():
        raise UserError(
            f"the network's logits are not numbers at step {step}: its weights, the guidance or "
            "the forbidden tokens are off."
        )


def _number_blocks(canvas: Canvas, block: int | None) -> Tensor:
    """The block that each position belongs to, counted from where a row's writing starts."""
    if block is None:
        return torch.zeros_like(canvas.tokens)
    if block < 1:
        raise UserError(f"a block of {block} tokens was asked for: expected at least 1.")
    places = torch.arange(canvas.tokens.shape[1], device=canvas.tokens.device)
    return (places - canvas.start[:, None]).clamp(min=0) // block


def _share_steps(steps: int, num_blocks: int, plan: Plan) -> int:
    if plan.paces_itself:
        return max(1, steps // num_blocks)
    if steps % num_blocks:
        raise UserError(
            f"{steps} steps cannot be shared by {num_blocks} blocks: use a multiple of that."
        )
    return steps // num_blocks
