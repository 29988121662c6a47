"""Corruptions: ways to make a network forget which subject it was asked about.

A corruption is an object with a `name` and a method `apply(model, tokens, positions)`, or such a
function alone. It gets the text [L] and the positions to hide, and returns a `Corrupted`: S rows of
tokens [S, L], and what is added to or put in the place of their embeddings.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.base.choices import choose
from unmask.base.errors import UserError
from unmask.base.plugins import Registry
from unmask.base.seeds import python_stream
from unmask.base.streams import RowStreams
from unmask.net.model import Model
from unmask.tracing.settings import Corruption


@dataclass(frozen=True)
class Corrupted:
    """A corrupted prompt: S rows of tokens, and what is done to their embeddings.

    It may itself be given as a corruption, then for the one text that it was made of.

    Args:
        tokens: The rows [S, L]; S is 1 where nothing is drawn.
        noisy: Positions [P] whose embeddings get noise.
        added: That noise [S, P, D], in float64.
        blanked: Positions [Q] whose embeddings are replaced.
        blank: What replaces them [D], in float64: the mean of all embeddings.

    >>> unmask.corruptions.Corrupted(torch.tensor([[5, 0, 7], [5, 1, 7]])).samples
    2
    """

    tokens: Int[Tensor, "S L"]
    noisy: Int[Tensor, "P"] | None = None
    added: Float[Tensor, "S P D"] | None = None
    blanked: Int[Tensor, "Q"] | None = None
    blank: Float[Tensor, "D"] | None = None
    name = "given"

    @property
    def samples(self) -> int:
        return len(self.tokens)

    def apply(
        self, model: Model, tokens: Int[Tensor, "L"], positions: Sequence[int]
    ) -> "Corrupted":
        return self

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


@dataclass(frozen=True)
class Noise:
    """Noise on the subject's token embeddings, before any positional embeddings are added.

    Args:
        sigma: Its standard deviation; None is three times that of the subject's own embeddings
            (`unmask.tracing.corruption.measure_sigma` gives ROME's, over all subjects).
        samples: Rows that are drawn.
        stream: A seed, under which every text has noise of its own, the same at all its steps, or
            "rome" for the numbers of ROME's code, the same for all texts.
        shape: "gaussian" or "uniform".

    >>> model = unmask.load("reversal-mdm", device="cpu")
    >>> text = torch.tensor(model.tokenizer.encode("We sat down beside").ids)
    >>> corrupted = unmask.corruptions.Noise(samples=3).apply(model, text, [1, 2])
    >>> corrupted.tokens.shape == (3, len(text)), tuple(corrupted.added.shape[:2])
    (True, (3, 2))
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

    def apply(self, model: Model, tokens: Int[Tensor, "L"], positions: Sequence[int]) -> Corrupted:
        sigma = self.sigma
        if sigma is None:
            sigma = measure_sigma(model, [[int(tokens[i]) for i in positions]])
        drawn = self._draw(_name_text(tokens, positions), len(positions), model.net.config.width)
        drawn = drawn.to(tokens.device)
        rows = tokens.expand(self.samples, -1)
        return Corrupted(rows, _to_tensor(positions, tokens), sigma * drawn)

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
    """[MASK] in place of the subject: in distribution for a masked model, and one sample.

    >>> model = unmask.load("reversal-mdm", device="cpu")
    >>> unmask.corruptions.Mask().apply(model, torch.tensor([5, 6, 7]), [1]).tokens.tolist() == [
    ...     [5, model.mask_id, 7]
    ... ]
    True
    """

    name = "mask"

    def apply(self, model: Model, tokens: Int[Tensor, "L"], positions: Sequence[int]) -> Corrupted:
        if model.mask_id is None:
            raise UserError(
                f"the model {model.name} is {model.kind} and has no mask token to hide the subject "
                "with: use noise, the mean embedding or another subject."
            )
        return Corrupted(tokens[None].index_fill(1, _to_tensor(positions, tokens), model.mask_id))


@dataclass(frozen=True)
class Mean:
    """The mean of all token embeddings in place of the subject's; one sample.

    >>> model = unmask.load("reversal-mdm", device="cpu")
    >>> corrupted = unmask.corruptions.Mean().apply(model, torch.tensor([5, 6, 7]), [1])
    >>> corrupted.blanked.tolist(), corrupted.blank.shape == (model.net.config.width,)
    ([1], True)
    """

    name = "mean"

    def apply(self, model: Model, tokens: Int[Tensor, "L"], positions: Sequence[int]) -> Corrupted:
        at = _to_tensor(positions, tokens)
        return Corrupted(tokens[None], blanked=at, blank=_mean_embedding(model))


class NoReplacementError(UserError):
    """A subject that no other is as long as."""


@dataclass(frozen=True)
class Replace:
    """Other facts' subjects in place of this one, of the same number of tokens.

    Args:
        subjects: Token ids of each; those of another length, and the text's own, are left out.
        samples: How many of them are drawn at most, without repeats.
        seed: Of the draw, which is a text's own.

    >>> model = unmask.load("reversal-mdm", device="cpu")
    >>> corruption = unmask.corruptions.Replace(((8,), (9,), (1, 2)))
    >>> sorted(corruption.apply(model, torch.tensor([5, 6, 7]), [1]).tokens.tolist())
    [[5, 8, 7], [5, 9, 7]]
    """

    subjects: tuple[tuple[int, ...], ...]
    samples: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.subjects:
            raise UserError(
                "the corruption 'replace' puts other subjects in the subject's place, but none "
                "were given: name their token ids in unmask.corruptions.Replace(subjects)."
            )

    name = "replace"

    def apply(self, model: Model, tokens: Int[Tensor, "L"], positions: Sequence[int]) -> Corrupted:
        own = tuple(int(tokens[i]) for i in positions)
        same = {tuple(ids) for ids in self.subjects if len(ids) == len(own)}
        fitting = sorted(same - {own})
        if not fitting:
            lengths = sorted({len(ids) for ids in self.subjects})
            raise NoReplacementError(
                f"no other subject has {len(own)} tokens (they have {lengths}): give more "
                "subjects, or use another corruption."
            )
        stream = python_stream(self.seed, "replace", _name_text(tokens, positions))
        chosen = stream.sample(fitting, min(self.samples, len(fitting)))
        at = _to_tensor(positions, tokens)
        rows = tokens.repeat(len(chosen), 1)
        rows[:, at] = torch.tensor(chosen, dtype=tokens.dtype, device=tokens.device)
        return Corrupted(rows)


CorruptionFunction = Callable[[Model, Int[Tensor, "L"], Sequence[int]], Corrupted]
"""`apply` alone: model, tokens and the subject's positions to what the network sees instead."""


@dataclass(frozen=True)
class OwnCorruption:
    """The caller's own function, under its own name."""

    function: CorruptionFunction

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)

    def apply(self, model: Model, tokens: Int[Tensor, "L"], positions: Sequence[int]) -> Corrupted:
        return self.function(model, tokens, positions)


