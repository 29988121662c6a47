"""What every noise process offers, and the few things they share."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.base.config import LARGEST
from unmask.base.errors import UserError
from unmask.base.streams import RowStreams
from unmask.data.tokenizer import Tokenizer
from unmask.noise.guidance import mix
from unmask.noise.schedules import Schedule
from unmask.noise.settings import NoiseConfig

Times = Float[Tensor, "*B"]
"""Any shape that broadcasts against the tokens: [B, 1] for a batch of rows."""

Sampler = Literal["unmasking", "ancestral", "vectors"]
"""How texts are drawn: masks filled by a plan, steps back over tokens, or steps over vectors."""


class NoiseKind:
    """What is known of a kind of noise before there is a model; see `unmask.noise.processes`."""

    has_mask: ClassVar[bool] = False
    """Whether models of this kind need a mask token."""
    objectives: ClassVar[tuple[str, ...]] = ("bound",)
    """Names of the losses that can be minimised; the first is what `auto` means."""
    sampler: ClassVar[Sampler] = "ancestral"
    settings: ClassVar[Mapping[str, Any]] = {}
    """Settings of its own with their defaults: what recipes and models have in `noise.settings`."""


class Process(NoiseKind, ABC):
    """A way to noise tokens, and what it takes to undo it.

    All methods work position by position: leading dimensions are free, times broadcast. A process
    of one's own needs a `schedule`, `num_states`, `corrupt`, `prior`, `nll` and `posterior`; to be
    named in recipes and by models also `from_config` and a name (`unmask.register`).
    """

    # Read-only for type checkers; at run time plain attributes, which frozen dataclasses can set.
    if TYPE_CHECKING:

        @property
        def schedule(self) -> Schedule:
            """How fast tokens are noised."""
            ...

        @property
        def mask_id(self) -> int | None:
            """The mask token, which is never predicted; None for noise without masks."""
            ...
    else:
        mask_id = None

    @property
    @abstractmethod
    def num_states(self) -> int:
        """Values that a noised token can have, the mask included."""

    @property
    def num_read(self) -> int | None:
        """How many of a network's logits are read, the first ones; None for all of them."""
        return None

    @classmethod
    def from_config(
        cls,
        config: NoiseConfig,
        schedule: Schedule,
        num_logits: int,
        mask_id: int | None,
        tokenizer: Tokenizer | None = None,
    ) -> Self:
        """The process of a model with that many rows of logits; `schedule` has closed ends.

        A class that has `settings` finds theirs in `config.settings`, the defaults filled in.
        """
        raise UserError(
            f"{cls.__name__} noise cannot be made from a model's settings: define from_config."
        )

    @abstractmethod
    def corrupt(self, x0: Int[Tensor, "B L"], t: Times, streams: RowStreams) -> Int[Tensor, "B L"]:
        """x_t: every token noised independently."""

    @abstractmethod
    def prior(self, length: int, streams: RowStreams) -> Int[Tensor, "B L"]:
        """x_1, in which nothing of the clean text is left."""

    @abstractmethod
    def nll(
        self, logits: Float[Tensor, "*S V"], x0: Int[Tensor, "*S"], xt: Int[Tensor, "*S"], t: Times
    ) -> Float[Tensor, "*S"]:
        """The integrand of the continuous-time bound on -log p(x0), nats per token, at least 0."""

    @abstractmethod
    def posterior(
        self, logits: Float[Tensor, "*S V"], xt: Int[Tensor, "*S"], t: Times, s: Times
    ) -> Float[Tensor, "*S N"]:
        """Log-probabilities of x_s given x_t, s < t, under the network's prediction."""

    def true_posterior(
        self, x0: Int[Tensor, "*S"], xt: Int[Tensor, "*S"], t: Times, s: Times
    ) -> Float[Tensor, "*S N"]:
        """Log-probabilities of x_s given x_t and the clean token: for bounds in T steps."""
        raise UserError(
            f"{type(self).__name__} noise has no bound in discrete steps: define true_posterior, "
            "or leave num_steps out."
        )

    def needs(self, xt: Int[Tensor, "B L"]) -> Bool[Tensor, "B L"]:
        """True where `nll` can differ from 0, so that logits are needed."""
        return torch.ones_like(xt, dtype=torch.bool)

    def predict(self, logits: Float[Tensor, "*S V"]) -> Float[Tensor, "*S K"]:
        """Log-probabilities over the clean vocabulary; the mask, if it has a row, gets -inf."""
        if self.mask_id is None or logits.shape[-1] <= self.mask_id:
            return logits.log_softmax(-1)
        is_mask = torch.arange(logits.shape[-1], device=logits.device) == self.mask_id
        return logits.masked_fill(is_mask, -torch.inf).log_softmax(-1)

    def guided_posterior(
        self,
        conditional: Float[Tensor, "*S V"],
        unconditional: Float[Tensor, "*S V"],
        guidance: float,
        xt: Int[Tensor, "*S"],
        t: Times,
        s: Times,
    ) -> Float[Tensor, "*S N"]:
        """Log-probabilities of x_s under guidance: log posteriors mixed (Schiff et al. 2024)."""
        with_prompt = self.posterior(conditional, xt, t, s)
        if guidance == 0:
            return with_prompt
        return mix(with_prompt, self.posterior(unconditional, xt, t, s), guidance).log_softmax(-1)


