"""A learned schedule: what moves it, and what must not."""

import torch

from tests.laws.conftest import MASK, B, T, V
from unmask.base.streams import RowStreams
from unmask.noise.masked import Masked
from unmask.noise.schedules import Learned
from unmask.noise.uniform import Uniform
from unmask.objectives.batch import draw_times
from unmask.objectives.discrete import process_loss
from unmask.objectives.schedule import schedule_loss


def test_learned_schedule_learns_to_spread_time():
    """Cross-entropies in proportion to p are best met by linear noise, whatever it starts from."""
    schedule = Learned()
    with torch.no_grad():
        schedule.scores.copy_(torch.tensor([3.0, 0.0, 0.0, 0.0, 0.0]))
    optimiser = torch.optim.Adam(schedule.parameters(), lr=0.1)
    streams = RowStreams.make(0, 1)
    half = torch.tensor([0.5], dtype=torch.float64)
    before = float(schedule.noised(half).detach())
    for _ in range(300):
        t = draw_times(streams, 256)
        loss = schedule_loss(schedule, t, 3.0 * schedule.noised(t))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    after = float(schedule.noised(half).detach())
    assert abs(before - 0.5) > 0.1 and abs(after - 0.5) < 0.03


def test_losses_leave_the_schedule_alone(small, batch):
    """Half a gradient, through the weight but not the draw, would be worse than none."""
    for process in (Masked(V - 1, MASK, Learned()), Uniform(V - 1, Learned())):
        loss, _ = process_loss(small, process, batch, T, RowStreams.make(3, B))
        loss.backward()
        assert process.schedule.scores.grad is None
