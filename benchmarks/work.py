"""What the engines of shared work gain and cost, with jobs that sleep.

    python benchmarks/work.py --out docs/results/work.md

Uneven jobs with one and two workers, a worker that joins after a third of the time, kills of
workers at any moment, and 1,000 jobs of one second. Seconds are those of the whole call, the start
of the workers among them.
"""

import argparse
import logging
import os
import random
import signal
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from sleeping import sleep
from timing import describe_run, format_table, write_record

from unmask.base.engines import SLURM, DaskEngine, LocalEngine, SlurmEngine
from unmask.base.reading import read_json
from unmask.base.work import FOLDER, CallWork, WorkEngine, run_jobs

LENGTHS = (6.0, 0.5, 0.5, 1.0, 4.0, 0.5, 2.0, 1.0, 3.0, 0.5, 5.0, 1.0, 0.5, 2.0, 0.5, 4.0, 1.0, 7.0)
KILLS = 10


class _Submitit(SlurmEngine):
    """Slurm's engine, with processes that submitit starts in place of Slurm."""

    delay, cluster = 0.1, "local"


@contextmanager
def open_engine(name: str, workers: int) -> Generator[tuple[WorkEngine, Any]]:
    """An engine with so many workers, and the cluster of Dask where it is one."""
    if name == "dask":
        import distributed

        options = {"dashboard_address": None, "silence_logs": logging.CRITICAL}
        with distributed.LocalCluster(n_workers=workers, threads_per_worker=1, **options) as own:
            yield DaskEngine(own.scheduler_address), own
    elif name == "submitit":
        yield _Submitit(dict(SLURM) | {"workers": workers}), None
    else:
        yield LocalEngine(workers), None


def run(engine: WorkEngine, seconds: dict[str, float], folder: Path) -> float:
    """Seconds that all jobs took."""
    folder.mkdir(parents=True, exist_ok=True)
    work, start = CallWork(folder, partial(sleep, seconds)), time.perf_counter()
    errors = [error for _, error in run_jobs(work, seconds, engine, "jobs") if error is not None]
    assert not errors and len(read_parts(folder)) == len(seconds), errors
    return time.perf_counter() - start


def read_parts(folder: Path) -> dict[str, str]:
    return {path.stem: read_json(path) for path in folder.glob("*.json")}


def time_uneven(scratch: Path) -> list[list[str]]:
    """Rows of seconds with one worker, with two, and with one that another joins."""
    seconds = {f"job-{i}": each for i, each in enumerate(LENGTHS)}
    rows = list[list[str]]()
    for name in ("local", "dask"):
        spent = []
        for workers in (1, 2):
            with open_engine(name, workers) as (engine, _):
                spent.append(run(engine, seconds, scratch / f"{name}-{workers}"))
        with open_engine(name, 1) as (engine, cluster):
            folder = scratch / f"{name}-joined"
            late = Thread(target=_join, args=(cluster, seconds, folder))
            late.start()
            spent.append(run(engine, seconds, folder))
            late.join()
        one, two, joined = spent
        rows.append([name, f"{one:.1f}", f"{two:.1f}", f"{one / two:.2f}", f"{joined:.1f}"])
    return rows


def _join(cluster: Any, seconds: dict[str, float], folder: Path) -> None:
    time.sleep(sum(LENGTHS) / 3)
    if cluster is not None:
        cluster.scale(2)
    else:  # as the same command does in another terminal
        run(LocalEngine(1), seconds, folder)


def count_survived(name: str, scratch: Path) -> int:
    """How many of several runs left all parts, though a worker was killed in each."""
    seconds, survived = dict.fromkeys("abcdefgh", 0.3), 0
    for number in range(KILLS):
        with open_engine(name, 2) as (engine, _):
            folder, killed = scratch / f"{name}-{number}", list[int]()
            killer = Thread(target=_kill, args=(folder, random.Random(number), killed))
            killer.start()
            with suppress(AssertionError):
                run(engine, seconds, folder)
                killer.join()
                parts = read_parts(folder)
                survived += bool(killed) and parts == {k: f"the part of {k}" for k in seconds}
            killer.join()
    return survived


def _kill(folder: Path, drawn: random.Random, killed: list[int]) -> None:
    """Kill a worker that is at a job, at a moment that is drawn."""
    begun = list[Path]()
    while not begun:
        begun = list((folder / FOLDER).glob("*.starts"))
        time.sleep(0.01)
    time.sleep(drawn.uniform(0.0, 0.6))
    while not killed and len(list(folder.glob("*.json"))) < 8:
        with suppress(OSError, IndexError):  # it has just ended
            path = drawn.choice(list((folder / FOLDER).glob("*.starts")))
            os.kill(pid := int(path.read_text().split()[1]), signal.SIGKILL)
            killed.append(pid)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=1000, help="of one second, by two workers")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        uneven = time_uneven(place)
        survived = [[name, f"{count_survived(name, place / 'kills')} of {KILLS}"]
                    for name in ("local", "submitit", "dask")]  # fmt: skip
        seconds = {f"job-{i:04d}": 1.0 for i in range(options.jobs)}
        whole = run(LocalEngine(2), seconds, place / "many")
    ideal = options.jobs / 2
    titles = ["engine", "one worker", "two", "times as fast", "one that a second joins"]
    write_record(
        "# Shared work: what engines gain and cost\n\n"
        f"{describe_run(torch.device('cpu'))}, {os.cpu_count()} cores, with a load of {load:.1f} "
        "before. Jobs sleep, so that this is about the engine alone.\n\n"
        f"{len(LENGTHS)} uneven jobs of {min(LENGTHS):g} to {max(LENGTHS):g} s, {sum(LENGTHS):g} s "
        f"in all; the second worker joins after {sum(LENGTHS) / 3:.0f} s. Seconds:\n\n"
        f"{format_table(titles, uneven)}\n\n"
        "Runs of eight jobs in which one of two workers was killed (kill -9) at a moment that was "
        "drawn, and which left all parts all the same:\n\n"
        f"{format_table(['engine', 'whole'], survived)}\n\n"
        f"{options.jobs:,} jobs of one second took two workers of this machine {whole:.1f} s, "
        f"{100 * (whole / ideal - 1):.1f} % above {ideal:.0f} s.\n",
        options.out,
    )


if __name__ == "__main__":
    main()
