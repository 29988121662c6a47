"""How long each command of the verbs' pages takes, and how much it says.

    python -m benchmarks.commands [PAGE …] --out docs/verbs/times.csv

Runs every example of `docs/verbs`, its list of verbs and the commands of the README on the shipped
pair, in one folder, as a reader would. `seconds` pass until a command ends, `first` until it has
said something; `processor` are the seconds of all cores together, which say what it costs on a
machine that is busy otherwise.
"""

import argparse
import csv
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from tools.write_notebook import read_blocks

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "verbs"
BEFORE = ("data", "trace", "represent", "study")
"""Pages whose examples are run first: those of others start from what they leave."""
OWN = re.compile(r"unmask (guidance mdm|planted mdm|sweep grid\.yaml|explore runs)")
"""Commands of models and files that are one's own; the examples of their pages are run."""
LIMIT = 900.0
"""Seconds after which a command is stopped."""


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
    """Lines on stdout."""
    rows: int
    """Rows of the tables among them."""


def list_lines() -> Iterator[tuple[str, str]]:
    """Page and line of every command, those first that others start from."""
    rank = {name: i for i, name in enumerate(BEFORE)}
    pages = [page for page in PAGES.glob("*.md") if page.stem != "README"]
    pages.sort(key=lambda page: (rank.get(page.stem, len(rank)), page.stem))
    for page in pages:
        for block in read_blocks(page.read_text("utf-8")):
            yield from ((page.stem, line) for line in block.commands)
    for name, page in (("list", PAGES / "README.md"), ("README", ROOT / "README.md")):
        for block in read_blocks(page.read_text("utf-8")):
            if block.language in ("", "console"):
                found = (line for line in block.text.splitlines() if line.startswith("unmask "))
                yield from ((name, line) for line in found)


def write_files(folder: Path) -> None:
    """The files that the pages' commands read."""
    shutil.copy(ROOT / "README.md", folder)
    for page in PAGES.glob("*.md"):
        for block in read_blocks(page.read_text("utf-8")):
            if block.file:
                (folder / block.file).write_text(block.text + "\n")


def time_all(folder: Path, pages: Sequence[str] = (), log: Path | None = None) -> Iterator[Timed]:
    """Every command of these pages (all by default), in a process of its own."""
    write_files(folder)
    for page, line in list_lines():
        if (page in pages or not pages) and not OWN.match(line):
            yield time_command(page, line, folder, log)


def time_command(page: str, line: str, folder: Path, log: Path | None = None) -> Timed:
    """One command; it is stopped where it takes too long, or serves until it is stopped."""
    words = shlex.split(line, comments=True)
    environment = os.environ | {"COLUMNS": "100", "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}
    if words[1] == "explore" and "--no-open" not in words:
        words.append("--no-open")
    said, errors = list[tuple[float, str]](), list[tuple[float, str]]()
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def read(stream: Iterator[str], lines: list[tuple[float, str]]) -> None:
        for text in stream:
            lines.append((time.perf_counter() - start, text))
            if words[1] == "explore":
                process.terminate()

    stop = threading.Timer(LIMIT, process.terminate)
    stop.start()
    assert process.stdout is not None and process.stderr is not None
    beside = threading.Thread(target=read, args=(iter(process.stderr), errors))
    beside.start()
    read(iter(process.stdout), said)
    beside.join()
    _, status, usage = os.wait4(process.pid, 0)
    stop.cancel()
    seconds = time.perf_counter() - start
    first = min((moment for moment, _ in [*said, *errors]), default=seconds)
    lines = [text for _, text in said]
    if log is not None:
        log.mkdir(exist_ok=True)
        name = re.sub(r"\W+", "-", " ".join(words[1:]))[:60]
        text = "".join([f"$ {line}\n", *(text for _, text in errors), *lines])
        (log / f"{page}-{name}.txt").write_text(text)
    times = (round(each, 1) for each in (seconds, first, usage.ru_utime + usage.ru_stime))
    code = os.waitstatus_to_exitcode(status)
    return Timed(page, line, code, *times, len(lines), count_rows(lines))


def count_rows(lines: Sequence[str]) -> int:
    """Rows of the tables that rich drew: lines in which every column has something.

    Of a row that takes several lines only the first one is such a line.
    """
    cells = [line.strip("│\n").split("│") for line in lines if line.startswith("│")]
    return sum(all(cell.strip() for cell in line) for line in cells)


def write_times(rows: Sequence[Timed], path: Path) -> None:
    """A table of the commands, as CSV."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [each.name for each in fields(Timed)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("pages", nargs="*", help="Pages by name, list or README; all by default.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--log", type=Path, help="A folder for what each command says.")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for row in time_all(Path(scratch), options.pages, options.log):
            print(row, flush=True)
            rows.append(row)
            write_times(rows, options.out)


if __name__ == "__main__":
    main()
