"""Gaussian noise on token vectors: z_t = sqrt(alpha_t) e(x0) + sqrt(1 - alpha_t) eps.

Li et al. 2022 (Diffusion-LM, arXiv 2205.14217), Gulrajani and Hashimoto 2023 (Plaid, 2305.18619),
Dieleman et al. 2022 (CDCD, 2211.15089). The network predicts a distribution over tokens; the mean
vector under it is the denoised estimate. The signal-to-noise ratio is alpha / (1 - alpha).
"""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.streams import RowStreams
from unmask.noise.process import NoiseKind, Sampler, Times, check_clean_tokens, check_vocabulary
from unmask.noise.schedules import Schedule, SigmoidSchedule, check_schedule, check_times


@dataclass(frozen=True)
class Gaussian(NoiseKind):
    """Gaussian noise on the vectors of tokens; not a `Process`, which noises the tokens themselves.

    Args:
        table: Vectors of the tokens [V, d], a row per token.
        schedule: alpha_t (`unmask.noise.schedules`), with some noise left at t = 0; sigmoid by
            default.
        evidence: Whether a position's own vector speaks for itself: log q(z_t | x0) is added to the
            network's logits, so that these need only know its context (Plaid's output prior).

    >>> from unmask.base.streams import RowStreams
    >>> process = unmask.Gaussian(torch.eye(9))
    >>> x0, t = torch.tensor([[3, 1, 4]]), torch.tensor([[0.5]])  # [B, L] and [B, 1]
    >>> process.corrupt(x0, t, RowStreams.make(seed=0, rows=1)).shape  # [B, L, d]
    torch.Size([1, 3, 9])
    """

    objectives: ClassVar[tuple[str, ...]] = ("cdcd", "bound")
    sampler: ClassVar[Sampler] = "vectors"

    table: Float[Tensor, "V d"]
    schedule: Schedule = field(default_factory=SigmoidSchedule)
    evidence: bool = False

    def __post_init__(self) -> None:
        check_vocabulary(len(self.table))
        check_schedule(self.schedule)
        if float(self.schedule.noised(torch.zeros((), dtype=torch.float64))) < 1e-9:
            raise UserError(
                f"the schedule {type(self.schedule).__name__} has no noise at t = 0, where tokens "
                "are read back from noised vectors: use one with open ends, such as sigmoid."
            )

    def corrupt(
        self, x0: Int[Tensor, "B L"], t: Times, streams: RowStreams
    ) -> Float[Tensor, "B L d"]:
        """z_t of every token."""
        check_times(t)
        check_clean_tokens(x0, len(self.table))
        clean = self.table[x0]
        noise = streams.normal(*clean.shape[1:]).to(clean.dtype)
        return self._signal(t) * clean + self._noise(t) * noise

    def prior(self, length: int, streams: RowStreams) -> Float[Tensor, "B L d"]:
        """z_1: pure noise."""
        return streams.normal(length, self.table.shape[1]).to(self.table.dtype)

    def denoise(self, logits: Float[Tensor, "*S V"], clamp: bool = False) -> Float[Tensor, "*S d"]:
        """The mean vector under the prediction; clamped, the token vector nearest to it."""
        mean = logits.to(self.table.dtype).softmax(-1) @ self.table
        return self.table[self.nearest(mean)] if clamp else mean

    def nearest(self, vectors: Float[Tensor, "*S d"]) -> Int[Tensor, "*S"]:
        """The token whose vector is nearest."""
        return torch.cdist(vectors.flatten(0, -2), self.table).argmin(-1).view(vectors.shape[:-1])

    def nll(
        self, logits: Float[Tensor, "*S V"], x0: Int[Tensor, "*S"], t: Times
    ) -> Float[Tensor, "*S"]:
        """The integrand `-SNR'(t)/2 |e(x0) - e_hat|^2` of the bound, in nats per token."""
        # -SNR' = -alpha' / (1 - alpha)^2
        t = t.double()
        rate = (self.schedule.weight(t) / self.schedule.noised(t)).to(self.table.dtype)
        return 0.5 * rate * (self.table[x0] - self.denoise(logits)).square().sum(-1)

    def add_evidence(
        self, logits: Float[Tensor, "*S V"], zt: Float[Tensor, "*S d"], t: Times
    ) -> Float[Tensor, "*S V"]:
        """The prediction, from the network's logits and, with `evidence`, the own noised vector."""
        if not self.evidence:
            return logits
        with torch.autocast(zt.device.type, enabled=False):
            return logits + self._compare(zt.to(self.table.dtype), t)

    def reconstruct(self, z0: Float[Tensor, "*S d"], x0: Int[Tensor, "*S"]) -> Float[Tensor, "*S"]:
        """-log p(x0 | z_0): which token vector, noised a little, gave z_0."""
        # Float64, because the little noise at t = 0 divides the rounding.
        logits = self._compare(z0.double(), torch.zeros((), dtype=torch.float64, device=z0.device))
        own = logits.gather(-1, x0[..., None])[..., 0]
        return (logits.logsumexp(-1) - own).to(z0.dtype)

    def _compare(self, zt: Float[Tensor, "*S d"], t: Times) -> Float[Tensor, "*S V"]:
        """log q(z_t | x) of every token x, up to what all of them share.

        -|z - e|^2 / 2 without |z|^2: a difference of every z and e would take d times the memory.
        """
        table = self.table.to(zt.dtype)
        alpha, noised = (
            each(t.double())[..., None].to(zt.dtype)
            for each in (self.schedule.alpha, self.schedule.noised)
        )
        closeness = alpha.sqrt() * (zt @ table.T) - 0.5 * alpha * table.square().sum(-1)
        return closeness / noised

    def prior_kl(self, x0: Int[Tensor, "*S"]) -> Float[Tensor, "*S"]:
        """KL(q(z_1 | x0) || N(0, 1)): what is left of the token at t = 1."""
        t = torch.ones((), dtype=self.table.dtype, device=self.table.device)
        alpha, noised = self.schedule.alpha(t), self.schedule.noised(t)
        spread = 0.5 * (noised - 1 - noised.log()) * self.table.shape[1]
        return 0.5 * alpha * self.table[x0].square().sum(-1) + spread

    def posterior(
        self,
        logits: Float[Tensor, "*S V"],
        zt: Float[Tensor, "*S d"],
        t: Times,
        s: Times,
        clamp: bool = False,
    ) -> tuple[Float[Tensor, "*S d"], Float[Tensor, "*#S 1"]]:
        """Mean and standard deviation of z_s given z_t, s < t, under the network's prediction."""
        clean = self.denoise(logits, clamp)
        keep = self._signal(t) / self._signal(s)
        noised_t, noised_s = (self._noise(time).square() for time in (t, s))
        added = (noised_t - keep.square() * noised_s).clamp(min=0)
        mean = (keep * noised_s * zt + self._signal(s) * added * clean) / noised_t
        return mean, (added * noised_s / noised_t).sqrt()

    # Times are kept in float64 as long as they are times.
    def _signal(self, t: Times) -> Tensor:
        return self.schedule.alpha(t.double())[..., None].sqrt().to(self.table.dtype)

    def _noise(self, t: Times) -> Tensor:
        return self.schedule.noised(t.double())[..., None].sqrt().to(self.table.dtype)
