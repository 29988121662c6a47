"""Small networks on a GPU, where launching a kernel takes longer than running it.

    python benchmarks/small.py --out docs/results/small-cuda.md

Training, the table of recall and traces of SmolLM2-135M's shapes, with random weights, and traces
of the shipped pair: launched kernel by kernel and replayed as graphs, in one run, beside the time
that the arithmetic alone would take at the measured peak. What happens once (compiling, capturing)
is reported apart.
"""

import argparse
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import recall
import torch
import tracing
from timing import describe_run, format_table, write_record
from torch.profiler import ProfilerActivity, profile
from training import Try, clear, make_trainer

from unmask.data.reversal_corpus import make_reversal_corpus
from unmask.measures.recall import RecallSettings
from unmask.net import graphs
from unmask.net.config import NetConfig
from unmask.net.counts import count_flops
from unmask.net.loading import load
from unmask.net.model import Model
from unmask.net.presets import preset
from unmask.tracing.counts import count_trace_flops
from unmask.tracing.settings import Tracing
from unmask.tracing.windows import default_window
from unmask.training.parallel import World
from unmask.training.speed import count_training_flops, measure_peak, wait_for
from unmask.training.trainer import Trainer

SMOLLM2 = preset("smollm2-135m")
TRIED = 4
"""Facts that are traced launch by launch, and before the clock starts."""
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
    for label in ("launched", "replayed"):
        is_replayed = label == "replayed"
        trainers, first = start_trainers(case, config, is_replayed, device)
        timed = max(10, options.steps // case.trainers)
        seconds = take_steps(trainers, timed, device) / timed * case.steps
        replays = sum(trainer.graphs.replays for trainer in trainers if trainer.graphs)
        print(f"{case.label}, {label}: {seconds:.1f} s, {replays} replays", flush=True)
        if options.profile and is_replayed:
            show_kernels(partial(take_steps, trainers, 10, device))
        rows.append(
            [
                case.label,
                f"{case.trainers} × {case.steps} × {case.rows} × {case.length}",
                label,
                f"{seconds:.1f}",
                f"{case.limit:.0f}" if is_replayed else "",
                f"{floor:.1f}",
                f"{floor / seconds:.0%}",
                f"{first:.0f}",
            ]
        )
        del trainers
        clear(device)
    return rows


def show_kernels(call: Callable[[], object]) -> None:
    """Print which kernels the device's time goes to."""
    with profile(activities=[ProfilerActivity.CUDA]) as taken:
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    events = sorted(taken.key_averages(), key=lambda event: -event.self_device_time_total)
    total = sum(event.self_device_time_total for event in events) / 1e3
    print(f"{1e3 * seconds:.1f} ms, kernels {total:.1f} ms")
    for event in events[:24]:
        share = event.self_device_time_total / 1e3 / total
        print(f"  {share:6.1%} {event.count:6d} {event.key[:110]}", flush=True)


@contextmanager
def launching() -> Generator[None]:
    """Inside the block nothing is replayed."""
    recorded = graphs.MOST_FLOPS
    graphs.MOST_FLOPS = 0.0
    try:
        yield
    finally:
        graphs.MOST_FLOPS = recorded


@dataclass(frozen=True)
class Timed:
    """What one way of running took, and what came of it."""

    seconds: float
    first: float
    """Of a first try, what happens once included."""
    found: list


def time_both(run: Callable[[bool], tuple[list, float]], options) -> dict[str, Timed]:
    """The same work launched and replayed.

    `run` takes whether it is to do all, or a part that is enough for a first try, and returns what
    came of it and its seconds.
    """
    timed = {}
    for label in ("launched", "replayed"):
        start = time.perf_counter()
        with launching() if label == "launched" else nullcontext():
            run(False)
            first = time.perf_counter() - start
            found, seconds = run(label == "replayed")
        timed[label] = Timed(seconds, first, found)
    if options.profile:
        show_kernels(partial(run, False))
    return timed


def list_rows(
    what: str, size: str, timed: dict[str, Timed], limit: float, floor: float, equal: str
) -> list[list[str]]:
    """Rows of the table of recall and traces."""
    rows = []
    for label, each in timed.items():
        print(f"{what}, {size}, {label}: {each.seconds:.3f} s", flush=True)
        is_ours = label == "replayed"
        cells = [f"{each.seconds:.3g}", f"{limit:g}" if is_ours else "", f"{floor:.2g}"]
        rows.append([what, size, label, *cells, f"{each.first:.1f}", equal if is_ours else ""])
    return rows


def measure_recall(device: torch.device, options) -> list[list[str]]:
    """The whole table: sampling at all step counts, likelihoods, metrics and files."""
    corpus = make_reversal_corpus(30, 0)
    texts = [fact.text for facts in corpus.splits.values() for fact in facts]
    place = {"device": device, "dtype": torch.bfloat16}
    model = recall.make_model("masked", "smollm2-135m", 0, 2048, texts, place)
    settings = RecallSettings(guidance=0.8, limit=300, controls=False, length=52)
    steps, config = sum(settings.steps), model.net.config

    def run(_all: bool) -> tuple[list, float]:
        seconds, _, rows = recall.run_table(model, corpus, settings)
        return [row["generation"] for row in rows], seconds

    timed = time_both(run, options)
    texts, others = (each.found for each in timed.values())
    prompts = len(texts) // len(settings.steps)
    flops = 2 * steps * prompts * count_flops(config, 52, 0)
    same = sum(one == other for one, other in zip(texts, others, strict=True))
    equal = f"{same} of {len(texts)} texts"
    floor = flops / measure_peak(device, torch.bfloat16)
    return list_rows("recall, 4 × 300 prompts", "135M", timed, 9, floor, equal)


def measure_traces(
    model: Model, size: str, limit: float, device: torch.device, options
) -> list[list[str]]:
    """Seconds a fact, over several facts."""
    vocabulary, causal = model.net.config.logit_rows - 1, model.kind == "causal"
    draw = torch.Generator().manual_seed(0)
    facts = []
    length = min(tracing.LENGTH, model.net.config.context - 1)
    prompt = length - (tracing.LENGTH - tracing.PROMPT)
    for _ in range(options.facts):
        tokens = torch.randint(0, vocabulary, (length + 1,), generator=draw)
        answer = {length: int(tokens[-1])}
        if not causal:
            answer = {at: int(tokens[at]) for at in range(prompt, prompt + tracing.NUM_ANSWERS)}
            assert model.mask_id is not None
            tokens[prompt:] = model.mask_id
        facts.append((tokens[:length], answer))
    subjects = [tokens[slice(*tracing.SUBJECT)].tolist() for tokens, _ in facts]
    noise = tracing.Noise(tracing.measure_sigma(model, subjects), tracing.SAMPLES)
    window = min(tracing.WINDOW, default_window(model.net.config.layers))
    settings = Tracing(parts=tracing.PARTS, window=window, corruption=noise)

    def run(everything: bool) -> tuple[list, float]:
        wait_for(device)
        start = time.perf_counter()
        some = facts if everything else facts[:TRIED]
        grids = [
            tracing.trace_tokens(model, tokens, tracing.SUBJECT, answer, settings)
            for tokens, answer in some
        ]
        wait_for(device)
        return grids, (time.perf_counter() - start) / len(some)

    timed = time_both(run, options)
    grids, others = (each.found for each in timed.values())
    worst = max(
        float((one.effects(part) - other.effects(part)).abs().max())
        for one, other in zip(grids, others, strict=False)
        for part in tracing.PARTS
    )
    # Rows of the network that are read: a causal one's row i predicts position i + 1.
    read = [at - causal for at in facts[0][1]]
    flops = count_trace_flops(
        model.net.config, length, tracing.SAMPLES, read, tracing.PARTS, window,
        same_before=tracing.SUBJECT[0],
    )  # fmt: skip
    floor = flops / measure_peak(device, torch.bfloat16)
    return list_rows(
        f"a fact traced, {length} tokens",
        size,
        timed,
        limit,
        floor,
        f"effects differ by {worst:.1e} at most",
    )


HEADER = ["what", "trainers × steps × batch", "steps are", "s", "asked", "floor, s", "of peak"]
INFERENCE = ["what", "shapes", "kernels are", "s", "asked", "floor, s", "first try, s", "equal"]
WAYS = ("training", "recall", "traces")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=120, help="timed, of all trainers together")
    parser.add_argument("--facts", type=int, default=30, help="traced")
    parser.add_argument("--only", nargs="*", choices=WAYS, default=WAYS)
    parser.add_argument("--profile", action="store_true", help="print the longest kernels")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    text = (
        f"# Small networks, {options.device}, bfloat16\n\n{describe_run(device)}.\n"
        "SmolLM2-135M's shapes with random weights, and the shipped pair's. The floor is the "
        "arithmetic by closed form at the measured peak; what happens once (compiling, recording) "
        "stands apart.\n"
    )
    rows = []
    if "recall" in options.only:
        rows += measure_recall(device, options)
        clear(device)
    if "traces" in options.only:
        for causal in (False, True):
            model = tracing.make_model("smollm2-135m", causal, device, torch.bfloat16)
            size = "135M, causal" if causal else "135M, masked"
            rows += measure_traces(model, size, 0.9, device, options)
        for name in ("reversal-mdm", "reversal-ar"):
            model = load(name, device=options.device, dtype="bfloat16")
            rows += measure_traces(model, name, 0.1, device, options)
        clear(device)
    if rows:
        text += f"\n## Recall and traces\n\n{format_table(INFERENCE, rows)}\n"
    if "training" in options.only:
        rows = [row for case in TRAININGS for row in measure(case, SMOLLM2, device, options)]
        text += (
            "\n## Training, bfloat16 products, float32 weights\n\nTimes are of all steps, from "
            f"{options.steps} that were timed.\n\n{format_table([*HEADER, 'once, s'], rows)}\n"
        )
    write_record(text, options.out)


if __name__ == "__main__":
    main()
