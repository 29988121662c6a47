"""Shared jobs through every engine: done once, again where a worker dies, and reported where one
fails."""

import logging
import os
import signal
import time
from collections.abc import Generator
from pathlib import Path
from threading import Thread, Timer

import pytest
from file_jobs import FileJobs

from tests.slurm import write_slurm
from unmask.base.engines import SLURM, LocalEngine, SlurmEngine, find_engine, share_machine
from unmask.base.errors import UserError
from unmask.base.locks import claim
from unmask.base.work import FOLDER, _find, run_jobs

HERE = str(Path(__file__).parent)
"""Workers import their jobs from there, and not torch with `tests`."""

ENGINES = ("here", "local", "submitit", "dask")
KEYS = dict.fromkeys("abcdef", 0.0)


class SubmititEngine(SlurmEngine):
    """Slurm's engine with submitit's own processes in place of Slurm."""

    delay, cluster = 0.1, "local"

    def stop(self) -> None:
        super().stop()
        for worker in self.workers:
            worker._process.wait()  # Slurm sees to that by itself


@pytest.fixture(scope="module")
def cluster() -> Generator:
    distributed = pytest.importorskip("distributed")
    options = {"dashboard_address": None, "silence_logs": logging.CRITICAL}
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, **options) as cluster:
        yield cluster


@pytest.fixture(params=ENGINES)
def engine(request, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", HERE)
    match request.param:
        case "here":
            return None
        case "local":
            return LocalEngine(2)
        case "submitit":
            return SubmititEngine(dict(SLURM) | {"workers": 2})
        case _:
            address = request.getfixturevalue("cluster").scheduler_address
            return find_engine(f"dask:{address}")


def run(work: FileJobs, engine, **more) -> dict[str, Exception | None]:
    return dict(run_jobs(work, work.seconds, engine, "files", **more))


def test_jobs_are_done_once_and_those_that_fail_stop_no_other(engine, tmp_path, caplog):
    work = FileJobs(tmp_path, KEYS, failing=("b",))
    (tmp_path / "f.part").write_text("done before")
    ended = run(work, engine)
    assert ended.keys() == set("abcde")
    errors = {key: error for key, error in ended.items() if error is not None}
    assert list(errors) == ["b"] and "b cannot be done: expected another." in str(errors["b"])
    assert work.parts() == {key: f"the part of {key}" for key in "acde"} | {"f": "done before"}
    assert sorted(each[0] for each in work.read("begun")) == list("abcde")
    assert len(work.read("opened")) <= (1 if engine is None else 2)
    if engine is not None:
        assert caplog.text.count("b cannot be done: expected another.; the other jobs go on") == 1
        logs = "".join(path.read_text() for path in (tmp_path / FOLDER).glob("worker-*.log"))
        assert "a: begins" in logs and "b: failed: b cannot be done" in logs
    # What failed is tried again by the next call, and nothing else is.
    mended = FileJobs(tmp_path, KEYS)
    assert run(mended, engine) == {"b": None} and len(mended.read("begun")) == 6
    assert run(mended, engine) == {} and len(mended.read("begun")) == 6


@pytest.mark.parametrize("engine", ENGINES[1:], indirect=True)
def test_a_job_whose_worker_is_killed_is_done_again(engine, tmp_path):
    work = FileJobs(tmp_path, KEYS, deadly={"c": 1})
    assert run(work, engine) == dict.fromkeys(KEYS)
    assert work.parts() == {key: f"the part of {key}" for key in KEYS}
    assert [each[0] for each in work.read("begun")].count("c") == 2


def test_a_job_that_kills_every_worker_fails_and_the_rest_goes_on(tmp_path):
    work = FileJobs(tmp_path, KEYS, deadly={"c": 99})
    ended = run(work, LocalEngine(2))
    assert "c: 3 workers died of it, the last was process" in str(ended.pop("c"))
    assert ended == dict.fromkeys("abdef")


def test_those_that_cost_most_begin(tmp_path):
    seconds = {"a": 0.0, "b": 0.2, "c": 0.1}
    work = FileJobs(tmp_path, seconds)
    run(work, LocalEngine(1))
    assert [each[0] for each in work.read("begun")] == ["b", "c", "a"]
    alone = FileJobs(tmp_path / "alone", seconds)
    alone.folder.mkdir()
    run(alone, None)
    assert [each[0] for each in alone.read("begun")] == ["a", "b", "c"]


def test_a_second_command_joins_the_first(tmp_path):
    work = FileJobs(tmp_path, dict.fromkeys("abcdefgh", 0.5))
    first = Thread(target=run, args=(work, LocalEngine(1)))
    first.start()
    while not work.read("begun"):
        time.sleep(0.05)
    run(work, LocalEngine(1))
    first.join()
    assert sorted(each[0] for each in work.read("begun")) == list("abcdefgh")
    assert len({each[1] for each in work.read("begun")}) == 2


def test_what_another_command_is_at_is_left_to_it_or_waited_for(tmp_path):
    work = FileJobs(tmp_path, dict.fromkeys("ab", 0.0))
    with claim(_find(work, "a", "lock")):
        assert run(work, None, waits=False) == {"b": None}
        Timer(0.3, (tmp_path / "a.part").write_text, ["of another"]).start()
        assert run(work, None) == {"a": None}


def test_a_lock_that_a_kill_left_of_a_job_that_is_done_goes(tmp_path):
    work = FileJobs(tmp_path, dict.fromkeys("ab", 0.0))
    assert run(work, None) == dict.fromkeys("ab")
    lock = _find(work, "a", "lock")
    lock.parent.mkdir()
    lock.write_text("1\nelsewhere\n")
    assert run(work, None) == {} and not lock.parent.exists()


@pytest.mark.parametrize("engine", [None, LocalEngine(1)])
def test_no_job_is_begun_after_the_deadline(engine, tmp_path):
    work = FileJobs(tmp_path, KEYS, deadline=time.time() - 1)
    assert run(work, engine) == {} and not work.read("begun")


def test_leaving_early_ends_the_workers(tmp_path):
    """As Ctrl-C does: the generator is closed."""
    work = FileJobs(tmp_path, {"a": 0.0, "b": 60.0, "c": 60.0})
    engine = LocalEngine(2)
    ended = run_jobs(work, work.seconds | {"a": 99.0}, engine, "files")
    assert next(ended) == ("a", None)
    ended.close()
    assert all(worker.returncode is not None for worker in engine.workers)
    assert not list((tmp_path / FOLDER).glob("*.lock"))
    assert not list((tmp_path / FOLDER).glob("*.starts"))


def test_a_worker_ends_with_its_command(tmp_path):
    work = FileJobs(tmp_path, dict.fromkeys("abcd", 0.4))
    pid = os.fork()
    if not pid:
        try:
            run(work, LocalEngine(1))
        finally:
            os._exit(0)
    while not work.read("begun"):
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    time.sleep(1.2)
    assert 1 <= len(work.read("begun")) < 4


def test_processes_share_threads_and_gpus(monkeypatch, tmp_path):
    monkeypatch.setattr("torch.get_num_threads", lambda: 6)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    shares = [share_machine(i, 3) for i in range(3)]
    gpus = [(share["CUDA_VISIBLE_DEVICES"], memory) for share, memory in shares]
    assert gpus == [("0", 0.5), ("1", 1.0), ("0", 0.5)]
    assert {share["OMP_NUM_THREADS"] for share, _ in shares} == {"2"}
    with monkeypatch.context() as limited:
        limited.setattr("torch.cuda.is_initialized", lambda: True)
        limited.setattr("torch.cuda.get_per_process_memory_fraction", lambda: 0.5)
        assert [share_machine(i, 3)[1] for i in range(3)] == [0.25, 0.5, 0.25]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    assert share_machine(1, 2)[0]["CUDA_VISIBLE_DEVICES"] == "GPU-b"
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    work = FileJobs(tmp_path, {"a": 0.0})
    run(work, LocalEngine(3))
    assert work.read("begun")[0][2] == "2"


@pytest.mark.parametrize(
    ("on", "message"),
    [
        ("locl:4", "--on is 'locl:4': expected local:4"),
        ("local:0", "--on is 'local:0': expected local:4"),
        ("local:", "expected local:4"),
        ("local:999999", "expected at most .* processes, for a machine"),
        ("dask", "expected local:4"),
        ("slurm:gpu=1", "has no option 'gpu': did you mean 'gpus'"),
        ("slurm:hours=x", "slurm:hours=x was given: expected hours=VALUE, such as hours=4.0"),
        ("slurm:partition=", "expected partition=VALUE, such as partition=NAME"),
    ],
)
def test_mistakes_are_sentences(on, message):
    with pytest.raises(UserError, match=message):
        find_engine(on)


def test_an_engine_that_is_not_there_is_a_sentence(tmp_path, monkeypatch):
    work = FileJobs(tmp_path, {"a": 0.0})
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="where there is no sbatch"):
        run(work, find_engine("slurm:gpus=1,partition=short,hours=0.5"))
    with pytest.raises(UserError, match=r"dask:nowhere cannot be reached .* `dask scheduler`"):
        run(work, find_engine("dask:nowhere"))
    assert not work.parts()


