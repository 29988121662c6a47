"""Losses of twenty steps are what they were."""

import pytest

from tests.training.golden import FILE, RUNS, STEPS, measure
from unmask.base.reading import read_json


@pytest.mark.parametrize("name", RUNS)
def test_losses_are_golden(name):
    known = read_json(FILE)[name]
    assert len(known) == STEPS
    # Processors round differently in the last digits; nothing else may differ.
    assert measure(name) == pytest.approx(known, rel=2e-5)
