"""Runs of traces side by side, and runs that version 0.1 left."""

import pyarrow
import pytest

from tests.measures.asking import show
from tests.measures.test_trace import trace
from tests.measures.test_trace_averages import make_rows
from tests.tracing.learned import make_facts
from unmask import UserError
from unmask.base.files import write_json
from unmask.base.tables import write_table
from unmask.blocks.blocks import Figure
from unmask.measures.runner import pool_results, read_result

FEW = {"at": ("first",), "parts": ("resid",), "phrasings": 1, "facts": 3}
OLD = {"model": "runs/net/model", "data": "corpus", "mode": "restore", "metric": "p", "window": 10}
OLD |= {"joint": "mean_field", "run": "teacher_forced", "any_answer": False, "length": None}
OLD |= {"split": "p2d_same", "steps": 16, "dtype": "float32", "at": ["first"], "seed": 0}


@pytest.fixture(scope="module")
def runs(masked, causal, tmp_path_factory):
    """A run of each model, and both in one."""
    folder = tmp_path_factory.mktemp("runs")
    return {
        name: trace(*models, make_facts(), out=folder / name, **FEW)
        for name, models in (
            ("masked", [masked]),
            ("causal", [causal]),
            ("both", [masked, causal]),
        )
    }


def test_runs_pooled_are_what_one_run_says(runs):
    pooled = pool_results([runs["masked"], runs["causal"]])
    for name in ("averages", "tests", "counts", "texts"):
        assert pooled.summary[name] == runs["both"].summary[name]
    assert pooled.section == runs["both"].section


def test_corruptions_of_one_model_are_groups_of_their_own(runs, masked, tmp_path):
    mean = trace(masked, make_facts(), out=tmp_path, corruption="mean", **FEW)
    pooled = pool_results([runs["masked"], mean])
    parts = [row for run in (runs["masked"], mean) for row in run.summary["averages"]]
    assert sorted(map(repr, pooled.summary["averages"])) == sorted(map(repr, parts))
    figure = next(block for block in pooled.section.blocks if isinstance(block, Figure))
    assert figure.controls[-1].options == [
        "first step, gaussian noise",
        "first step, the mean embedding",
    ]
    with pytest.raises(UserError, match="in two of these runs under one corruption"):
        pool_results([runs["both"], runs["masked"]])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"metric": "logp"}, r"these runs differ in metric \(logp, p\)"),
        ({"window": 1}, r"these runs differ in window \(1, 2\)"),
        ({"mode": "ablate"}, "these runs differ in mode"),
        ({"joint": "chain_rule"}, "these runs of masked differ in joint"),
        ({"steps": 4}, r"these runs of masked differ in steps \(4, 6\)"),
    ],
)
def test_runs_that_cannot_be_compared(runs, masked, tmp_path, changes, sentence):
    other = trace(masked, make_facts(), out=tmp_path, corruption="mean", **FEW | changes)
    with pytest.raises(UserError, match=f"{sentence}.*report them apart"):
        pool_results([runs["masked"], other])


def test_models_of_one_name_are_named_by_their_runs(runs, masked, causal, tmp_path):
    """Other weights under the same name are another model."""
    from dataclasses import replace

    other = trace(replace(causal, name="masked"), make_facts(), out=tmp_path / "other", **FEW)
    pooled = pool_results([runs["masked"], other])
    assert [row["model"] for row in pooled.summary["counts"]] == ["masked: masked", "other: masked"]


def make_old_rows(kind, effect, stage="first", corruption="mask", way=("p2d", "same")):
    """Twelve facts as version 0.1 kept them; their last subject token has a clear effect."""
    rows = []
    for i in range(12):
        cells = {(1, "before subject"): 0.0, (2, "last subject"): effect + 0.01 * i}
        for row in make_rows(f"fact-{i}", 0, cells, stage=stage, corruption=corruption):
            for name in ("model", "seed", "split"):
                del row[name]
            part = "resid" if row["part"] == "mlp" else row["part"]
            direction, trained = way
            rows.append(
                row | {"kind": kind, "direction": direction, "trained": trained, "part": part}
            )
    return rows


def write_old(folder, kind="masked", effect=0.5, corruption="mask", **settings):
    """A run folder of version 0.1."""
    rows = make_old_rows(kind, effect, corruption=corruption)
    write_table(folder / "trace.parquet", pyarrow.Table.from_pylist(rows), "trace/1")
    fact = {"kind": kind, "direction": "p2d", "trained": "same", "reason": "", "clean": 0.9}
    fact |= {"corruption": corruption, "phrasing": 0, "kept": True, "said": "", "forced": False}
    fact |= {"subject": "s", "object": "o", "prompt": "p", "completion": " o", "t1": 1, "t2": 1}
    records = [fact | {"fact": f"fact-{i}"} for i in range(12)]
    records.append(fact | {"fact": "fact-12", "kept": False, "reason": "not recalled"})
    write_table(folder / "facts.parquet", records, "trace-facts/1")
    record = {"format": 1, "verb": "trace", "settings": OLD | settings}
    write_json(folder / "run.json", record | {"versions": {"unmask": "0.1.0"}})
    return folder


