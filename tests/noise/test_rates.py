"""The bound of uniform and hybrid noise: its gradient is exact, and little is kept for it."""

import weakref

import pytest
import torch

from unmask.base.streams import RowStreams
from unmask.noise.hybrid import Hybrid
from unmask.noise.rates import _Sums
from unmask.noise.state_masked import StateMasked
from unmask.noise.uniform import Uniform
from unmask.objectives.cross_entropy import weighted_terms


@pytest.mark.parametrize(
    "process",
    [Uniform(7), Uniform(7, mixture=True), Hybrid(7), Hybrid(7, share_start=1.0)],
    ids=["uniform", "mixture", "hybrid", "masked"],
)
def test_gradient_of_the_bound(process):
    generator = torch.Generator().manual_seed(0)
    x0 = torch.randint(0, 7, (5, 6), generator=generator)
    t = torch.rand(5, 1, generator=generator, dtype=torch.float64)
    xt = process.corrupt(x0, t, RowStreams.make(0, 5))
    logits = torch.randn(5, 6, 8, generator=generator, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda each: process.nll(each, x0, xt, t), logits, eps=1e-7, atol=1e-6, rtol=1e-5
    )


@pytest.mark.parametrize("scale", [0.1, 3.0, 12.0])
def test_sums_are_those_of_plain_operations(scale):
    """In float64 values and gradients agree; in float32 the sums' error is no larger."""
    generator = torch.Generator().manual_seed(0)
    logits = scale * torch.randn(4, 50, 300, generator=generator, dtype=torch.float64)
    factor = (6 * torch.randn(4, 50, generator=generator, dtype=torch.float64)).exp()
    first, second = torch.randint(0, 300, (2, 4, 50), generator=generator)
    weights = torch.randn(3, 4, 50, generator=generator, dtype=torch.float64)

    def find_plainly(logits, factor):
        logp = logits.log_softmax(-1)
        picked = (logp.gather(-1, at[..., None])[..., 0].exp() for at in (first, second))
        return torch.stack([torch.log1p(factor[..., None] * logp.exp()).sum(-1), *picked])

    def find(logits, factor):
        return torch.stack(_Sums.apply(logits.softmax(-1), factor, first, second))

    def run(find, dtype):
        given = logits.to(dtype).requires_grad_()
        found = find(given, factor.to(dtype))
        return found.detach(), torch.autograd.grad((weights.to(dtype) * found).sum(), given)[0]

    exact = run(find_plainly, torch.float64)
    for one, other in zip(run(find, torch.float64), exact, strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10)
    for ours, plain, true in zip(
        run(find, torch.float32), run(find_plainly, torch.float32), exact, strict=True
    ):
        assert (ours - true).abs().mean() <= 1.05 * (plain - true).abs().mean()


@pytest.mark.parametrize("process", [Uniform(64), Hybrid(64)], ids=["uniform", "hybrid"])
def test_one_tensor_as_wide_as_the_vocabulary_is_kept(process):
    kept = set()

    def keep(tensor):
        if tensor.numel() >= 6 * 64:
            kept.add(tensor.untyped_storage().data_ptr())
        return tensor

    logits, x0 = torch.randn(2, 3, 64, requires_grad=True), torch.zeros(2, 3, dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        process.nll(logits, x0, x0 + 1, torch.full((2, 1), 0.4))
    assert len(kept) == 1


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
