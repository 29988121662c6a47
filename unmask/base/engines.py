"""Where shared jobs are worked on: processes of this machine, tasks of Slurm, a Dask cluster.

local:4                                  four processes, which share its threads and GPUs
slurm:gpus=1,partition=PARTITION,hours=2 tasks of Slurm, submitted and requeued by submitit
dask:ADDRESS                             the workers of a Dask scheduler
"""

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from shutil import which
from typing import Any
from uuid import uuid4

from unmask.base.errors import UserError, suggest
from unmask.base.extras import require_extra
from unmask.base.work import FOLDER, SharedWork, WorkEngine, work_on

EXPECTED = (
    "expected local:4 for four processes, slurm:gpus=1,partition=…,hours=2 or dask:tcp://HOST:8786"
)
ON = "Where to work: local:4, slurm:gpus=1,hours=2 or dask:ADDRESS; by default in this process."
"""Help of the option `--on`, of all verbs that share work."""
MOST_LOST = 5
"""Workers that may be lost one after the other while no job ends; then none is started anew."""
SLURM: Mapping[str, Any] = {
    "workers": 4,
    "gpus": 0,
    "cpus": 4,
    "memory": None,
    "hours": 4.0,
    "partition": None,
    "account": None,
    "qos": None,
    "constraint": None,
    "requeues": 3,
}
"""Options of `slurm:` and their defaults. `workers` are the tasks that are submitted, `memory` is
that of each in GB, `requeues` says how often one goes on whose hours were over."""


def find_engine(on: str | None) -> WorkEngine | None:
    """The engine that `--on` names; None where nothing was given: this process works."""
    if on is None:
        return None
    name, _, rest = on.partition(":")
    match name:
        case "local" if rest.isdecimal() and len(rest) < 10 and int(rest) > 0:
            return LocalEngine(int(rest))
        case "slurm":
            return SlurmEngine(_parse_slurm(rest))
        case "dask" if rest:
            return DaskEngine(rest)
    raise UserError(f"--on is {on!r:.100}: {EXPECTED}.")


class _Workers:
    """Workers that go through all jobs: those that are lost are started anew."""

    delay = 0.1

    def __init__(self, count: int):
        self.count = count
        self.workers: list[Any] = []
        self._lost = self._left = 0

    def start(self, work: SharedWork, keys: list[str]) -> None:
        (work.folder / FOLDER).mkdir(parents=True, exist_ok=True)
        self.work, self.keys, self.call = work, keys, uuid4().hex
        self._lost, self._left = 0, len(keys)
        self.workers = [self.launch(i) for i in range(min(self.count, len(keys)))]

    def tend(self, left: int) -> bool:
        if left != self._left:
            self._lost, self._left = 0, left
        for i, worker in enumerate(self.workers):
            if left and self._lost < MOST_LOST and self.is_lost(worker):
                self._lost += 1
                self.workers[i] = self.launch(i)
        return any(map(self.is_at_work, self.workers))

    def launch(self, number: int) -> Any:
        """Start the worker of that number."""
        raise NotImplementedError

    def is_at_work(self, worker: Any) -> bool:
        raise NotImplementedError

    def is_lost(self, worker: Any) -> bool:
        """Whether it has ended otherwise than by itself."""
        raise NotImplementedError


_BEGIN = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); "
    f"from {__name__} import serve; serve()"
)
"""A process of this machine imports what the one that started it does."""


