"""The network as a sampler asks it: predictions at open positions, guided, cached if wanted."""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.net.cache import Snapshot
from unmask.net.fused import fuses
from unmask.net.model import Model
from unmask.net.transformer import Real, Tokens, locate
from unmask.net.view import place
from unmask.noise.guidance import find_log_rate, mix
from unmask.sampling.canvas import Canvas
from unmask.sampling.settings import CacheMode
from unmask.sampling.state import Predictions

Open = Bool[Tensor, "B L"]


class Denoiser:
    """log p over tokens at the open positions of a canvas.

    With guidance a second pass hides the prompt; what was generated stays in both. The two are one
    batch of twice the rows.
    """

    def __init__(self, model: Model, canvas: Canvas, forbidden: Int[Tensor, "n"] | None = None):
        self.model, self.canvas = model, canvas
        self.mask_id = model.require_mask()
        self.end_id = None if model.tokenizer is None else model.tokenizer.end_id
        inner = None if self.end_id is None else canvas.find_inner(self.end_id) & ~canvas.fixed
        self.inner = inner if inner is not None and bool(inner.any()) else None
        """Where a given token follows: no text may end there."""
        never = [self.mask_id] if self.mask_id < model.net.config.logit_rows else []
        never += [] if forbidden is None else forbidden.tolist()
        self.never = torch.tensor(never, dtype=torch.long, device=model.device)
        """Tokens that are never written."""
        banned = torch.zeros(model.net.config.logit_rows, dtype=torch.uint8, device=model.device)
        self.banned = banned.index_fill(0, self.never, 1)
        self.inside: Open | None = None
        """The block that is being written, in networks with an open block."""
        self.calls = 0
        self.rates = False
        """Whether predictions say by how much guidance speeds positions up."""

    def enter_block(self, inside: Open, free: Open) -> None:
        """Called where a block starts, and with what may be written at all: all before stands."""
        if self.model.net.config.open_block:
            columns = torch.arange(inside.shape[1], device=inside.device)
            self.inside = inside & (columns >= self.canvas.start[:, None])

    def predict(
        self, xt: Tokens, open_: Open, guidance: float, number: int | None = None, same: int = 0
    ) -> Predictions:
        """Predictions at the open positions of the canvas.

        A sampler says how many these are, if it knows the `number`, and how many rows with open
        positions are the `same` as in the last call, so that the device need not be asked.
        """
        number = int(open_.sum()) if number is None else number
        logits = self._run(xt, open_, number, guidance, self.canvas.real, self.canvas.prompt)
        inner = None if self.inner is None else self.inner.flatten()[locate(open_, number)]
        log_z = None
        if guidance and self.rates:
            halves = (self._finish(half, inner, 0.0) for half in logits.chunk(2))
            log_z = find_log_rate(*halves, guidance)
        return Predictions(open_, self._finish(logits, inner, guidance), log_z)

    def _run(
        self, xt: Tokens, open_: Open, number: int, guidance: float, real: Real | None, prompt: Open
    ) -> Float[Tensor, "N V"]:
        """Logits at the open positions; a guided step has those without the prompt behind them."""
        t = self.model.find_time(xt, real)
        xt, open_, real, t, inside = self._begin_pass(
            guidance, prompt, xt, open_, real, t, self.inside
        )
        number *= 2 if guidance else 1
        return self.model.logits(xt, real, open_, t, number=number, inside=inside)

    def _begin_pass(self, guidance: float, prompt: Open, xt: Tokens, *more: Tensor | None) -> Any:
        """Counts a pass. In a guided one every row comes twice, then without the prompt."""
        self.calls += 1
        if not guidance:
            return xt, *more
        both = torch.cat((xt, torch.where(prompt, self.mask_id, xt)))
        return both, *(None if x is None else x.repeat(2, *[1] * (x.ndim - 1)) for x in more)

    def _run_part(
        self,
        kept: Snapshot,
        xt: Tokens,
        open_: Open,
        real: Real | None,
        positions: Int[Tensor, "B A"],
        valid: Bool[Tensor, "B A"],
        inside: Open | None,
    ) -> Float[Tensor, "N V"]:
        """Logits at the open positions, some positions run and the others as they were kept."""
        at = open_.gather(1, positions) & valid
        kept = kept.move_to(positions)
        return self.model.logits(xt.gather(1, positions), real, at, snapshot=kept, inside=inside)

    def _finish(
        self, logits: Float[Tensor, "_ V"], inner: Bool[Tensor, "N"] | None, guidance: float
    ) -> Float[Tensor, "N V"]:
        """log p at the open positions, in float64."""
        if inner is None and fuses(logits) and logits.stride(-1) == 1:
            from unmask.net import kernels

            return kernels.fused_log_softmax(logits, self.banned, guidance)
        logits = mix_halves(logits, guidance) if guidance else logits
        # Not written into the network's own tensor, which a capture may hold.
        if len(self.never):
            logits = logits.index_fill(-1, self.never, -torch.inf)
        if inner is not None:
            ends = torch.arange(logits.shape[-1], device=logits.device) == self.end_id
            logits = logits.masked_fill(inner[:, None] & ends, -torch.inf)
        return logits.log_softmax(-1, dtype=torch.float64)


