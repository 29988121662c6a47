"""How facts are traced: what is hidden, where states are restored, how the answer is scored."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, is_dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args, runtime_checkable

from unmask.base.config import CheckedSettings, option

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

    from unmask.net.model import Model
    from unmask.tracing.corruption import Corrupted

PartName = Literal["resid", "mlp", "attn", "attn_z", "attn_q", "attn_k", "attn_v", "embed"]
PARTS: tuple[PartName, ...] = get_args(PartName)
NOT_REPLACED = ("attn_q", "attn_k", "attn_v")
"""Parts without zero or mean values: they are turned by their positions."""
WHOLE_SUBJECT, WHOLE_ANSWER = "whole subject", "whole answer"
"""Rows of a grid that restore all of the subject's tokens, or all rows the answer is read from."""
JOINT_ROLES = (WHOLE_SUBJECT, "whole prompt", "last prompt", WHOLE_ANSWER, "written", "masks")
"""Rows of a grid that restore all positions of a role: the subject, other prompt tokens, the last
one, rows the answer is read from, other written tokens, other masks."""
STEPS = ("first", "t1", "last", "t2", "all", "t1..t2")
"""Steps by name; others are numbers. The last two are the same steps, by their numbers and counted
from t1."""
STEP_SETTINGS = (
    "at",
    "steps",
    "length",
    "run",
    "source",
    "together",
    "cells",
    "any_answer",
    "order",
    "remask",
)
"""Settings about a generation and its steps; a single state of tokens has none of them."""


@runtime_checkable
class Corruption(Protocol):
    """What hides a subject: those of `unmask.corruptions`, or an object of one's own."""

    @property
    def name(self) -> str:
        """For records and captions."""
        ...

    def apply(
        self, model: "Model", tokens: "Int[Tensor, 'L']", positions: Sequence[int], /
    ) -> "Corrupted":
        """S rows of the text, each with what stands at the positions hidden."""
        ...


