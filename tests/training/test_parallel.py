"""Several processes compute what one does, and their checkpoints serve any number of processes."""

import os
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import unmask
from tests.training import parallel_worker
from tests.training.parallel_worker import SETTINGS
from tests.training.runs import make_trainer, run
from unmask.training.journal import read_journal
from unmask.training.parallel import World

ROOT = Path(__file__).parents[2]


def launch_by_torchrun(*folders: Path) -> None:
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, *words, parallel_worker.__file__, *map(str, folders)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]


def launch(*folders: Path) -> None:
    """Run the worker in two processes on the CPU over gloo, without torchrun's own."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    shared = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2"}
    shared |= {"LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    words = [sys.executable, parallel_worker.__file__, *map(str, folders)]
    workers = [
        subprocess.Popen(
            words,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    said = [worker.communicate()[1] for worker in workers]
    assert not any(worker.returncode for worker in workers), "\n".join(said)[-4000:]


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> Path:
    """Runs of two processes."""
    folder = tmp_path_factory.mktemp("two")
    launch(folder)
    return folder


@pytest.fixture(scope="module")
def one(tmp_path_factory) -> Path:
    """The same run in this process, in one piece."""
    folder = tmp_path_factory.mktemp("one")
    run(folder, **SETTINGS | {"batch": {"micro": 8}})
    return folder


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_two_processes_equal_one(how, one, two):
    losses = [[r["loss"] for r in read_journal(folder)] for folder in (one, two / how)]
    assert len(losses[0]) == 6 and losses[1] == pytest.approx(losses[0], rel=1e-6)
    norms = [[r["norm"] for r in read_journal(folder)] for folder in (one, two / how)]
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)
    nets = [unmask.load(f / "model", "cpu").net for f in (one, two / how)]
    for a, b in zip(*(net.parameters() for net in nets), strict=True):
        # Sums in another order, divided by small second moments: 1.1e-6 after six steps of 1e-3.
        assert torch.allclose(a, b, rtol=0, atol=2e-6)


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_one_process_goes_on_from_two(how, two, tmp_path):
    """Parts that two processes wrote are put together by one."""
    name = "step-00000003"
    shutil.copytree(two / how / "checkpoints" / name, tmp_path / "checkpoints" / name)
    run(tmp_path, **SETTINGS)
    losses = [[r["loss"] for r in read_journal(f)] for f in (tmp_path, two / how)]
    assert losses[0] == pytest.approx(losses[1][3:], rel=1e-6)


@pytest.mark.prove
def test_two_processes_go_on_from_one_and_from_two(one, two, tmp_path):
    name = Path("checkpoints", "step-00000003")
    for how in ("ddp", "fsdp"):
        shutil.copytree(one / name, tmp_path / "from one" / how / name)
        shutil.copytree(two / how / name, tmp_path / "from two" / how / name)
    launch_by_torchrun(tmp_path / "from one", tmp_path / "from two")
    for how in ("ddp", "fsdp"):
        losses = [[r["loss"] for r in read_journal(f / how)] for f in (tmp_path / "from one", two)]
        assert losses[0] == pytest.approx(losses[1][3:], rel=1e-6)
        # From its own checkpoint a run of two goes on to the same bits.
        models = [f / how / "model" / "model.safetensors" for f in (tmp_path / "from two", two)]
        assert models[0].read_bytes() == models[1].read_bytes()


def test_rows_are_shared_without_overlap():
    """Each process gets its own rows, at the times they would have in one batch."""
    whole = make_trainer()
    inputs = whole.feed(4)[0].inputs
    halves = []
    for rank in range(2):
        trainer = make_trainer()
        trainer.job = replace(trainer.job, world=World(torch.device("cpu"), rank, size=2))
        halves += trainer.feed(4)
    own = [half.inputs for half in halves]
    assert torch.equal(torch.cat([half.batch.tokens for half in own]), inputs.batch.tokens)
    assert torch.equal(torch.cat([half.t for half in own]), inputs.t)
    assert sum(half.share for half in halves) == pytest.approx(1)
