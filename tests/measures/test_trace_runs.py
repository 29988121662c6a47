"""Runs of traces side by side; what of a fact is traced, and what is kept of it."""

from dataclasses import replace

import pytest

from tests.measures.asking import show
from tests.measures.test_trace import trace
from tests.tracing.learned import make_facts
from unmask import UserError
from unmask.blocks.blocks import Figure
from unmask.measures.runner import pool_results
from unmask.measures.trace_section import find_best_subject
from unmask.tracing.settings import JOINT_ROLES
from unmask.tracing.table import RESULT

FEW = {"at": ("first",), "parts": ("resid",), "phrasings": 1, "facts": 3}


@pytest.fixture(scope="module")
def runs(masked, causal, tmp_path_factory):
    """A run of each model, and both in one."""
    folder = tmp_path_factory.mktemp("runs")
    return {
        name: trace(*models, make_facts(), out=folder / name, **FEW)
        for name, models in (
            ("masked", [masked]),
            ("causal", [causal]),
            ("both", [masked, causal]),
        )
    }


def test_runs_pooled_are_what_one_run_says(runs):
    pooled = pool_results([runs["masked"], runs["causal"]])
    for name in ("averages", "tests", "counts", "texts"):
        assert pooled.summary[name] == runs["both"].summary[name]
    assert pooled.section == runs["both"].section


def test_corruptions_of_one_model_are_groups_of_their_own(runs, masked, tmp_path):
    mean = trace(masked, make_facts(), out=tmp_path, corruption="mean", **FEW)
    pooled = pool_results([runs["masked"], mean])
    parts = [row for run in (runs["masked"], mean) for row in run.summary["averages"]]
    assert sorted(map(repr, pooled.summary["averages"])) == sorted(map(repr, parts))
    figure = next(block for block in pooled.section.blocks if isinstance(block, Figure))
    assert figure.controls[-1].options == ["gaussian noise", "the mean embedding"]
    with pytest.raises(UserError, match="in two of these runs under one corruption"):
        pool_results([runs["both"], runs["masked"]])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"metric": "logp"}, r"these runs differ in metric \(logp, p\)"),
        ({"window": 1}, r"these runs differ in window \(1, 2\)"),
        ({"mode": "ablate"}, "these runs differ in mode"),
        ({"joint": "chain_rule"}, "these runs of masked differ in joint"),
        ({"steps": 4}, r"these runs of masked differ in steps \(4, 6\)"),
    ],
)
def test_runs_that_cannot_be_compared(runs, masked, tmp_path, changes, sentence):
    other = trace(masked, make_facts(), out=tmp_path, corruption="mean", **FEW | changes)
    with pytest.raises(UserError, match=f"{sentence}.*report them apart"):
        pool_results([runs["masked"], other])


def test_models_of_one_name_are_named_by_their_runs(runs, masked, causal, tmp_path):
    """Other weights under the same name are another model."""
    from dataclasses import replace

    other = trace(replace(causal, name="masked"), make_facts(), out=tmp_path / "other", **FEW)
    pooled = pool_results([runs["masked"], other])
    assert [row["model"] for row in pooled.summary["counts"]] == ["masked: masked", "other: masked"]


def test_the_first_recalled_phrasing_of_each_fact(causal):
    """The first phrasing has another answer in some facts; the second is then traced instead."""
    facts = []
    for fact in make_facts():
        number = int(fact.fact_id.removeprefix("fact-"))
        if fact.phrasing == 0 and number % 2:
            fact = replace(fact, object="wax boats", completion=" wax boats", object_span=(1, 10))
        facts.append(fact)
    how = {"phrasings": 1, "at": ("first",), "parts": ("resid",), "facts": 4}
    rows = trace(causal, facts, first_recalled=True, **how).rows("facts")
    kept = {(row["fact"], row["phrasing"]) for row in rows if row["kept"]}
    assert kept == {(f"fact-{i}", i % 2) for i in range(4)}
    assert rows[0]["considered"] == 8 and rows[0]["recalled"] == 6


def test_condensed_tables_say_the_same(masked, tmp_path):
    how = {"at": ("first",), "parts": ("resid", "mlp"), "facts": 3, "also": ("logp",)}
    whole, small = (
        trace(
            masked, make_facts(), condensed=small, out=tmp_path / str(small), together=True, **how
        )
        for small in (False, True)
    )
    assert len(small.rows()) < len(whole.rows()) / 2 and not small.summary["texts"]
    for name in ("averages", "further", "shares", "bands", "tests", "counts"):
        for one, other in zip(small.summary[name], whole.summary[name], strict=True):
            assert one == pytest.approx(other, abs=1e-9, nan_ok=True)
    assert show(small)


def test_roles_as_a_whole_in_a_run(masked, tmp_path):
    how = {"at": ("first",), "parts": ("resid",), "facts": 3, "phrasings": 1}
    both = ("other fact", "random direction")
    done = trace(masked, make_facts(), cells="roles", placebos=both, out=tmp_path, **how)
    rows = done.rows()
    roles = {row["role"] for row in rows if row["control"] == RESULT and row["layer"] >= 0}
    assert {"whole subject", "whole answer", "masks"} <= roles <= set(JOINT_ROLES)
    placebos = {(row["control"], row["role"]) for row in rows if row["layer"] >= 0}
    assert {(control, "whole answer") for control in both} <= placebos
    assert find_best_subject(done.summary["shares"])["role"] == "whole subject"
    assert {row["role"] for row in done.summary["shares"]} == roles
    text = show(done)
    assert "all positions of the answer" in text and "all other masks" in text
    is_positive = find_best_subject(done.summary["shares"])["mean"] >= 0
    assert ("the clean state of the whole subject at layer" in text) == is_positive
