"""Effects of hand-made traces: averages, cross-fitted shares, placebos, groups that are alike."""

import numpy as np
import pyarrow
import pytest

from unmask.blocks.tidy import select
from unmask.evaluation.equivalence import divide
from unmask.measures.trace_effects import (
    LAYOUT,
    OTHER_TOKEN,
    PLACEBO,
    TOTAL,
    add_outcomes,
    average_bands,
    compare_bands,
    compare_effects,
    find_effects,
    fit_shares,
)
from unmask.results.effects import average_panels
from unmask.tracing.table import ONE_TOKEN, OTHER_FACT, RANDOM, RESULT, SHUFFLED

LAYERS, FACTS = 6, [f"d2p-{i:03d}" for i in range(20)]
NOTHING = {"layer": -1, "head": -1, "token": -1, "role": ""}
LAST = ("resid", 0, "last subject", RESULT)


def make_prompt(fact, effects, total=4.0, **more):
    """Rows of one prompt in two noise samples: `effects` maps (part, layer, role, control), with a
    token where there are several of a role, to what is given back on average."""
    base = {"model": "net", "kind": "masked", "seed": 0, "split": "d2p_same", "fact": fact}
    base |= {"phrasing": 0, "corruption": "mask", "stage": "first", "step": 1} | more
    rows = []
    for control in dict.fromkeys([RESULT, *(key[3] for key in effects)]):
        ends = base | NOTHING | {"control": control}
        rows.append(ends | {"part": "clean", "value": 0.0, "sample": -1})
        for sample, shift in enumerate((-0.05, 0.05)):
            rows.append(ends | {"part": "corrupted", "value": shift - total, "sample": sample})
            for (part, layer, role, of, *token), effect in effects.items():
                at = {"part": part, "layer": layer, "token": (*token, 2)[0], "role": role}
                cell = ends | at | {"sample": sample, "value": shift + effect - total}
                rows += [cell] if of == control else []
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
    (row,) = select(rows, **wanted)
    return row


def read(rows, mode="restore"):
    return find_effects(pyarrow.Table.from_pylist(rows), mode)


def average(rows, mode="restore"):
    return list(average_panels({"p": read(rows, mode)}, LAYOUT))


def test_a_fact_counts_once_however_often_it_is_asked():
    """Phrasings, seeds, samples and tokens of a role are averaged before facts are."""
    own, far = ("mlp", 0, "last subject", RESULT), ("mlp", 0, "further", RESULT)
    rows = make_prompt("a", {own: 0.2}) + make_prompt("a", {own: 0.4}, phrasing=1)
    rows += make_prompt("a", {own: 0.6}, seed=1)
    rows += make_prompt("b", {own: -0.1, (*far, 4): 0.3, (*far, 5): 0.5}, total=2.0)
    found = average(rows)
    assert find(found, role="last subject")["mean"] == pytest.approx((0.4 - 0.1) / 2)
    total = find(found, part=TOTAL)
    assert total["mean"] == pytest.approx(3.0) and (total["facts"], total["prompts"]) == (2, 4)
    further = find(found, role="further")
    assert further["mean"] == pytest.approx(0.4) and further["facts"] == 1
    assert np.isnan(further["low"]) and np.isnan(further["high"])
    # Prompt tokens that are not the subject's are a control as well, as one role.
    assert find(found, control=OTHER_TOKEN, role=PLACEBO)["mean"] == pytest.approx(0.4)
    # Ablated, effects are losses from the clean run.
    assert find(average(rows, "ablate"), role="further")["mean"] == pytest.approx(1.6)


def test_groups_are_never_pooled():
    rows = make_prompt("a", {LAST: 0.1})
    for other in ({"split": "p2d_same"}, {"model": "twin", "kind": "causal"}, {"stage": "last"}):
        rows += make_prompt("a", {LAST: 0.5}, **other)
    means = [row["mean"] for row in select(average(rows), role="last subject")]
    assert sorted(means) == pytest.approx([0.1, 0.5, 0.5, 0.5])