class ExactCacheDenoiser(Denoiser):
    """Runs only rows whose canvas changed: a prediction stays exact while nothing moves.

    Bidirectional attention lets every token reach every other, so this is all that can be kept
    exactly. With many small steps a row runs at most once per token (MDLM's cache).
    """

    _seen: tuple[Tokens, float, Predictions] | None = None

    def predict(
        self, xt: Tokens, open_: Open, guidance: float, number: int | None = None, same: int = 0
    ) -> Predictions:
        nothing_kept = self._seen is None or self._seen[1] != guidance
        if nothing_kept or not (same or number == 0):
            predictions = super().predict(xt, open_, guidance, number)
        else:
            # 1. Rows that changed; of these, the ones with something to predict are run.
            before, _, known = self._seen
            changed = ((xt != before) | (open_ != known.open)).any(-1)
            moved = changed & open_.any(-1)
            # 2. Packed rows [N, V] of the others are taken over: in an unchanged row the same
            #    positions are open, in the same order.
            logp = known.rows.new_empty(int(open_.sum()), known.rows.shape[1])
            of_moved = moved[:, None].expand_as(open_)
            of_same = ~changed[:, None].expand_as(open_)
            logp[of_same[open_]] = known.rows[of_same[known.open]]
            # 3. The network runs the changed rows alone, and fills theirs.
            if moved.any():
                real = None if self.canvas.real is None else self.canvas.real[moved]
                prompt = self.canvas.prompt[moved]
                count = int(open_[moved].sum())
                run = self._run(xt[moved], open_[moved], count, guidance, real, prompt)
                inner = None if self.inner is None else self.inner[moved][open_[moved]]
                logp[of_moved[open_]] = self._finish(run, inner, guidance)
            predictions = Predictions(open_, logp)
        self._seen = xt, guidance, predictions
        return predictions


class PrefixCacheDenoiser(Denoiser):
    """Keeps the keys and values of what stands before the block: faster, and an approximation.

    The first step of a block runs everything; the others run the block and what follows it, and see
    the prefix as it was then, as Wu et al. 2025 (Fast-dLLM, arXiv 2505.22618) do.
    """

    def __init__(self, model: Model, canvas: Canvas, forbidden: Int[Tensor, "n"] | None = None):
        super().__init__(model, canvas, forbidden)
        if model.net.config.time:
            raise UserError("a network that is told the time changes with it: use cache exact.")
        self._kept: Snapshot | None = None
        self._positions: Int[Tensor, "B A"] | None = None
        self._valid: Bool[Tensor, "B A"] | None = None

    def enter_block(self, inside: Open, free: Open) -> None:
        super().enter_block(inside, free)
        self._kept, inside = None, inside & free
        # Every row runs from where its block starts to its end. Rows start at different positions:
        # all run as many as the longest needs [B, A], and those past a row's end are not valid.
        length = inside.shape[1]
        # Rows whose block is empty run their last position alone.
        start = torch.where(inside.any(-1), inside.long().argmax(-1), length - 1)
        if self.model.blueprint.shift:
            start = (start - 1).clamp(min=0)  # where the first position of the block is read
        span = length - int(start.min())
        positions = start[:, None] + torch.arange(span, device=inside.device)
        self._valid, self._positions = positions < length, positions.clamp(max=length - 1)

    def _run(
        self, xt: Tokens, open_: Open, number: int, guidance: float, real: Real | None, prompt: Open
    ) -> Float[Tensor, "N V"]:
        assert self._positions is not None, "enter_block comes first"
        xt, open_, real, positions, valid, inside = self._begin_pass(
            guidance, prompt, xt, open_, real, self._positions, self._valid, self.inside
        )
        if self._kept is None or len(self._kept) != len(xt):
            self._kept = self.model.net.new_snapshot(*xt.shape)
            logits = self.model.logits(xt, real, open_, snapshot=self._kept, inside=inside)
        else:
            logits = self._run_part(self._kept, xt, open_, real, positions, valid, inside)
        return logits


