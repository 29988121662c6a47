"""Ancestral sampling: step back through the posteriors of a process, from the prior to a text."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.streams import RowStreams
from unmask.net.model import Model
from unmask.net.transformer import select_rows
from unmask.noise.gaussian import Gaussian
from unmask.noise.process import Process
from unmask.noise.schedules import check_closed
from unmask.sampling.canvas import Canvas
from unmask.sampling.constraints import Constraints
from unmask.sampling.guidance import guidance_schedule
from unmask.sampling.state import Predictions, entropy_at
from unmask.sampling.steps import Strategy
from unmask.sampling.token_sampler import invert
from unmask.sampling.trajectory import StateCallback, Trajectory, TrajectoryRecord

TimedLogits = Callable[[Tensor, Tensor], Tensor]
"""(x_t [B, L], t [B]) to logits [B, L, V]."""
VectorLogits = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""(z_t [B, L, d], t [B], the last guess at the clean vectors) to logits [B, L, V]."""


@torch.no_grad()
def sample_ancestral(
    denoise: TimedLogits, process: Process, length: int, steps: int, streams: RowStreams
) -> Int[Tensor, "B L"]:
    """Texts drawn in `steps` equal steps of time from a discrete process with closed ends."""
    check_closed(process.schedule)
    xt = process.prior(length, streams)
    for t, s in _times(steps, streams):
        logp = process.posterior(denoise(xt, t[:, 0]).double(), xt, t, s)
        xt = draw(logp, streams)
    return xt


@torch.no_grad()
def sample_gaussian(
    denoise: VectorLogits,
    process: Gaussian,
    length: int,
    steps: int,
    streams: RowStreams,
    clamp: bool = False,
) -> Int[Tensor, "B L"]:
    """Texts drawn from a Gaussian process; each step is given the last one's guess.

    At t = 0 every position takes the token whose vector is nearest to what was reached.
    """
    zt, hint = process.prior(length, streams), None
    for t, s in _times(steps, streams):
        logits = denoise(zt, t[:, 0], hint)
        hint = process.denoise(logits)
        mean, deviation = process.posterior(logits, zt, t, s, clamp)
        zt = mean + deviation * streams.normal(*mean.shape[1:]).to(mean.dtype)
    return process.nearest(zt)


@torch.inference_mode()
def walk_back(
    model: Model,
    canvas: Canvas,
    strategy: Strategy,
    streams: RowStreams,
    constraints: Constraints,
    keep_states: bool = True,
    watch: StateCallback | None = None,
) -> Trajectory:
    """Canvases whose open positions a uniform, hybrid or gaussian model un-noises.

    Given tokens stay clean at all times. A token counts as committed at the step that changed it
    last, the first one if none did, with the probability that this step gave it.
    """

    def begin(tokens: Tensor) -> TrajectoryRecord:
        in_front, guesses = canvas.in_front, strategy.guesses
        return TrajectoryRecord(model, tokens, canvas.real, in_front, keep_states, watch, guesses)

    walk = _walk_vectors if model.paradigm.noises_vectors else _walk_tokens
    return walk(model, canvas, strategy, streams, constraints, begin)


def _walk_tokens(
    model: Model,
    canvas: Canvas,
    strategy: Strategy,
    streams: RowStreams,
    constraints: Constraints,
    begin: Callable[[Tensor], TrajectoryRecord],
) -> Trajectory:
    process, forbidden = model.make_process(), constraints.find_forbidden(model)
    length, times = canvas.tokens.shape[1], _times(strategy.steps, streams)
    strengths = guidance_schedule(strategy.guidance, strategy.steps)
    # 1. The state at t = 1 [B, L]: noise wherever no token is given.
    noise = process.prior(length, streams.at("prior"))
    xt = torch.where(canvas.fixed, canvas.tokens, noise)
    record, calls = begin(xt), 0

    def predict(tokens: Tensor, step: int) -> Tensor:
        t = times[step - 1][0][:, 0] if model.net.config.time else None
        logits = model.logits(tokens, canvas.real, t=t).double()
        if forbidden is not None:
            logits = logits.index_fill(-1, forbidden, -torch.inf)
        return strategy.sampler.at(step, strategy.steps).sharpen(process.predict(logits))

    for step, (t, s) in enumerate(times, 1):
        # 2. log p(clean token | x_t) [B, L, V], and what it would be without the prompt.
        strength = strengths[step - 1]
        without = None
        with model.net.taps.in_step(step):
            if strength:
                # What the process itself knows of a prompt that is not there: noise.
                without = predict(torch.where(canvas.prompt, noise, xt), step)
            logp = predict(xt, step)  # the last pass, which a capture keeps
        without = logp if without is None else without
        record.keep_guesses(_pack(canvas, logp))
        calls += 1 + bool(strength)
        # 3. The state at s is drawn from log p(x_s | x_t) [B, L, V]; given tokens stay.
        back = process.guided_posterior(logp, without, strength, xt, t, s)
        xs = torch.where(canvas.fixed, xt, invert(back, streams.at(step, "values").uniform(length)))
        # 4. Written is what changed, with the chance that the step gave it [B, L].
        moved = _find_moved(canvas, xs, xt, step)
        chance = back.gather(-1, xs[..., None])[..., 0].exp()
        _check_numbers(chance, step)
        record.write(moved, xs, chance, entropy_at(logp, moved))
        record.end_step(calls)
        xt = xs
    return record.finish(calls)


