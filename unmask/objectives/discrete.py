"""Bounds of any discrete process, in continuous time (UDLM, GIDD) or in T steps (D3PM); SEDD's."""

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
    may = choose_noised(batch, response_only, noise_filling)
    if num_steps is not None:
        t = round_up(t, num_steps)
    times = t[:, None]
    dropped = drop_prompts(batch, drop_prompt, streams)
    xt = torch.where(may, process.corrupt(batch.tokens, times, streams), batch.tokens)
    wanted = process.needs(xt) & may & ~dropped
    xt = torch.where(dropped, _find_mask(process, drop_prompt), xt)
    x = net.run_layers(net.embed(xt, t=t))
    logits = net.unembed(x, wanted).float()
    inputs = (logits, batch.tokens[wanted], xt[wanted])
    at = times.expand_as(xt)[wanted]
    if num_steps is None:
        nll = process.nll(*inputs, at)
    else:
        before = (at - 1 / num_steps).clamp(min=0)
        nll = num_steps * step_nll(process, *inputs, *(x.to(logits.dtype) for x in (at, before)))
    if auxiliary:
        nll = nll + auxiliary * F.nll_loss(process.predict(logits), inputs[1], reduction="none")
    terms = torch.zeros_like(xt, dtype=nll.dtype).masked_scatter(wanted, nll)
    return terms.sum() / may.sum(), terms.detach()


def _find_mask(process: Process, drop_prompt: float) -> int:
    """The token that hides a dropped prompt; needed only where prompts are dropped."""
    mask_id = getattr(process, "mask_id", None)
    if mask_id is None and drop_prompt:
        raise UserError(
            f"{type(process).__name__} noise has no mask to drop prompts with: use masked noise."
        )
    return mask_id or 0


def score_entropy_loss(
    net: Transformer,
    process: Masked,
    batch: Batch,
    t: Float[Tensor, "B"],
    streams: RowStreams,
    response_only: bool = False,
    noise_filling: bool = True,
) -> tuple[Float[Tensor, ""], Float[Tensor, "B L"]]:
    """SEDD's loss in nats per noised position, and the integrand at each (no gradient).

    The network's outputs are log scores up to -log(e^sigma - 1), which depends on time alone; they
    need not be normalised. sigma = -log alpha for any schedule.
    """
    may = choose_noised(batch, response_only, noise_filling)
    times = t[:, None]
    xt = torch.where(may, process.corrupt(batch.tokens, times, streams), batch.tokens)
    hidden = process.needs(xt) & may
    outputs = net.unembed(net.run_layers(net.embed(xt, t=t)), hidden).float()
    if outputs.shape[-1] > process.mask_id:
        is_mask = torch.arange(outputs.shape[-1], device=xt.device) == process.mask_id
        outputs = outputs.masked_fill(is_mask, -torch.inf)
    at = clamp_open(times.expand_as(xt)[hidden])
    alpha, noised = process.schedule.alpha(at), process.schedule.noised(at)
    # e^sigma - 1 = (1 - alpha) / alpha, and sigma' = -alpha' / alpha.
    scale = (noised / alpha).log()
    sigma = torch.log1p(noised / alpha)
    nll = score_entropy(
        outputs - scale[:, None].to(outputs.dtype),
        batch.tokens[hidden],
        torch.ones_like(at, dtype=torch.bool),
        sigma.to(outputs.dtype),
        (-process.schedule.dalpha(at) / alpha).to(outputs.dtype),
    )
    terms = torch.zeros_like(xt, dtype=nll.dtype).masked_scatter(hidden, nll)
    return terms.sum() / may.sum(), terms.detach()


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
