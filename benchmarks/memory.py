"""Peak memory of `unmask recall` and `unmask trace` against the number of facts.

    python benchmarks/memory.py recall 2000 10000
    python benchmarks/memory.py recall 100000 --tiny --steps 1
    python benchmarks/memory.py trace 10 50 --samples 2 --out docs/results/memory-cpu.md

Each run is a process of its own over facts that are made up; its memory is the most that the
operating system counted. `--tiny` takes a random network of a few thousand weights with the shipped
model's tokenizer; without it the shipped diffusion model is asked. Other words are the verb's own
options. A page has a section for each verb; that of the other one stays.
"""

import argparse
import csv
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from timing import describe_run, format_table, write_record

import unmask
from unmask.net.model import Blueprint, Model

SHIPPED = "reversal-mdm"
TITLE = "# Peak memory against the number of facts"


def write_facts(path: Path, count: int) -> None:
    """That many facts of one relation, each with an answer of its own."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["subject", "object", "prompt"])
        for i in range(count):
            writer.writerow([f"Town {i}", f"Colour {i * 7919 % count}", "The flag of {} shows"])


def write_tiny(folder: Path) -> None:
    """A random network with the shipped model's vocabulary."""
    shipped = unmask.load(SHIPPED, device="cpu")
    config = replace(unmask.preset("tiny"), vocab_size=shipped.net.config.vocab_size)
    blueprint = Blueprint(config, "masked", shipped.mask_id)
    net = unmask.Transformer(config)
    unmask.save(Model("tiny", net, blueprint, shipped.tokenizer), folder)


def measure_peak(words: list[str]) -> tuple[float, float]:
    """Megabytes and seconds of one command.

    In a process that starts no other before: what the system counts of ended children is the most
    that any of them held.
    """
    code = (
        "import resource, subprocess, sys; "
        "done = subprocess.run(sys.argv[1:], capture_output=True, text=True); "
        "sys.stderr.write(done.stderr if done.returncode else ''); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(done.returncode)"
    )
    start = time.perf_counter()
    command = [sys.executable, "-c", code, sys.executable, "-m", "unmask", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    unit = 1e6 if sys.platform == "darwin" else 1e3
    return int(done.stdout) / unit, time.perf_counter() - start


def update_page(page: str, verb: str, text: str) -> str:
    """The page with this verb's section anew, in its place, or at the end."""
    title, *others = re.split(r"^## ", page or f"{TITLE}\n\n", flags=re.MULTILINE)
    sections = {each.partition("\n")[0]: each.rstrip() for each in others}
    sections[verb] = f"{verb}\n\n{text}"
    return title + "\n\n".join(f"## {each}" for each in sections.values()) + "\n"


def main() -> None:
    """Print a row for each number of facts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=["recall", "trace"])
    parser.add_argument("counts", type=int, nargs="+", help="numbers of facts")
    parser.add_argument("--tiny", action="store_true", help="a network of a few thousand weights")
    parser.add_argument("--out", type=Path, help="the page to write, or to write into")
    given, options = parser.parse_known_args()
    options = [*options, "--guidance", "0", "--device", "cpu"]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        model = f"{folder}/tiny" if given.tiny else SHIPPED
        if given.tiny:
            write_tiny(Path(model))
        for count in given.counts:
            data, out = f"{folder}/{count}.csv", f"{folder}/{count}"
            write_facts(Path(data), count)
            words = [given.verb, model, "--data", data, "--out", out, *options]
            if given.verb == "trace":
                words += ["--facts", str(count), "--any-answer"]
            megabytes, seconds = measure_peak(words)
            rows.append([f"{count:,}", f"{megabytes:,.0f}", f"{seconds:,.0f}"])
            print(rows[-1], file=sys.stderr, flush=True)
    table = format_table(["facts", "peak memory, MB", "seconds"], rows)
    text = f"{describe_run(torch.device('cpu'))}.\n\n{table}"
    is_there = given.out is not None and given.out.is_file()
    write_record(
        update_page(given.out.read_text() if is_there else "", given.verb, text), given.out
    )


if __name__ == "__main__":
    main()
