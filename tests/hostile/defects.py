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
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import yaml

# Nothing of the package: each defect is imported anew, in a process of its own.
ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("defects.yaml")
SUITE = "tests/hostile"
REST = [SUITE, "@tests/hostile/beside.txt"]
# That every defect can be seeded fails of each that is there.
OUT_OF_IT = ["--deselect", f"{SUITE}/test_defects.py"]
NEAR, SLICE, LONG, KILLS = "near", "slice", "long", "kills"
STAGES = {
    NEAR: ["-m", "not prove and not gpu"],
    SLICE: ["-m", "not prove and not gpu"],
    LONG: ["-m", "prove", "--deselect", f"{SUITE}/test_kills.py"],
    KILLS: ["-m", "prove", "-k", "test_kills"],
}
"""Parts of the suite, one after the other: the likeliest files, what `make test` runs of it, then
what takes long, then kills."""
LIKELY = {
    "base/config": ["tests/hostile/test_limits.py"],
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
SECONDS = 1500
"""A stage that takes longer hangs: that is found as well, and named."""
LIBRARIES = ("torch", "torch.distributed.checkpoint", "torch.distributed.fsdp", "pyarrow.parquet",
             "pyarrow.dataset", "scipy.stats", "sklearn.linear_model", "matplotlib.pyplot",
             "huggingface_hub", "safetensors.torch", "tokenizers", "hypothesis.strategies",
             "typer.testing", "rich.console", "starlette.testclient", "uvicorn", "jinja2.sandbox",
             "jaxtyping", "beartype", "filelock", "pytest", "_pytest.assertion")  # fmt: skip
"""What is imported once, for all defects."""
CASES = 3
"""How many cases of one test function are run, of those that run a defect's lines."""
Reach = Mapping[str, Mapping[str, Sequence[str]]]
"""By file and line of the package, the tests that run it."""


@dataclass(frozen=True)
class Defect:
    """A text of a file of the package, and the one that takes its place."""

    file: str
    what: str
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


def run_suite(tree: Path, words: Sequence[str], stops: bool = True) -> list[str]:
    """The tests that fail in a tree, by a pytest of their own; one that does not end is named."""
    out, log = tree / "failed.json", tree / "log"
    out.unlink(missing_ok=True)
    if (pid := os.fork()) == 0:
        try:
            _run_pytest(tree, [*words, *OUT_OF_IT, *(["-x"] if stops else [])], out, log)
        except BaseException:
            log.write_text(traceback.format_exc(), "utf-8")
        finally:
            os._exit(0)
    until = time.monotonic() + SECONDS
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return [f"no end within {SECONDS} s"]
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


def find_tests(defect: Defect, text: str, likely: Sequence[str], reach: Reach) -> list[str]:
    """Tests that run the lines of a defect, the likeliest first, a few of each function's cases."""
    start = text[: text.index(defect.old)].count("\n") + 1
    lines = range(start, start + defect.old.count("\n") + 1)
    known = reach.get(defect.file, {})
    tests = dict.fromkeys(test for line in lines for test in known.get(str(line), ()))
    tests.pop("", None)  # imports
    counts, kept = Counter[str](), []
    for test in sorted(
        tests, key=lambda test: (not test.startswith(tuple(likely)), "fuzz" in test)
    ):
        function = test.partition("[")[0]
        counts[function] += 1
        kept += [test] if counts[function] <= CASES or "fuzz" in test else []
    return kept


def judge(
    tree: Path, defect: Defect, stages: Sequence[str], usual: Sequence[str], reach: Reach
) -> str:
    """The first test that fails with a defect and not without; empty where none does."""
    path = tree / "unmask" / defect.file
    text = path.read_text("utf-8")
    assert text.count(defect.old) == 1, f"{defect.name}: {text.count(defect.old)} such texts"
    _write(path, text.replace(defect.old, defect.new))
    likely = next((own for start, own in LIKELY.items() if defect.file.startswith(start)), [])
    reaching = find_tests(defect, text, likely or [SUITE], reach)
    without = [word for each in usual for word in ("--deselect", each)]
    try:
        for stage in stages:
            places = {NEAR: likely, SLICE: reaching if reach else REST}.get(stage, REST)
            if not places:
                continue  # no test runs these lines
            while found := run_suite(tree, [*STAGES[stage], *without, *places]):
                # Drawn cases have a limit on time: what fails by it fails now and then.
                if "::" not in found[0] and found[0].startswith(SUITE[:6]):
                    raise SystemExit(f"a file of tests cannot be read: {found[0]}")
                if "fuzz" not in found[0] or run_suite(tree, [found[0]]):
                    return found[0]
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


def judge_all(
    numbers: Sequence[int], stages: Sequence[str], reach: Reach
) -> Iterator[tuple[int, str, float]]:
    """For each defect of these numbers what found it, and the seconds that it took."""
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    defects = read_defects()
    with tempfile.TemporaryDirectory() as folder:
        tree = copy_tree(Path(folder))
        usual = [each for s in stages for each in run_suite(tree, [*STAGES[s], *REST], False)]
        if any("::" not in each for each in usual):
            raise SystemExit(f"the suite does not run here: {usual}")
        print(f"without a defect {len(usual)} tests fail: {', '.join(usual) or 'none'}", flush=True)
        for number in numbers:
            begin = time.perf_counter()
            found = judge(tree, defects[number - 1], stages, usual, reach)
            yield number, found, time.perf_counter() - begin


def main(words: Sequence[str]) -> int:
    """Judge defects and keep what came of it in a file, where those that were found stay found."""
    import argparse

    parser = argparse.ArgumentParser(prog="python -m tests.hostile defects", description=__doc__)
    parser.add_argument(
        "--stages", default=f"{NEAR},{SLICE},{LONG},{KILLS}", help="parts of the suite"
    )
    parser.add_argument("--numbers", help="such as 1,5,7; by default all that were not found yet")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "defects.json")
    parser.add_argument("--reach", type=Path, help="by file and line, the tests that run it (JSON)")
    given = parser.parse_args(words)
    defects, stages = read_defects(), given.stages.split(",")
    known = json.loads(given.out.read_text("utf-8")) if given.out.is_file() else {}
    reach = json.loads(given.reach.read_text("utf-8")) if given.reach else {}
    numbers = [i for i, each in enumerate(defects, 1) if not known.get(each.name)]
    if given.numbers:
        numbers = [int(number) for number in given.numbers.split(",")]
    for number, found, seconds in judge_all(numbers, stages, reach):
        name = defects[number - 1].name
        known[name] = found
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(known, indent=2), "utf-8")
        print(f"{number:3} {seconds:5.0f} s  {name}: {found or 'NOT FOUND'}", flush=True)
    found = [each for each in defects if known.get(each.name)]
    print(f"{len(found)} of {len(defects)} defects are found ({', '.join(stages)})")
    return 0
