"""How a model of each kind is read, sampled and scored: the answers that other code asks for.

A kind is the noise that a model was trained for, or "causal". What depends on the noise alone
(mask, objectives, sampler) the noise answers; the rest is here, one class per way of reading.
Nothing else compares the names of kinds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from unmask.base.errors import UserError
from unmask.noise.masked import Masked
from unmask.noise.process import NoiseKind, Sampler
from unmask.noise.processes import PROCESSES

Kind = str
"""The noise that a model was trained for, a name of `PROCESSES`; "causal" is autoregressive."""


@dataclass(frozen=True)
class Paradigm:
    """A kind of diffusion model that is sampled and traced, but whose answers are not scored."""

    kind: Kind
    noise: type[NoiseKind] | None
    """None for autoregressive models."""

    sees_later: ClassVar[bool] = True
    """Whether the network's rows see the tokens after them. Where they do not, an answer is read in
    one pass, each token given those before it, and padding at a row's end changes nothing."""
    predicts_next: ClassVar[bool] = False
    """Whether the network's row i predicts position i + 1: a text's first token is given."""
    has_steps: ClassVar[bool] = True
    """Whether texts are drawn on a canvas in a chosen number of steps; else token by token."""
    fills_masks: ClassVar[bool] = False
    """Whether every position that is asked for holds a mask."""
    is_scored: ClassVar[bool] = False
    """Whether answers are scored token by token: for recall, perplexity, keys and values."""
    hides_behind_mask: ClassVar[bool] = True
    """Whether a mask can hide a subject, where there is a mask token."""

    @property
    def has_mask(self) -> bool:
        """Whether the noise has a mask token; a tokenizer may have one all the same."""
        return self.noise is not None and self.noise.has_mask

    @property
    def sampler(self) -> Sampler | Literal["causal"]:
        """How texts are drawn."""
        return "causal" if self.noise is None else self.noise.sampler

    @property
    def objectives(self) -> tuple[str, ...]:
        """What can be minimised; the first is what `auto` means."""
        causal = ("next_token", "masked", "masked_copy", "permuted", "fixed_orders")
        return causal if self.noise is None else self.noise.objectives

    @property
    def noises_vectors(self) -> bool:
        """Whether token vectors are noised, not tokens, by a network that is told the time."""
        return self.sampler == "vectors"

    @property
    def masks_evenly(self) -> bool:
        """Whether masked noise hides all tokens alike, as its schedule says and nothing else."""
        return self.noise is not None and issubclass(self.noise, Masked) and self.noise.masks_evenly

    @property
    def is_bound(self) -> bool:
        """Whether what a text costs is an upper bound on -log p, not -log p itself."""
        return self.noise is not None

    def row_of(self, position: int, shift: bool = False) -> int:
        """The network's row that predicts a position; with Dream's shift, the one before it."""
        return max(position - 1, 0) if shift else position

    def group_rows(self, lengths: Sequence[int]) -> list[list[int]]:
        """The numbers of rows that can be one batch, given their lengths."""
        groups: dict[int, list[int]] = {}
        for number, length in enumerate(lengths):
            # A row that sees everything sees padding, too.
            groups.setdefault(length if self.sees_later else 0, []).append(number)
        return list(groups.values())

    def require_scored(self, name: str, what: str) -> None:
        """Raise for a model of that name unless its answers are scored; `what` is not possible."""
        if not self.is_scored:
            known = [*dict(PROCESSES.load_each()), "causal"]
            scored = [kind for kind in known if get_paradigm(kind).is_scored]
            raise UserError(
                f"{name} is a {self.kind} model: {what} for {' and '.join(scored)} models."
            )


@dataclass(frozen=True)
class MaskedParadigm(Paradigm):
    """Masked diffusion: whatever is asked for is a mask, and rows see everything."""

    fills_masks: ClassVar[bool] = True
    is_scored: ClassVar[bool] = True


@dataclass(frozen=True)
class CausalParadigm(Paradigm):
    """Autoregression: every row sees what came before and predicts the next token."""

    sees_later: ClassVar[bool] = False
    predicts_next: ClassVar[bool] = True
    has_steps: ClassVar[bool] = False
    is_scored: ClassVar[bool] = True
    hides_behind_mask: ClassVar[bool] = False

    def row_of(self, position: int, shift: bool = False) -> int:
        if position < 1:
            raise UserError("an autoregressive model does not predict position 0: ask later.")
        return position - 1


def list_kinds() -> list[Kind]:
    """All kinds that a model can be of."""
    return [*PROCESSES, "causal"]


def find_unknown(kind: Kind) -> Iterator[str]:
    """The problem with a setting `kind` that is none of the kinds."""
    if kind not in list_kinds():
        yield f"'kind' is {kind!r}, expected one of {', '.join(list_kinds())}"


def get_paradigm(kind: Kind) -> Paradigm:
    """How models of a kind are read; a masked noise of one's own is read as masked noise is."""
    if kind == "causal":
        return CausalParadigm(kind, None)
    noise = PROCESSES.find(kind)
    return (MaskedParadigm if noise.sampler == "unmasking" else Paradigm)(kind, noise)
