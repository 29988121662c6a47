"""Correctors: after each step, written tokens are hidden again and drawn anew, time unchanged.

A predictor commits many tokens at once, which know nothing of each other; a corrector repairs them
as a Gibbs sampler does. It differs from remasking (`unmask.sampling.remasking`), which leaves masks
to later steps: here they are refilled before the next step begins, in network calls of their own,
which `Trajectory.calls` counts. Masks stay masks, and what was given stays.

Let p(x_d | x_-d) be what the network says at position d while d alone is hidden, n the number of
written tokens and the margin c_d = log p(x_d | x_-d) - max over other tokens v of log p(v | x_-d).

| name          | which tokens are drawn anew                              | calls  | exact |
|---------------|----------------------------------------------------------|--------|-------|
| `uniform=k`   | k at random                                              | k      | yes   |
| `margin=k`    | the k with the least margin                              | n + k  | no    |
| `gumbel=k,T`  | k, drawn without replacement, chance ~ exp(-c_d / T)     | n + k  | no    |
| `accepted=T`  | one of that chance, kept with min(1, s_d(x') / s_d(x))   | 2 n    | yes   |

Exact: where the network's predictions are the conditionals of one law and tokens are drawn at
temperature 1, a text of that law is one after the corrector as well. Choosing by the very value
that is then drawn anew breaks this; the acceptance of Metropolis and Hastings, s_d(x) being the
chance to choose d in the text x, mends it. Several tokens are refilled one after the other, each
seeing those before it; `UniformChoice(k, together=True)` draws them in one call, as if they were
independent given the rest, which is not exact for k above 1.

Zhao et al. 2024 (arXiv 2407.21243) define the margin, the Gumbel choice and redraw all k in
parallel, each given the old values of the others. They need one call for all margins, of a network
whose prediction at a position does not see that position; a usual one has to hide each in turn.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.base.choices import choose
from unmask.base.errors import UserError
from unmask.base.plugins import Registry
from unmask.base.streams import RowStreams
from unmask.sampling.orders import choose_first
from unmask.sampling.state import Predictions, find_entropy
from unmask.sampling.token_sampler import TokenSampler

Positions = Bool[Tensor, "B L"]


class Predict(Protocol):
    """A network call."""

    def __call__(
        self, tokens: Int[Tensor, "B L"], open_: Positions, number: int | None = None
    ) -> Predictions:
        """What the network says at the open positions.

        Leave the `number` of these out unless it is known on the host: then a GPU need not be
        asked. A wrong one is refused on a CPU; on a GPU it is not looked at.
        """
        ...


@dataclass
class WrittenText:
    """A text after a step, as a corrector sees it and rewrites it."""

    tokens: Int[Tensor, "B L"]
    """The canvas, masks where nothing is written yet."""
    written: Positions
    """What the corrector may rewrite: tokens of this block that steps wrote."""
    num_written: Sequence[int]
    """Written tokens of each row; on the host, so that the device need not be asked."""
    confidence: Float[Tensor, "B L"]
    """The probability a token had when it was written."""
    entropy: Float[Tensor, "B L"]
    """Entropy of the prediction that each token was chosen from, in nats."""
    mask_id: int
    predict: Predict
    sampler: TokenSampler

    def redraw(
        self, positions: Positions, number: int | None, streams: RowStreams, also_hidden: Positions
    ) -> Predictions:
        """Draw tokens at some positions anew, in one call that sees neither these nor others.

        `number` is that of the positions, or None to have them counted.
        """
        hidden = torch.where(positions | also_hidden, self.mask_id, self.tokens)
        predictions = self.predict(hidden, positions, number)
        draws = predictions.pack(streams.uniform(hidden.shape[1]))
        drawn = self.sampler.draw(predictions.rows, draws)
        p = predictions.rows.gather(-1, drawn[:, None])[:, 0].exp()
        entropy = find_entropy(predictions.rows)
        self.tokens = torch.where(positions, predictions.spread(drawn, 0), self.tokens)
        self.confidence = torch.where(positions, predictions.spread(p, 1.0), self.confidence)
        self.entropy = torch.where(positions, predictions.spread(entropy, 0.0), self.entropy)
        return predictions

    def refill(self, ranks: Int[Tensor, "B L"], k: int, streams: RowStreams) -> None:
        """Hide the positions of ranks 0 to k - 1 and refill them one after the other."""
        for i in range(min(k, max(self.num_written, default=0))):
            number = sum(count > i for count in self.num_written)
            later = (ranks > i) & (ranks < k) & self.written
            self.redraw((ranks == i) & self.written, number, streams.at(i), later)

    def find_margins(self, positions: Positions, counts: Sequence[int]) -> Float[Tensor, "B L"]:
        """c_d at some positions, `counts` in each row: a call for each; inf elsewhere."""
        margins = torch.full_like(self.confidence, torch.inf)
        rank = positions.cumsum(-1) - 1
        for i in range(max(counts, default=0)):
            at = positions & (rank == i)
            hidden = torch.where(at, self.mask_id, self.tokens)
            predictions = self.predict(hidden, at, sum(count > i for count in counts))
            here = find_margin(predictions.rows, predictions.pack(self.tokens))
            margins = torch.where(at, predictions.spread(here, 0.0), margins)
        return margins


def find_margin(logp: Float[Tensor, "N V"], tokens: Int[Tensor, "N"]) -> Float[Tensor, "N"]:
    """log p of a token less that of the likeliest other one."""
    at = tokens[:, None]
    return (logp.gather(-1, at) - logp.scatter(-1, at, -torch.inf).amax(-1, keepdim=True))[:, 0]


def find_chances(
    margins: Float[Tensor, "B L"], written: Positions, temperature: float
) -> Float[Tensor, "B L"]:
    """log s_d: the chance of each written position to be chosen first; -inf elsewhere.

    At temperature 0 the least margin is chosen, of equal ones the leftmost.
    """
    if temperature == 0:
        first = choose_first(-margins, written, torch.ones_like(written[:, 0], dtype=torch.long))
        return torch.zeros_like(margins).masked_fill(~first, -torch.inf)
    scores = (-margins / temperature).masked_fill(~written, -torch.inf)
    return scores.log_softmax(-1).nan_to_num(nan=-torch.inf, neginf=-torch.inf)


@runtime_checkable
class Corrector(Protocol):
    """How written tokens are drawn anew after a step."""

    def correct(self, text: WrittenText, streams: RowStreams) -> None:
        """Rewrite some of `text.written`; the streams are the corrector's own."""
        ...


