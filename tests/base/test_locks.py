"""Two processes and one run folder: real ones, of which some are killed."""

import os
import subprocess
import sys
import time

import pytest

from unmask.base.locks import PATTERN, RunRefusedError, lock_run

HOLD = """
import sys
from unmask.base.locks import lock_run
with lock_run(sys.argv[1], sys.argv[2] == "shared"):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def hold(tmp_path):
    """Starts a process that holds the folder until a line is written to it."""
    processes = []

    def start(held: str = "alone") -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(tmp_path), held],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def list_locks(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_second_process_is_refused_until_the_first_has_ended(hold, tmp_path):
    first = hold()
    host = os.uname().nodename
    said = f"in use by process {first.pid} on {host}, since 20"
    with pytest.raises(RunRefusedError, match=said), lock_run(tmp_path):
        pass
    assert list_locks(tmp_path) == ["run.lock"]
    first.communicate("\n")
    with lock_run(tmp_path):
        assert list_locks(tmp_path) == ["run.lock"]
    assert list_locks(tmp_path) == []


@pytest.mark.parametrize("is_reaped", [False, True])
def test_a_lock_left_by_a_kill_is_taken_over(is_reaped, hold, tmp_path):
    first = hold()
    first.kill()
    if is_reaped:
        first.communicate()
    else:
        os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)  # dead, and still in the table
    assert list_locks(tmp_path) == ["run.lock"]
    with lock_run(tmp_path):
        assert (tmp_path / "run.lock").read_text().startswith(f"{os.getpid()}\n")
    assert list_locks(tmp_path) == []


@pytest.mark.parametrize("content", ["", "{", "1\nelsewhere\n"])
def test_a_file_that_nobody_holds_is_no_lock(content, tmp_path):
    """Whatever it says, as one that a kill cut short or a process on another host left."""
    (tmp_path / "run.lock").write_text(content)
    with lock_run(tmp_path):
        pass
    assert list_locks(tmp_path) == []


def test_commands_that_share_a_run_are_in_it_at_once(hold, tmp_path):
    processes = [hold("shared"), hold("shared")]
    with lock_run(tmp_path, shared=True):
        assert len(list(tmp_path.glob(PATTERN))) == 3
    with pytest.raises(RunRefusedError, match="in use by process"), lock_run(tmp_path):
        pass
    for process in processes:
        process.kill()
        process.communicate()
    with lock_run(tmp_path):
        assert list_locks(tmp_path) == ["run.lock"]


def test_what_is_held_alone_is_shared_with_nobody(hold, tmp_path):
    hold()
    with pytest.raises(RunRefusedError, match="in use by"), lock_run(tmp_path, shared=True):
        pass
    assert list_locks(tmp_path) == ["run.lock"]


def test_of_many_processes_at_once_one_holds_a_stale_lock(hold, tmp_path):
    """Each that gets the lock writes a line, waits, and checks that nobody wrote meanwhile."""
    first = hold()
    first.kill()
    first.communicate()
    script = """
import sys, time
from pathlib import Path
from unmask.base.errors import UserError
from unmask.base.locks import lock_run
while time.time() < float(sys.argv[2]):
    pass
try:
    with lock_run(sys.argv[1]):
        print("got it")
        time.sleep(1.5)
except UserError:
    print("refused")
"""
    start = str(time.time() + 2)
    words = [sys.executable, "-c", script, str(tmp_path), start]
    processes = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    answers = sorted(process.communicate()[0].strip() for process in processes)
    assert answers == ["got it", "refused", "refused", "refused"]
