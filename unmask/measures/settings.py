"""Settings that several measures share."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from unmask.base.config import CheckedSettings, option


@dataclass(frozen=True, kw_only=True)
class MachineSettings(CheckedSettings):
    """Where a model runs."""

    dtype: str = option("auto", "float32, bfloat16, …; auto suits the file and the device.")
    device: str = option("auto", "auto, cpu, cuda, cuda:N or mps.", is_identity=False)
    dtype_on_gpu: ClassVar[str] = "auto"
    """What the dtype "auto" means on CUDA; "auto" here: what `unmask.load` takes it for."""
    dtype_elsewhere: ClassVar[str] = "auto"

    def settle(self) -> Self:
        """Settings with the dtype that "auto" means on this machine, for the record of a run."""
        from unmask.base.devices import choose_dtype

        on_gpu, elsewhere = self.dtype_on_gpu, self.dtype_elsewhere
        if on_gpu == elsewhere or self.dtype != "auto":
            return self
        return replace(self, dtype=choose_dtype(self.dtype, self.device, on_gpu, elsewhere))


@dataclass(frozen=True, kw_only=True)
class StateSettings(MachineSettings):
    """In what, and on which canvas, states are computed that are compared or changed."""

    dtype: str = option("float32", "float32, bfloat16, …")
    length: int | None = option(
        None, "Positions of the canvas; 52 by default, or what a text needs.", least=2
    )


@dataclass(frozen=True, kw_only=True)
class GroupSettings(StateSettings):
    """Which facts are looked into, by how they were trained."""

    filled = ("groups",)

    groups: tuple[str, ...] = option(
        ("p2d", "d2p", "both"),
        "Facts by the direction they were trained in; one's own facts are one group.",
        choices=lambda: ("p2d", "d2p", "both"),
    )


@dataclass(frozen=True, kw_only=True)
class QuestionSettings(MachineSettings):
    """Which prompts are asked, on what canvas."""

    splits: tuple[str, ...] = option((), "Splits of the corpus; its tests by default.")
    limit: int | None = option(None, "Prompts of each split; all by default.", least=1)
    length: int | None = option(
        None, "Positions of the canvas; 52 by default, or what the longest text needs.", least=2
    )


@dataclass(frozen=True, kw_only=True)
class SamplingSettings(QuestionSettings):
    """How texts are drawn, by names or, from Python, by functions of one's own."""

    plan: str | Callable = option(
        "smdm",
        "How many tokens a step commits: smdm, llada, linear, cosine, one, threshold=0.9 or "
        "ancestral.",
        plugin="plan",
    )
    order: str | Callable = option(
        "confidence",
        "Which tokens go first: confidence, entropy, margin, left or random.",
        plugin="order",
    )

    def check_strategies(self) -> None:
        """Raise for an unknown name.

        Not when settings are made: a run records the name of a function of one's own.
        """
        from unmask.sampling.orders import get_order
        from unmask.sampling.plans import get_plan

        get_plan(self.plan)
        get_order(self.order)