@dataclass(frozen=True, kw_only=True)
class Tracing(CheckedSettings):
    """What a fact is traced with: the settings of `unmask.trace_steps` and `unmask.trace_tokens`.

    Both take one of these, or its fields as keyword arguments. A corruption may also be an object
    or a function as in `unmask.corruptions`, a metric a function as in
    `unmask.tracing.metrics.Metric`.

    >>> settings = unmask.Tracing(corruption="mask", parts=("resid",), at="first")
    >>> settings.at, settings.joint
    (('first',), 'mean_field')
    """

    filled = ("parts", "at")
    distinct = ("parts", "windows")

    corruption: str | Corruption | Callable[..., Any] = option(
        "mean",
        "How the subject is hidden: mean (the mean embedding), gaussian, uniform or rome noise, "
        "mask, or replace (another fact's subject).",
        plugin="corruption",
    )
    samples: int = option(
        10, "Noise samples, or other subjects; masks and means need one.", least=1, most=100_000
    )
    at: tuple[str | int, ...] = option(
        ("first", "last"),
        "Denoising steps to trace: first, t1 and t2 (that commit the answer's first and last "
        "token; last is t2), all of them from t1 to t2 by number, t1..t2 the same counted from t1, "
        "or numbers.",
    )
    parts: tuple[PartName, ...] = option(
        ("resid", "mlp", "attn"),
        "What is restored: resid (the residual stream after a layer), mlp and attn (outputs of a "
        "window of layers), attn_z (single heads), attn_q, attn_k and attn_v (queries, keys or "
        "values of a layer), embed.",
    )
    window: int | None = option(
        None,
        "Layers of mlp and attn that are restored together; by default half of the shallowest "
        "model's, and at most 10.",
        least=1,
    )
    windows: tuple[int, ...] = option(
        (),
        "Further windows of mlp and attn, restored beside it: parts mlp@1, attn@3, …",
        least=1,
        most=1_000_000,
    )
    together: bool = option(
        False,
        "Also restore all subject tokens together, and all positions that the answer is read "
        "from, and score each answer token alone.",
    )
    cells: Literal["tokens", "roles"] = option(
        "tokens",
        "Restore every position, or the positions of a role together: the subject, other prompt "
        "tokens, the last one, the answer's positions, other written tokens, other masks.",
    )
    metric: str | Callable[..., Any] = option(
        "p",
        "How an answer is scored: p, logp, logp_per_token, logit_difference or normalised.",
        plugin="metric",
    )
    joint: Literal["mean_field", "chain_rule"] = option(
        "mean_field",
        "The score of a diffusion model's answer of several tokens: the product over masks of one "
        "state, or token by token, those before it revealed. A causal model's is the latter.",
    )
    steps: int = option(16, "Denoising steps of the clean run.", least=1, most=1_000_000)
    guidance: float = option(0.0, "Guidance of a diffusion model; 0 is off.", least=0)
    order: str = option(
        "confidence",
        "Which masks the clean run commits first: confidence, entropy, margin, left or random.",
        plugin="order",
    )
    remask: str = option(
        "none",
        "Which tokens the clean run masks again: none, cap, rescale, conf, loop or low.",
        plugin="remasking",
    )
    length: int | None = option(
        None, "Positions of the canvas; 52 by default, or what a text needs.", least=2
    )
    mode: Literal["restore", "ablate", "zero", "mean"] = option(
        "restore",
        "Put clean states into the corrupted run; or into the clean run corrupted ones (ablate), "
        "zeros, or means over the positions of all facts' texts.",
    )
    run: Literal["teacher_forced", "free_running"] = option(
        "teacher_forced",
        "Corrupt the clean run's state of a step, or the state that the corrupted prompt's own "
        "generation has reached.",
    )
    source: Literal["subject", "committed", "both"] = option(
        "subject", "What is hidden: the subject, answer tokens that are already written, or both."
    )
    severed: Literal["mlp", "attn"] | None = option(
        None, "With resid alone: what these outputs add later stays as in the corrupted run."
    )
    any_answer: bool = option(
        False, "Also take facts that are not recalled, the true answer put in place."
    )
    seed: int = option(0, "Seed of the noise, the placebos and the tests.", least=0)

    def __post_init__(self) -> None:
        if isinstance(self.at, str | int):
            object.__setattr__(self, "at", (self.at,))
        super().__post_init__()

    @property
    def all_parts(self) -> tuple[str, ...]:
        """The parts, those of further windows included."""
        outputs = [part for part in self.parts if part in ("mlp", "attn")]
        return (*self.parts, *(f"{part}@{width}" for part in outputs for width in self.windows))

    def to_record(self) -> dict[str, Any]:
        own = {name: _name(getattr(self, name)) for name in ("corruption", "metric")}
        return super().to_record() | own

    def _problems(self) -> Iterator[str]:
        yield from check_steps(self.at)
        if self.mode in ("zero", "mean") and any(part in NOT_REPLACED for part in self.parts):
            yield f"'mode' is {self.mode}, which is not for the parts {', '.join(NOT_REPLACED)}"
        if self.severed is not None and set(self.parts) != {"resid"}:
            yield "'severed' is for the part resid alone, expected parts=('resid',)"
        if self.run == "free_running" and self.source != "subject":
            yield "'run' is free_running, which corrupts the subject, expected source='subject'"


def check_steps(at: Sequence[str | int]) -> Iterator[str]:
    """What is wrong with the steps that are asked for."""
    for step in at:
        if step not in STEPS and (not str(step).isdecimal() or int(step) < 1):
            yield f"'at' has {step!r}, expected {', '.join(STEPS)} or a number from 1"


BY_CHAIN = Tracing(joint="chain_rule")
"""What knock-out and path patching ask with, at one step: the whole answer, token by token.

A trace along steps asks for what is still open in one state, so that it can say what committed
tokens bring.
"""


def _name(choice: Any) -> str:
    """A corruption or metric in the record of a run: its name, or what tells it from others."""
    if isinstance(choice, str):
        return choice
    if is_dataclass(choice):
        return repr(choice)
    return getattr(choice, "__qualname__", type(choice).__qualname__)
