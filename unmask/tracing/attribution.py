"""Attribution patching: every cell's effect to first order, from one gradient. An estimate.

IE(position, layer) is about (clean state - corrupted state) · d metric / d state, taken in the
corrupted run; for a window, the sum over its layers, each as if it were restored alone. Good as a
screen of which cells to trace, and labelled as an estimate wherever it goes.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from unmask.base.config import adjust, check_arguments, list_settings
from unmask.base.errors import UserError, suggest
from unmask.data.facts import Span
from unmask.net.model import Model
from unmask.tracing.grid import TraceGrid
from unmask.tracing.question import Answer, Question, TokenRow, ask
from unmask.tracing.settings import STEP_SETTINGS, Tracing
from unmask.tracing.windows import window_of

_SITES = {"resid": "resid_out", "mlp": "mlp_out", "attn": "attn_out"}
_FIXED: dict[str, Any] = {
    "metric": "logp",
    "joint": "mean_field",
    "mode": "restore",
    "severed": None,
    "windows": (),
}


@list_settings(Tracing, (*STEP_SETTINGS, *_FIXED))
@check_arguments()
def estimate_effects(
    model: Model,
    tokens: TokenRow,
    subject: Span | str | None = None,
    answer: Answer | None = None,
    settings: Tracing | None = None,
    *,
    prompt_length: int | None = None,
    **changes: Any,
) -> TraceGrid:
    """A grid in which each cell's log p is the corrupted run's plus a first-order estimate.

    The joint is mean field. The grid's `estimate` is True, and its metric `logp`. The arguments are
    those of `unmask.trace_tokens`.

    Keyword Args:
        {settings}
    """
    settings = adjust(estimate_effects, Tracing, settings, changes, (*STEP_SETTINGS, *_FIXED))
    settings = replace(settings, **_FIXED)
    for part in settings.parts:
        if part not in _SITES:
            raise UserError(f"part {part!r} is not estimated: {suggest(part, _SITES)}")
    question, taps = ask(model, tokens, subject, answer, settings, prompt_length), model.net.taps
    grid = _estimate(question)
    if taps.attached and not taps.changed:
        with taps.silenced():  # gradients without what was attached, to the last bit
            grid = _estimate(question)
    return grid


def _estimate(question: Question) -> TraceGrid:
    net, parts = question.model.net, question.settings.parts
    layers = net.config.layers
    names = [f"layers.{layer}.{_SITES[part]}" for part in parts for layer in range(layers)]
    # 1. The clean run: what leaves each site [1, L, D].
    with torch.no_grad():
        reader = question.make_reader()
        embedded = question.embed()
        tokens = question.tokens
        with net.taps.on_tokens(tokens[0]), net.taps.in_rows((0,)), net.capture(*names) as clean:
            read_clean = reader.take(slice(0, 1)).read_stream(net.run_layers(embedded[0]))
    # 2. The corrupted runs [S, L, D], and d log p / d state there. Samples are rows of their own,
    #    so one gradient of the sum is each one's.
    with torch.enable_grad(), net.capture(*names) as corrupted:
        with net.taps.on_tokens(tokens[1]), net.taps.in_rows((0,)):
            stream = net.run_layers(embedded[1].detach().clone().requires_grad_())
        read_bad = reader.take(slice(1, None)).read_stream(stream)
        slopes = torch.autograd.grad(read_bad[:, 0].sum(), [corrupted[name] for name in names])
    read_bad = read_bad.detach()
    # 3. (clean - corrupted) · slope: the gain of each position and sample [L, S].
    gains = {
        name: ((clean[name] - corrupted[name].detach()) * slope).sum(-1).T
        for name, slope in zip(names, slopes, strict=True)
    }
    length, samples, total = question.clean.shape[1], len(read_bad), read_bad.shape[-1]
    # 4. A window's gain is the sum over its layers. It is spread over the answer's tokens, whose
    #    sum is the joint's log p: [L, layers, S, K, A].
    logp: dict[str, Tensor] = {}
    for part in parts:
        grid = read_bad.expand(length, layers, -1, -1, -1).clone()
        for layer in range(layers):
            low, high = window_of(layer, 1 if part == "resid" else question.window, layers)
            gain = sum(gains[f"layers.{inside}.{_SITES[part]}"] for inside in range(low, high))
            assert isinstance(gain, Tensor)
            spread = gain.new_zeros(length, samples)
            spread[: len(gain)] = gain / total
            grid[:, layer, :, 0] += spread[..., None]
        logp[part] = grid
    places = tuple((position,) for position in range(length))
    return replace(question.make_grid(places, logp, read_clean, read_bad), estimate=True)
