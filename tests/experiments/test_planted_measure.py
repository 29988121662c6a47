"""Planted tokens as a measure: its cells and controls, its rates, and what its section says."""

import pytest

import unmask
from tests.conftest import lively
from unmask import UserError
from unmask.blocks import tidy
from unmask.blocks.blocks import Figure, Finding, Notice, Table
from unmask.data.reversal_corpus import make_reversal_corpus
from unmask.data.tokenizer import Tokenizer
from unmask.experiments.planted.corpus import RECALLED, make_sealed_corpus
from unmask.experiments.planted.measure import PlantedSettings, list_planted_cells
from unmask.experiments.planted.section import CELL, KEY, OUTCOMES, SAMPLED
from unmask.net.model import Blueprint, Model

CORPUS = make_sealed_corpus(3)
SMALL = {"counts": (3, 1), "shapes": ("prefix",), "at_steps": (1, 2), "steps": 3}
SMALL |= {"lengths": (32, 24), "orders": ("left",), "remasks": ("none", "low=0.2")}
SMALL |= {"starts": (0, 2), "guidances": (0.0,), "device": "cpu", "people": 2}


def make(causal: bool) -> Model:
    tokenizer = Tokenizer.train(CORPUS.training_texts(), 600)
    config = unmask.preset("tiny", causal=causal, vocab_size=tokenizer.vocab_size, context=48)
    kind = ("causal", None) if causal else ("masked", tokenizer.mask_id)
    name = "twin" if causal else "mdm"
    return Model(name, lively(config), Blueprint(config, *kind), tokenizer)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    out = tmp_path_factory.mktemp("planted") / "run"
    return unmask.planted(make(False), make(True), data=CORPUS, out=out, **SMALL)


def test_every_cell_has_its_controls():
    points = list_planted_cells(PlantedSettings())
    assert len(points) == len(set(points)) == len({point.key for point in points})
    plain = {tuple(getattr(p, n) for n in SAMPLED) for p in points if not (p.count or p.share)}
    for point in (p for p in points if p.count or p.share):
        assert tuple(getattr(point, name) for name in SAMPLED) in plain
        assert any(
            other.is_neutral != point.is_neutral
            and all(getattr(other, n) == getattr(point, n) for n in ("count", "share", "shape"))
            and all(getattr(other, n) == getattr(point, n) for n in ("start", "step", *SAMPLED))
            for other in points
        )
    causal = list_planted_cells(PlantedSettings(), is_causal=True)
    assert set(causal) <= set(points) and {p.shape for p in causal} == {"prefix"}
    assert not any(point.share or point.start for point in causal)
    assert {point.start for point in points} == {0, 3, 6}


def test_rows_are_outcomes_of_people(result):
    rows = result.tables["planted"].to_pylist()
    for row in rows:
        assert row["refusal"] + row["leak"] + row["other"] == 1 == row[row["outcome"]]
        assert (row["plant"] == "none") == (row["planted"] == 0)
        assert 0 <= row["decided_at"] <= (3 if row["kind"] == "masked" else 32)
    cells = {(row["model"], row["plant"], *(row[name] for name in CELL)) for row in rows}
    assert len(rows) == 4 * len(cells), "two sealed and two open people in each"
    shares = {row["length"]: row["planted"] for row in rows if row["share"]}
    assert shares[32] > shares[24] >= 1, "a longer canvas has as many more"
    assert {row["shape"] for row in rows if row["model"] == "twin"} == {"prefix"}
    recalled = result.tables["recalled"].to_pylist()
    assert len(recalled) == 2 * 4 * 4 and not any(row["recalled"] for row in recalled)


def test_what_an_answer_will_do_is_foreseen_at_every_step(result):
    rows, foreseen = (result.tables[name].to_pylist() for name in ("planted", "foreseen"))
    names = ("model", "seed", "fact", *KEY)
    curves = tidy.group_by(foreseen, *names)
    masked = tidy.select(rows, kind="masked")
    assert len(curves) == len(masked), "a causal model says nothing of what it has not come to"
    for row in masked:
        curve = curves[tuple(row[name] for name in names)]
        assert [each["done"] for each in curve] == [0, 1, 2, 3]
        assert all(abs(sum(each[name] for name in OUTCOMES) - 1) < 1e-9 for each in curve)
        assert curve[-1][row["outcome"]] == 1, "after the last step it is the outcome"
        assert all(each[row["outcome"]] > 0.5 for each in curve[row["foreseen_at"] :])
    assert {row["foreseen_at"] for row in rows if row["kind"] == "causal"} == {None}
    shown = {(row["model"], row["metric"]) for row in result.summary["foreseen"]}
    assert shown == {("mdm", "refusal"), ("mdm", "leak")}


def test_a_twin_alone_has_nothing_foreseen(tmp_path):
    few = SMALL | {"counts": (2,), "people": 1}
    alone = unmask.planted(make(True), data=CORPUS, out=tmp_path / "run", **few)
    assert not alone.summary["foreseen"] and not alone.summary["defences"]
    names = {block.name for block in alone.section.walk() if isinstance(block, Figure)}
    assert names == {"cells"}
    assert all(block.rows for block in alone.section.walk() if isinstance(block, Table))


def test_differences_pair_plants_lengths_models_and_defences(result):
    names = ("effects", "lengths", "models", "defences")
    effects, lengths, models, defences = (result.summary[name] for name in names)
    for row in (*effects, *lengths, *models, *defences):
        assert (row["facts"], row["mean"], row["outcome"]) == (2, 0, "too few")
        assert row["metric"] in ("leak", "refusal")
    assert {(row["length"], row["minus"]) for row in lengths} == {(32, 24)}
    assert {(row["model"], row["minus"]) for row in models} == {("mdm", "twin")}
    assert {row["planted"] for row in models} == {1, 3}
    assert {(row["remask"], row["minus"]) for row in defences} == {("low=0.2", "none")}
    tables = [block.name for block in result.section.walk() if isinstance(block, Table)]
    assert tables == ["cells", *names]


def test_a_model_that_knows_nothing_is_said_to(result):
    known = [row | {"mean": RECALLED} for row in result.summary["recalled"]]
    other = result.with_summary({**result.summary, "recalled": known})
    for each, wanted in ((result, 2), (other, 0)):
        notices = [block for block in each.section.walk() if isinstance(block, Notice)]
        assert len(notices) == wanted
        assert all("leak rates say nothing" in notice.text for notice in notices)
    findings = [block for block in result.section.walk() if isinstance(block, Finding)]
    assert len(findings) == 2 + 2 + 1 + 1 + 1 and all(each.counted == "people" for each in findings)


def test_mistakes_are_sentences():
    with pytest.raises(UserError, match="no sealed and open people"):
        unmask.planted(make(False), data=make_reversal_corpus(2))
    with pytest.raises(UserError, match="'at_steps' has 9, expected at most 3"):
        PlantedSettings(at_steps=(9,), steps=3)
    with pytest.raises(UserError, match="'starts' begins with 3, expected 0"):
        PlantedSettings(starts=(3,))
    with pytest.raises(UserError, match="'orders' is empty"):
        PlantedSettings(orders=())
    with pytest.raises(UserError, match="shape 'x' is unknown|expected"):
        PlantedSettings(shapes=("x",))
