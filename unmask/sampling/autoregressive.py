"""Decoding of autoregressive models: one token a step, with the keys and values kept."""

from collections.abc import Sequence

import torch
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.streams import RowStreams
from unmask.net.model import Model
from unmask.sampling.canvas import Prompt, check_lengths, encode_prompt
from unmask.sampling.guess import draw_tokens
from unmask.sampling.trajectory import Trajectory, decode_rows


@torch.inference_mode()
def decode_causal(
    model: Model,
    prompts: Sequence[Prompt],
    length: int | Sequence[int] | None,
    temperature: float,
    streams: RowStreams,
    keep_states: bool = True,
) -> Trajectory:
    """Texts that continue the prompts from left to right, up to the end token or the length.

    Places that are not written yet, or come after a row's end, hold the end token (0 without a
    tokenizer).
    """
    rows = [encode_prompt(model, prompt) for prompt in prompts]
    lengths = check_lengths(model, prompts, rows, length)
    if not all(rows):
        raise UserError("an autoregressive model needs a first token: give no empty prompts.")
    end_id = model.tokenizer.end_id if model.tokenizer is not None else None
    device, filler = model.device, end_id if end_id is not None else 0
    counts = torch.tensor([len(row) for row in rows], device=device)
    limits = torch.tensor(lengths, device=device)
    longest = int(counts.max())
    # Rows end at the same place, so that every step is one column.
    tokens = torch.full((len(rows), longest), filler, device=device)
    for i, row in enumerate(rows):
        tokens[i, longest - len(row) :] = torch.tensor(row, device=device)
    real = torch.arange(longest, device=device) >= longest - counts[:, None]
    steps = int((limits - counts).max())
    cache = model.net.new_cache(len(rows), min(longest + steps, model.net.config.context))

    written = _start(rows, max(lengths), filler, device)
    committed_at, places = torch.zeros_like(written), torch.arange(len(rows), device=device)
    confidence = torch.ones(written.shape, dtype=torch.float64, device=device)
    entropy = torch.zeros_like(confidence)
    states = [written.clone()] if keep_states else []
    going, calls = torch.ones(len(rows), dtype=torch.bool, device=device), 0
    last = torch.tensor([longest - 1], device=device)
    logits = model.net(tokens, None if bool(real.all()) else real, last, cache)[:, 0]
    for step in range(1, steps + 1):
        calls += 1
        logp = logits.double().log_softmax(-1)
        chosen = draw_tokens(logp, temperature, streams.uniform(1)[:, 0] if temperature else None)
        at = counts + step - 1
        going = going & (at < limits)
        rows_going, columns = places[going], at[going]
        written[rows_going, columns] = chosen[going]
        committed_at[rows_going, columns] = step
        p = logp.exp()
        confidence[rows_going, columns] = p[places, chosen][going]
        entropy[rows_going, columns] = -(p * logp.clamp(min=-1e9)).sum(-1)[going]
        if keep_states:
            states.append(written.clone())
        if end_id is not None:
            going = going & (chosen != end_id)
        if step == steps or not bool(going.any()):
            break
        logits = model.net(chosen[:, None], cache=cache)[:, 0]
    inside = torch.arange(max(lengths), device=device) < limits[:, None]
    return Trajectory(
        tokens=written,
        committed_at=committed_at,
        confidence=confidence,
        entropy=entropy,
        calls=calls,
        texts=decode_rows(written, inside, model.tokenizer),
        states=torch.stack(states) if keep_states else None,
    )


def _start(rows: list[list[int]], length: int, filler: int, device: torch.device) -> Tensor:
    canvas = torch.full((len(rows), length), filler, device=device)
    for i, row in enumerate(rows):
        canvas[i, : len(row)] = torch.tensor(row, device=device)
    return canvas
