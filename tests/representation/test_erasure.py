"""Least-squares concept erasure: its laws on drawn states, and what it does to a network."""

import numpy as np
import pytest
import torch

from tests.conftest import KINDS
from tests.representation.facts import PREFIXES, make_fact, make_facts, make_model
from unmask import Fact, UserError
from unmask.representation.erasure import (
    ask_erased,
    collect_labelled,
    compare_erasers,
    fit_eraser,
    make_random_eraser,
    permute_labels,
)
from unmask.representation.patched import EMBEDDINGS, lay_out_prompt
from unmask.representation.readout import fit_and_predict

CLASSES, WIDTH = 6, 24


def draw(seed=0, per_class=40, classes=CLASSES, signal=1.0):
    """States of some classes, in directions of very different variance."""
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), per_class)
    spread = np.geomspace(0.1, 10, WIDTH)
    states = signal * generator.normal(size=(classes, WIDTH))[labels]
    mixed = np.linalg.qr(generator.normal(size=(WIDTH, WIDTH)))[0]
    return (states + generator.normal(size=states.shape)) * spread @ mixed + 3.0, labels


def erase(eraser, states):
    return eraser(torch.from_numpy(states)).numpy()


def correlate(states, labels):
    """The largest covariance of standardised states with a label."""
    one_hot = np.eye(labels.max() + 1)[labels]
    centred = (states - states.mean(0)) / states.std()
    return np.abs(centred.T @ (one_hot - one_hot.mean(0)) / len(states)).max()


@pytest.mark.parametrize("shrinkage", [None, 0.0, 0.3, 1.0])
def test_no_line_sees_the_labels_afterwards(shrinkage):
    states, labels = draw()
    eraser = fit_eraser(states, labels, shrinkage)
    erased = erase(eraser, states)
    assert eraser.rank == CLASSES - 1
    assert correlate(states, labels) > 1e-2 and correlate(erased, labels) < 1e-12
    # Any convex loss is least for the prediction that sees nothing; least squares is one.
    fitted = np.linalg.lstsq(erased - erased.mean(0), np.eye(CLASSES)[labels] - 1 / CLASSES)[0]
    assert np.abs((erased - erased.mean(0)) @ fitted).max() < 1e-9
    assert (fit_and_predict(states, labels, states) == labels).mean() > 0.9
    assert (fit_and_predict(erased, labels, erased) == labels).mean() < 0.3
    np.testing.assert_allclose(erase(eraser, erased), erased, atol=1e-10)
    changed = ((erased - states) ** 2).sum(1).mean()
    assert eraser.removed == pytest.approx(changed)


def test_more_dimensions_than_states():
    states, labels = draw(per_class=3)
    assert len(states) < WIDTH
    for shrinkage in (0.0, None):
        assert correlate(erase(fit_eraser(states, labels, shrinkage), states), labels) < 1e-8


def test_states_that_say_nothing_are_left_alone():
    """Every class has the same states, so the same mean."""
    states, _ = draw(per_class=10, classes=4)
    labels = np.repeat([0, 1], len(states))
    eraser = fit_eraser(np.concatenate((states, states)), labels)
    assert eraser.rank == 0 and eraser.removed == 0
    x = torch.from_numpy(states)
    assert eraser(x) is x


def test_two_classes_in_closed_form():
    """Along Σ⁻¹δ is read, along the difference δ of the means is taken away."""
    states, labels = draw(classes=2)
    delta = states[labels == 1].mean(0) - states[labels == 0].mean(0)
    covariance = np.cov(states.T, bias=True)
    looked = np.linalg.solve(covariance, delta)
    expected = np.eye(WIDTH) - np.outer(delta, looked) / (looked @ delta)
    eraser = fit_eraser(states, labels, 0.0)
    projection = np.eye(WIDTH) - (eraser.outward @ eraser.inward).numpy()
    np.testing.assert_allclose(projection, expected, atol=1e-10)


