"""The lens and the probes against plain forward passes and planted answers."""

import numpy as np
import pytest
import torch

from tests.conftest import KINDS
from tests.representation.facts import make_fact, make_facts, make_model
from unmask import UserError
from unmask.representation.lens import look_through
from unmask.representation.probes import check_probes, collect_streams, fit_and_say, probe
from unmask.representation.settings import Extraction
from unmask.representation.states import lay_out_case


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_the_lens_ends_at_what_the_model_says(name, kind):
    model = make_model(name, kind)
    facts = make_facts()[:3]
    rows = list(look_through(model, facts, steps=2, length=32))
    moments = 1 if kind == "causal" else 2
    assert len(rows) == 3 * moments * 4
    settings = Extraction(revealed=(0.0, 0.5)[:moments], length=32)
    for i, fact in enumerate(facts):
        for step, row in enumerate(lay_out_case(model, fact, ("",), settings).rows, start=1):
            wanted = (fact.fact_id, fact.direction, step, 3)
            names = ("fact", "direction", "step", "layer")
            last = next(r for r in rows if tuple(r[name] for name in names) == wanted)
            logits = model.net(torch.tensor([row.tokens]))[0, row.reads].double()
            if model.mask_id is not None:
                logits[:, model.mask_id] = -torch.inf
            logp = logits.log_softmax(-1)
            said = logp[range(len(row.targets)), row.targets]
            assert last["logp"] == pytest.approx(float(said.mean()), rel=1e-4), i
            rank = 1 + (logp > said[:, None]).sum(-1).double().mean()
            assert last["rank"] == pytest.approx(float(rank))


def test_streams_are_those_of_the_subject():
    model = make_model()
    facts = make_facts()[:3]
    streams = collect_streams(model, facts, length=32)
    for fact, found in zip(facts, streams, strict=True):
        row = lay_out_case(model, fact, ("",), Extraction(length=32)).rows[0]
        with model.net.capture("layers.*.resid_out") as taken:
            model.net(torch.tensor([row.tokens]))
        plain = np.stack([x[0, row.place].numpy() for x in taken.values()])
        np.testing.assert_allclose(found, plain, atol=1e-4)


def test_probes_find_planted_concepts_and_nothing_else():
    generator = np.random.default_rng(0)
    concepts = generator.normal(size=(8, 20))
    labels = np.repeat(np.arange(8), 6)
    noisy = concepts[labels] + 0.3 * generator.normal(size=(48, 20))
    moved = concepts[labels] + 0.3 * generator.normal(size=(48, 20)) + 5.0
    assert (fit_and_say(noisy, labels, moved) == labels).mean() > 0.95
    strangers = generator.normal(size=(48, 20))
    assert (fit_and_say(noisy, labels, strangers) == labels).mean() < 0.4


def test_probes_are_judged_on_phrasings_held_out():
    """Random networks keep the subject's token, and probes find it; names are no descriptions."""
    model = make_model()
    facts = [make_fact(i, way, p) for i in range(5) for way in ("p2d", "d2p") for p in range(3)]
    rows = list(probe(model, "own", facts, length=32))
    assert len(rows) == 4 * 4
    first = {(r["fitted"], r["tested"]): r for r in rows if r["layer"] == 0}
    assert first["p2d", "p2d"]["accuracy"] == 1.0 and first["p2d", "p2d"]["p"] < 0.05
    assert first["p2d", "d2p"]["accuracy"] < 1.0
    assert all(row["prompts"] == 5 and row["facts"] == 5 for row in rows)
    with pytest.raises(UserError, match="probes need at least 2 facts in 3 phrasings"):
        list(probe(model, "own", facts[:2]))


def test_probes_need_phrasings_in_every_direction():
    facts = [make_fact(i, way, p) for i in range(3) for way in ("p2d", "d2p") for p in range(3)]
    check_probes({"own": facts})
    without = [fact for fact in facts if (fact.direction, fact.phrasing) != ("d2p", 2)]
    with pytest.raises(UserError, match="hold out the phrasings 2 .* asked d2p has only 0, 1: ask"):
        check_probes({"own": without})
    alone = [fact for fact in facts if fact.direction == "p2d" or fact.phrasing == 2]
    with pytest.raises(UserError, match="asked d2p has only 2: ask"):
        check_probes({"own": alone})