@pytest.fixture
def slurm(tmp_path, monkeypatch) -> Path:
    """Where scripts in place of Slurm's commands keep what they were given."""
    for name, text in write_slurm(tmp_path / "slurm").items():
        monkeypatch.setenv(name, text)
    monkeypatch.setenv("PYTHONPATH", HERE)
    monkeypatch.setattr(SlurmEngine, "delay", 0.2)
    (tmp_path / "run").mkdir()
    return tmp_path / "slurm"


def test_slurm_gets_a_script_and_requeues_what_ran_out_of_time(slurm, tmp_path):
    work = FileJobs(tmp_path / "run", {"a": 0.0, "b": 3.0})
    asked = "workers=1,gpus=2,cpus=3,partition=short,hours=0.5,account=team,memory=8"
    thread = Thread(target=run, args=(work, find_engine(f"slurm:{asked}")))
    thread.start()
    while "b" not in {each[0] for each in work.read("begun")}:
        time.sleep(0.1)
    os.kill(int(work.read("begun")[-1][1]), signal.SIGUSR2)  # as Slurm does before the end
    thread.join(60)
    assert not thread.is_alive() and work.parts().keys() == {"a", "b"}
    assert len({each[1] for each in work.read("begun")}) == 2
    script = (slurm / "1.sbatch").read_text()
    for line in ("partition=short", "time=30", "gpus-per-node=2", "cpus-per-task=3"):
        assert f"#SBATCH --{line}\n" in script
    for line in ("account=team", "mem=8GB", "signal=USR2@90", "job-name=unmask"):
        assert f"#SBATCH --{line}\n" in script
    assert "OMP_NUM_THREADS=" in script
    assert (slurm / "asked").read_text() == "scontrol requeue 1\n"


def test_leaving_cancels_what_was_submitted_to_slurm(slurm, tmp_path):
    work = FileJobs(tmp_path / "run", {"a": 0.0, "b": 60.0})
    ended = run_jobs(work, {"a": 1.0, "b": 0.0}, find_engine("slurm:workers=1"), "files")
    assert next(ended) == ("a", None)
    ended.close()
    assert "scancel" in (slurm / "asked").read_text()
