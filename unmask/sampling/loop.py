"""The denoising loop of masked models: guess, order, commit, until no mask is left."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.streams import RowStreams
from unmask.net.model import Model
from unmask.sampling.autoregressive import decode_causal
from unmask.sampling.canvas import Canvas, Prompt, encode_prompt, lay_out_prompts
from unmask.sampling.guess import Guess, predict, propose
from unmask.sampling.orders import Order, choose_first, get_order
from unmask.sampling.plans import Plan, get_plan
from unmask.sampling.trajectory import Trajectory, decode_rows


@dataclass(frozen=True)
class Strategy:
    """How masks are filled: each part is a small function, and they combine freely."""

    steps: int
    plan: Plan
    order: Order
    block: int | None = None
    """Tokens of a block; blocks are filled from left to right. None: one block."""
    guidance: float = 0.0
    temperature: float = 0.0


def sample(
    model: Model,
    prompts: Sequence[Prompt],
    steps: int = 16,
    guidance: float = 0.0,
    length: int | Sequence[int] | None = None,
    plan: str = "smdm",
    block: int | None = None,
    order: str | Sequence[int] = "confidence",
    temperature: float = 0.0,
    seed: int = 0,
    keep_states: bool = True,
) -> Trajectory:
    """Texts that continue the prompts, un-masked in `steps` steps.

    A causal model writes its texts from left to right instead, one token a step; `steps`, `plan`,
    `block` and `order` are not for it.

    `length` is that of the whole row, prompt included. A row's text is the same alone and in any
    batch: it depends on the seed and its prompt alone.
    """
    if steps < 1:
        raise UserError(f"{steps} sampling steps were asked for: expected at least 1.")
    if temperature < 0:
        raise UserError(f"a temperature of {temperature} was asked for: expected 0 or more.")
    streams = name_streams(model, prompts, seed)
    if model.kind == "causal":
        if guidance:
            raise UserError("an autoregressive model has no unconditional pass: use guidance 0.")
        return decode_causal(model, prompts, length, temperature, streams, keep_states)
    canvas = lay_out_prompts(model, prompts, length)
    if guidance and not bool((canvas.prompt_length > 0).all()):
        raise UserError("guidance needs a prompt in every row: give one, or use guidance 0.")
    strategy = Strategy(steps, get_plan(plan), get_order(order), block, guidance, temperature)
    return fill_masks(model, canvas, strategy, streams, keep_states)


def name_streams(model: Model, prompts: Sequence[Prompt], seed: int) -> RowStreams:
    """A stream for each row, named by its prompt; the same prompt again gets one of its own."""
    met: Counter[tuple[int, ...]] = Counter()
    names = []
    for prompt in prompts:
        ids = tuple(encode_prompt(model, prompt))
        names.append((ids, met[ids]))
        met[ids] += 1
    return RowStreams.make(seed, names, model.device, pace=model.net.config.context)


@torch.inference_mode()
def fill_masks(
    model: Model, canvas: Canvas, strategy: Strategy, streams: RowStreams, keep_states: bool = True
) -> Trajectory:
    """The canvas with every mask filled, and how that went."""
    xt = canvas.tokens.clone()
    hidden = ~canvas.fixed & (xt == model.mask_id)
    if not hidden.any():
        raise UserError("no mask is left to fill: leave some positions masked.")
    committed_at = torch.zeros_like(xt)
    confidence = torch.ones(xt.shape, dtype=torch.float64, device=xt.device)
    entropy = torch.zeros_like(confidence)
    states, calls, step = [xt.clone()] if keep_states else [], 0, 0
    blocks = _split_blocks(canvas, strategy)
    each = _share_steps(strategy.steps, len(blocks))
    for inside in blocks:
        start = (hidden & inside).sum(-1)
        for local in range(1, each + 1):
            step += 1
            open_ = hidden & inside
            counts = strategy.plan(open_.sum(-1), start, local, each)
            logp = predict(model, canvas, xt, open_, strategy.guidance)
            calls += 1
            guess = Guess(open_, logp, propose(logp, open_, strategy.temperature, streams))
            chosen = choose_first(strategy.order(guess, streams), open_, counts)
            xt = torch.where(chosen, guess.spread(guess.proposed, 0), xt)
            confidence = torch.where(chosen, guess.spread(guess.confidence(), 0.0), confidence)
            entropy = torch.where(chosen, guess.spread(guess.entropy(), 0.0), entropy)
            committed_at = torch.where(chosen, step, committed_at)
            hidden = hidden & ~chosen
            if keep_states:
                states.append(xt.clone())
    return Trajectory(
        tokens=xt,
        committed_at=committed_at,
        confidence=confidence,
        entropy=entropy,
        calls=calls,
        texts=decode_rows(xt, canvas.real, model.tokenizer),
        states=torch.stack(states) if keep_states else None,
    )


def _split_blocks(canvas: Canvas, strategy: Strategy) -> list[Bool[Tensor, "B L"]]:
    """Which positions belong to each block, counted from every row's own prompt."""
    places = torch.arange(canvas.tokens.shape[1], device=canvas.tokens.device)
    if strategy.block is None:
        return [torch.ones_like(canvas.fixed)]
    if strategy.block < 1:
        raise UserError(f"a block of {strategy.block} tokens was asked for: expected at least 1.")
    number = (places - canvas.prompt_length[:, None]).clamp(min=0) // strategy.block
    last = int(number[~canvas.fixed].max())
    return [number == i for i in range(last + 1)]


def _share_steps(steps: int, num_blocks: int) -> int:
    if steps % num_blocks:
        raise UserError(
            f"{steps} steps cannot be shared by {num_blocks} blocks: use a multiple of that."
        )
    return steps // num_blocks
