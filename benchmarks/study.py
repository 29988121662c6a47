"""The whole study from nothing to its page: seconds of each stage beside its arithmetic.

    python benchmarks/study.py --count --out docs/results/study-cpu.md
    python benchmarks/study.py --out docs/results/study-cpu.md

Both run `unmask study` with the shipped pair into a fresh folder, which is removed afterwards: the
first in this process, to count its operations, which it leaves beside the page; the second as it
is, to write the page. Beside the seconds that pass stand those of the processor, summed over its
cores: on a machine that is busy otherwise, they say what the study costs. The goals are for an idle
machine, and for one with another busy process (`--busy 1`).

    python benchmarks/study.py --costs

writes what a stage costs for each fact and whatever their number, by the processor seconds of one
thread: `unmask study --within` chooses sizes by it. And this shows whether it keeps its word, with
two threads and with one, alone and beside a process that is busy:

    python benchmarks/study.py --within 5 --out docs/results/study-within.md

It takes four times the minutes; `--threads 1 --busy 0` does one of the four, and a page that is
there keeps the rows of other ones.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import torch
from timing import describe_run, format_table, write_record
from torch.utils.flop_counter import FlopCounterMode

from unmask.base.devices import resolve_device
from unmask.base.files import write_json
from unmask.base.reading import read_json, read_text
from unmask.base.runs import PAGE, read_record
from unmask.measures.runner import read_result
from unmask.report.page import draw_report
from unmask.study.pace import SAMPLE, count_usual, find_count
from unmask.study.pipeline import STAGES_FILE, StudyRun, find_sample, list_stages, run_study
from unmask.study.settings import Size, StudySettings

GOAL_SECONDS = 330, 450
"""For the size laptop on two cores, after installation: idle, and beside a busy process."""
COSTS = Path("unmask/assets/study-costs.json")


def run_timed(more: list[str], run: Path) -> dict[str, tuple[float, float]]:
    """Seconds that passed, and those of the processor, of each stage of a study and of all."""
    start = time.perf_counter()
    words = [sys.executable, "-m", "unmask", "study", *more, "--out", str(run)]
    _, status, usage = os.wait4(subprocess.Popen(words).pid, 0)
    if status != 0:
        raise SystemExit(f"{' '.join(words)} failed.")
    whole = time.perf_counter() - start, usage.ru_utime + usage.ru_stime
    entries = json.loads((run / STAGES_FILE).read_text())
    spent = {each["stage"]: (each["seconds"], each["processor_seconds"]) for each in entries}
    passed, used = (
        total - sum(each[i] for each in spent.values()) for i, total in enumerate(whole)
    )
    return spent | {"start and page": (passed, used), "**all**": whole}


@contextmanager
def keep_busy(number: int) -> Generator[None]:
    """Inside the block so many other processes are busy."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def count_operations(settings: StudySettings) -> dict[str, int]:
    """Operations of matrix products and attention of each stage, two for each multiply-add."""
    counts, counted = dict[str, int](), FlopCounterMode(display=False)

    def report(stage: str, seconds: float | None) -> None:
        counts[stage] = counted.get_total_flops() - sum(counts.values())

    with tempfile.TemporaryDirectory() as scratch, counted:
        run_study(settings, Path(scratch) / "study", report=report)
    return counts


def find_speed() -> float:
    """Operations that a core does in a second, in products as wide as those of the networks."""
    rows, weights, best = torch.randn(2000, 256), torch.randn(2048, 256), 0.0
    for _ in range(20):
        start = time.process_time()
        for _ in range(10):
            torch.nn.functional.linear(rows, weights)
        taken = time.process_time() - start
        best = max(best, 10 * 2 * rows.shape[0] * weights.numel() / taken)
    return best


def count_traced(run: Path) -> str:
    """How many facts were traced of each model in each way of asking."""
    rows = read_result(run).tables["facts"].to_pylist()
    traced = Counter((row["model"], row["split"]) for row in rows if row["kept"])
    return ", ".join(f"{count} of {model} {split}" for (model, split), count in traced.items())


def describe_stages(
    size: Size, device: str, busy: int, done: Mapping[str, int], load: float
) -> str:
    with tempfile.TemporaryDirectory() as scratch, keep_busy(busy):
        run = Path(scratch) / "study"
        spent = run_timed(["--size", size, "--device", device], run)
        traced = count_traced(run / "trace")
    speed = find_speed()
    rows = []
    for name, (passed, used) in spent.items():
        number = sum(done.values()) if name == "**all**" else done.get(name, 0)
        least = [f"{number / 1e9:,.0f}", f"{number / speed:.1f}"]
        rows.append([name, f"{passed:.1f}", f"{used:.1f}", *least])
    idle, busy = GOAL_SECONDS
    goal = f" The goal is {idle} s on an idle machine, {busy} s beside a busy process."
    titles = ["stage", "seconds", "processor seconds", "operations, 10⁹", "seconds of a product"]
    return (
        f"# The study, size {size}, by stage\n\n"
        f"{describe_run(resolve_device(device))}, {os.cpu_count()} cores, with a load of "
        f"{load:.1f} before, beside {busy} busy processes.{goal if size == 'laptop' else ''}\n\n"
        f"{format_table(titles, rows)}\n\n"
        "Operations are those of matrix products and attention. The last column is what a core "
        f"needs for as many in large products alone, at {speed / 1e9:.0f} · 10⁹ in a second; "
        "processor seconds above it go to all that is no product, to small ones, and to reading, "
        "statistics and drawing.\n\n"
        f"Facts traced: {traced}.\n"
    )


