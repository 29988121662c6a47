"""Row streams: independent of the batch, even, and the same for ever."""

import torch
from scipy import stats

from unmask.base.streams import RowStreams


def test_a_row_draws_the_same_alone_and_in_any_batch():
    together = RowStreams.make(3, ["a", "b", "c"])
    first, second = together.uniform(5), together.gumbel(2, 3)
    alone = RowStreams.make(3, ["b"])
    assert torch.equal(alone.uniform(5)[0], first[1])
    assert torch.equal(alone.gumbel(2, 3)[0], second[1])


def test_rows_of_different_lengths_stay_in_step():
    long, short = (RowStreams.make(1, ["a"], pace=16) for _ in range(2))
    assert torch.equal(long.uniform(16)[:, :5], short.uniform(5))
    assert torch.equal(long.uniform(9)[:, :3], short.uniform(3))


def test_written_down_once():
    """A change here would change every sample and every training run."""
    drawn = RowStreams(torch.tensor([0])).uniform(2)[0].tolist()
    # SplitMix64 from state 0: its first two numbers, their upper 52 bits and a half.
    numbers = (0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4)
    assert drawn == [((number >> 12) + 0.5) * 2.0**-52 for number in numbers]


def test_even_and_uncorrelated():
    draws = RowStreams.make(0, 200).uniform(500)
    assert draws.dtype == torch.float64
    assert ((draws > 0) & (draws < 1)).all()
    assert stats.kstest(draws.flatten().numpy(), "uniform").pvalue > 1e-3
    correlation = torch.corrcoef(draws)
    assert correlation.fill_diagonal_(0).abs().max() < 6 / 500**0.5
    normal = RowStreams.make(1, 100).normal(500)
    assert stats.kstest(normal.flatten().numpy(), "norm").pvalue > 1e-3
    below = RowStreams.make(2, 100).below(7, 500)
    assert stats.chisquare(torch.bincount(below.flatten(), minlength=7).numpy()).pvalue > 1e-3
