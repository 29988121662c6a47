"""Runs of traces side by side."""

import pytest

from tests.measures.test_trace import trace
from tests.tracing.learned import make_facts
from unmask import UserError
from unmask.blocks.blocks import Figure
from unmask.measures.runner import pool_results

FEW = {"at": ("first",), "parts": ("resid",), "phrasings": 1, "facts": 3}


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
    assert figure.controls[-1].options == ["gaussian noise", "the mean embedding"]
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