def _walk_vectors(
    model: Model,
    canvas: Canvas,
    strategy: Strategy,
    streams: RowStreams,
    constraints: Constraints,
    begin: Callable[[Tensor], TrajectoryRecord],
) -> Trajectory:
    if any(guidance_schedule(strategy.guidance, strategy.steps)):
        raise UserError("guidance of gaussian models is not known here: use guidance 0.")
    process, forbidden = model.make_gaussian(), constraints.find_forbidden(model)
    length, width = canvas.tokens.shape[1], process.table.shape[1]
    # 1. The state at t = 1 [B, L, d]: noise, and the tokens' own vectors where they are given.
    fixed = canvas.fixed[..., None]
    given = process.table[canvas.tokens.clamp(max=len(process.table) - 1)]
    zt, hint = torch.where(fixed, given, process.prior(length, streams.at("prior"))), None
    record = begin(torch.where(canvas.fixed, canvas.tokens, process.nearest(zt)))
    for step, (t, s) in enumerate(_times(strategy.steps, streams), 1):
        # 2. Logits of the clean tokens [B, L, V], from the vectors and the last step's hint.
        with model.net.taps.in_step(step):
            x = model.net.embed_latents(zt, hint, canvas.real, t[:, 0])
            logits = model.net.unembed(model.net.run_layers(x, real=canvas.real)).float()
        logits = process.add_evidence(logits, zt, t)
        if forbidden is not None:
            logits = logits.index_fill(-1, forbidden, -torch.inf)
        # 3. log p(clean token) [B, L, V]; its mean vector is the next step's hint [B, L, d].
        logp = strategy.sampler.at(step, strategy.steps).sharpen(logits.double().log_softmax(-1))
        record.keep_guesses(_pack(canvas, logp))
        hint = process.denoise(logp)
        # 4. Vectors at s, drawn given those at t [B, L, d].
        mean, deviation = process.posterior(logp.float(), zt, t, s, strategy.clamp)
        drawn = streams.at(step, "values").normal(length, width)
        reached = mean + deviation * drawn.to(mean.dtype)
        zt = torch.where(fixed, given, reached.to(given.dtype))
        # 5. Tokens are those nearest to the vectors [B, L]; written is what changed.
        xs = torch.where(canvas.fixed, record.tokens, _read(process, zt, forbidden))
        chance = logp.gather(-1, xs.clamp(max=logp.shape[-1] - 1)[..., None])[..., 0].exp()
        _check_numbers(chance, step)
        moved = _find_moved(canvas, xs, record.tokens, step)
        record.write(moved, xs, chance, entropy_at(logp, moved))
        record.end_step(step)
    return record.finish(strategy.steps)


def _pack(canvas: Canvas, logp: Float[Tensor, "B L V"]) -> Predictions:
    """What is predicted at the positions that are not given."""
    open_ = ~canvas.fixed
    return Predictions(open_, select_rows(logp, open_))


def _find_moved(canvas: Canvas, xs: Tensor, xt: Tensor, step: int) -> Bool[Tensor, "B L"]:
    """What a step wrote: all that changed, and at first all that was left to it."""
    return ~canvas.fixed if step == 1 else xs != xt


def _read(
    process: Gaussian, vectors: Float[Tensor, "B L d"], forbidden: Int[Tensor, "n"] | None
) -> Int[Tensor, "B L"]:
    """The nearest tokens that may be written: between two of them a forbidden one may lie."""
    if forbidden is None:
        return process.nearest(vectors)
    allowed = torch.ones(len(process.table), dtype=torch.bool, device=vectors.device)
    allowed[forbidden] = False
    ids = allowed.nonzero()[:, 0]
    return ids[replace(process, table=process.table[ids]).nearest(vectors)]


def draw(logp: Float[Tensor, "B L N"], streams: RowStreams) -> Int[Tensor, "B L"]:
    """One value per position."""
    return invert(logp, streams.uniform(logp.shape[1]))


def _check_numbers(chance: Tensor, step: int) -> None:
    if chance.isnan().any():
        raise UserError(
            f"the network's logits are not numbers at step {step}: its weights are off."
        )


def _times(steps: int, streams: RowStreams) -> list[tuple[Tensor, Tensor]]:
    """Pairs t > s of [B, 1], from 1 to 0."""
    if steps < 1:
        raise UserError(f"{steps} sampling steps were asked for: expected at least 1.")
    grid = torch.linspace(1, 0, steps + 1, dtype=torch.float64, device=streams.keys.device)
    rows = grid[:, None, None].expand(-1, streams.rows, 1)
    return list(pairwise(rows))
