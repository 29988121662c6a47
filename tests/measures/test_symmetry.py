"""symmetry: who is paired with whom, who is left out, what is concluded."""

from dataclasses import replace

import numpy as np
import pyarrow
import pytest

from tests.measures.asking import show
from unmask.base.errors import NotMeasuredError, UserError
from unmask.base.runs import RunRecord
from unmask.blocks.blocks import Figure, Finding, Fold, Notice
from unmask.blocks.tidy import distinct, select
from unmask.evaluation.statistics import holm
from unmask.measures.represent import MEASURE as REPRESENT
from unmask.measures.represent import RepresentSettings, tabulate_vectors
from unmask.measures.result import Result
from unmask.measures.runner import read_result
from unmask.measures.symmetry import MEASURE
from unmask.representation import comparisons
from unmask.representation.likeness import LIKENESSES, OVERLAP

FACTS, WIDTH, INNER = 12, 16, 24
OTHER = {"p2d": "d2p", "d2p": "p2d"}


def make_rows(shared: float, seed: int = 0, diverged: int = 0, unrestored: int = 0, **columns):
    """Names and descriptions whose values hold their own keys to some degree, in mixed order."""
    generator = np.random.default_rng(seed)
    down = generator.normal(size=(WIDTH, INNER)) / INNER**0.5
    # A few directions that vary most, so that few facts show how they turn.
    sizes = np.array([6.0, 4.0, 3.0, *[0.3] * (INNER - 3)])
    keys = {way: sizes * generator.normal(size=(FACTS, INNER)) for way in ("p2d", "d2p")}
    usual = {"model": "mdm", "kind": "masked", "seed": 0, "group": "p2d", "layer": 3}
    rows, tensors = [], {name: [] for name in ("k_star", "k_mapped", "v0", "delta")}
    for i in generator.permutation(FACTS):
        for way in ("d2p", "p2d"):
            given = f"Name {i}" if way == "p2d" else f"the description {i}"
            rows.append(
                {"fact": f"fact-{i:02d}", "direction": way, "subject": given}
                | usual
                | columns
                | {"diverged": bool(i < diverged and way == "p2d")}
                | {"nll_before": 3.0, "nll": 0.1 if i >= unrestored else 2.0}
            )
            tensors["k_star"].append(keys[way][i])
            tensors["k_mapped"].append(down @ keys[way][i])
            tensors["v0"].append(generator.normal(size=WIDTH))
            # The value of what is asked: in the other direction the key.
            tensors["delta"].append(shared * down @ keys[OTHER[way]][i])
    return rows, {name: np.stack(vectors) for name, vectors in tensors.items()}


def make_noise(seed: int, **columns):
    """Values that share nothing with keys."""
    rows, tensors = make_rows(0.0, seed, **columns)
    tensors["delta"] = np.random.default_rng(seed + 1).normal(size=tensors["delta"].shape)
    return rows, tensors


def make_run(folder, *parts) -> Result:
    """A finished run of `unmask represent` that holds these rows and vectors."""
    rows = [row for part, _ in parts for row in part]
    tensors = [
        tabulate_vectors({name: x.astype(np.float32) for name, x in each.items()})
        for _, each in parts
    ]
    tables = {"represent": pyarrow.Table.from_pylist(rows)}
    tables["vectors"] = pyarrow.concat_tables(tensors)
    record = RunRecord(format=2, verb="represent", settings={}, versions={})
    return Result(REPRESENT, RepresentSettings(), (record,), tables, folder)


def compare(folder, *runs: Result, permutations: int = 199) -> Result:
    return MEASURE(*runs, permutations=permutations, tests=1999, out=folder / "symmetry")


@pytest.fixture(scope="module")
def strong(tmp_path_factory) -> Result:
    """Values that hold their keys."""
    folder = tmp_path_factory.mktemp("strong")
    return compare(folder, make_run(folder, make_rows(4.0)))


