"""Two versions of the package against each other: forward passes and traces, in turns A B A B.

    mkdir old && git archive v0.1.0 | tar -x -C old
    python benchmarks/compare.py old . --size 1028M --dtype bfloat16 --out docs/results/compare.md

Each turn is a process of its own, which imports the package and the scripts `benchmarks/network.py`
and `benchmarks/tracing.py` of its own tree and measures what these do: forward passes of their
shapes, whole and read at the answer only, and traces of every part. Of each measurement a turn
takes the median of five (of forward passes, of as many as fit into a second), after two calls that
do not count; the table compares the medians over the turns. It exits with 1 where the second tree
is slower than `--limit` times the first.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from timing import describe_run, format_table, time_interleaved, write_record

ROUNDS, WARM_UP = 5, 2
SHORT = 1.0
"""Seconds for which a forward pass is repeated: five of them say more of the host than of it."""
Calls = Iterator[tuple[str, Callable[[], object]]]


def list_forward_passes(size: str, device: torch.device, dtype: torch.dtype) -> Calls:
    """Forward passes of `benchmarks/network.py`, all logits and those of an answer only."""
    import network

    for causal in (False, True):
        config = network.preset(size, causal=causal)
        net = network.Transformer(config).to(device, dtype).eval().requires_grad_(False)
        for batch, length in network.SHAPES[device.type]:
            tokens = torch.arange(batch * length, device=device).view(batch, length) % 32_000
            at = torch.arange(length - network.NUM_ANSWERS, length, device=device)
            name = f"forward, {'causal' if causal else 'masked'}, {batch} × {length}"
            yield name, lambda net=net, tokens=tokens: net(tokens)
            yield f"{name}, answer", lambda net=net, tokens=tokens, at=at: net(tokens, at=at)


def list_traces(size: str, device: torch.device, dtype: torch.dtype) -> Calls:
    """Traces of `benchmarks/tracing.py`, part by part."""
    import tracing

    for causal in (False, True):
        model = tracing.make_model(size, causal, device, dtype)
        tokens, answer = tracing.make_state(model)
        sigma = tracing.measure_sigma(model, [tokens[slice(*tracing.SUBJECT)].tolist()])
        noise = tracing.Noise(sigma, tracing.SAMPLES)
        for part in tracing.PARTS:
            yield (
                f"trace, {'causal' if causal else 'masked'}, {part}",
                lambda model=model, tokens=tokens, answer=answer, part=part, noise=noise: (
                    tracing.trace_tokens(
                        model,
                        tokens,
                        tracing.SUBJECT,
                        answer,
                        parts=(part,),
                        window=tracing.WINDOW,
                        corruption=noise,
                    )
                ),
            )


@torch.inference_mode()
def measure(size: str, device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """Seconds of each measurement in this process, the median of five rounds or more."""
    seconds: dict[str, float] = {}
    for list_calls, spent in ((list_forward_passes, SHORT), (list_traces, 0.0)):
        for name, call in list_calls(size, device, dtype):
            seconds |= time_interleaved({name: call}, device, spent, ROUNDS, WARM_UP)
            print(f"{1e3 * seconds[name]:10.2f} ms  {name}", file=sys.stderr, flush=True)
    return seconds


def run_turn(tree: Path, options: argparse.Namespace) -> dict[str, float]:
    """One tree's measurements, in a process that imports that tree and no other."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(tree), str(tree / "benchmarks")])
    }
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "seconds.json"
        command = [sys.executable, "-P", __file__, "--measure", str(out), "--size", options.size]
        command += ["--device", options.device, "--dtype", options.dtype]
        subprocess.run(command, cwd=tree, env=environment, check=True)
        found: dict[str, Any] = json.loads(out.read_text())
    package = Path(found.pop("package"))
    if not package.is_relative_to(tree):
        raise SystemExit(f"{tree} was to be measured, but {package} was imported.")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("trees", type=Path, nargs="*", help="the two checkouts, A and B")
    parser.add_argument("--size", default="1028M")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--turns", type=int, default=2, help="of each tree, in turn")
    parser.add_argument("--limit", type=float, default=1.02, help="how much slower B may be")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    if options.measure is not None:
        import unmask

        seconds = measure(options.size, device, dtype)
        options.measure.write_text(json.dumps(seconds | {"package": unmask.__file__}))
        return 0
    if len(options.trees) != 2:
        parser.error("expected two trees, A and B")
    turns: dict[str, list[dict[str, float]]] = {"A": [], "B": []}
    for turn in range(options.turns):
        for name, tree in zip(turns, options.trees, strict=True):
            print(f"{name} {turn + 1}: {tree}", file=sys.stderr, flush=True)
            turns[name].append(run_turn(tree.resolve(), options))
    rows, slower = [], []
    for name in turns["A"][0]:
        a, b = ([turn[name] for turn in turns[tree]] for tree in ("A", "B"))
        ratio = statistics.median(b) / statistics.median(a)
        slower += [name] if ratio > options.limit else []
        each = [" ".join(f"{1e3 * second:.2f}" for second in times) for times in (a, b)]
        rows.append([name, *each, f"{ratio:.3f}"])
    text = (
        f"# Two versions, {options.size} shapes, {options.device}, {options.dtype}\n\n"
        f"{describe_run(device)}.\nA is `{options.trees[0]}`, B is `{options.trees[1]}`; "
        f"{options.turns} turns each, medians of {ROUNDS} rounds or more.\n\n"
        f"{format_table(['measurement', 'A, ms', 'B, ms', 'B / A'], rows)}\n"
    )
    write_record(text, options.out)
    for name in slower:
        print(f"slower than {options.limit}: {name}", file=sys.stderr)
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
