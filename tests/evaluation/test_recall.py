"""Recall measured: what a model knows is found, and nothing else; a stopped run goes on."""

from dataclasses import replace

import pyarrow
import pytest
import torch

from tests.evaluation.oracle import make_oracle, make_twin
from unmask import UserError
from unmask.data.corpus import TESTS
from unmask.evaluation import batches, recall
from unmask.evaluation.families import Family
from unmask.evaluation.questions import CONTROL, choose_splits
from unmask.evaluation.recall import RecallSettings, measure_recall
from unmask.evaluation.summary import BEATS, Summary, summarise
from unmask.report.recall_table import tell_uncontrolled

SETTINGS = RecallSettings(steps=(1, 3), device="cpu")
MASKED = Family("mdm", ("oracle",), "masked", ("",))
CAUSAL = Family("ar", ("one", "two"), "causal", ("", ""))


@pytest.fixture
def models(monkeypatch, corpus, tokenizer):
    """An oracle that knows two of the splits, and twins that know nothing."""
    known = {
        "oracle": make_oracle(corpus, ("d2p_same", "p2d_reverse"), tokenizer),
        "one": make_twin(tokenizer, 0),
        "two": make_twin(tokenizer, 1),
    }
    monkeypatch.setattr(recall, "load", lambda name, *_, **__: known[name])
    return known


@pytest.fixture
def splits(corpus):
    return choose_splits(corpus, TESTS, limit=5)


def without_seconds(table):
    return table.drop_columns("seconds").to_pylist()


def test_the_table_says_what_is_known(models, splits, tmp_path):
    table = measure_recall([MASKED, CAUSAL], splits, SETTINGS, tmp_path)
    rows = table.to_pylist()
    # 4 splits and their controls, 5 prompts; 2 step counts of one model, 2 seeds of the other.
    assert len(rows) == 8 * 5 * (2 + 2)
    for row in rows:
        knows = row["model"] == "mdm" and row["split"] in ("d2p_same", "p2d_reverse")
        assert row["hit"] == row["strict"] == knows, row
        assert (row["token_accuracy"] == 1) == knows
        assert (row["bleu"] > 99) == knows
        if knows:
            assert row["rank"] == 1 and row["logp"] == pytest.approx(0, abs=1e-6)
            assert row["first_token_entropy"] == pytest.approx(0, abs=1e-6)
            assert row["generation"] == row["completion"]
        if row["model"] == "ar":
            assert row["steps"] is None and row["guidance"] is None
            assert row["logp_mean_field"] is None
    summary = summarise(table)
    for steps in (1, 3):
        assert summary.find("mdm", "d2p_same", steps).value.mean == 1
        assert summary.find("mdm", "d2p_same" + CONTROL, steps).value.mean == 0
        assert summary.find("mdm", "d2p_reverse", steps).value.mean == 0
        assert summary.find("ar", "d2p_same", steps) is summary.find("ar", "d2p_same", None)
        assert summary.find("mdm", "p2d_reverse", steps, BEATS).value.mean == 1
    assert summary.find("ar", "d2p_same", 1).seeds == 2
    assert summary.models == ["mdm", "ar"] and summary.steps == [1, 3]
    differences = {(pair.split, pair.steps): pair.difference.mean for pair in summary.pairs}
    assert differences["p2d_reverse", 3] == 1 and differences["p2d_same", 1] == 0


def test_an_interrupted_run_goes_on(models, splits, tmp_path, monkeypatch):
    families = [MASKED, CAUSAL]
    whole = without_seconds(measure_recall(families, splits, SETTINGS, tmp_path / "whole"))
    calls = 0

    def stop_at_the_fourth(*arguments, **settings):
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt
        return original(*arguments, **settings)

    original = recall.sample
    monkeypatch.setattr(recall, "sample", stop_at_the_fourth)
    with pytest.raises(KeyboardInterrupt):
        measure_recall(families, splits, SETTINGS, tmp_path / "parts")
    done = sorted(path.name for path in (tmp_path / "parts" / "parts").iterdir())
    assert done == [
        f"mdm-0-{name}.parquet" for name in ("d2p_reverse-1", "d2p_same-1", "d2p_same-3")
    ]
    assert not (tmp_path / "parts" / "recall.parquet").exists()
    kept = {path: path.read_bytes() for path in (tmp_path / "parts" / "parts").iterdir()}
    again = measure_recall(families, splits, SETTINGS, tmp_path / "parts")
    assert without_seconds(again) == whole
    assert all(path.read_bytes() == content for path, content in kept.items())
    before = calls
    measure_recall(families, splits, SETTINGS, tmp_path / "parts")
    assert calls == before, "a finished run samples nothing"