@pytest.fixture
def names_only(monkeypatch) -> None:
    """Only the comparisons of names, where the others would say the same."""
    monkeypatch.setattr(comparisons, "COMPARISONS", comparisons.COMPARISONS[:3])


def find(result: Result, comparison: str, measure: str, **more):
    (line,) = select(result.summary["lines"], comparison=comparison, measure=measure, **more)
    return line


def find_sentence(result: Result) -> Finding:
    (finding,) = (block for block in result.section.blocks if isinstance(block, Finding))
    return finding


def test_a_concept_s_key_meets_its_own_value(strong):
    """With a strong share every measure of key and value finds it, and no control does."""
    result = strong
    assert len(result.rows()) == 8 * 9  # comparisons, measures
    for concept in ("name", "description"):
        for measure in LIKENESSES:
            line = find(result, f"{concept}: key and value", measure)
            assert line["p"] <= 0.05 and line["value"] > line["null_mean"], (concept, measure)
            corrected = line["p_holm"] if line["p_family"] is None else line["p_family"]
            assert (line["outcome"] == "above") == (corrected <= 0.05)
        assert find(result, f"{concept}: key and delta", "cosine")["matched"] > 0.99
        assert find(result, f"{concept}: key and v0", "retrieval")["p"] > 0.01
    finding = find_sentence(result)
    assert finding.outcome == "above" and "for 100 % [" in finding.text
    assert finding.text.endswith("What the search added is like the key, fact by fact.")
    folds = {block.title: block for block in result.section.blocks if isinstance(block, Fold)}
    assert len(folds["What the measures are"].blocks) == len(LIKENESSES) + 1
    assert show(read_result(result.folder)) == show(result)


def test_nothing_shared_is_nothing_found(tmp_path):
    result = compare(tmp_path, make_run(tmp_path, make_noise(0)))
    asked = [row for row in result.summary["lines"] if row["comparison"].endswith("key and value")]
    assert {row.get("outcome") for row in asked} == {"unsettled", None}
    assert find_sentence(result).outcome == "unsettled"


def test_what_v0_shares_is_no_finding_about_values(tmp_path):
    """Where v0 holds the key already, the sentence says that no search was needed."""
    rows, tensors = make_rows(4.0)
    tensors["v0"], tensors["delta"] = tensors["delta"], 0.1 * tensors["v0"]
    result = compare(tmp_path, make_run(tmp_path, (rows, tensors)))
    assert find_sentence(result).text.endswith("are alike, fact by fact, before any search.")


def test_several_layers_show_the_best(names_only, tmp_path):
    """A strong layer beside a blank one: it is shown, and every layer is in the tables."""
    run = make_run(tmp_path, make_rows(4.0), make_noise(5, layer=1))
    result = compare(tmp_path, run)
    shown = select(result.summary["lines"], is_shown=True)
    assert distinct(shown, "layer") == [3]
    assert distinct(result.summary["lines"], "layer") == [1, 3]
    assert distinct(result.summary["similarity"], "layer") == [3]
    assert "best layer 3" in find_sentence(result).text


def test_diverged_facts_are_left_out_and_counted(names_only, tmp_path):
    result = compare(tmp_path, make_run(tmp_path, make_rows(1.0, diverged=2)), permutations=19)
    for row in result.rows():
        assert (row["facts"], row["diverged"]) == (FACTS - 2, 2)
        assert row["fact_ids"] == [f"fact-{i:02d}" for i in range(2, FACTS)]
        assert len(row["per_fact"]) == FACTS - 2 and len(row["null"]) == 19
        value = np.mean(row["per_fact"])
        assert value == pytest.approx(row["value"])