Subjects = Sequence[Sequence[int]]

CORRUPTIONS = Registry[Callable[..., Any]](
    "corruption",
    {
        "gaussian": lambda sigma, samples, seed, subjects: Noise(sigma, samples, seed),
        "uniform": lambda sigma, samples, seed, subjects: Noise(sigma, samples, seed, "uniform"),
        "rome": lambda sigma, samples, seed, subjects: Noise(sigma, samples, "rome"),
        "mask": lambda sigma, samples, seed, subjects: Mask(),
        "mean": lambda sigma, samples, seed, subjects: Mean(),
        "replace": lambda sigma, samples, seed, subjects: Replace(
            tuple(tuple(ids) for ids in subjects), samples, seed
        ),
    },
    lambda thing: callable(thing) or isinstance(thing, Corruption),
    "an object with name and apply, a function like its apply",
)
"""Each takes what it needs of sigma, the number of samples, the seed and other subjects' tokens."""


def get_corruption(
    corruption: str | Corruption | CorruptionFunction,
    samples: int = 10,
    seed: int = 0,
    *,
    sigma: float | None = None,
    subjects: Subjects = (),
) -> Corruption:
    """The corruption of that name, made with the settings, or the caller's own as it is."""
    settings = (sigma, samples, seed, subjects)
    return choose(corruption, CORRUPTIONS, Corruption, OwnCorruption, *settings)


def hide(
    corruption: Corruption, model: Model, tokens: Int[Tensor, "L"], positions: Sequence[int]
) -> Corrupted:
    """The text corrupted, if what came of it fits the text: a corruption may be the caller's."""
    corrupted = corruption.apply(model, tokens, positions)
    if not isinstance(corrupted, Corrupted):
        raise UserError(
            f"the corruption returned {type(corrupted).__name__}: expected "
            "unmask.corruptions.Corrupted, with a row of tokens for each sample."
        )
    if corrupted.tokens.ndim != 2 or corrupted.tokens.shape[1] != len(tokens):
        raise UserError(
            f"the corrupted rows have the shape {tuple(corrupted.tokens.shape)}, the clean text "
            f"has {len(tokens)} tokens: corrupt the text that is traced, a row for each sample."
        )
    return corrupted


def measure_sigma(model: Model, subjects: Sequence[Sequence[int]], times: float = 3.0) -> float:
    """`times` the standard deviation over all entries of the embeddings of the subjects' tokens."""
    ids = torch.tensor([token for ids in subjects for token in ids], device=model.device)
    return times * float(model.net.embedding(ids).float().std())


def forget(model: Model, corrupted: Corrupted, positions: Sequence[int]) -> Corrupted:
    """The tokens with more positions hidden: by masks, or without a mask by the mean embedding."""
    at = _to_tensor(positions, corrupted.tokens)
    if model.mask_id is not None:
        return replace(corrupted, tokens=corrupted.tokens.index_fill(1, at, model.mask_id))
    blanked = at if corrupted.blanked is None else torch.cat((corrupted.blanked, at))
    return replace(corrupted, blanked=blanked, blank=_mean_embedding(model))


def _mean_embedding(model: Model) -> Float[Tensor, "D"]:
    """The mean embedding of all tokens that can be said, so that the mask does not count."""
    return model.net.embedding.weight[: model.net.config.logit_rows].double().mean(0)


def _name_text(tokens: Int[Tensor, "L"], positions: Sequence[int]) -> list[int]:
    """What names a text's stream: its tokens to the subject's end, the same at every step."""
    return tokens[: max(positions) + 1].tolist()


def _to_tensor(positions: Sequence[int], like: Tensor) -> Tensor:
    return torch.tensor(list(positions), dtype=torch.long, device=like.device)
