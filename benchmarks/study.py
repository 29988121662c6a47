"""The whole study from nothing to its page: seconds of each stage, and in all.

    python benchmarks/study.py --out docs/results/study-cpu.md

Runs `unmask study` with the shipped pair into a fresh folder, which is removed afterwards. Beside
the seconds that pass stand those of the processor, summed over its cores: on a machine that is busy
otherwise, they say what the study costs. The goal is for an idle one.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from timing import describe_run, format_table, write_record

from unmask.base.devices import resolve_device
from unmask.measures.runner import read_result

GOAL_SECONDS = 330
"""For the size laptop on two cores, after installation."""


def run_timed(words: list[str]) -> dict[str, tuple[float, float]]:
    """Seconds that passed, and those of the processor, of each stage and of all.

    The command says when a stage is done; the libraries count as part of the first one.
    """
    unbuffered = os.environ | {"PYTHONUNBUFFERED": "1"}
    start = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=unbuffered)
    assert process.stdout is not None
    spent, passed, processor = {}, 0.0, 0.0
    for line in process.stdout:
        print(line, end="", flush=True)
        if done := re.fullmatch(r"([\w-]+): [\d.]+ s", line.strip()):
            now, used = time.perf_counter() - start, read_processor_seconds(process.pid)
            spent[done[1]] = now - passed, used - processor
            passed, processor = now, used
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit(f"{' '.join(words)} failed.")
    whole = time.perf_counter() - start, usage.ru_utime + usage.ru_stime
    return spent | {"page": (whole[0] - passed, whole[1] - processor), "**all**": whole}


def read_processor_seconds(pid: int) -> float:
    """What a process has used of all cores (Linux)."""
    # The name, in brackets, may hold spaces; user and system time are the 14th and 15th field.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def count_traced(run: Path) -> str:
    """How many facts were traced of each model in each way of asking."""
    rows = read_result(run).tables["facts"].to_pylist()
    traced = Counter((row["model"], row["split"]) for row in rows if row["kept"])
    return ", ".join(f"{count} of {model} {split}" for (model, split), count in traced.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", default="laptop", choices=("quick", "laptop", "full"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "study"
        words = [sys.executable, "-m", "unmask", "study", "--size", options.size]
        spent = run_timed([*words, "--device", options.device, "--out", str(run)])
        traced = count_traced(run / "trace")
    rows = [[name, f"{a:.1f}", f"{b:.1f}"] for name, (a, b) in spent.items()]
    goal = f" The goal is {GOAL_SECONDS} s on an idle machine." if options.size == "laptop" else ""
    write_record(
        f"# The study, size {options.size}, by stage\n\n"
        f"{describe_run(resolve_device(options.device))}, {os.cpu_count()} cores, whose load was "
        f"{before:.1f} before.{goal}\n\n"
        f"{format_table(['stage', 'seconds', 'processor seconds'], rows)}\n\n"
        f"Facts traced: {traced}.\n",
        options.out,
    )


if __name__ == "__main__":
    main()
