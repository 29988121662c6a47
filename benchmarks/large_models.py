"""Large models: LLaDA's 8B shapes and LLaDA2-mini's 16B, of which a token meets 1.4B.

    python benchmarks/large_models.py --out docs/results/large-models.md
    python benchmarks/large_models.py --size tiny

Random weights in bfloat16 are written in each model's own format, a shard at a time, so that no
more than one shard is ever in memory; then the model is loaded, draws texts and is traced on one
question, and its files are removed before the next is written. Files take 33 GB at most; `--folder
/dev/shm` puts them into memory where a disk is slow. The page is written after every row: what
fails, or is not begun since `--minutes` are over, is a row, and the other model is measured all the
same. `--cut` also runs the second one with half of its layers on the processor.
"""

import argparse
import gc
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from timing import describe_run, format_table, write_record
from trace_counts import count_trace_flops

import unmask
from unmask.base.devices import resolve_device
from unmask.base.units import format_bytes, format_number
from unmask.net.config import NetConfig
from unmask.net.counts import count_parameters, make_shapes
from unmask.net.dialects import DIALECTS
from unmask.net.model import Blueprint, Model

SHARD_BYTES = 4_000_000_000
LLADA = NetConfig(
    vocab_size=126_464,
    width=4096,
    layers=32,
    heads=32,
    mlp_width=12_288,
    context=4096,
    rotary_base=500_000.0,
)
LLADA2 = NetConfig(
    vocab_size=157_184,
    width=2048,
    layers=20,
    heads=16,
    kv_heads=4,
    head_width=128,
    mlp_width=5120,
    context=32_768,
    norm_eps=1e-6,
    rotary_base=600_000.0,
    rotary_share=0.5,
    qk_norm=True,
    block=32,
    experts=256,
    experts_per_token=8,
    expert_width=512,
    shared_width=512,
    dense_layers=1,
    router="sigmoid",
    router_bias=True,
    router_groups=8,
    router_top_groups=4,
    router_renorm=True,
    router_scale=2.5,
)
SMALL: dict[str, Any] = {"vocab_size": 500, "width": 64, "layers": 4, "heads": 4, "mlp_width": 96}
FEW: dict[str, Any] = {"kv_heads": 2, "head_width": 16, "experts": 16, "expert_width": 24}
MODELS = {
    "LLaDA-8B": ("llada", LLADA, SMALL),
    "LLaDA2-mini": ("llada2_moe", LLADA2, SMALL | FEW | {"shared_width": 24}),
}
"""Dialect, shapes, and what the tiny size changes of them."""
PROMPT, TEXT = 32, 96
SUBJECT, ANSWER, SAMPLES = (8, 12), (40, 44), 3
"""Of the question that is traced: 44 tokens, the last four of them masks; noise is drawn thrice."""


@dataclass
class Page:
    """What was measured so far, on disk after every row."""

    size: str
    out: Path | None
    minutes: float
    start: float = field(default_factory=time.perf_counter)
    rows: list[list[str]] = field(default_factory=list)
    failed: bool = False

    @property
    def spent(self) -> float:
        return time.perf_counter() - self.start

    def add(self, *cells: str) -> None:
        """One more row: the model, what was done, seconds, memory, and more."""
        self.rows.append([*cells])
        print(f"{self.spent:5.0f} s: {' | '.join(cells)}", flush=True)
        if self.out is not None:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self.out.write_text(self.render(), "utf-8")

    def attempt(self, label: str, call: Callable[[], object]) -> None:
        """Measure a model; what goes wrong is a row, and others are measured all the same."""
        if self.spent > 60 * self.minutes:
            self.add(label, "not begun", "", "", f"{self.minutes:g} minutes were over")
            return
        try:
            call()
        except Exception as error:  # whatever it is, the other model's rows must not be lost
            traceback.print_exc()
            self.failed = True
            self.add(
                label, "failed", "", "", f"{type(error).__name__}: {error}".split("\n")[0][:200]
            )
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def render(self) -> str:
        table = format_table(["model", "what", "seconds", "memory", ""], self.rows)
        return (
            f"# Large models{', at tiny size' if self.size == 'tiny' else ''}\n\n"
            f"{describe_run(resolve_device('auto'))}; {self.spent:.0f} s in all. Random weights in "
            "bfloat16, in the shapes of the released models; the memory is the most that was in "
            f"use on the GPU.\n\n{table}\n"
        )


