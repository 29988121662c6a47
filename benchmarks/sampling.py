"""Sampling against the peers' way: prompts a second, what the sampler itself costs, long texts.

    python benchmarks/sampling.py --out docs/results/sampling-cuda.md
    python benchmarks/sampling.py --device cpu --dtype float32 --size 19M --prompts 32 \
        --lengths 64,128,256 --rows 4 --out docs/results/sampling-cpu.md

Random weights: how long a text takes does not depend on what it says.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from timing import describe_run, format_table, time_interleaved, write_record
from torch import Tensor
from training_peer import Peer

import unmask
from unmask.base.devices import resolve_device, resolve_dtype
from unmask.net.loading import save
from unmask.net.model import Blueprint, Model
from unmask.net.transformer import Transformer
from unmask.report.style import CAUSAL, DIFFUSION, new_figure, save_figure

GUIDANCE, STEPS, CONTEXT = 0.8, 16, 52


def make_model(size: str, causal: bool, device: torch.device, dtype: torch.dtype) -> Model:
    """A model of SMDM's shapes with random weights."""
    # Rounded rotary tables could not be said to transformers.
    config = unmask.preset(size, causal=causal, rotary_tables="float32", context=2048)
    with device:
        net = Transformer(config).to(dtype).eval().requires_grad_(False)
    kind = ("causal", None) if causal else ("masked", config.vocab_size - 1)
    return Model(size, net, Blueprint(config, *kind))


def make_prompts(number: int) -> list[list[int]]:
    """Prompts of 8 to 24 tokens, about what the reversal set has."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(8, 25, (number,), generator=generator).tolist()
    return [torch.randint(0, 32_000, (n,), generator=generator).tolist() for n in lengths]


def make_peer(model: Model) -> Callable[[Tensor], Tensor]:
    """A plain SMDM-style module of the same shapes: float32 weights, products under autocast."""
    device = model.device
    with device:
        peer = Peer(model.net.config, CONTEXT).eval().requires_grad_(False)

    def run(tokens: Tensor) -> Tensor:
        short = model.net.embedding.weight.dtype
        with torch.autocast(device.type, short, enabled=short != torch.float32):
            return peer(tokens)

    return run


@torch.inference_mode()
def sample_plainly(model: Model, network: Callable[[Tensor], Tensor], prompt: list[int]) -> Tensor:
    """One prompt as a peer's evaluation takes it: all logits, float64 softmax, batch of one."""
    mask_id, device = model.require_mask(), model.device
    x = torch.full((1, CONTEXT), mask_id, device=device)
    x[0, : len(prompt)] = torch.tensor(prompt, device=device)
    given = torch.arange(CONTEXT, device=device) < len(prompt)
    times = torch.linspace(1, 1e-5, STEPS + 1, device=device)
    for i in range(STEPS):
        hidden = x == mask_id
        without = torch.where(given, mask_id, x)
        logits, plain = network(torch.cat((x, without))).chunk(2)
        logits = (plain + (GUIDANCE + 1) * (logits - plain))[hidden]
        guess = logits.argmax(-1)
        p = logits.double().softmax(-1).gather(-1, guess[:, None])[:, 0]
        left = hidden.sum()
        count = int(left * (1 - times[i + 1] / times[i])) if i < STEPS - 1 else int(left)
        if count:
            first = p.topk(count).indices
            filled = torch.full_like(guess, mask_id)
            filled[first] = guess[first]
            x[hidden] = filled
    return x[0]


@torch.inference_mode()
def replay_network(model: Model, states: Tensor, prompts: list[list[int]]) -> None:
    """The same forward passes over the same states, and nothing else."""
    mask_id = model.require_mask()
    counts = torch.tensor([len(prompt) for prompt in prompts], device=model.device)
    given = torch.arange(CONTEXT, device=model.device) < counts[:, None]
    for xt in states[:-1]:
        hidden = xt == mask_id
        both = torch.cat((xt, torch.where(given, mask_id, xt)))
        model.logits(both, None, hidden.repeat(2, 1))


