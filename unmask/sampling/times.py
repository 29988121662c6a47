"""The time of a step: from t down to s, and how much is clean at both."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Times:
    """One step back in time, under alpha = 1 - t unless a remasking says otherwise."""

    t: float
    s: float
    alpha_t: float
    alpha_s: float

    @classmethod
    def at(cls, step: int, steps: int) -> "Times":
        """Step 1 starts at t = 1, the last ends at s = 0."""
        t, s = 1 - (step - 1) / steps, 1 - step / steps
        return cls(t, s, 1 - t, 1 - s)

    @property
    def highest_rate(self) -> float:
        """sigma_max: the most that can be masked again without leaving the marginal at s."""
        return min(1.0, (1 - self.alpha_s) / self.alpha_t) if self.alpha_t > 0 else 1.0

    def reveal_chance(self, rate: float) -> float:
        """The chance of a mask to become a token when tokens become masks at `rate`."""
        if self.alpha_t == 1:
            return 1.0
        return (self.alpha_s - (1 - rate) * self.alpha_t) / (1 - self.alpha_t)
