"""Two trainings of a model, the second with swapped roles: one model, paired by fact."""

from dataclasses import replace

import pytest

from tests.measures.test_trace import trace
from tests.measures.test_trace_runs import FEW
from tests.tracing.learned import make_facts
from unmask import UserError
from unmask.blocks.tidy import select
from unmask.data.corpus import Corpus
from unmask.measures.knockout import MEASURE as KNOCKOUT
from unmask.measures.runner import pool_results
from unmask.measures.trainings import number_trainings

CUT = {"at": ("first",), "steps": 6, "length": 16, "samples": 2, "windows": (1,), "facts": 3}


def make_corpora():
    """Half of the facts trained each way, and all of them asked the same way; then swapped."""
    facts = make_facts()
    ids = list(dict.fromkeys(fact.fact_id for fact in facts))
    corpora = []
    for swap in (False, True):
        splits: dict = {"p2d_same": [], "d2p_reverse": []}
        for fact in facts:
            is_trained = (ids.index(fact.fact_id) % 2 == 0) != swap
            split = "p2d_same" if is_trained else "d2p_reverse"
            splits[split].append(replace(fact, trained="same" if is_trained else "reverse"))
        corpora.append(Corpus(f"swapped: {swap}", splits, tuple(splits)))
    return corpora


@pytest.fixture(scope="module")
def corpora():
    return make_corpora()


@pytest.fixture(scope="module")
def traced(masked, corpora, tmp_path_factory):
    """A run of each training; the weights are the same here."""
    folder = tmp_path_factory.mktemp("trainings")
    return [trace(masked, each, out=folder / str(i), **FEW) for i, each in enumerate(corpora)]


def test_the_same_prompts_are_asked_as_trained_and_reversed(traced):
    pooled = pool_results(traced)
    counts = {row["split"]: row for row in pooled.summary["counts"]}
    assert {row["model"] for row in counts.values()} == {"masked"}
    facts = pooled.rows("facts")
    by_split = [{row["fact"] for row in select(facts, split=split)} for split in counts]
    assert by_split[0] == by_split[1] and len(by_split[0]) > 2
    assert {row["seed"] for row in facts} == {0, 1}
    # A prompt has one training that showed it so, and one that did not.
    ways = {(row["fact"], row["phrasing"], row["seed"]): row["trained"] for row in facts}
    for (fact, phrasing, seed), trained in ways.items():
        assert ways[fact, phrasing, 1 - seed] != trained
    tests = pooled.summary["tests"]
    assert tests and all(row["paired"] for row in tests)
    assert {(row["split"], row["other_split"]) for row in tests} == {("d2p_reverse", "p2d_same")}
    # The same weights twice: each fact's effects are the same in both groups.
    assert all(abs(row["mean"]) < 1e-6 for row in tests)
    assert "paired" in str(pooled.section)


def test_one_training_twice_is_told_apart(traced, causal, corpora, tmp_path):
    other = trace(replace(causal, name="masked"), corpora[0], out=tmp_path / "other", **FEW)
    pooled = pool_results([traced[0], other])
    assert {row["model"] for row in pooled.summary["counts"]} == {"0: masked", "other: masked"}


def test_trainings_are_traced_alike(traced, masked, corpora, tmp_path):
    other = trace(masked, corpora[1], out=tmp_path, **FEW | {"order": "left"})
    with pytest.raises(UserError, match=r"masked differ in order \(confidence, left\)"):
        pool_results([traced[0], other])


def test_knockouts_are_paired_as_well(causal, corpora, tmp_path):
    runs = [
        KNOCKOUT(causal, corpus, out=tmp_path / str(i), device="cpu", **CUT)
        for i, corpus in enumerate(corpora)
    ]
    tests = pool_results(runs).summary["tests"]
    assert tests and all(row["paired"] and row["model"] == "causal" for row in tests)
    assert all(abs(row["mean"]) < 1e-6 for row in tests)


def test_trainings_are_told_by_their_facts():
    row = {"model": "m", "fact": "a", "direction": "p2d", "trained": "same"}
    two_way = row | {"fact": "both"}
    swapped = row | {"trained": "reverse"}
    assert number_trainings([[row, two_way], [swapped, two_way], [row]]) == [
        {"m": 0}, {"m": 1}, {"m": 0}
    ]  # fmt: skip
    assert number_trainings([[row], [swapped | {"model": "n"}]]) == [{"m": 0}, {"n": 0}]