class LocalEngine(_Workers):
    """Processes of this machine, each with its share of the threads, the GPUs and their memory.

    Processes that each take all threads wait for each other: small operations then take many times
    as long. And batches that size themselves by the free memory leave none to the others.
    """

    def __init__(self, count: int):
        if count > (most := max(16, 2 * (os.cpu_count() or 1))):
            raise UserError(
                f"--on local:{count:,} was given: expected at most {most} processes, for a machine "
                f"of {os.cpu_count()} cores; give fewer."
            )
        super().__init__(count)

    def launch(self, number: int) -> subprocess.Popen[bytes]:
        variables, memory = share_machine(number, self.count)
        log = self.work.folder / FOLDER / f"local-{number}.log"
        given = pickle.dumps((self.work, self.keys, self.call, memory))
        with log.open("ab") as output:
            worker = subprocess.Popen(
                [sys.executable, "-P", "-c", _BEGIN],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | variables,
                process_group=0,  # Ctrl-C is for the command, which ends its workers
            )
        assert worker.stdin is not None
        try:
            pickle.dump(sys.path, worker.stdin)
            pickle.dump((os.getpid(), given), worker.stdin)
            worker.stdin.close()
        except BrokenPipeError:
            pass  # it died at once
        return worker

    def is_at_work(self, worker: subprocess.Popen[bytes]) -> bool:
        return worker.poll() is None

    def is_lost(self, worker: subprocess.Popen[bytes]) -> bool:
        return worker.poll() not in (None, 0)

    def stop(self) -> None:
        for worker in self.workers:
            worker.terminate()
        end = time.monotonic() + 10.0
        for worker in self.workers:
            try:
                worker.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
        for log in (self.work.folder / FOLDER).glob("local-*.log"):
            if not log.stat().st_size:
                log.unlink()


