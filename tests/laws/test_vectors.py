"""Losses of the Gaussian process: its terms, its hints, its dtypes."""

import torch
import torch.nn.functional as F

from tests.laws.conftest import B, T, V
from unmask import preset
from unmask.base.streams import RowStreams
from unmask.net.transformer import Transformer
from unmask.noise.gaussian import Gaussian
from unmask.objectives.vectors import gaussian_loss, predict_tokens


def gaussian_net(dtype: torch.dtype = torch.float32) -> Transformer:
    config = preset("tiny", vocab_size=V, num_logits=V - 1, time=True, latent_width=16)
    return Transformer(config).to(dtype)


def noise(batch) -> tuple[Transformer, Gaussian, torch.Tensor, RowStreams]:
    """A network, its process, the batch under noise, and the streams after that."""
    net, streams = gaussian_net(), RowStreams.make(3, B)
    process = Gaussian(net.latents.table())
    return net, process, process.corrupt(batch.tokens, T[:, None], streams), streams


def compute(net, batch, **options):
    options = {"form": "cdcd", "self_condition": 0.0} | options
    return gaussian_loss(net, batch, T, RowStreams.make(3, B), **options)


def cross_entropy(logits, batch, **how):
    return F.cross_entropy(logits.transpose(1, 2), batch.tokens, **how)


def test_gaussian_loss_is_its_process(batch):
    """Integrand, reconstruction and prior, on the same draws; and CDCD's plain cross-entropy."""
    net, process, zt, streams = noise(batch)
    z0 = process.corrupt(batch.tokens, torch.zeros(B, 1), streams)
    logits = predict_tokens(net, process, zt, T)
    ends = process.reconstruct(z0, batch.tokens) + process.prior_kl(batch.tokens)
    expected = process.nll(logits, batch.tokens, T[:, None]) + ends
    found, terms = compute(net, batch, form="bound")
    torch.testing.assert_close(terms, expected.detach(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found, expected.mean(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(compute(net, batch)[0], cross_entropy(logits, batch))


def test_reconstruction_by_distances(batch):
    """Products of vectors give what the distance to every token's vector gives, to the digit."""
    process = Gaussian(gaussian_net().latents.table().detach().double())
    z0 = process.corrupt(batch.tokens, torch.zeros(B, 1), RowStreams.make(3, B))
    alpha = process.schedule.alpha(torch.zeros((), dtype=torch.float64))
    distances = (z0[..., None, :] - alpha.sqrt() * process.table).square().sum(-1)
    logp = (-0.5 * distances / (1 - alpha)).log_softmax(-1)
    direct = -logp.gather(-1, batch.tokens[..., None])[..., 0]
    torch.testing.assert_close(process.reconstruct(z0, batch.tokens), direct, atol=1e-9, rtol=1e-7)


def test_evidence_is_the_own_vector_s_likelihood(batch):
    """The loss with evidence is that of the same network with log q(z_t | x) added by hand."""
    net, process, zt, _ = noise(batch)
    alpha = process.schedule.alpha(T.double())[:, None, None]
    apart = zt.double()[..., None, :] - alpha[..., None].sqrt() * process.table
    likelihood = (-0.5 * apart.square().sum(-1) / (1 - alpha)).float()
    expected = cross_entropy(predict_tokens(net, process, zt, T) + likelihood, batch)
    loss, _ = compute(net, batch, evidence=True)
    torch.testing.assert_close(loss, expected, atol=1e-4, rtol=1e-4)


def test_self_conditioning_is_told_its_own_guess(batch):
    net, process, zt, _ = noise(batch)
    hint = process.denoise(predict_tokens(net, process, zt, T))
    expected = cross_entropy(predict_tokens(net, process, zt, T, hint), batch)
    torch.testing.assert_close(compute(net, batch, self_condition=1.0)[0], expected)


def test_gaussian_in_short_formats(batch):
    """A sure and right prediction costs next to nothing, whatever the network computes in."""
    net = gaussian_net(torch.bfloat16)
    loss, _ = gaussian_loss(net, batch, T, RowStreams.make(3, B))
    assert loss.isfinite()
    net = gaussian_net()
    sure = 50.0 * F.one_hot(batch.tokens, V - 1)
    early = torch.full((B,), 0.02, dtype=torch.float64)
    with torch.autocast("cpu", torch.bfloat16), net.patch({"logits": lambda x: sure.to(x.dtype)}):
        _, terms = gaussian_loss(net, batch, early, RowStreams.make(3, B))
    assert float(terms.max()) < 0.1


def test_only_the_response_is_noised(batch):
    """Prompts enter as their own vectors; nothing but the response counts."""
    net, process, zt, _ = noise(batch)
    kept = batch.is_prompt() | batch.is_filling()
    zt = torch.where(kept[..., None], process.table[batch.tokens], zt)
    plain = cross_entropy(predict_tokens(net, process, zt, T), batch, reduction="none")
    found, terms = compute(net, batch, response_only=True, noise_filling=False)
    assert (terms[kept] == 0).all()
    torch.testing.assert_close(found, plain[~kept].mean())