def test_differences_are_paired_over_facts():
    """Every fact is 0.1 better in one kind, whatever its own size: the pairing sees it."""
    rows = []
    for i in range(12):
        rows += make_prompt(f"fact-{i}", {LAST: 0.05 * i})
        rows += make_prompt(f"fact-{i}", {LAST: 0.05 * i + 0.1}, model="a twin", kind="causal")
    tests = list(compare_effects(read(rows)))
    test = find(tests, part="resid", role="last subject")
    # Models stay in the order in which they come.
    assert (test["model"], test["other_model"]) == ("net", "a twin")
    assert test["split"] == test["other_split"] and test["paired"] and test["facts"] == 12
    assert (test["mean"], test["low"]) == pytest.approx((-0.1, -0.1))
    assert test["p"] < 0.01 and test["p_holm"] >= test["p"] and test["outcome"] == "below"
    total = find(tests, part=TOTAL)
    assert abs(total["mean"]) < 1e-12 and (total["p"], total["outcome"]) == (1.0, "unsettled")


@pytest.mark.parametrize("mode", ["restore", "ablate"])
@pytest.mark.parametrize("size", [1, 4, 9, 1000])
def test_a_table_in_pieces_gives_the_same_bytes(size, mode):
    """Wherever it is cut: groups, facts, cells and effects, in the same order."""
    rng, rows = np.random.default_rng(0), []
    roles = ["last subject", "further", "before subject", "first after"]
    for i in rng.permutation(12):
        chosen = rng.permutation(4)[: 2 + i % 3]
        effects = {("mlp", 0, roles[at], RESULT, int(at)): float(rng.normal()) for at in chosen}
        more = {"model": "twin"} if i % 2 else {"split": "p2d_same"} if i % 3 else {}
        more |= {"phrasing": int(i), "total": float(rng.random())}
        rows += make_prompt(f"fact {i // 4}", effects, **more)
    table = pyarrow.Table.from_pylist(rows)
    whole = find_effects(table, mode)
    pieces = find_effects((table.slice(at, size) for at in range(0, len(rows), size)), mode)
    assert list(pieces) == list(whole)
    for key, group in whole.items():
        same = pieces[key]
        assert (same.facts, same.cells, same.prompts) == (group.facts, group.cells, group.prompts)
        assert same.effects.tobytes() == group.effects.tobytes()


def test_a_share_is_read_at_layers_that_other_facts_chose():
    rows = list(fit_shares(read(make_effects())))
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
    (row,) = fit_shares(read(rows))
    assert (row["layer"], row["other_layer"]) == (1, 4)
    assert abs(row["mean"]) < 1e-12 and row["beyond_share"] is None
    # One fact has no other half.
    assert not list(fit_shares(read(make_prompt("a", {LAST: 1.0}))))


def make_share(mean, **changes):
    group = {"model": "net", "kind": "masked", "split": "p2d_same", "corruption": "mask"}
    row = group | {"stage": "first", "control": RESULT, "part": "resid", "role": "last subject"}
    row |= {"share": mean / 4, "share_low": 0.0, "share_high": 1.0, "facts": 9}
    return row | {"mean": mean, "low": mean - 0.1, "high": mean + 0.1} | changes


@pytest.mark.parametrize("placebo", [OTHER_TOKEN, OTHER_FACT, SHUFFLED, RANDOM])
def test_a_role_is_clear_above_every_placebo(placebo):
    """One rule: enough facts, above 0, above each placebo that was measured in the same cells."""

    def judge(*rows):
        return [row.get("outcome") for row in add_outcomes([], rows)["shares"]]

    low, high = (make_share(mean, control=placebo) for mean in (1.7, 1.9))
    assert judge(make_share(2.0)) == ["above"] and judge(make_share(0.05)) == ["unsettled"]
    assert judge(make_share(2.0), low) == ["above", None]
    assert judge(make_share(2.0), low, high | {"control": RANDOM}) == ["unsettled", None, None]
    assert judge(make_share(2.0), high | {"role": "whole subject"}) == ["above", None]
    assert judge(make_share(2.0, facts=5), low) == ["too few", None]
    assert judge(make_share(2.0, control=ONE_TOKEN)) == [None]
    row, _ = add_outcomes([], [make_share(2.0), high])["shares"]
    assert (row["placebo_share"], row["placebo_share_high"]) == (1.9 / 4, 1.0)
    # The total effect is held against 0.
    totals = [make_share(mean, part=TOTAL) for mean in (4.0, 0.05)]
    judged = add_outcomes([*totals, make_share(4.0)], [])["averages"]
    assert [row.get("outcome") for row in judged] == ["above", "unsettled", None]


