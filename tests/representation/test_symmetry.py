"""Comparisons of concepts: who is paired with whom, who is left out, what is concluded."""

import re
from dataclasses import replace

import numpy as np
import pytest

from unmask import UserError
from unmask.evaluation.statistics import holm
from unmask.report.symmetry_table import format_line
from unmask.report.symmetry_words import conclude, find_best_layers, tabulate_layers
from unmask.representation.measures import MEASURES
from unmask.representation.nulls import assess
from unmask.representation.symmetry import (
    OVERLAP,
    compare_models,
    measure_symmetry,
    pair_vectors,
)

FACTS, WIDTH, INNER = 12, 16, 24


def make_run(shared: float, seed: int = 0, diverged: int = 0):
    """Names and descriptions whose values hold their own keys to some degree, in mixed order."""
    generator = np.random.default_rng(seed)
    down = generator.normal(size=(WIDTH, INNER)) / INNER**0.5
    # A few directions that vary most, so that few facts show how they turn.
    sizes = np.array([6.0, 4.0, 3.0, *[0.3] * (INNER - 3)])
    keys = {way: sizes * generator.normal(size=(FACTS, INNER)) for way in ("p2d", "d2p")}
    other = {"p2d": "d2p", "d2p": "p2d"}
    rows, tensors = [], {name: [] for name in ("k_star", "k_mapped", "v0", "delta")}
    for i in generator.permutation(FACTS):
        for way in ("d2p", "p2d"):
            rows.append(
                {"group": "p2d", "fact": f"fact-{i:02d}", "direction": way, "layer": 3}
                | {"diverged": i < diverged and way == "p2d"}
            )
            tensors["k_star"].append(keys[way][i])
            tensors["k_mapped"].append(down @ keys[way][i])
            tensors["v0"].append(generator.normal(size=WIDTH))
            # The value of what is asked, in the other direction the key.
            tensors["delta"].append(shared * down @ keys[other[way]][i])
    return rows, {name: np.stack(vectors) for name, vectors in tensors.items()}


def test_a_concept_s_key_meets_its_own_value():
    """With a strong share every measure of key and value finds it, and no control does."""
    rows, tensors = make_run(4.0)
    lines = measure_symmetry("made", "masked", rows, tensors, permutations=199)
    found = {(line.comparison, line.measure): line for line in lines}
    for concept in ("name", "description"):
        for measure in MEASURES:
            line = found[f"{concept}: key and value", measure]
            assert line.found.p <= 0.05, (concept, measure)
            assert line.found.value.mean > line.found.null_mean
        assert found[f"{concept}: key and delta", "cosine"].matched > 0.99
        assert found[f"{concept}: key and v0", "retrieval"].found.p > 0.01
    text = conclude(lines, [])
    assert "Name: key and value: " in text and "measures tell true pairs apart" in text
    assert "No measure tells true pairs" in text and "key and key" in text


def test_nothing_shared_is_nothing_found():
    rows, tensors = make_run(0.0)
    tensors["delta"] = np.random.default_rng(9).normal(size=tensors["delta"].shape)
    lines = measure_symmetry("made", "masked", rows, tensors, permutations=199)
    asked = [line for line in lines if line.comparison.endswith("key and value")]
    assert all(line.p_holm > 0.05 for line in asked)
    assert "; description: key and value" in conclude(lines, [])


def test_several_layers_are_told_by_the_best():
    """A strong layer beside a blank one: the words name it, and the table has a column for each."""
    rows, tensors = make_run(4.0)
    blank = make_run(0.0, seed=5)
    blank[1]["delta"] += np.random.default_rng(6).normal(size=blank[1]["delta"].shape)
    for row in blank[0]:
        row["layer"] = 1
    both = {name: np.concatenate((x, blank[1][name])) for name, x in tensors.items()}
    lines = measure_symmetry("made", "masked", [*rows, *blank[0]], both, permutations=199)
    text = conclude(lines, [])
    assert "layers 1 and 3, 12 facts" in text
    assert "Name: key and value: all 8 measures tell true pairs apart at layer 3" in text
    assert find_best_layers(lines) == {3}
    header, _, *table = tabulate_layers(lines).splitlines()
    assert header == "| model | facts trained | comparison | layer 1 | layer 3 |"
    (row,) = [each for each in table if "| name: key and value |" in each]
    assert re.search(r"\| 0 of 8, \d+ % \| \*\*8 of 8, 100 %\*\* \|$", row)