def test_values_that_restore_nothing_are_left_out(names_only, tmp_path):
    """v*, its v0 and delta on the same facts; too few of them, and nothing is said of values."""
    result = compare(tmp_path / "a", make_run(tmp_path, make_rows(4.0, unrestored=2)))
    for row in result.rows():
        assert len(row["fact_ids"]) == row["facts"] == row["restored"] == FACTS - 2
    run = make_run(tmp_path, make_rows(4.0, unrestored=3))
    result = compare(tmp_path / "b", run)
    assert {(row["facts"], row["restored"]) for row in result.rows()} == {(FACTS, FACTS - 3)}
    line = find(result, "name: key and value", "top-1")
    assert line["p_family"] < 0.01
    assert line["outcome"] == find_sentence(result).outcome == "not measured"
    assert find(result, "name: key and v0", "top-1")["outcome"] == "unsettled"
    assert "Only 9 values restore their answers" in find_sentence(result).text
    every = MEASURE(run, permutations=19, restored=0.0, out=tmp_path / "c" / "symmetry")
    assert {row["restored"] for row in every.rows()} == {FACTS}


def test_both_concepts_of_a_question_are_a_family(strong):
    lines = select(strong.summary["lines"], measure="retrieval")
    by = {row["comparison"]: row for row in lines}
    pair = [by[f"{concept}: key and v0"] for concept in ("name", "description")]
    assert [row["p_family"] for row in pair] == holm([row["p_layers"] for row in pair])
    assert by["key and key"]["p_family"] == by["key and key"]["p_layers"]
    assert find(strong, "name: key and value", "cka")["p_family"] is None


def test_sides_without_masks_are_compared_where_a_run_has_them(tmp_path):
    rows, tensors = make_rows(4.0)
    tensors |= {"k_bare": tensors["k_star"], "k_bare_mapped": tensors["k_mapped"]}
    tensors["v0_bare"] = tensors["delta"]
    result = compare(tmp_path, make_run(tmp_path, (rows, tensors)))
    line = find(result, "name: key and v0, no masks", "top-1")
    assert line["value"] == 1.0 and line["restored"] is None and line["p_family"] < 0.01
    assert len(result.rows()) == 11 * 9 and "without masks" in show(result)


def test_too_few_facts_are_not_measured(tmp_path):
    run = make_run(tmp_path, make_rows(1.0, diverged=4))
    with pytest.raises(NotMeasuredError, match="has 8 facts .* at layer 3 .4 more diverged") as few:
        compare(tmp_path, run)
    assert few.value.code == "few pairs" and few.value.values["needed"] == 10
    rows, tensors = make_rows(1.0)
    half = {name: x[1::2] for name, x in tensors.items()}
    with pytest.raises(NotMeasuredError) as one:
        compare(tmp_path, make_run(tmp_path, (rows[1::2], half)))
    assert one.value.code == "one direction"


def test_a_group_with_too_few_facts_is_noticed(tmp_path):
    run = make_run(tmp_path, make_rows(4.0), make_rows(4.0, seed=1, diverged=5, group="d2p"))
    result = compare(tmp_path, run, permutations=19)
    assert distinct(result.summary["lines"], "group") == ["p2d"]
    (notice,) = (block for block in result.section.blocks if isinstance(block, Notice))
    assert "facts trained description → name (mdm) has 7 facts" in notice.text


def test_vectors_are_paired_by_fact_whatever_their_order(names_only, tmp_path):
    rows, tensors = make_rows(2.0)
    order = np.random.default_rng(3).permutation(len(rows))
    mixed = [rows[i] for i in order], {name: x[order] for name, x in tensors.items()}
    one = compare(tmp_path / "one", make_run(tmp_path, (rows, tensors)), permutations=19)
    other = compare(tmp_path / "other", make_run(tmp_path, mixed), permutations=19)
    for table in MEASURE.tables:
        assert one.rows(table) == other.rows(table)


