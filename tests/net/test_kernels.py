"""Our own kernels against torch's operations, on a GPU."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from unmask.net import fused
from unmask.net.config import NetConfig
from unmask.net.layers import Head, RMSNorm, add_and_norm
from unmask.net.transformer import Transformer
from unmask.objectives.cross_entropy import weighted_cross_entropy

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def use_kernels(monkeypatch):
    """Our kernels for tensors of any size."""
    monkeypatch.setattr(fused, "LEAST", 0)


def draw(*shape: int, dtype=torch.bfloat16, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda", dtype=torch.float32).to(dtype)


def assert_near(ours, torchs, exact):
    """At least as near to the exact values as torch's own, but for a last digit."""
    error, theirs = (ours.double() - exact).abs(), (torchs.double() - exact).abs()
    assert error.max() <= 1.5 * theirs.max() + 1e-7
    assert error.mean() <= 1.1 * theirs.mean() + 1e-9


@pytest.mark.parametrize("width", [64, 576, 1000, 1536])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms(width, dtype):
    norm = RMSNorm(width, eps=1e-5, device="cuda", dtype=dtype)
    x = draw(7, 33, width, dtype=dtype)
    with torch.no_grad():
        norm.weight.copy_(draw(width, dtype=dtype, seed=1))
        ours, torchs = norm(x), F.rms_norm(x, (width,), norm.weight, 1e-5)
    exact = F.rms_norm(x.double(), (width,), norm.weight.double(), 1e-5)
    assert_near(ours, torchs, exact)