def test_no_other_projection_changes_less():
    states, labels = draw(seed=1)
    eraser = fit_eraser(states, labels, 0.0)
    one_hot = np.eye(CLASSES)[labels]
    cross = (states - states.mean(0)).T @ (one_hot - one_hot.mean(0))
    basis = np.linalg.svd(cross, full_matrices=False)[0][:, : CLASSES - 1]
    centred = states - states.mean(0)
    # An orthogonal projection, and oblique ones with the same directions taken away.
    generator = np.random.default_rng(2)
    for oblique in (0.0, 0.01, 0.1):
        looked = basis + oblique * generator.normal(size=basis.shape)
        taken = centred @ looked @ np.linalg.inv(basis.T @ looked) @ basis.T
        assert correlate(states - taken, labels) < 1e-12
        assert (taken**2).sum(1).mean() > 1.01 * eraser.removed
    shrunk = fit_eraser(states, labels, 0.2)
    assert shrunk.removed > eraser.removed


def test_controls_are_alike_in_rank_and_variance():
    states, labels = draw()
    eraser = fit_eraser(states, labels)
    for seed in range(3):
        control = make_random_eraser(eraser, states, seed)
        assert control.rank == eraser.rank
        assert control.removed == pytest.approx(eraser.removed, rel=1e-9)
        changed = ((erase(control, states) - states) ** 2).sum(1).mean()
        assert changed == pytest.approx(eraser.removed)
        assert correlate(erase(control, states), labels) > 1e-3
    other = make_random_eraser(eraser, states, 1)
    assert not torch.allclose(other.inward, make_random_eraser(eraser, states, 2).inward)
    assert torch.equal(other.inward, make_random_eraser(eraser, states, 1).inward)
    # On other states, with less variance along these directions, it takes what the eraser takes.
    others = draw(seed=5)[0] / 4 - 2.0
    moved, control = eraser.recentre(others), make_random_eraser(eraser, others)
    np.testing.assert_allclose(erase(moved, others).mean(0), others.mean(0))
    changed = ((erase(moved, others) - others) ** 2).sum(1).mean()
    assert changed == pytest.approx(moved.removed) and changed != pytest.approx(eraser.removed)
    assert control.removed == pytest.approx(changed)

    permuted = permute_labels(labels)
    assert sorted(permuted) == sorted(labels) and list(permuted) != list(labels)
    control = fit_eraser(states, permuted)
    assert correlate(erase(control, states), labels) > 1e-2


def test_mistakes_are_sentences():
    states, labels = draw()
    with pytest.raises(UserError, match="one label"):
        fit_eraser(states, labels[:3])
    with pytest.raises(UserError, match="all states have one label"):
        fit_eraser(states, labels * 0)
    with pytest.raises(UserError, match="the shrinkage is 2"):
        fit_eraser(states, labels, 2)
    with pytest.raises(UserError, match="layer 9 was named"):
        ask_erased(make_model(), make_facts()[:1], {9: fit_eraser(states, labels)})


def fit_layers(model, facts):
    states, labels = collect_labelled(model, facts, PREFIXES, length=40)
    assert list(states) == list(range(model.net.config.layers))
    assert len(states[0]) == len(labels) == len(facts) * len(PREFIXES)
    return {layer: fit_eraser(each, labels) for layer, each in states.items()}


@pytest.mark.parametrize("kind", ["masked", "causal"])
def test_states_are_those_of_the_subject(kind):
    model, fact = make_model(kind=kind), make_fact(1, "d2p")
    (last, _), (every, labels) = (
        collect_labelled(model, [fact], PREFIXES[:2], [-1, 2], tokens, 40)
        for tokens in ("last", "all")
    )
    begin, end = lay_out_prompt(model, fact, []).subject
    assert labels == ["fact-1"] * 2 * (end - begin)
    tokens = lay_out_prompt(model, fact, []).tokens
    tokens += [] if kind == "causal" else [model.mask_id] * (40 - len(tokens))
    with model.net.capture("layers.0.resid_in", "layers.2.resid_out") as taken:
        model.net(torch.tensor([tokens]))
    for layer, site in ((-1, "layers.0.resid_in"), (2, "layers.2.resid_out")):
        expected = taken[site][0, begin:end].numpy()
        np.testing.assert_allclose(every[layer][: end - begin], expected, atol=1e-4)
        np.testing.assert_allclose(last[layer][0], expected[-1], atol=1e-4)
        assert not np.allclose(last[layer][1], expected[-1], atol=1e-3) or layer == -1


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_a_run_under_erasers_is_a_patched_run(name, kind):
    """All facts in one batch, against plain patched passes one by one."""
    model = make_model(name, kind)
    facts = [fact for fact in make_facts() if fact.direction == "d2p"]
    erasers = fit_layers(model, [make_fact(i, "p2d", p) for i in range(5) for p in (0, 1)])
    erasers = {layer: erasers[layer] for layer in (2, 3)}
    together = ask_erased(model, facts, erasers, length=40)
    plain = ask_erased(model, facts, {}, length=40)
    for fact, score, unchanged in zip(facts, together, plain, strict=True):
        prompt = lay_out_prompt(model, fact, [fact])
        subject = slice(*prompt.subject)

        def act(x, eraser, subject=subject):
            out = x.clone()
            out[:, subject] = eraser(x[:, subject])
            return out

        answer = prompt.answers[0]
        patches = {
            f"layers.{layer}.resid_out": lambda x, e=eraser: act(x, e)
            for layer, eraser in erasers.items()
        }
        for k, token in enumerate(answer):
            tokens = prompt.tokens + answer[:k]
            at = len(tokens)
            if kind != "causal":
                tokens = tokens + [model.mask_id] * (40 - at)
            with model.net.patch(patches):
                logits = model.logits(torch.tensor([tokens]))[0, at - (kind == "causal")].double()
            if model.mask_id is not None:
                logits[model.mask_id] = -torch.inf
            assert score.terms[k] == pytest.approx(float(logits.log_softmax(-1)[token]), rel=1e-3)
        assert score.terms != unchanged.terms


