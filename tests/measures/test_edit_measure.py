"""edit: rows for every question, a score of three means, resumed parts, sentences for mistakes."""

import json

import pyarrow
import pytest

from tests.measures.asking import ask, show
from tests.study.pair import place
from unmask import UserError
from unmask.blocks.blocks import Finding, Notice
from unmask.blocks.tidy import distinct, group_by, select
from unmask.data.sources import read_asked
from unmask.editing import work
from unmask.measures.edit import MEASURE
from unmask.measures.edit_results import FORWARD, describe
from unmask.net.families import parse_families

__all__ = ["place"]
QUICK = {"facts": 3, "groups": ("p2d", "d2p"), "layer": "0", "objects": "swap", "steps": 3}
QUICK |= {"moments": "identity", "search_steps": 6, "prefixes": 1, "neighbours": 1, "length": 24}


@pytest.fixture(scope="module")
def families(place):
    return parse_families([f"mdm={place.model}", f"ar={place.twin}"])


@pytest.fixture(scope="module")
def result(families, place, tmp_path_factory):
    return ask(MEASURE, families, read_asked(place.data), tmp_path_factory.mktemp("edit"), **QUICK)


def summarise(result, rows):
    """The summary of other rows in place of a result's."""
    tables = {**result.tables, "edit": pyarrow.Table.from_pylist(rows)}
    return MEASURE.make_summary(tables, MEASURE.settings())


def test_rows_hold_every_question_of_every_edit(result):
    rows = result.rows()
    assert len(distinct(rows, "fact")) == 6 and distinct(rows, "model") == ["mdm", "ar"]
    for (_, _), own in group_by(rows, "model", "fact").items():
        roles = [row["role"] for row in own]
        reverse = ["reverse new", "reverse old", "reverse neighbour"]
        assert roles == ["edited", "neighbour", *reverse]
        assert len({row["magnitude"] for row in own}) == 1 and own[0]["magnitude"] > 0
        assert own[0]["wanted"] == own[0]["new"] and own[0]["rival"] == own[0]["old"]
        assert own[2]["wanted"] == own[3]["wanted"] == own[0]["subject"]
        assert own[1]["rival"] == own[0]["new"] and own[0]["layers"] == "0"
        assert own[0]["text_kl"] > 0 and own[0]["condition"] is None and own[0]["tokens"] > 0
        assert isinstance(own[0]["recalled"], bool) and own[0]["reached"] is None
        assert -2 < own[0]["cosine"] < 2 and own[0]["probe"] is None, "one phrasing"
    assert {row["direction"] for row in rows} == {"p2d", "d2p"}
    edited = select(rows, role="edited")
    assert sum(row["gain"] for row in edited) > 0


def test_the_score_is_the_harmonic_mean_of_three_means(result):
    def score(*successes):
        rows = [
            result.rows()[0] | {"role": role, "success_after": success, "fact": f"fact-{number}"}
            for role, own in zip(FORWARD, successes, strict=True)
            for number, success in enumerate(own)
        ]
        return summarise(result, rows)["scores"][0]["score"]

    half, whole = [True, False] * 2, [True] * 4
    assert score(whole, whole, whole) == pytest.approx(1.0)
    assert score(whole, half, whole) == pytest.approx(3 / (1 + 2 + 1))
    assert score(whole, [False] * 4, whole) == 0


def test_records_of_counterfact_are_edited(families, tmp_path):
    rewrite = {"prompt": "They say {} makes", "subject": "Dan"}
    rewrite |= {"target_new": {"str": "tin drums"}, "target_true": {"str": "wax masks"}}
    record = {"case_id": 1, "requested_rewrite": rewrite}
    record["neighborhood_prompts"] = ["They say Eve makes"]
    (tmp_path / "records.json").write_text(json.dumps([record]))
    with pytest.raises(UserError, match="does not say how its facts were trained"):
        recalled = QUICK | {"recalled": True}
        ask(MEASURE, families, tmp_path / "records.json", tmp_path / "recalled", **recalled)
    result = ask(MEASURE, families, tmp_path / "records.json", tmp_path / "run", **QUICK)
    assert [row["role"] for row in result.rows()] == ["edited", "neighbour"] * 2
    assert not result.summary["differences"] and "tin drums" in show(result)
    blocks = result.section.blocks
    (notice,) = (block for block in blocks if isinstance(block, Notice))
    assert "ask nothing in reverse" in notice.text
    assert not any(isinstance(block, Finding) for block in blocks)


