"""What a learned schedule can learn: to estimate the masked bound with less spread.

The bound itself is the same for every schedule. Its one-sample estimate w_t f(p_t), f the sum of
cross-entropies at mask probability p, has the second moment  integral of p'(t(p)) (f(p)/p)^2 dp,
which is least where time is spent in proportion to f/p.
"""

from jaxtyping import Float
from torch import Tensor

from unmask.noise.schedules import Learned


def schedule_loss(
    schedule: Learned, t: Float[Tensor, "B"], sums: Float[Tensor, "B"]
) -> Float[Tensor, ""]:
    """The second moment of the bound's estimate, with a gradient to the schedule alone.

    `sums` are the rows' unweighted cross-entropies, masked at times t under this schedule.
    """
    p, slope = schedule.noised(t).detach(), -schedule.dalpha(t).detach()
    # The time at which a changed schedule would reach the same p: one Newton step from t.
    moved = t - (schedule.noised(t) - p) / slope
    return (slope * -schedule.dalpha(moved) * (sums.detach() / p).square()).mean()
