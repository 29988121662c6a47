"""The toy experiment: every variant learns the language, speaks it, and is measured."""

import math
import tempfile
import time
from collections import Counter
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from unmask.base.config import build, check_arguments
from unmask.base.engines import LocalEngine
from unmask.base.files import told_as_sentence, write_json
from unmask.base.reading import read_json
from unmask.base.seeds import derive_seed
from unmask.base.streams import RowStreams
from unmask.base.work import CallWork, run_jobs
from unmask.net.transformer import Transformer
from unmask.objectives.batch import draw_times
from unmask.toy.language import (
    KINDS,
    LENGTH,
    classify,
    data_law,
    decode,
    empirical_law,
    encode,
    list_sentences,
    noise_floor,
    total_variation,
)
from unmask.toy.settings import ToySettings
from unmask.toy.variants import VARIANTS, Variant

COPIES = 2
"""How often each sentence stands in a batch: every batch is the data law itself."""
LEARNING_RATE = 5e-3
TIMES = (0.0, 0.25, 0.5, 0.75, 1.0)
SHOWN = "dog s are our friend s"
NUM_EXAMPLES = 4


@dataclass(frozen=True)
class ToyOutcome:
    """What one variant learned: its loss, its samples, their errors."""

    name: str
    loss: float
    """Nats per unit, after training."""
    distance: float
    """Total variation between the law of the samples and the data law."""
    kinds: dict[str, float]
    """Share of the samples with each kind of error; `none` is the share of sentences."""
    examples: list[str]
    forward: dict[str, str] = field(default_factory=dict)
    """One sentence at some times of the forward process; empty where there is none."""
    seconds: float = 0.0


@dataclass(frozen=True)
class ToyReport:
    """The outcomes of all variants, beside what even a perfect one would have."""

    settings: ToySettings
    least_loss: float
    """Entropy of the data law in nats per unit: no bound can be below it."""
    floor: float
    """The distance that as many true draws have."""
    outcomes: list[ToyOutcome]


@check_arguments()
def run_toy(
    settings: ToySettings | None = None, out: str | Path = "runs/toy", **changes: Any
) -> ToyReport:
    """The report on the variants, also written to `toy.json` in `out`.

    Args:
        settings: Which variants learn for how long, and how many samples are drawn.
        out: The folder of `toy.json`.
        changes: Settings by name, such as `samples=1000`.
    """
    settings = build(ToySettings, changes, "unmask.run_toy", settings)
    names, out = settings.variants, Path(out)
    with told_as_sentence(out):
        out.mkdir(parents=True, exist_ok=True)
    # Tensors this small gain nothing from threads: variants run side by side on one core each.
    engine = LocalEngine(max(1, min(torch.get_num_threads(), len(names))))
    costs = {name: float(settings.steps or VARIANTS[name].training_steps) for name in names}
    with tempfile.TemporaryDirectory(prefix="toy-") as scratch:
        work = CallWork(Path(scratch), partial(_measure, settings))
        with closing(run_jobs(work, costs, engine, "learning the toy language")) as jobs:
            for _, error in jobs:
                if error is not None:
                    raise error
        outcomes = [ToyOutcome(**read_json(work.place(name))) for name in names]
    least_loss = math.log(len(list_sentences())) / LENGTH
    floor = noise_floor(settings.samples, settings.seed)
    report = ToyReport(settings, least_loss, floor, outcomes)
    write_json(out / "toy.json", asdict(report))
    return report


def _measure(settings: ToySettings, name: str) -> dict[str, Any]:
    return asdict(measure(name, settings))


def measure(name: str, settings: ToySettings) -> ToyOutcome:
    """Train one variant, draw from it, and compare what it says with the language."""
    start = time.perf_counter()
    variant, seed = VARIANTS[name], derive_seed(settings.seed, "toy", name)
    net = learn(variant, settings.steps or variant.training_steps, seed)
    rows = decode(speak(variant, net, settings.samples, seed))
    counts = Counter(classify(row) for row in rows)
    return ToyOutcome(
        name,
        find_loss(variant, net, seed),
        total_variation(empirical_law(rows), data_law()),
        {kind: counts[kind] / len(rows) for kind in KINDS},
        [" ".join(row) for row in rows[:NUM_EXAMPLES]],
        follow_noise(variant, net, seed),
        time.perf_counter() - start,
    )


def learn(variant: Variant, steps: int, seed: int) -> Transformer:
    """A network trained on the whole language at every step."""
    net = make_network(variant, seed)
    optimizer = torch.optim.AdamW(net.parameters(), LEARNING_RATE, betas=(0.9, 0.99), fused=True)
    warm_up = max(1, steps // 10)
    decay = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm_up, 1 - step / steps)
    )
    x0 = encode(list_sentences()).repeat(COPIES, 1)
    noise = RowStreams.make(derive_seed(seed, "noise"), len(x0))
    times = RowStreams.make(derive_seed(seed, "times"), 1)
    for step in range(steps):
        loss = variant.at(step / steps).loss(net, x0, draw_times(times, len(x0)), noise)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        decay.step()
    return net


@torch.no_grad()
def find_loss(variant: Variant, net: Transformer, seed: int, copies: int = 100) -> float:
    """The loss over the whole language, each sentence at many times."""
    x0 = encode(list_sentences()).repeat(copies, 1)
    streams = RowStreams.make(derive_seed(seed, "loss"), len(x0))
    times = draw_times(RowStreams.make(derive_seed(seed, "loss times"), 1), len(x0))
    return float(variant.at(1.0).loss(net, x0, times, streams))


def make_network(variant: Variant, seed: int) -> Transformer:
    """A network with weights for its small width.

    The usual deviation of 0.02 suits widths in the hundreds; at this one attention would start out
    blind, and take thousands of steps to compare two words.
    """
    net = variant.prepare(Transformer(variant.config, seed))
    with torch.no_grad():
        for name, weight in net.named_parameters():
            if weight.ndim > 1 and not name.startswith(("time.", "time_warp.")):
                weight *= 4
    return net


def speak(
    variant: Variant, net: Transformer, number: int, seed: int, batch: int = 10_000
) -> Int[Tensor, "N L"]:
    """That many samples, drawn a batch at a time."""
    parts = (range(number)[first : first + batch] for first in range(0, number, batch))
    with torch.no_grad():
        return torch.cat([variant.sample(net, RowStreams.make(seed, part)) for part in parts])


@torch.no_grad()
def follow_noise(variant: Variant, net: Transformer, seed: int) -> dict[str, str]:
    """One sentence at each of `TIMES`, every time with the same draws, so that noise adds up."""
    streams = RowStreams.make(seed, ["forward"] * len(TIMES))
    x0 = encode([tuple(SHOWN.split())] * len(TIMES))
    xt = variant.noise(net, x0, torch.tensor(TIMES, dtype=torch.float64), streams)
    if xt is None:
        return {}
    return {f"{t:g}": " ".join(row) for t, row in zip(TIMES, decode(xt), strict=True)}
