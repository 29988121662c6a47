"""What every discrete process offers, and the few things they share."""

from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.streams import RowStreams
from unmask.noise.schedules import Schedule

Times = Float[Tensor, "*B"]
"""Any shape that broadcasts against the tokens: [B, 1] for a batch of rows."""


class Process(Protocol):
    """A way to noise tokens, and what it takes to undo it.

    All functions work position by position: leading dimensions are free, times broadcast.
    """

    @property
    def schedule(self) -> Schedule:
        """How fast tokens are noised."""
        ...

    @property
    def num_states(self) -> int:
        """Values that a noised token can have, the mask included."""
        ...

    def corrupt(self, x0: Int[Tensor, "B L"], t: Times, streams: RowStreams) -> Int[Tensor, "B L"]:
        """x_t: every token noised independently."""
        ...

    def prior(self, length: int, streams: RowStreams) -> Int[Tensor, "B L"]:
        """x_1, of which nothing clean is left."""
        ...

    def needs(self, xt: Int[Tensor, "B L"]) -> Tensor:
        """True where `nll` can differ from 0, so that logits are needed."""
        ...

    def predict(self, logits: Float[Tensor, "*S V"]) -> Float[Tensor, "*S K"]:
        """log p over clean tokens, what is no token left out."""
        ...

    def nll(
        self, logits: Float[Tensor, "*S V"], x0: Int[Tensor, "*S"], xt: Int[Tensor, "*S"], t: Times
    ) -> Float[Tensor, "*S"]:
        """The integrand of the continuous-time bound on -log p(x0), in nats a token, at least 0."""
        ...

    def posterior(
        self, logits: Float[Tensor, "*S V"], xt: Int[Tensor, "*S"], t: Times, s: Times
    ) -> Float[Tensor, "*S N"]:
        """Log-probabilities of x_s given x_t, s < t, under the network's prediction."""
        ...

    def true_posterior(
        self, x0: Int[Tensor, "*S"], xt: Int[Tensor, "*S"], t: Times, s: Times
    ) -> Float[Tensor, "*S N"]:
        """Log-probabilities of x_s given x_t and the clean token."""
        ...


def step_nll(
    process: Process, logits: Tensor, x0: Tensor, xt: Tensor, t: Times, s: Times
) -> Float[Tensor, "*S"]:
    """The discrete-time term KL(q(x_s | x_t, x0) || p(x_s | x_t)), in nats a token.

    Summed over t = 1, 1 - 1/T, …, 1/T with s = t - 1/T it is the bound in T steps; the last term,
    s = 0, is the reconstruction.
    """
    true = process.true_posterior(x0, xt, t, s)
    model = process.posterior(logits, xt, t, s)
    terms = true.exp() * (true - model)
    return torch.where(true == -torch.inf, 0.0, terms).sum(-1).clamp(min=0)


def check_tokens(x0: Tensor, num_tokens: int, mask_id: int | None = None) -> None:
    """Raise where clean tokens hold the mask or something outside the vocabulary."""
    if mask_id is not None and (x0 == mask_id).any():
        raise UserError(
            f"the clean tokens hold the mask id {mask_id}: expected a text without masks; to fill "
            "masks, sample instead."
        )
    if x0.numel() and not ((x0 >= 0) & (x0 < num_tokens)).all():
        raise UserError(
            f"the clean tokens run from {int(x0.min())} to {int(x0.max())}, expected "
            f"0 to {num_tokens - 1}."
        )


def check_vocabulary(num_tokens: int) -> None:
    """Raise where there is nothing to choose from."""
    if num_tokens < 2:
        raise UserError(
            f"a vocabulary of {num_tokens} token(s) has nothing to learn: use 2 or more."
        )


def log_linear(logp: Float[Tensor, "*S V"], scale: Tensor, floor: Tensor) -> Float[Tensor, "*S V"]:
    """log(scale p + floor), without leaving log space."""
    return torch.logaddexp(logp + scale.log(), floor.log().expand_as(logp))
