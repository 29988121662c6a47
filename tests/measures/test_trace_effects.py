"""Shares of the total effect: cross-fitted layers, placebos, embeddings; groups that are alike."""

import numpy as np
import pyarrow
import pytest

from unmask.evaluation.equivalence import divide
from unmask.measures.trace_effects import (
    average,
    average_bands,
    compare_bands,
    find_effects,
    fit_shares,
    name_likeness_outcome,
)
from unmask.tracing.table import OTHER_FACT, RANDOM, RESULT

LAYERS, FACTS = 6, [f"d2p-{i:03d}" for i in range(20)]
NOTHING = {"layer": -1, "head": -1, "token": -1, "role": "", "sample": 0}


def make_prompt(fact, effects, total=4.0, **more):
    """Rows of one prompt: `effects` maps (part, layer, role, control) to what is given back."""
    base = {"model": "net", "kind": "masked", "seed": 0, "split": "d2p_same", "fact": fact}
    base |= {"phrasing": 0, "corruption": "mask", "stage": "first", "step": 1} | more
    rows = []
    for control in dict.fromkeys([RESULT, *(key[3] for key in effects)]):
        ends = {"clean": 0.0, "corrupted": -total}
        rows += [base | NOTHING | {"part": p, "value": v, "control": control}
                 for p, v in ends.items()]  # fmt: skip
        for (part, layer, role, of), effect in effects.items():
            if of == control:
                at = {"part": part, "layer": layer, "head": -1, "token": 2, "role": role}
                rows.append(base | at | {"sample": 0, "value": effect - total, "control": control})
    return rows


def make_effects(shift=0.0, noise=0.2, seed=0, **more):
    """States of the last subject token give back most at layer 2, half of what was lost."""
    generator, rows = np.random.default_rng(seed), []
    for fact in FACTS:
        profile = 2 - 0.4 * np.abs(np.arange(LAYERS) - 2) + noise * generator.normal(size=LAYERS)
        cells = {("resid", i, "last subject", RESULT): profile[i] + shift for i in range(LAYERS)}
        cells |= {("resid", i, "last subject", RANDOM): 0.1 for i in range(LAYERS)}
        cells |= {("resid", i, "last subject", OTHER_FACT): 0.2 for i in range(LAYERS)}
        cells[("embed", 0, "last subject", RESULT)] = 0.5
        rows += make_prompt(fact, cells, total=4 + generator.normal() / 4, **more)
    return rows


def find(rows, **wanted):
    (row,) = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    return row


def test_a_share_is_read_at_layers_that_other_facts_chose():
    rows = fit_shares(find_effects(pyarrow.Table.from_pylist(make_effects())))
    row = find(rows, part="resid", role="last subject", control=RESULT)
    assert (row["layer"], row["other_layer"], row["facts"]) == (2, 2, 20)
    assert row["share"] == pytest.approx(0.5, abs=0.04)
    assert row["share_low"] < 0.5 < row["share_high"] and row["mean"] == pytest.approx(2, abs=0.15)
    for control, given in ((RANDOM, 0.1), (OTHER_FACT, 0.2)):
        placebo = find(rows, control=control)
        assert placebo["mean"] == pytest.approx(given) and placebo["layer"] == 2
        assert placebo["share"] == pytest.approx(given / 4, abs=0.005)
    # What the token's own embedding gives back is taken off.
    assert row["beyond_mean"] == pytest.approx(row["mean"] - 0.5)
    assert row["beyond_share"] == pytest.approx(row["share"] - 0.5 / 4, abs=0.005)


def test_both_layers_are_named_where_halves_differ():
    """One half is best at layer 4, the other at layer 1: each is read at the other's."""
    halves, rows = divide(FACTS), []
    for fact in FACTS:
        best = 4 if halves[fact] == 0 else 1
        cells = {("mlp", i, "last subject", RESULT): float(i == best) for i in range(LAYERS)}
        rows += make_prompt(fact, cells)
    (row,) = fit_shares(find_effects(pyarrow.Table.from_pylist(rows)))
    assert (row["layer"], row["other_layer"]) == (1, 4)
    assert row["mean"] == 0 and row["beyond_share"] is None


