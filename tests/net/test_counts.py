"""Parameters are those that papers and model cards name; operations those that torch counts."""

from math import inf, nan

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from unmask import NetConfig, preset
from unmask.base.config import SettingsError, build
from unmask.net.counts import (
    count_cache_bytes,
    count_flops,
    count_parameters,
    count_weight_bytes,
    list_matrices,
)
from unmask.net.presets import preset_names
from unmask.net.transformer import Transformer

SIZES = [name for name in preset_names() if name.endswith("M")]


PUBLISHED = {
    "GPT-2": ("tiny-gpt2", 50257, 768, 12, 12, 3072, 1024, 124_439_808),
    "Llama 2 7B": ("tiny", 32000, 4096, 32, 32, 11008, 4096, 6_738_415_616),
    "Qwen2.5 0.5B": ("tiny-grouped", 151936, 896, 24, 14, 4864, 32768, 494_032_768),
    "Pythia 70M": ("tiny-pythia", 50304, 512, 6, 8, 2048, 2048, 70_426_624),
}
"""A preset, what is changed of it, and how many parameters the network is known to have."""
SHAPE = ("vocab_size", "width", "layers", "heads", "mlp_width", "context")


def make(name: str) -> NetConfig:
    kind, *sizes, _ = PUBLISHED[name]
    return preset(kind, **dict(zip(SHAPE, sizes, strict=True)))


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters(name):
    assert count_parameters(make(name)).total == PUBLISHED[name][-1]


def test_parts_of_the_parameters():
    """Pythia's paper counts 18,915,328 without embedding and head; the rest is these two."""
    parts = count_parameters(make("Pythia 70M"))
    assert parts.layers + parts.final_norm == 18_915_328
    assert parts.embedding == parts.head == 50304 * 512 and parts.positions == 0
    tied = count_parameters(preset("tiny-gpt2"))
    assert (tied.head, tied.positions, tied.embedding) == (0, 128 * 64, 512 * 64)
    more = count_parameters(preset("tiny", time=True, latent_width=8))
    plain = count_parameters(preset("tiny"))
    assert more.total - plain.total == more.conditioning > 0 == plain.conditioning


def test_matrices_of_a_layer():
    """Queries to values, out, gate, up and down; a block's other parameters are its vectors."""
    shapes = list_matrices(preset("tiny-grouped"))
    assert shapes == ((128, 64), (64, 64), (160, 64), (160, 64), (64, 160))
    block = count_parameters(preset("tiny", layers=1)).layers
    assert block == sum(rows * columns for rows, columns in list_matrices(preset("tiny"))) + 2 * 64


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


GOOD = {"vocab_size": 64, "width": 32, "layers": 2, "heads": 4, "mlp_width": 64}


def test_all_problems_at_once():
    wrong = {"vocab_size": "many", "widht": 32, "layers": 2, "heads": True, "norm": "batch"}
    with pytest.raises(SettingsError) as caught:
        build(NetConfig, wrong, "config.json")
    message = str(caught.value)
    assert message.startswith("config.json: ")
    assert "unknown key 'widht' (did you mean 'width'?)" in message
    assert "'vocab_size' is 'many', expected an integer" in message
    assert "'heads' is True, expected an integer" in message
    assert "'norm' is 'batch', expected one of 'rms', 'layer'" in message
    assert "'mlp_width' is missing" in message
    assert len(caught.value.problems) == 6


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"width": 30}, "'width' 30 is not a multiple of 'heads' 4"),
        ({"kv_heads": 3}, "'kv_heads' 3 does not divide 'heads' 4"),
        ({"head_width": 7}, "'rotary_share' 1 of the head width 7 is 7"),
        ({"rotary_share": 0.4}, "'rotary_share' 0.4 of the head width 8 is 3"),
        ({"rotary_share": 0.1}, "'rotary_share' 0.1 of the head width 8 is 0"),
        ({"rotary_share": nan}, "'rotary_share' is nan, expected a number above 0 and at most 1"),
        ({"num_logits": 65}, "'num_logits' 65 is not in 1..vocab_size (64)"),
        ({"tied": True, "num_logits": 63}, "a tied head has one row per token"),
        ({"layers": 0}, "'layers' is 0, expected at least 1"),
        ({"norm_eps": 0}, "'norm_eps' is 0.0, expected a finite number above 0"),
        ({"kv_heads": 0}, "'kv_heads' is 0, expected at least 1"),
        (
            {"rotary_base": nan, "norm_eps": inf, "head_width": -8, "latent_width": -1},
            "'norm_eps' is inf, expected a finite number above 0; "
            "'rotary_base' is nan, expected a finite number above 0; "
            "'head_width' is -8, expected at least 1; 'latent_width' is -1, expected at least 1",
        ),
    ],
)
def test_shapes_that_do_not_fit(change, said):
    with pytest.raises(SettingsError) as caught:
        build(NetConfig, GOOD | change, "config.json")
    assert said in str(caught.value)


def test_preset_with_changes():
    config = preset("19M", causal=True, context=64)
    assert (config.vocab_size, config.context, config.causal) == (32_000, 64, True)
    assert preset("19M").vocab_size == 32_001