SIDE = {"facts": 2, "groups": ("p2d",), "tune_updates": 40, "tune_lr": 3e-3, "text_rows": 2}


@pytest.mark.prove
def test_edits_stand_beside_controls_and_learned_statements(families, place, tmp_path):
    controls = ("key", "delta", "tuned", "tuned-layer")
    changes = QUICK | SIDE | {"controls": controls, "step_counts": (1,), "lengths": (20,)}
    result = ask(MEASURE, families, read_asked(place.data), tmp_path / "all", **changes)
    rows, summary = result.rows(), result.summary
    assert distinct(rows, "variant") == ["edit", *controls]
    for (_, _), own in group_by(select(rows, role="edited"), "model", "fact").items():
        made, key, delta, tuned, layer = own
        # Another delta is read by the same key; the wrong key finds less of it.
        assert delta["share"] == pytest.approx(made["share"]) == pytest.approx(1.0, abs=1e-3)
        assert abs(key["share"]) < 0.9 and key["gain"] != made["gain"] != delta["gain"]
        assert tuned["share"] is None and layer["share"] is None and made["share"] is not None
        assert tuned["gain"] > 0 and layer["gain"] > 0
        assert all(learned["reached"] or learned["updates"] == 40 for learned in (tuned, layer))
        assert all(row["text_kl"] > 0 and row["nll_before"] == made["nll_before"] for row in own)
    # One row for the model as it was and one for each change.
    asked = {"preferred": ("success", ["edited"]), "said": ("said", ["edited"])}
    asked |= {"said_reverse": ("said", ["reverse new"])}
    asked |= {"judged": ("success", ["reverse new", "reverse neighbour"])}
    outcomes = summary["outcomes"]
    assert distinct(outcomes, "variant") == ["none", "edit", *controls]
    for row in (row for row in outcomes if row["metric"] in asked):
        column, roles = asked[row["metric"]]
        is_clean = row["variant"] == "none"
        own = select(rows, model=row["model"], variant="edit" if is_clean else row["variant"])
        own = [one for one in own if one["role"] in roles]
        values = [one[f"{column}_{'before' if is_clean else 'after'}"] for one in own]
        assert row["facts"] == 2 and row["mean"] == pytest.approx(sum(values) / len(values))
    kl = select(outcomes, metric="text_kl")
    assert distinct(kl, "variant") == ["edit", *controls], "nothing moves without a change"
    canvases = result.tables["edit_canvases"].to_pylist()
    pairs = {(row["length"], row["steps"]) for row in canvases}
    assert pairs == {(24, 3), (24, 1), (20, 3), (20, 1)}
    first = select(canvases, length=24, steps=3, role="edited")
    edited = select(rows, role="edited", variant="edit")
    assert [row["text_after"] for row in first] == [row["text_after"] for row in edited]
    blocks = {getattr(block, "name", "") for block in result.section.blocks}
    assert {"outcomes", "controls", "baseline", "canvases", "changes"} <= blocks
    usual = ask(MEASURE, families, read_asked(place.data), tmp_path / "one", **(QUICK | SIDE))
    for one, other in zip(edited, select(usual.rows(), role="edited"), strict=True):
        assert one["nll_after"] == pytest.approx(other["nll_after"], abs=1e-3)


