"""Every page of docs/results from nothing, on one GPU: the stages of stages.yaml, one by one.

    python paper/run.py --data FOLDER                  all pages, by the stages that they need
    python paper/run.py --data FOLDER --stage recall   some, and what they need
    python paper/run.py --data FOLDER --minutes 8      a piece of it; the same command goes on
    python paper/run.py --data FOLDER --on local:4     stages side by side, sharing the GPU
    python paper/run.py --list                         the stages, and which are done

FOLDER holds the data sets that stages.yaml names; their digests are checked. All commands of a
process run in it, so that kernels are compiled once. Stages side by side take turns on the GPU, or
run at the same time where NVIDIA's MPS is started before (`nvidia-cuda-mps-control -d`), which
makes those of small networks about twice as fast.
"""

import argparse
import gc
import os
import runpy
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kept_tables import shrink_tables
from run_pages import say_where
from run_stages import NAMES, STAGES, DataSet, Stage, read_stages
from run_together import run_together

import unmask
from unmask.base.engines import ON, LocalEngine, find_engine, share_machine
from unmask.base.errors import UserError, suggest
from unmask.base.files import replace_file, write_json
from unmask.base.identity import digest_file, digest_values
from unmask.base.reading import read_json, read_text
from unmask.base.units import format_bytes
from unmask.base.work import WorkEngine

PAGES = Path("paper") / "pages.json"
"""What is known of each page that a stage wrote: by which stage, from what, in how many minutes."""
STOPPING = (["unmask", "train"], ["unmask", "sweep"])
"""Commands that take `--minutes`: they keep what they have and leave by themselves."""
_CODE = ("*.py", "*.yaml", "*.js", "*.css", "*.html")


@dataclass
class Record:
    """What a stage has done so far, in a file beside its folder."""

    key: str
    """A digest of the commands, and of everything that the folder is made from."""
    code: str
    """A digest of the package that ran them."""
    done: int = 0
    """Commands that are done."""
    seconds: float = 0.0
    files: dict[str, str] = field(default_factory=dict)
    """Digests of all files of the folder, once the stage is done."""


