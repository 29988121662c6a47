"""Losses of the Gaussian process: the variational bound, and CDCD's cross-entropy."""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from unmask.base.streams import RowStreams
from unmask.net.transformer import Transformer
from unmask.noise.gaussian import Gaussian
from unmask.noise.schedules import Schedule, SigmoidSchedule
from unmask.objectives.batch import Batch, choose_noised

Form = Literal["bound", "cdcd"]


def predict_tokens(
    net: Transformer,
    process: Gaussian,
    z: Tensor,
    t: Float[Tensor, "B"],
    hint: Tensor | None = None,
) -> Float[Tensor, "B L V"]:
    """Logits over tokens from noised vectors, in float32 at least."""
    dtype = net.embedding.weight.dtype
    hint = None if hint is None else hint.to(dtype)
    logits = net.unembed(net.run_layers(net.embed_latents(z.to(dtype), hint, t=t)))
    return process.add_evidence(logits.to(process.table.dtype), z, t[:, None])


def gaussian_loss(
    net: Transformer,
    batch: Batch,
    t: Float[Tensor, "B"],
    streams: RowStreams,
    schedule: Schedule | None = None,
    form: Form = "bound",
    self_condition: float = 0.5,
    response_only: bool = False,
    noise_filling: bool = True,
    evidence: bool = False,
) -> tuple[Float[Tensor, ""], Float[Tensor, "B L"]]:
    """The loss in nats per noised token, and each token's term (no gradient), 0 where none was.

    `bound` adds the reconstruction at t = 0 and the prior's divergence to the integrand; `cdcd` is
    the plain cross-entropy of the clean token, not a bound. With the chance `self_condition` a row
    is first predicted without, then with its own guess as a hint (Chen et al. 2022, arXiv
    2208.04202).
    """
    # 1. Vectors noised to t [B, L, D]; those that may not be noised stay clean.
    with torch.autocast(batch.tokens.device.type, enabled=False):
        table = net.latents.table().float()
        process = Gaussian(table, schedule or SigmoidSchedule(), evidence)
        may = choose_noised(batch, response_only, noise_filling)
        zt = process.corrupt(batch.tokens, t[:, None], streams)
        zt = torch.where(may[..., None], zt, process.table[batch.tokens])
    # 2. Some rows [B] are given their own first guess [B, L, D], the others zeros.
    hint = None
    if self_condition:
        hinted = streams.uniform(1)[..., None] < self_condition
        with torch.no_grad():
            guess = process.denoise(predict_tokens(net, process, zt, t))
        hint = torch.where(hinted, guess, 0.0)
    # 3. Logits of the clean tokens [B, L, V], and each token's term [B, L]: small differences times
    #    a large signal-to-noise ratio, which is not for a short dtype.
    logits = predict_tokens(net, process, zt, t, hint)
    with torch.autocast(batch.tokens.device.type, enabled=False):
        if form == "cdcd":
            terms = F.cross_entropy(logits.transpose(1, 2), batch.tokens, reduction="none")
        else:
            z0 = process.corrupt(batch.tokens, torch.zeros_like(t)[:, None], streams)
            ends = process.reconstruct(z0, batch.tokens) + process.prior_kl(batch.tokens)
            terms = process.nll(logits, batch.tokens, t[:, None]) + ends
    terms = torch.where(may, terms, 0.0)
    return terms.sum() / may.sum(), terms.detach()
