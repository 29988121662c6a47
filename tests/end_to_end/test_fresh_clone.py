"""From nothing: a clone, its own set-up, the two commands. Run by `make prove`."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.prove


def run(*words: object, folder: Path, **environment: str) -> str:
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env=os.environ | {"COLUMNS": "120"} | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_fresh_clone(tmp_path, monkeypatch):
    """No data from outside, and nothing skipped but for want of a GPU; set up once."""
    monkeypatch.delenv("UNMASK_SHARED", raising=False)
    run("git", "clone", "-q", ROOT, tmp_path / "unmask", folder=tmp_path)
    clone = tmp_path / "unmask"
    said = run("make", "test", folder=clone)
    assert " passed" in said
    skipped = [line for line in said.splitlines() if line.startswith("SKIPPED")]
    assert [line for line in skipped if "GPU" not in line] == []
    assert "pip install" not in run("make", "study", folder=clone)
    assert (clone / "runs" / "study" / "page.html").is_file()
    assert "pip install" not in run("make", "-n", "test", folder=clone)
    assert "layers are in order" in run("make", "check", folder=clone)
    status = run("git", "status", "--porcelain", folder=clone)
    assert status == "", f"the commands left files that git sees:\n{status}"
