"""The command line: in this process, without a new interpreter, or in one that a signal stops."""

import io
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import chdir, nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

from tests.conftest import hear_interrupts
from unmask.cli.main import run_command_line


def run(
    *words: object, folder: Path | None = None, columns: int = 120
) -> subprocess.CompletedProcess[str]:
    """What a command prints, and its exit code."""
    out, err = io.StringIO(), io.StringIO()
    command, code = ["unmask", *map(str, words)], 0
    place = nullcontext() if folder is None else chdir(folder)
    environment = {"COLUMNS": str(columns), "NO_COLOR": "1"}
    with (
        place,
        patch.dict(os.environ, environment),
        patch.object(sys, "argv", command),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            run_command_line()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())


def start(words: Sequence[object], change: str, line: str) -> subprocess.Popen[str]:
    """A command in a process of its own, which hears Ctrl-C, once it has printed that line.

    `change` is Python that runs before it and has it print the line where a test stops it.
    """
    code = f"{change}\nimport sys; sys.argv = {['unmask', *map(str, words)]!r}\n"
    process = subprocess.Popen(
        [sys.executable, "-c", f"{code}from unmask.__main__ import main; main()"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear_interrupts,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == f"{line}\n", process.communicate()[1]
    return process