def share_machine(number: int, count: int) -> tuple[dict[str, str], float]:
    """What one of several processes may take: variables of its environment, and its part of the
    memory of its GPU.

    Processes that share a GPU run side by side on it where NVIDIA's MPS serves it, else in turns.
    """
    import torch

    threads = str(max(1, torch.get_num_threads() // count))
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS")
    variables = dict.fromkeys(names, threads) | {"OMP_WAIT_POLICY": "PASSIVE"}
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = [str(i) for i in range(torch.cuda.device_count())]
    if given is not None:
        gpus = given.split(",")[: len(gpus)]
    if not gpus:
        return variables, 1.0
    own = number % len(gpus)
    sharing = len(range(own, count, len(gpus)))
    is_begun = torch.cuda.is_initialized()  # else nothing limits this process, and it needs none
    whole = torch.cuda.get_per_process_memory_fraction() if is_begun else 1.0
    return variables | {"CUDA_VISIBLE_DEVICES": gpus[own]}, whole / sharing


def serve() -> None:
    """What a process of `LocalEngine` does: the jobs that are written to its standard input."""
    import signal

    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    parent, given = pickle.load(sys.stdin.buffer)
    work, keys, call, memory = pickle.loads(given)
    if memory < 1:
        import torch

        torch.cuda.set_per_process_memory_fraction(memory)
    work_on(work, keys, call, lambda: os.getppid() == parent)


class SlurmEngine(_Workers):
    """Tasks of Slurm, each a worker, submitted by submitit; one whose time is up is requeued."""

    delay = 2.0
    cluster = "slurm"

    def __init__(self, options: Mapping[str, Any]):
        super().__init__(options["workers"])
        self.options, self.gpus = options, options["gpus"]

    def start(self, work: SharedWork, keys: list[str]) -> None:
        self.executor = self._prepare(work.folder / FOLDER / "slurm")
        super().start(work, keys)

    def _prepare(self, folder: Path) -> Any:
        require_extra("cluster", "--on slurm", "submitit")
        import submitit

        if self.cluster == "slurm" and which("sbatch") is None:
            raise UserError(
                "--on slurm was given where there is no sbatch: give the command on a machine that "
                "submits jobs to Slurm, or --on local:4 on this one."
            )
        own = self.options
        requeues = {f"{self.cluster}_max_num_timeout": own["requeues"]}
        executor = submitit.AutoExecutor(folder, cluster=self.cluster, **requeues)
        named = {name: own[name] for name in ("partition", "account", "qos", "constraint")}
        slurm = {f"slurm_{name}": value for name, value in named.items() if value is not None}
        if own["memory"] is not None:
            slurm["mem_gb"] = own["memory"]
        threads = "export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1} OMP_WAIT_POLICY=PASSIVE"
        executor.update_parameters(
            name="unmask",
            timeout_min=max(1, round(60 * own["hours"])),
            gpus_per_node=own["gpus"],
            cpus_per_task=own["cpus"],
            slurm_setup=[threads],
            **slurm,
        )
        return executor

    def launch(self, number: int) -> Any:
        return self.executor.submit(SlurmWorker(self.work, self.keys, self.call))

    def is_at_work(self, worker: Any) -> bool:
        return not worker.done()

    def is_lost(self, worker: Any) -> bool:
        return worker.done() and not worker.paths.result_pickle.is_file()

    def stop(self) -> None:
        for worker in self.workers:
            if not worker.done():
                worker.cancel()


class SlurmWorker:
    """What a task of Slurm does; begun again after its time, it does what is left."""

    def __init__(self, *given: Any):
        self.given = given

    def __call__(self) -> None:
        work_on(*self.given)

    def checkpoint(self) -> Any:
        """What submitit submits in its place when its time is up, or it is preempted."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def _parse_slurm(text: str) -> dict[str, Any]:
    """The options of `slurm:` as values, checked."""
    options: dict[str, Any] = dict(SLURM)
    for word in filter(None, text.split(",")):
        name, _, value = word.partition("=")
        if name not in SLURM:
            raise UserError(f"--on slurm has no option {name!r:.40}: {suggest(name, SLURM)}")
        default = SLURM[name]
        convert: Callable[[str], Any] = {int: int, float: float}.get(type(default), str)
        if name == "memory":
            convert = float
        try:
            options[name] = convert(value)
        except ValueError:
            options[name] = None
        least = 0 if name in ("gpus", "requeues") else 1e-3
        if not value or options[name] is None or (convert is not str and options[name] < least):
            raise UserError(
                f"--on slurm:{name}={value[:40]} was given: expected {name}=VALUE, such as "
                f"{name}={default or 'NAME'}."
            )
    return options


class DaskEngine:
    """The workers of a Dask scheduler, which hands each the next job as it comes and goes."""

    delay = 0.1

    def __init__(self, address: str):
        self.address = address
        self.client: Any = None

    def start(self, work: SharedWork, keys: list[str]) -> None:
        require_extra("cluster", "--on dask", "distributed")
        import distributed

        (work.folder / FOLDER).mkdir(parents=True, exist_ok=True)
        self.work, self.call, self._lost = work, uuid4().hex, dict.fromkeys(keys, 0)
        if self.client is None:
            try:
                self.client = distributed.Client(self.address, timeout=10)
            except (OSError, ValueError) as error:
                raise UserError(
                    f"--on dask:{self.address:.100} cannot be reached ({error}): expected the "
                    "address of a running scheduler, as `dask scheduler` prints it."
                ) from None
        self.futures = {key: self._submit(key, -i) for i, key in enumerate(keys)}

    def _submit(self, key: str, priority: int) -> Any:
        name = f"{key[:60]}-{uuid4().hex[:8]}"
        return self.client.submit(
            work_on, self.work, [key], self.call, key=name, priority=priority, pure=False
        )

    def tend(self, left: int) -> bool:
        for key, future in self.futures.items():
            # A scheduler gives a job up whose workers died several times.
            is_lost = future.status in ("error", "cancelled", "lost")
            if is_lost and not self.work.is_done(key) and self._lost[key] < MOST_LOST:
                self._lost[key] += 1
                self.futures[key] = self._submit(key, 0)
        return any(future.status == "pending" for future in self.futures.values())

    def stop(self) -> None:
        if self.client is not None:
            self.client.cancel(list(self.futures.values()))
            self.client.close()
            self.client = None
