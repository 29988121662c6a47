"""What the toy experiment is asked; apart from the rest, which needs torch."""

from dataclasses import dataclass

from unmask.base.config import CheckedSettings, option

VARIANTS = ("gaussian", "warped", "uniform", "curriculum", "scores", "hybrid", "by_unit")
VARIANTS += ("masked", "causal")


@dataclass(frozen=True, kw_only=True)
class ToySettings(CheckedSettings):
    """Which variants learn the toy language, for how long, and how much is drawn from each."""

    variants: tuple[str, ...] = option(VARIANTS, "Which to train.", choices=lambda: VARIANTS)
    steps: int | None = option(
        None, "Training steps; by default each has its own.", least=1, most=10**8
    )
    samples: int = option(5_000, "Samples to draw from each.", least=1, most=10**8)
    seed: int = option(0, "Seed of the networks, the noise and the samples.", least=0)
