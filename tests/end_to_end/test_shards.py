"""A measure by several processes: the array of slurm and torchrun, as the docs say it."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet
import pytest

pytestmark = pytest.mark.prove
ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
SPLITS = ["--splits", "d2p_same,p2d_same"]
VERBS = {
    "recall": [*SPLITS, "--limit", "2", "--steps", "2"],
    "trace": [*SPLITS, "--facts", "1", "--steps", "2", "--samples", "1", "--at", "first"],
    "represent": ["--facts", "4", "--layer", "1", "--steps", "1", "--no-probes", "--no-lens"],
    "edit": ["--facts", "2", "--layer", "2", "--search-steps", "1"],
}


def start(command: list[str], **environment: str) -> subprocess.Popen:
    paths = {"PATH": f"{BIN}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
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
def test_shares_give_what_one_process_gives(tmp_path, verb):
    words = [verb, "reversal-mdm", *VERBS[verb], "--device", "cpu"]
    end(start(["unmask", *words, "--out", str(tmp_path / "whole")]))
    array = ["bash", str(ROOT / "docs/slurm/measure.sbatch"), *words]
    slurm = {"OUT": str(tmp_path / "array"), "SLURM_ARRAY_TASK_COUNT": "2"}
    shares = [start(array, SLURM_ARRAY_TASK_ID=number, **slurm) for number in "12"]
    for share in shares:
        end(share)
    together = ["torchrun", "--standalone", "--nproc-per-node", "2", "-m", "unmask", *words]
    end(start([*together, "--out", str(tmp_path / "torchrun")]))
    tables = read(tmp_path / "whole")
    assert tables and read(tmp_path / "array") == tables == read(tmp_path / "torchrun")