@pytest.mark.parametrize("kind", ["masked", "causal"])
def test_erasing_at_the_subject_takes_the_subject_away(kind):
    """Prompts that differ in one token have one answer, once that is erased below layer 0."""
    model = make_model("tiny-gpt2", kind, layers=2)
    facts = [
        Fact.of(letter, "Dan Holt", "They say {} is known as", fact_id=letter) for letter in "QXZ"
    ]
    prompts = [lay_out_prompt(model, fact, [fact]) for fact in facts]
    begin, end = prompts[0].subject
    assert end == begin + 1
    states, labels = collect_labelled(model, facts, layers=[EMBEDDINGS])
    assert labels == list("QXZ")
    erasers = {EMBEDDINGS: fit_eraser(states[EMBEDDINGS], labels, 0.0)}
    plain, erased = (ask_erased(model, facts, each) for each in ({}, erasers))
    assert all(abs(plain[0].logp - other.logp) > 1e-2 for other in plain[1:])
    for other in erased[1:]:
        assert other.terms == pytest.approx(erased[0].terms, abs=1e-4)
    assert ask_erased(model, [], erasers) == []


def test_erasers_are_compared_with_their_controls():
    model = make_model(layers=3)
    facts = {
        way: [[make_fact(i, way, p) for i in range(5)] for p in (0, 1)] for way in ("p2d", "d2p")
    }
    fitted, asked = ({way: each[p] for way, each in facts.items()} for p in (0, 1))
    rows = list(compare_erasers(model, fitted, asked, PREFIXES, (0, 2), "last", length=40, draws=1))
    cells = {(row["direction"], row["fitted"], row["eraser"], row["start"]) for row in rows}
    assert len(cells) == 2 * (1 + 2 * 3 * 2) and len(rows) == 5 * len(cells)
    plain = [row for row in rows if row["eraser"] == "none" and row["direction"] == "d2p"]
    scores = ask_erased(model, asked["d2p"], {}, 40)
    assert [row["logp"] for row in plain] == pytest.approx([score.logp for score in scores])
    # The other direction's eraser, put on by hand.
    states, labels = collect_labelled(model, fitted["p2d"], PREFIXES, length=40)
    on, _ = collect_labelled(model, fitted["d2p"], PREFIXES, length=40)
    eraser = fit_eraser(states[2], labels).recentre(on[2])
    (scores,) = [ask_erased(model, asked["d2p"], {2: eraser}, 40)]
    way = {"direction": "d2p", "fitted": "p2d", "start": 2}
    by_kind = {
        kind: [row for row in rows if row.items() >= (way | {"eraser": kind}).items()]
        for kind in ("fact", "permuted", "random")
    }
    own = [score.logp for score in scores]
    assert [row["logp"] for row in by_kind["fact"]] == pytest.approx(own, rel=1e-4)
    (fact, permuted, random) = (each[0] for each in by_kind.values())
    assert fact["rank"] == permuted["rank"] == random["rank"] == 4 and fact["states"] == 15
    assert fact["changed"] == pytest.approx(eraser.removed)
    assert random["changed"] == pytest.approx(eraser.removed)
