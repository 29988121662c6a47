"""Forward time against the same Llama in `transformers`, and what partial runs save.

    python benchmarks/network.py --device cpu --sizes 19M,85M --out docs/results/network-cpu.md

Both networks are causal, of the same shapes, with the same weights, in eager mode with
`scaled_dot_product_attention`. Beside the times stands each one's error: the norm of the
difference of its logits to ours in float64, over the norm of those.
"""

import argparse
from pathlib import Path

import torch
import transformers
from timing import describe_run, format_table, time_interleaved, write_record

from unmask.base.devices import resolve_device, resolve_dtype
from unmask.net.counts import count_flops
from unmask.net.dialects import DIALECTS
from unmask.net.loading import collect_weights
from unmask.net.presets import preset
from unmask.net.transformer import Transformer

SHAPES = {"cpu": ((8, 52), (2, 256)), "cuda": ((32, 52), (8, 512)), "mps": ((32, 52), (8, 512))}
"""Batch and length: prompts of the study, and running text."""
NUM_ANSWERS = 4
"""Positions unembedded where a study asks for an answer only."""


def make_peer(ours: Transformer) -> transformers.LlamaForCausalLM:
    """The same network in `transformers`, with the same weights."""
    config = ours.config
    peer = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.width,
            intermediate_size=config.mlp_width,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            max_position_embeddings=config.context,
            rms_norm_eps=config.norm_eps,
        )
    )
    assert peer.config._attn_implementation == "sdpa"
    peer.load_state_dict(collect_weights(ours, DIALECTS["llama"]))
    return peer.to(ours.embedding.weight.device, ours.embedding.weight.dtype).eval()


def relative_error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """How far logits are from the exact ones, as a share of their size."""
    return float((found.double() - exact).norm() / exact.norm())


@torch.inference_mode()
def measure(size: str, device: torch.device, dtype: torch.dtype, seconds: float) -> list[list[str]]:
    """One row of the table for each shape."""
    config = preset(size, causal=True, rotary_tables="float32")
    ours = Transformer(config).to(device, dtype).eval()
    peer = make_peer(ours)
    rows = []
    for batch, length in SHAPES[device.type]:
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(0, config.vocab_size, (batch, length), generator=generator)
        tokens = tokens.to(device)
        exact = ours.double()(tokens[:2])
        errors = {
            "ours": relative_error(ours.to(dtype)(tokens[:2]), exact),
            "peer": relative_error(peer(tokens[:2], use_cache=False).logits, exact),
        }
        half, at = config.layers // 2, torch.arange(length - NUM_ANSWERS, length, device=device)
        x = ours.run_layers(ours.embed(tokens), stop=half)

        found = time_interleaved(
            {
                "peer": lambda tokens=tokens: peer(tokens, use_cache=False).logits,
                "ours": lambda tokens=tokens: ours(tokens),
                "answers": lambda tokens=tokens, at=at: ours(tokens, at=at),
                "middle": lambda x=x, at=at, half=half: ours.unembed(
                    ours.run_layers(x, start=half), at
                ),
            },
            device,
            seconds,
        )
        rate = batch * count_flops(config, length) / found["ours"]
        rows.append(
            [
                size,
                f"{batch} × {length}",
                f"{1e3 * found['peer']:.2f}",
                f"{1e3 * found['ours']:.2f}",
                f"{found['ours'] / found['peer']:.3f}",
                f"{1e3 * found['answers']:.2f} ({found['answers'] / found['ours']:.2f} ×)",
                f"{1e3 * found['middle']:.2f} ({found['middle'] / found['ours']:.2f} ×)",
                f"{rate / 1e12:.3g}",
                f"{errors['peer']:.1e}",
                f"{errors['ours']:.1e}",
            ]
        )
        print(" ".join(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default=None, help="float32 on the CPU, bfloat16 elsewhere")
    parser.add_argument("--sizes", default="19M,85M")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each size and shape")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = resolve_device(options.device)
    dtype = resolve_dtype(options.dtype or ("float32" if device.type == "cpu" else "bfloat16"))

    header = ["size", "batch × length", "transformers, ms", "unmask, ms", "ratio"]
    header += [f"logits at {NUM_ANSWERS}, ms", "and from the middle layer, ms"]
    header += ["TFLOP/s", "error, transformers", "error, unmask"]
    sizes = options.sizes.split(",")
    rows = [row for size in sizes for row in measure(size, device, dtype, options.seconds)]
    text = (
        f"# Forward pass, {device.type}, {str(dtype).removeprefix('torch.')}\n\n"
        f"{describe_run(device)}, transformers {transformers.__version__}.\n\n"
        f"{format_table(header, rows)}\n"
    )
    write_record(text, options.out)


if __name__ == "__main__":
    main()