class TokensFirst(Process):
    """Noise on tokens whose logits are a network's first; a mask, if any, comes right after them.

    Such a process has `num_tokens` and a `_step_back` from the log-probabilities of clean tokens.
    """

    if TYPE_CHECKING:

        @property
        def num_tokens(self) -> int:
            """Values that a clean token can have."""
            ...

    @abstractmethod
    def _step_back(self, logp: Tensor, xt: Tensor, t: Times, s: Times) -> Float[Tensor, "*S N"]:
        """Log-probabilities of x_s given x_t and those of the clean tokens."""

    @property
    def num_read(self) -> int:
        return self.num_tokens

    @property
    def num_states(self) -> int:
        return self.num_tokens + self.has_mask

    def predict(self, logits: Float[Tensor, "*S V"]) -> Float[Tensor, "*S K"]:
        """Log-probabilities over the tokens; rows past them, such as a mask's, are left out."""
        return logits[..., : self.num_tokens].log_softmax(-1)

    def posterior(
        self, logits: Float[Tensor, "*S V"], xt: Int[Tensor, "*S"], t: Times, s: Times
    ) -> Float[Tensor, "*S N"]:
        return self._step_back(self.predict(logits), xt, t, s)

    def true_posterior(
        self, x0: Int[Tensor, "*S"], xt: Int[Tensor, "*S"], t: Times, s: Times
    ) -> Float[Tensor, "*S N"]:
        return self._step_back(F.one_hot(x0, self.num_tokens).to(t.dtype).log(), xt, t, s)


def step_nll(
    process: Process, logits: Tensor, x0: Tensor, xt: Tensor, t: Times, s: Times
) -> Float[Tensor, "*S"]:
    """The discrete-time term KL(q(x_s | x_t, x0) || p(x_s | x_t)), in nats per token.

    Summed over t = 1, 1 - 1/T, …, 1/T with s = t - 1/T it is the bound in T steps; the last term,
    s = 0, is the reconstruction.
    """
    true = process.true_posterior(x0, xt, t, s)
    model = process.posterior(logits, xt, t, s)
    terms = true.exp() * (true - model)
    return torch.where(true == -torch.inf, 0.0, terms).sum(-1).clamp(min=0)


def check_clean_tokens(x0: Tensor, num_tokens: int, mask_id: int | None = None) -> None:
    """Raise where clean tokens hold the mask or something outside the vocabulary.

    Looked at on the CPU only: on another device the host would have to wait for the answer.
    """
    if x0.device.type != "cpu":
        return
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
    if not isinstance(num_tokens, int) or not num_tokens <= LARGEST:
        raise UserError(f"a vocabulary of {num_tokens!r:.60} tokens: expected a whole number.")
    if num_tokens < 2:
        raise UserError(
            f"a vocabulary of {num_tokens} token(s) has nothing to learn: use 2 or more."
        )


def log_linear(logp: Float[Tensor, "*S V"], scale: Tensor, floor: Tensor) -> Float[Tensor, "*S V"]:
    """log(scale p + floor), without leaving log space."""
    return torch.logaddexp(logp + scale.log(), floor.log().expand_as(logp))