def test_diverged_facts_are_left_out_and_counted():
    rows, tensors = make_run(1.0, diverged=2)
    vectors = pair_vectors(rows, tensors, "p2d", 3)
    assert vectors.diverged == 2 and len(vectors.facts) == FACTS - 2
    assert "fact-00" not in vectors.facts and list(vectors.facts) == sorted(vectors.facts)
    lines = measure_symmetry("made", "masked", rows, tensors, permutations=19)
    assert all(line.diverged == 2 and len(line.found.per_fact) == 10 for line in lines)
    assert "2 diverged and left out" in conclude(lines, [])
    rows, tensors = make_run(1.0, diverged=4)
    with pytest.raises(UserError, match="has 8 facts .* at layer 3; 4 diverged: .* at least 10"):
        pair_vectors(rows, tensors, "p2d", 3)


def test_vectors_are_paired_by_fact_whatever_their_order():
    rows, tensors = make_run(2.0)
    order = np.random.default_rng(3).permutation(len(rows))
    mixed = [rows[i] for i in order], {name: x[order] for name, x in tensors.items()}
    one, other = pair_vectors(rows, tensors, "p2d", 3), pair_vectors(*mixed, "p2d", 3)
    for side in one.sides:
        assert np.array_equal(one.sides[side], other.sides[side])


def test_models_differ_by_fact():
    """One model's values hold their keys, the other's do not: the difference says so."""
    strong, weak = make_run(4.0), make_run(0.0, seed=5)
    weak[1]["delta"] += np.random.default_rng(6).normal(size=weak[1]["delta"].shape)
    lines = [
        *measure_symmetry("mdm", "masked", *strong, permutations=19),
        *measure_symmetry("ar", "causal", *weak, permutations=19),
    ]
    found = {(each.comparison, each.measure): each for each in compare_models(lines)}
    each = found["name: key and value", "retrieval"]
    assert (each.one, each.other, each.facts) == ("mdm", "ar", FACTS)
    assert each.value.low > 0
    assert "differences of *key and value* have intervals that leave out 0" in conclude(
        lines, list(found.values())
    )


def test_a_side_without_variance_is_not_measured():
    """Deltas that are all zero: no measure has a value, and none is significant or counted."""
    rows, tensors = make_run(4.0)
    tensors["v0"] = tensors["v0"] + tensors["delta"]
    tensors["delta"] = np.zeros_like(tensors["delta"])
    lines = measure_symmetry("made", "masked", rows, tensors, permutations=19)
    flat = [line for line in lines if line.comparison.endswith("key and delta")]
    assert len(flat) == 2 * 9
    for line in flat:
        assert line.found.p == line.p_holm == 1 and np.isnan(line.found.value.mean)
        assert format_line(line)[1:] == ["–"] * 4
    told = conclude(lines, [])
    assert "one side is the same for all facts: name: key and delta; description: key" in told
    assert "| made | p2d | name: key and delta | – |" in tabulate_layers(lines)
    other = measure_symmetry("other", "masked", *make_run(1.0), permutations=19)
    compared = {each.comparison for each in compare_models([*lines, *other])}
    assert "name: key and value" in compared and "name: key and delta" not in compared


@pytest.mark.parametrize("name", MEASURES)
def test_no_number_is_never_significant(name):
    """One fact alone varies: some measures have a value without it, some have none."""
    side = np.zeros((FACTS, WIDTH))
    side[0, 0] = 1.0
    right = np.random.default_rng(0).normal(size=(FACTS, WIDTH))
    found = assess(MEASURES[name], right, side, permutations=19)
    assert found.is_measured or found.p == 1


