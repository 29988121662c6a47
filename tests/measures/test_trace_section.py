"""trace: one rule for what is clear, and a section that says first what was found."""

from dataclasses import fields

import pyarrow.compute as pc
import pytest

from tests.measures.asking import ask, show
from tests.measures.test_trace import USUAL, make_wrong, trace
from tests.tracing.learned import make_facts
from unmask.blocks import labels
from unmask.blocks.blocks import Figure, Finding
from unmask.measures.trace import MEASURE, TraceSettings
from unmask.measures.trace_effects import OTHER_TOKEN, PLACEBO, TOTAL
from unmask.measures.trace_summary import count_facts, judge, list_groups
from unmask.net.families import Family
from unmask.tracing.corruption import CORRUPTIONS
from unmask.tracing.metrics import METRICS
from unmask.tracing.settings import PARTS
from unmask.tracing.table import OTHER_FACT, PLACEBO_ROLES, RANDOM, RESULT, SHUFFLED, SUBJECT_ROLES


@pytest.fixture(scope="module")
def done(masked, causal):
    """Both models in one run."""
    return trace(masked, causal, make_wrong())


def read(result):
    """The section's text, however it is wrapped."""
    return " ".join(show(result).split())


def make_row(mean, part="resid", role="last subject", layer=0, **changes):
    group = {"model": "net", "kind": "masked", "split": "p2d_same", "corruption": "mask"}
    cell = {"part": part, "role": role, "layer": layer, "head": -1, "control": RESULT}
    value = {"mean": mean, "low": mean - 0.1, "high": mean + 0.1, "facts": 9, "prompts": 9}
    return group | cell | value | {"stage": "first"} | changes


def make_total(mean, **changes):
    return make_row(mean, TOTAL, "", -1, **changes)


def find_outcomes(rows):
    summary = {"averages": rows, "tests": []}
    return {each.claim.partition(": ")[2]: each.outcome for each in judge(summary, TraceSettings())}


@pytest.mark.parametrize("placebo", [OTHER_TOKEN, OTHER_FACT, SHUFFLED])
def test_a_cell_is_clear_above_every_placebo(placebo):
    """One rule: enough facts, above 0, above each of the three placebos that was measured."""
    role = PLACEBO if placebo == OTHER_TOKEN else "last subject"
    rows = [make_total(4.0), make_row(2.0)]
    assert find_outcomes(rows) == {"total": "above", "resid last subject": "above"}
    low, high = (make_row(mean, role=role, control=placebo) for mean in (1.7, 1.9))
    assert find_outcomes([*rows, low])["resid last subject"] == "above"
    assert find_outcomes([*rows, high])["resid last subject"] == "unsettled"
    elsewhere = make_row(9.0, role=role, control=placebo, layer=3)
    assert find_outcomes([*rows, elsewhere])["resid last subject"] == "above"
    few = [make_total(4.0, facts=5), make_row(2.0, facts=5)]
    assert find_outcomes(few) == {"total": "too few", "resid last subject": "too few"}
    assert find_outcomes([make_total(0.05), make_row(0.05)]) == {
        "total": "unsettled",
        "resid last subject": "unsettled",
    }


def test_groups_come_in_one_order_and_know_their_best_cell():
    rows = []
    for split in ("d2p_same", "p2d_reverse"):
        for stage in ("10", "2", "last", "first"):
            rows += [make_total(4.0, split=split, stage=stage)]
            for layer, mean in enumerate((1.0, 3.0, 2.0)):
                rows.append(make_row(mean, layer=layer, split=split, stage=stage))
    rows.append(make_row(9.0, "mlp", split="p2d_reverse"))
    rows.append(make_row(9.0, role="answer mask", split="p2d_reverse"))
    groups = list_groups(rows)
    assert [(group["split"], group["stage"]) for group in groups] == [
        (split, stage)
        for stages in (("first", "last"), ("2", "10"))
        for split in ("p2d_reverse", "d2p_same")
        for stage in stages
    ]
    best = groups[0]["best"]
    assert (best["part"], best["role"], best["layer"]) == ("resid", "last subject", 1)
    heads = [make_total(4.0)]
    heads += [make_row(head / 2, "attn_z", layer=3, head=head) for head in (1, 2, 0)]
    (group,) = list_groups(heads)
    assert group["best"]["head"] == 2


