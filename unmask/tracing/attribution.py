"""Attribution patching: every cell's effect to first order, from one gradient. An estimate.

IE(place, layer) is about (clean state - corrupted state) · d metric / d state, taken in the
corrupted run; for a window, the sum over its layers, each as if it were restored alone. Good as a
screen of which cells to trace, and labelled as an estimate wherever it goes.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from unmask.base.errors import UserError, suggest
from unmask.data.facts import Span
from unmask.net.model import Model
from unmask.tracing.corruption import Apply, Corrupted, Corruption
from unmask.tracing.grid import TraceGrid
from unmask.tracing.question import ask
from unmask.tracing.windows import choose_window, window_of

_SITES = {"resid": "resid_out", "mlp": "mlp_out", "attn": "attn_out"}


def estimate_effects(
    model: Model,
    tokens: Tensor | Sequence[int],
    subject: Span,
    answer: Mapping[int, int],
    parts: Sequence[str] = ("resid", "mlp", "attn"),
    window: int | None = None,
    corruption: str | Corruption | Apply | Corrupted | None = None,
    guidance: float = 0.0,
    prompt_length: int | None = None,
) -> TraceGrid:
    """A grid in which each cell's log p is the corrupted run's plus a first-order estimate.

    The joint is mean field. The grid's `estimate` is True, and its metric `logp`. The settings are
    those of `unmask.trace_tokens`.
    """
    model.net.taps.require_none("tracing")
    for part in parts:
        if part not in _SITES:
            raise UserError(f"part {part!r} is not estimated: {suggest(part, _SITES)}")
    question = ask(
        model, tokens, subject, answer, corruption, guidance=guidance, prompt_length=prompt_length
    )
    net, layers = model.net, model.net.config.layers
    window = choose_window(window, layers)
    names = [f"layers.{layer}.{_SITES[part]}" for part in parts for layer in range(layers)]
    with torch.no_grad():
        reading = question.make_reading()
        embedded = question.embed()
        with net.capture(*names) as clean:
            read_clean = reading.take(slice(0, 1)).read_stream(net.run_layers(embedded[0]))
    with torch.enable_grad(), net.capture(*names) as bad:
        stream = net.run_layers(embedded[1].detach().clone().requires_grad_())
        read_bad = reading.take(slice(1, None)).read_stream(stream)
        # Samples are rows of their own, so one gradient of the sum is each one's.
        slopes = torch.autograd.grad(read_bad[:, 0].sum(), [bad[name] for name in names])
    read_bad = read_bad.detach()
    gains = {
        name: ((clean[name] - bad[name].detach()) * slope).sum(-1).T
        for name, slope in zip(names, slopes, strict=True)
    }
    length, samples, total = question.clean.shape[1], len(read_bad), read_bad.shape[-1]
    logp = {}
    for part in parts:
        grid = read_bad.expand(length, layers, -1, -1, -1).clone()
        for layer in range(layers):
            low, high = window_of(layer, 1 if part == "resid" else window, layers)
            gain = sum(gains[f"layers.{each}.{_SITES[part]}"] for each in range(low, high))
            assert isinstance(gain, Tensor)
            # Spread over the positions, whose sum is the joint's log p.
            spread = gain.new_zeros(length, samples)
            spread[: len(gain)] = gain / total
            grid[:, layer, :, 0] += spread[..., None]
        logp[part] = grid.cpu()
    return TraceGrid(
        tokens=tuple(question.clean[0].tolist()),
        subject=subject,
        answer=question.answer,
        prompt_length=question.prompt_length,
        mask_id=model.mask_id,
        places=tuple((place,) for place in range(length)),
        logp=logp,
        clean_logp=read_clean.cpu(),
        corrupted_logp=read_bad.cpu(),
        metric="logp",
        window=window,
        corruption=question.corruption,
        joint="mean_field" if model.paradigm.sees_later else "chain_rule",
        guidance=guidance,
        estimate=True,
    )