def test_a_run_of_version_0_1_is_read_and_drawn(tmp_path):
    old = read_result(write_old(tmp_path / "a"))
    assert old.is_complete and old.settings.metric == "p" and old.settings.window == 10
    (total,) = [row for row in old.summary["averages"] if row["part"] == "total"]
    assert (total["model"], total["split"]) == ("net", "p2d_same")
    assert total["mean"] == pytest.approx(0.8) and total["facts"] == 12
    (verdict,) = [each for claim, each in old.verdicts.items() if "last subject" in claim]
    assert verdict.is_clear and verdict.value.mean == pytest.approx(0.555)
    text = show(old)
    assert "In net, asked name → description, as trained" in text and "1 not recalled" in text
    assert "69 % of what was lost, more than every placebo. At layers that other facts" in text
    assert "(0 / 0) it is 69 % [" in text and "]. [clear]" in text


def test_old_runs_are_pooled(tmp_path):
    one = write_old(tmp_path / "a")
    twin = write_old(tmp_path / "b", "causal", 0.1, model="twin", joint="chain_rule")
    pooled = pool_results([read_result(one), read_result(twin)])
    assert [row["model"] for row in pooled.summary["counts"]] == ["net", "twin"]
    (test,) = [row for row in pooled.summary["tests"] if row["role"] == "last subject"]
    assert (test["model"], test["other_model"]) == ("net", "twin")
    assert test["mean"] == pytest.approx(0.4) and test["paired"]
    assert "not how large they are" in " ".join(show(pooled).split())
    again = write_old(tmp_path / "c", corruption="gaussian", steps=8)
    with pytest.raises(UserError, match=r"these runs of net differ in steps \(16, 8\)"):
        pool_results([read_result(one), read_result(again)])


def test_an_old_run_that_was_cut_short_says_what_it_has(tmp_path):
    run = write_old(tmp_path / "a")
    for whole, parts in (("trace", "parts"), ("facts", "records")):
        (run / parts).mkdir()
        (run / f"{whole}.parquet").rename(run / parts / "00000-first.parquet")
    cut = read_result(run)
    assert not cut.is_complete and "cut short" in show(cut) and "[clear]" in show(cut)
    bare = tmp_path / "bare"
    write_json(bare / "run.json", {"format": 1, "verb": "trace", "settings": OLD, "versions": {}})
    with pytest.raises(UserError, match="bare holds no traced fact"):
        read_result(bare)


def test_one_s_own_facts_of_version_0_1_are_no_split(tmp_path):
    old = read_result(write_old(tmp_path / "a", data="my/facts.csv"))
    assert {row["split"] for row in old.summary["averages"]} == {"own"}
    assert "In net, on own facts, hiding the subject" in show(old)


def write_averages(folder):
    """What version 0.1's trace-report left: averages and tests, and no run.json."""
    write_old(folder)
    (folder / "trace.parquet").unlink()
    (folder / "run.json").unlink()
    group = {"direction": "d2p", "trained": "reverse", "kind": "masked", "corruption": "mask"}
    group |= {"stage": "first", "control": "none", "facts": 9, "prompts": 9}
    cell = {"part": "resid", "layer": 1, "head": -1, "role": "last subject"}
    total = {"part": "total", "layer": -1, "head": -1, "role": ""}
    averages = [
        group | total | {"mean": 8.0, "low": 7.0, "high": 9.0},
        group | cell | {"mean": 2.0, "low": 1.5, "high": 2.5},
    ]
    write_table(folder / "averages.parquet", averages, "trace-averages/1")
    test = {"what": "trained", "corruption": "mask", "stage": "first", "part": "total", "role": ""}
    test |= {"one": "masked d2p reverse", "other": "masked d2p same", "facts": 18, "paired": False}
    test |= {"mean": 1.0, "low": 0.5, "high": 1.5, "p": 0.01, "p_holm": 0.02}
    write_table(folder / "tests.parquet", [test], "trace-tests/1")
    return folder


def test_stored_averages_are_drawn_as_they_are(tmp_path):
    stored = read_result(write_averages(tmp_path / "page"))
    total = stored.summary["averages"][0]
    assert (total["model"], total["split"]) == ("diffusion", "p2d_reverse")
    assert (total["low"], total["high"]) == (7.0, 9.0)
    text = show(stored)
    assert "8 [7, 9] from the answer's score" in text and "bootstrap intervals" in text
    assert "diffusion, description → name, reversed" in text and "1 of 1 pass" in text
    fresh = read_result(write_old(tmp_path / "a"))
    with pytest.raises(UserError, match="holds averages alone: draw it by itself"):
        pool_results([stored, fresh])
    # A record beside them says how answers were scored.
    record = {"format": 1, "verb": "trace", "settings": OLD | {"metric": "logp"}, "versions": {}}
    write_json(tmp_path / "page" / "run.json", record)
    assert "8 nats [7, 9] from the answer's log-probability" in show(read_result(tmp_path / "page"))
