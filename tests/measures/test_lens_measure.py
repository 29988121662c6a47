"""The measure of lenses: halves, gaps closed, and what is shown."""

import pytest

from tests.measures.asking import ask, show
from tests.representation.facts import PEOPLE, make_fact, make_model
from unmask.base.errors import UserError
from unmask.blocks.tidy import select
from unmask.measures.lens import MEASURE, summarise
from unmask.net.families import Family

FACTS = [make_fact(i, way, p) for i in range(len(PEOPLE)) for way in ("p2d", "d2p") for p in (0, 1)]
SMALL = {"steps": 3, "bands": 2, "length": 20}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    families = [Family("m", (make_model(),), "masked")]
    return ask(MEASURE, families, FACTS, tmp_path_factory.mktemp("lens") / "run", **SMALL)


def test_every_prompt_is_judged_once_by_the_other_halfs_maps(result):
    rows = result.tables["lens"].to_pylist()
    names = ("fact", "direction", "phrasing", "apart", "lens", "layer", "band")
    keys = [tuple(row[name] for name in names) for row in rows]
    assert len(set(keys)) == len(keys) and {key[3] for key in keys} == {"prompts", "facts"}
    assert {key[:3] for key in keys} == {(x.fact_id, x.direction, x.phrasing) for x in FACTS}
    assert {row["lens"] for row in rows} == {"logit", "tuned", "later", "shuffled"}
    ahead = result.tables["ahead"].to_pylist()
    assert {row["layer"] for row in ahead} == {1} and {row["ahead"] for row in ahead} == {0, 1, 2}


def test_the_gap_closed_is_a_ratio_of_sums(result):
    rows = result.tables["lens"].to_pylist()
    for row in result.summary["closed"]:
        own, logit = (
            select(rows, lens=lens, layer=row["layer"], apart=row["apart"])
            for lens in (row["lens"], "logit")
        )
        said, before = (sum(x["said"] * x["positions"] for x in each) for each in (own, logit))
        count = sum(x["positions"] for x in logit)
        assert row["mean"] == pytest.approx((said - before) / (count - before))
    text = show(result)
    for words in ("later-step lens", "shuffled lens", "gap closed", "steps until it is committed"):
        assert words in text
    assert {row["masks"] for row in result.summary["layers"]} == {"0 to 50 %", "50 to 100 %"}


def test_a_lens_that_is_always_right_closes_the_gap(result):
    rows = [row | ({"said": 1.0} if row["lens"] == "later" else {})
            for row in result.tables["lens"].to_pylist()]  # fmt: skip

    class Table(list):
        def to_pylist(self):
            return list(self)

    tables = {"lens": Table(rows), "ahead": result.tables["ahead"]}
    closed = select(summarise(tables, result.settings)["closed"], lens="later")
    assert closed and all(row["mean"] == pytest.approx(1.0) for row in closed)


def test_causal_models_and_single_prompts_are_refused(tmp_path):
    twin = [Family("twin", (make_model(kind="causal"),), "causal")]
    with pytest.raises(UserError, match="lenses of later steps"):
        ask(MEASURE, twin, FACTS, tmp_path / "one", **SMALL)
    families = [Family("m", (make_model(),), "masked")]
    with pytest.raises(UserError, match="only one of the prompts"):
        ask(MEASURE, families, FACTS[:1], tmp_path / "two", **SMALL)
    with pytest.raises(UserError, match="only one of the facts"):
        ask(MEASURE, families, FACTS[:2], tmp_path / "three", **SMALL)
