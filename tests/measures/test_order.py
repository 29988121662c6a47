"""When tokens are committed: rows of each text, means by kind, what cannot be measured."""

import json
import lzma

import pyarrow
import pytest

from tests.conftest import make_model
from tests.evaluation.oracle import make_oracle, make_twin
from tests.measures.asking import ask, show
from unmask import UserError
from unmask.blocks.blocks import Figure
from unmask.blocks.tidy import distinct, select
from unmask.evaluation.questions import spread
from unmask.measures.order import MEASURE, OrderSettings
from unmask.measures.runner import pool_results, read_result
from unmask.net.families import Family
from unmask.sampling.texts import sample

SMALL = {"limit": 3, "examples": 1, "steps": 4, "splits": ("d2p_same", "d2p_reverse")}


@pytest.fixture
def masked(corpus, tokenizer) -> Family:
    return Family("mdm", (make_oracle(corpus, ("d2p_same",), tokenizer),), "masked")


@pytest.fixture
def causal(tokenizer) -> Family:
    return Family("ar", (make_twin(tokenizer),), "causal")


@pytest.fixture
def result(masked, causal, corpus, tmp_path):
    return ask(MEASURE, [masked, causal], corpus, tmp_path / "run", **SMALL)


def test_rows_are_those_of_the_texts(result, masked, corpus):
    """On a canvas that holds every fact of the splits, whatever the limit."""
    (model,) = masked.members
    for split in SMALL["splits"]:
        facts = spread(corpus[split], 3)
        assert distinct(select(result.rows(), split=split), "prompt", "fact") == [
            (f"{split} {i}", fact.fact_id) for i, fact in enumerate(facts)
        ]
        drawn = sample(model, [fact.prompt for fact in facts], steps=4, length=52)
        for row in select(result.rows(), split=split):
            i = int(row["prompt"].split()[1])
            assert row["step"] == int(drawn.committed_at[i, row["position"]])
        texts = select(result.rows("unmasking"), split=split, model="mdm")
        assert distinct(texts, "prompt") == [fact.prompt for fact in spread(corpus[split], 1)]
        assert {row["hit"] for row in texts} == {split == "d2p_same"}
        assert texts[0]["step"] == 0 and texts[-1]["is_end"] == (split == "d2p_same")


def test_means_by_kind_are_means_of_the_rows(result):
    rows, kinds = result.rows(), result.summary["kinds"]
    for by in ("word", "place", "frequency"):
        times = select(kinds, by=by, metric="when")
        assert sum(row["tokens"] for row in times) == len(rows)
        for row in times:
            own = [each["when"] for each in rows if each[by] == row["token_kind"]]
            assert row["mean"] == pytest.approx(sum(own) / len(own))
            thirds = [
                select(kinds, by=by, token_kind=row["token_kind"], metric=f"{third}_third")[0]
                for third in ("first", "second", "last")
            ]
            assert sum(third["mean"] for third in thirds) == pytest.approx(1)
    for model, split, place in distinct(result.summary["map"], "model", "split", "place"):
        cells = select(result.summary["map"], model=model, split=split, place=place)
        assert sum(cell["share"] for cell in cells) == pytest.approx(1)


def test_an_order_that_is_known(masked, corpus, tmp_path):
    """From the left, one token at a time: beginnings come first, on every text."""
    how = SMALL | {"limit": 8, "steps": 30, "plan": "linear", "order": "left"}
    result = ask(MEASURE, [masked], corpus, tmp_path / "left", **how)
    (row,) = result.summary["differences"]
    # The corpus has four facts a group.
    assert row["mean"] > 0 and (row["outcome"], row["facts"]) == ("too few", 4)
    assert "(4 facts). [too few facts]" in show(result)


def test_autoregressive_models_have_no_order(result, causal, corpus, tmp_path):
    assert result.kinds == {"mdm": "masked"}
    with pytest.raises(UserError, match="expected at least one diffusion model"):
        ask(MEASURE, [causal], corpus, tmp_path / "none", **SMALL)


def test_figures_have_each_text_and_each_kind(result):
    figures = {block.name: block for block in result.section.walk() if isinstance(block, Figure)}
    asked = figures["unmasking"].controls[0]
    assert asked.label == "asked" and asked.options[0] == "name → description, reversed"
    for choice, way in (((0, 0), asked.options[0]), ((1, 0), asked.options[1])):
        panels = figures["unmasking"].views[choice]  # both models both ways
        assert [panel.title for panel in panels] == ["mdm (diffusion)", "ar (autoregressive)"] * 2
        assert panels[0].way == panels[1].way == way != panels[2].way == panels[3].way
        assert [panel.is_causal for panel in panels] == [False, True] * 2
    panel, *_ = figures["unmasking"].views[0, 0]
    assert panel.title == "mdm (diffusion)" and not panel.is_hit
    assert len(panel.pieces) == len(panel.steps) == len(panel.guesses)
    known, *_ = figures["unmasking"].views[1, 0]
    assert known.is_hit and known.pieces[-1] == "⏎" and known.expected in "".join(known.pieces)
    (heatmap,) = figures["order-map"].views[0,]
    assert [len(line) for line in heatmap.z] == [4] * len(heatmap.y) and len(heatmap.notes)
    assert len(figures["order"].views) == 3 * 5  # ways of telling kinds, metrics
    assert result.section == read_result(result.folder).section