@pytest.mark.parametrize("rows", [1, 2, 7, 1041])
@pytest.mark.parametrize("width", [64, 576, 960, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_additions_before_norms(rows, width, dtype):
    """The same as an addition and a norm, one after the other."""
    norm = RMSNorm(width, eps=1e-5, device="cuda", dtype=dtype)
    x, added = draw(rows, width, dtype=dtype), draw(rows, width, dtype=dtype, seed=1)
    with torch.no_grad():
        norm.weight.copy_(draw(width, dtype=dtype, seed=2))
        both = add_and_norm(x, added, norm)
        assert both is not None
        expected = norm(x + added)
    assert torch.equal(both[0], x + added)
    if dtype == torch.float32:
        torch.testing.assert_close(both[1], expected, rtol=1e-6, atol=1e-6)
    else:
        assert torch.equal(both[1], expected)


def test_who_looks_between_takes_the_plain_path(monkeypatch):
    """Sites, hooks, gradients and other norms: all the same numbers, without the one kernel."""
    from unmask.net import graphs, kernels

    monkeypatch.setattr(graphs, "MOST_FLOPS", 0.0)
    calls, fused_call = [], kernels.fused_add_and_norm
    monkeypatch.setattr(
        kernels, "fused_add_and_norm", lambda *given: calls.append(1) or fused_call(*given)
    )
    config = NetConfig(vocab_size=99, width=64, layers=3, heads=4, mlp_width=128, context=64)
    tokens = torch.randint(0, 99, (2, 20), device="cuda")

    def make(config: NetConfig) -> Transformer:
        with torch.device("cuda"):
            return Transformer(config).bfloat16().eval()

    def count(net: Transformer) -> int:
        calls.clear()
        net.run_tokens(tokens)
        return len(calls)

    net = make(config)
    with torch.no_grad():
        plain = net.run_tokens(tokens)
        assert count(net) == 3
        with net.capture("layers.1.mlp_in"):
            assert count(net) == 0
        with net.patch({"layers.*.mlp_out": lambda x: x}):
            assert torch.equal(net.run_tokens(tokens), plain)
            assert count(net) == 0
        handle = net.block(1).mlp_norm.register_forward_hook(lambda *_: None)
        assert count(net) == 2
        assert torch.equal(net.run_tokens(tokens), plain)
        handle.remove()
        assert count(make(replace(config, norm="layer"))) == 0
        assert count(make(replace(config, residual="parallel"))) == 0
        assert count(net) == 3
    assert count(net) == 0


SHORT = [(52, 52, False), (1, 17, False), (5, 52, False), (128, 128, False)]
SHORT += [(52, 52, True), (100, 100, True), (128, 128, True)]


@pytest.mark.parametrize(("queries", "keys", "is_causal"), SHORT)
@pytest.mark.parametrize(("heads", "kv", "width"), [(9, 3, 64), (4, 4, 32), (2, 1, 128)])
def test_short_attention(queries, keys, is_causal, heads, kv, width):
    from unmask.net import kernels

    q, k, v = draw(3, queries, heads, width), draw(3, keys, kv, width), draw(3, keys, kv, width)
    args = [x.transpose(1, 2) for x in (q, k, v)]
    with torch.no_grad():
        ours = kernels.attend(q, k, v, is_causal)
        torchs, exact = (
            F.scaled_dot_product_attention(
                *(x.to(dtype) for x in args), is_causal=is_causal, enable_gqa=True
            ).transpose(1, 2)
            for dtype in (torch.bfloat16, torch.float64)
        )
    assert_near(ours, torchs, exact)


@pytest.mark.parametrize("rows", [49153, 49152, 259])
def test_odd_heads(rows):
    head = Head(64, rows, bias=False, device="cuda", dtype=torch.bfloat16)
    x = draw(2, 9, 64)
    with torch.no_grad():
        head.weight.copy_(draw(rows, 64, seed=1))
        ours = head(x)
    assert ours.shape == (2, 9, rows)
    torch.testing.assert_close(ours, F.linear(x, head.weight), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("vocabulary", [259, 49153])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cross_entropy(vocabulary, dtype):
    """Losses and gradients, against float64; a sure target keeps its gradient."""
    x, head = draw(70, 64, dtype=dtype), draw(vocabulary, 64, dtype=dtype, seed=1)
    targets = torch.randint(0, vocabulary - 1, (70,), device="cuda")
    x[0] = 4 * head[targets[0]]
    weights = draw(70, dtype=torch.float32, seed=2).abs()
    found = {}
    for kind in (dtype, torch.float64):
        inputs = [each.detach().to(kind, copy=True).requires_grad_() for each in (x, head)]
        loss, nll = weighted_cross_entropy(*inputs, targets, weights, vocabulary - 1, chunk=32)
        loss.backward()
        found[kind] = [nll, *(each.grad for each in inputs)]
    digits = 1e-5 if dtype == torch.float32 else 2e-2
    for ours, exact in zip(found[dtype], found[torch.float64], strict=True):
        assert (ours.double() - exact).norm() <= digits * exact.norm()


@pytest.mark.parametrize("guidance", [0.0, 0.8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_softmax(guidance, dtype):
    """Of rows with room behind them, guided or not, without what is banned."""
    from unmask.net import kernels

    logits = 5 * draw(12, 5000, dtype=dtype)[:, :4999]
    banned = torch.zeros(4999, dtype=torch.uint8, device="cuda")
    banned[[7, 4998]] = 1
    mixed = logits.float()
    if guidance:
        mixed = torch.lerp(mixed[6:], mixed[:6], 1 + guidance)
    exact = mixed.masked_fill(banned.bool(), -torch.inf).log_softmax(-1, dtype=torch.float64)
    with torch.no_grad():
        ours = kernels.fused_log_softmax(logits, banned, guidance)
        totals = kernels.logsumexp(logits, banned)
    assert torch.equal(ours == -torch.inf, exact == -torch.inf)
    seen = ~banned.bool()
    # Guided logits are mixed in float32, in another order of operations.
    torch.testing.assert_close(
        ours[:, seen], exact[:, seen], rtol=0, atol=2e-5 if guidance else 1e-12
    )
    expected = logits.double().masked_fill(banned.bool(), -torch.inf).logsumexp(-1)
    torch.testing.assert_close(totals, expected, rtol=1e-13, atol=0)
