"""How facts are written into a network: the update, the partial reveals, and the search."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from unmask.base.config import option
from unmask.representation.settings import Extraction


@dataclass(frozen=True, kw_only=True)
class Editing(Extraction):
    """What a fact is written with: settings of `unmask.edit`.

    The search for values has those of `unmask.Extraction`, with the reference's weight of the KL
    (Meng et al. 2022). Its norm term, 0.5 ||delta|| / ||v0||^2, is off: it hardly weighs where
    values are long, and forbids any edit where they are shorter than 1, as in small networks.

    >>> from unmask.editing.settings import Editing
    >>> settings = Editing(ridge=20.0, reveal="cycle")
    >>> settings.kl, settings.clamp
    (0.0625, 4.0)
    """

    kl: float = option(0.0625, "Weight of what else is said of the subject (KL).", least=0)
    method: Literal["update", "null-space", "rome"] = option(
        "update",
        "`update`: least harm under the moments (r-ROME, EMMET, with a ridge MEMIT); `null-space`: "
        "only where keys of text hardly point (AlphaEdit); `rome`: as published, for comparison.",
    )
    ridge: float = option(
        0.0, "Trades hitting the values for disturbing other keys less; 0 hits exactly.", least=0
    )
    null_share: float = option(
        0.02,
        "Of `null-space`: the share of the moments' trace that the directions written in may hold.",
        above=0,
        most=1,
    )
    reveal: Literal["none", "cycle", "random"] = option(
        "none",
        "Tokens of the object that a masked model is shown at each step of the search: none, step "
        "modulo length of them, or a random number; which ones is drawn. A causal model always "
        "sees those before.",
    )
    bare_weight: float | None = option(
        None,
        "Weight in its key of the prompt without a prefix: as much as any other by default "
        "(ROME's); MEMIT's is 0.5.",
        least=0,
        most=1,
    )

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if self.reveal != "none" and self.revealed != (0.0,):
            yield "'reveal' and 'revealed' both show parts of the object: leave one out"
        if self.reveal != "none" and self.stop != "steps":
            yield (
                f"'stop' is {self.stop!r}, but with reveal={self.reveal} a step's loss is about "
                "some tokens of the object only: expected steps"
            )
