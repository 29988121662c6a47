"""Small networks on a GPU, where launching a kernel takes longer than running it.

    python benchmarks/small.py --out docs/results/small-cuda.md

Training steps of SmolLM2-135M's shapes, with random weights: launched kernel by kernel and
replayed as graphs, in one run, beside the time that the arithmetic alone would take at the measured
peak. What happens once (compiling, capturing) is reported apart.
"""

import argparse
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from timing import describe_run, format_table, write_record
from torch.profiler import ProfilerActivity, profile
from training import Try, clear, make_trainer

from unmask.net.config import NetConfig
from unmask.net.presets import preset
from unmask.training.parallel import World
from unmask.training.speed import count_training_flops, measure_peak, wait_for
from unmask.training.trainer import Trainer

SMOLLM2 = preset("smollm2-135m")
WARM_UP = 60
"""Steps before the clock starts: every number of targets is met twice."""


@dataclass(frozen=True)
class Training:
    """A number of training steps, and how many trainers take them side by side."""

    label: str
    rows: int
    length: int
    steps: int
    trainers: int = 1
    limit: float = 0.0
    """Seconds asked for."""


TRAININGS = (
    Training("fine-tuning", 64, 52, 1800, 1, 30),
    Training("fine-tuning, six seeds", 64, 52, 1800, 6, 110),
    Training("opening", 128, 256, 1383, 1, 100),
)


def start_trainers(
    case: Training, config: NetConfig, graphs: bool, device: torch.device
) -> tuple[list[Trainer], float]:
    """Trainers after their first steps, and the seconds that these took."""
    start = time.perf_counter()
    config = replace(config, context=case.length)
    trainers = [
        make_trainer(config, case.rows, case.length, World(device), Try())
        for _ in range(case.trainers)
    ]
    for trainer in trainers:
        trainer.graphs = trainer.graphs if graphs else None
    take_steps(trainers, WARM_UP, device)
    return trainers, time.perf_counter() - start


def take_steps(trainers: list[Trainer], steps: int, device: torch.device) -> float:
    """Seconds of so many steps of all trainers, which take turns."""
    wait_for(device)
    start = time.perf_counter()
    for _ in range(steps):
        for trainer in trainers:
            trainer.take_step()
    wait_for(device)
    return time.perf_counter() - start


def measure(case: Training, config: NetConfig, device: torch.device, options) -> list[list[str]]:
    """Both ways' rows of the table."""
    peak = measure_peak(device, torch.bfloat16)
    tokens = case.trainers * case.steps * case.rows * case.length
    floor = tokens * count_training_flops(config, case.length) / peak
    rows = []
    for label, graphs in (("launched", False), ("replayed", True)):
        trainers, first = start_trainers(case, config, graphs, device)
        timed = max(10, options.steps // case.trainers)
        seconds = take_steps(trainers, timed, device) / timed * case.steps
        replays = sum(trainer.graphs.replays for trainer in trainers if trainer.graphs)
        print(f"{case.label}, {label}: {seconds:.1f} s, {replays} replays", flush=True)
        if options.profile and graphs:
            show_kernels(trainers, device)
        rows.append(
            [
                case.label,
                f"{case.trainers} × {case.steps} × {case.rows} × {case.length}",
                label,
                f"{seconds:.1f}",
                f"{case.limit:.0f}" if graphs else "",
                f"{floor:.1f}",
                f"{floor / seconds:.0%}",
                f"{first:.0f}",
            ]
        )
        del trainers
        clear(device)
    return rows


def show_kernels(trainers: list[Trainer], device: torch.device, steps: int = 10) -> None:
    """Print which kernels the device's time goes to."""
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as taken:
        seconds = take_steps(trainers, steps, device)
    events = sorted(taken.key_averages(), key=lambda event: -event.self_device_time_total)
    total = sum(event.self_device_time_total for event in events) / 1e3
    print(f"{steps} steps: {1e3 * seconds:.1f} ms, kernels {total:.1f} ms")
    for event in events[:16]:
        share = event.self_device_time_total / 1e3 / total
        print(f"  {share:6.1%} {event.count:6d} {event.key[:110]}", flush=True)


HEADER = ["what", "trainers × steps × batch", "steps are", "s", "asked", "floor, s", "of peak"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=120, help="timed, of all trainers together")
    parser.add_argument("--cases", type=int, nargs="*", default=range(len(TRAININGS)))
    parser.add_argument("--profile", action="store_true", help="print the longest kernels")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    rows = [row for i in options.cases for row in measure(TRAININGS[i], SMOLLM2, device, options)]
    text = (
        f"# Small networks, {options.device}, bfloat16 products, float32 weights\n\n"
        f"{describe_run(device)}.\nSmolLM2-135M's shapes, random weights. Times are of all steps, "
        f"from {options.steps} that were timed.\n\n"
        f"{format_table([*HEADER, 'once, s'], rows)}\n"
    )
    write_record(text, options.out)


if __name__ == "__main__":
    main()
