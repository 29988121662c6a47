"""Networks replayed as CUDA graphs: the same numbers, and whatever is attached is called."""

import copy
import warnings

import pytest
import torch

import unmask
from unmask.net import fused, graphs
from unmask.net.blocks import Block, register_block
from unmask.net.config import NetConfig
from unmask.net.model import Blueprint, Model
from unmask.net.transformer import Transformer

pytestmark = pytest.mark.gpu
SMALL = {"vocab_size": 99, "width": 64, "layers": 4, "heads": 4, "mlp_width": 128, "context": 64}
PROMPTS = [[3, 5, 8], [13, 21, 34, 55], [1, 2]]


def make(kind: str = "masked", dtype=torch.bfloat16, **changes) -> Model:
    config = NetConfig(**SMALL | {"causal": kind == "causal"} | changes)
    with torch.device("cuda"):
        net = Transformer(config).to(dtype).eval().requires_grad_(False)
    return Model(kind, net, Blueprint(config, kind, 98 if kind == "masked" else None))


def write(model: Model) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = unmask.sample(model, PROMPTS, steps=8, length=24, guidance=0.5)
    return drawn.tokens, drawn.confidence


def assert_same(one, other) -> None:
    for ours, theirs in zip(one, other, strict=True):
        assert torch.equal(ours, theirs)


@pytest.fixture
def launched(monkeypatch):
    """A function that runs another one without any replay."""

    def run(call):
        with monkeypatch.context() as patched:
            patched.setattr(graphs, "MOST_FLOPS", 0.0)
            return call()

    return run


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_texts_are_the_same(dtype, launched):
    model = make(dtype=dtype)
    plain = launched(lambda: write(model))
    assert model.net.graphs.replays == 0
    assert_same(write(model), plain)
    assert model.net.graphs.replays > 0
    assert_same(write(model), plain)


def test_weights_may_change_and_move(launched):
    model = make()
    write(model)
    with torch.no_grad():
        model.net.layers[1].mlp.down.weight.mul_(-3)
    assert_same(write(model), launched(lambda: write(model)))
    model.net.float()
    assert_same(write(model), launched(lambda: write(model)))
    twin = copy.deepcopy(model.net)
    assert twin.graphs.replays == 0


@pytest.mark.parametrize("kind", ["masked", "causal"])
def test_longer_texts_may_come_in_between(kind, launched):
    """They need longer tables of positions; what was recorded reads the tables of then."""
    model = make(kind, torch.float32, context=512)
    short = torch.arange(24, device="cuda")[None]
    with torch.no_grad():
        plain = launched(lambda: model.logits(short))
        for _ in range(graphs.RUNS + 1):
            model.logits(short)
        replays = model.net.graphs.replays
        model.logits(torch.arange(400, device="cuda")[None] % 90)
        # Whatever was freed is written over.
        filled = [torch.full((64, 16), torch.nan, device="cuda") for _ in range(10_000)]
        assert_same([model.logits(short)], [plain])
    assert model.net.graphs.replays > replays > 0 and len(filled) == 10_000


def test_what_is_attached_is_called(launched):
    """Patches, captures, hooks and blocks of one's own are not replayed."""
    model = make()
    write(model)
    before, fired = model.net.graphs.replays, []

    def act(x):
        fired.append("patch")
        return 2 * x

    def patched():
        with model.net.patch({"layers.1.mlp_out": act}):
            return write(model)

    assert_same(patched(), launched(patched))
    assert len(fired) == 16 and model.net.graphs.replays == before
    with model.net.capture("layers.2.resid_out") as kept:
        write(model)
    assert kept["layers.2.resid_out"].shape == (6, 24, 64) and model.net.graphs.replays == before
    handle = model.net.layers[0].register_forward_hook(lambda *_: fired.append("hook"))
    write(model)
    handle.remove()
    assert fired.count("hook") == 8 and model.net.graphs.replays == before
    write(model)
    assert model.net.graphs.replays > before


class Chooser(Block):
    """What it does depends on the data."""

    def mlp_out(self, key):
        return super().mlp_out(key) * (2.0 if bool((key > 0).any()) else 1.0)


def test_blocks_of_ones_own_are_run():
    register_block("chooser of the replay tests", Chooser)
    model = make(residual="chooser of the replay tests")
    first = write(model)
    assert_same(write(model), first)
    assert model.net.graphs.replays == 0


@pytest.mark.parametrize("kind", ["masked", "causal"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [2, 4])
@pytest.mark.parametrize("least", [0, fused.LEAST])
def test_traces_are_the_same(kind, dtype, window, least, launched, monkeypatch):
    """With torch's kernels and with ours; windows that end inside of longer ones among them."""
    monkeypatch.setattr(fused, "LEAST", least)
    model = make(kind, dtype)
    tokens = torch.randint(0, 90, (20,), generator=torch.Generator().manual_seed(0))
    if kind == "masked":
        tokens[16:] = 98
    parts = ("resid", "mlp", "attn")

    def trace():
        answer = {16: 7, 17: 9} if kind == "masked" else {20: 7}
        return unmask.trace_tokens(model, tokens, (2, 5), answer, parts=parts, window=window)

    plain, ours = launched(trace), trace()
    again = trace()
    for part in parts:
        assert torch.equal(ours.effects(part), plain.effects(part))
        assert torch.equal(again.effects(part), plain.effects(part))


def test_a_step_asks_the_device_once():
    model = make()
    write(model)

    def count(steps: int) -> int:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                unmask.sample(model, PROMPTS, steps=steps, length=24, keep_states=False)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        return sum("synchroniz" in str(each.message) for each in said)

    count(4)
    assert count(16) - count(4) == 12
