"""Recall's section: verdicts, sentences, tables and numbers of tables written by hand."""

import pyarrow

from tests.measures.asking import show
from unmask.blocks.blocks import Figure, Finding, Table
from unmask.blocks.tidy import select
from unmask.evaluation.statistics import Interval
from unmask.measures.recall import MEASURE, RecallSettings
from unmask.measures.result import Result

CONTROL = "_shuffled"


def make_rows(hits: dict[str, list[bool]], kinds: dict[str, str], steps=(1, 4)) -> list[dict]:
    """A table of recall by hand: which facts each model hits at the most steps, none before."""
    return [
        {
            "model": model,
            "kind": kinds[model],
            "seed": 0,
            "split": split,
            "steps": at,
            "fact": f"f{i}",
            "prompt": f"prompt {i}",
            "completion": f" answer {i}",
            "generation": f" answer {i if hit else 'x'} and more",
            "hit": hit and at in (None, steps[-1]) and split == "p2d_reverse",
            "strict": False,
            "token_accuracy": float(hit),
            "bleu": 0.0,
            "rank": 1,
            "logp": -1.0 if split == "p2d_reverse" else -2.0,
            "logp_mean_field": None if kinds[model] == "causal" else -1.0,
            "first_token_entropy": 0.1,
        }
        for model, found in hits.items()
        for split in ("p2d_reverse", "p2d_reverse" + CONTROL)
        for at in ((None,) if kinds[model] == "causal" else steps)
        for i, hit in enumerate(found)
    ]


def judge_rows(rows: list[dict]) -> Result:
    tables = {"recall": pyarrow.Table.from_pylist(rows)}
    settings = RecallSettings()
    return Result(MEASURE, settings, (), tables, None)


def test_clear_results_become_verdicts_sentences_and_numbers():
    kinds = {"ar": "causal", "mdm": "masked"}
    result = judge_rows(make_rows({"ar": [False] * 10, "mdm": [True] * 9 + [False]}, kinds))
    assert result.verdicts["mdm − ar: p2d_reverse"].outcome == "above"
    assert result.verdicts["mdm: p2d_reverse"].outcome == "above"
    assert result.verdicts["ar: p2d_reverse"].outcome == "unsettled"
    assert result.verdicts["mdm: p2d_reverse, more steps"].outcome == "above"
    first = result.section.blocks[0]
    assert isinstance(first, Finding)
    assert first.text.startswith(
        "Trained on “A is B”, asked “B is A” (description → name, reversed): mdm (diffusion) "
        "recalls 90 % ["
    )
    assert "ar (autoregressive) recalls 0 % [" in first.text
    assert "The difference is +90 points [" in first.text
    assert [number.value for number in result.section.numbers] == ["90 %", "0 %"]
    assert "reversal curse" in show(result)
    # The example is one that diffusion recalls; the causal model stands in the table once.
    tables = {block.name: block for block in result.section.walk() if isinstance(block, Table)}
    assert [row.values[2] for row in tables["example"].rows] == [None, None, "no", "yes"]
    lines = [(row.values[:2], row.role) for row in tables["hits"].rows]
    assert lines == [
        ([None, "ar"], "plain"),
        ([4, "mdm"], "plain"),
        ([4, "published"], "published"),
        ([None, "ar, shuffled"], "control"),
        ([4, "mdm, shuffled"], "control"),
    ]
    lines = [(row.values[:2], row.role) for row in tables["steps"].rows]
    assert lines == [
        ([None, "ar"], "plain"),
        ([4, "mdm"], "plain"),
        ([4, "published"], "published"),
        ([1, "mdm"], "plain"),
        ([1, "published"], "published"),
    ]


def test_curves_are_drawn_of_several_step_counts():
    """One count is a dot for each way of asking, in the figure that stands first."""
    kinds = {"ar": "causal", "mdm": "masked"}
    for steps, names in (((1, 4), ["ways", "recall"]), ((4,), ["ways"])):
        result = judge_rows(make_rows({"ar": [False] * 10, "mdm": [True] * 10}, kinds, steps))
        walked = list(result.section.walk())
        assert [block.name for block in walked if isinstance(block, Figure)] == names
        tables = {block.name for block in walked if isinstance(block, Table)}
        assert ("steps" in tables) == (len(steps) > 1)


def test_training_runs_are_counted_and_grouped_by_opening():
    rows = make_rows({"mdm": [True] * 9 + [False]}, {"mdm": "masked"})
    several = [row | {"seed": seed} for seed in range(4) for row in rows]
    assert "mdm: 4 training runs (for other training seeds)" in show(judge_rows(several))
    grouped = judge_rows([row | {"opening": row["seed"] // 2} for row in several])
    assert "mdm: 4 training runs from 2 adaptations (for other adaptations)" in show(grouped)
    (cell,) = select(grouped.summary["cells"], split="p2d_reverse", steps=4, metric="hit")
    assert (cell["seeds"], cell["openings"], cell["prompts"]) == (4, 2, 10)
    assert "training run" not in show(judge_rows(rows))


def test_one_model_is_held_against_its_control():
    """Or against nothing, where there is none, and then the sentence says so."""
    rows = make_rows({"mdm": [True] * 9 + [False]}, {"mdm": "masked"})
    text = judge_rows(rows).section.blocks[0].text
    assert "That is +90 points [" in text
    assert text.endswith("] compared with other facts' answers in the same texts (control).")
    plain = [row for row in rows if not row["split"].endswith(CONTROL)]
    alone = judge_rows(plain)
    assert alone.section.blocks[0].text.endswith("No control was measured.")
    assert alone.verdicts["mdm: p2d_reverse"].outcome == "above"


def test_few_facts_and_no_difference_are_said_as_such():
    kinds = {"mdm": "masked", "ar": "causal"}
    few = judge_rows(make_rows({"mdm": [True] * 3, "ar": [False] * 3}, kinds))
    assert few.verdicts["mdm − ar: p2d_reverse"].outcome == "too few" and not few.section.numbers
    assert few.section.blocks[0].verdict.facts == 3 and "[too few facts]" in show(few)
    alike = judge_rows(make_rows({"mdm": [True, False] * 5, "ar": [False, True] * 5}, kinds))
    assert "The difference is +0 points [" in alike.section.blocks[0].text
    assert "[not settled]" in show(alike) and not alike.section.numbers
    worse = judge_rows(make_rows({"mdm": [False] * 10, "ar": [True] * 10}, kinds))
    value = worse.verdicts["mdm − ar: p2d_reverse"].value
    assert isinstance(value, Interval) and value.mean == -1 and value.high < 0


def test_a_prompt_that_is_there_twice_is_one_line_of_the_example():
    rows = make_rows({"mdm": [True, False]}, {"mdm": "masked"})
    result = judge_rows([row | {"prompt": "Zed is"} for row in rows])
    assert [row["model"] for row in result.summary["example"]] == ["mdm"]
