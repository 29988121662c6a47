"""slots: states are those that predict the answer, distances and probes find planted entries."""

from dataclasses import replace

import numpy as np
import pyarrow
import pytest
import torch

from tests.conftest import KINDS
from tests.measures.asking import show
from tests.representation.facts import make_fact, make_model
from unmask import UserError
from unmask.blocks.tidy import distinct, select
from unmask.measures.runner import read_result
from unmask.measures.slots import DISTANCES, MEASURE, PAIRS, judge_nearness
from unmask.representation.patched import lay_out_prompt
from unmask.representation.slots import collect_slots, compare_slots, probe_differences

FACTS = [make_fact(i, way, p) for i in range(5) for way in ("p2d", "d2p") for p in (0, 1)]


def plant(shared: float, facts: int = 20, phrasings: int = 3, width: int = 24, seed: int = 0):
    """States of one layer that hold a code of the fact for both directions, one for each, noise."""
    generator = np.random.default_rng(seed)
    one = generator.normal(size=(facts, width))
    two = {way: generator.normal(size=(facts, width)) for way in ("p2d", "d2p")}
    states, asked = [], []
    for i in range(facts):
        for way in ("p2d", "d2p"):
            for phrasing in range(phrasings):
                noise = generator.normal(size=width)
                mixed = shared * one[i] + (1 - shared) * two[way][i] + 0.3 * noise
                states.append(mixed + (3.0 if way == "p2d" else -3.0) * np.eye(width)[0])
                asked.append(_name(i, way, phrasing))
    return np.array(states, np.float32)[:, None], asked


def _name(i, way, phrasing):
    return replace(make_fact(0, way, phrasing), fact_id=f"{i:02d}")


def average(rows, **which):
    return float(np.mean([row["right"] for row in select(rows, **which)]))


@pytest.mark.parametrize(("name", "kind"), KINDS[:6])
def test_states_are_read_where_the_answer_is_predicted(name, kind):
    model = make_model(name, kind)
    states = collect_slots(model, FACTS[:3], 40)
    for fact, each in zip(FACTS, states, strict=False):
        tokens = lay_out_prompt(model, fact, []).tokens
        at = model.row_of(len(tokens))
        if kind != "causal":
            tokens = tokens + [model.mask_id] * (40 - len(tokens))
        with torch.no_grad(), model.net.capture("layers.2.mlp_key") as taken:
            model.net(torch.tensor([tokens]))
        plain = taken["layers.2.mlp_key"][0, at].numpy()
        np.testing.assert_allclose(each[2], plain, atol=1e-4)


def test_distances_are_those_of_pairs():
    states, facts = plant(0.5, facts=4, phrasings=2)
    rows = list(compare_slots(states, facts))
    assert {name: len(select(rows, pair=name)) for name in distinct(rows, "pair")} == {
        "across": 16, "phrasing": 4, "relation": 4,
    }  # fmt: skip
    (row,) = select(rows, pair="across", fact="01", other="02")

    def distance(i, j):
        one, two = states[i, 0].astype(float), states[j, 0].astype(float)
        return 1 - one @ two / np.linalg.norm(one) / np.linalg.norm(two)

    def find(fact_id, way):
        return [i for i, f in enumerate(facts) if (f.fact_id, f.direction) == (fact_id, way)]

    wanted = [distance(i, j) for i in find("01", "p2d") for j in find("02", "d2p")]
    assert row["distance"] == pytest.approx(np.mean(wanted), abs=1e-5)
    (row,) = select(rows, pair="phrasing", fact="03")
    wanted = [distance(*find("03", way)) for way in ("p2d", "d2p")]
    assert row["distance"] == pytest.approx(np.mean(wanted), abs=1e-5)
    with pytest.raises(UserError, match="3 facts are asked in both directions: expected at least"):
        list(compare_slots(states[:12], facts[:12]))


def test_a_linear_probe_on_differences_is_blind_and_one_on_squares_is_not():
    """One code or two: differences say nothing of it, squares tell the one code alone."""
    for shared in (0.0, 1.0):
        rows = list(probe_differences(*plant(shared)))
        plain = average(rows, contrast="unrelated", feature="difference")
        squared = average(rows, contrast="unrelated", feature="squared")
        assert plain == pytest.approx(0.5, abs=0.08)
        assert squared > 0.85 if shared else squared == pytest.approx(0.5, abs=0.15)
        # Two directions differ by what a direction adds, two phrasings do not.
        assert average(rows, contrast="phrasing", feature="difference") > 0.75


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    models = make_model(layers=2), make_model("tiny-gpt2", "causal", layers=2)
    out = tmp_path_factory.mktemp("slots") / "run"
    return MEASURE(*models, data=FACTS, out=out, permutations=199, length=40, device="cpu")


def test_the_summary_follows_from_the_rows(done):
    assert set(distinct(done.summary["distances"], "pair")) == set(PAIRS)
    rows = select(done.rows(), model="tiny-masked", pair="across", layer=1)
    near = [row["distance"] for row in rows if row["fact"] == row["other"]]
    (cell,) = select(done.summary["distances"], model="tiny-masked", layer=1, pair="reversal")
    assert cell["mean"] == pytest.approx(np.mean(near)) and len(near) == cell["facts"] == 5
    text = show(read_result(done.folder))
    for row in done.summary["tests"]:
        assert 0 < row["p_layers"] <= 1 and (row["facts"], row["outcome"]) == (5, "too few")
        assert f"layer {row['layer']}: cosine distance: two facts, both" in text
    tests = [row | {"group": group} for group in ("p2d", "d2p") for row in done.summary["tests"]]
    assert len(DISTANCES.tabulate_differences(tests).rows) == 4, "one for each model and group"


@pytest.mark.parametrize(
    ("low", "p", "outcome"),
    [(0.001, 0.01, "above"), (-0.005, 0.01, "unsettled"), (0.001, 0.2, "unsettled")],
)
def test_nearer_is_said_of_an_interval_above_0_whose_test_passes(low, p, outcome):
    """A test that passes does not make up for an interval that includes 0, nor the reverse."""
    found = {"mean": 0.002, "low": low, "high": 0.008, "p_layers": p, "facts": 30}
    assert judge_nearness(found)["outcome"] == outcome


def test_planted_entries_are_found_and_separate_ones_are_not():
    for shared, is_found in ((0.0, False), (0.6, True)):
        states, facts = plant(shared)
        keys = {"model": "mdm", "kind": "masked", "seed": 0, "group": "p2d"}
        rows = {"slots": compare_slots(states, facts)}
        rows["differences"] = probe_differences(states, facts)
        tables = {
            name: pyarrow.Table.from_pylist([keys | row for row in own])
            for name, own in rows.items()
        }
        summary = MEASURE.make_summary(tables, MEASURE.settings(permutations=999))
        (test,) = summary["tests"]
        unrelated = {row["feature"]: row for row in select(summary["means"], contrast="unrelated")}
        squared, blind = unrelated["squared"], unrelated["difference"]
        assert [row["outcome"] == "above" for row in (test, squared)] == [is_found] * 2
        assert "outcome" not in blind  # it can only guess
