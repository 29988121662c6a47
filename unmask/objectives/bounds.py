"""What a text costs under noise of any kind: the bound of its process, with its standard error.

-log p(x0) <= E_t E_{x_t | x0}[integrand], t uniform on (0, 1), one time in each of `strata` even
parts of it; for noise on vectors with the reconstruction at t = 0 and the prior's divergence added
(Kingma et al. 2021, arXiv 2107.00630). Tokens that are given stay clean. For masked models
`unmask.objectives.likelihood.Scorer` estimates the same bound with a smaller error.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.streams import RowStreams
from unmask.net.batches import count_row_bytes, fit_rows
from unmask.net.model import Model
from unmask.noise.gaussian import Gaussian
from unmask.noise.process import Process
from unmask.noise.schedules import check_closed
from unmask.objectives.likelihood import Estimate, combine_repeats, stratify
from unmask.objectives.vectors import predict_tokens

TimedPrediction = Callable[[Tensor, Tensor], Tensor]
"""x_t [B, L] or z_t [B, L, d], and times [B], to logits [B, L, V]."""
_NEAR_ENDS = 1e-6
"""Times this near to 0 or 1 are moved inside, where every integrand is a number."""


@torch.no_grad()
def estimate_bound(
    predict: TimedPrediction,
    process: Process | Gaussian,
    x0: Int[Tensor, "L"],
    given: Bool[Tensor, "L"] | None = None,
    strata: int = 16,
    repeats: int = 8,
    seed: int = 0,
    batch: int = 64,
) -> Estimate:
    """The bound on -log p of the tokens that are not given, in nats.

    `predict` runs a network, in batches of at most `batch` rows. The noise of a row depends on the
    seed and its number alone.
    """
    unknown = torch.ones_like(x0, dtype=torch.bool) if given is None else ~given
    if not unknown.any():
        raise UserError("all tokens are given: nothing is left whose likelihood is asked.")
    if isinstance(process, Process):
        check_closed(process.schedule)
    t, streams = stratify(strata, repeats, seed, x0.device)
    t, noise = t.clamp(_NEAR_ENDS, 1 - _NEAR_ENDS), streams.at("noise")
    costs = [
        _cost(predict, process, x0.expand(len(rows), -1), unknown, t[rows], noise.pick(rows))
        for rows in torch.arange(len(t), device=x0.device).split(batch)
    ]
    return combine_repeats(torch.cat(costs), repeats, int(unknown.sum()))


def _cost(
    predict: TimedPrediction,
    process: Process | Gaussian,
    x0: Int[Tensor, "B L"],
    unknown: Bool[Tensor, "L"],
    t: Float[Tensor, "B"],
    streams: RowStreams,
) -> Float[Tensor, "B"]:
    """The integrand of every row at its time, summed over the tokens that are not given."""
    noised = process.corrupt(x0, t[:, None], streams)
    if isinstance(process, Gaussian):
        zt = torch.where(unknown[:, None], noised, process.table[x0])
        z0 = process.corrupt(x0, torch.zeros_like(t)[:, None], streams)
        terms = process.nll(predict(zt, t).to(process.table.dtype), x0, t[:, None])
        terms = terms + process.reconstruct(z0, x0) + process.prior_kl(x0)
    else:
        xt = torch.where(unknown, noised, x0)
        terms = process.nll(predict(xt, t).double(), x0, xt, t[:, None])
    return torch.where(unknown, terms.double(), 0.0).sum(-1)


def score_bound(
    model: Model, length: int, strata: int = 16, repeats: int = 8, process: Process | None = None
) -> Callable[[Tensor, Tensor, int], Estimate]:
    """Scores windows of at most `length` tokens under a diffusion model of any kind.

    What comes back takes a window, which of its tokens are given, and a seed. A network that is
    conditioned on its own estimate (gaussian noise) gets it: a second pass, given the first's. The
    noise on tokens may be given, such as the model's own under another schedule.
    """
    batch = fit_rows(model, count_row_bytes(model, length, length, passes=1))
    if not model.paradigm.noises_vectors:
        noise: Process | Gaussian = model.make_process() if process is None else process

        def predict(xt: Tensor, t: Tensor) -> Tensor:
            return model.logits(xt, t=t if model.net.config.time else None)
    else:
        noise = vectors = model.make_gaussian()

        def predict(xt: Tensor, t: Tensor) -> Tensor:
            hint = vectors.denoise(predict_tokens(model.net, vectors, xt, t))
            return predict_tokens(model.net, vectors, xt, t, hint)

    def score(window: Tensor, given: Tensor, seed: int) -> Estimate:
        return estimate_bound(predict, noise, window, given, strata, repeats, seed, batch)

    return score
