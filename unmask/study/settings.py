"""What a study measures and how much of it: three sizes, and every number of them in one place."""

from dataclasses import dataclass
from typing import Literal

STAGES = ("data", "recall", "denoising", "tracing", "symmetry", "page")
SHIPPED_MODEL, SHIPPED_TWIN = "reversal-mdm", "reversal-ar"
"""The names of the pair that comes with the package; recipes of the same names train it."""

SizeName = Literal["quick", "laptop", "full"]


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is asked."""

    prompts: int | None
    """Of each split, for recall and the factorization check; None: all."""
    steps: tuple[int, ...]
    """Sampling steps of the recall table."""
    watched: int
    """Prompts of each split whose un-masking is watched."""
    examples: int
    """Of those, how many are kept token by token for the animation."""
    considered: int
    """Facts of each split among which those that are recalled are traced first."""
    traced: int
    """Facts of each split that are traced at the first and the last step."""
    parts: tuple[str, ...]
    """What is restored there: states, outputs of MLPs, outputs of attention."""
    followed: int
    """Facts of each split that are traced along the trajectory."""
    along: tuple[str, ...]
    """The steps of it that are traced."""
    along_parts: tuple[str, ...]
    """What is restored there."""
    trace_steps: int
    """Denoising steps of the generations that are traced and watched."""
    corruption: Literal["mask", "gaussian"]
    """How subjects are hidden from the diffusion model."""
    shared_corruption: Literal["mean", "gaussian"]
    """The same for both models, so that they can be compared: a causal one has no masks."""
    samples: int
    """Noise samples of a corruption that is random."""
    groups: tuple[str, ...]
    """Of facts, by how they were trained, whose keys and values are found."""
    paired: int
    """Facts of each group whose keys and values are found."""
    updates: int
    """Evaluations of the loss in the search for a value."""
    prefixes: int
    permutations: int
    """Shuffled pairings of each null."""


SIZES: dict[str, Size] = {
    "quick": Size(
        prompts=3,
        steps=(1, 4),
        watched=2,
        examples=1,
        considered=6,
        traced=1,
        parts=("resid",),
        followed=1,
        along=("1", "4"),
        along_parts=("resid",),
        trace_steps=4,
        corruption="mask",
        shared_corruption="mean",
        samples=1,
        groups=("p2d",),
        paired=10,
        updates=4,
        prefixes=1,
        permutations=199,
    ),
    "laptop": Size(
        prompts=14,
        steps=(1, 2, 4, 8, 16),
        watched=5,
        examples=2,
        considered=12,
        traced=2,
        parts=("resid", "mlp", "attn"),
        followed=1,
        along=("1", "4", "8", "12"),
        along_parts=("resid",),
        trace_steps=16,
        corruption="mask",
        shared_corruption="mean",
        samples=1,
        groups=("p2d", "d2p"),
        paired=12,
        updates=10,
        prefixes=1,
        permutations=999,
    ),
    "full": Size(
        prompts=None,
        steps=(1, 2, 4, 8, 16, 32),
        watched=30,
        examples=4,
        considered=30,
        traced=30,
        parts=("resid", "mlp", "attn"),
        followed=30,
        along=("all",),
        along_parts=("resid", "mlp", "attn"),
        trace_steps=16,
        corruption="gaussian",
        shared_corruption="gaussian",
        samples=10,
        groups=("p2d", "d2p", "both"),
        paired=30,
        updates=20,
        prefixes=4,
        permutations=999,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Study:
    """What decides the numbers of a study."""

    model: str
    """The diffusion model: a name, folder, file or hub id."""
    twin: str | None = None
    """Its autoregressive twin; None: it is studied alone."""
    data: str | None = None
    """A corpus folder, Berglund's, or a file of one's own facts; None: a corpus is made."""
    facts: int = 30
    """Facts a group of a corpus that is made."""
    size: SizeName = "laptop"
    guidance: float = 0.8
    """Of the recall table and of what is watched; traces have none."""
    metric: Literal["p", "logp", "logit_difference", "normalised"] = "logp"
    """Of the answer, in which effects are measured. One restored state of a long subject moves the
    probability of an answer of several tokens little, its logarithm visibly."""
    seed: int = 0
    dtype: str = "float32"

    @property
    def amounts(self) -> Size:
        return SIZES[self.size]