def compare_prompts(model: Model, num_prompts: int, num_plain: int, seconds: float) -> str:
    """Prompts a second in one batch and one at a time, and the sampler's own share of the time."""
    prompts, device = make_prompts(num_prompts), model.device
    draw = partial(unmask.sample, model, prompts, steps=STEPS, guidance=GUIDANCE, length=CONTEXT)
    kept = draw()
    assert kept.states is not None
    states, few, peer = kept.states, prompts[:num_plain], make_peer(model)
    same = sum(
        torch.equal(sample_plainly(model, model.net, prompt), kept.tokens[i])
        for i, prompt in enumerate(few)
    )
    found = time_interleaved(
        {
            "ours": partial(draw, keep_states=False),
            "network": lambda: replay_network(model, states, prompts),
            "peer": lambda: [sample_plainly(model, peer, prompt) for prompt in few],
            "own": lambda: [sample_plainly(model, model.net, prompt) for prompt in few],
        },
        device,
        seconds,
        rounds=3,
        warm_up=1,
    )
    ways = {
        "one at a time, plain module": found["peer"] / num_plain,
        "one at a time, this network": found["own"] / num_plain,
        f"{num_prompts} at once": found["ours"] / num_prompts,
    }
    best = found["ours"] / num_prompts
    outside = 1 - found["network"] / found["ours"]
    rows = [
        [way, f"{1e3 * each:.2f}", f"{1 / each:.1f}", f"{each / best:.1f} ×"]
        for way, each in ways.items()
    ]
    header = ["way", "ms a prompt", "prompts a second", "time against all at once"]
    return (
        f"## {num_prompts} prompts, context {CONTEXT}, {STEPS} steps, guidance {GUIDANCE}\n\n"
        f"One at a time was measured on {num_plain} prompts, once with a plain SMDM-style module "
        "(float32 weights under autocast), once with this project's network; with the latter "
        f"{same} of {num_plain} texts are equal token for token (in short dtypes batches "
        f"round differently). Outside the network, all at once spends {outside:.1%} of its time."
        f"\n\n{format_table(header, rows)}"
    )


def compare_causal(model: Model, rows: int, new: int, seconds: float) -> str:
    """Greedy decoding with a cache against `transformers.generate` on the same weights."""
    from transformers import AutoModelForCausalLM, GenerationConfig

    device, dtype = model.device, model.net.embedding.weight.dtype
    prompt = 16
    tokens = torch.randint(0, 32_000, (rows, prompt), generator=torch.Generator().manual_seed(1))
    memory = Path("/dev/shm")  # where files need no disk
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        save(model, Path(folder) / "llama", "llama")
        peer = AutoModelForCausalLM.from_pretrained(Path(folder) / "llama", dtype=dtype)
    peer = peer.to(device).eval()
    settings = GenerationConfig(
        max_new_tokens=new, min_new_tokens=new, do_sample=False, use_cache=True, pad_token_id=0
    )
    given, prompts = tokens.to(device), tokens.tolist()

    def ours() -> Tensor:
        return unmask.sample(model, prompts, length=prompt + new, keep_states=False).tokens

    def theirs() -> Tensor:
        return peer.generate(
            given, attention_mask=torch.ones_like(given), generation_config=settings
        )

    equal = float((ours() == theirs()).all(-1).double().mean())
    found = time_interleaved({"ours": ours, "transformers": theirs}, device, seconds, 3, 1)
    table = format_table(
        ["way", "seconds", "tokens a second", "faster"],
        [
            [
                name,
                f"{found[name]:.3f}",
                f"{rows * new / found[name]:,.0f}",
                f"{found['transformers'] / found[name]:.2f} ×",
            ]
            for name in ("transformers", "ours")
        ],
    )
    return (
        f"## Autoregressive decoding, {rows} rows, {new} new tokens, with a cache\n\n"
        f"Against `transformers.generate` on the same weights; {equal:.0%} of the rows are equal "
        f"token for token.\n\n{table}"
    )