CorrectFunction = Callable[[WrittenText, RowStreams], None]
"""`correct` alone."""


@dataclass(frozen=True)
class UniformChoice(Corrector):
    """k written tokens, chosen at random."""

    k: int = 1
    together: bool = False
    """Refill them in one call, each drawn as if the others stayed hidden."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", _check_count("uniform", self.k))

    def correct(self, text: WrittenText, streams: RowStreams) -> None:
        scores = streams.at("choice").uniform(text.tokens.shape[1])
        ranks = _rank(scores, text.written)
        if not self.together:
            return text.refill(ranks, self.k, streams.at("values"))
        chosen = (ranks < self.k) & text.written
        if number := sum(min(count, self.k) for count in text.num_written):
            text.redraw(chosen, number, streams.at("values"), chosen)
        return None


@dataclass(frozen=True)
class LeastTrusted(Corrector):
    """k written tokens of least margin: for sure, or with Gumbel noise at a temperature."""

    k: int = 1
    temperature: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", _check_count("margin", self.k))
        _check_temperature(self.temperature)

    def correct(self, text: WrittenText, streams: RowStreams) -> None:
        if not self.k:
            return
        scores = -text.find_margins(text.written, text.num_written)
        if self.temperature:
            # The k largest of log-chances with Gumbel noise are k draws without replacement.
            noise = streams.at("choice").gumbel(scores.shape[1])
            scores = scores / self.temperature + noise
        text.refill(_rank(scores, text.written), self.k, streams.at("values"))


@dataclass(frozen=True)
class Accepted(Corrector):
    """One token as `LeastTrusted(1, temperature)` chooses it; the new one is kept by chance."""

    temperature: float = 1.0

    def __post_init__(self) -> None:
        _check_temperature(self.temperature)

    def correct(self, text: WrittenText, streams: RowStreams) -> None:
        # 1. Choose d in the text x, with the chance s_d(x).
        margins = text.find_margins(text.written, text.num_written)
        chances = find_chances(margins, text.written, self.temperature)
        noise = streams.at("choice").gumbel(chances.shape[1])
        one = torch.ones_like(text.written[:, 0], dtype=torch.long)
        chosen = choose_first(chances + noise, text.written, one)
        # 2. Draw x'_d given all others. Its own margin in x' comes from the same prediction.
        before = text.tokens, text.confidence, text.entropy
        if not (number := sum(count > 0 for count in text.num_written)):
            return
        predictions = text.redraw(chosen, number, streams.at("values"), chosen)
        own = find_margin(predictions.rows, predictions.pack(text.tokens))
        # 3. The margins of the others in x', hence s_d(x').
        others = [max(0, count - 1) for count in text.num_written]
        margins = text.find_margins(text.written & ~chosen, others)
        margins = torch.where(chosen, predictions.spread(own, 0.0), margins)
        again = find_chances(margins, text.written, self.temperature)
        # 4. Keep x' with min(1, s_d(x') / s_d(x)).
        draws = streams.at("acceptance").uniform(1)
        back = chosen & (draws.log() >= again - chances)
        text.tokens, text.confidence, text.entropy = (
            torch.where(back, old, new)
            for old, new in zip(before, (text.tokens, text.confidence, text.entropy), strict=True)
        )


@dataclass(frozen=True)
class OwnCorrector(Corrector):
    """The caller's own function."""

    function: CorrectFunction

    def correct(self, text: WrittenText, streams: RowStreams) -> None:
        self.function(text, streams)


CORRECTORS = Registry[Callable[..., Any]](
    "corrector",
    {
        "none": lambda: None,
        "uniform": UniformChoice,
        "margin": lambda k=1: LeastTrusted(k),
        "gumbel": lambda k=1, temperature=1.0: LeastTrusted(k, temperature),
        "accepted": Accepted,
    },
    lambda thing: callable(thing) or isinstance(thing, Corrector),
    "an object with correct, a function like it",
)


def get_corrector(corrector: Any) -> Corrector | None:
    """The corrector of that name (`uniform=2` sets its number), or the caller's own; None: none."""
    return choose(corrector, CORRECTORS, (Corrector, NoneType), OwnCorrector)


def _rank(scores: Float[Tensor, "B L"], written: Positions) -> Int[Tensor, "B L"]:
    """How many written positions of the row have a higher score; ties go to the left."""
    scores = scores.clamp(min=torch.finfo(scores.dtype).min).masked_fill(~written, -torch.inf)
    return scores.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)


def _check_count(name: str, k: float) -> int:
    if isinstance(k, bool) or not 0 <= k < 2**31 or k != int(k):
        raise UserError(f"corrector {name}={k:g} was given: expected a whole number of tokens.")
    return int(k)


def _check_temperature(temperature: float) -> None:
    if not 0 <= temperature < float("inf"):
        raise UserError(
            f"the corrector's temperature is {temperature:g}: expected a finite number of at "
            "least 0."
        )
