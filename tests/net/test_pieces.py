"""A network cut over two devices computes what it computes on one, to the last bit."""

from collections.abc import Callable

import pytest
import torch

import unmask
from tests.conftest import build
from tests.editing.edits import make_edit
from tests.net.two_devices import AWAY, HOME, TwoDevices
from tests.representation.facts import PREFIXES, make_fact
from tests.representation.facts import make_model as make_small
from unmask import UserError
from unmask.net.model import Model
from unmask.net.pieces import is_cut, locate_layers
from unmask.net.placing import split_evenly, spread_layers
from unmask.net.transformer import Transformer

L = 12
FACT = make_fact(0, "p2d")
NETS = [
    ("tiny", False), ("tiny", True), ("tiny-pythia", False), ("tiny-blocks", False),
    ("tiny-bert", False), ("tiny-post", False), ("tiny-llada2", False),
]  # fmt: skip


def make(name: str, causal: bool) -> Model:
    return build(name, "causal" if causal else "masked", layers=4)


def cut(net: Transformer, mode: TwoDevices) -> None:
    """Send the last two layers to the other device; called inside the mode."""
    for layer in (2, 3):
        for parameter in net.block(layer).parameters():
            mode.send(parameter)
    locate_layers(net)
    assert [net.block(i).elsewhere for i in range(4)] == [None, None, AWAY, AWAY]


def run(model: Model) -> list[torch.Tensor]:
    return [model.logits(tokens(model))]


def tokens(model: Model) -> torch.Tensor:
    drawn = torch.randint(0, 500, (2, L), generator=torch.Generator().manual_seed(5))
    if model.mask_id is not None:
        drawn[:, 8:10] = model.mask_id
    return drawn


def sample(model: Model) -> list[torch.Tensor]:
    """A causal network's cache, and a diffusion network's canvas."""
    drawn = unmask.sample(model, [[1, 2, 3], [4, 5]], length=8, steps=4, seed=1, temperature=0.5)
    return [drawn.tokens, drawn.confidence]


def trace(model: Model) -> list[torch.Tensor]:
    ids, answer = tokens(model)[0].tolist(), {9: 7}
    grid = unmask.trace_tokens(model, ids, (2, 4), answer, window=2, corruption="mean")
    return [grid.logp[part] for part in grid.logp]


def patch(model: Model) -> list[torch.Tensor]:
    """Functions at sites see activations at home, wherever the layer is."""
    seen: list[torch.device] = []

    def halve(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.device)
        return x / 2

    sites = ("layers.3.attn_pattern", "layers.3.mlp_in", "layers.2.mlp_key", "layers.3.resid_out")
    with (
        model.net.patch(dict.fromkeys(sites, halve)),
        model.net.capture("layers.3.mlp_key") as kept,
    ):
        logits = model.logits(tokens(model))
    assert seen == [HOME] * 4
    return [logits, kept["layers.3.mlp_key"]]


def learn(model: Model) -> list[torch.Tensor]:
    """Gradients come home, too."""
    x = model.net.embed(tokens(model)).requires_grad_()
    (slope,) = torch.autograd.grad(model.net.unembed(model.net.run_layers(x))[0, 3, 7], x)
    return [slope]


@pytest.mark.parametrize(("name", "causal"), NETS)
@pytest.mark.parametrize("feature", [run, sample, trace, patch, learn])
def test_a_cut_network_is_the_same(
    feature: Callable[[Model], list[torch.Tensor]], name: str, causal: bool
):
    expected = feature(make(name, causal))
    model = make(name, causal)
    with TwoDevices() as mode:
        cut(model.net, mode)
        results = feature(model)
        assert mode.moves > 0
        assert all(result.device == HOME for result in results)
    for result, wanted in zip(results, expected, strict=True):
        assert torch.equal(result, wanted)


def find_value(model: Model) -> list[torch.Tensor]:
    return [unmask.extract_value(model, FACT, 1, prefixes=1, search_steps=2).v_star]


def find_key(model: Model) -> list[torch.Tensor]:
    return [unmask.extract_key(model, FACT, 3, prefixes=PREFIXES).k_star]


def knock_out(model: Model) -> list[torch.Tensor]:
    return [unmask.cut_edges(model, FACT, window=2, any_answer=True, length=24, steps=2).logp]


def edit(model: Model) -> list[torch.Tensor]:
    with make_edit(model, 1, 3).on(model):
        return [model.logits(tokens(model) % 300)]


@pytest.mark.parametrize("feature", [find_value, find_key, knock_out, edit])
def test_what_runs_parts_of_a_cut_network(feature: Callable[[Model], list[torch.Tensor]]):
    """Sums over copies may be rounded otherwise."""
    (expected,) = feature(make_small())
    model = make_small()
    with TwoDevices() as mode:
        cut(model.net, mode)
        (result,) = feature(model)
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-5)


def test_two_devices_do_not_mix():
    """The proof itself: a sum over both is noticed, and a move is one."""
    with TwoDevices() as mode:
        one, other = torch.ones(2), torch.ones(2).to(AWAY)
        assert (one.device, other.device, (other + 1).device) == (HOME, AWAY, AWAY)
        with pytest.raises(AssertionError, match="both devices"):
            one + other
        assert (one + other.to(HOME)).tolist() == [2.0, 2.0] and mode.moves == 2


def test_moving_the_network_makes_it_whole():
    model = make("tiny", False)
    with TwoDevices() as mode:
        cut(model.net, mode)
        assert is_cut(model.net)
    assert not is_cut(model.net.to("cpu"))


def test_loading_on_two_pieces(tmp_path):
    """Every layer is on the device that it was given, home has the ends."""
    model = make("tiny", False)
    unmask.save(model, tmp_path / "model")
    with TwoDevices():
        loaded = unmask.load(tmp_path / "model", device="cpu,cpu:1")
        places = [next(loaded.net.block(i).parameters()).device for i in range(4)]
        assert places == [HOME, HOME, AWAY, AWAY] and loaded.device == HOME
        logits = loaded.logits(tokens(model))
    assert torch.equal(logits, model.logits(tokens(model)))
    with pytest.raises(UserError, match="expected two or more, separated by commas"):
        unmask.load(tmp_path / "model", device="cpu,")


def test_layers_go_where_there_is_room():
    devices = [torch.device("cuda", 0), torch.device("cuda", 1), torch.device("cpu")]
    places = spread_layers([10] * 6, 5, devices, [32, 26, 100])  # of which 80 % may be taken
    assert places == [devices[0]] * 2 + [devices[1]] * 2 + [devices[2]] * 2
    assert split_evenly(5, devices[:2]) == [devices[0]] * 3 + [devices[1]] * 2


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "causal"), NETS)
def test_a_gpu_and_the_processor(tmp_path, name, causal):
    """Loaded on cuda:0 and the processor; logits, samples and traces are those of the processor."""
    model = make(name, causal)
    unmask.save(model, tmp_path / "model")
    loaded = unmask.load(tmp_path / "model", device="cuda:0,cpu", dtype="float32")
    assert is_cut(loaded.net) and loaded.device.type == "cuda"
    for feature in (run, trace):
        for result, wanted in zip(feature(loaded), feature(model), strict=True):
            torch.testing.assert_close(result.cpu(), wanted, atol=1e-3, rtol=1e-3)
    assert sample(loaded)[0].shape == sample(model)[0].shape
