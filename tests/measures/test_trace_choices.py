"""What of a fact is traced, and what is kept of it: phrasings, whole roles, condensed tables."""

from dataclasses import replace

import pytest

from tests.measures.asking import show
from tests.measures.test_trace import trace
from tests.tracing.learned import make_facts
from unmask.blocks import labels
from unmask.measures.trace_figures import draw_peaks
from unmask.measures.trace_summary import list_groups
from unmask.tracing.settings import JOINT_ROLES
from unmask.tracing.table import RESULT, SHUFFLED


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
    (group, *_) = list_groups(done.summary["averages"])
    assert group["best"]["role"] == "whole subject"
    assert {row["role"] for row in done.summary["shares"]} == roles
    text = show(done)
    assert "all positions of the answer" in text and "all other masks" in text
    assert "one clean state" not in text and "one state of the subject" not in text
    # Placebos are drawn, and spoken of where they are.
    bare = group | {"peaks": [cell | {"placebos": {}} for cell in group["peaks"]]}
    for each, names in ((group, (*both, SHUFFLED)), (bare, ())):
        figure = draw_peaks([each], {group["model"]: "masked"}, "p")
        dots = [dot for view in figure.views.values() for panel in view for dot in panel.dots]
        drawn = {dot.label for dot in dots if dot.group == "placebo"}
        assert drawn == {labels.PLACEBOS[name] for name in names}
        assert ("Placebos (grey)" in figure.caption) == bool(names)
