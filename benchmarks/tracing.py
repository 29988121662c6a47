"""Tracing one fact, part by part, against one cell at a time with hooks, on the same weights.

    python benchmarks/tracing.py --size 1028M --dtype bfloat16 --out docs/results/tracing-speed.md

The plain way is the reference's: for each (token, layer) one whole forward pass of a clean row and
the noise samples, noise drawn anew from the same seed, hooks that add it and copy the clean row's
state, logits everywhere. Its time for all cells is extrapolated from `--cells` of each part, spread
evenly over tokens and layers; the cells that were run are compared with ours.
"""

import argparse
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from timing import describe_run, format_table, write_record
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from trace_counts import count_plain_flops, count_trace_flops

from unmask.base.devices import resolve_device, resolve_dtype
from unmask.base.memory import watch_memory
from unmask.base.units import format_bytes, format_number
from unmask.net.model import Blueprint, Model
from unmask.net.presets import preset
from unmask.net.transformer import Transformer
from unmask.tracing.corruption import Noise, measure_sigma
from unmask.tracing.grid import TraceGrid
from unmask.tracing.sweep import DEFAULT_MEMORY
from unmask.tracing.tokens import trace_tokens
from unmask.tracing.windows import window_of

PARTS = ("resid", "mlp", "attn")
LENGTH, SUBJECT, WINDOW, SAMPLES = 52, (5, 11), 10, 10
PROMPT = 40
NUM_ANSWERS = 4


def make_model(size: str, causal: bool, device: torch.device, dtype: torch.dtype) -> Model:
    """A random network of that size."""
    config = preset(size, causal=causal)
    with torch.device(device):
        net = Transformer(config).to(dtype).eval().requires_grad_(False)
    mask = None if causal else config.vocab_size - 1
    return Model(size, net, Blueprint(config, "causal" if causal else "masked", mask))