def test_rows_do_not_depend_on_their_batch(models, splits, tmp_path, monkeypatch):
    together = without_seconds(measure_recall([CAUSAL], splits, SETTINGS, tmp_path / "one"))
    monkeypatch.setattr(batches, "_MOST_ON_CPU", 1)
    alone = without_seconds(measure_recall([CAUSAL], splits, SETTINGS, tmp_path / "two"))
    for one, other in zip(together, alone, strict=True):
        assert one["generation"] == other["generation"] and one["rank"] == other["rank"]
        assert one["logp"] == pytest.approx(other["logp"], abs=1e-4)


def test_a_batch_that_does_not_fit_is_halved():
    sizes = []

    def call(batch):
        sizes.append(len(batch))
        if len(batch) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return [2 * item for item in batch]

    found = [result for _, results in batches.map_batches(range(10), 8, call) for result in results]
    assert found == [2 * i for i in range(10)] and sizes == [8, 4, 2, 2, 2, 2, 2]
    with pytest.raises(UserError, match="not even one row fits"):
        list(batches.map_batches([4], 1, lambda batch: call([0] * 4)))

    def broken(batch):
        raise RuntimeError("shapes do not fit")

    with pytest.raises(RuntimeError, match="shapes"):
        list(batches.map_batches([4], 1, broken))


def test_bad_input(models, corpus, splits, tmp_path):
    with pytest.raises(UserError, match="has no split 'd2p_sam': did you mean 'd2p_same'"):
        choose_splits(corpus, ["d2p_sam"], None)
    with pytest.raises(UserError, match="a limit of 0 prompts was given"):
        choose_splits(corpus, TESTS, 0)
    uniform = Family("u", ("oracle",), "uniform", ("",))
    with pytest.raises(UserError, match="u is a uniform model: recall is measured for masked and"):
        measure_recall([uniform], splits, SETTINGS, tmp_path)
    short = RecallSettings(steps=(1,), length=20)
    with pytest.raises(UserError, match=r"a length of 20 does not hold it: give a --length of \d+"):
        measure_recall([MASKED], splits, short, tmp_path)
    object.__setattr__(models["one"], "tokenizer", None)
    with pytest.raises(UserError, match="the model twin has no tokenizer: put a tokenizer.json"):
        measure_recall([CAUSAL], splits, SETTINGS, tmp_path)


def test_prompts_without_a_control_are_left_out_of_its_numbers(models, splits, tmp_path):
    """The same in a new table, which lacks their rows, and in an old one, which has them."""
    whole = measure_recall([MASKED], splits, SETTINGS, tmp_path / "whole").to_pylist()
    (at,) = [i for i, split in enumerate(splits) if split.name == "p2d_reverse"]
    controls = [None, *splits[at].controls[1:]]
    fewer = [*splits[:at], replace(splits[at], controls=controls), *splits[at + 1 :]]
    new = measure_recall([MASKED], fewer, SETTINGS, tmp_path / "new")
    first = splits[at].facts[0]
    for row in whole:
        if (row["split"], row["prompt"]) == ("p2d_reverse" + CONTROL, first.prompt):
            row |= {"completion": first.completion, "hit": True}
    old = pyarrow.Table.from_pylist(whole)
    assert len(old) == len(new) + 2
    for summary in map(summarise, (old, new)):
        assert summary.count_uncontrolled() == {"p2d_reverse": 1}
        assert summary.find("mdm", "p2d_reverse" + CONTROL, 3).value.mean == 0
        assert summary.find("mdm", "p2d_reverse" + CONTROL, 3).prompts == 4
        assert summary.find("mdm", "p2d_reverse", 3, BEATS).prompts == 4
        assert summary.find("mdm", "p2d_reverse", 3).prompts == 5
        assert "no control: 1 of p2d reverse." in tell_uncontrolled(summary)
    assert tell_uncontrolled(Summary([], [], "")) == ""
