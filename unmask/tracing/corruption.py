"""Corruptions: ways to make a network forget which subject it was asked about.

Each is a small frozen dataclass with a `name`, the number of `samples` it draws, and `apply`, which
says what becomes of the tokens and of their embeddings. Networks see the result through `embed`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.base.choices import make_choice, refuse_type
from unmask.base.errors import UserError
from unmask.base.seeds import python_stream
from unmask.base.streams import RowStreams
from unmask.net.model import Model


@dataclass(frozen=True)
class Corrupted:
    """A corrupted prompt: S rows of tokens, and what is done to their embeddings."""

    tokens: Int[Tensor, "S L"]
    noisy: Int[Tensor, "P"] | None = None
    """Positions whose embeddings get noise."""
    added: Float[Tensor, "S P D"] | None = None
    """That noise, in float64."""
    blanked: Int[Tensor, "Q"] | None = None
    """Positions whose embeddings become the mean of all embeddings."""
    blank: Float[Tensor, "D"] | None = None
    """That mean, in float64."""

    @property
    def samples(self) -> int:
        return len(self.tokens)

    def embed(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        """Embeddings of rows that start with the S samples, those of the samples corrupted.

        Rows after them are left alone: guidance's second pass, which sees no prompt.
        """
        if self.added is None and self.blank is None:
            return x
        x, rows = x.clone(), slice(0, self.samples)
        if self.blank is not None:
            x[rows, self.blanked] = self.blank.to(x)
        if self.added is not None:
            # In float64 and rounded once, as adding float64 noise to float32 in place does it.
            x[rows, self.noisy] = (x[rows, self.noisy].double() + self.added).to(x.dtype)
        return x


@runtime_checkable
class Corruption(Protocol):
    """What tracing asks of a corruption."""

    @property
    def name(self) -> str:
        """For records and captions."""
        ...

    def apply(self, model: Model, tokens: Int[Tensor, "L"], places: Sequence[int]) -> Corrupted:
        """The rows that hide what stands at the places."""
        ...


@dataclass(frozen=True)
class Noise:
    """Noise on the subject's token embeddings, before any positions are added.

    `sigma` is its standard deviation; None is three times that of the subject's own embeddings
    (`measure_sigma` gives the reference's, over all subjects). `stream` is a seed, under which
    every text has noise of its own, the same at all its steps, or "rome" for the reference's: the
    same numbers for all facts.
    """

    sigma: float | None = None
    samples: int = 10
    stream: int | Literal["rome"] = 0
    shape: Literal["gaussian", "uniform"] = "gaussian"

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise UserError(f"{self.samples} noise samples were asked for: expected at least 1.")
        if self.sigma is not None and not self.sigma >= 0:
            raise UserError(f"the noise has sigma {self.sigma}: expected 0 or more.")
        if self.stream == "rome" and self.shape != "gaussian":
            raise UserError("the stream 'rome' is gaussian: use a seed for uniform noise.")

    @property
    def name(self) -> str:
        return "rome" if self.stream == "rome" else self.shape

    def apply(self, model: Model, tokens: Int[Tensor, "L"], places: Sequence[int]) -> Corrupted:
        sigma = self.sigma
        if sigma is None:
            sigma = measure_sigma(model, [[int(tokens[i]) for i in places]])
        drawn = self._draw(_name_text(tokens, places), len(places), model.net.config.width)
        drawn = drawn.to(tokens.device)
        rows = tokens.expand(self.samples, -1)
        return Corrupted(rows, _to_tensor(places, tokens), sigma * drawn)

    def _draw(self, text: list[int], count: int, width: int) -> Float[Tensor, "S P D"]:
        """Numbers of mean 0 and deviation 1."""
        if self.stream == "rome":
            numbers = np.random.RandomState(1).randn(self.samples, count, width)
            return torch.from_numpy(numbers)
        names = [(text, sample) for sample in range(self.samples)]
        streams = RowStreams.make(self.stream, names)
        if self.shape == "gaussian":
            return streams.normal(count, width)
        return (2 * streams.uniform(count, width) - 1) * 3**0.5


@dataclass(frozen=True)
class Mask:
    """[MASK] in place of the subject: in distribution for a masked model, and one sample."""

    @property
    def name(self) -> str:
        return "mask"

    def apply(self, model: Model, tokens: Int[Tensor, "L"], places: Sequence[int]) -> Corrupted:
        if model.mask_id is None:
            raise UserError(
                f"the model {model.name} is {model.kind} and has no mask token to hide the subject "
                "behind: use noise, the mean embedding or another subject."
            )
        return Corrupted(tokens[None].index_fill(1, _to_tensor(places, tokens), model.mask_id))


@dataclass(frozen=True)
class Mean:
    """The mean of all token embeddings in place of the subject's; one sample."""

    @property
    def name(self) -> str:
        return "mean"

    def apply(self, model: Model, tokens: Int[Tensor, "L"], places: Sequence[int]) -> Corrupted:
        at = _to_tensor(places, tokens)
        return Corrupted(tokens[None], blanked=at, blank=_mean_embedding(model))


class NoReplacementError(UserError):
    """A subject that no other is as long as."""


@dataclass(frozen=True)
class Replace:
    """Other facts' subjects in place of this one, of the same number of tokens.

    `subjects` are token ids; up to `samples` of those that fit are drawn, without repeats.
    """

    subjects: tuple[tuple[int, ...], ...]
    samples: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.subjects:
            raise UserError(
                "the corruption 'replace' puts other subjects in the subject's place, but none "
                "were given: name their token ids, as in unmask.Replace(subjects)."
            )

    @property
    def name(self) -> str:
        return "replace"

    def apply(self, model: Model, tokens: Int[Tensor, "L"], places: Sequence[int]) -> Corrupted:
        own = tuple(int(tokens[i]) for i in places)
        same = {tuple(ids) for ids in self.subjects if len(ids) == len(own)}
        fitting = sorted(same - {own})
        if not fitting:
            lengths = sorted({len(ids) for ids in self.subjects})
            raise NoReplacementError(
                f"no other subject has {len(own)} tokens (they have {lengths}): give more "
                "subjects, or use another corruption."
            )
        stream = python_stream(self.seed, "replace", _name_text(tokens, places))
        chosen = stream.sample(fitting, min(self.samples, len(fitting)))
        at = _to_tensor(places, tokens)
        rows = tokens.repeat(len(chosen), 1)
        rows[:, at] = torch.tensor(chosen, dtype=tokens.dtype, device=tokens.device)
        return Corrupted(rows)


Apply = Callable[[Model, Int[Tensor, "L"], Sequence[int]], Corrupted]
"""`apply` alone: model, tokens and the subject's positions to what the network sees instead."""


@dataclass(frozen=True)
class OwnCorruption:
    """The caller's own function, under its own name."""

    function: Apply

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)

    def apply(self, model: Model, tokens: Int[Tensor, "L"], places: Sequence[int]) -> Corrupted:
        return self.function(model, tokens, places)