@pytest.mark.prove
def test_a_random_layer_is_another_one(tmp_path):
    changes = QUICK | SIDE | {"controls": ("layer",), "length": 40, "search_steps": 3, "layer": "2"}
    result = ask(MEASURE, parse_families(["reversal-mdm"]), None, tmp_path, **changes)
    both = (select(result.rows(), variant=variant) for variant in ("edit", "layer"))
    for made, moved in zip(*both, strict=True):
        assert made["role"] == moved["role"] and made["magnitude"] != moved["magnitude"]
        assert made["nll_before"] == moved["nll_before"] and made["probe"] == moved["probe"]
        assert made["probe"] is not None and made["updates"] is None


def test_only_recalled_facts_are_edited(families, place, tmp_path, monkeypatch):
    def run(folder, known):
        monkeypatch.setattr(work, "find_recalled", lambda *asked: known)
        changes = QUICK | {"recalled": True, "search_steps": 2}
        return ask(MEASURE, families[:1], read_asked(place.data), tmp_path / folder, **changes)

    rows = run("some", {"fact-1", "fact-2", "fact-5"}).rows()
    assert distinct(rows, "fact") == ["fact-5", "fact-1", "fact-2"]
    for row in select(rows, role="edited"):
        assert row["recalled"] == (row["old"] in row["text_before"])
    with pytest.raises(UserError, match="says 1 of the facts, asked as they were trained"):
        run("one", {"fact-1"})


def test_sharing_is_correlated_over_facts(result):
    """Facts whose reverse gains as their keys are shared have a correlation of 1."""
    rows = [row | {"gain": row["cosine"]} for row in result.rows()]
    found = select(summarise(result, rows)["sharing"], sharing="cosine")
    assert [row["mean"] for row in select(found, outcome="gain")] == pytest.approx([1.0, 1.0])
    # Seeds of a fact are no further facts.
    seeds = [row | {"seed": seed} for row in rows for seed in range(3)]
    assert {row["facts"] for row in found + summarise(result, seeds)["sharing"]} == {6}


@pytest.mark.parametrize(("gain", "outcome"), [(1.0, "above"), (-1.0, "below"), (0.0, "unsettled")])
def test_learned_statements_are_held_against_edits(result, gain, outcome):
    """By their gain; a subject that is never said has a difference of 0, not known exactly."""
    edits = [row | {"said_after": False, "gain": 0.0} for row in result.rows()]
    learned = [row | {"variant": "tuned", "reached": True, "gain": gain} for row in edits]
    for row in learned:
        row["gain"] += 0.1 * (-1) ** int(row["fact"][-1])
    summary = summarise(result, edits + learned)
    found = select(summary["baseline"], metric="gain")
    assert [row["outcome"] for row in found] == [outcome] * 2
    told = describe(result.with_summary(summary))
    assert [each.outcome for each in told if isinstance(each, Finding)][-2:] == [outcome] * 2
    for row in select(summary["baseline"], metric="said_after"):
        assert row["mean"] == 0 and row["facts"] == 6 and row["low"] < -0.2 and row["high"] > 0.2


def test_mistakes_are_sentences(families, place, tmp_path):
    def refuse(words, **changes):
        with pytest.raises(UserError, match=words):
            folder = tmp_path / str(len(list(tmp_path.iterdir())))
            ask(MEASURE, families, read_asked(place.data), folder, **(QUICK | changes))

    with pytest.raises(UserError, match="layer 9 is out of range"):  # before the data are read
        ask(MEASURE, families, "nowhere.csv", tmp_path / "early", **(QUICK | {"layer": "9"}))
    own = [*read_asked(place.data)["p2d_same"][:4]]
    with pytest.raises(UserError, match="use --moments identity, --moment-text FILE, or a corpus"):
        ask(MEASURE, families, own, tmp_path / "own", objects="swap", facts=2, moments="states")
    refuse("tokens were read for keys of width 64", moments="states")
    refuse("layer 1 is the last", layer="1")
    refuse("no layer beside those", controls=("layer",))
    refuse("there is one edit, and the controls", controls=("key",), facts=1, groups=("p2d",))
    refuse("burn", controls=("burn",))
    refuse("no fact of .* is left to be edited after the first 99", skip=99)
    refuse("words.pdf is not there", other_text="words.pdf")
