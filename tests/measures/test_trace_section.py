"""trace: one rule for what is clear, and a section that says first what was found."""

from dataclasses import fields, replace

import pyarrow
import pytest

from tests.measures.asking import show
from tests.measures.test_trace import make_wrong, trace
from tests.scripts import ROOT
from tests.tracing.learned import make_facts
from unmask.blocks import labels
from unmask.blocks.blocks import Figure, Finding, Notice, Table, is_clear
from unmask.blocks.tidy import select
from unmask.evaluation.statistics import ALPHA, ENOUGH
from unmask.measures.clean_runs import count_prompts
from unmask.measures.runner import read_result
from unmask.measures.trace import MEASURE, TraceSettings
from unmask.measures.trace_effects import OTHER_TOKEN, TOTAL
from unmask.measures.trace_section import (
    NOISE,
    TAKEN_AWAY,
    draw_roles,
    find_best_subject,
    tabulate_bands,
)
from unmask.report.stored import list_stored
from unmask.report.style import find_range
from unmask.tracing.corruption import CORRUPTIONS
from unmask.tracing.metrics import METRICS
from unmask.tracing.settings import PARTS
from unmask.tracing.table import OTHER_FACT, PLACEBO_ROLES, RANDOM, RESULT, SHUFFLED, SUBJECT_ROLES


@pytest.fixture(scope="module")
def done(masked, causal):
    """Both models in one run."""
    return trace(masked, causal, make_wrong())


MAPPED = {"corruption": "mean", "stage": "first", "facts": 3, "low": 0.0, "high": 0.0}


def make_row(mean, part="resid", role="last subject", layer=0, **changes):
    cell = {"part": part, "role": role, "layer": layer, "head": -1, "control": RESULT}
    return cell | {"mean": mean} | changes


def test_the_best_of_the_subject_is_a_state_where_there_are_any():
    rows = [make_row(mean, layer=layer) for layer, mean in enumerate((1.0, 3.0, 2.0))]
    rows += [make_row(9.0, "mlp"), make_row(9.0, role="answer mask")]
    assert find_best_subject(rows) == rows[1]
    heads = [make_row(head / 2, "attn_z", layer=3, head=head) for head in (1, 2, 0)]
    assert find_best_subject(heads) == heads[1]
    assert find_best_subject(rows[-1:]) is None


def test_the_section_says_first_what_was_found(done):
    findings = [block for block in done.section.blocks if isinstance(block, Finding)]
    assert done.section.blocks[:2] == findings
    for finding, name in zip(findings, ("masked", "causal"), strict=True):
        where = {"model": name, "stage": "first", "control": RESULT}
        best = find_best_subject(select(done.summary["shares"], **where))
        (total,) = select(done.summary["averages"], part=TOTAL, **where)
        assert f"In {name}, on own facts" in finding.text and finding.outcome == best["outcome"]
        assert f"{total['mean']:.3f} [" in finding.text
        if best["mean"] < 0:
            assert "none of its states gives any of it back" in finding.text and not finding.brief
            continue
        assert f"at layer {best['layer']}" in finding.text and "gives back" in finding.brief
        assert f"{best['mean']:.3f} [" in finding.text and f"{best['mean']:.3f}" in finding.brief
    figures = [block for block in done.section.walk() if isinstance(block, Figure)]
    assert [figure.name for figure in figures] == ["effects", "texts"]
    for figure in figures:
        assert figure.controls[0].label == "asked" and figure.views
    assert all(len(panels) == 2 for panels in figures[0].views.values())
    tables = [block.name for block in done.section.walk() if isinstance(block, Table)]
    assert tables == ["groups", "shares", "counts"]  # four facts have no bands to compare
    text = " ".join(show(done).split())
    # Two models scored in two ways are not compared in size.
    assert "not how large they are; `--joint chain_rule`" in text and "1 not recalled" in text


def test_three_maps_stand_beside_a_reversed_question():
    """Reversed and as trained, on the same rows and a scale that no answer read there stretches."""
    traced = [("mdm", "masked", "p2d_reverse"), ("mdm", "masked", "d2p_same")]
    traced += [("ar", "causal", "d2p_same"), ("ar", "causal", "p2d_same")]
    rows = [
        make_row(mean, role=role, layer=layer, model=model, kind=kind, split=split, **MAPPED)
        for model, kind, split in traced
        for role, mean in (("last subject", 2.0), ("last prompt", 7.0 if kind == "causal" else 1.0))
        for layer in (0, 1)
    ]
    group = {"model": "mdm", "kind": "masked", "split": "p2d_reverse", **MAPPED}
    rows += [make_row(99.0, role="answer mask", layer=1, **group)]
    figure = draw_roles(rows, {"mode": "restore", "metric": "logp"})
    ways = figure.controls[0].options
    panels = figure.views[ways.index("description → name, reversed"),]
    assert [panel.title for panel in panels] == [
        "mdm, reversed",
        "mdm, as trained",
        "ar, as trained",
    ]
    assert len({tuple(panel.y) for panel in panels}) == 1 and "answer, still masked" in panels[0].y
    assert panels[1].z[panels[1].y.index("answer, still masked")] == [None, None]
    assert find_range(figure, [panels]) == (-2.0, 2.0)
    (alone,) = figure.views[ways.index("name → description, as trained"),]
    assert alone.title == "ar, as trained"


