"""Small networks on a GPU, where launching a kernel takes longer than running it.

    python benchmarks/small.py --out docs/results/small-cuda.md
    python benchmarks/small.py --device cpu --tiny

Training, the table of recall and traces of SmolLM2-135M's shapes, with random weights, and traces
of the shipped pair: launched kernel by kernel and replayed as graphs, in one run, beside the time
that the arithmetic alone would take at the measured peak. What happens once (compiling, capturing)
is reported apart.
"""

import argparse
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import recall
import torch
import tracing
from timing import describe_run, format_table, show_kernels, write_record
from trace_counts import count_trace_flops
from training import Try, clear, make_trainer

from unmask.data.corpus import TESTS
from unmask.data.reversal_corpus import make_reversal_corpus
from unmask.measures.recall import RecallSettings
from unmask.net import graphs
from unmask.net.config import NetConfig
from unmask.net.counts import count_flops
from unmask.net.loading import load
from unmask.net.model import Model
from unmask.net.presets import preset
from unmask.tracing.settings import Tracing
from unmask.tracing.windows import default_window
from unmask.training.parallel import World
from unmask.training.speed import count_training_flops, measure_peak, wait_for
from unmask.training.trainer import Trainer

SIZE = "smollm2-135m"
WAYS = ("launched", "replayed")
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
    case: Training, config: NetConfig, graphs: bool, device: torch.device, warm_up: int
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
    take_steps(trainers, warm_up, device)
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