class Runner:
    """Runs the stages that are not done, or were made from other inputs, within some minutes."""

    def __init__(
        self,
        data: Mapping[str, DataSet],
        stages: Mapping[str, Stage],
        folder: Path,
        minutes: float | None = None,
    ):
        self.data, self.stages, self.folder = data, stages, folder
        self.deadline = None if minutes is None else time.monotonic() + 60 * minutes
        self.code = digest_values(_list_code(Path(unmask.__file__).parent))
        self._keys: dict[str, str] = {}

    def key(self, stage: Stage) -> str:
        """The digest of commands, scripts, data and the keys of the stages that are needed."""
        if stage.name not in self._keys:
            parts: list[object] = [*stage.run, stage.note]
            parts += [read_text(path) for path in stage.scripts]
            for name in stage.needs:
                if name in self.stages:
                    parts.append(self.key(self.stages[name]))
                else:
                    parts += sorted(self.data[name].files.items())
            self._keys[stage.name] = digest_values(parts)
        return self._keys[stage.name]

    def is_done(self, stage: Stage) -> bool:
        """Whether the stage's folder is what the stage left, made from what it is made from now.

        By the code of now as well, but for tables that are kept: pages can be drawn better without
        training again, and the tables' record says which code made them.
        """
        record = read_record(stage)
        return (
            record is not None
            and record.key == self.key(stage)
            and (stage.keep or record.code == self.code)
            and record.done == len(stage.run)
            and record.files == _digest_files(stage.folder.rglob("*"), stage.folder)
        )

    def run(self, stage: Stage) -> bool:
        """Run a stage and what it needs; False where the time was up before its end."""
        if self.is_done(stage):  # what it was made from may be gone
            return True
        for name in stage.needs:
            if name in self.stages and not self.run(self.stages[name]):
                return False
        record, places = self._open(stage), self._find_places(stage)
        while record.done < len(stage.run):
            if self.count_seconds_left() <= 0:
                return False
            command = NAMES.sub(lambda m: str(places[m[1]]), stage.run[record.done])
            print(f"{stage.name}: {command}", flush=True)
            start = time.monotonic()
            try:
                is_finished = self._call(shlex.split(command))
            finally:
                record.seconds += time.monotonic() - start
                write_record(stage, record)
                _free_memory()
            if not is_finished:
                return False
            record.done += 1
            write_record(stage, record)
        self._finish(stage, record)
        return True

    def _open(self, stage: Stage) -> Record:
        """The record of a stage that stopped on its way, or an empty one.

        A folder that is done, or was made from other inputs, is removed: its stage begins anew.
        """
        record, key = read_record(stage), self.key(stage)
        if record is not None and (record.key, record.code, record.files) == (key, self.code, {}):
            return record
        if stage.folder.exists() and not stage.has_parts:
            print(f"{stage.name}: made from other inputs, or changed: anew", flush=True)
            shutil.rmtree(stage.folder)
        return Record(key, self.code)

    def _find_places(self, stage: Stage) -> dict[str, Path]:
        """What the names in its commands stand for; files of data sets are checked."""
        places = {"out": stage.folder, "page": Path(stage.page or "")}
        for name in stage.needs:
            own = self.stages.get(name)
            places[name] = self.data[name].find(self.folder) if own is None else own.folder
        return places

    def _finish(self, stage: Stage, record: Record) -> None:
        # What is done is made anew or not at all: what a run would go on from is not needed.
        for name in ("checkpoints", "parts") if stage.keep else ("checkpoints",):
            for folder in list(stage.folder.glob(f"**/{name}")):
                shutil.rmtree(folder)
        if stage.keep:
            shrink_tables(stage.folder)
        record.files = _digest_files(stage.folder.rglob("*"), stage.folder)
        write_record(stage, record)
        print(f"{stage.name}: {record.seconds / 60:.1f} minutes", flush=True)
        if stage.page is None:
            return
        if stage.note:
            _insert_note(Path(stage.page), stage.note)
        if Path(stage.page).suffix == ".md":
            say_where(stage, self.stages)
        self.enter_page(stage)

    def enter_page(self, stage: Stage) -> None:
        """What is known of a stage's page, in the table of pages."""
        record = read_record(stage)
        if stage.page is None or record is None:
            return
        pages = read_json(PAGES) if PAGES.is_file() else {}
        pages[stage.page] = {
            "stage": stage.name,
            "key": record.key,
            "code": record.code,
            "minutes": round(record.seconds / 60, 1),
            "files": digest_page(Path(stage.page)),
        }
        write_json(PAGES, dict(sorted(pages.items())))

    def _call(self, words: list[str]) -> bool:
        """Run one command in this process; False where the time was up before its end."""
        left = self.count_seconds_left()
        limit = None if self.deadline is None else left
        if self.deadline is not None and words[:2] in STOPPING:
            words, limit = [*words, "--minutes", f"{left / 60:.3f}"], None
        status: object = 0
        with _alarm(limit):
            try:
                status = call_command(words)
            except KeyboardInterrupt:
                if self.count_seconds_left() > 0:
                    raise
        # What its minutes ended exits with 0 as well; its command goes on with it.
        if self.count_seconds_left() <= 0:
            return False
        if status != 0:
            raise UserError(
                f"{shlex.join(words)} ended with {status}, expected 0: what it said is above; the "
                "same command goes on from here once that is mended."
            )
        return True

    def count_seconds_left(self) -> float:
        return float("inf") if self.deadline is None else self.deadline - time.monotonic()


def call_command(words: list[str]) -> object:
    """Run a command of a stage in this process; what it exits with."""
    with _arguments(words):
        try:
            if words[0] == "unmask":
                from unmask.cli.main import run_command_line

                run_command_line()
            else:
                runpy.run_path(words[1], run_name="__main__")
        except SystemExit as end:
            return end.code or 0
    return 0


def read_record(stage: Stage) -> Record | None:
    """What a stage has done, None where it never ran."""
    path = stage.record_path
    return Record(**read_json(path)) if path.is_file() else None


def write_record(stage: Stage, record: Record) -> None:
    stage.record_path.parent.mkdir(parents=True, exist_ok=True)
    write_json(stage.record_path, vars(record))


def digest_page(page: Path) -> dict[str, str]:
    """Digests of a page, and of the figures and tables in the folder of its name."""
    return _digest_files([page, *page.with_suffix("").rglob("*")], page.parent)


def show_stages(data: Mapping[str, DataSet], stages: Mapping[str, Stage], runner: Runner) -> None:
    for each in data.values():
        print(f"{each.name}: {len(each.files)} files from {each.source}, at {each.path}")
    for stage in stages.values():
        record = read_record(stage)
        state = "to do" if record is None else f"{record.done} of {len(stage.run)} commands"
        state = "done" if runner.is_done(stage) else state
        minutes = "?" if stage.minutes is None else f"{stage.minutes:.1f}"
        print(f"{stage.name:<16}{minutes:>6} min  {state:<18}{stage.page or ''}")


