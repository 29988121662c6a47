"""Bounds of any discrete process, in continuous time (UDLM, GIDD) or in T steps (D3PM); SEDD's.

A loss is computed in two parts: `noise_tokens` draws the noise and finds the positions that count,
on the CPU in training, where looking at values costs nothing; `process_targets_loss` and
`targets_score_entropy` run the network, with shapes that depend on no value, so that the host never
waits for the device.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.streams import RowStreams
from unmask.net.transformer import Transformer
from unmask.noise.masked import Masked
from unmask.noise.process import Process, step_nll
from unmask.noise.schedules import check_closed, clamp_open
from unmask.objectives.batch import Batch, choose_noised, drop_prompts
from unmask.objectives.cross_entropy import weighted_terms
from unmask.objectives.targets import Targets, read_head


@dataclass(frozen=True)
class NoisedTokens:
    """A batch noised for one step, and the clean tokens that the loss is about."""

    t: Float[Tensor, "B"]
    xt: Int[Tensor, "B L"]
    targets: Targets


def noise_tokens(
    process: Process,
    batch: Batch,
    t: Float[Tensor, "B"],
    streams: RowStreams,
    num_steps: int | None = None,
    response_only: bool = False,
    noise_filling: bool = True,
    drop_prompt: float = 0.0,
) -> NoisedTokens:
    """Noise the batch at times t; with `num_steps` they are rounded up to multiples of 1/T.

    Targets are the positions at which the bound can differ from 0; each weighs one over the number
    of positions that may be noised.
    """
    may = choose_noised(batch, response_only, noise_filling)
    if num_steps is not None:
        t = round_up(t, num_steps)
    dropped = drop_prompts(batch, drop_prompt, streams)
    xt = torch.where(may, process.corrupt(batch.tokens, t[:, None], streams), batch.tokens)
    wanted = process.needs(xt) & may & ~dropped
    if drop_prompt:
        xt = torch.where(dropped, _require_mask(process), xt)
    at = wanted.flatten().nonzero()[:, 0]
    weights = (1 / may.sum()).expand(len(at)).contiguous()
    return NoisedTokens(t, xt, Targets(at, batch.tokens.flatten()[at], weights))


def process_loss(
    net: Transformer,
    process: Process,
    batch: Batch,
    t: Float[Tensor, "B"],
    streams: RowStreams,
    num_steps: int | None = None,
    auxiliary: float = 0.0,
    response_only: bool = False,
    noise_filling: bool = True,
    drop_prompt: float = 0.0,
) -> tuple[Float[Tensor, ""], Float[Tensor, "B L"]]:
    """The bound in nats per noised position, and the integrand at each of them (no gradient).

    Without `num_steps` time is continuous; with it t is rounded up to a multiple of 1/T and the
    terms are the T steps' divergences, T times each, so that their mean is the bound. D3PM adds
    `auxiliary` times the plain cross-entropy (0.001 in the paper), after which it is not a bound.
    """
    check_closed(process.schedule)
    noised = noise_tokens(
        process, batch, t, streams, num_steps, response_only, noise_filling, drop_prompt
    )
    loss, nll = process_targets_loss(net, process, noised, num_steps, auxiliary)
    terms = torch.zeros(noised.xt.numel(), dtype=nll.dtype, device=nll.device)
    return loss, terms.index_copy(0, noised.targets.at, nll).view_as(noised.xt)


def process_targets_loss(
    net: Transformer,
    process: Process,
    noised: NoisedTokens,
    num_steps: int | None = None,
    auxiliary: float = 0.0,
) -> tuple[Float[Tensor, ""], Float[Tensor, "N"]]:
    """The weighted sum of the bound's integrand over the targets, and the integrand there."""
    x = net.run_layers(net.embed(noised.xt, t=noised.t))
    rows, head = read_head(net, x, noised.targets)
    xt, t = _look_up(noised)

    def find(logits: Tensor, rows: slice) -> Tensor:
        own = (logits, noised.targets.tokens[rows], xt[rows])
        if num_steps is None:
            nll = process.nll(*own, t[rows])
        else:
            times = (t[rows], (t[rows] - 1 / num_steps).clamp(min=0))
            nll = num_steps * step_nll(process, *own, *(time.to(logits.dtype) for time in times))
        if auxiliary:
            nll = nll + auxiliary * F.nll_loss(process.predict(logits), own[1], reduction="none")
        return nll

    return weighted_terms(rows, head[: process.num_read], noised.targets.weights, find)


