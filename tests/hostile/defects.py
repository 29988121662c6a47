"""Seeded defects: which of them the hostile suite finds. `python -m tests.hostile defects --help`.

Each of `defects.yaml` is put into a copy of the package, alone, and the suite is run there until a
test fails. Tests that fail without a defect count for none.
"""

import contextlib
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import yaml

from tests.hostile.pages import write_page

# Nothing of the package: each defect is imported anew, in a process of its own.
ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("defects.yaml")
SUITE = "tests/hostile"
REST = [SUITE, "@tests/hostile/beside.txt"]
# That every defect can be seeded fails of each that is there.
OUT_OF_IT = ["--deselect", f"{SUITE}/test_defects.py"]
FIRST, NEAR, SLICE, LONG, KILLS = "first", "near", "slice", "long", "kills"
STAGES = {
    FIRST: ["-m", "not prove and not gpu"],
    NEAR: ["-m", "not prove and not gpu"],
    SLICE: ["-m", "not prove and not gpu"],
    LONG: ["-m", "prove", "--deselect", f"{SUITE}/test_kills.py"],
    KILLS: ["-m", "prove", "-k", "test_kills"],
}
"""Parts of the suite, one after the other: the tests that a defect names, the files about its
subject, what `make test` runs of the suite, then what takes long, then kills."""
LIKELY = {
    "base/config": ["tests/hostile/test_limits.py", "tests/base/test_settings.py"],
    "base/devices": ["tests/hostile/test_mistakes.py", "tests/base/test_devices.py"],
    "base/engines": ["tests/hostile/test_mistakes.py"],
    "base/files": ["tests/base/test_files.py", "tests/hostile/test_mistakes.py",
                   "tests/hostile/test_runs.py", "tests/hostile/test_wrong_files.py"],
    "base/identity": ["tests/hostile/test_runs.py"],
    "base/locks": ["tests/hostile/test_runs.py", "tests/base/test_locks.py"],
    "base/reading": ["tests/hostile/test_wrong_files.py", "tests/base/test_reading.py"],
    "base/runs": ["tests/hostile/test_runs.py", "tests/measures/test_resuming.py"],
    "base/tables": ["tests/hostile/test_runs.py", "tests/base/test_tables.py"],
    "base/unpacking": ["tests/hostile/test_wrong_files.py"],
    "cli/": ["tests/hostile/test_mistakes.py"],
    "data/chat": ["tests/hostile/test_templates.py"],
    "data/patterns": ["tests/hostile/test_hostile_files.py"],
    "data/leaks": ["tests/hostile/test_wrong_files.py", "tests/data/test_leaks.py"],
    "data/": ["tests/hostile/test_wrong_files.py", "tests/hostile/test_hostile_files.py"],
    "editing/": ["tests/hostile/test_mistakes.py", "tests/editing/test_edit.py"],
    "explorer/": ["tests/explorer/test_server.py", "tests/hostile/test_explorer_requests.py"],
    "harness/": ["tests/hostile/test_mistakes.py"],
    "measures/": ["tests/hostile/test_runs.py", "tests/measures/test_resuming.py"],
    "net/": ["tests/hostile/test_hostile_files.py", "tests/hostile/test_wrong_files.py",
             "tests/net/test_loading.py", "tests/hostile/test_mistakes.py"],
    "report/": ["tests/hostile/test_pages.py"],
    "sampling/": ["tests/hostile/test_wrong_files.py"],
    "sweep/": ["tests/hostile/test_runs.py"],
    "training/": ["tests/hostile/test_runs.py", "tests/training/test_inputs.py"],
}  # fmt: skip
"""Which files of the suite are run first, by how the defect's file begins."""
SECONDS = {FIRST: 300, NEAR: 900}
MOST_SECONDS = 3600
"""A stage that takes longer hangs: that is found as well, and named."""
LIBRARIES = ("torch", "torch.distributed.checkpoint", "torch.distributed.fsdp", "pyarrow.parquet",
             "pyarrow.dataset", "scipy.stats", "sklearn.linear_model", "matplotlib.pyplot",
             "huggingface_hub", "safetensors.torch", "tokenizers", "hypothesis.strategies",
             "typer.testing", "rich.console", "starlette.testclient", "uvicorn", "jinja2.sandbox",
             "jaxtyping", "beartype", "filelock", "pytest", "_pytest.assertion")  # fmt: skip
"""What is imported once, for all defects."""


@dataclass(frozen=True)
class Defect:
    """A text of a file of the package, the one that takes its place, and the likeliest tests."""

    file: str
    what: str
    first: str
    old: str
    new: str

    @property
    def name(self) -> str:
        return f"{self.file}: {self.what}"


def read_defects() -> list[Defect]:
    return [Defect(**each) for each in yaml.safe_load(LIST.read_text("utf-8"))]