def measure_training(case: Training, device: torch.device, options) -> list[str]:
    """A row of the table: all steps, from some that were timed."""
    config = preset(options.size)
    peak = measure_peak(device, torch.bfloat16)
    tokens = case.trainers * case.steps * case.rows * case.length
    floor = tokens * count_training_flops(config, case.length) / peak
    warm_up = options.steps if options.tiny else WARM_UP
    timed = max(1 if options.tiny else 10, options.steps // case.trainers)
    both, replays = {}, 0
    for label in WAYS:
        is_replayed = label == "replayed"
        trainers, first = start_trainers(case, config, is_replayed, device, warm_up)
        each = take_steps(trainers, timed, device) / timed
        both[label] = Timed(each * case.steps, max(0.0, first - each * warm_up))
        replays = sum(trainer.graphs.replays for trainer in trainers if trainer.graphs)
        if options.profile and is_replayed:
            show_kernels(partial(take_steps, trainers, timed, device))
        del trainers
        clear(device)
    shapes = f"{case.trainers} × {case.steps} × {case.rows} × {case.length}"
    return describe(case.label, shapes, both, case.limit, floor, f"{replays} replays")


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
    once: float
    """Seconds beyond these in the first try: compiling, recording."""
    found: list = field(default_factory=list)


def time_both(
    run: Callable[[bool], tuple[list, int]], device: torch.device, options
) -> dict[str, Timed]:
    """The same work launched and replayed.

    `run` takes whether it is to do all, or a part that is enough for a first try, and returns what
    came of it and how many times it did the work.
    """

    def time_run(everything: bool) -> tuple[float, list, int]:
        wait_for(device)
        start = time.perf_counter()
        found, times = run(everything)
        wait_for(device)
        return time.perf_counter() - start, found, times

    both = {}
    for label in WAYS:
        with launching() if label == "launched" else nullcontext():
            first, _, tried = time_run(False)
            seconds, found, times = time_run(label == "replayed")
        each = seconds / times
        both[label] = Timed(each, max(0.0, first - tried * each), found)
    if options.profile:
        show_kernels(partial(run, False))
    return both


def describe(
    what: str, shapes: str, both: dict[str, Timed], limit: float, floor: float, note: str
) -> list[str]:
    """A row of the table."""
    before, after = both["launched"], both["replayed"]
    row = [what, shapes, f"{before.seconds:.3g}", f"{after.seconds:.3g}", f"{limit:g}"]
    row += [f"{floor:.2g}", f"{floor / after.seconds:.0%}"]
    row += [f"{before.once:.1f}, {after.once:.1f}", note]
    print(" | ".join(row), flush=True)
    return row


def measure_recall(device: torch.device, options) -> list[str]:
    """The whole table: sampling at all step counts, likelihoods, metrics and files."""
    corpus = make_reversal_corpus(30, 0)
    texts = [fact.text for facts in corpus.splits.values() for fact in facts]
    place = {"device": device, "dtype": torch.bfloat16}
    model = recall.make_model("masked", options.size, 0, 2048, texts, place)
    settings = RecallSettings(guidance=0.8, limit=options.prompts, controls=False, length=52)
    steps, config = sum(settings.steps), model.net.config

    def run(_all: bool) -> tuple[list, int]:
        rows = recall.run_table(model, corpus, settings)[2]
        return [row["generation"] for row in rows], 1

    both = time_both(run, device, options)
    texts, others = (each.found for each in both.values())
    prompts = len(texts) // len(settings.steps)
    flops = 2 * steps * prompts * count_flops(config, 52, 0)
    same = sum(one == other for one, other in zip(texts, others, strict=True))
    floor = flops / measure_peak(device, torch.bfloat16)
    what = f"recall, {len(TESTS)} × {options.prompts} prompts"
    return describe(what, options.size, both, 9, floor, f"{same} of {len(texts)} texts equal")


def measure_traces(
    model: Model, size: str, limit: float, device: torch.device, options
) -> list[str]:
    """A row of the table: seconds a fact, over several facts."""
    vocabulary, causal = model.net.config.logit_rows - 1, model.kind == "causal"
    draw = torch.Generator().manual_seed(0)
    facts = []
    samples = 1 if options.tiny else tracing.SAMPLES
    length = min(24 if options.tiny else tracing.LENGTH, model.net.config.context - 1)
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
    noise = tracing.Noise(tracing.measure_sigma(model, subjects), samples)
    window = min(tracing.WINDOW, default_window(model.net.config.layers))
    settings = Tracing(parts=tracing.PARTS, window=window, corruption=noise)

    def run(everything: bool) -> tuple[list, int]:
        some = facts if everything else facts[:TRIED]
        grids = [
            tracing.trace_tokens(model, tokens, tracing.SUBJECT, answer, settings)
            for tokens, answer in some
        ]
        return grids, len(some)

    both = time_both(run, device, options)
    grids, others = (each.found for each in both.values())
    worst = max(
        float((one.effects(part) - other.effects(part)).abs().max())
        for one, other in zip(grids, others, strict=False)
        for part in tracing.PARTS
    )
    # Rows of the network that are read: a causal one's row i predicts position i + 1.
    read = [at - causal for at in facts[0][1]]
    flops = count_trace_flops(
        model.net.config, length, samples, read, tracing.PARTS, window,
        same_before=tracing.SUBJECT[0],
    )  # fmt: skip
    floor = flops / measure_peak(device, torch.bfloat16)
    note = f"effects differ by {worst:.1e} at most"
    return describe(f"a fact traced, {length} tokens", size, both, limit, floor, note)


HEADER = ["what", "shapes", "before: launched, s", "after: replayed, s", "asked, s", "floor, s"]
HEADER += ["floor / after", "once, s (before, after)", "note"]
JOBS = ("recall", "traces", "training")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=120, help="timed, of all trainers together")
    parser.add_argument("--facts", type=int, default=30, help="traced")
    parser.add_argument("--prompts", type=int, default=300, help="of each split")
    parser.add_argument("--size", default=SIZE, help="a preset")
    parser.add_argument("--only", nargs="*", choices=JOBS, default=JOBS)
    parser.add_argument("--profile", action="store_true", help="print the longest kernels")
    parser.add_argument("--tiny", action="store_true", help="every part at a size for a CPU")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.tiny:
        options.size, options.prompts, options.facts, options.steps = "6M", 1, 1, 2
    device, rows = torch.device(options.device), []
    if "recall" in options.only:
        rows.append(measure_recall(device, options))
        clear(device)
    if "traces" in options.only:
        for kind in ("masked", "causal"):
            model = tracing.make_model(options.size, kind == "causal", device, torch.bfloat16)
            size = f"{options.size}, {kind}"
            rows.append(measure_traces(model, size, 0.9, device, options))
        for name in ("reversal-mdm", "reversal-ar"):
            model = load(name, device=options.device, dtype="bfloat16")
            rows.append(measure_traces(model, name, 0.1, device, options))
        del model
        clear(device)
    if "training" in options.only:
        for case in TRAININGS:
            if options.tiny:
                case = replace(case, rows=2, length=16)
            rows.append(measure_training(case, device, options))
    text = (
        f"# Small networks, {options.device}, bfloat16\n\n{describe_run(device)}.\n"
        f"The shapes of {options.size} with random weights, and the shipped pair's. Training: "
        "trainers × steps × rows × tokens, bfloat16 products and float32 weights; times are of all "
        f"steps, from {options.steps} that were timed. The floor is the arithmetic by closed form "
        "at the measured peak; what happens once (compiling, recording) stands apart.\n\n"
        f"{format_table(HEADER, rows)}\n"
    )
    write_record(text, options.out)


if __name__ == "__main__":
    main()
