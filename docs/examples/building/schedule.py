"""A schedule: alpha = (1 - t)^2, most tokens are masked early."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Early:
    power: float = 2.0  # what recipes may set: noise.schedule_settings.power=3

    def alpha(self, t):
        """The share of tokens that is clean at t."""
        return (1 - t) ** self.power

    def noised(self, t):
        """1 - alpha, accurate where it is small."""
        return -torch.expm1(self.power * torch.log1p(-t))

    def dalpha(self, t):
        """The slope of alpha."""
        return -self.power * (1 - t) ** (self.power - 1)

    def weight(self, t):
        return -self.dalpha(t) / self.noised(t)