def test_ties_count_as_chance():
    """Vectors that are as near to all others hit as often as a guess does."""
    left = np.random.default_rng(0).normal(size=(FACTS, WIDTH))
    cosines = MEASURES["top-1"].compare(left, np.zeros((FACTS, WIDTH)))
    assert cosines.per_fact == pytest.approx(1 / FACTS)
    ranks = MEASURES["retrieval"].compare(left, np.zeros((FACTS, WIDTH)))
    assert ranks.per_fact == pytest.approx(2 / (FACTS + 1)) and ranks.hits == 1 / FACTS


def test_only_shares_have_an_interval_where_all_are_alike():
    """A cosine of 1 for every fact is no share of hits."""
    side = np.random.default_rng(0).normal(size=(FACTS, WIDTH))
    hits = assess(MEASURES["top-1"], side, side, permutations=19).value
    assert hits.mean == 1 and hits.low == pytest.approx(0.025 ** (1 / FACTS))
    assert assess(MEASURES["procrustes"], side, side, permutations=19).value.low > 0.99


def make_lines(passed):
    """Lines of *name: key and value*: at each layer the first so many measures pass."""
    (line, *_) = measure_symmetry("made", "masked", *make_run(1.0), permutations=19)
    return [
        replace(line, layer=layer, measure=measure, p_holm=0.01 if i < count else 1.0)
        for layer, count in passed.items()
        for i, measure in enumerate(MEASURES)
    ]


@pytest.mark.parametrize(
    ("passed", "said"),
    [
        ({0: 2, 2: 1, 4: 2}, "2 of 8 measures tell true pairs apart at layers 0 and 4, fewer at 2"),
        ({0: 1, 2: 0}, "1 of 8 measures tells true pairs apart at layer 0 (cosine"),
        ({0: 8, 1: 8, 2: 8}, "all 8 measures tell true pairs apart at layers 0, 1 and 2."),
        ({3: 3}, "3 of 8 measures tell true pairs apart (cosine"),
    ],
)
def test_equal_layers_are_not_fewer(passed, said):
    assert f"Name: key and value: {said}" in conclude(make_lines(passed), [])


def test_measures_are_listed_by_layer_where_they_differ():
    lines = make_lines({0: 1, 4: 1})
    swap = {"cosine": "cka", "cka": "cosine"}
    mixed = [
        replace(ln, measure=swap.get(ln.measure, ln.measure)) if ln.layer == 4 else ln
        for ln in lines
    ]
    told = conclude(mixed, [])
    assert "(layer 0: cosine, matched minus unmatched – layer 4: debiased linear CKA)" in told


@pytest.mark.parametrize(
    ("control", "said"),
    [
        ({0: 1, 4: 1}, "; it does so with v0 as well"),
        ({0: 0, 4: 1}, "; at layer 4 it does so with v0 as well"),
        ({0: 0, 4: 0}, "(cosine, matched minus unmatched)."),
    ],
)
def test_what_v0_shares_is_told_in_the_singular(control, said):
    asked = make_lines({0: 1, 4: 1})
    before = [
        replace(line, comparison="name: key and v0", is_control=True)
        for line in make_lines(control)
    ]
    assert said in conclude([*asked, *before], [])


def test_overlap_is_tested_by_itself():
    """It knows no pairs: neither the correction, nor the best layer, nor a count has it."""
    lines = measure_symmetry("made", "masked", *make_run(4.0), permutations=19)
    asked = [line for line in lines if line.comparison == "name: key and value"]
    pairs = [line for line in asked if line.measure != OVERLAP]
    assert [line.p_holm for line in pairs] == holm([line.found.p for line in pairs])
    (overlap,) = [line for line in asked if line.measure == OVERLAP]
    assert overlap.p_holm == overlap.found.p == 0.05
    # Both layers tie without it.
    assert find_best_layers([*make_lines({0: 1, 1: 1}), replace(overlap, layer=1)]) == {0}
    both = [*lines, *(replace(line, model="other") for line in lines)]
    assert "of 16 differences of *key and value*" in conclude(both, compare_models(both))
