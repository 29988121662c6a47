"""Decoding of autoregressive models: one token per step, with the keys and values kept."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.streams import RowStreams
from unmask.net.cache import Cache
from unmask.net.model import Model
from unmask.sampling.canvas import check_lengths
from unmask.sampling.state import Predictions, find_entropy
from unmask.sampling.token_sampler import TokenSampler
from unmask.sampling.trajectory import StateCallback, Trajectory, TrajectoryRecord


@torch.inference_mode()
def decode_causal(
    model: Model,
    prompts: Sequence[Sequence[int]],
    length: int | Sequence[int] | None,
    sampler: TokenSampler,
    streams: RowStreams,
    forbidden: Int[Tensor, "n"] | None = None,
    keep_states: bool = True,
    watch: StateCallback | None = None,
    guesses: int = 0,
    planted: Int[Tensor, "B L"] | None = None,
) -> Trajectory:
    """Texts that continue the prompts from left to right, up to the end token or the length.

    Positions that are not written yet, or come after a row's end, hold the end token (0 without a
    tokenizer). `planted` tokens take the place of what would be written, where they are not -1.
    """
    # 1. A canvas [B, L]: every row begins with its prompt and may grow to its own limit.
    canvas, counts, limits = begin_rows(model, prompts, length)
    end_id = model.tokenizer.end_id if model.tokenizer is not None else None
    forbidden = forbid_mask(model, forbidden)
    steps = int((limits - counts).max())
    positions = torch.arange(canvas.shape[1], device=canvas.device)
    record = TrajectoryRecord(
        model, canvas, positions < limits[:, None], counts, keep_states, watch, guesses
    )
    going = torch.ones(len(prompts), dtype=torch.bool, device=canvas.device)
    # The share of a row's own steps: its neighbours may take more.
    drawing = sampler.stochastic * (limits - counts).double()
    # 2. Logits after each prompt [B, V], and what is kept from step to step.
    reader = _Reader(model, prompts, find_filler(model), steps)
    logits = reader.read(1, canvas, counts, going)
    for step in range(1, steps + 1):
        # 3. A token for each row [B]: drawn or the likeliest one, and a planted one over either.
        if forbidden is not None:
            logits = logits.index_fill(-1, forbidden, -torch.inf)
        logp = logits.log_softmax(-1, dtype=torch.float64)
        token = sampler.draw(logp, streams.uniform(1)[:, 0] if sampler.temperature else None)
        if sampler.stochastic < 1:
            token = torch.where(step <= drawing, token, logp.argmax(-1))
        at = counts + step - 1
        if planted is not None:
            planned = planted.gather(1, at.clamp(max=planted.shape[1] - 1)[:, None])[:, 0]
            token = torch.where(planned >= 0, planned, token)
        # 4. It is written in one column of each row that still goes on [B, L].
        going = going & (at < limits)
        written = (positions == at[:, None]) & going[:, None]
        if guesses:
            record.keep_guesses(Predictions(written, logp[going]))
        record.write(
            written,
            token[:, None],
            logp.gather(-1, token[:, None]).exp(),
            find_entropy(logp)[:, None],
        )
        if watch is not None:
            check_numbers(record)
        record.end_step(step)
        if end_id is not None:
            going = going & (token != end_id)
            if not bool(going.any()):
                break
        if step == steps:
            break
        # 5. The next logits [B, V].
        ends = (counts + step).clamp(max=limits)
        logits = reader.read(step + 1, record.tokens, ends, going, token)
    # Looked at once: asking at every step would make the processor wait for the device.
    check_numbers(record)
    return record.finish(record.step)


def find_filler(model: Model) -> int:
    """What stands where nothing is written: the end token, or 0 without a tokenizer."""
    return 0 if model.tokenizer is None else model.tokenizer.end_id


def forbid_mask(model: Model, forbidden: Int[Tensor, "n"] | None) -> Int[Tensor, "m"] | None:
    """The tokens that are never written, the mask among them where the head has a row for it."""
    if model.mask_id is None or model.mask_id >= model.net.config.logit_rows:
        return forbidden
    mask = torch.tensor([model.mask_id], device=model.device)  # read, but never written
    return mask if forbidden is None else torch.cat((forbidden, mask))


def begin_rows(
    model: Model, prompts: Sequence[Sequence[int]], length: int | Sequence[int] | None
) -> tuple[Int[Tensor, "B L"], Int[Tensor, "B"], Int[Tensor, "B"]]:
    """A canvas on which rows begin with their prompts, how long these are, and rows' limits."""
    limits = check_lengths(model, prompts, [list(row) for row in prompts], length)
    if not all(prompts):
        raise UserError(
            "an autoregressive model needs a first token, and a prompt is empty or missing: give "
            "a text that it goes on from."
        )
    canvas = torch.full((len(prompts), max(limits)), find_filler(model), device=model.device)
    for i, row in enumerate(prompts):
        canvas[i, : len(row)] = torch.tensor(row, device=model.device)
    counts = torch.tensor([len(row) for row in prompts], device=model.device)
    return canvas, counts, torch.tensor(limits, device=model.device)


def check_numbers(record: TrajectoryRecord) -> None:
    """Raise where a token was drawn from logits that are not numbers."""
    if (broken := record.confidence.isnan()).any():
        step = int(record.committed_at[broken].min())
        raise UserError(
            f"the network's logits are not numbers at step {step}: its weights or the forbidden "
            "tokens are off."
        )


class _Reader:
    """Logits after each row's text, with the keys and values of what stands before kept.

    Patches and captures see whole texts at every step, not a column of each.
    """

    def __init__(self, model: Model, prompts: Sequence[Sequence[int]], filler: int, steps: int):
        self.model, self.prompts, self.filler, self.steps = model, prompts, filler, steps
        self.cache: Cache | None = None

    def read(
        self,
        step: int,
        tokens: Int[Tensor, "B L"],
        lengths: Int[Tensor, "B"],
        going: Bool[Tensor, "B"],
        last: Int[Tensor, "B"] | None = None,
    ) -> Float[Tensor, "B V"]:
        """Logits after the first `lengths` tokens of each row, of which the `last` are new."""
        net = self.model.net

        def read_whole() -> Float[Tensor, "B V"]:
            return net(tokens[:, : int(lengths.max())], at=lengths[:, None] - 1)[:, 0]

        def read_new() -> Float[Tensor, "B V"]:
            if last is None or self.cache is None:
                return self._read_prompts()
            # Rows that are done take up no position of the cache, which could be past the context.
            real = going[:, None] if self.cache.padding else None
            return net(last[:, None], real, cache=self.cache)[:, 0]

        with net.taps.in_step(step):
            return net.taps.run_watched(read_whole, read_new)

    def _read_prompts(self) -> Float[Tensor, "B V"]:
        """Logits after each prompt, all of which are cached.

        Rows end at the same place, so that every later step is one column.
        """
        model, prompts = self.model, self.prompts
        longest = max(map(len, prompts))
        tokens = torch.tensor([[self.filler] * (longest - len(row)) + list(row) for row in prompts])
        real = torch.tensor([[False] * (longest - len(row)) + [True] * len(row) for row in prompts])
        padding = longest - min(map(len, prompts))
        room = min(longest + self.steps, model.net.config.context)
        self.cache = model.net.new_cache(len(prompts), room, padding)
        tokens, real = tokens.to(model.device), real.to(model.device)
        last = torch.tensor([longest - 1], device=model.device)
        return model.net(tokens, None if bool(real.all()) else real, last, self.cache)[:, 0]
