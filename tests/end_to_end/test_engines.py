"""A measure on every engine, as the docs say it: what one process gives, whoever is killed."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet
import pytest

from tests.slurm import write_slurm

pytestmark = pytest.mark.prove
ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
SPLITS = ["--splits", "d2p_same,p2d_same"]
VERBS = {
    "recall": [*SPLITS, "--limit", "2", "--steps", "2"],
    "trace": [*SPLITS, "--facts", "1", "--steps", "2", "--samples", "1", "--at", "first"],
    "represent": [
        "--facts",
        "4",
        "--layer",
        "1",
        "--search-steps",
        "1",
        "--no-probes",
        "--no-lens",
    ],
    "edit": ["--facts", "2", "--layer", "2", "--search-steps", "1"],
}


def start(command: list[str], **environment: str) -> subprocess.Popen:
    path = environment.pop("PATH", os.environ["PATH"])
    paths = {"PATH": f"{BIN}:{path}", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | paths | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def end(process: subprocess.Popen) -> str:
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    return output


def read(folder: Path) -> dict[str, list[str]]:
    """The rows of all tables as texts, in which what is not a number equals itself."""
    paths = [path for path in sorted(folder.rglob("*.parquet")) if "parts" not in path.parts]
    tables = {path.name: pyarrow.parquet.read_table(path).to_pylist() for path in paths}
    return {name: [repr({**row, "seconds": None}) for row in rows] for name, rows in tables.items()}


@pytest.mark.parametrize("verb", VERBS)
def test_workers_give_what_one_process_gives(tmp_path, verb):
    words = ["unmask", verb, "reversal-mdm", *VERBS[verb], "--device", "cpu"]
    end(start([*words, "--out", str(tmp_path / "whole")]))
    end(start([*words, "--on", "local:2", "--out", str(tmp_path / "local")]))
    slurm = [*words, "--on", "slurm:workers=2", "--out", str(tmp_path / "slurm")]
    end(start(slurm, **write_slurm(tmp_path / "scripts")))
    tables = read(tmp_path / "whole")
    assert tables and read(tmp_path / "local") == tables == read(tmp_path / "slurm")


def test_a_killed_worker_changes_nothing(tmp_path):
    words = ["unmask", "trace", "reversal-mdm", *VERBS["trace"], "--device", "cpu"]
    end(start([*words, "--out", str(tmp_path / "whole")]))
    command = start([*words, "--on", "local:2", "--out", str(tmp_path / "killed")])
    killed = set[int]()
    while command.poll() is None and len(killed) < 2:
        for path in (tmp_path / "killed" / "work").glob("*.starts"):
            with suppress(OSError, IndexError):  # it has just ended, or is being written
                pid = int(path.read_text().split()[1])
                if not killed:
                    time.sleep(1.0)  # in the middle of it
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        time.sleep(0.05)
    end(command)
    assert len(killed) == 2 and read(tmp_path / "killed") == read(tmp_path / "whole")
