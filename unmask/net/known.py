"""Models of the literature by a short name: where they are, and what their files do not say."""

from dataclasses import dataclass
from typing import Any

from unmask.net.paradigm import get_paradigm


@dataclass(frozen=True)
class KnownModel:
    """Where to get a model of the literature."""

    repo: str
    file: str | None = None
    """For a repository that holds many models, the file of this one."""
    tokenizer: str | None = None
    """For models that come without one, the repository whose tokenizer they use."""
    kind: str = "causal"
    size: float | None = None
    """Parameters, in thousand millions."""
    licence: str = ""
    """Where it was seen."""
    says_kind: bool = True
    """Whether its settings say what kind it is; else it is read as the one given here."""
    mask: int | None = None
    shift: bool | None = None
    block: int | None = None
    """What its settings do not say, where it is known."""
    revision: str | None = None
    """Where its safetensors are, if not on the main branch."""
    has_experts: bool = False

    @property
    def uses(self) -> str:
        """What works with it here."""
        return list_uses(self.kind, not self.has_experts)


def list_uses(kind: str, has_dense_layers: bool) -> str:
    """What works with models of a kind; edits are written into dense MLPs.

    All is: sample, score, trace, edit.
    """
    if not get_paradigm(kind).is_scored:
        return "sample, score"
    return "all" if has_dense_layers else "all but edit"


def _masked(repo: str, size: float, licence: str = "", **more: Any) -> KnownModel:
    return KnownModel(repo, kind="masked", size=size, licence=licence, **more)


_SMDM = "TinyLlama/TinyLlama-1.1B-intermediate-step-1431k-3T"
_GPT2 = "openai-community/gpt2"
_DDIT: dict[str, Any] = {"tokenizer": _GPT2, "size": 0.17}
_APACHE, _MIT = "Apache-2.0", "MIT"

