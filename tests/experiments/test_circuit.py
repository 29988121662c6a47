"""Circuits as a measure: where the mechanism is known, and on models that learned facts."""

import pytest

import unmask
from tests.tracing.conftest import causal, masked
from tests.tracing.learned import make_facts
from unmask.blocks.tidy import select
from unmask.compiled.mechanisms import build_compiled
from unmask.compiled.paths import list_needed_paths
from unmask.experiments.bench.methods import METHODS, integrate_gradients
from unmask.experiments.bench.networks import list_networks
from unmask.experiments.bench.task import list_localisations
from unmask.experiments.circuit.overlap import compare_circuits
from unmask.experiments.circuit.work import judge_known

__all__ = ["causal", "masked"]


@pytest.mark.parametrize("mechanism", ["two stores", "relay"])
def test_exact_edges_find_what_the_program_says_and_chance_does_not(mechanism):
    (network,) = list_networks((mechanism,), 1)
    rows = judge_known(network, 2)["known"]
    areas = {row["screen"]: row["auroc"] for row in rows}
    assert areas["exact"] >= 0.99
    assert 0.5 < areas["attribution"] <= 1.0 and 0.5 < areas["integrated"] <= 1.0
    assert 0.2 < areas["random"] < 0.8


def test_edges_that_a_program_needs_lead_from_the_subject_to_the_word():
    compiled = build_compiled("two stores")
    task = list_localisations(compiled)[0]
    paths = list_needed_paths(compiled)[1]
    heads, layers = compiled.model.net.config.heads, compiled.model.net.config.layers
    logits = 1 + layers * (heads + 1)
    begins = {place for _, _, read, place in paths if read == 0}
    assert begins <= {*range(*task.subject)}  # only the subject differs between questions
    assert {at for reader, at, _, _ in paths if reader == logits} == {task.reads}
    # Every edge is reached from the tokens, and leads to the word.
    written = {(reader, at) for reader, at, _, _ in paths}
    assert all(read == 0 or (read, place) in written for _, _, read, place in paths)


def test_integrated_gradients_are_a_method_of_the_bench():
    task = list_localisations(build_compiled("two stores"))[0]
    scores = integrate_gradients(task)
    assert METHODS["integrated-gradients"] is integrate_gradients
    before = range(task.subject[0])
    assert float(scores["resid"][list(before)].abs().max()) < 1e-3
    # What leaves the last layer where the word is read carries all of it.
    assert float(scores["resid"][task.reads, -1]) == float(scores["resid"].max())


@pytest.fixture(scope="module")
def result(masked, causal):
    return unmask.circuit(
        masked,
        causal,
        data=make_facts(),
        facts=2,
        at=("t1",),
        steps=4,
        known=0,
        edges=1.0,
        points=1,
        neurons=2,
    )


def test_everything_that_a_circuit_has_is_told(result):
    tables = {name: table.to_pylist() for name, table in result.tables.items()}
    assert {row["role"] for row in tables["circuit"]} >= {"last", "answer"}
    steps = tables["steps"]
    assert all(row["measured"] == row["edges"] for row in steps)  # all edges are exact
    exact, random = (select(steps, screen=name) for name in ("exact", "random"))
    assert sum(row["cmd"] for row in exact) < sum(row["cmd"] for row in random)
    agreement = result.summary["agreement"]
    assert all(0 <= row["mean"] <= 1 for row in select(agreement, metric="found"))
    (figure,) = [each for each in result.section.blocks if type(each).__name__ == "Figure"]
    assert "committed" in figure.caption
    kept = [row for row in tables["facts"] if row["kept"]]
    assert kept and len(tables["facts"]) == 4


def test_equal_circuits_share_all_and_shuffled_ones_what_chance_gives():
    def rows(split: str, turn: int):
        return [
            {"model": "m", "split": split, "stage": "t1", "fact": fact, "layer": layer,
             "part": "head", "head": head, "role": "last",
             "effect": float((7 * layer + 3 * head + turn) % 20)}
            for fact in range(6) for layer in range(5) for head in range(4)
        ]  # fmt: skip

    (same,) = compare_circuits([*rows("a", 0), *rows("b", 0)], 0)
    (other,) = compare_circuits([*rows("a", 0), *rows("b", 9)], 0)
    assert same["shared"] == 1.0 and same["p"] < 0.05 and same["outcome"] == "above"
    assert other["shared"] == 0.0 and other["outcome"] == "unsettled"
    assert same["null"] < 0.5