def test_two_seeds_and_two_models_and_runs_beside_each_other(masked, corpus, tokenizer, tmp_path):
    other = make_oracle(corpus, ("d2p_reverse",), tokenizer)
    both = Family("both", (*masked.members, other), "masked")
    result = ask(MEASURE, [masked, both], corpus, tmp_path / "both", **SMALL)
    assert distinct(result.rows(), "model", "seed") == [("mdm", 0), ("both", 0), ("both", 1)]
    views = next(block for block in result.section.walk() if isinstance(block, Figure)).views
    shown = ["mdm (diffusion)", "both (diffusion)"]
    assert [panel.title for panel in views[0, 0]] == 2 * shown
    alone = ask(MEASURE, [masked], corpus, tmp_path / "alone", **SMALL)
    pooled = pool_results([alone, result])
    assert set(pooled.kinds) == {"alone: mdm", "both: mdm", "both"} and show(pooled)
    when = select(pooled.summary["kinds"], metric="when")
    one, two = (
        [row["mean"] for row in select(when, model=f"{run}: mdm")] for run in ("alone", "both")
    )
    assert one == two


def test_lines_of_a_text_file(tmp_path):
    model = make_model()
    family = Family("made", (model,), "masked")
    path = tmp_path / "prompts.txt"
    path.write_text("The caves of\n\nThe baker\nThe\n")
    how = {"limit": 2, "steps": 4, "length": 20}
    result = ask(MEASURE, [family], path, tmp_path / "run", **how)
    assert distinct(result.rows(), "fact", "prompt", "split") == [
        ("line-1", "prompts 0", "prompts"),
        ("line-2", "prompts 1", "prompts"),
    ]
    assert {row["hit"] for row in result.rows("unmasking")} == {None} and show(result)
    path.write_text("\n")
    with pytest.raises(UserError, match="has no line of text: expected a prompt on every line"):
        ask(MEASURE, [family], path, tmp_path / "empty")
    with pytest.raises(UserError, match="absent.txt is not there"):
        ask(MEASURE, [family], tmp_path / "absent.txt", tmp_path / "absent")
    with pytest.raises(UserError, match="plan 'lines' is unknown"):
        list(MEASURE.jobs(None, OrderSettings(plan="lines")))


def test_running_text(tmp_path):
    """Beginnings of documents that are long enough; a file of facts is none."""
    family = Family("made", (make_model(),), "masked")
    documents = [f"Number {i} of the caves: " + "water and stone " * 5 for i in range(4)]
    lines = [json.dumps({"title": "a cave", "text": text}) for text in ("short", *documents)]
    path = tmp_path / "text.jsonl.xz"
    path.write_bytes(lzma.compress("\n".join(lines).encode()))
    how = {"limit": 3, "steps": 4, "length": 40, "words": 6, "examples": 1}
    result = ask(MEASURE, [family], path, tmp_path / "run", **how)
    assert {row["split"] for row in result.rows()} == {"running_text"}
    assert distinct(result.rows(), "fact") == ["document-1", "document-2", "document-3"]
    assert distinct(result.rows("unmasking"), "prompt") == ["Number 0 of the caves: water"]
    with pytest.raises(UserError, match="no document of 80 words: give fewer by --words"):
        ask(MEASURE, [family], path, tmp_path / "few", words=40)


def test_classes_of_words_are_compared_by_fact():
    """On rows by hand: function words a quarter of the steps before other words, names after."""
    times = {"function word": 0.25, "other word": 0.5, "name": 0.75}
    rows = [
        {"model": "mdm", "kind": "masked", "seed": 0, "fact": f"f{i}", "word": word, "when": when,
         "split": "own", "prompt": f"own {i}", "position": j, "step": j + 1, "confidence": 0.5,
         "place": "first quarter", "frequency": "rarer half"}
        for i in range(8)
        for j, (word, when) in enumerate(times.items())
    ]  # fmt: skip
    tables = {"order": pyarrow.Table.from_pylist(rows)}
    summary = MEASURE.summarise(tables, OrderSettings())
    found = {row["word"]: row["mean"] for row in summary["classes"]}
    assert found == {"function word": -0.25, "name": 0.25}
    outcomes = {row["word"]: row["outcome"] for row in summary["classes"]}
    assert outcomes == {"function word": "below", "name": "above"}
