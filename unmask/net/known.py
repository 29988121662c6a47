"""Models of the literature by a short name: where they are, and what their files do not say."""

from dataclasses import dataclass
from typing import Any

from unmask.net.paradigm import get_paradigm


@dataclass(frozen=True)
class KnownModel:
    """Where to get a model of the literature."""

    repo: str
    file: str | None = None
    """For a repository that holds many models, the path of this one in it."""
    tokenizer: str | None = None
    """For models that come without one, the repository whose tokenizer they use."""
    kind: str = "causal"
    size: float | None = None
    """Parameters, in thousand millions."""
    licence: str = ""
    """Where it was seen."""
    dialect: str = ""
    """The format of its files (`unmask.net.dialects`)."""
    unconfirmed: str = ""
    """What was seen neither in its settings nor in its authors' code or paper."""
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


def group_unconfirmed() -> dict[str, list[str]]:
    """What is not confirmed, and the names of the models that it is said of."""
    groups: dict[str, list[str]] = {}
    for name, known in KNOWN.items():
        if known.unconfirmed:
            groups.setdefault(known.unconfirmed, []).append(name)
    return groups


def _know(
    dialect: str, repo: str, size: float, licence: str = "", kind: str = "masked", **more: Any
) -> KnownModel:
    return KnownModel(repo, kind=kind, size=size, licence=licence, dialect=dialect, **more)


def _know_smdm(file: str, kind: str = "masked") -> KnownModel:
    return _know("smdm", "nieshen/SMDM", 1.14, kind=kind, file=file, tokenizer=_SMDM)


def _know_mixture(dialect: str, repo: str, size: float, **more: Any) -> KnownModel:
    return _know(dialect, repo, size, _APACHE, has_experts=True, **more)


def _know_ddit(dialect: str, repo: str, size: float = 0.17, **more: Any) -> KnownModel:
    return _know(dialect, repo, size, **{"tokenizer": _GPT2} | more)


_SMDM = "TinyLlama/TinyLlama-1.1B-intermediate-step-1431k-3T"
_GPT2, _BERT = "openai-community/gpt2", "google-bert/bert-base-uncased"
_APACHE, _MIT, _APPLE = "Apache-2.0", "MIT", "apple-amlr"

