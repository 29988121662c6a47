"""Networks known by name: SMDM's thirty sizes, SmolLM2, and tiny ones for first steps."""

from dataclasses import replace
from typing import Any

from unmask.base.config import check_arguments
from unmask.base.errors import UserError, suggest
from unmask.net.config import NetConfig

SMDM_VOCABULARY = 32_000
"""Tokens of the TinyLlama tokenizer; a diffusion network has one more row, for its mask token."""

# name: layers, heads, width, mlp width (Nie et al. 2024, arXiv 2410.18514); the name counts
# the parameters of the layers, without embedding and head.
_SMDM_SIZES = {
    "6M": (6, 4, 256, 1024),
    "19M": (8, 6, 384, 1536),
    "34M": (8, 8, 512, 2048),
    "48M": (9, 9, 576, 2304),
    "66M": (10, 10, 640, 2560),
    "75M": (16, 8, 640, 1600),
    "85M": (13, 10, 640, 2560),
    "113M": (12, 12, 768, 3072),
    "142M": (15, 12, 768, 3072),
    "170M": (18, 12, 768, 3072),
    "180M": (14, 14, 896, 3584),
    "206M": (16, 14, 896, 3584),
    "231M": (18, 14, 896, 3584),
    "268M": (16, 16, 1024, 4096),
    "302M": (18, 16, 1024, 4096),
    "336M": (20, 16, 1024, 4096),
    "472M": (18, 10, 1280, 5120),
    "551M": (21, 10, 1280, 5120),
    "571M": (18, 11, 1408, 5632),
    "629M": (24, 10, 1280, 5120),
    "666M": (21, 11, 1408, 5632),
    "717M": (19, 12, 1536, 6144),
    "761M": (24, 11, 1408, 5632),
    "831M": (22, 12, 1536, 6144),
    "944M": (25, 12, 1536, 6144),
    "1028M": (20, 14, 1792, 7168),
    "1233M": (24, 14, 1792, 7168),
    "1476M": (22, 16, 2048, 8192),
    "1678M": (25, 16, 2048, 8192),
    "2121M": (28, 17, 2176, 8704),
}

_TINY = NetConfig(vocab_size=512, width=64, layers=3, heads=4, mlp_width=160, context=128)
_BIASED = replace(_TINY, norm="layer", mlp="gelu", qkv_bias=True, out_bias=True, mlp_bias=True)

_OTHERS = {
    "tiny": _TINY,
    "tiny-grouped": replace(_TINY, kv_heads=2, qkv_bias=True, tied=True),
    "tiny-gpt2": replace(_BIASED, positions="learned", tied=True),
    "tiny-pythia": replace(_BIASED, rotary_share=0.25, gelu="exact", residual="parallel"),
    "tiny-qwen3": replace(_TINY, kv_heads=2, head_width=24, qk_norm=True, norm_eps=1e-6),
    # Block-causal as a diffusion network.
    "tiny-blocks": replace(_TINY, kv_heads=2, qk_norm=True, head_bias=True, block=4),
    # Softmax over the experts; LLaDA2's router, with a dense first layer and a shared expert.
    "tiny-experts": replace(_TINY, experts=6, experts_per_token=2, expert_width=48),
    "tiny-llada2": replace(
        _TINY,
        qk_norm=True,
        rotary_share=0.5,
        experts=8,
        experts_per_token=3,
        expert_width=24,
        shared_width=40,
        dense_layers=1,
        router="sigmoid",
        router_bias=True,
        router_groups=4,
        router_top_groups=2,
        router_renorm=True,
        router_scale=2.5,
    ),
    "tiny-bert": replace(
        _TINY,
        norm="layer",
        norm_bias=False,
        mlp="geglu",
        gelu="exact",
        tied=True,
        head_bias=True,
        head_mlp=True,
        embed_norm=True,
        rotary_base=160_000.0,
        window=2,
    ),
    "tiny-post": replace(
        _BIASED,
        norm_eps=1e-12,
        positions="learned",
        gelu="exact",
        residual="post",
        tied=True,
        head_bias=True,
        head_mlp=True,
        head_mlp_bias=True,
        token_types=2,
    ),
    "tiny-adaln": replace(
        _TINY,
        norm="layer",
        norm_bias=False,
        mlp="gelu",
        mlp_bias=True,
        head_bias=True,
        time=True,
        adaln=24,
    ),
    # Its causal original has no row for a mask: 49,152.
    "smollm2-135m": NetConfig(
        vocab_size=49_153,
        width=576,
        layers=30,
        heads=9,
        kv_heads=3,
        mlp_width=1536,
        context=8192,
        rotary_base=100_000.0,
        tied=True,
    ),
}


def preset_names() -> list[str]:
    """All names that `preset` knows, smallest first."""
    return [*_OTHERS, *_SMDM_SIZES]


@check_arguments()
def preset(name: str, causal: bool = False, **changes: Any) -> NetConfig:
    """The settings of a network by name, as a diffusion network or as its causal twin.

    Args:
        name: "tiny", "6M", "1028M", …: SMDM's sizes, and small ones of other architectures.
        causal: Whether a position sees only those before it.
        changes: Fields of `unmask.NetConfig` that differ, such as `vocab_size` or `context`.

    >>> config = unmask.preset("tiny", vocab_size=100)
    >>> unmask.Transformer(config, seed=0)(torch.zeros(2, 7, dtype=torch.long)).shape  # [B, L, V]
    torch.Size([2, 7, 100])
    """
    if name in _OTHERS:
        config = _OTHERS[name]
        if causal:
            config = replace(config, causal=True, block=None, window=None)
    elif name in _SMDM_SIZES:
        layers, heads, width, mlp_width = _SMDM_SIZES[name]
        config = NetConfig(
            vocab_size=SMDM_VOCABULARY if causal else SMDM_VOCABULARY + 1,
            num_logits=SMDM_VOCABULARY,
            width=width,
            layers=layers,
            heads=heads,
            mlp_width=mlp_width,
            causal=causal,
            rotary_tables="bfloat16",
        )
    else:
        raise UserError(f"network preset {name!r} is unknown: {suggest(name, preset_names())}")
    known = NetConfig.__dataclass_fields__
    for field in changes:
        if field not in known:
            raise UserError(f"a network has no setting {field!r}: {suggest(field, known)}")
    return replace(config, **changes)
