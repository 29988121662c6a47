"""Loading a checkpoint of SMDM's 1028M shapes: time, and peak memory beside the file's size.

    python benchmarks/loading.py --device cpu --size 1028M --out docs/results/loading-cpu.md

A random model is written in SMDM's layout, then loaded in a process of its own, whose memory is
what the operating system counted at its worst moment (CPU) or what CUDA gave out.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from timing import describe_run, format_table, write_record

import unmask
from unmask.base.devices import resolve_device
from unmask.base.units import format_bytes
from unmask.net.model import Blueprint, Model

NUM_TOKENS = 2
"""Tokens of the run that shows the model works; few, for processors slow in bfloat16."""


def write_random_model(size: str, folder: Path) -> int:
    """Write a random diffusion model of that size in bfloat16; its bytes on disk."""
    config = unmask.preset(size)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        net = unmask.Transformer(config).bfloat16()
    unmask.save(
        Model(size, net, Blueprint(config, "masked", config.vocab_size - 1)), folder, "smdm"
    )
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def peak_bytes() -> int:
    """The most memory this process held so far; Linux counts it anew from a program's start."""
    status = Path("/proc/self/status").read_text()
    return next(
        int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:")
    )


def measure_load(folder: Path, device: str) -> dict[str, float]:
    """Seconds and bytes of one load, measured inside a process that does nothing else."""
    before = peak_bytes()
    start = time.perf_counter()
    model = unmask.load(folder, device=device, dtype="bfloat16")
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    after = peak_bytes()
    on_device = torch.cuda.max_memory_allocated() if model.device.type == "cuda" else 0
    tokens = torch.zeros(1, NUM_TOKENS, dtype=torch.long, device=model.device)
    start = time.perf_counter()
    finite = bool(model.logits(tokens).isfinite().all())
    return {
        "seconds": seconds,
        "before": before,
        "peak": after,
        "on_device": on_device,
        "run": time.perf_counter() - start,
        "finite": finite,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--size", default="1028M")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load:
        print(json.dumps(measure_load(options.load, options.device)))
        return
    device = resolve_device(options.device)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        size = write_random_model(options.size, folder)
        rows = []
        for attempt in ("first", "again, file cached"):
            words = [sys.executable, __file__, "--load", str(folder), "--device", str(device)]
            done = subprocess.run(words, capture_output=True, text=True, check=True)
            found = json.loads(done.stdout.splitlines()[-1])
            peak = found["on_device"] or found["peak"]
            rows.append(
                [
                    attempt,
                    f"{found['seconds']:.1f}",
                    format_bytes(size),
                    format_bytes(peak),
                    f"{peak / size:.2f}",
                    format_bytes(found["peak"]),
                    format_bytes(found["before"]),
                    f"{1e3 * found['run']:.0f}",
                    str(found["finite"]),
                ]
            )
    header = ["load", "seconds", "file", f"peak on {device.type}", "peak / file"]
    header += [
        "peak of the process",
        "before loading",
        f"first run of {NUM_TOKENS} tokens, ms",
        "finite",
    ]
    text = (
        f"# Loading SMDM's {options.size} shapes, {device.type}, bfloat16\n\n"
        f"{describe_run(device)}.\n\n{format_table(header, rows)}\n"
    )
    write_record(text, options.out)


if __name__ == "__main__":
    main()
