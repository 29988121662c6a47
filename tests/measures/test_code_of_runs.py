"""Runs know the code that made them: a measure's own files, its functions, and those given."""

from dataclasses import replace
from typing import Any

import pytest

import unmask
from tests.measures.counting import MEASURE, CountingInputs, CountingSettings, list_jobs
from unmask import UserError
from unmask.base.files import write_json
from unmask.base.locks import RunRefusedError
from unmask.base.reading import read_json_object
from unmask.measures import runner
from unmask.measures.measure import Measure
from unmask.measures.result import Result
from unmask.measures.runner import run_measure
from unmask.measures.table import (
    EXPERIMENTS,
    MEASURES,
    find_measure,
    list_measures,
    list_own_files,
)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(MEASURES._given, "counting", MEASURE)


def test_other_code_is_refused_and_what_it_made_is_read(tmp_path, caplog):
    def shift_by(number: float) -> Measure:
        def list_shifted(inputs, settings):
            return list_jobs(inputs, replace(settings, shift=number))

        return replace(MEASURE, jobs=list_shifted)

    def run_shifted(number: float, **changes: Any) -> Result | None:
        inputs, settings = CountingInputs(["one"]), CountingSettings()
        return run_measure(shift_by(number), inputs, settings, tmp_path, **changes)

    first = run_shifted(1.0)
    assert first is not None and run_shifted(1.0) is not None
    with pytest.raises(
        RunRefusedError, match="the functions of the measure changed.*--fresh.* --o"
    ):
        run_shifted(2.0)
    assert runner.read_result(tmp_path).summary == first.summary
    record = read_json_object(tmp_path / "run.json")
    assert "code in test_code_of_runs.py" in record["code"]["the measure"]
    # Another version of Python has other bytecode, which is said.
    write_json(tmp_path / "run.json", record | {"versions": record["versions"] | {"python": "3.9"}})
    with pytest.raises(RunRefusedError, match="Python was '3.9' and is now "):
        run_shifted(2.0)
    # A run of an earlier version does not say what made it.
    write_json(tmp_path / "run.json", record | {"code": {}})
    with caplog.at_level("WARNING"):
        run_shifted(2.0)
    assert "does not say what code made it" in caplog.text
    write_json(tmp_path / "run.json", record | {"code": {"the measure": 3}})
    with pytest.raises(UserError, match="run.json: 'code' is .'the measure': 3., expected"):
        run_shifted(2.0)
    write_json(tmp_path / "run.json", record)
    other = run_shifted(2.0, fresh=True)
    assert other is not None
    assert runner.pool_results([first, replace(other, folder=tmp_path / "o")]).differences == [
        "the code"
    ]


def test_every_measure_is_known_by_its_own_files():
    for name, measure in list_measures().items():
        names = [path.name for path in list_own_files(measure)]
        own = ["measure.py"] if name in EXPERIMENTS else [f"{name}.py"]
        assert set(names) >= set(own) and "runner.py" not in names
    assert [path.name for path in list_own_files(find_measure("recall"))] == [
        "recall.py",
        "recall_section.py",
        "recall_signals.py",
        "recall_summary.py",
        "recall_texts.py",
    ]


def test_own_files_of_a_measure_of_this_package_are_compared(place, tmp_path, monkeypatch):
    ask = {"data": place.data, "out": tmp_path / "run", "device": "cpu", "limit": 1}
    unmask.nll(place.model, **ask)
    own = tmp_path / "nll.py"
    own.write_text("# Other code.")
    with monkeypatch.context() as patch:
        patch.setattr(runner, "list_own_files", lambda measure: [own])
        with pytest.raises(UserError, match="the code in nll.py of the measure changed"):
            unmask.nll(place.model, **ask)
    unmask.nll(place.model, **ask)


def test_functions_of_one_name_that_are_given_are_told_apart(place, tmp_path):
    ask = {"data": place.data, "out": tmp_path / "run", "device": "cpu", "limit": 1, "steps": (2,)}

    def order_by(sign: int):
        return lambda state, streams: sign * state.confidence

    unmask.recall(place.model, order=order_by(1), **ask)
    unmask.recall(place.model, order=order_by(1), **ask)
    with pytest.raises(UserError, match="the code of the order given changed"):
        unmask.recall(place.model, order=order_by(-1), **ask)


def test_another_version_of_a_plug_in_is_recorded(tmp_path, monkeypatch, caplog):
    def run_installed(version: str) -> dict[str, Any]:
        monkeypatch.setattr(MEASURES, "find_origin", lambda name: ("theirs", version))
        run_measure(MEASURE, CountingInputs(["one"]), CountingSettings(), tmp_path)
        return read_json_object(tmp_path / "run.json")["versions"]

    assert run_installed("1.0")["theirs"] == "1.0"
    with caplog.at_level("WARNING"):
        versions = run_installed("1.1")
    assert "is a run of theirs 1.0, resumed by 1.1" in caplog.text
    assert versions["theirs"] == "1.0" and versions["resumed by theirs"] == "1.1"
