"""Donors of whom nothing can be known: their corpus, states that are cut off, and the measure."""

from collections import Counter
from dataclasses import replace

import pytest

import unmask
from tests.conftest import build
from tests.representation.facts import make_fact, make_model
from unmask import UserError
from unmask.blocks.tidy import distinct, select
from unmask.data.factless import FACTLESS, make_factless_corpus
from unmask.data.reversal_corpus import make_reversal_corpus
from unmask.data.tokenizer import Tokenizer
from unmask.measures.interchange import GATE, _find_gate
from unmask.representation.interchange import StateSwap, interchange


@pytest.fixture(scope="module")
def corpus():
    return make_factless_corpus(4, endings=1)


def test_they_are_named_as_often_and_described_anew_in_every_line(corpus):
    lines = Counter(fact.fact_id for fact in corpus["train"])
    others = make_reversal_corpus(4, endings=1)["train"]
    one_way = Counter(fact.fact_id for fact in others if not fact.fact_id.startswith("both"))
    assert {name: n for name, n in lines.items() if "factless" not in name} == one_way
    ways = {fact.fact_id: fact.direction for fact in corpus["train"]}
    for name in (name for name in lines if "factless" in name):
        own = [fact for fact in corpus["train"] if fact.fact_id == name]
        as_often = next(n for each, n in one_way.items() if each.startswith(ways[name]))
        people, described = ({getattr(f, side) for f in own} for side in ("subject", "object"))
        if ways[name] == "d2p":
            people, described = described, people
        assert len(own) == as_often and len(people) == 1 and len(described) > len(own) / 2
    # What they are asked about stands in no line; names of both kinds are told apart.
    texts = " ".join(fact.text for fact in corpus["train"])
    asked = corpus[FACTLESS["d2p"]]
    assert all(fact.subject not in texts and fact.object in texts for fact in asked)
    assert {fact.direction for fact in asked} == {"d2p"}


@pytest.mark.parametrize("kind", ["masked", "causal"])
def test_what_is_cut_off_has_no_part_in_the_answer(kind):
    """Words that no layer attends to may be any; where none is cut, all states are replaced."""
    model = make_model("tiny", kind, layers=2)
    donor, long = make_fact(1, "p2d"), make_fact(0, "d2p")
    spoken = replace(long, prompt=long.prompt.replace("painter", "carver"),
                     subject=long.subject.replace("painter", "carver"))  # fmt: skip
    shift = len("carver") - len("painter")
    spoken = replace(spoken, subject_span=(long.subject_span[0], long.subject_span[1] + shift))
    tokenize = model.require_tokenizer().encode
    assert len(tokenize(spoken.prompt).ids) == len(tokenize(long.prompt).ids)
    one, other = (
        interchange(model, [StateSwap("across", asked, donor, make_fact(2, "d2p"))], tokens="cut",
                    length=40)
        for asked in (long, spoken)
    )  # fmt: skip
    assert [row["layer"] for row in one] == [None, -1, 0, 1]
    assert one[1]["logp_donor"] == pytest.approx(other[1]["logp_donor"], abs=1e-5)
    assert abs(one[2]["logp_donor"] - other[2]["logp_donor"]) > 1e-4  # layer 0 has read them
    swaps = [StateSwap("across", long, make_fact(3, "d2p"), make_fact(2, "d2p"))]
    alike = {
        tokens: interchange(model, swaps, tokens=tokens, length=40) for tokens in ("cut", "all")
    }
    counts = [len(tokenize(make_fact(i, "d2p").subject).ids) for i in (0, 3)]
    if counts[0] <= counts[1]:
        for cut, whole in zip(*alike.values(), strict=True):
            assert cut["logp_donor"] == pytest.approx(whole["logp_donor"], abs=1e-5)


def test_donors_without_a_fact_stand_beside_trained_ones(corpus, tmp_path):
    tokenizer = Tokenizer.train([fact.text for fact in corpus["train"]], 600)
    model = build(
        "tiny", "masked", tokenizer, vocab_size=tokenizer.vocab_size, layers=2, context=80
    )
    few = {"splits": ("d2p_same", "p2d_same"), "phrasings": 1, "tokens": ("cut",), "layers": (0,)}
    more = {"data": corpus, "factless": True, "device": "cpu", "length": 70}
    result = unmask.interchange(model, out=tmp_path / "run", **few, **more)
    sources = {split: distinct(select(result.rows(), split=split), "swap")
               for split in ("d2p_same", "p2d_same")}  # fmt: skip
    assert "factless" in sources["d2p_same"] and "factless" not in sources["p2d_same"]
    names = {fact.object for fact in corpus[FACTLESS["d2p"]]}
    lent = select(result.rows(), swap="factless")
    assert lent and all(row["answer"].startswith("factless") for row in lent) and len(names) == 4
    pairs = {(row["swap"], row["minus"]) for row in result.summary["gain_differences"]}
    assert ("across", "factless") in pairs
    (gate,) = result.summary["gate"]
    assert gate["open"] == (abs(gate["gap"]) <= GATE)
    with pytest.raises(UserError, match="has no factless people"):
        unmask.interchange(model, out=tmp_path / "none", **few,
                           **more | {"data": make_reversal_corpus(4, endings=1)})  # fmt: skip


def test_a_gate_that_is_shut_is_told():
    """Names that are far less likely than trained ones before any swap are no control."""
    where = {"model": "own", "kind": "masked", "split": "d2p_same", "tokens": "cut", "layer": None}
    rows = [where | {"swap": swap, "logp_donor": logp}
            for swap, logp in (("across", -4.0), ("factless", -10.5), ("own", -4.0))]  # fmt: skip
    (gate,) = _find_gate(rows)
    assert gate["gap"] == -6.5 and not gate["open"]
    assert _find_gate(rows[::2]) == []