def test_every_comparison_has_its_outcome():
    """Of a kept run: it follows from the row's own numbers."""
    summary = read_result(ROOT / "docs/results/tables/pretrained-facts/trace").summary
    for row in (*summary["tests"], *summary["bands"]):
        wanted = "alike" if row.get("p_equivalent", 1.0) <= ALPHA else "unsettled"
        if row["p_holm"] <= ALPHA:
            wanted = "above" if row["mean"] > 0 else "below"
        assert row["outcome"] == ("too few" if row["facts"] < ENOUGH else wanted)
    table = tabulate_bands(summary["bands"])
    outcomes = [row["outcome"] for row in summary["bands"]]
    differ = outcomes.count("above") + outcomes.count("below")
    assert f"{differ} of {len(outcomes)} differ" in table.caption and differ > 0
    assert f"{outcomes.count('alike')} are alike" in table.caption and "alike" in outcomes
    assert [row.role == "strong" for row in table.rows] == list(map(is_clear, outcomes))


def test_models_scored_alike_may_be_compared(masked, causal):
    settings = {"facts": 2, "phrasings": 1, "at": ("first",), "parts": ("resid",)}
    found = trace(masked, causal, make_facts(), joint="chain_rule", **settings)
    assert "not how large" not in show(found)


def test_what_misleads_where_the_truth_is_known_is_said(done):
    """Noise in a model that never meets it, and means in the place of states."""
    changed = replace(done, settings=replace(done.settings, corruption="mask", mode="mean"))
    (noise, means) = ([each.text for each in result.section.blocks if isinstance(each, Notice)]
                      for result in (done, changed))  # fmt: skip
    assert NOISE in noise and TAKEN_AWAY not in noise
    assert TAKEN_AWAY in means and NOISE not in means


def test_heads_ablated_and_severed_reach_the_section(causal):
    few = {"facts": 2, "phrasings": 1, "at": ("first",)}
    heads = show(trace(causal, make_facts(), parts=("attn_z",), mode="ablate", **few))
    heads = " ".join(heads.split())
    assert "replacing the attention head of the" in heads and "`mode`: ablate" in heads
    more = {"run": "free_running", "severed": "mlp", "parts": ("resid",)}
    free = show(trace(causal, make_facts(), **more, **few))
    assert "`run`: free_running" in free and "`severed`: mlp" in free


def test_every_id_has_its_words(done):
    """Names that the command line takes, tables hold and readers see are the same sets."""
    roles = {row["role"] for row in done.rows() if row["token"] >= 0}
    assert {*roles, *SUBJECT_ROLES, *PLACEBO_ROLES} <= set(labels.ROLES)
    assert set(labels.PARTS) == set(PARTS)
    assert set(labels.CORRUPTIONS) == set(CORRUPTIONS)
    assert set(labels.METRICS) == set(METRICS)
    assert set(labels.PLACEBOS) == {OTHER_TOKEN, OTHER_FACT, SHUFFLED, RANDOM}
    helps = {field.name: field.metadata["help"] for field in fields(TraceSettings)}
    for name, table in (("corruption", CORRUPTIONS), ("metric", METRICS), ("parts", PARTS)):
        assert all(each in helps[name] for each in table)


def test_facts_kept_of_every_model_are_counted():
    usual = {"kind": "masked", "split": "own", "corruption": "mean", "seed": 0, "joint": "mean"}
    rows = [
        usual | {"model": model, "fact": fact, "kept": fact in kept, "reason": "not recalled"}
        for model, kept in (("one", "abc"), ("other", "bcd"))
        for fact in "abcd"
    ]
    counts = count_prompts({"facts": pyarrow.Table.from_pylist(rows)})
    assert [(row["kept"], row["facts"], row["shared"]) for row in counts] == [(3, 3, 2)] * 2
    assert {row["left_out"] for row in counts} == {"1 not recalled"}


@pytest.mark.parametrize("stored", list_stored("trace"), ids=lambda stored: stored.pair)
def test_stored_traces_are_read(stored):
    finding, figure = MEASURE.draw_stored(stored.file)
    assert finding.outcome == "above" and "more than every placebo" in finding.text
    assert figure.views and all(panel.z for panels in figure.views.values() for panel in panels)
