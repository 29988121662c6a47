"""knockout: tables that are complete and resume, effects and tests by fact, the section."""

from dataclasses import replace
from typing import Any

import pyarrow
import pytest

import unmask
from tests.measures.test_trace import make_wrong
from tests.tracing.learned import LENGTH, make_facts
from unmask import UserError
from unmask.base.config import SettingsError
from unmask.blocks.blocks import Figure
from unmask.blocks.tidy import distinct, select
from unmask.measures.knockout import BY_ANSWER, BY_OTHERS, CLEAN, HIDDEN, MEASURE, METRICS
from unmask.measures.paths import MEASURE as PATHS
from unmask.measures.trace import MEASURE as TRACE

USUAL: dict[str, Any] = {
    "steps": 6,
    "length": LENGTH,
    "phrasings": 2,
    "windows": (1, 3),
    "device": "cpu",
}


def cut(*subjects, **changes):
    return MEASURE(*subjects, **USUAL | changes)


@pytest.fixture(scope="module")
def done(masked, causal, tmp_path_factory):
    return cut(masked, causal, make_wrong(), out=tmp_path_factory.mktemp("cut") / "run")


def test_rows_are_what_the_call_gives(done, causal):
    fact = make_facts()[0]
    edges = ["answer:subject", "others:subject"]
    grid = unmask.cut_edges(
        causal, fact, edges=edges, window=3, steps=6, length=LENGTH, corruption="mean"
    )
    rows = select(done.rows(), model="causal", fact="fact-0", phrasing=0)
    for i, edge in enumerate(edges):
        own = select(rows, edge=edge, window=3)
        assert [row["layer"] for row in own] == list(range(causal.net.config.layers))
        for metric in ("p", "logp_per_token"):
            expected = grid.values(metric)[i].tolist()
            assert [row[metric] for row in own] == pytest.approx(expected, rel=1e-4)
        windows = [(row["first"], row["last"] + 1) for row in own]
        assert windows == list(grid.windows) and all(row["pairs"] > 0 for row in own)
    (clean,), (hidden,) = (select(rows, edge=edge) for edge in (CLEAN, HIDDEN))
    assert clean["p"] == pytest.approx(grid.clean_value("p"), rel=1e-4)
    assert hidden["p"] == pytest.approx(grid.corrupted_value("p"), rel=1e-4)
    # A causal model has no masks to read, so there is nothing to average.
    assert "answer:masks" not in distinct(select(done.rows(), model="causal"), "edge")
    assert "answer:masks" in distinct(select(done.rows(), model="masked"), "edge")
    (whole,) = select(rows, edge="others:subject", window=0)
    assert (whole["first"], whole["last"]) == (0, causal.net.config.layers - 1)


def test_what_is_kept_and_compared(done):
    (effect,) = select(
        done.summary["effects"], model="causal", edge="others:subject", window=0, metric="p"
    )
    counts = {row["model"]: row for row in done.summary["counts"]}
    assert (counts["causal"]["prompts"], counts["causal"]["kept"]) == (8, 7)
    assert counts["causal"]["left_out"] == "1 not recalled" and effect["facts"] == 4
    tests = done.summary["tests"]
    assert {(row["model"], row["other_model"]) for row in tests} == {("masked", "causal")}
    assert {row["window"] for row in tests} == {0, 1, 3} and all(row["paired"] for row in tests)
    # The margin is the setting's.
    wide, narrow = (
        MEASURE.summarise(done.tables, replace(done.settings, margin=margin))["tests"]
        for margin in (50.0, 1e-9)
    )
    assert all(row["p_equivalent"] < 0.2 and row["power"] > 0.9 for row in wide)
    assert max(row["p_equivalent"] for row in narrow) > 0.5


KEYS: dict[str, Any] = {"model": "m", "kind": "masked", "seed": 0, "split": "own", "phrasing": 0}
KEYS |= {"stage": "first", "layer": -1, "first": -1, "last": -1, "window": 0, "direction": "p2d"}
KEPT = KEYS | {"fact": "a", "corruption": "mean", "joint": "chain_rule", "kept": True}


def summarise(done, losses):
    """The summary of what facts lose by edges, in every metric."""
    rows = [
        KEYS | {"fact": fact, "edge": edge} | dict.fromkeys(METRICS, -lost)
        for (fact, edge), lost in losses.items()
    ]
    tables = {
        "knockout": pyarrow.Table.from_pylist(rows),
        "facts": pyarrow.Table.from_pylist([KEPT]),
    }
    return MEASURE.summarise(tables, done.settings)


def test_what_the_answer_reads_by_itself(done):
    lost = {CLEAN: 0.0, HIDDEN: 9.0, BY_ANSWER: 1.0, BY_OTHERS: 2.0}

    def find(**further):
        sizes, edges = {"a": 1.0, "b": 1.5, "c": 2.0}, lost | further
        losses = {(fact, edge): edges[edge] * sizes[fact] for fact in sizes for edge in edges}
        return summarise(done, losses)["reading"]

    (row,) = find()
    # Each fact loses half: the ratio is certain, though losses differ from fact to fact.
    assert (row["mean"], row["low"], row["high"], row["facts"]) == pytest.approx((0.5, 0.5, 0.5, 3))
    assert not find(**{BY_OTHERS: 0.0})  # a share of nothing is none


def test_every_edge_has_a_look_of_its_own_in_all_panels(done):
    (figure,) = (each for each in done.section.walk() if isinstance(each, Figure))
    lines = [line for panel in figure.views[0, 0] for line in panel.lines]
    looks = {(line.name, line.colour, line.dash) for line in lines}
    assert len(looks) == len({look[0] for look in looks}) == len({look[1:] for look in looks}) == 9


@pytest.mark.parametrize("measure", [MEASURE, PATHS, TRACE])
def test_guidance_of_a_causal_model_is_refused_before_the_others_are_run(
    measure, masked, causal, tmp_path
):
    shared = {"guidance": 0.5, "device": "cpu", "out": tmp_path / "run"}
    with pytest.raises(UserError, match="causal is a causal model and has no pass without the"):
        measure(masked, causal, make_facts(), **shared)
    assert not list(tmp_path.glob("run/**/*.parquet"))


def test_what_is_refused(causal):
    facts = make_facts()
    for measure in (MEASURE, PATHS, TRACE):
        with pytest.raises(SettingsError, match=f"{measure.name}.*: 'at' has 'x', expected first"):
            measure(causal, facts, at=("x",))
    with pytest.raises(UserError, match="names the role 'subjct'"):
        cut(causal, facts, edges=("answer:subjct",))