def copy_tree(folder: Path) -> Path:
    """The package and its tests in a folder, to be changed."""
    for name in ("unmask", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    for name in ("docs", "tools", "paper", "benchmarks", "Makefile"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def run_suite(tree: Path, words: Sequence[str], seconds: float = MOST_SECONDS) -> list[str]:
    """The first test that fails in a tree, by a pytest of its own, or that it does not end."""
    out, log = tree / "failed.json", tree / "log"
    out.unlink(missing_ok=True)
    if (pid := os.fork()) == 0:
        try:
            _run_pytest(tree, [*words, *OUT_OF_IT, "-x"], out, log)
        except BaseException:
            log.write_text(traceback.format_exc(), "utf-8")
        finally:
            os._exit(0)
    until = time.monotonic() + seconds
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return [f"no end within {seconds} s"]
        time.sleep(0.05)
    if not out.is_file():
        return [f"the process ended: {log.read_text('utf-8', 'replace')[-900:]!r}"]
    return json.loads(out.read_text("utf-8"))


def _run_pytest(tree: Path, words: Sequence[str], out: Path, log: Path) -> None:
    """In a process of its own: run tests of a tree, and write which of them fail."""
    import pytest

    class Watch:
        def __init__(self) -> None:
            self.failed: list[str] = []

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed and report.nodeid not in self.failed:
                self.failed.append(report.nodeid)

        def pytest_collectreport(self, report: pytest.CollectReport) -> None:
            if report.failed:
                self.failed.append(report.nodeid)

    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.chdir(tree)
    os.environ |= {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    for name in [each for each in sys.modules if each.partition(".")[0] == "tests"]:
        del sys.modules[name]
    own = {"", str(ROOT), str(ROOT / "tests")}
    sys.path[:] = [str(tree), *(each for each in sys.path if each not in own)]
    watch = Watch()
    usual = ["-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    code = pytest.main([*usual, *words], plugins=[watch])
    if code not in (0, 1, 5) and not watch.failed:
        watch.failed.append(f"pytest ends with {int(code)}")
    out.write_text(json.dumps(watch.failed), "utf-8")


def judge(tree: Path, defect: Defect, stages: Sequence[str], usual: dict[str, bool]) -> str:
    """The first test that fails with a defect and not without; empty where none does.

    `usual` remembers of each test that failed whether it does so without a defect."""
    path = tree / "unmask" / defect.file
    text = path.read_text("utf-8")
    assert text.count(defect.old) == 1, f"{defect.name}: {text.count(defect.old)} such texts"
    _write(path, text.replace(defect.old, defect.new))
    likely = next((own for start, own in LIKELY.items() if defect.file.startswith(start)), [])
    without = [word for each in usual if usual[each] for word in ("--deselect", each)]
    try:
        for stage in stages:
            places = {FIRST: [defect.first], NEAR: likely}.get(stage, REST)
            most = SECONDS.get(stage, MOST_SECONDS)
            while found := run_suite(tree, [*STAGES[stage], *without, *places], most):
                # What fails without the defect, or now and then, has not found it.
                again = [found[0]] if "::" in found[0] else [*STAGES[stage], *without, *places]
                if found[0] not in usual:
                    _write(path, text)
                    usual[found[0]] = bool(run_suite(tree, again))
                    _write(path, text.replace(defect.old, defect.new))
                if not usual[found[0]] and ("fuzz" not in found[0] or run_suite(tree, again)):
                    return found[0]
                if "::" not in found[0]:
                    raise SystemExit(f"the suite does not run here: {found[0]}")
                without += ["--deselect", found[0]]
        return ""
    finally:
        _write(path, text)


def _write(path: Path, text: str) -> None:
    """Write a file of the package; compiled ones are told apart by the second of its time."""
    path.write_text(text, "utf-8")
    second = next(_SECONDS)
    os.utime(path, (second, second))


_SECONDS = count(1_000_000_000)


def judge_all(numbers: Sequence[int], stages: Sequence[str]) -> Iterator[tuple[int, str, float]]:
    """For each defect of these numbers what found it, and the seconds that it took."""
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    sys.dont_write_bytecode = False  # or all of the package is compiled for each of them
    defects = read_defects()
    with tempfile.TemporaryDirectory() as folder:
        tree = copy_tree(Path(folder))
        usual: dict[str, bool] = {}
        for number in numbers:
            begin = time.perf_counter()
            found = judge(tree, defects[number - 1], stages, usual)
            yield number, found, time.perf_counter() - begin


def main(words: Sequence[str]) -> int:
    """Judge defects and keep what came of it in a file, where those that were found stay found."""
    import argparse

    parser = argparse.ArgumentParser(prog="python -m tests.hostile defects", description=__doc__)
    parser.add_argument("--stages", default=",".join(STAGES), help="parts of the suite")
    parser.add_argument("--numbers", help="such as 1,5,7; by default all that were not found yet")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "defects.json")
    given = parser.parse_args(words)
    defects, stages = read_defects(), given.stages.split(",")
    known = json.loads(given.out.read_text("utf-8")) if given.out.is_file() else {}
    numbers = [i for i, each in enumerate(defects, 1) if not known.get(each.name)]
    if given.numbers:
        numbers = [int(number) for number in given.numbers.split(",")]
    for number, found, seconds in judge_all(numbers, stages):
        name = defects[number - 1].name
        known[name] = found
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(known, indent=2), "utf-8")
        print(f"{number:3} {seconds:5.0f} s  {name}: {found or 'NOT FOUND'}", flush=True)
    found = sum(bool(known.get(each.name)) for each in defects)
    judged = sum(each.name in known for each in defects)
    write_page(
        "defects.md",
        "Seeded defects, and the test that finds each",
        f"{found} of {len(defects)} are found, {len(defects) - judged} were not judged. Written by "
        "`python -m tests.hostile defects`.",
        ("file", "defect", "found by"),
        [
            (each.file, each.what, f"`{test}`" if (test := known.get(each.name)) else "–")
            for each in defects
        ],
    )
    return 0
