"""Models, data and runs that the fuzz starts from, and a folder to do so in."""

import shutil
import sys
from pathlib import Path

import pytest

from tests.hostile.calls import Pieces
from tests.hostile.pieces import make_pieces
from tests.study.pair import place

__all__ = ["place"]


@pytest.fixture(scope="session")
def pieces(place, tmp_path_factory) -> Pieces:
    """A pair of models of 30,000 parameters, data of every kind, and a finished run."""
    folder = tmp_path_factory.mktemp("pieces") / "pair"
    shutil.copytree(Path(place.model).parent, folder)
    return make_pieces(folder)


@pytest.fixture
def alone(tmp_path, monkeypatch) -> Path:
    """A folder to write to, which is the current one; nothing is fetched."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return tmp_path