@pytest.mark.parametrize(
    ("shift", "noise", "outcome"),
    [(0.0, 0.1, "alike"), (1.2, 0.1, "below"), (0.12, 0.05, "below"), (0.0, 3.0, "unsettled")],
)
def test_alike_is_a_claim_of_its_own(shift, noise, outcome):
    """The same facts asked as trained and, of another model, reversed; shares of totals of 4."""
    rows = make_effects(noise=noise)
    rows += make_effects(shift, noise, seed=1, split="p2d_reverse")
    bands = list(compare_bands(read(rows), margin=0.1))
    assert [(row["band"], row["first"], row["last"]) for row in bands] == [
        ("lower", 0, 1), ("middle", 2, 3), ("upper", 4, 5)
    ]  # fmt: skip
    for row in bands:
        assert row["paired"] and row["facts"] == 20 and row["margin"] == 0.1
        assert row["outcome"] == outcome
        assert row["mean"] == pytest.approx(-shift / 4, abs=3 * noise / 4 / 20**0.5 + 0.02)
        assert (row["smallest_margin"] <= 0.1) == row["is_alike"] == (row["p_equivalent"] <= 0.05)
        assert row["power"] > 0.9 if noise < 1 else row["power"] < 0.3


def test_a_band_holds_the_mean_share_of_its_layers():
    rows = make_effects(noise=0.5)
    single, double = (list(average_bands(read(rows), most)) for most in (8, 3))
    assert [(row["first"], row["last"]) for row in single] == [(i, i) for i in range(6)]
    assert [(row["first"], row["last"]) for row in double] == [(0, 1), (2, 3), (4, 5)]
    for i, row in enumerate(double):
        own = single[2 * i : 2 * i + 2]
        assert row["mean"] == pytest.approx(np.mean([each["mean"] for each in own]))
        assert row["low"] < row["mean"] < row["high"] and row["facts"] == 20
    averages = average(rows)
    total = find(averages, part=TOTAL, control=RESULT)
    cell = find(averages, part="resid", layer=4, control=RESULT)
    assert single[4]["mean"] == pytest.approx(cell["mean"] / total["mean"])


def test_a_larger_total_is_no_difference_of_shares():
    """Effects twice as large of what is twice as large are the same shares."""
    rows = make_effects(noise=0.1)
    doubled = [row | {"value": 2 * row["value"], "split": "p2d_reverse"} for row in rows]
    bands = list(compare_bands(read([*rows, *doubled]), margin=0.1))
    assert bands and all(abs(row["mean"]) < 1e-9 and row["outcome"] == "alike" for row in bands)


def test_only_what_is_asked_alike_is_compared():
    """Descriptions given, as trained and reversed, of one model; or the same of two models."""
    rows = make_effects()
    for i, split in enumerate(("p2d_reverse", "p2d_same", "d2p_reverse", "both_d2p")):
        rows += make_effects(seed=i, split=split)
    rows += make_effects(seed=9, model="twin")
    # Where nothing is lost for certain, there is nothing to have a share of.
    nothing = make_effects(seed=10, model="untrained")
    rows += [row | {"value": 0.0} if row["part"] == "corrupted" else row for row in nothing]
    pairs = {
        tuple(sorted([(row["model"], row["split"]), (row["other_model"], row["other_split"])]))
        for row in compare_bands(read(rows), margin=0.1)
    }
    own = [("d2p_same", "p2d_reverse"), ("both_d2p", "d2p_same"), ("both_d2p", "p2d_reverse")]
    own += [("d2p_reverse", "p2d_same")]
    assert pairs == {(("net", one), ("net", other)) for one, other in own} | {
        (("net", "d2p_same"), ("twin", "d2p_same"))
    }
