"""Averages over facts against hand-made tables whose answer is known."""

import numpy as np
import pyarrow
import pytest

from unmask.measures.trace_effects import OTHER_TOKEN, TOTAL, compare_groups, find_effects
from unmask.measures.trace_effects import average as average_effects


def average(table, mode="restore"):
    return average_effects(find_effects(table, mode))


def make_rows(fact, phrasing, effects, clean=0.9, corrupted=0.1, **more):
    """Rows of one prompt: `effects` maps (token, role) to an effect in both of two samples."""
    base = {"model": "net", "kind": "masked", "seed": 0, "split": "p2d_same", "fact": fact}
    base |= {"phrasing": phrasing, "corruption": "mask", "stage": "first", "step": 1}
    base |= {"control": "none"} | more
    nothing = {"layer": -1, "head": -1, "token": -1, "role": "", "sample": -1}
    rows = [base | nothing | {"part": "clean", "value": clean}]
    for sample, shift in ((0, -0.05), (1, 0.05)):
        low = corrupted + shift
        rows.append(base | nothing | {"part": "corrupted", "sample": sample, "value": low})
        for (token, role), effect in effects.items():
            cell = {"layer": 0, "head": -1, "token": token, "role": role, "sample": sample}
            rows.append(base | cell | {"part": "mlp", "value": low + effect})
    return rows


def find(rows, **wanted):
    (row,) = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    return row


@pytest.mark.parametrize("of", ["phrasing", "seed"])
def test_phrasings_and_seeds_of_a_fact_are_one_cluster(of):
    """Fact a has three of them and fact b one; each fact counts once, each on its own baseline."""
    rows = []
    for number, effect in enumerate((0.1, 0.2, 0.3)):
        more = {"corrupted": 0.1 * number} | ({"seed": number} if of == "seed" else {})
        phrasing = number if of == "phrasing" else 0
        rows += make_rows("a", phrasing, {(2, "last subject"): effect}, **more)
    rows += make_rows("b", 0, {(2, "last subject"): 0.6}, clean=0.5)
    found = average(pyarrow.Table.from_pylist(rows))
    cell = find(found, part="mlp", role="last subject", control="none")
    assert cell["facts"] == 2 and cell["prompts"] == 4
    assert abs(cell["mean"] - (0.2 + 0.6) / 2) < 1e-12
    total = find(found, part=TOTAL, control="none")
    assert abs(total["mean"] - (0.8 + 0.4) / 2) < 1e-12
    assert cell["low"] <= cell["mean"] <= cell["high"]


def test_a_prompt_is_compared_with_its_own_baseline():
    """A fact with few and one with many further tokens, far apart in corrupted p: no bias."""
    rows = make_rows("a", 0, {(i, "further"): 0.0 for i in range(5, 9)}, corrupted=0.8)
    rows += make_rows("b", 0, {(5, "further"): 0.0}, corrupted=0.05)
    found = average(pyarrow.Table.from_pylist(rows))
    assert abs(find(found, part="mlp", role="further")["mean"]) < 1e-12
    placebo = find(found, part="mlp", role="placebo", control=OTHER_TOKEN)
    assert abs(placebo["mean"]) < 1e-12 and placebo["facts"] == 2


def test_negative_effects_stay_and_a_missing_role_does_not_count():
    rows = make_rows("a", 0, {(2, "last subject"): -0.05, (3, "first after"): 0.2})
    rows += make_rows("b", 0, {(2, "last subject"): -0.01})
    found = average(pyarrow.Table.from_pylist(rows))
    assert abs(find(found, role="last subject")["mean"] + 0.03) < 1e-12
    after = find(found, role="first after")
    assert after["facts"] == 1 and abs(after["mean"] - 0.2) < 1e-12
    assert np.isnan(after["low"]) and np.isnan(after["high"])


