"""The lens and the probes against plain forward passes and planted answers."""

import numpy as np
import pytest
import torch

from tests.conftest import KINDS
from tests.representation.facts import PREFIXES, make_fact, make_facts, make_model
from unmask import UserError
from unmask.representation.keys import find_keys, read_bare
from unmask.representation.patched import lay_out_prompt
from unmask.representation.prompts import lay_out_case
from unmask.representation.readout import (
    can_probe,
    collect_streams,
    fit_and_predict,
    list_readings,
    probe,
    read_facts_by_layer,
)
from unmask.representation.settings import Extraction


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_the_lens_ends_at_what_the_model_says(name, kind):
    model = make_model(name, kind)
    facts = make_facts()[:3]
    looked = list(read_facts_by_layer(model, facts, steps=2, length=32))
    moments = 1 if kind == "causal" else 2
    assert [len(rows) for rows in looked] == [moments * 4] * 3
    settings = Extraction(revealed=(0.0, 0.5)[:moments], length=32)
    for fact, rows in zip(facts, looked, strict=True):
        for step, row in enumerate(lay_out_case(model, fact, ("",), settings).rows, start=1):
            (last,) = (line for line in rows if (line["step"], line["layer"]) == (step, 3))
            logits = model.net(torch.tensor([row.tokens]))[0, row.reads].double()
            if model.mask_id is not None:
                logits[:, model.mask_id] = -torch.inf
            logp = logits.log_softmax(-1)
            target_logp = logp[range(len(row.targets)), row.targets]
            assert last["logp"] == pytest.approx(float(target_logp.mean()), rel=1e-4)
            rank = 1 + (logp > target_logp[:, None]).sum(-1).double().mean()
            assert last["rank"] == pytest.approx(float(rank))


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_streams_are_those_of_the_subject_with_masks_and_without(name, kind):
    """Without, they are those of a canvas whose prompt rows read no mask; causal ones never do."""
    model, facts = make_model(name, kind), make_facts()[:4]
    canvas, bare = (collect_streams(model, facts, 32, reading) for reading in ("canvas", "prompt"))
    is_causal = kind == "causal"
    assert set(list_readings(model)) == {"canvas", "subject"} | (set() if is_causal else {"prompt"})
    # Subjects of a few tokens may be out of reach of masks where attention is local.
    is_far = np.abs(canvas[:, 1:] - bare[:, 1:]).max() > 1e-3
    assert is_far != is_causal or name == "tiny-blocks"
    np.testing.assert_allclose(canvas[:, 0], bare[:, 0], atol=1e-4 * is_causal)
    for fact, *states in zip(facts, canvas, bare, strict=True):
        row = lay_out_case(model, fact, ("",), Extraction(length=32)).rows[0]
        is_given = torch.arange(len(row.tokens)) < row.prompt_length
        cut = None if is_causal else ~is_given[:, None] | is_given
        for found, sees in zip(states, (None, cut), strict=True):
            with model.net.capture("layers.0.resid_in", "layers.*.resid_out") as taken:
                model.net.run_layers(model.net.embed(torch.tensor([row.tokens])), sees=sees)
            plain = np.stack([x[0, row.position].detach().numpy() for x in taken.values()])
            np.testing.assert_allclose(found, plain, atol=1e-4)


def test_a_subject_alone_is_the_same_in_every_phrasing():
    model = make_model()
    pair = [make_fact(1, "d2p", phrasing) for phrasing in (0, 1)]
    one, other = collect_streams(model, pair, reading="subject")
    np.testing.assert_array_equal(one, other)
    ids = lay_out_prompt(model, pair[0], []).tokens
    begin, end = lay_out_prompt(model, pair[0], []).subject
    with model.net.capture("layers.3.resid_out") as taken:
        model.net(torch.tensor([ids[begin:end]]))
    np.testing.assert_allclose(one[-1], taken["layers.3.resid_out"][0, -1].numpy(), atol=1e-4)


def test_keys_without_masks_are_those_with_all_reading_of_masks_cut():
    model, twin = make_model(), make_model(kind="causal")
    for each in (model, twin):
        case = lay_out_case(each, make_fact(0, "p2d"), PREFIXES, Extraction(length=32))
        ((key, mapped, v0),) = read_bare(each, [case], 2)
        keys = []
        for i, row in enumerate(case.rows):
            is_given = torch.arange(len(row.tokens)) < row.prompt_length
            sees = ~is_given[:, None] | is_given
            sites = ("layers.2.mlp_key", "layers.2.mlp_out")
            with torch.no_grad(), each.net.capture(*sites) as taken:
                embedded = each.net.embed(torch.tensor([row.tokens]))
                each.net.run_layers(embedded, sees=None if each is twin else sees)
            keys.append(taken[sites[0]][0, row.position])
            if i == 0:
                torch.testing.assert_close(v0, taken[sites[1]][0, row.position], atol=1e-4, rtol=0)
        torch.testing.assert_close(key, torch.stack(keys).mean(0), atol=1e-4, rtol=0)
        assert mapped.shape == v0.shape
    (plain,) = find_keys(twin, [case], 2)
    torch.testing.assert_close(plain.k_star, key, atol=1e-4, rtol=0)


def test_probes_find_planted_concepts_and_nothing_else():
    generator = np.random.default_rng(0)
    concepts = generator.normal(size=(8, 20))
    labels = np.repeat(np.arange(8), 6)
    noisy = concepts[labels] + 0.3 * generator.normal(size=(48, 20))
    moved = concepts[labels] + 0.3 * generator.normal(size=(48, 20)) + 5.0
    assert (fit_and_predict(noisy, labels, moved) == labels).mean() > 0.95
    strangers = generator.normal(size=(48, 20))
    assert (fit_and_predict(noisy, labels, strangers) == labels).mean() < 0.4


def test_probes_are_tested_on_phrasings_held_out():
    """Random networks keep the subject's token, and probes find it; names are no descriptions."""
    model = make_model()
    facts = [make_fact(i, way, p) for i in range(5) for way in ("p2d", "d2p") for p in range(3)]
    rows = list(probe(model, facts, length=32))
    # Layers, pairs of directions, facts; of three phrasings the last is held out.
    assert len(rows) == 5 * 4 * 5 and {row["phrasing"] for row in rows} == {2}
    assert {row["layer"] for row in rows} == {-1, 0, 1, 2, 3}
    first = [row for row in rows if row["layer"] == 0 and row["fitted"] == "p2d"]
    within, across = (
        [row["predicted"] == row["fact"] for row in first if row["tested"] == way]
        for way in ("p2d", "d2p")
    )
    assert all(within) and not all(across)
    with pytest.raises(UserError, match="probes need at least 2 facts in 3 phrasings in each"):
        list(probe(model, facts[:2]))


def test_probes_need_phrasings_in_every_direction():
    facts = [make_fact(i, way, p) for i in range(3) for way in ("p2d", "d2p") for p in range(3)]
    assert can_probe(facts)
    assert not can_probe([f for f in facts if (f.direction, f.phrasing) != ("d2p", 2)])
    assert not can_probe([f for f in facts if f.direction == "p2d" or f.phrasing == 2])
    assert not can_probe([f for f in facts if f.fact_id == "fact-0"])