def write_random_model(config: NetConfig, dialect_name: str, folder: Path) -> int:
    """A checkpoint of that shape with random weights, written a shard at a time; its bytes."""
    dialect, own = DIALECTS.find(dialect_name), make_shapes(config).state_dict()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(0)
    shard, home, held = dict[str, torch.Tensor](), dict[str, str](), 0

    def write() -> None:
        file = f"model-{len(set(home.values())) + 1:05d}.safetensors"
        print(f"writing {file}", flush=True)
        save_file(shard, folder / file, {"format": "pt"})
        home.update(dict.fromkeys(shard, file))
        shard.clear()

    for each in dialect.map_tensors(config):
        shape = each.to_theirs(each.select(own)).shape
        drawn = torch.empty(shape, device=device).normal_(0.0, 0.02, generator=generator)
        shard[each.theirs] = (drawn if len(shape) > 1 else 1 + drawn).bfloat16().cpu()
        held += shard[each.theirs].nbytes
        if held > SHARD_BYTES:
            write()
            held = 0
    if shard:
        write()
    index = {"weight_map": home}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    blueprint = Blueprint(config, "masked", config.vocab_size - 1)
    (folder / "config.json").write_text(json.dumps(dialect.write(blueprint)))
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def clock(call: Callable[[], Any]) -> tuple[Any, float, int]:
    """What a call gives, its seconds and the most memory that was in use on the GPU meanwhile."""
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    made = call()
    if on_gpu:
        torch.cuda.synchronize()
    return made, time.perf_counter() - start, torch.cuda.max_memory_allocated() if on_gpu else 0


def draw(model: Model, prompts: int, steps: int) -> Any:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(0, 400, (prompts, PROMPT), generator=generator).tolist()
    return unmask.sample(model, rows, length=TEXT, steps=steps, seed=1)


def trace(model: Model) -> Any:
    tokens = torch.randint(0, 400, (ANSWER[1],), generator=torch.Generator().manual_seed(2))
    assert model.mask_id is not None
    tokens[slice(*ANSWER)] = model.mask_id
    noise = unmask.corruptions.Noise(samples=SAMPLES)
    answer = {position: 7 for position in range(*ANSWER)}
    return unmask.trace_tokens(model, tokens.tolist(), SUBJECT, answer, corruption=noise)


def measure(page: Page, label: str, folder: Path, device: str) -> None:
    """Load, sample, sample again, trace: a row each."""

    def add(what: str, seconds: float, peak: int, note: str) -> None:
        page.add(label, what, f"{seconds:.1f}", format_bytes(peak) if peak else "", note)

    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    model, seconds, peak = clock(lambda: unmask.load(folder, device=device, dtype="bfloat16"))
    parameters = format_number(count_parameters(model.net.config).total)
    share = f"; {peak / size:.2f} of the files" if peak else ""
    add("load", seconds, peak, f"{parameters} parameters{share}")
    prompts, steps = (2, 8) if page.size == "tiny" else (8, 32)
    tokens = prompts * (TEXT - PROMPT)
    for what in ("sample, first time", "sample"):
        drawn, seconds, peak = clock(lambda: draw(model, prompts, steps))
        note = f"{prompts} texts, {drawn.calls} passes, {tokens / seconds:,.0f} tokens per second"
        add(what, seconds, peak, note)
    grid, seconds, peak = clock(lambda: trace(model))
    assert all(each.isfinite().all() for each in grid.logp.values())
    length, cells = ANSWER[1], sum(each[..., 0, 0].numel() for each in grid.logp.values())
    flops = count_trace_flops(model.net.config, length, SAMPLES, range(*ANSWER))
    note = f"{cells:,} restored runs of {length} tokens, {format_number(flops / seconds)}FLOP/s"
    add("trace", seconds, peak, note)


def write_and_measure(page: Page, name: str, parent: Path | None, cut: bool) -> None:
    """One model, from its files to its trace."""
    dialect, shapes, small = MODELS[name]
    config = replace(shapes, **(small if page.size == "tiny" else {}))
    with tempfile.TemporaryDirectory(dir=parent) as scratch:
        folder = Path(scratch)
        size, seconds, _ = clock(lambda: write_random_model(config, dialect, folder))
        rate = format_bytes(int(size / seconds))
        page.add(name, "write", f"{seconds:.1f}", "", f"{format_bytes(size)}, {rate} per second")
        page.attempt(name, lambda: measure(page, name, folder, "auto"))
        if cut and config.experts is not None:
            devices = "cuda:0,cpu" if torch.cuda.is_available() else "cpu,cpu"
            label = f"{name} on {devices}"
            page.attempt(label, lambda: measure(page, label, folder, devices))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", choices=("full", "tiny"), default="full")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=[*MODELS])
    parser.add_argument("--folder", type=Path, help="where the weights are written for a while")
    parser.add_argument("--minutes", type=float, default=4.0, help="after these none is begun")
    parser.add_argument("--cut", action="store_true", help="also half on the processor")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    page = Page(options.size, options.out, options.minutes)
    for name in options.models:
        page.attempt(
            name, lambda name=name: write_and_measure(page, name, options.folder, options.cut)
        )
    write_record(page.render(), options.out)
    sys.exit(page.failed)


if __name__ == "__main__":
    main()
