"""Measures called from Python: how arguments are sorted, what is refused, what is left on disk."""

import inspect
import pydoc
import tempfile
from dataclasses import fields, replace

import pytest

import unmask
from tests.evaluation.oracle import make_twin
from tests.measures.counting import MEASURE, CountingSettings
from unmask import UserError
from unmask.base.config import SettingsError
from unmask.measures.measure import Measure


@pytest.fixture
def model(tokenizer):
    return make_twin(tokenizer)


def find_cost(model, corpus, **more) -> float:
    rows = unmask.nll(model, corpus, splits=("d2p_same",), limit=2, **more).rows()
    return sum(row["nll_total"] for row in rows)


def test_a_patched_model_is_not_taken_for_the_plain_one(model, corpus, tmp_path):
    """A folder knows models by their weights; without one, a patched model is measured as such."""
    plain = find_cost(model, corpus, out=tmp_path / "run")
    with model.net.patch({"final": lambda x: 0 * x}):
        assert abs(find_cost(model, corpus) - plain) > 0.1
        for given, folder in ((model, "run"), (model, "new"), ({"named": [model]}, "new")):
            with pytest.raises(UserError, match="is patched or captured at final, which a run"):
                find_cost(given, corpus, out=tmp_path / folder)
    assert not (tmp_path / "new").exists()
    assert find_cost(model, corpus, out=tmp_path / "run") == plain


def test_data_by_position_are_of_one_kind(model, corpus):
    facts = corpus.splits["d2p_same"][:2]
    for given, said in (
        ((corpus, facts), "1 corpora and 2 facts were given: expected one corpus, or facts"),
        ((corpus, corpus), "2 corpora and 0 facts were given"),
    ):
        with pytest.raises(UserError, match=said):
            unmask.nll(model, *given)


def test_changes_beside_settings_are_checked_like_settings():
    known = CountingSettings(facts=3)
    changed = MEASURE("one", settings=known, shift=2)
    assert (changed.settings.facts, changed.settings.shift) == (3, 2.0)
    for wrong, said in (
        ({"shfit": 1}, "unknown key 'shfit' .did you mean 'shift'"),
        ({"shift": "far"}, "'shift' is 'far', expected a number"),
    ):
        with pytest.raises(SettingsError, match=said):
            MEASURE("one", settings=known, **wrong)


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_call_waits_for_no_other_process(rank, tmp_path, monkeypatch):
    """Notebooks on clusters may have what torchrun sets."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("it waits"))
    for out in (None, tmp_path / "run"):
        result = MEASURE("one", "two", out=out)
        assert {row["model"] for row in result.rows()} == {"one", "two"}


def test_workers_are_given_names_and_a_folder(tmp_path, model):
    with pytest.raises(UserError, match="on='local:1' was given without out"):
        MEASURE("one", on="local:1")
    with pytest.raises(UserError, match="with a loaded Model: workers read models and data"):
        MEASURE(model, out=tmp_path, on="local:1")
    with pytest.raises(UserError, match="--on is 'somewhere': expected local:4"):
        MEASURE("one", out=tmp_path, on="somewhere")


def test_a_call_that_fails_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def fail(tables, settings):
        raise UserError("it failed")

    with pytest.raises(UserError, match="it failed"):
        replace(MEASURE, summarise=fail)("one")
    assert not list(tmp_path.iterdir())


def test_help_and_signature_name_the_settings():
    measures = [
        each for name in unmask.__all__ if isinstance(each := getattr(unmask, name), Measure)
    ]
    assert len(measures) > 10
    for measure in [*measures, MEASURE]:
        shown, parameters = pydoc.render_doc(measure), inspect.signature(measure).parameters
        assert measure.help in shown and list(parameters)[:2] == ["subjects", "data"]
        for field in fields(measure.settings):
            assert f"{field.name}: {field.metadata['help']}" in shown
            assert parameters[field.name].default == field.default


def test_a_number_is_a_list_of_one():
    assert CountingSettings(sizes=4) == CountingSettings(sizes=(4,))  # ty: ignore
    for wrong in (0, 2.5, True):
        with pytest.raises(SettingsError, match=f"'sizes' is {wrong}, expected"):
            CountingSettings(sizes=wrong)  # ty: ignore
