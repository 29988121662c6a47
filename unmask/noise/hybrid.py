"""Hybrid noise: partly mask, partly uniform, the mask's share growing with time.

von Rütte et al. 2025 (GIDD, arXiv 2503.04482). At time t a token is clean with probability alpha_t,
else a mask (share m_t) or a uniform draw. Because a draw can happen at any time, a mask can turn
into a token and a token into a mask in both directions of time: what was written can be corrected.
Share 1 throughout is masked noise, share 0 uniform noise. The network predicts x0 at a position
from the other positions, as for uniform noise.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from unmask.base.config import SettingsError, check_values
from unmask.base.errors import UserError
from unmask.base.streams import RowStreams
from unmask.data.tokenizer import Tokenizer
from unmask.noise.process import Times, TokensFirst, check_clean_tokens, check_vocabulary
from unmask.noise.rates import bound_rate
from unmask.noise.schedules import (
    BumpSchedule,
    LinearSchedule,
    Schedule,
    check_schedule,
    check_times,
    clamp_open,
)
from unmask.noise.settings import NoiseConfig

_LEAST = 1e-30
"""Below this a probability stands for 0."""


@dataclass(frozen=True)
class Hybrid(TokensFirst):
    """Noise that masks some tokens and draws others anew; the mask comes right after the tokens.

    Args:
        num_tokens: Values that a clean token can have: 0 … num_tokens - 1, which is the mask's id.
        schedule: How fast tokens are noised (`unmask.noise.schedules`); linear by default.
        share_start, share_stop: Share of the mask in the noise at t = 0 and t = 1; a straight line
            in between. GIDD's own schedule, `BumpSchedule`, has a share of its own.

    >>> from unmask.base.streams import RowStreams
    >>> process = unmask.Hybrid(num_tokens=9, share_start=0.5)
    >>> x0, t = torch.tensor([[3, 1, 4]]), torch.tensor([[1.0]])  # [B, L] and [B, 1]
    >>> process.corrupt(x0, t, RowStreams.make(seed=0, rows=1))
    tensor([[9, 9, 9]])
    """

    has_mask: ClassVar[bool] = True

    num_tokens: int
    schedule: Schedule = field(default_factory=LinearSchedule)
    share_start: float = 0.0
    share_stop: float = 1.0

    def __post_init__(self) -> None:
        check_vocabulary(self.num_tokens)
        check_schedule(self.schedule)
        shares = {"share_start": self.share_start, "share_stop": self.share_stop}
        if problems := check_values(shares, dict.fromkeys(shares, float)):
            raise SettingsError("Hybrid", problems)
        if not 0 <= self.share_start <= self.share_stop <= 1:
            raise UserError(
                f"the mask's share runs from {self.share_start} to {self.share_stop}, expected it "
                "to grow within 0 to 1."
            )
        grid = torch.linspace(0, 1, 1001, dtype=torch.float64)[1:-1]
        if (self._rate(grid, mask=False) < -1e-9).any():
            raise UserError(
                f"the mask's share grows faster than {type(self.schedule).__name__} noises tokens, "
                "so that uniform noise would have to vanish again: start it higher or end it lower."
            )

    @classmethod
    def from_config(
        cls,
        config: NoiseConfig,
        schedule: Schedule,
        num_logits: int,
        mask_id: int | None,
        tokenizer: Tokenizer | None = None,
    ) -> Self:
        if mask_id is None or mask_id not in (num_logits - 1, num_logits):
            raise UserError(
                f"hybrid noise needs the mask right after all tokens, but its id is {mask_id} "
                f"and there are {num_logits} logits: give it the last row."
            )
        # The head may have a row for the mask, which is left out of predictions.
        return cls(mask_id, schedule, config.share_start, config.share_stop)

    @property
    def mask_id(self) -> int:
        return self.num_tokens

    def share(self, t: Times) -> Tensor:
        """The share of the mask in the noise at t."""
        if isinstance(self.schedule, BumpSchedule):
            return self.schedule.share(t)
        return self.share_start + (self.share_stop - self.share_start) * t

    def corrupt(self, x0: Int[Tensor, "B L"], t: Times, streams: RowStreams) -> Int[Tensor, "B L"]:
        check_times(t)
        check_clean_tokens(x0, self.num_tokens, self.mask_id)
        # Three numbers per position, side by side: what one draws is independent of the length.
        chance, *noise = streams.uniform(x0.shape[1], 3).unbind(-1)
        noised = chance < self.schedule.noised(t.double())
        return torch.where(noised, self._draw_noise(self.share(t.double()), *noise), x0)

    def prior(self, length: int, streams: RowStreams) -> Int[Tensor, "B L"]:
        share = torch.full((streams.rows, 1), self.share_stop, device=streams.keys.device)
        return self._draw_noise(share, *streams.uniform(length, 2).unbind(-1))

    def _draw_noise(self, share: Tensor, chance: Tensor, value: Tensor) -> Tensor:
        return torch.where(chance < share, self.mask_id, (value * self.num_tokens).long())

    def nll(
        self, logits: Float[Tensor, "*S V"], x0: Int[Tensor, "*S"], xt: Int[Tensor, "*S"], t: Times
    ) -> Float[Tensor, "*S"]:
        t = clamp_open(t).expand(x0.shape)
        is_mask = xt == self.mask_id
        return bound_rate(
            logits[..., : self.num_tokens],
            x0,
            xt,
            self.schedule.alpha(t),
            self._floor(t, mask=False),
            torch.where(is_mask, self._floor(t, mask=True), self._floor(t, mask=False)),
            torch.where(is_mask, self._rate(t, mask=True), self._rate(t, mask=False)),
        )

    def _floor(self, t: Times, mask: bool) -> Tensor:
        """beta_t pi_t of one state: the mask's, or that of any single token."""
        share = self.share(t)
        return self.schedule.noised(t) * (share if mask else (1 - share) / self.num_tokens)

    def _rate(self, t: Times, mask: bool) -> Tensor:
        """Rate of entering the state: (beta pi)' - (alpha' / alpha) beta pi, never below 0."""
        growth = self.share_stop - self.share_start
        if isinstance(self.schedule, BumpSchedule):
            growth = self.schedule.dshare(t)
        part, slope = (self.share(t), growth) if mask else (1 - self.share(t), -growth)
        alpha, dalpha = self.schedule.alpha(t), self.schedule.dalpha(t)
        # beta' - (alpha'/alpha) beta = -alpha'/alpha, as beta = 1 - alpha.
        rate = -dalpha / alpha * part + self.schedule.noised(t) * slope
        return rate if mask else rate / self.num_tokens

    def _step_back(self, logp: Tensor, xt: Tensor, t: Times, s: Times) -> Tensor:
        """q(z_s | z_t, x) ∝ (alpha_ts [z_s = z_t] + c(z_t)) (alpha_s x + beta_s pi_s)."""
        # In float64: near t = 0 the quotients below, and their gradients, leave float32.
        dtype, p, t, s = logp.dtype, logp.exp().double(), t.double(), s.double()
        alpha_s = self.schedule.alpha(s)
        keep = self.schedule.alpha(t) / alpha_s.clamp(min=_LEAST)
        is_mask = xt == self.mask_id
        floors = {
            time: torch.where(is_mask, self._floor(at, mask=True), self._floor(at, mask=False))
            for time, at in (("s", s), ("t", t))
        }
        enter = (floors["t"] - keep * floors["s"]).clamp(min=0)
        is_xt = F.one_hot(xt, self.num_states).to(p.dtype)
        stay = keep[..., None] * is_xt + enter[..., None]
        tokens = alpha_s[..., None] * p + self._floor(s, mask=False)[..., None]
        mask = self._floor(s, mask=True)[..., None].expand_as(tokens[..., :1])
        # An impossible x_t (one that x0 cannot have become) is copied instead of dividing 0 by 0.
        joint = stay * torch.cat((tokens, mask), -1) + _LEAST * is_xt
        # Never quite 0: its logarithm, and the gradient through the sum, would not be numbers.
        return (joint / joint.sum(-1, keepdim=True)).clamp(min=_LEAST).log().to(dtype)
