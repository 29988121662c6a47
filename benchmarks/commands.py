"""How long each command of the verbs' pages takes, and how much it says.

    python benchmarks/commands.py [PAGE …] --out docs/verbs/times.csv

Runs every example of `docs/verbs`, and the list of verbs on its first page, on the shipped pair, in
one folder, as a reader would. `seconds` pass until a command ends, `first` until it has said
something; `processor` are the seconds of all cores together, which say what it costs on a machine
that is busy otherwise.
"""

import argparse
import csv
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tools.write_notebook import read_blocks  # noqa: E402

PAGES = ROOT / "docs" / "verbs"
BEFORE = ("data", "trace", "represent", "study")
"""Pages whose examples leave what those of others start from."""


@dataclass(frozen=True)
class Timed:
    """One command: how long it took, and how much it said."""

    page: str
    command: str
    status: int
    seconds: float
    first: float
    processor: float
    lines: int
    rows: int
    """Rows of the tables on stdout, together."""


def list_pages() -> list[Path]:
    """The pages of the verbs, those first whose examples others start from."""
    rank = {name: i for i, name in enumerate(BEFORE)}
    pages = [page for page in PAGES.glob("*.md") if page.stem != "README"]
    return sorted(pages, key=lambda page: (rank.get(page.stem, len(rank)), page.stem))


def time_page(page: Path, folder: Path, limit: float, log: Path | None = None) -> Iterator[Timed]:
    """Every command of a page, after the files that the page names."""
    blocks = list(read_blocks(page.read_text("utf-8")))
    for block in blocks:
        if block.file:
            (folder / block.file).write_text(block.text + "\n")
    for command in (line for block in blocks for line in block.commands):
        yield time_command(page.stem, command, folder, limit, log)


def time_command(
    page: str, command: str, folder: Path, limit: float, log: Path | None = None
) -> Timed:
    """One command in a process of its own; it is stopped after `limit` seconds."""
    words = [sys.executable, "-m", *shlex.split(command, comments=True)]
    environment = os.environ | {"COLUMNS": "100", "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}
    start = time.perf_counter()
    process = subprocess.Popen(
        words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout is not None
    stop = threading.Timer(limit, process.terminate)
    stop.start()
    first = None
    said = []
    for line in process.stdout:
        first = first or time.perf_counter() - start
        said.append(line.decode())
    _, status, usage = os.wait4(process.pid, 0)
    stop.cancel()
    seconds = time.perf_counter() - start
    if log is not None:
        log.mkdir(exist_ok=True)
        name = re.sub(r"\W+", "-", command)[:60]
        (log / f"{page}-{name}.txt").write_text(f"$ {command}\n" + "".join(said))
    return Timed(
        page,
        command,
        os.waitstatus_to_exitcode(status),
        round(seconds, 1),
        round(first or seconds, 1),
        round(usage.ru_utime + usage.ru_stime, 1),
        len(said),
        count_rows(said),
    )


def count_rows(lines: Sequence[str]) -> int:
    """Rows of the tables that rich drew: lines below a heading, between its bars."""
    rows, inside = 0, False
    for line in lines:
        inside = (inside or line.startswith("┡")) and not line.startswith("└")
        rows += inside and line.startswith("│")
    return rows


def write_times(rows: Sequence[Timed], path: Path) -> None:
    """A table of the commands, as CSV."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [each.name for each in fields(Timed)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("pages", nargs="*")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=float, default=600.0)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        folder.mkdir(exist_ok=True)
        for page in list_pages():
            if options.pages and page.stem not in options.pages:
                continue
            for row in time_page(page, folder, options.limit, options.log):
                print(row, flush=True)
                rows.append(row)
                write_times(rows, options.out)


if __name__ == "__main__":
    main()
