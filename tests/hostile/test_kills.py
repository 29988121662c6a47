"""kill -9 at random moments, then the same command again: what an uninterrupted run leaves.

A later verb joins by a line in `KILLED`. That changed data, models, tokenizers and settings are
refused on resuming is shown beside each verb: tests/measures/test_resuming.py (every measure),
tests/training/test_inputs.py, tests/study/test_pipeline.py.
"""

import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hostile.calls import Pieces
from unmask.net.hub import RECIPE
from unmask.training.journal import read_journal

KILLS = 10
FORKS = multiprocessing.get_context("forkserver")
# Children begin with everything imported: a kill then falls into the run, not into its imports.
FORKS.set_forkserver_preload(
    ["tests.hostile.test_kills", "torch", "pyarrow.parquet", "scipy.stats", "sklearn.linear_model",
     "matplotlib.pyplot", "unmask.cli.main", "unmask.measures.runner", "unmask.study.pipeline",
     "unmask.training.run", "unmask.report.render_terminal"]
)  # fmt: skip


def measure(*words: str) -> Callable[[Pieces, Path], list[str]]:
    """A command of a measure on both models, small but of several parts."""

    def write(pieces: Pieces, out: Path) -> list[str]:
        model, twin, corpus = pieces.places.values()
        given = [words[0], model, twin, "--data", corpus]
        return [*given, *words[1:], "--device", "cpu", "--out", str(out)]

    return write


def write_symmetry(pieces: Pieces, out: Path) -> list[str]:
    return ["symmetry", str(pieces.pairs), "--permutations", "2000", "--out", str(out)]


def write_study(pieces: Pieces, out: Path) -> list[str]:
    pair = ["--model", pieces.places["diffusion"], "--twin", pieces.places["twin"]]
    words = ["study", *pair, "--data", pieces.places["corpus"], "--quick", "--guidance", "0"]
    return [*words, "--device", "cpu", "--out", str(out)]


def write_train(pieces: Pieces, out: Path) -> list[str]:
    if (out / RECIPE).is_file():
        return ["train", "--resume", str(out), "--device", "cpu"]
    words = ["data={source: reversal, facts: 2, vocab: 600, context: 80}", "batch.rows=4",
             "network={preset: tiny, changes: {layers: 1}}", "budget.steps=60",
             "cadence={log: 1, checkpoint: 3, facts: 0, samples: 0}"]  # fmt: skip
    return ["train", "reversal-mdm", *words, "--device", "cpu", "--out", str(out)]


KILLED = {
    "train": write_train,
    "recall": measure("recall", "--steps", "1,2,4,8", "--guidance", "0"),
    "trace": measure("trace", "--facts", "3", "--samples", "2", "--steps", "4", "--corruption",
                     "mean", "--any-answer"),
    "represent": measure("represent", "--facts", "3", "--steps", "6", "--layer", "all"),
    "symmetry": write_symmetry,
    "edit": measure("edit", "--facts", "3", "--groups", "p2d,d2p", "--layer", "0", "--objects",
                    "swap", "--moments", "identity", "--prefixes", "1", "--length", "24"),
    "study": write_study,
}  # fmt: skip


def run_words(words: list[str], log: str) -> None:
    """In a child: the command line, its output in a file."""
    import torch

    from unmask.cli.main import run_command_line

    torch.set_num_threads(1)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    sys.argv = ["unmask", *words]
    run_command_line()


def start(words: list[str], log: Path) -> multiprocessing.process.BaseProcess:
    process = FORKS.Process(target=run_words, args=(words, str(log)))
    process.start()
    return process


def read_outcome(folder: Path) -> dict[str, object]:
    """Tables without what they took, weights, and the losses of training."""
    import pyarrow.parquet

    outcome: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix == ".parquet" and "parts" not in path.parts:
            table = pyarrow.parquet.read_table(path)
            kept = [column for column in table.column_names if column != "seconds"]
            outcome[name] = repr(table.select(kept).to_pylist())  # NaN is like NaN here
        elif path.suffix == ".safetensors" and "checkpoints" not in path.parts:
            outcome[name] = path.read_bytes()
    outcome["losses"] = [record.get("loss") for record in read_journal(folder)]
    return outcome


@pytest.mark.prove
@pytest.mark.parametrize("verb", KILLED)
def test_kills(verb, pieces, tmp_path):
    write, log = KILLED[verb], tmp_path / "log"
    whole = start(write(pieces, tmp_path / "whole"), log)
    begin = time.perf_counter()
    whole.join(300)
    seconds = time.perf_counter() - begin
    assert whole.exitcode == 0, log.read_text()
    expected = read_outcome(tmp_path / "whole")
    assert len(expected) > 1

    moments = random.Random(verb)
    kills, in_the_middle, round_number = 0, 0, 0
    while kills < KILLS or not (in_the_middle or kills >= 4 * KILLS):
        out = tmp_path / f"killed-{round_number}"
        process = start(write(pieces, out), log)
        process.join(moments.uniform(0.2, 1.0) * seconds)
        if process.exitcode is None:
            process.kill()
            process.join()
            kills += 1
            in_the_middle += any(out.rglob("*.parquet")) or any(out.rglob("checkpoint.json"))
            continue
        assert process.exitcode == 0, log.read_text()
        assert read_outcome(out) == expected
        round_number += 1
    last = start(write(pieces, tmp_path / f"killed-{round_number}"), log)
    last.join(300)
    assert last.exitcode == 0, log.read_text()
    assert read_outcome(tmp_path / f"killed-{round_number}") == expected
    print(f"{verb}: {kills} kills, {in_the_middle} with parts done; {seconds:.1f} s in one go")
    assert in_the_middle