def test_the_section_says_first_what_was_found(done):
    findings = [block for block in done.section.blocks if isinstance(block, Finding)]
    assert done.section.blocks[:2] == findings
    assert findings[0].text.startswith("In masked, on own facts, hiding the subject takes")
    assert findings[1].text.startswith("In causal, on own facts, hiding the subject takes")
    assert "of what was lost, on 4 facts, too few to tell" in findings[1].text
    figures = [block for block in done.section.walk() if isinstance(block, Figure)]
    assert [figure.name for figure in figures] == ["effects", "roles", "texts"]
    for figure in figures:
        assert figure.controls[0].label == "asked" and figure.views
    assert all(len(panels) == 2 for panels in figures[0].views.values())
    text = read(done)
    # Two models scored in two ways are not compared in size.
    assert "mean field" in text and "not how large they are; `--joint chain_rule`" in text
    assert "1 not recalled" in text and "windows of 2 layers" in text
    assert done.section.title == "Which states bring answers back, from the first step to the last"


def test_models_scored_alike_may_be_compared(masked, causal):
    settings = {"facts": 2, "phrasings": 1, "at": ("first",), "parts": ("resid",)}
    found = trace(masked, causal, make_facts(), joint="chain_rule", **settings)
    assert "not how large" not in read(found)
    assert found.section.title == "Which states bring answers back"


def test_equal_training_seeds_change_no_mean(causal, tmp_path):
    """A fact's seeds are averaged first, as its phrasings are."""
    settings = {"facts": 3, "phrasings": 1, "parts": ("resid",), "at": ("first",)}
    one = trace(causal, make_facts(), **settings)
    family = Family("causal", (causal, causal), "causal")
    two = ask(MEASURE, [family], make_facts(), tmp_path, **USUAL | settings)
    assert {row["seed"] for row in two.rows("facts")} == {0, 1}
    pairs = zip(one.summary["averages"], two.summary["averages"], strict=True)
    for alone, both in pairs:
        assert both["mean"] == pytest.approx(alone["mean"], abs=1e-12)
        assert (both["facts"], both["prompts"]) == (alone["facts"], 2 * alone["prompts"])
    assert "phrasings and 2 training seeds are averaged first" in read(two)
    assert "over facts, and say nothing of other seeds. Placebos" in read(two)


def test_heads_ablated_and_severed_reach_the_section(causal):
    few = {"facts": 2, "phrasings": 1, "at": ("first",)}
    heads = read(trace(causal, make_facts(), parts=("attn_z",), mode="ablate", **few))
    assert "attention head" in heads and "Corrupting one attention head costs most" in heads
    more = {"run": "free_running", "severed": "mlp", "parts": ("resid",)}
    free = read(trace(causal, make_facts(), **more, **few))
    assert "free running" in free and "Later outputs of mlp stay" in free


def test_every_id_has_its_words(done):
    """Names that the command line takes, tables hold and readers see are the same sets."""
    roles = set(done.tables["trace"].filter(pc.field("token") >= 0)["role"].to_pylist())
    assert {*roles, *SUBJECT_ROLES, *PLACEBO_ROLES} <= set(labels.ROLES)
    assert set(labels.PARTS) == set(PARTS)
    assert set(labels.CORRUPTIONS) == set(CORRUPTIONS)
    assert set(labels.METRICS) == set(METRICS)
    assert set(labels.PLACEBOS) == {OTHER_TOKEN, OTHER_FACT, SHUFFLED, RANDOM}
    helps = {field.name: field.metadata["help"] for field in fields(TraceSettings)}
    for name, table in (("corruption", CORRUPTIONS), ("metric", METRICS), ("parts", PARTS)):
        assert all(each in helps[name] for each in table)


def test_facts_traced_in_every_model_are_counted():
    usual = {"kind": "masked", "split": "own", "corruption": "mean", "seed": 0, "clean": 0.5}
    usual |= {"joint": "chain_rule", "window": 1, "considered": None, "recalled": None}
    rows = [
        usual | {"model": model, "fact": fact, "kept": fact in kept, "reason": "not recalled"}
        for model, kept in (("one", "abc"), ("other", "bcd"))
        for fact in "abcd"
    ]
    assert [(row["facts"], row["shared"]) for row in count_facts(rows)] == [(3, 2), (3, 2)]
