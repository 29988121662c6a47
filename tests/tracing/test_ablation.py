"""Zeros and means in place of states, against whole runs that are patched by name."""

from dataclasses import replace

import pytest
import torch

import unmask
from tests.tracing.plain import read
from tests.tracing.test_steps import recalled
from unmask.base.config import SettingsError
from unmask.tracing.record import average_states
from unmask.tracing.settings import Tracing
from unmask.tracing.windows import window_of


@pytest.mark.parametrize("mode", ["zero", "mean"])
def test_zero_and_mean_ablation_equal_patched_runs(taught, facts, mode):
    """At one position, in windows, of heads, and with means of other texts."""
    clean = recalled(taught, facts)
    state, answer, net = clean.state_at(1), clean.open_at(1), taught.net
    texts = [taught.tokenizer.encode(fact.text).ids for fact in facts[:3]]
    means = average_states(taught, texts)
    settings = Tracing(mode=mode, parts=("resid", "mlp", "attn", "attn_z"), corruption="mean")
    grid = unmask.trace_tokens(
        *(taught, state, clean.subject, answer, settings),
        window=2,
        means=means,
        prompt_length=clean.prompt_length,
    )
    sites = {"resid": "resid_out", "mlp": "mlp_out", "attn": "attn_out", "attn_z": "attn_z"}
    kept = []
    for ids in texts:
        with net.capture("layers.*") as states:
            net(torch.tensor([ids]))
        kept.append(states)
    row = state[None, : max(taught.row_of(at) for at in answer) + 1 if net.config.causal else None]
    at = clean.subject[0]

    def put(name, is_head):
        every = torch.cat([each[name][0] for each in kept])
        value = torch.zeros_like(every[0]) if mode == "zero" else every.mean(0)

        def act(x):
            x = x.clone()
            where = (0, at, 1) if is_head else (0, at)
            x[where] = value[1] if is_head else value
            return x

        return act

    for part, site in sites.items():
        for layer in range(net.config.layers):
            low, high = window_of(layer, 2 if part in ("mlp", "attn") else 1, net.config.layers)

            names = [f"layers.{each}.{site}" for each in range(low, high)]
            with net.patch({name: put(name, part == "attn_z") for name in names}):
                expected = read(taught, row, answer)
            values = grid.values(part, "p")[at, layer]
            value = values[1] if part == "attn_z" else values
            torch.testing.assert_close(value, expected, atol=1e-6, rtol=1e-4)
    effects = grid.effects("resid")
    torch.testing.assert_close(effects, grid.clean_value() - grid.values("resid").mean(-1))
    own = unmask.trace_tokens(
        *(taught, state, clean.subject, answer, replace(settings, mode="mean", parts=("resid",))),
        prompt_length=clean.prompt_length,
    )
    assert not torch.equal(own.values("resid"), grid.values("resid"))
    with pytest.raises(SettingsError, match="not for the parts attn_q"):
        replace(settings, parts=("attn_k",))
