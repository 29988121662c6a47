"""A model on disk, for the tests of loading and saving."""

from pathlib import Path

import pytest

import unmask
from tests.conftest import make_model


@pytest.fixture
def saved(tmp_path) -> Path:
    unmask.save(make_model(), tmp_path / "model")
    return tmp_path / "model"
