"""Masked diffusion in a causal model's layout: dllm's A2D, iLLaDA, SDAR, Fast-dLLM v2 and RND1.

Tensors and most settings are those of the causal model that each was adapted from (its base). What
differs is what a position sees, which token a row predicts, and where the mask id is written.
"""

from dataclasses import dataclass, replace
from typing import Any

from unmask.base.config import SettingsError
from unmask.base.errors import UserError
from unmask.net.config import NetConfig
from unmask.net.dialects import experts, llama, qwen2, qwen3
from unmask.net.dialects.dialect import Dialect, Source, find_mask
from unmask.net.dialects.dream import read_qwen2_tokenizer
from unmask.net.model import Blueprint


@dataclass(frozen=True)
class Adaptation:
    """How a family of diffusion models differs from the causal models it was made of."""

    name: str
    about: str
    bases: dict[str, tuple[Dialect, str]]
    """By model type, and the name of its own architecture."""
    is_any_type: bool = False
    """Whether the architecture is enough to recognise it, whatever the model type."""
    shift: bool = False
    block_field: str | None = None
    """Their name of the number of positions in a block; None: every position sees every other."""
    default_block: int | None = None
    """Where the field is absent."""
    refused: tuple[str, ...] = ()
    """Their fields that would make it another network, unless they are null."""

    def recognise(self, source: Source) -> bool:
        named = [architecture for _, architecture in self.bases.values()]
        fits = self.is_any_type and source.config.get("architectures") == named
        return fits or source.config.get("model_type") in self.bases

    def read(self, source: Source) -> Blueprint:
        given = {name: source.config.get(name) for name in self.refused}
        if problems := [
            f"{name!r} is {value!r}, but only null is supported"
            for name, value in given.items()
            if value is not None
        ]:
            raise SettingsError(source.label, problems)
        known = source.config.get("model_type") in self.bases
        model_type = source.config["model_type"] if known else [*self.bases][-1]
        base = self.bases[model_type][0].read(source)
        block = None
        if self.block_field is not None:
            block = source.config.get(self.block_field, self.default_block)
        config = replace(base.config, causal=False, block=block)
        return Blueprint(config, "masked", find_mask(source), self.shift)

    def write(self, blueprint: Blueprint) -> dict[str, Any]:
        model_type = self._choose_base(blueprint.config)
        base, architecture = self.bases[model_type]
        causal = Blueprint(blueprint.config.made_causal(), "causal")
        settings = base.write(causal) | {"architectures": [architecture]}
        settings |= {"model_type": model_type, "mask_token_id": blueprint.mask_id}
        if self.block_field is not None:
            if blueprint.config.block is None:
                raise UserError(f"a {self.name} model has block-causal attention")
            settings[self.block_field] = blueprint.config.block
        return settings

    def _choose_base(self, config: NetConfig) -> str:
        """The model type whose base has the same norms and biases; the last where none has."""
        wanted = "qwen3" if config.qk_norm else "llama"
        if config.qkv_bias and not config.out_bias:
            wanted = "qwen2"
        fitting = [name for name, (base, _) in self.bases.items() if base.name == wanted]
        return fitting[0] if fitting else [*self.bases][-1]


ADAPTATIONS = (
    Adaptation(
        "a2d",
        "dllm's A2D of Llama, Qwen2 and Qwen3: sees everything, or `block=` in its bd3lm variants; "
        "the mask is the tokenizer's",
        {
            f"a2d-{base.name}": (base, f"A2D{base.name.capitalize()}LMHeadModel")
            for base in (llama.DIALECT, qwen2.DIALECT, qwen3.DIALECT)
        },
    ),
    Adaptation(
        "illada",
        "iLLaDA, in Llama's layout: sees everything",
        {"illada": (llama.DIALECT, "ILLaDAForCausalLM")},
        is_any_type=True,
        refused=("layer_norm_eps",),
    ),
    # Released settings name no block; its sampler's own is 4.
    Adaptation(
        "sdar",
        "SDAR: `qk_norm`; blocks of 4 unless given",
        {"sdar": (qwen3.DIALECT, "SDARForCausalLM")},
        block_field="block_size",
        default_block=4,
    ),
    Adaptation(
        "fast_dllm",
        "Fast-dLLM v2: blocks, row i predicts i + 1; its sampler is "
        '`plan="threshold=0.9", block=8`',
        {"Fast_dLLM_Qwen": (qwen2.DIALECT, "Fast_dLLM_QwenForCausalLM")},
        shift=True,
        block_field="bd_size",
        default_block=32,
    ),
    Adaptation(
        "rnd1",
        "RND1: Qwen3's mixture; sees everything, row i predicts i + 1",
        {"rnd1": (experts.QWEN3_MOE, "RND1LM")},
        shift=True,
    ),
    Adaptation(
        "sdar_moe",
        "SDAR's mixture, in the layout of Qwen3's: blocks of 4 unless given",
        {"sdar_moe": (experts.QWEN3_MOE, "SDARMoeForCausalLM")},
        block_field="block_size",
        default_block=4,
    ),
)


DIALECTS = tuple(
    replace(
        qwen3.DIALECT,
        name=adaptation.name,
        about=adaptation.about,
        recognise=adaptation.recognise,
        read=adaptation.read,
        write=adaptation.write,
        read_tokenizer=read_qwen2_tokenizer,
        needs_mask=True,
    )
    for adaptation in ADAPTATIONS
)