Subjects = Sequence[Sequence[int]]

CORRUPTIONS: dict[str, Callable[[float | None, int, int, Subjects], Corruption]] = {
    "gaussian": lambda sigma, samples, seed, subjects: Noise(sigma, samples, seed),
    "uniform": lambda sigma, samples, seed, subjects: Noise(sigma, samples, seed, "uniform"),
    "rome": lambda sigma, samples, seed, subjects: Noise(sigma, samples, "rome"),
    "mask": lambda sigma, samples, seed, subjects: Mask(),
    "mean": lambda sigma, samples, seed, subjects: Mean(),
    "replace": lambda sigma, samples, seed, subjects: Replace(
        tuple(tuple(ids) for ids in subjects), samples, seed
    ),
}
"""Each takes what it needs of sigma, the number of samples, the seed and other subjects' tokens."""


def get_corruption(
    corruption: str | Corruption | Apply | None,
    *,
    sigma: float | None = None,
    samples: int = 10,
    seed: int = 0,
    subjects: Subjects = (),
) -> Corruption:
    """The corruption of that name, made with the settings, or the caller's own as it is.

    None is gaussian noise.
    """
    makers = {
        name: partial(make, sigma, samples, seed, subjects) for name, make in CORRUPTIONS.items()
    }
    chosen = make_choice("corruption", "gaussian" if corruption is None else corruption, makers)
    if isinstance(chosen, Corruption):
        return chosen
    if callable(chosen):
        return OwnCorruption(chosen)
    expected = "an object with name and apply, a function like its apply"
    raise refuse_type("the corruption", corruption, expected, CORRUPTIONS)


def check_corrupted(corrupted: object, length: int) -> Corrupted:
    """What a corruption gave, if it fits the text: a corruption may be the caller's own."""
    if not isinstance(corrupted, Corrupted):
        raise UserError(
            f"the corruption returned {type(corrupted).__name__}: expected "
            "unmask.tracing.corruption.Corrupted, with a row of tokens for each sample."
        )
    if corrupted.tokens.ndim != 2 or corrupted.tokens.shape[1] != length:
        raise UserError(
            f"the corrupted rows have the shape {tuple(corrupted.tokens.shape)}, the clean text "
            f"has {length} tokens: corrupt the text that is traced, a row for each sample."
        )
    return corrupted


def measure_sigma(model: Model, subjects: Sequence[Sequence[int]], times: float = 3.0) -> float:
    """`times` the standard deviation over all entries of the embeddings of the subjects' tokens."""
    ids = torch.tensor([token for ids in subjects for token in ids], device=model.device)
    return times * float(model.net.embedding(ids).float().std())


def forget(model: Model, corrupted: Corrupted, places: Sequence[int]) -> Corrupted:
    """The same with more positions hidden: by masks, or without a mask by the mean embedding."""
    at = _to_tensor(places, corrupted.tokens)
    if model.mask_id is not None:
        return replace(corrupted, tokens=corrupted.tokens.index_fill(1, at, model.mask_id))
    blanked = at if corrupted.blanked is None else torch.cat((corrupted.blanked, at))
    return replace(corrupted, blanked=blanked, blank=_mean_embedding(model))


def _mean_embedding(model: Model) -> Float[Tensor, "D"]:
    """Of all tokens that can be said, so that the mask does not count."""
    return model.net.embedding.weight[: model.net.config.logit_rows].double().mean(0)


def _name_text(tokens: Int[Tensor, "L"], places: Sequence[int]) -> list[int]:
    """What names a text's stream: its tokens to the subject's end, the same at every step."""
    return tokens[: max(places) + 1].tolist()


def _to_tensor(places: Sequence[int], like: Tensor) -> Tensor:
    return torch.tensor(list(places), dtype=torch.long, device=like.device)
