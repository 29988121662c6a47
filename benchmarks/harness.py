"""Likelihood requests of multiple-choice tasks: all together, against one at a time.

    python benchmarks/harness.py --size 1028M --dtype bfloat16 --questions 250 \\
        --out docs/results/harness-cuda.md
    python benchmarks/harness.py --device cpu --size 6M --vocab 2048 --context 256 --questions 8

Questions of 40 to 120 tokens with four choices each, of one token (as MMLU has them) and of 2 to
12 (as ARC and HellaSwag), under a masked network with random weights. One at a time is
`unmask.likelihood`, which batches the draws of one request, as the peers' classes do; it is timed
on some requests in the same run, with the same draws, and extrapolated to all.
"""

import argparse
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from timing import describe_run, format_table, write_record
from torch import Tensor

from unmask.base.devices import resolve_device, resolve_dtype
from unmask.harness.scoring import LikelihoodRequest, RequestScorer
from unmask.harness.settings import HarnessSettings
from unmask.net.counts import count_flops
from unmask.net.model import Blueprint, Model
from unmask.net.presets import preset
from unmask.net.transformer import Transformer
from unmask.objectives.likelihood import likelihood

CHOICES = 4


@dataclass(frozen=True, repr=False)
class CountingModel(Model):
    """Counts the operations of its passes, heads at all positions left out."""

    passes: list[int] = field(default_factory=list)

    def logits(self, tokens: Any, *given: Any, **named: Any) -> Tensor:
        rows, length = tokens.shape
        self.passes.append(rows * count_flops(self.net.config, length, 1))
        return super().logits(tokens, *given, **named)

    def take_count(self) -> int:
        """Operations since it was last asked."""
        total = sum(self.passes)
        self.passes.clear()
        return total


def make_model(size: str, vocab: int, context: int, place: dict) -> CountingModel:
    rows: dict[str, Any] = {} if vocab == 0 else {"vocab_size": vocab + 1, "num_logits": vocab}
    config = preset(size, context=context, **rows)
    with torch.device(place["device"]):
        net = Transformer(config).to(place["dtype"]).eval().requires_grad_(False)
    return CountingModel("masked", net, Blueprint(config, "masked", config.vocab_size - 1))


def make_requests(questions: int, shortest: int, longest: int, vocab: int) -> list:
    """Choices of `shortest` to `longest` tokens; those of one question share context and seed."""
    draw = torch.Generator().manual_seed(0)

    def tokens(low: int, high: int) -> list[int]:
        n = int(torch.randint(low, high + 1, (1,), generator=draw))
        return torch.randint(0, vocab, (n,), generator=draw).tolist()

    requests = []
    for seed in range(questions):
        context = tokens(40, 120)
        requests += [
            LikelihoodRequest(context, tokens(shortest, longest), seed) for _ in range(CHOICES)
        ]
    return requests


def time_together(
    model: CountingModel, requests: list, settings: HarnessSettings
) -> tuple[float, dict]:
    scorer = RequestScorer(model, settings)
    dict(scorer.score(requests[:8], "warming up", is_greedy_asked=False))
    model.take_count()
    start = time.perf_counter()
    scored = dict(scorer.score(requests, "together", is_greedy_asked=False))
    return time.perf_counter() - start, scored


def time_alone(
    model: CountingModel, requests: list, settings: HarnessSettings, some: list[int]
) -> tuple[float, dict[int, float]]:
    """Seconds per request, and the costs; the first request runs once more, to warm up."""
    costs, times = {}, []
    for i in [some[0], *some]:
        one = requests[i]
        start = time.perf_counter()
        cost = likelihood(
            model,
            one.tokens,
            one.context,
            settings.likelihood,
            strata=settings.strata,
            repeats=settings.repeats,
            seed=one.seed,
        )
        times.append(time.perf_counter() - start)
        costs[i] = cost.nll
        if len(times) == 1:
            model.take_count()
    return sum(times[1:]) / len(some), costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--size", default="1028M")
    parser.add_argument("--vocab", type=int, default=0, help="0: the preset's")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--questions", type=int, default=250)
    parser.add_argument("--alone", type=int, default=24, help="requests to run one at a time")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device, dtype = resolve_device(options.device), resolve_dtype(options.dtype)
    place = {"device": device, "dtype": dtype}
    model = make_model(options.size, options.vocab, options.context, place)
    vocab = model.net.config.logit_rows
    lines, gaps = [], []
    for name, shortest, longest in (("1", 1, 1), ("2 to 12", 2, 12)):
        requests = make_requests(options.questions, shortest, longest, vocab)
        some = list(range(0, len(requests), max(1, len(requests) // options.alone)))
        for method in ("exact_k", "chain"):
            settings = HarnessSettings(likelihood=method)
            together, scored = time_together(model, requests, settings)
            speed = model.take_count() / together
            some = some[: options.alone]
            alone, costs = time_alone(model, requests, settings, some)
            speed_alone = model.take_count() / (alone * len(some))
            gaps += [abs(scored[i].estimate.nll / cost - 1) for i, cost in costs.items()]
            whole = alone * len(requests)
            lines.append(
                [name, method, f"{together:.2f}", f"{whole:.1f}", f"{whole / together:.1f} ×"]
                + [f"{each / 1e12:.3g}" for each in (speed, speed_alone)]
            )
    header = ["tokens of a choice", "likelihood", "seconds", "one at a time", "faster"]
    header += ["TFLOP/s", "one at a time, TFLOP/s"]
    write_record(
        f"# Likelihoods of multiple-choice requests, {device.type}, {options.dtype}\n\n"
        f"{describe_run(device)}.\n{options.questions} questions of 40 to 120 tokens with "
        f"{CHOICES} choices, {options.size} shapes with random weights; exact-k draws 16 x 8 rows "
        f"of masks.\n\n{format_table(header, lines)}\n\n"
        f"One at a time: `unmask.likelihood` with the same draws, timed on {options.alone} "
        f"requests in the same run and extrapolated. The costs differ by at most "
        f"{max(gaps):.1e} of themselves. Where one request alone keeps the device busy, requests "
        "together gain by rows that they share, and by nothing else.\n",
        options.out,
    )


if __name__ == "__main__":
    main()
