"""The command line in this process: what `python -m unmask …` does, without a new interpreter."""

import io
import os
import subprocess
import sys
from contextlib import chdir, nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

from unmask.cli.main import main


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
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())
