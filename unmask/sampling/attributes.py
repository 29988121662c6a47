"""Guidance by a classifier: texts with an attribute y that the network was never told about.

A classifier is a function of half-written rows and the share of each that is masked,

    classifier(tokens [N, L], t [N]) -> log p(y | tokens, t) [N]

that is, of *noised* texts. At an open position l of the text z, with the strength g,

    log q(v) = log p(v | z) + g log p(y | z with v at l) - log Z

(Schiff et al. 2024, arXiv 2412.10193). With g = 1, the exact classifier and one position per step
the sampler draws from p(text | y); several positions per step are guided as if they were
independent. What `tokens` may be:

- a number K: the classifier judges the K likeliest tokens of every open position one by one, and no
  other is written there (as in FUDGE);
- "all": it judges all of them, which is exact and takes N V rows per step for N open positions;
- "first-order": log p(y | z with v at l) - log p(y | z) is read off one gradient, the term of first
  order in the change of the one-hot row at l (Nisonoff et al. 2024, arXiv 2406.01572). This is
  exact where log p(y | .) is a sum over positions. The classifier then needs a method
  `expand(tokens, t)` that returns these differences [N, L, V]; `OneHotClassifier` and a probe
  (`unmask.sampling.probes`) have it.

A constant factor of p(y | .) changes nothing. Guidance by rates leaves in the factor

    Z = sum_v p(v | z) (p(y | z with v at l) / p(y | z))^g

by which a mask then becomes a token sooner. At g = 1 the tower rule says that Z = 1 for the exact
classifier; how far it is from 1 for a trained one says how badly that is calibrated.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.streams import RowStreams
from unmask.sampling.state import Predictions, StepState

Classifier = Callable[[Int[Tensor, "N L"], Float[Tensor, "N"]], Float[Tensor, "N"]]
"""(half-written rows, the share of each that is masked) to log p(attribute | row)."""
ROWS_AT_ONCE = 1024
"""Rows that a classifier is given in one call."""


@dataclass(frozen=True)
class AttributeGuidance:
    """Predictions moved towards an attribute."""

    classifier: Classifier
    tokens: int | str = "all"
    """How many of the likeliest tokens are judged at each position, "all" or "first-order"."""
    rates: bool = False
    """Whether the factor by which rates grow is kept."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", read_judged(self.tokens))
        if not callable(self.classifier):
            raise UserError(
                f"the classifier is a {type(self.classifier).__name__} ({self.classifier!r:.60}): "
                "expected a function of tokens and times, a probe, or the file of one."
            )
        if self.tokens == "first-order" and not hasattr(self.classifier, "expand"):
            raise UserError(
                "a first-order expansion was asked for, but the classifier has no method expand: "
                "use a probe or OneHotClassifier, or let it judge single tokens."
            )

    def guide(
        self, predictions: Predictions, xt: Int[Tensor, "B L"], strength: float, mask_id: int
    ) -> tuple[Predictions, int]:
        """The guided predictions, and how many network calls that took."""
        if strength == 0 or not len(predictions.rows):
            return predictions, 0
        # 1. The time that the classifier is told, and where the N predictions stand.
        share = (xt == mask_id).double().mean(-1)  # of masks [B]
        row, column = predictions.positions // xt.shape[1], predictions.positions % xt.shape[1]
        logp, num_judged = predictions.rows, 0
        # 2. What each token would gain the attribute [N, V]: -inf for those not among the K judged.
        if self.tokens == "first-order":
            # One pass forwards and one backwards judge all tokens.
            gains = self._expand(xt, share, logp.shape[1]).flatten(0, 1)[predictions.positions]
            num_judged = 2 * len(xt)
        else:
            num = logp.shape[1] if self.tokens == "all" else min(int(self.tokens), logp.shape[1])
            ids = logp.topk(num, dim=-1).indices  # [N, K]
            judged = self._judge(xt[row], column, ids, share[row])
            gains = torch.full_like(logp, -torch.inf).scatter(-1, ids, judged)
            num_judged = ids.numel()
            if self.rates:
                gains = gains - self._call(xt, share)[row, None]
                num_judged += len(xt)
        # 3. Added to log p and normalised again. What cannot be written stays impossible.
        scores = (logp + strength * gains).masked_fill(logp == -torch.inf, -torch.inf)
        log_z = scores.logsumexp(-1)
        guided = replace(predictions, rows=scores - log_z[:, None])
        if self.rates:
            before = 0.0 if predictions.log_z is None else predictions.log_z
            guided = replace(guided, log_z=before + log_z)
        # 4. Texts judged, as calls of the whole batch: only a probe runs the network.
        runs = getattr(self.classifier, "runs_network", False)
        return guided, -(-num_judged // len(xt)) if runs else 0

    def _judge(
        self,
        xt: Int[Tensor, "N L"],
        column: Int[Tensor, "N"],
        ids: Int[Tensor, "N K"],
        share: Float[Tensor, "N"],
    ) -> Float[Tensor, "N K"]:
        """log p(y | row n with the token ids[n, k] in its column)."""
        size = max(1, ROWS_AT_ONCE // ids.shape[1])
        parts = []
        for x, at, some, t in zip(
            *(each.split(size) for each in (xt, column, ids, share)), strict=True
        ):
            rows = x[:, None].repeat(1, some.shape[1], 1)  # [n, K, L]
            rows.scatter_(-1, at[:, None, None].expand(-1, some.shape[1], 1), some[..., None])
            times = t.repeat_interleave(some.shape[1])
            parts.append(self._call(rows.flatten(0, 1), times).view(some.shape))
        return torch.cat(parts)

    def _call(self, rows: Int[Tensor, "N L"], share: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
        logp = self.classifier(rows, share)
        _check_answer(logp, (len(rows),), "a log-probability for each row")
        return logp.to(share)

    def _expand(self, xt: Tensor, share: Tensor, num_tokens: int) -> Float[Tensor, "B L V"]:
        gains = self.classifier.expand(xt, share)  # ty: ignore[missing-attribute]
        _check_answer(gains, (*xt.shape, num_tokens), "a difference for each token and position")
        return gains.to(share)


@dataclass(frozen=True)
class OneHotClassifier:
    """A classifier of one's own that is differentiable: a function of one-hot rows [N, L, V]."""

    function: Callable[[Float[Tensor, "N L V"], Float[Tensor, "N"]], Float[Tensor, "N"]]
    num_tokens: int
    """V: all token ids, the mask's among them."""
    num_logits: int | None = None
    """Tokens that the network predicts, the first of them; by default all."""

    def __call__(self, tokens: Int[Tensor, "N L"], t: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
        return self.function(self._encode(tokens), t)

    def expand(self, tokens: Int[Tensor, "N L"], t: Float[Tensor, "N"]) -> Float[Tensor, "N L V"]:
        """What each token at each position adds to log p(y | tokens), to first order."""
        with torch.inference_mode(False), torch.enable_grad():
            rows = self._encode(tokens.clone()).requires_grad_()
            (slope,) = torch.autograd.grad(self.function(rows, t.clone()).sum(), rows)
        gains = slope - slope.gather(-1, tokens[..., None])
        return gains[..., : self.num_logits]

    def _encode(self, tokens: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(tokens, self.num_tokens).double()


def reveal_by_rates(state: StepState, streams: RowStreams) -> Bool[Tensor, "B L"]:
    """Which open positions are committed when rates are guided: each by its own chance.

    At the rate Z r instead of r, a mask is left with (1 - chance)^Z.
    """
    log_z = state.predictions.log_z
    assert log_z is not None
    stay = 1 - min(1.0, state.times.reveal_chance(state.remask_rate))
    chance = 1 - torch.full_like(log_z, stay) ** log_z.exp()
    draws = streams.uniform(state.open.shape[1])
    return state.open & (draws < state.predictions.spread(chance, 0.0))


def read_judged(tokens: Any) -> int | str:
    """Which tokens a classifier judges: so many of the likeliest, "all" or "first-order"."""
    if isinstance(tokens, str) and tokens.isdecimal():
        tokens = int(tokens)
    is_number = isinstance(tokens, int | Integral) and not isinstance(tokens, bool)
    if tokens in ("all", "first-order") if isinstance(tokens, str) else is_number and tokens > 0:
        return tokens
    raise UserError(
        f"the tokens to be judged are {tokens!r:.60}: expected how many of the likeliest ones, all "
        "or first-order."
    )


def _check_answer(answer: object, shape: tuple[int, ...], what: str) -> None:
    if isinstance(answer, Tensor) and answer.shape == shape:
        return
    given = tuple(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
    raise UserError(f"the classifier returned {given}: expected a tensor of shape {shape}, {what}.")
