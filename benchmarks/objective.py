"""Bounds from the last layer's stream to loss and gradients, against the plain way.

    python benchmarks/objective.py --out docs/results/objective-cuda.md

The plain way computes all logits, then cross-entropy, then drops what was not masked. Ours goes
through the head at masked positions only, a chunk at a time. Both see the same masks, drawn at
antithetic times, and their gradients are compared. So are those of uniform noise, whose bound is
about all positions.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from timing import describe_run, format_table, time_interleaved, write_record

from unmask.base.devices import resolve_device, resolve_dtype
from unmask.base.streams import RowStreams
from unmask.base.units import format_bytes
from unmask.net.transformer import select_rows
from unmask.noise.masked import Masked
from unmask.noise.uniform import Uniform
from unmask.objectives.batch import Batch, draw_times
from unmask.objectives.cross_entropy import weighted_cross_entropy, weighted_terms
from unmask.objectives.masked import get_weighting, noise_batch


def measure_memory(call: Callable[[], object], device: torch.device) -> int | None:
    """Bytes that a call needs at its worst beyond what is held before it; CUDA only."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--width", type=int, default=1792)
    parser.add_argument("--vocab", type=int, default=32_000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device, dtype = resolve_device(options.device), resolve_dtype(options.dtype)

    generator = torch.Generator(device=device).manual_seed(0)
    shape = (options.rows, options.length, options.width)
    x = torch.randn(shape, generator=generator, device=device).to(dtype).requires_grad_()
    head = 0.02 * torch.randn(options.vocab, options.width, generator=generator, device=device)
    head = head.to(dtype).requires_grad_()
    tokens = torch.randint(0, options.vocab, shape[:2], generator=generator, device=device)
    process = Masked(options.vocab, options.vocab)
    t = draw_times(RowStreams.make(0, 1, device), options.rows)
    streams = RowStreams.make(1, options.rows, device)
    noised = noise_batch(process, Batch(tokens), t, streams, get_weighting("smdm"))
    weights = noised.weights.float()

    def plain_masked() -> tuple[torch.Tensor, ...]:
        logits = x @ head.T
        terms = F.cross_entropy(logits.float().flatten(0, 1), tokens.flatten(), reduction="none")
        loss = (terms * weights.flatten()).sum()
        return loss.detach(), *torch.autograd.grad(loss, (x, head))

    def ours_masked() -> tuple[torch.Tensor, ...]:
        rows, targets = select_rows(x, noised.hidden), tokens[noised.hidden]
        loss, _ = weighted_cross_entropy(rows, head, targets, weights[noised.hidden])
        return loss.detach(), *torch.autograd.grad(loss, (x, head))

    uniform = Uniform(options.vocab)
    drawn = uniform.corrupt(tokens, t[:, None], RowStreams.make(2, options.rows, device)).flatten()
    times, even = t.repeat_interleave(options.length), torch.ones_like(weights).flatten()

    def find_bound(logits: torch.Tensor, at: slice) -> torch.Tensor:
        return uniform.nll(logits, tokens.flatten()[at], drawn[at], times[at])

    def plain_uniform() -> tuple[torch.Tensor, ...]:
        loss = find_bound((x @ head.T).float().flatten(0, 1), slice(None)).sum()
        return loss.detach(), *torch.autograd.grad(loss, (x, head))

    def ours_uniform() -> tuple[torch.Tensor, ...]:
        loss, _ = weighted_terms(x.flatten(0, 1), head, even, find_bound)
        return loss.detach(), *torch.autograd.grad(loss, (x, head))

    header = [
        "noise",
        "way",
        "ms",
        "faster",
        "memory",
        "of the plain way's",
        "difference: loss, d/dx, d/dhead",
    ]
    rows = []
    ways = {"masked": (plain_masked, ours_masked), "uniform": (plain_uniform, ours_uniform)}
    for noise, (plain, ours) in ways.items():
        errors = [
            float((a.float() - b.float()).norm() / b.float().norm())
            for a, b in zip(ours(), plain(), strict=True)
        ]
        most, used = (measure_memory(call, device) for call in (plain, ours))
        found = time_interleaved({"plain": plain, "ours": ours}, device, options.seconds)
        for name, memory in (("plain", most), ("ours", used)):
            rows.append(
                [
                    noise,
                    name,
                    f"{1e3 * found[name]:.2f}",
                    f"{found['plain'] / found[name]:.2f} ×",
                    "–" if memory is None else format_bytes(memory),
                    "–" if memory is None or not most else f"{memory / most:.2f} ×",
                    ", ".join(f"{error:.1e}" for error in errors) if name == "ours" else "",
                ]
            )
    share = float(noised.hidden.double().mean())
    write_record(
        f"# Bounds, loss and gradients of the head, {device.type}, {options.dtype}\n\n"
        f"{describe_run(device)}.\n{options.rows} × {options.length} tokens, width "
        f"{options.width}, vocabulary {options.vocab:,}, {share:.0%} of the positions masked.\n\n"
        f"{format_table(header, rows)}\n",
        options.out,
    )


if __name__ == "__main__":
    main()
