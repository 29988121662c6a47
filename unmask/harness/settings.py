"""How a model answers the requests of lm-evaluation-harness: likelihoods and texts."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from unmask.base.config import option
from unmask.sampling.settings import Sampling

OF_ONE_TEXT = ("length", "fixed", "planted", "keep_states", "guesses", "watch", "chat")
"""Settings of `unmask.Sampling` that tasks and the command line leave alone."""


@dataclass(frozen=True, kw_only=True)
class HarnessSettings(Sampling):
    """How requests are answered; the settings of `unmask.Sampling` are those of generated texts.

    A task's own `generation_kwargs` come before what is said here, and are the only ones that say
    how a text ends.
    """

    likelihood: Literal["exact_k", "bernoulli", "chain"] = option(
        "exact_k",
        "Of a masked model: the bound by masking exactly k tokens or each with a probability, or "
        "the exact cost of writing one token at a time from left to right.",
    )
    strata: int = option(
        16,
        "Evenly spread numbers of masks that one estimate of a bound averages over.",
        least=1,
        most=1_000_000,
    )
    repeats: int = option(
        8,
        "Independent estimates of a bound; their spread gives its standard error.",
        least=2,
        most=1_000_000,
    )
    window: int | None = option(
        None,
        "Tokens of a window where a text is scored in windows; by default the model's context.",
        least=2,
    )
    stride: int | None = option(
        None,
        "Tokens from one window to the next; by default windows do not overlap.",
        least=1,
    )
    max_gen_toks: int = option(
        256,
        "Tokens to generate at most, where a task does not say it; never over half the context.",
        least=1,
    )
    signals: bool = option(
        False,
        "Keep what each text's drawing says of it (entropy, margins, changes of mind, order), and "
        "how well that tells wrong answers.",
    )
    rows: int | None = option(
        None,
        "Rows of a batch at most; by default as many as fit into memory.",
        least=1,
        is_identity=False,
    )

    def to_record(self) -> dict[str, Any]:
        """The settings as JSON holds them, without those that every request has of its own."""
        known = super().to_record()
        return {name: value for name, value in known.items() if name not in OF_ONE_TEXT}

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if self.window is not None and self.stride is not None and self.stride >= self.window:
            yield f"'stride' is {self.stride}, expected less than the window of {self.window}"
