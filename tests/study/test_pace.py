"""How long a study takes, and sizes that fit into a time, kept though speed changes."""

import random
from dataclasses import replace

import pytest

import unmask
from unmask.base.runs import read_record
from unmask.measures.factorization import MEASURE
from unmask.study import pace as pace_module
from unmask.study import pipeline
from unmask.study.pace import Pace, count_units, count_usual, read_costs
from unmask.study.pipeline import list_stages, run_study

USUAL = {name: count_usual(name, stage.sizes.get("laptop"))
         for name, (_, stage) in list_stages("laptop").items()}  # fmt: skip


def start(speed: float) -> Pace:
    """Once the sample was run at that speed, in seconds for each of the table's."""
    return Pace(USUAL | {"page": 0}, speed)


def test_every_stage_has_its_cost():
    costs = read_costs()
    assert costs.keys() == {*USUAL, "page", "sample"}
    assert all(value >= 0 for cost in costs.values() for value in cost.values())
    assert {name for name, cost in costs.items() if cost.get("each")} == {
        "recall", "factorization", "trace", "knockout"
    }  # fmt: skip


def run_at(given: float, speed: float, seed: int) -> float:
    """By what share a study is late: another process begins at some stage, and each costs up to a
    fifth more or less than in the table."""
    drawn = random.Random(seed)
    known, passed, within = start(speed), 0.0, given * start(1.0).estimate()
    late = drawn.randrange(2 * len(USUAL))
    for place, (name, usual) in enumerate(USUAL.items()):
        number = known.choose(name, within - passed)
        assert 1 <= number <= 3 * max(1, usual)
        seconds = count_units(name, number if usual else 0) * speed * drawn.uniform(0.8, 1.2)
        seconds *= 1.5 if place >= late else 1.0
        known.end(name, {"facts": number} if usual else {}, seconds, True)
        passed += seconds
    return (passed + count_units("page", 0) * speed) / within - 1


@pytest.mark.parametrize(("given", "speed"), [(1.0, 1.0), (0.5, 1.0), (2.0, 1.0), (1.0, 2.0)])
def test_promises_are_kept_though_speed_changes_and_stages_cost_otherwise(given, speed):
    kept = [abs(run_at(given, speed, seed)) <= 0.25 for seed in range(100)]
    assert sum(kept) >= 90


def test_what_measured_nothing_says_nothing_of_the_speed_and_least_and_most_have_ends():
    known = start(1.0)
    before = known.estimate() - count_units("recall", USUAL["recall"])
    known.end("recall", {}, 0.1, False)
    assert known.estimate() == pytest.approx(before)
    assert known.choose("trace", 0.0) == 1
    assert known.choose("trace", 1e9) == 3 * USUAL["trace"]


def test_a_study_within_a_time_has_its_own_sizes_and_keeps_them(place, tmp_path, monkeypatch):
    """Counts that were begun with stay, whatever the next command has time for."""
    monkeypatch.setattr(pace_module, "SAMPLE_SECONDS", 0.0)
    settings = replace(place.study(size="laptop"), within=0.001)
    words = {"stages": ["factorization"], "out": tmp_path / "run"}
    run_study(settings, **words)
    record = read_record(tmp_path / "run" / "factorization")
    assert (record.verb, record.settings["limit"]) == (MEASURE.name, 1)
    (tmp_path / "run" / pipeline.STAGES_FILE).unlink()
    study = run_study(replace(settings, within=None), **words)
    assert read_record(tmp_path / "run" / "factorization").settings["limit"] == 1
    assert study.records()["factorization"]["missing"] is None
    with pytest.raises(unmask.UserError, match="within was given for the size quick"):
        place.study(within=2.0)
