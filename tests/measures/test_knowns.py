"""Plain knowledge: asked both ways, told apart by content, compared by fact."""

import json

import pytest
import torch

import unmask
from tests.conftest import lively
from tests.measures.asking import ask, show
from unmask import UserError
from unmask.blocks.tidy import distinct, select
from unmask.evaluation.knowns import ask_knowns, read_knowns
from unmask.measures.knowns import MEASURE
from unmask.net.families import Family
from unmask.net.model import Blueprint, Model

KNOWNS = [
    {"subject": "Orsel", "attribute": "caves", "prompt": "The deep of Orsel are the"},
    {"subject": "Wrenmouth", "attribute": "baker", "prompt": "Who sings in Wrenmouth is the"},
]


@pytest.fixture
def path(tmp_path):
    (tmp_path / "knowns.json").write_text(json.dumps(KNOWNS))
    return tmp_path / "knowns.json"


def make(path, causal: bool) -> Model:
    """A model that knows nothing."""
    texts = [f"{known.prompt} {known.attribute}" for known in read_knowns(path)] * 3
    tokenizer = unmask.Tokenizer.train(texts, 320)
    config = unmask.preset("tiny", vocab_size=tokenizer.vocab_size, causal=causal)
    kind = ("causal", None) if causal else ("masked", tokenizer.mask_id)
    model = Model("made", lively(config), Blueprint(config, *kind), tokenizer)
    model.net.head.weight.zero_()
    return model


@pytest.mark.parametrize("causal", [False, True])
def test_facts_are_asked_both_ways(path, causal):
    """With one token made likely, it is said everywhere, and right where it is the answer."""
    model = make(path, causal)
    (answer,) = model.tokenizer.encode(" caves").ids
    hint = torch.zeros(model.net.config.logit_rows)
    hint[answer] = 20.0
    with model.net.patch({"logits": lambda x: x + hint}):
        rows = list(ask_knowns(model, read_knowns(path)))
    ways = ["forward", "reverse"] + ([] if causal else ["reverse in place"])
    assert [row["way"] for row in rows] == [way for way in ways for _ in KNOWNS]
    assert rows[0]["hit"] and rows[0]["rank"] == 1 and rows[0]["entropy"] < 0.01
    assert not rows[1]["hit"] and rows[1]["top"][0] == rows[0]["answer"]
    assert "the blank stands for" in rows[2]["prompt"] and "___" in rows[2]["prompt"]
    if not causal:
        assert rows[4]["prompt"] == "The deep of ___ are the caves"


def test_the_section_compares_the_ways(path, tmp_path):
    families = [
        Family(name, (make(path, causal),), kind)
        for name, causal, kind in (("mdm", False, "masked"), ("ar", True, "causal"))
    ]
    result = ask(MEASURE, families, path, tmp_path / "run", examples=1)
    assert distinct(result.summary["means"], "model", "way") == [
        ("mdm", "forward"),
        ("mdm", "reverse"),
        ("mdm", "reverse in place"),
        ("ar", "forward"),
        ("ar", "reverse"),
    ]
    for row in result.summary["differences"]:
        forward, reverse = (
            select(result.summary["means"], model=row["model"], way=way, metric="hit")[0]["mean"]
            for way in ("forward", "reverse")
        )
        assert row["mean"] == forward - reverse
        assert row["outcome"] == "too few"
    for row in result.summary["outcomes"]:
        own = select(result.rows(), model=row["model"], way=row["way"])
        own = [each["entropy"] for each in own if each["hit"] == (row["metric"] == "right")]
        assert row["mean"] == pytest.approx(sum(own) / len(own)) and row["facts"] == len(own)
    assert sum(row["facts"] for row in result.summary["outcomes"]) == len(result.rows())
    assert len(result.summary["examples"]) == 5
    text = show(result)
    assert "right first token: forward" in text and "[too few facts]" in text
    assert "lower bound on knowledge" in text
    # How many are shown is no other run.
    more = ask(MEASURE, families, path, tmp_path / "run", examples=2)
    assert len(more.summary["examples"]) == 10


def test_a_run_is_known_by_the_content_of_its_file(path, tmp_path):
    family = Family("mdm", (make(path, False),), "masked")
    ask(MEASURE, [family], path, tmp_path / "run")
    path.write_text(json.dumps([KNOWNS[0] | {"attribute": "mines"}, KNOWNS[1]]))
    with pytest.raises(UserError, match="holds another run .the contents of the data changed"):
        ask(MEASURE, [family], path, tmp_path / "run")


def test_bad_input(path):
    for content, said in (
        ("[{]", "is not valid JSON"),
        ("subject,prompt", "not valid JSON .*; expected a JSON list of objects with subject"),
        ("{}", "expected a JSON list of objects"),
        ("[]", "holds no facts"),
        (json.dumps([{"subject": "a", "prompt": "a b"}]), "fact 0: 'attribute' is missing"),
        (json.dumps([KNOWNS[0] | {"subject": "Zorvia"}]), "'Zorvia' is not in its prompt"),
    ):
        path.write_text(content)
        with pytest.raises(UserError, match=said):
            read_knowns(path)
    with pytest.raises(UserError, match="the data are a list: expected the path of a JSON list"):
        MEASURE("reversal-mdm", data=KNOWNS)
    with pytest.raises(UserError, match="no data were given: expected a JSON list of facts"):
        MEASURE("reversal-mdm")