def test_models_differ_by_fact(names_only, tmp_path):
    """One model's values hold their keys, the other's do not: the difference says so.

    Each was looked into at one layer, and they are compared there.
    """
    weak = make_noise(5, model="ar", kind="causal", layer=1)
    result = compare(tmp_path, make_run(tmp_path, make_rows(4.0), weak), permutations=19)
    differences = result.summary["differences"]
    assert len(differences) == 3 * 9
    (hits,) = select(differences, comparison="name: key and value", measure="top-1")
    assert (hits["one"], hits["other"], hits["facts"]) == ("mdm", "ar", FACTS)
    assert (hits["layer_one"], hits["layer_other"], hits["outcome"]) == (3, 1, "above")
    ours, theirs = (
        find(result, "name: key and value", "top-1", model=model)["value"]
        for model in ("mdm", "ar")
    )
    assert hits["mean"] == pytest.approx(ours - theirs)
    # With several layers, models are compared only where both were looked into.
    more = make_noise(7, model="ar", kind="causal", layer=2)
    apart = compare(tmp_path / "b", make_run(tmp_path, make_rows(4.0), weak, more), permutations=19)
    assert apart.summary["differences"] == []


def test_a_model_in_two_runs_is_named_by_its_runs(names_only, tmp_path):
    runs = [
        make_run(tmp_path / "a" / "run", make_rows(4.0)),
        make_run(tmp_path / "b" / "run", make_rows(4.0), make_rows(4.0, model="ar", seed=0)),
    ]
    result = compare(tmp_path, *runs, permutations=19)
    assert distinct(result.rows(), "model") == ["a/run: mdm", "b/run: mdm", "ar"]
    second, tensors = make_noise(3)
    second = [row | {"seed": 1} for row in second]
    seeds = make_run(tmp_path, make_rows(4.0), (second, tensors))
    result = compare(tmp_path / "c", seeds, permutations=19)
    assert distinct(result.rows(), "model") == ["mdm-0", "mdm-1"]


def test_what_cannot_be_compared_is_refused(strong, tmp_path):
    run = make_run(tmp_path, make_rows(4.0))
    with pytest.raises(UserError, match="was cut short: run `unmask represent` to its end"):
        compare(tmp_path, replace(run, is_complete=False))
    with pytest.raises(UserError, match="is a run of `unmask symmetry`: expected one of `unmask"):
        compare(tmp_path, strong)


def test_sides_that_do_not_vary_are_not_measured(tmp_path):
    """All deltas are zero, as after a search of no steps: no table or sentence has a number."""
    rows, tensors = make_rows(4.0)
    tensors["delta"] = np.zeros_like(tensors["delta"])
    result = compare(tmp_path, make_run(tmp_path, (rows, tensors)), permutations=19)
    line = find(result, "name: key and delta", "cka")
    assert np.isnan(line["value"]) and line["p"] == line["p_holm"] == 1
    assert line["outcome"] == "not measured" and "nan" not in show(result)


def test_overlap_is_tested_by_itself(strong):
    """It knows no pairs: the correction leaves it out, and it has no outcome."""
    asked = select(strong.summary["lines"], comparison="name: key and value")
    pairs = [line for line in asked if line["measure"] != OVERLAP]
    assert [line["p_holm"] for line in pairs] == holm([line["p"] for line in pairs])
    (overlap,) = select(asked, measure=OVERLAP)
    assert overlap["p_holm"] == overlap["p"] == 1 / 200
    assert "outcome" not in overlap and all("outcome" in line for line in pairs)


def test_maps_name_facts_and_meet_on_their_diagonal(tmp_path):
    """Keys and values of one fact stand in one row and column; cosines are those of the table."""
    result = compare(tmp_path, make_run(tmp_path, make_rows(50.0)), permutations=19)
    figures = {block.name: block for block in result.section.walk() if isinstance(block, Figure)}
    for view in figures["similarity"].views.values():
        (panel,) = view
        assert panel.x == panel.y and panel.x[0] == "Name 0" and len(panel.x) == FACTS
        z = np.array(panel.z)
        assert (z.argmax(1) == np.arange(FACTS)).all() and np.abs(z).max() <= 1 + 1e-9
    line = find(result, "name: key and value", "cosine")
    rows = select(result.rows("similarity"), concept="name")
    own = [row["cosine"] for row in rows if row["key_of"] == row["value_of"]]
    assert np.mean(own) == pytest.approx(line["matched"])