def make_state(model: Model) -> tuple[Tensor, dict[int, int]]:
    """A prompt with masks after it; for a causal model a text, and the token after it."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 32_000, (LENGTH + 1,), generator=generator)
    if model.kind == "causal":
        return tokens[:LENGTH], {LENGTH: int(tokens[LENGTH])}
    answer = {at: int(tokens[at]) for at in range(PROMPT, PROMPT + NUM_ANSWERS)}
    tokens = tokens[:LENGTH]
    tokens[PROMPT:] = model.net.config.vocab_size - 1
    return tokens, answer


class PlainTracer:
    """One cell at a time: forward hooks on modules, a clean row first, everything recomputed."""

    def __init__(self, model: Model, tokens: Tensor, answer: dict[int, int], sigma: float):
        self.model, self.answer, self.sigma = model, answer, sigma
        self.rows = tokens.to(model.device).repeat(1 + SAMPLES, 1)

    @torch.inference_mode()
    def run(self, part: str, token: int, layer: int) -> Tensor:
        """The joint probability of the answer in each corrupted row."""
        net = self.model.net
        names = {"resid": "{}", "mlp": "{}.mlp.down", "attn": "{}.attn.out"}
        first, last = window_of(layer, 1 if part == "resid" else WINDOW, net.config.layers)
        modules = [names[part].format(f"layers.{each}") for each in range(first, last)]

        def disturb(_module: object, _given: object, x: Tensor) -> None:
            span = SUBJECT[1] - SUBJECT[0]
            drawn = np.random.RandomState(1).randn(SAMPLES, span, x.shape[2])
            x[1:, SUBJECT[0] : SUBJECT[1]] += self.sigma * torch.from_numpy(drawn).to(x.device)

        def restore(_module: object, _given: object, x: Tensor) -> None:
            x[1:, token] = x[0, token]

        hooks = [net.embedding.register_forward_hook(disturb)]
        hooks += [net.get_submodule(name).register_forward_hook(restore) for name in modules]
        try:
            logits = self.model.logits(self.rows)
        finally:
            for hook in hooks:
                hook.remove()
        late = 1 if self.model.kind == "causal" else 0
        at = torch.tensor([place - late for place in self.answer], device=logits.device)
        tokens = torch.tensor(list(self.answer.values()), device=logits.device)
        logp = logits[1:, at].float().log_softmax(-1)
        return logp.gather(-1, tokens.expand(len(logp), -1)[..., None])[..., 0].sum(-1)


def spread_cells(count: int, layers: int) -> list[tuple[int, int]]:
    """(token, layer) pairs, evenly spread over the grid."""
    total = LENGTH * layers
    picked = [(2 * i + 1) * total // (2 * count) for i in range(min(count, total))]
    return [divmod(cell, layers) for cell in picked]


def time_call(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call, everything on the device done."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def count_flops(call: Callable[[], object], device: torch.device) -> int:
    """Operations of a call; on the CPU attention is run as products, which the counter knows."""
    known = sdpa_kernel(SDPBackend.MATH) if device.type == "cpu" else nullcontext()
    with known, FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


def measure(model: Model, cells: int, memory: int) -> list[list[str]]:
    """One row of the table for each part, and one for all of them."""
    device, layers = model.device, model.net.config.layers
    tokens, answer = make_state(model)
    sigma = measure_sigma(model, [tokens[slice(*SUBJECT)].tolist()])
    noise = Noise(sigma, SAMPLES, "rome")
    plain = PlainTracer(model, tokens, answer, sigma)

    def ours(*parts: str) -> TraceGrid:
        return trace_tokens(
            model,
            tokens,
            SUBJECT,
            answer,
            parts=parts,
            window=WINDOW,
            corruption=noise,
            memory=memory,
        )

    counts: dict[str, int] = {}
    for part in PARTS:  # both warmed up
        for layer in range(3):
            plain.run(part, 0, layer)
        counts[part] = count_flops(lambda part=part: ours(part), device)
    read = {model.row_of(position) for position in answer}
    rows, totals = [], {"plain": 0.0, "ours": 0.0}
    spread = spread_cells(cells, layers)
    for part in PARTS:
        found: list[Tensor] = []
        seconds = time_call(
            lambda part=part, found=found: found.extend(
                plain.run(part, token, layer) for token, layer in spread
            ),
            device,
        )
        totals["plain"] += (all_plain := seconds / len(spread) * LENGTH * layers)
        grids: list[TraceGrid] = []
        with watch_memory(device) as peak:
            all_ours = time_call(lambda part=part, grids=grids: grids.append(ours(part)), device)
            used = peak()
        totals["ours"] += all_ours
        logp = grids[0].values(part, "logp")
        apart = max(
            float((logp[token, layer] - cell.cpu()).abs().max())
            for (token, layer), cell in zip(spread, found, strict=True)
        )
        counted = counts[part]
        closed = count_trace_flops(
            model.net.config, LENGTH, SAMPLES, read, (part,), WINDOW, SUBJECT[0]
        )
        whole = count_plain_flops(model.net.config, LENGTH, SAMPLES, 1)
        rows.append(
            [
                part,
                f"{all_plain:.2f}",
                f"{all_ours:.2f}",
                f"{all_plain / all_ours:.2f} ×",
                f"{format_number(counted)}FLOP",
                f"{counted / closed:.6f}",
                f"{whole / counted:.2f} ×",
                f"{closed / all_ours / 1e12:.3g}",
                "–" if used is None else f"{format_bytes(used)} of {format_bytes(memory)}",
                f"{apart:.1e}",
            ]
        )
        print(" ".join(rows[-1]), flush=True)
    ratio, blank = totals["plain"] / totals["ours"], [""] * 6
    rows.append(["all", *(f"{totals[way]:.2f}" for way in totals), f"{ratio:.2f} ×", *blank])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--size", default="1028M")
    parser.add_argument("--kinds", default="masked,causal")
    parser.add_argument("--cells", type=int, default=40, help="plain cells timed for each part")
    parser.add_argument("--memory", type=float, help="gigabytes beside the weights")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device, dtype = resolve_device(options.device), resolve_dtype(options.dtype)
    memory = DEFAULT_MEMORY[device.type] if options.memory is None else int(options.memory * 1e9)
    header = ["part", f"plain, s (extrapolated from {options.cells} cells)", "ours, s", "faster"]
    header += ["counted", "counted / closed form", "fewer than plain", "TFLOP/s"]
    header += ["peak memory, of the setting", "largest difference of log p"]
    text = (
        f"# Tracing a fact, {options.size} shapes, {device.type}, {options.dtype}\n\n"
        f"{describe_run(device)}.\n{LENGTH} tokens, {SAMPLES} noise samples, windows of {WINDOW} "
        "layers; the plain way runs one cell at a time, its noise drawn anew, a whole forward pass "
        f"of {SAMPLES + 1} rows each.\n"
    )
    for kind in options.kinds.split(","):
        model = make_model(options.size, kind == "causal", device, dtype)
        rows = measure(model, options.cells, memory)
        text += f"\n## {kind}\n\n{format_table(header, rows)}\n"
        del model
    write_record(text, options.out)


if __name__ == "__main__":
    main()
