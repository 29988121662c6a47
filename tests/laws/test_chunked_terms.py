"""The bound of any process through a head in chunks, against all logits at once."""

import weakref

import pytest
import torch

from unmask.base.streams import RowStreams
from unmask.noise.hybrid import Hybrid
from unmask.noise.state_masked import StateMasked
from unmask.noise.uniform import Uniform
from unmask.objectives.cross_entropy import weighted_terms

N, V = 23, 37
PROCESSES = {
    "uniform": Uniform(V - 1),
    "mixture": Uniform(V - 1, mixture=True),
    "scores": Uniform(V - 1, scores=True),
    "hybrid": Hybrid(V - 1),
}


def draw(process, dtype):
    """Rows, a head, weights, and the bound at the rows' positions."""
    generator = torch.Generator().manual_seed(0)
    x, head = (torch.randn(n, 16, generator=generator) for n in (N, V))
    x, head = (each.bfloat16().to(dtype).requires_grad_() for each in (x, head))
    x0 = torch.randint(0, V - 1, (N, 1), generator=generator)
    t = torch.rand(N, 1, generator=generator, dtype=torch.float64)
    xt = process.corrupt(x0, t, RowStreams.make(0, N))
    weights = torch.rand(N, generator=generator).to(dtype)
    x0, xt, t = x0[:, 0], xt[:, 0], t[:, 0]
    return x, head, weights, lambda logits, at: process.nll(logits, x0[at], xt[at], t[at])


@pytest.mark.parametrize("chunk", [1, 7, 4096])
@pytest.mark.parametrize("name", PROCESSES)
def test_terms_in_chunks_are_the_terms(name, chunk):
    x, head, weights, find = draw(PROCESSES[name], torch.float64)
    loss, terms = weighted_terms(x, head, weights, find, chunk)
    plain = find(x @ head.T, slice(None))
    torch.testing.assert_close(terms, plain.detach(), atol=1e-10, rtol=1e-10)
    grads, expected = (
        torch.autograd.grad(2.5 * each, (x, head)) for each in (loss, (plain * weights).sum())
    )
    for one, other in zip(grads, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("name", PROCESSES)
def test_terms_in_a_short_format(name):
    """In autocast, with an odd vocabulary, no further from float64 than all logits at once."""
    x, head, weights, find = draw(PROCESSES[name], torch.float64)
    exact = torch.autograd.grad((find(x @ head.T, slice(None)) * weights).sum(), (x, head))
    x, head, weights, find = draw(PROCESSES[name], torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        ours = weighted_terms(x, head, weights, find)[0]
        plain = (find((x @ head.T).float(), slice(None)) * weights).sum()
    found = (torch.autograd.grad(each, (x, head)) for each in (ours, plain))
    for one, other, true in zip(*found, exact, strict=True):
        assert one.dtype == torch.float32
        assert (one - true).norm() <= 1.2 * (other - true).norm()


def test_nothing_as_wide_as_the_vocabulary_is_kept():
    x, head, weights, find = draw(PROCESSES["hybrid"], torch.float64)
    kept = []

    def keep(tensor):
        if tensor.numel() >= 7 * (V - 1):
            kept.append(weakref.ref(tensor))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = weighted_terms(x, head, weights, find, chunk=7)[0]
    assert kept and not any(each() is not None for each in kept)
    assert loss.requires_grad


@pytest.mark.parametrize("process", [Uniform(8), Hybrid(8), StateMasked(torch.ones(8))], ids=str)
def test_logits_that_are_not_read(process):
    """The first `num_read` logits are all that `nll` looks at."""
    logits = torch.randn(2, 3, 11)
    x0, xt = torch.zeros(2, 3, dtype=torch.long), torch.full((2, 3), 4)
    t = torch.full((2, 1), 0.4)
    few = process.nll(logits[..., : process.num_read], x0, xt, t)
    torch.testing.assert_close(process.nll(logits, x0, xt, t), few)