class BlockCacheDenoiser(Denoiser):
    """Runs only the block that is being written, in networks with block-causal attention.

    Nothing in a block reaches an earlier one, so that keys and values of finished blocks stay
    exact. The first step of a block also runs the one before it, as it was left.
    """

    def __init__(self, model: Model, canvas: Canvas, forbidden: Int[Tensor, "n"] | None = None):
        super().__init__(model, canvas, forbidden)
        self._kept: Snapshot | None = None
        self._tokens: Tokens | None = None
        """The canvas as it was run last."""
        self._start: Tensor | None = None
        self._begin = self._end = torch.zeros(len(canvas.tokens), dtype=torch.long)
        """Where each row's run begins and ends."""

    def enter_block(self, inside: Open, free: Open) -> None:
        super().enter_block(inside, free)
        config, length = self.model.net.config, inside.shape[1]
        block = config.block
        assert block is not None
        columns = torch.arange(length, device=inside.device)
        number = place(self.canvas.real, length, 0, inside.device).expand_as(inside)
        # The network's blocks that hold something to write; a row without runs its last position.
        inside = inside & free if self.inside is None else self.inside
        first = torch.where(inside.any(-1), inside.long().argmax(-1), length - 1)
        last = torch.where(inside, columns, 0).amax(-1).maximum(first)
        at_first, at_last = (number.gather(1, at[:, None])[:, 0] for at in (first, last))
        # An open block begins where writing does, others at a multiple of their length.
        ahead, behind = (0, 1) if config.open_block else (at_first % block, block - at_last % block)
        start = (first - ahead).clamp(min=0)
        self._begin = start if self._start is None else torch.minimum(self._start, start)
        self._start, self._end = start, (last + behind).clamp(max=length)

    def _run(
        self, xt: Tokens, open_: Open, number: int, guidance: float, real: Real | None, prompt: Open
    ) -> Float[Tensor, "N V"]:
        assert self._start is not None, "enter_block comes first"
        xt, open_, real, begin, end, inside = self._begin_pass(
            guidance, prompt, xt, open_, real, self._begin, self._end, self.inside
        )
        columns = torch.arange(xt.shape[1], device=xt.device)
        is_known = self._tokens is not None and self._tokens.shape == xt.shape
        if is_known:  # what was planted may have changed finished blocks
            is_known = not ((xt != self._tokens) & (columns < begin[:, None])).any()
        self._tokens, self._begin = xt, self._start
        if self._kept is None or not is_known:
            self._kept = self.model.net.new_snapshot(*xt.shape)
            return self.model.logits(xt, real, open_, snapshot=self._kept, inside=inside)
        if self.model.blueprint.shift:
            begin = (begin - 1).clamp(min=0)  # where the first position is read
        span = int((end - begin).max())
        positions = begin[:, None] + torch.arange(span, device=xt.device)
        valid, positions = positions < end[:, None], positions.clamp(max=xt.shape[1] - 1)
        return self._run_part(self._kept, xt, open_, real, positions, valid, inside)


class WatchedDenoiser(Denoiser):
    """Runs whole canvases past what is attached; of rows that it has not changed, what is usual."""

    def __init__(self, usual: Denoiser, forbidden: Int[Tensor, "n"] | None = None):
        super().__init__(usual.model, usual.canvas, forbidden)
        self.usual = usual

    def enter_block(self, inside: Open, free: Open) -> None:
        super().enter_block(inside, free)
        self.usual.enter_block(inside, free)

    def predict(
        self, xt: Tokens, open_: Open, guidance: float, number: int | None = None, same: int = 0
    ) -> Predictions:
        taps, usual = self.model.net.taps, self.usual
        usual.calls, usual.rates = self.calls, self.rates
        whole = super().predict(xt, open_, guidance, number)
        changed = taps.find_changed(len(xt))
        if all(changed):
            return whole
        with taps.silenced():
            kept = usual.predict(xt, open_, guidance, number, same)
        if not any(changed):
            self.calls = usual.calls
            return kept
        owner = locate(open_) // open_.shape[1]
        of_row = torch.tensor(changed, device=owner.device)[owner]
        return replace(kept, rows=torch.where(of_row[:, None], whole.rows, kept.rows))


def mix_halves(both: Float[Tensor, "_ V"], guidance: float) -> Float[Tensor, "N V"]:
    """Guided logits from those with and without the prompt; at least in float32."""
    wide = torch.promote_types(both.dtype, torch.float32)
    return mix(*both.to(wide).chunk(2), guidance)


DENOISERS = {"none": Denoiser, "exact": ExactCacheDenoiser, "approximate": PrefixCacheDenoiser}


def make_denoiser(
    model: Model, canvas: Canvas, cache: CacheMode, forbidden: Int[Tensor, "n"] | None = None
) -> Denoiser:
    """The denoiser of that cache mode.

    A network that is patched or captured is run whole where what is kept is to be exact: a patch
    may change at every step, and a capture wants all rows.
    """
    make: type[Denoiser] = DENOISERS[cache]
    if cache == "exact" and model.net.config.block is not None and not model.net.config.time:
        make = BlockCacheDenoiser
    usual = make(model, canvas, forbidden)
    if cache == "exact" and model.net.taps.attached:
        return WatchedDenoiser(usual, forbidden)
    return usual
