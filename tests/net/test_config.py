"""Settings of a network: wrong ones are told all at once, in sentences."""

from math import inf, nan

import pytest

from unmask import NetConfig, UserError, preset
from unmask.base.config import SettingsError, build

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


def test_unknown_preset():
    with pytest.raises(UserError, match=r"'1024M' is unknown: did you mean .*'1028M'"):
        preset("1024M")


def test_preset_with_changes():
    config = preset("19M", causal=True, context=64)
    assert (config.vocab_size, config.context, config.causal) == (32_000, 64, True)
    assert preset("19M").vocab_size == 32_001
