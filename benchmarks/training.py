"""Training speed and memory against a plain module, on the same shapes in one run.

    python benchmarks/training.py --processes 2 --out docs/results/training-cuda.md
    python benchmarks/training.py --tries 1028M --out docs/results/training-tries-cuda.md
    python benchmarks/training.py --profile 85M

Operations a token: 6 (N + head) + 12 layers D L, for both alike, whatever they skip. The ceiling is
a matrix product of 8192³ measured in the same run. Each contender runs alone, after one another,
so that its peak memory is its own.
"""

import argparse
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from timing import describe_run, format_table, show_kernels, write_record
from torch.nn.attention import SDPBackend, sdpa_kernel
from training_peer import PeerTraining

from unmask.base.config import build
from unmask.base.devices import resolve_device
from unmask.base.units import format_bytes, format_number
from unmask.data.tokenizer import Tokenizer
from unmask.net.config import NetConfig
from unmask.net.model import Blueprint, Model
from unmask.net.presets import preset
from unmask.net.transformer import Transformer
from unmask.objectives import targets
from unmask.objectives.batch import Batch
from unmask.objectives.cross_entropy import weighted_cross_entropy
from unmask.training.build import TrainingJob, choose_training_dtype
from unmask.training.examples import Examples
from unmask.training.losses import make_objective
from unmask.training.mixture import Mixture
from unmask.training.parallel import World, join
from unmask.training.recipe import Recipe
from unmask.training.speed import count_training_flops, measure_peak, wait_for
from unmask.training.trainer import Trainer

ROWS = {"cuda": {"19M": 32, "85M": 32, "170M": 32, "1028M": 8}}
"""Rows of a step on a GPU; elsewhere 2."""
ATTENTION = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


@dataclass(frozen=True)
class Try:
    """One way to compute the same step."""

    compile: str = "auto"
    recompute: bool = False
    chunk: int = 4096
    attention: str = "default"
    optimiser: str = "adamw"
    cut_inside: bool = True
    """Gradients are cut to the longest allowed inside AdamW's own pass, not in one before it."""

    @property
    def label(self) -> str:
        said = [f"compile {self.compile}", f"chunks of {self.chunk:,}"]
        said += ["recomputed activations"] if self.recompute else []
        said += [f"{self.attention} attention"] if self.attention != "default" else []
        said += ["muon"] if self.optimiser == "muon" else []
        return ", ".join(said + ([] if self.cut_inside else ["gradients cut before AdamW"]))


@dataclass(frozen=True)
class Found:
    """What a contender did."""

    seconds: float
    """Median of a step."""
    memory: int | None
    first: float
    """Seconds until the first step was done, compiling included."""


def make_trainer(config: NetConfig, rows: int, length: int, world: World, tried: Try) -> Trainer:
    """Our training step over made-up tokens."""
    changes = {
        "kind": "masked",
        "data": {"source": "made up", "context": length},
        "batch": {"rows": rows},
        "optimiser": {"rate": 2e-4, "decay": 0.1, "name": tried.optimiser},
        "budget": {"steps": 1_000_000},
        "machine": {"compile": tried.compile, "recompute": tried.recompute},
    }
    recipe = build(Recipe, changes, "benchmark")
    mask_id = min(config.logit_rows, config.vocab_size - 1)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, mask_id, (4 * rows, length), generator=generator)

    def take(numbers: Sequence[int]) -> Batch:
        return Batch(tokens[torch.tensor(numbers)])

    examples = Examples("made up", len(tokens), Tokenizer.train([], 259), take)
    with torch.device(world.device):
        net = Transformer(config, 0).train()
    blueprint = Blueprint(config, "masked", mask_id)
    model = Model("bench", net, blueprint, None)
    objective = make_objective(recipe, blueprint)
    mixture, dtype = (
        Mixture({"": examples}, recipe.parts),
        choose_training_dtype(recipe, world.device),
    )
    trainer = Trainer(TrainingJob(recipe, mixture, model, objective, world, dtype))
    if not tried.cut_inside:
        trainer.optimiser.asks_device, trainer.graphs = False, None
    return trainer


