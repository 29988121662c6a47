"""Subspaces as a measure: what is asked, how layer and rank are chosen, what follows."""

import pytest

import unmask
from unmask import UserError
from unmask.blocks.tidy import select
from unmask.compiled.mechanisms import build_compiled
from unmask.evaluation.equivalence import divide
from unmask.experiments.subspaces.exchanges import HELD_OUT, TRAINED, Condition
from unmask.experiments.subspaces.section import choose_cell, choose_rows, find_worst

FEW = {"ranks": (8,), "updates": 1, "rows": 8, "phrasings": 1, "sources": 2, "device": "cpu"}
ONE = {"variables": ("fact",), "ways": ("within",), "roles": ("subject",)}
FEW |= {"known": 0, "length": 12, "layers": (1,)}


@pytest.fixture(scope="module")
def result():
    """A hand-written network of one store, asked as a model is, by facts that it holds."""
    compiled = build_compiled("one store")
    facts = [fact for fact in compiled.facts if fact.phrasing < 2]
    return unmask.subspaces(compiled.model, data=facts, splits=("p2d_same",), facts=8, **FEW)


def test_every_condition_is_searched_and_asked(result):
    rows = result.tables["subspaces"].to_pylist()
    conditions = {(row["variable"], row["way"], row["role"]) for row in rows}
    assert conditions == {
        ("fact", "within", "subject"), ("fact", "within", "answer"),
        ("fact", "across", "subject"), ("fact", "across", "answer"),
        ("fact", "steps", "subject"), ("fact", "steps", "answer"),
        ("direction", "across", "answer"), ("answer", "across", "answer"),
    }  # fmt: skip
    assert {row["subspace"] for row in rows} == {
        "aligned", "permuted", "untrained", "random", "noise", "whole",
    }  # fmt: skip
    people = {
        name: {row["fact"] for row in select(rows, people=name)} for name in (TRAINED, HELD_OUT)
    }
    assert people[TRAINED].isdisjoint(people[HELD_OUT])
    assert {row["phrasing"] for row in rows} == {1}  # searches had the others
    # Of the whole state everything follows, for facts held out as well: the program reads it.
    whole = select(rows, subspace="whole", variable="fact", way="within", role="subject")
    assert all(row["brings"] == 1.0 and row["keeps"] == 0.0 for row in whole)
    searches = result.tables["searches"].to_pylist()
    assert {row["way"] for row in searches} == {"within", "across"}  # one for both steps


def test_results_are_of_held_out_facts_and_of_the_worst_control(result):
    summary, texts = result.summary, [getattr(block, "text", "") for block in result.section.blocks]
    assert sum("worst control (" in text for text in texts) == 8
    assert sum("across directions" in text for text in texts) == 1
    whole = select(summary["means"], subspace="whole", metric="brings")
    assert len(whole) == 8 and max(row["facts"] for row in whole) == 4


def make_rows(fact: str, shares: dict[int, float], rival: float = 0.1) -> list[dict]:
    """Rows of a held-out fact: what the aligned subspace brings by its rank."""
    place = {"layer": 1, "people": HELD_OUT, "fact": fact}
    controls = ("permuted", "untrained", "random", "noise")
    return [
        *({**place, "rank": rank, "subspace": "aligned", "brings": x}
          for rank, x in shares.items()),
        *({**place, "rank": rank, "subspace": name, "brings": rival}
          for rank in shares for name in controls),
        {**place, "rank": 64, "subspace": "whole", "brings": 1.0},
    ]  # fmt: skip


def test_each_half_is_read_at_the_rank_that_is_best_for_the_other():
    halves = divide(f"fact-{i}" for i in range(8))
    best = {0: {2: 0.9, 8: 0.3}, 1: {2: 0.2, 8: 0.8}}
    rows = [row for fact, half in halves.items() for row in make_rows(fact, best[half])]
    chosen = list(choose_rows(rows))
    shares = {halves[row["fact"]]: row["brings"] for row in select(chosen, subspace="aligned")}
    assert shares == {0: 0.3, 1: 0.2}
    assert {row["chosen"] for row in chosen} == {"layer 1, rank 8 / layer 1, rank 2"}
    assert len(select(chosen, subspace="whole")) == 8
    equal = make_rows("fact", {2: 0.5, 8: 0.5})
    assert choose_cell([row for row in equal if row["subspace"] != "whole"]) == (1, 2)
    differences = [{"minus": "random", "mean": 0.5}, {"minus": "permuted", "mean": 0.1}]
    assert find_worst(differences)["minus"] == "permuted"


def test_conditions_and_mistakes():
    assert not Condition("direction", "within", "answer").is_asked
    assert not Condition("answer", "across", "subject").is_asked
    assert Condition("fact", "steps", "answer").searched.way == "within"
    compiled = build_compiled("one store")
    model, facts = compiled.model, [fact for fact in compiled.facts if fact.phrasing == 0]
    with pytest.raises(UserError, match="name the way across"):
        unmask.subspaces(model, data=facts, variables=("direction",), ways=("within",), known=0)
    with pytest.raises(UserError, match="No states were exchanged"):  # no phrasing is left
        unmask.subspaces(model, data=facts, **FEW, **ONE)


@pytest.mark.prove
def test_one_store_is_told_from_two():
    """Two networks each: the fact and the direction cross in one store, and not in two."""
    facts = [fact for fact in build_compiled("one store").facts if fact.phrasing < 2]
    model = build_compiled("one store").model
    result = unmask.subspaces(model, data=facts, **FEW | ONE | {"known": 2})
    worst = {}
    for row in result.summary["known_differences"]:
        key = row["mechanism"], row["variable"]
        worst[key] = min(worst.get(key, 1.0), row["mean"])
    assert min(worst["one store", "fact"], worst["one store", "direction"]) >= 0.3
    assert max(worst["two stores", "fact"], worst["two stores", "direction"]) < 0.3
