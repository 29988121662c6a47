"""What of a fact is traced, and what is kept of it: phrasings, whole roles, condensed tables."""

from dataclasses import replace

import pytest

from tests.measures.asking import show
from tests.measures.test_trace import trace
from tests.tracing.learned import make_facts
from unmask.measures.trace_section import find_best_subject
from unmask.tracing.settings import JOINT_ROLES
from unmask.tracing.table import RESULT


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
    assert "the clean state of the whole subject at layer" in text