def write_costs() -> None:
    """Processor seconds of the usual study and of the smallest, one thread each, as a line."""
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        usual, least = (Path(scratch) / name for name in ("usual", "least"))
        spent = run_timed(["--device", "cpu"], usual)
        few = run_timed(["--device", "cpu", "--within", "0.01"], least)
        measure, stage = list_stages("laptop")[SAMPLE]
        settings = StudySettings(device="cpu")
        work = find_sample(StudyRun(usual), settings, measure, stage)
        costs = {
            "sample": {"fixed": time_processor(work)},
            "page": {"fixed": time_processor(lambda: draw_report([usual], usual / PAGE))},
        }
    for name, (_, stage) in list_stages("laptop").items():
        number, (more, less) = (
            count_usual(name, stage.sizes.get("laptop")),
            (x[name][1] for x in (spent, few)),
        )
        each = (more - less) / (number - 1) if number else 0.0
        costs[name] = {"fixed": min(more - each * number, less)} | (
            {"each": each} if number else {}
        )
    rounded = {name: {k: round(v, 2) for k, v in cost.items()} for name, cost in costs.items()}
    write_json(COSTS, rounded)


def time_processor(call: Callable[[], object], rounds: int = 3) -> float:
    """The processor seconds of a call, the least of several after a first one."""
    call()
    taken = []
    for _ in range(rounds):
        start = time.process_time()
        call()
        taken.append(time.process_time() - start)
    return min(taken)


def time_promises(
    minutes: Sequence[float], threads: Sequence[int], others: Sequence[int]
) -> Iterator[list[str]]:
    """How long a study took that was given so many minutes, alone and beside busy processes."""
    for given, count, busy in product(minutes, threads, others):
        os.environ["OMP_NUM_THREADS"] = str(count)
        before = os.getloadavg()[0]
        with tempfile.TemporaryDirectory() as scratch, keep_busy(busy):
            run = Path(scratch) / "study"
            passed, used = run_timed(["--device", "cpu", "--within", str(given)], run)["**all**"]
            sizes = ", ".join(f"{number} {name}" for name, number in list_counts(run))
        off = f"{100 * (passed / given / 60 - 1):+.0f} %"
        where = [f"{given:g}", str(count), str(busy)]
        yield [*where, f"{before:.1f}", f"{passed / 60:.2f}", off, f"{used:.0f}", sizes]


def read_rows(page: Path | None) -> list[list[str]]:
    """The rows of a page that is there."""
    lines = read_text(page).splitlines() if page is not None and page.is_file() else []
    return [line[2:-2].split(" | ") for line in lines if line[:3].removeprefix("| ").isdecimal()]


def describe_promises(rows: Sequence[Sequence[str]]) -> str:
    titles = ["given, min", "threads", "kept busy beside it", "load before", "taken, min", "off"]
    titles += ["processor seconds", "prompts or facts"]
    return (
        "# The study within a time\n\n"
        f"{describe_run(torch.device('cpu'))}, {os.cpu_count()} cores. `unmask study --within "
        "MINUTES` chooses sizes, by a piece of the work that it runs first and by the stages that "
        "have ended.\n\n"
        f"{format_table(titles, rows)}\n"
    )


def list_counts(run: Path) -> Iterator[tuple[str, int]]:
    """Each stage of a size that may be chosen, and how many prompts or facts it had."""
    for name, (_, stage) in list_stages("laptop").items():
        if (count := find_count(name, stage.sizes.get("laptop"))) and (run / name).is_dir():
            yield name, read_record(run / name).settings[count]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", default="laptop", choices=("quick", "laptop", "full"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--within", help="minutes, separated by commas")
    parser.add_argument("--threads", default="2,1", help="of it, separated by commas")
    parser.add_argument("--busy", default="0,1", help="processes to keep busy beside it")
    parser.add_argument("--count", action="store_true", help="count operations alone")
    parser.add_argument("--costs", action="store_true", help=f"write {COSTS}")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    threads, others = (list(map(int, x.split(","))) for x in (options.threads, options.busy))
    if options.costs:
        write_costs()
    elif options.within:
        rows = {tuple(row[:3]): row for row in read_rows(options.out)}
        for row in time_promises(list(map(float, options.within.split(","))), threads, others):
            rows[tuple(row[:3])] = row
            write_record(describe_promises([rows[key] for key in sorted(rows)]), options.out)
    else:
        counts = (options.out or Path(tempfile.gettempdir()) / "study").with_suffix(".json")
        if options.count:
            settings = StudySettings(size=options.size, device=options.device)
            write_json(counts, count_operations(settings))
        else:
            given = options.size, options.device, others[0], read_json(counts)
            write_record(describe_stages(*given, load), options.out)


if __name__ == "__main__":
    main()