def test_groups_are_never_pooled():
    rows = make_rows("a", 0, {(2, "last subject"): 0.1})
    for other in ({"split": "d2p_same"}, {"model": "twin", "kind": "causal"}, {"stage": "last"}):
        rows += make_rows("a", 0, {(2, "last subject"): 0.5}, **other)
    found = average(pyarrow.Table.from_pylist(rows))
    means = sorted(row["mean"] for row in found if row["role"] == "last subject")
    np.testing.assert_allclose(means, [0.1, 0.5, 0.5, 0.5])


def test_ablating_measures_against_the_clean_run():
    rows = make_rows("a", 0, {(2, "last subject"): 0.6})
    rows += make_rows("b", 0, {(2, "last subject"): 0.6})
    found = average(pyarrow.Table.from_pylist(rows), mode="ablate")
    assert abs(find(found, role="last subject")["mean"] - 0.2) < 1e-12


def test_differences_are_paired_over_facts():
    """Every fact is 0.1 better in one kind, whatever its own size: the pairing sees it."""
    rows = []
    for i in range(12):
        size = 0.05 * i
        rows += make_rows(f"fact-{i}", 0, {(2, "last subject"): size})
        twin = {"model": "a twin", "kind": "causal"}
        rows += make_rows(f"fact-{i}", 0, {(2, "last subject"): size + 0.1}, **twin)
    tests = compare_groups(find_effects(pyarrow.Table.from_pylist(rows)))
    test = find(tests, part="mlp", role="last subject")
    # Models stay in the order in which they come.
    assert (test["model"], test["other_model"]) == ("net", "a twin")
    assert test["split"] == test["other_split"] == "p2d_same"
    assert test["paired"] and test["facts"] == 12
    assert abs(test["mean"] + 0.1) < 1e-9 and abs(test["low"] + 0.1) < 1e-9
    assert test["p"] < 0.01 and test["p_holm"] >= test["p"]
    total = find(tests, part=TOTAL)
    assert abs(total["mean"]) < 1e-12 and total["p"] == 1.0


def test_pairs_differ_in_the_model_or_in_the_split():
    """Never in both, and never in corruption or step."""
    rows = []
    for i in range(3):
        for model, kind in (("net", "masked"), ("twin", "causal")):
            for split in ("d2p_same", "p2d_reverse"):
                for stage in ("first", "last"):
                    more = {"model": model, "kind": kind, "split": split, "stage": stage}
                    rows += make_rows(f"fact-{i}", 0, {(2, "last subject"): 0.1 * i}, **more)
    tests = compare_groups(find_effects(pyarrow.Table.from_pylist(rows)))
    pairs = {
        (test["model"], test["split"], test["other_model"], test["other_split"]) for test in tests
    }
    assert pairs == {
        ("net", "d2p_same", "net", "p2d_reverse"),
        ("net", "d2p_same", "twin", "d2p_same"),
        ("net", "p2d_reverse", "twin", "p2d_reverse"),
        ("twin", "d2p_same", "twin", "p2d_reverse"),
    }
    assert len(tests) == len(pairs) * 2 * 2


@pytest.mark.parametrize("mode", ["restore", "ablate"])
@pytest.mark.parametrize("size", [1, 4, 9, 1000])
def test_a_table_in_pieces_gives_the_same_bytes(size, mode):
    """Wherever it is cut: groups, facts, cells and effects, in the same order."""
    rng, rows = np.random.default_rng(0), []
    roles = ["last subject", "further", "before subject", "first after"]
    for i in rng.permutation(12):
        chosen = rng.permutation(4)[: 2 + i % 3]
        effects = {(int(at), roles[at]): float(rng.normal()) for at in chosen}
        more = {"model": "twin"} if i % 2 else {"split": "d2p_same"} if i % 3 else {}
        rows += make_rows(f"fact {i // 4}", int(i), effects, clean=float(rng.random()), **more)
    table = pyarrow.Table.from_pylist(rows)
    whole = find_effects(table, mode)
    pieces = find_effects((table.slice(at, size) for at in range(0, len(rows), size)), mode)
    assert list(pieces) == list(whole)
    for key, group in whole.items():
        same = pieces[key]
        assert (same.facts, same.cells, same.prompts) == (group.facts, group.cells, group.prompts)
        assert same.effects.tobytes() == group.effects.tobytes()