def test_one_fact_has_no_other_half():
    rows = make_prompt("a", {("mlp", 0, "last subject", RESULT): 1.0})
    assert fit_shares(find_effects(pyarrow.Table.from_pylist(rows))) == []


@pytest.mark.parametrize(
    ("shift", "noise", "outcome"),
    [
        (0.0, 0.1, "alike"),
        (1.2, 0.1, "differ"),
        (0.12, 0.05, "differ, within the margin"),
        (0.0, 3.0, "no difference detected"),
    ],
)
def test_alike_is_a_claim_of_its_own(shift, noise, outcome):
    """The same facts asked as trained and, of another model, reversed; shares of totals of 4."""
    rows = make_effects(noise=noise)
    rows += make_effects(shift, noise, seed=1, split="p2d_reverse")
    bands = compare_bands(find_effects(pyarrow.Table.from_pylist(rows)), margin=0.1)
    assert [(row["band"], row["first"], row["last"]) for row in bands] == [
        ("lower", 0, 1), ("middle", 2, 3), ("upper", 4, 5)
    ]  # fmt: skip
    for row in bands:
        assert row["paired"] and row["facts"] == 20 and row["margin"] == 0.1
        assert name_likeness_outcome(row) == outcome
        assert row["mean"] == pytest.approx(-shift / 4, abs=3 * noise / 4 / 20**0.5 + 0.02)
        assert (row["smallest_margin"] <= 0.1) == (row["p_equivalent"] <= 0.05)
        assert row["power"] > 0.9 if noise < 1 else row["power"] < 0.3


def test_a_band_holds_the_mean_share_of_its_layers():
    effects = find_effects(pyarrow.Table.from_pylist(make_effects(noise=0.5)))
    single, double = (list(average_bands(effects, most)) for most in (8, 3))
    assert [(row["first"], row["last"]) for row in single] == [(i, i) for i in range(6)]
    assert [(row["first"], row["last"]) for row in double] == [(0, 1), (2, 3), (4, 5)]
    for i, row in enumerate(double):
        own = single[2 * i : 2 * i + 2]
        assert row["mean"] == pytest.approx(np.mean([each["mean"] for each in own]))
        assert row["low"] < row["mean"] < row["high"] and row["facts"] == 20
    averages = average(effects)
    total = find(averages, part="total", control=RESULT)
    cell = find(averages, part="resid", layer=4, control=RESULT)
    assert single[4]["mean"] == pytest.approx(cell["mean"] / total["mean"])


def test_a_larger_total_is_no_difference_of_shares():
    """Effects twice as large of what is twice as large are the same shares."""
    rows = make_effects(noise=0.1)
    doubled = [row | {"value": 2 * row["value"], "split": "p2d_reverse"} for row in rows]
    bands = compare_bands(find_effects(pyarrow.Table.from_pylist([*rows, *doubled])), margin=0.1)
    assert bands and all(
        abs(row["mean"]) < 1e-9 and name_likeness_outcome(row) == "alike" for row in bands
    )


def test_only_what_is_asked_alike_is_compared():
    """Descriptions given, as trained and reversed, of one model; or the same of two models."""
    rows = make_effects()
    for i, split in enumerate(("p2d_reverse", "p2d_same", "d2p_reverse", "both_d2p")):
        rows += make_effects(seed=i, split=split)
    rows += make_effects(seed=9, model="twin")
    # Where nothing is lost for certain, there is nothing to have a share of.
    nothing = make_effects(seed=10, model="untrained")
    rows += [
        row | {"value": row["value"] if row["part"] != "corrupted" else 0.0} for row in nothing
    ]
    bands = compare_bands(find_effects(pyarrow.Table.from_pylist(rows)), margin=0.1)
    pairs = {
        tuple(sorted([(row["model"], row["split"]), (row["other_model"], row["other_split"])]))
        for row in bands
    }
    own = [("d2p_same", "p2d_reverse"), ("both_d2p", "d2p_same"), ("both_d2p", "p2d_reverse")]
    own += [("d2p_reverse", "p2d_same")]
    assert pairs == {(("net", one), ("net", other)) for one, other in own} | {
        (("net", "d2p_same"), ("twin", "d2p_same"))
    }
