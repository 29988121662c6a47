"""Recall's summary and section, of tables written by hand: rules, phrasings, outcomes."""

import pyarrow
import pytest

from tests.measures.asking import show
from unmask.blocks.blocks import Finding, Table
from unmask.blocks.tidy import select
from unmask.measures.recall import MEASURE, RecallSettings
from unmask.measures.recall_summary import name_template, widen
from unmask.measures.result import Result

KINDS = {"mdm": "masked", "ar": "causal"}
NAMES, DESCRIPTIONS = "p2d_reverse", "d2p_reverse"


def make_rows(shares, split=NAMES, facts=10, phrasings=3, steps=(1, 4), **columns) -> list[dict]:
    """Facts below a model's share are hit at the most steps, in all phrasings; none before."""
    return [
        {
            "model": model, "kind": KINDS[model.partition(",")[0]], "seed": 0, "split": split + end,
            "steps": at, "guidance": None if at is None else 0.0, "fact": f"f{i}",
            "direction": "d2p" if split == NAMES else "p2d", "trained": "reverse",
            "phrasing": way, "prompt": f"Way {way}, fact {i}, is", "completion": f" answer {i}",
            "generation": "text", "strict": False, "starts": False, "rank": 1, "bleu": 0.0,
            "hit": not end and at in (None, steps[-1]) and i < share * facts,
            "logp": -2.0 if end else -1.0, "tokens": 2,
        } | columns
        for model, share in shares.items()
        for end in ("", "_shuffled")
        for at in ((None,) if KINDS[model.partition(",")[0]] == "causal" else steps)
        for i in range(facts)
        for way in range(phrasings)
    ]  # fmt: skip


def judge_rows(rows: list[dict]) -> Result:
    return Result(MEASURE, RecallSettings(), (), {"recall": pyarrow.Table.from_pylist(rows)}, None)


def get_findings(result: Result) -> list[Finding]:
    return [block for block in result.section.blocks if isinstance(block, Finding)]


@pytest.mark.parametrize(
    ("shares", "facts", "outcome"),
    [
        ({"mdm": 0.9, "ar": 0.0}, 10, "above"),
        ({"mdm": 0.0, "ar": 1.0}, 10, "below"),
        ({"mdm": 0.5, "ar": 0.5}, 10, "unsettled"),
        ({"mdm": 1.0, "ar": 0.0}, 3, "too few"),
        ({"mdm": 0.9}, 10, "above"),
    ],
)
def test_the_first_sentence_has_the_outcome_of_its_interval(shares, facts, outcome):
    """Of two models their difference, of one that to its control; numbers only where clear."""
    result = judge_rows(make_rows(shares, facts=facts))
    first, *more = get_findings(result)
    assert first.outcome == outcome and len(more) <= 5
    table = "pairs" if len(shares) == 2 else "controls"
    (gap,) = select(result.summary[table], metric="hit", steps=4)
    assert gap["mean"] == pytest.approx(shares["mdm"] - shares.get("ar", 0.0))
    assert gap["outcome"] == outcome and f"{100 * gap['mean']:+.0f}".replace("-", "−") in first.text
    assert len(result.section.numbers) == len(shares) * first.is_clear
    assert bool(result.section.headline) == (first.is_clear and len(shares) == 2)


def test_descriptions_are_told_by_content_and_names_as_they_stand():
    """The study's rule stands beside content, the surname beside names; old tables have neither."""
    rows = make_rows({"mdm": 0.5, "ar": 0.0}, surname=True, content=True)
    rows += make_rows({"mdm": 0.4, "ar": 0.0}, DESCRIPTIONS, surname=None, content=True)
    result = judge_rows(rows)
    headline = select(result.summary["cells"], is_headline=True)
    assert {(row["split"].removesuffix("_shuffled"), row["metric"]) for row in headline} == {
        (NAMES, "hit"), (DESCRIPTIONS, "content")
    }  # fmt: skip
    rules = [(row["split"], row["metric"]) for row in select(result.summary["pairs"], steps=4)]
    assert rules == [(NAMES, "hit"), (NAMES, "surname"),
                     (DESCRIPTIONS, "content"), (DESCRIPTIONS, "hit")]  # fmt: skip
    texts = [finding.text for finding in get_findings(result)]
    told = ("contained (the study", "surname", "content", "contained (the study")
    assert all(rule in text for rule, text in zip(told, texts, strict=True))


def test_phrasings_widen_the_headlines_intervals():
    """A model that knows one phrasing of three is told with their interval; columns stay beside."""
    rows = make_rows({"mdm": 1.0})
    rows = [row | {"hit": row["hit"] and row["phrasing"] == 0} for row in rows]
    result = judge_rows(rows)
    (cell,) = select(result.summary["cells"], split=NAMES, steps=4, metric="hit")
    wide = widen(cell)
    assert wide["low"] < cell["low"] < cell["mean"] < cell["high"] < wide["high"]
    shares = {
        row["template"]: row["mean"]
        for row in select(result.summary["templates"], split=NAMES, metric="hit")
    }
    assert list(shares.values()) == [1, 0, 0] and "Way 0, fact … , is" in shares
    (table,) = (block for block in result.section.blocks if isinstance(block, Table)
                and block.name.startswith("phrasings"))  # fmt: skip
    means = {tuple(row.values[:2]): row.values[3].mean for row in table.rows}
    assert len(means) == 6 and sum(means.values()) == 1  # half of them are the control
    alone = judge_rows(make_rows({"mdm": 1.0}, phrasings=1))
    assert not alone.summary["templates"] and "by phrasing" not in show(alone)
    assert {row["low_phrasings"] for row in alone.summary["cells"]} == {None}


def test_templates_are_what_prompts_share():
    assert name_template(["Ann Lee was", "Bob Ray was"]) == "… was"
    assert name_template(["Who is it?"]) == "Who is it?"


def test_training_runs_are_counted_and_grouped_by_opening():
    rows = make_rows({"mdm": 0.9})
    several = [row | {"seed": seed} for seed in range(4) for row in rows]
    grouped = judge_rows([row | {"opening": row["seed"] // 2} for row in several])
    assert "4 from 2 adaptations" in show(grouped)
    (cell,) = select(grouped.summary["cells"], split=NAMES, steps=4, metric="hit")
    assert (cell["seeds"], cell["openings"], cell["prompts"]) == (4, 2, 30)
    runs = select(grouped.summary["runs"], split=NAMES, steps=4, metric="hit")
    assert [row["mean"] for row in runs] == [0.9] * 4


def test_a_prompt_that_is_there_twice_is_one_line_of_the_example():
    rows = make_rows({"mdm": 0.5}, facts=2, phrasings=1)
    result = judge_rows([row | {"prompt": "Zed is"} for row in rows])
    assert [row["model"] for row in result.summary["example"]] == ["mdm"]