def compare_lengths(
    diffusion: Model, causal: Model, rows: int, lengths: list[int], figure: Path | None
) -> str:
    """Tokens a second against steps, for texts of several lengths, diffusion and autoregressive."""
    table, curves = [], []
    for length in lengths:
        prompts = [[1]] * rows
        steps = [s for s in (4, 8, 16, 32, 64, 128, 256, 512, 1024) if s < length]
        draw = partial(
            unmask.sample, diffusion, prompts, length=length, keep_states=False, plan="llada"
        )
        # Two runs tell what a step costs: all steps are alike.
        four, eight = (_time(partial(draw, steps=count), diffusion.device) for count in (4, 8))
        speeds = {s: rows * length / (four + (eight - four) / 4 * (s - 4)) for s in steps}
        write = partial(unmask.sample, causal, prompts, length=length, keep_states=False)
        written = rows * length / _time(write, causal.device)
        first = [count for count in steps if speeds[count] > written]
        table.append(
            [
                str(length),
                f"{written:,.0f}",
                *(f"{speeds[s]:,.0f}" if s in speeds else "" for s in (4, 16, 64, 256)),
                f"up to {max(first)} steps" if first else "never",
            ]
        )
        curves.append((length, steps, [speeds[s] for s in steps], written))
    if figure is not None:
        _draw(curves, figure)
    header = [
        "length",
        "AR, tokens/s",
        *(f"{s} steps" for s in (4, 16, 64, 256)),
        "diffusion ahead",
    ]
    shown = f"\n\n![tokens a second against steps]({figure.name}.png)" if figure else ""
    return (
        f"## Tokens a second against steps, {rows} rows\n\nThe diffusion model writes its text in "
        "so many steps, the autoregressive one in as many as there are tokens. Diffusion times "
        "are those of 4 and 8 steps, carried on in a straight line.\n\n"
        f"{format_table(header, table)}{shown}"
    )


def _time(call, device: torch.device) -> float:
    call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _draw(curves: list, path: Path) -> None:
    with new_figure(3.2 * len(curves), 2.8, 1, len(curves)) as (figure, axes):
        for axis, (length, steps, speeds, written) in zip(axes[0], curves, strict=True):
            axis.plot(steps, speeds, "o-", color=DIFFUSION, label="diffusion")
            axis.axhline(written, color=CAUSAL, ls="--", label="autoregressive")
            axis.set(xscale="log", yscale="log", xlabel="sampling steps", title=f"{length} tokens")
        axes[0, 0].set_ylabel("tokens a second")
        axes[0, 0].legend()
        save_figure(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--size", default="1028M")
    parser.add_argument("--prompts", type=int, default=300)
    parser.add_argument("--plain", type=int, default=2, help="prompts to take one at a time")
    parser.add_argument("--rows", type=int, default=8, help="rows of the long texts")
    parser.add_argument("--lengths", default="128,512,1024")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device, dtype = resolve_device(options.device), resolve_dtype(options.dtype)
    diffusion = make_model(options.size, False, device, dtype)
    causal = make_model(options.size, True, device, dtype)
    lengths = [int(length) for length in options.lengths.split(",")]
    figure = None if options.out is None else options.out.with_suffix("")
    page = f"# Sampling, {options.size} shapes, {device.type}, {options.dtype}\n\n"
    page += f"{describe_run(device)}.\n"
    for compare in (
        partial(compare_prompts, diffusion, options.prompts, options.plain, options.seconds),
        partial(compare_causal, causal, options.rows, 64, options.seconds),
        partial(compare_lengths, diffusion, causal, options.rows, lengths, figure),
    ):
        page += f"\n{compare()}\n"
        write_record(page, options.out)  # after each part: the next one may take long


if __name__ == "__main__":
    main()
