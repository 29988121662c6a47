"""Rows that a recipe makes in place are made once for all tests of training."""

from functools import cache

import pytest

from unmask.training import examples
from unmask.training.data_settings import DataSettings
from unmask.training.examples import Examples, read_examples


@pytest.fixture(autouse=True)
def made_once(monkeypatch):
    monkeypatch.setattr("unmask.training.mixture.read_examples", _read)


def _read(data: DataSettings, known=None, has_foreign: bool = False) -> Examples:
    make = examples._MADE.get(data.source)
    if make is None or known or data.tokenizer:
        return read_examples(data, known, has_foreign)
    return _make(make, data, has_foreign)


@cache
def _make(make, data: DataSettings, has_foreign: bool) -> Examples:
    """As `make` makes them, which a test may replace."""
    return read_examples(data, has_foreign=has_foreign)