def _list_code(folder: Path) -> Iterator[str]:
    for pattern in _CODE:
        for path in sorted(folder.rglob(pattern)):
            yield f"{path.relative_to(folder)}\n{read_text(path)}"


def _digest_files(files: Iterable[Path], folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): digest_file(file) for file in sorted(files)
            if file.is_file()}  # fmt: skip


def _insert_note(page: Path, note: str) -> None:
    title, _, rest = read_text(page).partition("\n")
    with replace_file(page) as draft:
        draft.write_text(f"{title}\n\n> **How to read it.** {note.strip()}\n{rest}", "utf-8")


@contextmanager
def _alarm(seconds: float | None) -> Generator[None]:
    """SIGTERM to this process after so many seconds: commands save what they have, and leave."""

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    if seconds is not None:
        signal.signal(signal.SIGALRM, lambda number, frame: signal.raise_signal(signal.SIGTERM))
        signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _arguments(words: list[str]) -> Generator[None]:
    """What a command sees as its own arguments, and where a script finds its neighbours."""
    arguments, path = sys.argv, sys.path
    sys.argv = words if words[0] == "unmask" else words[1:]
    if words[0] != "unmask":
        sys.path = [str(Path(words[1]).parent), *path]
    try:
        yield
    finally:
        sys.argv, sys.path = arguments, path


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _limit_memory(share: float | None) -> None:
    """Leave the rest of the GPU's memory to processes that run beside this one."""
    if share is not None and not 0 < share <= 1:
        raise UserError(f"a share of {share:g} was given: expected a part of 1, such as 0.5.")
    if share is not None and _has_gpu():
        import torch

        torch.cuda.set_per_process_memory_fraction(share)


def _free_memory() -> None:
    gc.collect()
    if "torch" in sys.modules and _has_gpu():  # commands that do without it are not kept waiting
        import torch

        torch.cuda.empty_cache()
        print(f"GPU memory held: {format_bytes(torch.cuda.memory_reserved())}", flush=True)


def run_side_by_side(
    runner: Runner, wanted: list[Stage], options: argparse.Namespace, engine: WorkEngine
) -> list[str]:
    """Run stages, each in a process of its own; the names of those that failed."""
    command = [sys.executable, __file__, "--data", str(options.data)]
    command += ["--stages", str(options.stages)]
    if _has_gpu() and isinstance(engine, LocalEngine):
        command += ["--share", f"{share_machine(0, engine.count)[1]:.3f}"]
    deadline = None if options.minutes is None else time.time() + runner.count_seconds_left()
    stages = runner.stages
    done, failed = run_together(stages, wanted, runner.is_done, command, engine, deadline)
    for name in done:  # again, one by one: processes may have written at the same time
        runner.enter_page(stages[name])
    return failed


def parse_options() -> argparse.Namespace:
    """The options, as the module's first lines show them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the data sets")
    parser.add_argument("--stage", nargs="+", help="some stages; by default all that write a page")
    parser.add_argument("--minutes", type=float, help="stop after so many minutes")
    parser.add_argument("--on", help=f"stages run side by side. {ON}")
    parser.add_argument("--share", type=float, help="of the GPU's memory that may be used")
    parser.add_argument("--stages", type=Path, default=STAGES, help="the list of stages")
    parser.add_argument("--list", action="store_true", help="show the stages and what is done")
    return parser.parse_args()


def main() -> int:
    options = parse_options()
    try:
        data, stages = read_stages(options.stages)
        runner = Runner(data, stages, options.data, options.minutes)
        if options.list:
            show_stages(data, stages, runner)
            return 0
        for name in options.stage or ():
            if name not in stages:
                raise UserError(f"stage {name!r} is unknown: {suggest(name, stages)}")
        pages = [stage.name for stage in stages.values() if stage.page]
        wanted = [stages[name] for name in options.stage or pages]
        _limit_memory(options.share)
        engine = find_engine(options.on)
        if engine is not None:
            if failed := run_side_by_side(runner, wanted, options, engine):
                raise UserError(f"failed: {', '.join(failed)}; the others went on.")
            is_finished = all(map(runner.is_done, wanted))
        else:
            is_finished = all(map(runner.run, wanted))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    names = ", ".join(stage.name for stage in wanted)
    late = "the time is up: the same command goes on from here"
    print(f"done: {names}" if is_finished else late, flush=True)
    return 0


if __name__ == "__main__":
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has left, as `head` does: nothing more is to be said
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    sys.exit(status)
