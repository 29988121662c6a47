"""The bound of uniform and hybrid noise: its gradient is exact, and little is kept for it."""

import pytest
import torch

from unmask.base.streams import RowStreams
from unmask.noise.hybrid import Hybrid
from unmask.noise.rates import _Sums
from unmask.noise.uniform import Uniform


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