def measure(
    make: Callable[[], Trainer | PeerTraining], device: torch.device, seconds: float
) -> Found:
    """Time and memory of a contender that is made, run and given up here."""
    clear(device)
    if device.type == "cuda":
        # From the start: the memory of recorded steps is taken when they are recorded.
        torch.cuda.reset_peak_memory_stats(device)
    start = time.perf_counter()
    contender = make()
    contender.take_step()
    wait_for(device)
    first = time.perf_counter() - start
    for _ in range(3):
        contender.take_step()
    wait_for(device)
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 4:
        # Several steps at a time: nothing waits between the steps of a real run either.
        begin = time.perf_counter()
        for _ in range(4):
            contender.take_step()
        wait_for(device)
        times.append((time.perf_counter() - begin) / 4)
    memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    del contender
    clear(device)
    return Found(statistics.median(times), memory, first)


def clear(device: torch.device) -> None:
    """Forget the last contender."""
    torch.compiler.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


@contextmanager
def trying(tried: Try) -> Generator[None]:
    """Inside the block the step is computed in that way."""
    chunked = partial(weighted_cross_entropy, chunk=tried.chunk)
    targets.weighted_cross_entropy, before = chunked, targets.weighted_cross_entropy  # ty: ignore
    order = [ATTENTION[tried.attention]] if tried.attention != "default" else []
    order += [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    chosen = (
        sdpa_kernel(order, set_priority=True) if tried.attention != "default" else nullcontext()
    )
    try:
        with chosen:
            yield
    finally:
        targets.weighted_cross_entropy = before


def describe(
    name: str, size: str, rows: int, length: int, found: Found, flops: float, peak: float
) -> list[str]:
    """A row of the table."""
    rate = rows * length / found.seconds
    return [
        size,
        f"{rows} × {length}",
        name,
        f"{1e3 * found.seconds:.1f}",
        f"{rate:,.0f}",
        f"{rate * flops / 1e12:.3g}",
        f"{rate * flops / peak:.1%}",
        "–" if found.memory is None else format_bytes(found.memory),
        f"{found.first:.0f}",
    ]


HEADER = [
    "size",
    "batch",
    "step",
    "ms",
    "tokens/s",
    "TFLOP/s",
    "of peak",
    "memory",
    "first step, s",
]


def compare(options: argparse.Namespace, device: torch.device, peak: float) -> list[list[str]]:
    """Ours and the plain module on every size."""
    rows_of = find_rows(options, device)
    tried = Try(options.compile, options.recompute, options.chunk, options.attention)
    table = []
    for size in options.sizes.split(","):
        rows, length = rows_of.get(size, 2), options.length
        config = preset(size, context=length)
        flops = count_training_flops(config, length)
        world = World(device)
        with trying(tried):
            ours = measure(
                lambda c=config, r=rows, w=world: make_trainer(c, r, options.length, w, tried),
                device,
                options.seconds,
            )
        plain = measure(
            lambda c=config, r=rows: PeerTraining(c, r, options.length, device),
            device,
            options.seconds,
        )
        table.append(describe("plain", size, rows, length, plain, flops, peak))
        table.append(describe("unmask", size, rows, length, ours, flops, peak))
        table[-1][4] += f" ({plain.seconds / ours.seconds:.2f} ×)"
        print(" ".join(table[-2]), " ".join(table[-1]), sep="\n", flush=True)
    return table


def try_out(options: argparse.Namespace, device: torch.device, peak: float) -> list[list[str]]:
    """One size, computed in several ways."""
    size, length = options.tries, options.length
    rows = ROWS.get(device.type, {}).get(size, 2)
    config = preset(size, context=length)
    flops = count_training_flops(config, length)
    tries = [
        Try("off"),
        Try("on"),
        Try("on", attention="flash"),
        Try("on", attention="cudnn"),
        Try("on", chunk=2048),
        Try("on", chunk=8192),
        Try("on", recompute=True),
        Try("on", optimiser="muon"),
        Try("on", cut_inside=False),
    ]
    table = []
    for tried in tries:
        with trying(tried):
            found = measure(
                lambda tried=tried: make_trainer(config, rows, length, World(device), tried),
                device,
                options.seconds,
            )
        table.append(describe(tried.label, size, rows, length, found, flops, peak))
        print(" ".join(table[-1]), flush=True)
    return table


def profile_steps(options: argparse.Namespace, device: torch.device) -> None:
    """Print the longest kernels of four steps of one size."""
    size, length = options.profile, options.length
    rows, config = find_rows(options, device).get(size, 2), preset(size, context=length)
    tried = Try(options.compile, options.recompute, options.chunk, options.attention)
    with trying(tried):
        trainer = make_trainer(config, rows, length, World(device), tried)
        for _ in range(6):
            trainer.take_step()
        wait_for(device)
        print(f"{size}, {rows} × {length}, 4 steps:")
        show_kernels(lambda: [trainer.take_step() for _ in range(4)])


def find_rows(options: argparse.Namespace, device: torch.device) -> dict[str, int]:
    """Rows of a step by size, the ones that were named before the usual ones."""
    named = (pair.split("=") for pair in options.rows)
    return ROWS.get(device.type, {}) | {size: int(count) for size, count in named}


def scale(processes: int, seconds: float) -> str:
    """A line on 1 and on `processes` processes of one thread each, the same rows for each."""
    rates = []
    for count in (1, processes):
        with tempfile.NamedTemporaryFile("r") as file:
            launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
            words = [sys.executable, *launch, __file__, "--worker", file.name]
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            words += ["--seconds", str(seconds)]
            subprocess.run(words, check=True, env=environment, stdout=sys.stderr)
            rates.append(float(file.read()))
    gain = rates[1] / rates[0]
    return (
        f"Data parallel on the CPU over gloo, one thread a process, 6M shapes, 4 × 128 tokens a "
        f"process: {rates[0]:,.0f} tokens/s on 1 process, {rates[1]:,.0f} on {processes}: "
        f"{gain:.2f} × ({gain / processes:.0%} of perfect)."
    )


def work(out: Path, seconds: float) -> None:
    """What each process of the scaling line does."""
    with join("cpu") as world:
        config = preset("6M", context=128)
        trainer = make_trainer(config, 4 * world.size, 128, world, Try("off"))
        trainer.take_step()
        world.wait()
        # As many steps on every process, so that none waits in vain.
        start = time.perf_counter()
        trainer.take_step()
        each = float(world.share(time.perf_counter() - start))
        steps = max(3, int(seconds / each))
        world.wait()
        start = time.perf_counter()
        for _ in range(steps):
            trainer.take_step()
        world.wait()
        rate = steps * 4 * world.size * 128 / (time.perf_counter() - start)
        if world.leads:
            out.write_text(str(rate))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--sizes", default="19M,85M,170M,1028M")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--rows", nargs="*", default=[], help="such as 19M=32 1028M=8")
    parser.add_argument("--seconds", type=float, default=6.0, help="for each contender")
    parser.add_argument("--compile", default="auto", choices=("auto", "on", "off"))
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--chunk", type=int, default=4096)
    parser.add_argument("--attention", default="default", choices=("default", "cudnn", "flash"))
    parser.add_argument("--tries", default=None, metavar="SIZE", help="ways to compute one size")
    parser.add_argument("--profile", default=None, metavar="SIZE", help="its longest kernels")
    parser.add_argument("--processes", type=int, default=0, help="add the line on scaling")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.worker is not None:
        work(options.worker, options.seconds)
        return
    device = resolve_device(options.device)
    # A stored graph is found again whatever kernel was asked for: every contender makes its own.
    torch.compiler.config.force_disable_caches = True
    if options.profile:
        profile_steps(options, device)
        return
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    peak = measure_peak(device, dtype, seconds=1.0)
    table = try_out(options, device, peak) if options.tries else compare(options, device, peak)
    title = f"Training {options.tries} in several ways" if options.tries else "Training"
    text = (
        f"# {title}, {device.type}, {str(dtype).removeprefix('torch.')} products, float32 "
        f"weights\n\n{describe_run(device)}.\nPeak: {format_number(peak)}FLOP/s, measured.\n\n"
        f"{format_table(HEADER, table)}\n"
    )
    if options.processes:
        text += f"\n{scale(options.processes, options.seconds)}\n"
    write_record(text, options.out)


if __name__ == "__main__":
    main()
