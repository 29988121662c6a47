"""The closed forms agree with the network itself and with torch's own counter."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from unmask.net.counts import count_cache_bytes, count_flops, count_parameters, count_weight_bytes
from unmask.net.presets import preset, preset_names
from unmask.net.transformer import Transformer

SIZES = [name for name in preset_names() if name.endswith("M")]


def test_there_are_thirty_sizes():
    assert len(SIZES) == 30


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", preset_names())
def test_parameters(name, causal):
    config = preset(name, causal=causal)
    with torch.device("meta"):
        net = Transformer(config, seed=None)
    assert count_parameters(config).total == sum(p.numel() for p in net.parameters())
    in_layers = sum(p.numel() for p in net.layers.parameters())
    assert count_parameters(config).layers == in_layers


@pytest.mark.parametrize("name", SIZES)
def test_smdm_names_count_the_layers(name):
    assert count_parameters(preset(name)).layers / 1e6 == pytest.approx(int(name[:-1]), rel=0.05)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["tiny", "tiny-grouped", "tiny-gpt2", "tiny-pythia", "6M"])
@pytest.mark.parametrize("chosen", [None, 3])
def test_flops(name, causal, chosen):
    config = preset(name, causal=causal)
    with torch.device("meta"):
        net = Transformer(config, seed=None)
        tokens = torch.zeros(2, 40, dtype=torch.long)
        at = None if chosen is None else torch.arange(chosen)
        counter = FlopCounterMode(display=False)
        with counter, torch.no_grad():
            net(tokens, at=at)
    assert 2 * count_flops(config, 40, chosen) == counter.get_total_flops()


def test_bytes():
    config = preset("tiny-grouped", causal=True)
    net = Transformer(config)
    held = sum(p.numel() * p.element_size() for p in net.parameters())
    assert count_weight_bytes(config, 4) == held
    cache = net.new_cache(3, 50)
    assert count_cache_bytes(config, 3, 50, 4) == 4 * (cache.keys.numel() + cache.values.numel())