KNOWN: dict[str, KnownModel] = {
    "mdm-1028M": KnownModel(
        "nieshen/SMDM", "mdm-1028M-1600e18.safetensors", _SMDM, kind="masked", size=1.16
    ),
    "ar-1028M": KnownModel("nieshen/SMDM", "ar-1028M-100e18.safetensors", _SMDM, size=1.16),
    "llada-8b": _masked("GSAI-ML/LLaDA-8B-Base", 8.0, _MIT),
    "llada-8b-instruct": _masked("GSAI-ML/LLaDA-8B-Instruct", 8.0, _MIT),
    "llada-1.5": _masked("GSAI-ML/LLaDA-1.5", 8.0, _MIT),
    "illada-8b": _masked("GSAI-ML/iLLaDA-8B-Base", 8.0, mask=5),
    "illada-8b-instruct": _masked("GSAI-ML/iLLaDA-8B-Instruct", 8.0, mask=5),
    "llada-moe": _masked("inclusionAI/LLaDA-MoE-7B-A1B-Base", 7.4, _APACHE, has_experts=True),
    "llada-moe-instruct": _masked(
        "inclusionAI/LLaDA-MoE-7B-A1B-Instruct", 7.4, _APACHE, has_experts=True
    ),
    "llada2-mini": _masked(
        "inclusionAI/LLaDA2.0-mini", 16.3, _APACHE, has_experts=True, mask=156_895
    ),
    "llada2.1-mini": _masked(
        "inclusionAI/LLaDA2.1-mini", 16.3, _APACHE, has_experts=True, mask=156_895
    ),
    "dream-7b": _masked("Dream-org/Dream-v0-Base-7B", 7.6, _APACHE),
    "dream-7b-instruct": _masked("Dream-org/Dream-v0-Instruct-7B", 7.6, _APACHE),
    "dream-coder-7b": _masked("Dream-org/Dream-Coder-v0-Base-7B", 7.6),
    "dream-coder-7b-instruct": _masked("Dream-org/Dream-Coder-v0-Instruct-7B", 7.6),
    "diffucoder-7b": _masked("apple/DiffuCoder-7B-Base", 7.6),
    "diffucoder-7b-instruct": _masked("apple/DiffuCoder-7B-Instruct", 7.6),
    "diffucoder-7b-cpgrpo": _masked("apple/DiffuCoder-7B-cpGRPO", 7.6),
    "sdar-1.7b": _masked("JetLM/SDAR-1.7B-Chat", 1.7, _APACHE, mask=151_669),
    "sdar-4b": _masked("JetLM/SDAR-4B-Chat", 4.0, _APACHE, mask=151_669),
    "sdar-8b": _masked("JetLM/SDAR-8B-Chat", 8.2, _APACHE, mask=151_669),
    "sdar-30b": _masked("JetLM/SDAR-30B-A3B-Chat", 30.5, _APACHE, mask=151_669, has_experts=True),
    "rnd1": _masked("radicalnumerics/RND1-Base-0910", 30.5, has_experts=True),
    "fast-dllm-1.5b": _masked("Efficient-Large-Model/Fast_dLLM_v2_1.5B", 1.5, mask=151_665),
    "fast-dllm-7b": _masked("Efficient-Large-Model/Fast_dLLM_v2_7B", 7.6, mask=151_665),
    "efficient-dlm-4b": _masked("nvidia/Efficient-DLM-4B", 4.0),
    "stable-diffcoder-8b": _masked(
        "ByteDance-Seed/Stable-DiffCoder-8B-Instruct", 8.0, says_kind=False
    ),
    "open-dcoder-0.5b": _masked("fredzzp/open-dcoder-0.5B", 0.5, says_kind=False, shift=True),
    "qwen3-0.6b-mdlm": _masked("dllm-hub/Qwen3-0.6B-diffusion-mdlm-v0.1", 0.6),
    "qwen3-0.6b-bd3lm": _masked("dllm-hub/Qwen3-0.6B-diffusion-bd3lm-v0.1", 0.6),
    "qwen2.5-coder-0.5b-mdlm": _masked(
        "dllm-hub/Qwen2.5-Coder-0.5B-Instruct-diffusion-mdlm-v0.1", 0.5
    ),
    "qwen2.5-coder-0.5b-bd3lm": _masked(
        "dllm-hub/Qwen2.5-Coder-0.5B-Instruct-diffusion-bd3lm-v0.1", 0.5
    ),
    "modernbert-base": _masked("answerdotai/ModernBERT-base", 0.15, _APACHE),
    "modernbert-large": _masked("answerdotai/ModernBERT-large", 0.4, _APACHE),
    "modernbert-base-chat": _masked("dllm-hub/ModernBERT-base-chat-v0.1", 0.15),
    "modernbert-large-chat": _masked("dllm-hub/ModernBERT-large-chat-v0.1", 0.4),
    "mdlm-owt": KnownModel("kuleshov-group/mdlm-owt", kind="masked", **_DDIT),
    "mdlm-noeos-owt": KnownModel("kuleshov-group/mdlm-noeos-owt", kind="masked", **_DDIT),
    "bd3lm-owt-4": KnownModel("kuleshov-group/bd3lm-owt-block_size4", kind="masked", **_DDIT),
    "bd3lm-owt-8": KnownModel("kuleshov-group/bd3lm-owt-block_size8", kind="masked", **_DDIT),
    "bd3lm-owt-16": KnownModel("kuleshov-group/bd3lm-owt-block_size16", kind="masked", **_DDIT),
    "ar-noeos-owt": KnownModel("kuleshov-group/ar-noeos-owt", **_DDIT),
    "radd-lambda": KnownModel("JingyangOu/radd-lambda-dce", kind="masked", **_DDIT),
    "radd-t": KnownModel("JingyangOu/radd-t-dce", kind="masked", **_DDIT),
    "sedd-small": KnownModel("louaaron/sedd-small", kind="masked", revision="refs/pr/1", **_DDIT),
    "sedd-medium": KnownModel(
        "louaaron/sedd-medium", tokenizer=_GPT2, kind="masked", size=0.42, revision="refs/pr/1"
    ),
    "duo": KnownModel("s-sahoo/duo", kind="uniform", **_DDIT),
    "duo-distilled": KnownModel("s-sahoo/duo-distilled", kind="uniform", **_DDIT),
    "udlm-lm1b": KnownModel(
        "kuleshov-group/udlm-lm1b",
        tokenizer="google-bert/bert-base-uncased",
        kind="uniform",
        size=0.14,
    ),
    "gidd-small-0.0": KnownModel(
        "dvruette/gidd-small-p_unif-0.0", kind="hybrid", size=0.17, licence=_MIT
    ),
    "gidd-small-0.1": KnownModel(
        "dvruette/gidd-small-p_unif-0.1", kind="hybrid", size=0.17, licence=_MIT
    ),
    "gidd-small-0.2": KnownModel(
        "dvruette/gidd-small-p_unif-0.2", kind="hybrid", size=0.17, licence=_MIT
    ),
    "gidd-base-0.1": KnownModel(
        "dvruette/gidd-base-p_unif-0.1", kind="hybrid", size=0.4, licence=_MIT
    ),
    "gpt2": KnownModel(_GPT2, size=0.12, licence=_MIT),
    "pythia-160m": KnownModel("EleutherAI/pythia-160m", size=0.16, licence=_APACHE),
    "pythia-410m": KnownModel("EleutherAI/pythia-410m", size=0.41, licence=_APACHE),
    "pythia-1.4b": KnownModel("EleutherAI/pythia-1.4b", size=1.4, licence=_APACHE),
    "smollm2-135m": KnownModel("HuggingFaceTB/SmolLM2-135M", size=0.135, licence=_APACHE),
    "qwen2.5-0.5b": KnownModel("Qwen/Qwen2.5-0.5B", size=0.49, licence=_APACHE),
    "qwen3-0.6b": KnownModel("Qwen/Qwen3-0.6B", size=0.6, licence=_APACHE),
    "qwen3-30b": KnownModel("Qwen/Qwen3-30B-A3B", size=30.5, licence=_APACHE, has_experts=True),
}
