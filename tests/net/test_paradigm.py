"""How models of each kind are read: every question has an answer, and networks behave like it."""

from contextlib import nullcontext
from dataclasses import replace
from types import MappingProxyType

import pytest
import torch

from tests.conftest import build, make_model
from unmask import UserError
from unmask.net.model import Blueprint, Model
from unmask.net.paradigm import Paradigm, find_unknown, get_paradigm, list_kinds
from unmask.noise.masked import Masked
from unmask.noise.processes import PROCESSES
from unmask.noise.settings import NoiseConfig
from unmask.noise.uniform import Uniform


def make(kind: str) -> Model:
    more = {"time": True, "latent_width": 4} if kind == "gaussian" else {}
    return build(kind=kind, **more)


@pytest.mark.parametrize("kind", [kind for kind in list_kinds() if kind != "gaussian"])
def test_networks_see_what_is_said_of_them(kind, tokens):
    model = make(kind)
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 500
    same = (model.logits(tokens) == model.logits(changed)).flatten(2).all(-1)[:, :-1]
    assert bool(same.all()) != model.paradigm.sees_later


@pytest.mark.parametrize("kind", ["masked", "causal"])
def test_rows_of_a_group_can_share_a_batch(kind, tokens):
    """Filled up to one length, each row of a group has the logits that it has alone."""
    model = make(kind)
    rows = [tokens[0, :7], tokens[1], tokens[2, :7], tokens[3, :4]]
    groups = model.paradigm.group_rows([len(row) for row in rows])
    assert groups == ([[0, 1, 2, 3]] if kind == "causal" else [[0, 2], [1], [3]])
    for group in groups:
        filled = torch.zeros(len(group), max(len(rows[i]) for i in group), dtype=torch.long)
        for row, i in zip(filled, group, strict=True):
            row[: len(rows[i])] = rows[i]
        for logits, i in zip(model.logits(filled), group, strict=True):
            alone = model.logits(rows[i][None])[0]
            torch.testing.assert_close(logits[: len(rows[i])], alone, rtol=1e-4, atol=1e-4)


def test_the_row_that_predicts_a_position():
    for kind in ("masked", "uniform", "hybrid", "gaussian"):
        assert [make(kind).row_of(position) for position in (0, 1, 5)] == [0, 1, 5]
    assert [make("shifted").row_of(position) for position in (0, 1, 5)] == [0, 0, 4]
    assert [make("causal").row_of(position) for position in (1, 5)] == [0, 4]
    with pytest.raises(UserError, match="does not predict position 0"):
        make("causal").row_of(0)


@pytest.mark.parametrize("kind", list_kinds())
def test_what_is_not_scored_says_so(kind):
    paradigm = get_paradigm(kind)
    assert paradigm.is_scored == (kind in ("masked", "causal"))
    said = f"^it is a {kind} model: recall is measured for masked and causal models"
    with nullcontext() if paradigm.is_scored else pytest.raises(UserError, match=said):
        paradigm.require_scored("it", "recall is measured")


def test_a_noise_of_ones_own_is_sampled_but_not_scored(monkeypatch):
    monkeypatch.setattr(PROCESSES, "_given", {"own": Uniform})
    assert type(get_paradigm("own")) is Paradigm and not get_paradigm("own").is_scored
    assert get_paradigm("own").sampler == "ancestral" and list(find_unknown("own")) == []
    PROCESSES.remove("own")
    assert list(find_unknown("own")) == [
        "'kind' is 'own', expected one of masked, uniform, hybrid, gaussian, causal"
    ]
    with pytest.raises(UserError, match="noise 'own' is unknown"):
        get_paradigm("own")


def test_masked_noise_of_ones_own_is_scored_and_has_its_own_bound(monkeypatch):
    class Slow(Masked):
        def corrupt(self, x0, t, streams):
            return super().corrupt(x0, t**2, streams)

    class Named(Masked):
        settings = MappingProxyType({"power": 2})

    monkeypatch.setattr(PROCESSES, "_given", {"slow": Slow, "named": Named})
    slow, named = map(get_paradigm, ("slow", "named"))
    assert slow.is_scored and slow.fills_masks and slow.objectives == ("bound",)
    assert not slow.masks_evenly and named.masks_evenly and "smdm" in named.objectives
    with pytest.raises(UserError, match="define its posterior"):
        Slow(3, 3).posterior(torch.zeros(1, 1, 3), torch.tensor([[3]]), *torch.rand(2, 1, 1))
    settings = replace(
        make_model().blueprint, kind="named", noise=NoiseConfig(settings={"power": 3})
    )
    assert settings.paradigm.is_scored
    with pytest.raises(UserError, match="'noise.settings' has 'power', which slow noise does not"):
        replace(settings, kind="slow")


def test_a_blueprint_fits_its_network():
    causal, masked = make_model(causal=True).blueprint.config, make_model().blueprint.config
    for config, kind, said in (
        (causal, "masked", "'masked', but the network sees only earlier tokens"),
        (masked, "causal", "'causal', but the network sees both directions"),
        (masked, "hybrid", "a hybrid model needs a mask id"),
        (masked, "other", "'kind' is 'other', expected one of masked"),
    ):
        with pytest.raises(UserError, match=said):
            Blueprint(config, kind, 1 if kind == "masked" else None)