KNOWN: dict[str, KnownModel] = {
    "mdm-1028M": _know_smdm("mdm_safetensors/mdm-1028M-1600e18.safetensors"),
    "ar-1028M": _know_smdm("ar_safetensors/ar-1028M-100e18.safetensors", kind="causal"),
    "mdm-1028M-reverse": _know_smdm("reverse_safetensors/mdm-1028M-1600e18-reverse.safetensors"),
    "llada-8b": _know("llada", "GSAI-ML/LLaDA-8B-Base", 8.0, _MIT),
    "llada-8b-instruct": _know("llada", "GSAI-ML/LLaDA-8B-Instruct", 8.0, _MIT),
    "llada-1.5": _know("llada", "GSAI-ML/LLaDA-1.5", 8.0, _MIT),
    "illada-8b": _know(
        "illada", "GSAI-ML/iLLaDA-8B-Base", 7.6, _APACHE, mask=5, unconfirmed="its type `illada`"
    ),
    "illada-8b-instruct": _know(
        "illada",
        "GSAI-ML/iLLaDA-8B-Instruct",
        7.6,
        _APACHE,
        mask=5,
        unconfirmed="its type `illada`",
    ),
    "llada-moe": _know_mixture(
        "llada_moe", "inclusionAI/LLaDA-MoE-7B-A1B-Base", 7.4, unconfirmed="its shared expert"
    ),
    "llada-moe-instruct": _know_mixture(
        "llada_moe", "inclusionAI/LLaDA-MoE-7B-A1B-Instruct", 7.4, unconfirmed="its shared expert"
    ),
    "llada2-mini": _know_mixture("llada2_moe", "inclusionAI/LLaDA2.0-mini", 16.3, mask=156_895),
    "llada2.1-mini": _know_mixture("llada2_moe", "inclusionAI/LLaDA2.1-mini", 16.3, mask=156_895),
    "dream-7b": _know("dream", "Dream-org/Dream-v0-Base-7B", 7.6, _APACHE),
    "dream-7b-instruct": _know("dream", "Dream-org/Dream-v0-Instruct-7B", 7.6, _APACHE),
    "dream-coder-7b": _know("dream", "Dream-org/Dream-Coder-v0-Base-7B", 7.6),
    "dream-coder-7b-instruct": _know("dream", "Dream-org/Dream-Coder-v0-Instruct-7B", 7.6),
    "diffucoder-7b": _know("dream", "apple/DiffuCoder-7B-Base", 7.6, _APPLE),
    "diffucoder-7b-instruct": _know("dream", "apple/DiffuCoder-7B-Instruct", 7.6, _APPLE),
    "diffucoder-7b-cpgrpo": _know("dream", "apple/DiffuCoder-7B-cpGRPO", 7.6, _APPLE),
    "sdar-1.7b": _know("sdar", "JetLM/SDAR-1.7B-Chat", 1.7, _APACHE, mask=151_669),
    "sdar-4b": _know("sdar", "JetLM/SDAR-4B-Chat", 4.0, _APACHE, mask=151_669),
    "sdar-8b": _know("sdar", "JetLM/SDAR-8B-Chat", 8.2, _APACHE, mask=151_669),
    "sdar-30b": _know_mixture(
        "sdar_moe", "JetLM/SDAR-30B-A3B-Chat", 30.5, mask=151_669, unconfirmed="its type `sdar_moe`"
    ),
    "rnd1": _know_mixture("rnd1", "radicalnumerics/RND1-Base-0910", 30.5),
    "fast-dllm-1.5b": _know(
        "fast_dllm", "Efficient-Large-Model/Fast_dLLM_v2_1.5B", 1.5, _APACHE, mask=151_665
    ),
    "fast-dllm-7b": _know(
        "fast_dllm", "Efficient-Large-Model/Fast_dLLM_v2_7B", 7.6, _APACHE, mask=151_665
    ),
    "efficient-dlm-4b": _know(
        "qwen3",
        "nvidia/Efficient-DLM-4B",
        4.0,
        "CC-BY-NC-4.0",
        unconfirmed="whether it sees everything, as its settings say, or blocks of 32",
    ),
    "stable-diffcoder-8b": _know(
        "llama",
        "ByteDance-Seed/Stable-DiffCoder-8B-Instruct",
        8.3,
        _MIT,
        says_kind=False,
        mask=5,
        shift=False,
        block=4,
    ),
    "open-dcoder-0.5b": _know(
        "qwen2", "fredzzp/open-dcoder-0.5B", 0.5, says_kind=False, mask=151_665, shift=True
    ),
    "qwen3-0.6b-mdlm": _know("a2d", "dllm-hub/Qwen3-0.6B-diffusion-mdlm-v0.1", 0.6),
    "qwen3-0.6b-bd3lm": _know("a2d", "dllm-hub/Qwen3-0.6B-diffusion-bd3lm-v0.1", 0.6, block=32),
    "qwen2.5-coder-0.5b-mdlm": _know(
        "a2d", "dllm-hub/Qwen2.5-Coder-0.5B-Instruct-diffusion-mdlm-v0.1", 0.5
    ),
    "qwen2.5-coder-0.5b-bd3lm": _know(
        "a2d", "dllm-hub/Qwen2.5-Coder-0.5B-Instruct-diffusion-bd3lm-v0.1", 0.5, _APACHE, block=32
    ),
    "bert-base": _know("bert", _BERT, 0.11, _APACHE),
    "bert-large": _know("bert", "google-bert/bert-large-uncased", 0.34, _APACHE),
    "modernbert-base": _know("modernbert", "answerdotai/ModernBERT-base", 0.15, _APACHE),
    "modernbert-large": _know("modernbert", "answerdotai/ModernBERT-large", 0.4, _APACHE),
    "modernbert-base-chat": _know("modernbert", "dllm-hub/ModernBERT-base-chat-v0.1", 0.15),
    "modernbert-large-chat": _know("modernbert", "dllm-hub/ModernBERT-large-chat-v0.1", 0.4),
    "mdlm-owt": _know_ddit("mdlm", "kuleshov-group/mdlm-owt"),
    "mdlm-noeos-owt": _know_ddit(
        "bd3lm", "kuleshov-group/mdlm-noeos-owt", unconfirmed="its settings"
    ),
    "bd3lm-owt-4": _know_ddit("bd3lm", "kuleshov-group/bd3lm-owt-block_size4"),
    "bd3lm-owt-8": _know_ddit("bd3lm", "kuleshov-group/bd3lm-owt-block_size8"),
    "bd3lm-owt-16": _know_ddit("bd3lm", "kuleshov-group/bd3lm-owt-block_size16"),
    "ar-noeos-owt": _know_ddit(
        "bd3lm", "kuleshov-group/ar-noeos-owt", kind="causal", unconfirmed="its settings"
    ),
    "radd-lambda": _know_ddit("radd", "JingyangOu/radd-lambda-dce"),
    "radd-t": _know_ddit("radd", "JingyangOu/radd-t-dce"),
    "sedd-small": _know_ddit(
        "sedd",
        "louaaron/sedd-small",
        revision="refs/pr/1",
        unconfirmed="its revision with safetensors",
    ),
    "sedd-medium": _know_ddit("sedd", "louaaron/sedd-medium", 0.42, revision="refs/pr/1"),
    "duo": _know_ddit("duo", "s-sahoo/duo", kind="uniform"),
    "duo-distilled": _know_ddit("duo", "s-sahoo/duo-distilled", kind="uniform"),
    "udlm-lm1b": _know_ddit(
        "udlm", "kuleshov-group/udlm-lm1b", 0.14, kind="uniform", tokenizer=_BERT
    ),
    "gidd-small-0.0": _know("gidd", "dvruette/gidd-small-p_unif-0.0", 0.17, _MIT, "hybrid"),
    "gidd-small-0.1": _know("gidd", "dvruette/gidd-small-p_unif-0.1", 0.17, _MIT, "hybrid"),
    "gidd-small-0.2": _know("gidd", "dvruette/gidd-small-p_unif-0.2", 0.17, _MIT, "hybrid"),
    "gidd-base-0.1": _know("gidd", "dvruette/gidd-base-p_unif-0.1", 0.4, _MIT, "hybrid"),
    "gpt2": _know("gpt2", _GPT2, 0.12, _MIT, "causal"),
    "pythia-160m": _know("gpt_neox", "EleutherAI/pythia-160m", 0.16, _APACHE, "causal"),
    "pythia-410m": _know("gpt_neox", "EleutherAI/pythia-410m", 0.41, _APACHE, "causal"),
    "pythia-1.4b": _know("gpt_neox", "EleutherAI/pythia-1.4b", 1.4, _APACHE, "causal"),
    "smollm2-135m": _know("llama", "HuggingFaceTB/SmolLM2-135M", 0.135, _APACHE, "causal"),
    "qwen2.5-0.5b": _know("qwen2", "Qwen/Qwen2.5-0.5B", 0.49, _APACHE, "causal"),
    "qwen3-0.6b": _know("qwen3", "Qwen/Qwen3-0.6B", 0.6, _APACHE, "causal"),
    "nemotron-diffusion-3b": _know(
        "nemotron_labs_diffusion", "nvidia/Nemotron-Labs-Diffusion-3B", 3.0
    ),
    "nemotron-diffusion-8b": _know(
        "nemotron_labs_diffusion", "nvidia/Nemotron-Labs-Diffusion-8B", 8.0
    ),
    "qwen3-30b": _know_mixture("qwen3_moe", "Qwen/Qwen3-30B-A3B", 30.5, kind="causal"),
}
