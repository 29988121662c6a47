"""Uniform noise: a token keeps its value or is drawn anew from all of them.

Schiff et al. 2024 (UDLM, arXiv 2412.10193), Sahoo et al. 2025 (DUO, 2506.10892), Austin et al. 2021
(D3PM, 2107.03006). The network predicts x0 at a position from the OTHER positions: the bound's
optimum is p(x0_l | z_t without position l). A network that was trained by plain cross-entropy
predicts p(x0_l | z_t) instead and needs the mixture form (`mixture=True`). One that was trained by
score entropy (SEDD) predicts ratios of probabilities of noised tokens (`scores=True`).
"""

from dataclasses import dataclass, field
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from unmask.base.streams import RowStreams
from unmask.data.tokenizer import Tokenizer
from unmask.noise.process import (
    Times,
    TokensFirst,
    check_clean_tokens,
    check_vocabulary,
    log_linear,
)
from unmask.noise.rates import bound_rate, uniform_score_entropy
from unmask.noise.schedules import LinearSchedule, Schedule, check_schedule, check_times, clamp_open
from unmask.noise.settings import NoiseConfig


@dataclass(frozen=True)
class Uniform(TokensFirst):
    """Noise that draws tokens anew from all of them, without a mask.

    Args:
        num_tokens: Values that a token can have, noised or not: 0 … num_tokens - 1.
        schedule: How fast tokens are noised (`unmask.noise.schedules`); linear by default.
        mixture: Whether the network predicts p(x0_l | z_t), its own position seen (D3PM's form).
        scores: Whether its outputs are log q(z_t,l = y) up to a constant (SEDD's form).

    >>> from unmask.base.streams import RowStreams
    >>> process = unmask.Uniform(num_tokens=9)
    >>> x0, t = torch.tensor([[3, 1, 4]]), torch.tensor([[0.5]])  # [B, L] and [B, 1]
    >>> xt = process.corrupt(x0, t, RowStreams.make(seed=0, rows=1))
    >>> process.nll(torch.zeros(1, 3, 9), x0, xt, t).shape  # of logits [B, L, V]
    torch.Size([1, 3])
    """

    num_tokens: int
    schedule: Schedule = field(default_factory=LinearSchedule)
    mixture: bool = False
    scores: bool = False
    objectives: ClassVar[tuple[str, ...]] = ("bound", "score_entropy", "curriculum")

    def __post_init__(self) -> None:
        check_vocabulary(self.num_tokens)
        check_schedule(self.schedule)

    @classmethod
    def from_config(
        cls,
        config: NoiseConfig,
        schedule: Schedule,
        num_logits: int,
        mask_id: int | None,
        tokenizer: Tokenizer | None = None,
    ) -> Self:
        # A mask that stands last, as a tied head has it, is not a token to be drawn.
        num_tokens = num_logits - (mask_id == num_logits - 1)
        return cls(num_tokens, schedule, config.mixture, config.scores)

    def corrupt(self, x0: Int[Tensor, "B L"], t: Times, streams: RowStreams) -> Int[Tensor, "B L"]:
        check_times(t)
        check_clean_tokens(x0, self.num_tokens)
        # Two numbers per position, side by side: what one draws is independent of the length.
        chance, value = streams.uniform(x0.shape[1], 2).unbind(-1)
        redrawn = chance < self.schedule.noised(t.double())
        return torch.where(redrawn, (value * self.num_tokens).long(), x0)

    def prior(self, length: int, streams: RowStreams) -> Int[Tensor, "B L"]:
        return streams.below(self.num_tokens, length)

    def nll(
        self, logits: Float[Tensor, "*S V"], x0: Int[Tensor, "*S"], xt: Int[Tensor, "*S"], t: Times
    ) -> Float[Tensor, "*S"]:
        t = clamp_open(t).expand(x0.shape)
        alpha, floor = self.schedule.alpha(t), self.schedule.noised(t) / self.num_tokens
        rate = -self.schedule.dalpha(t) / (self.num_tokens * alpha)
        if self.scores:
            return uniform_score_entropy(self.predict(logits), x0, xt, alpha, floor, rate)
        logits = logits[..., : self.num_tokens]
        if self.mixture:
            logits = self._leave_own_out(self.predict(logits), xt, t)
        return bound_rate(logits, x0, xt, alpha, floor, floor, rate)

    def posterior(
        self, logits: Float[Tensor, "*S V"], xt: Int[Tensor, "*S"], t: Times, s: Times
    ) -> Float[Tensor, "*S N"]:
        return self._step_back(self._leave_own_out(self.predict(logits), xt, t), xt, t, s)

    def _leave_own_out(self, logp: Tensor, xt: Tensor, t: Times) -> Tensor:
        """x_theta from the prediction: p(x0 | z_t) divided by q(z_t | x0) at its own position."""
        if self.scores:
            # q_theta = alpha x_theta + (1 - alpha) / V, solved for x_theta; noise may leave it < 0.
            alpha, noised = (
                each(t)[..., None] for each in (self.schedule.alpha, self.schedule.noised)
            )
            kept = (logp.exp() - noised / self.num_tokens) / alpha.clamp(min=1e-30)
            return kept.clamp(min=1e-30).log().log_softmax(-1)
        if not self.mixture:
            return logp
        kept = self.schedule.alpha(t)[..., None] * F.one_hot(xt, self.num_tokens)
        own = kept + self.schedule.noised(t)[..., None] / self.num_tokens
        return (logp - own.clamp(min=1e-30).log()).log_softmax(-1)

    def _step_back(self, logp: Tensor, xt: Tensor, t: Times, s: Times) -> Tensor:
        """q(z_s | z_t, x) ∝ q(z_t | z_s) q(z_s | x), which is UDLM's equation factored."""
        alpha_s, alpha_t = (self.schedule.alpha(time)[..., None] for time in (s, t))
        keep = alpha_t / alpha_s.clamp(min=1e-30)
        is_xt = F.one_hot(xt, self.num_tokens).to(logp.dtype)
        stay = keep * is_xt + (1 - keep) / self.num_tokens
        come = log_linear(logp, alpha_s, self.schedule.noised(s)[..., None] / self.num_tokens)
        # Never quite 0: an impossible x_t is copied instead of dividing 0 by 0, and the logarithms
        # can be mixed.
        least = torch.finfo(logp.dtype).tiny
        return (stay.clamp(min=least).log() + come.clamp(min=-1e6)).log_softmax(-1)