def targets_score_entropy(
    net: Transformer, process: Masked, noised: NoisedTokens
) -> Float[Tensor, "N"]:
    """SEDD's integrand at every target, all of which are masked, with a gradient.

    The network's outputs are log scores up to -log(e^sigma - 1), which depends on time alone; they
    need not be normalised. sigma = -log alpha for any schedule.
    """
    x = net.run_layers(net.embed(noised.xt, t=noised.t))
    outputs = net.unembed(x.flatten(0, 1).index_select(0, noised.targets.at)[None])[0].float()
    xt, t = _look_up(noised)
    if outputs.shape[-1] > process.mask_id:
        is_mask = torch.arange(outputs.shape[-1], device=xt.device) == process.mask_id
        outputs = outputs.masked_fill(is_mask, -torch.inf)
    t = clamp_open(t)
    alpha, noise = process.schedule.alpha(t), process.schedule.noised(t)
    # e^sigma - 1 = (1 - alpha) / alpha, and sigma' = -alpha' / alpha.
    scale = (noise / alpha).log()
    sigma = torch.log1p(noise / alpha)
    return score_entropy(
        outputs - scale[:, None].to(outputs.dtype),
        noised.targets.tokens,
        torch.ones_like(t, dtype=torch.bool),
        sigma.to(outputs.dtype),
        (-process.schedule.dalpha(t) / alpha).to(outputs.dtype),
    )


def round_up(t: Float[Tensor, "*B"], num_steps: int) -> Float[Tensor, "*B"]:
    """The times 1/T, 2/T, …, 1 that follow t."""
    if num_steps < 1:
        raise UserError(f"{num_steps} noise steps were asked for: expected at least 1.")
    return ((t * num_steps).floor() + 1).clamp(max=num_steps) / num_steps


def score_entropy(
    log_score: Float[Tensor, "*S V"],
    x0: Int[Tensor, "*S"],
    is_mask: Tensor,
    sigma: Tensor,
    dsigma: Tensor,
) -> Float[Tensor, "*S"]:
    """SEDD's integrand for absorbing noise (Lou et al. 2023, arXiv 2310.16834), nats per token.

    dsigma [ sum_y s_y - r log s_x0 + r (log r - 1) ] where masked, r = 1 / (e^sigma - 1).
    `log_score` is log s_y over the tokens, without the mask. With s_y = r p(y | x_t) it is the
    masked bound.
    """
    ratio = 1 / torch.expm1(sigma)
    at_x0 = log_score.gather(-1, x0[..., None])[..., 0]
    total = log_score.logsumexp(-1).exp()
    terms = dsigma * (total - ratio * at_x0 + torch.special.xlogy(ratio, ratio) - ratio)
    return torch.where(is_mask, terms, 0.0)


def _look_up(noised: NoisedTokens) -> tuple[Int[Tensor, "N"], Float[Tensor, "N"]]:
    """The noised token and the time of every target."""
    at = noised.targets.at
    return noised.xt.flatten()[at], noised.t[at // noised.xt.shape[1]]


def _require_mask(process: Process) -> int:
    """The token that hides a dropped prompt."""
    if process.mask_id is None:
        raise UserError(
            f"{type(process).__name__} noise has no mask to drop prompts with: use masked noise."
        )
    return process.mask_id
