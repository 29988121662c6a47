"""Errors that are planted and mended: against networks that know the text, or nothing."""

from dataclasses import replace

import pyarrow
import pytest
import torch

from tests.conftest import lively, make_model, make_noised
from unmask.base.errors import UserError
from unmask.base.streams import RowStreams
from unmask.blocks import tidy
from unmask.data.tokenizer import Tokenizer
from unmask.experiments.mending.measure import MEASURE as MENDING
from unmask.experiments.mending.menders import MENDERS, list_menders, mend, plant_errors
from unmask.net.model import Blueprint, Model
from unmask.noise.settings import NoiseConfig


def test_errors_are_planted_exactly():
    clean = torch.randint(0, 50, (4, 41), generator=torch.Generator().manual_seed(0))
    planted = plant_errors(clean, 0.1, 50, seed=1)
    assert planted.wrong.sum(-1).tolist() == [4] * 4 and not planted.wrong[:, 0].any()
    assert torch.equal(planted.tokens != clean, planted.wrong)
    assert int(planted.tokens.max()) < 50
    # No error is the mask, wherever it stands; the draws are those of its place at the end.
    for mask in (0, 20, 50):
        moved = clean + (clean >= mask).long()
        others = plant_errors(moved, 0.1, 51, mask, seed=1)
        assert torch.equal(others.tokens, planted.tokens + (planted.tokens >= mask).long())
    # A right token is left to be damaged, however large the share.
    assert plant_errors(clean[:, :8], 0.99, 50).wrong.sum(-1).tolist() == [6] * 4


def knows(model, token):
    """The model with logits that are sure of these tokens, whatever it reads."""
    sure = 50.0 * torch.nn.functional.one_hot(token, model.net.config.logit_rows)
    return model.net.patch({"logits": lambda x: sure.expand(x.shape).to(x.dtype)})


def test_a_way_that_changes_everything_finds_nothing():
    """The first token is fixed: counted as a right one that was spared, it made this selective."""
    model, tokens = make_model(), torch.randint(0, 100, (3, 16))
    planted = plant_errors(tokens, 0.2, 100)
    with knows(model, torch.tensor(150)):
        for each in mend(model, planted, "remask evenly", 4, 0.2):
            assert (each["found"], each["damaged"], each["selective"]) == (1.0, 1.0, 0.0)
        for way in list_menders(model.paradigm):  # twice as many as errors: more than there are
            ended = MENDERS[way](model, tokens, 2, 0.6, RowStreams.make(0, 3))
            assert torch.equal(ended[:, 0], tokens[:, 0]), way


@pytest.mark.parametrize("kind", ["masked", "uniform", "hybrid"])
def test_who_knows_the_text_mends_all_and_damages_nothing(kind):
    model = make_model() if kind == "masked" else make_noised(kind)
    row = torch.randint(0, 200, (1, 24), generator=torch.Generator().manual_seed(3))
    planted = plant_errors(row.expand(3, -1), 0.2, 200)
    with knows(model, row):
        for way in list_menders(model.paradigm):
            for each in mend(model, planted, way, 8, 0.2):
                if way == "remask unlikely":  # half the calls look: not all need be found
                    assert each["mended"] > 0.5
                else:
                    assert each["found"] == each["mended"] == 1.0
                assert each["damaged"] == 0.0 and each["selective"] == each["found"]


def test_menders_tell_the_network_the_time_at_which_as_many_are_masked(monkeypatch):
    """Under a schedule that is not linear, this is another number than their share."""
    plain = make_model()
    config = replace(plain.net.config, time=True)
    blueprint = Blueprint(config, "masked", plain.mask_id, noise=NoiseConfig(schedule="cosine"))
    model, read, logits = (
        Model("timed", lively(config), blueprint, plain.tokenizer),
        [],
        Model.logits,
    )

    def note(model, tokens, t):
        read.append((tokens.eq(model.mask_id).double().mean(-1), t))
        return logits(model, tokens, t=t)

    monkeypatch.setattr(Model, "logits", note)
    tokens = torch.randint(0, 39, (2, 16), generator=torch.Generator().manual_seed(3))
    MENDERS["remask evenly"](model, tokens, 2, 0.1, RowStreams.make(0, 2))
    for share, t in read:
        assert torch.allclose(model.make_process().schedule.noised(t), share)
        assert ((t - share).abs() > 0.1).all()
    assert len(read) == 2


def test_each_way_takes_its_calls(monkeypatch):
    """Equal network calls: what is compared costs what it says."""
    for kind in ("masked", "uniform"):
        model = make_model() if kind == "masked" else make_noised(kind)
        calls = []
        tokens = torch.randint(0, 39, (2, 16), generator=torch.Generator().manual_seed(3))
        with (
            model.net.capture("logits") as _,
            model.net.patch({"logits": lambda x, calls=calls: (calls.append(1), x)[1]}),
        ):
            for way in list_menders(model.paradigm):
                calls.clear()
                MENDERS[way](model, tokens, 6, 0.1, RowStreams.make(0, 2))
                assert len(calls) == 6, way


def test_the_measure_of_mending(texts, monkeypatch):
    encoded, encode = [], Tokenizer.encode_documents
    monkeypatch.setattr(
        Tokenizer, "encode_documents", lambda *given: encoded.append(1) or encode(*given)
    )
    few = {"data": texts, "length": 12, "device": "cpu"}
    result = MENDING(make_model(), texts=3, shares=(0.2,), calls=(2, 4), **few)
    assert len(encoded) == 1  # not for each of the four parts
    means = result.summary["means"]
    ways = {(way, calls) for way in ("remask evenly", "remask unlikely") for calls in (2, 4)}
    assert {(row["way"], row["calls"]) for row in means} == ways
    assert all(0 <= row["mean"] <= 1 for row in means if row["metric"] != "selective")
    assert result.outcomes == ["too few"] * 4 and not result.summary["differences"]
    with pytest.raises(UserError, match="only masked, uniform and hybrid models can correct"):
        MENDING({"masked": make_model(), "causal": make_model(causal=True)}, texts=3, **few)
    with pytest.raises(UserError, match="expected 64"):
        MENDING(make_model(), **few)


def test_models_that_correct_in_the_same_way_are_compared_text_by_text():
    """Texts differ widely, the two models of each text by the same: the difference is certain."""
    found = {"ours": lambda i: 0.2 + 0.1 * i, "theirs": lambda i: 0.1 + 0.1 * i, "few": lambda i: 0}
    rows = [
        {"model": name, "kind": "hybrid", "seed": 0, "way": "walk again", "share": 0.1, "calls": 4}
        | {"fact": str(i), "found": get(i), "mended": 0.0, "damaged": 0.05}
        | {"selective": get(i) - 0.05}
        for name, get in found.items()
        for i in range(2 if name == "few" else 6)
    ]
    summary = MENDING.make_summary({"mending": pyarrow.Table.from_pylist(rows)}, MENDING.settings())
    differences = tidy.select(summary["differences"], metric="selective")
    found = [(row["model"], row["minus"], row["facts"], row["outcome"]) for row in differences]
    ours = ("ours", "theirs", 6, "above")
    assert found == [ours, ("ours", "few", 2, "too few"), ("theirs", "few", 2, "too few")]
    assert [differences[0][name] for name in tidy.ENDS] == pytest.approx([0.1] * 3)
    mended = tidy.select(summary["differences"], metric="mended")[0]
    assert mended["mean"] == 0 and mended["low"] < 0 < mended["high"]
    (own, *_) = tidy.select(summary["means"], metric="selective", model="ours")
    assert own["outcome"] == "above", "it changes errors more often than right tokens"
