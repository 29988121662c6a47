"""Row streams: independent of the batch, even, and the same for ever."""

import torch
from scipy import stats

from unmask.base.seeds import derive_seed
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


def test_a_purpose_has_numbers_of_its_own():
    """Whatever was drawn before, for this purpose or another, and from the same start again."""
    streams = RowStreams.make(3, ["a", "b"], pace=8)
    names = [(block, step, what) for block in (0, 1) for step in (1, 2) for what in ("a", "b")]
    first = {name: streams.at(*name).uniform(8) for name in names}
    streams.uniform(100)
    busy = streams.at(0, 1, "a")
    busy.uniform(1000)
    for name, numbers in first.items():
        assert torch.equal(streams.at(*name).uniform(8), numbers)
        assert torch.equal(streams.at(*name[:2]).at(name[2]).uniform(8), numbers)
        assert torch.equal(streams.pick(torch.tensor([1])).at(*name).uniform(8), numbers[1:])
        assert torch.equal(RowStreams.make(3, ["b"], pace=8).at(*name).uniform(5), numbers[1:, :5])
    every = torch.cat([streams.uniform(8), *first.values()]).flatten().tolist()
    assert len(set(every)) == len(every), "no number comes twice"


def test_written_down_once():
    """A change here would change every sample and every training run."""
    drawn = RowStreams(torch.tensor([0])).uniform(2)[0].tolist()
    # SplitMix64 from state 0: its first two numbers, their upper 52 bits and a half.
    numbers = (0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4)
    assert drawn == [((number >> 12) + 0.5) * 2.0**-52 for number in numbers]
    # SplitMix64 from the state that the purpose's name is hashed to.
    state = (derive_seed(0, 0, 1, "order") + 0x9E3779B97F4A7C15) % 2**64
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        state = ((state ^ (state >> shift)) * factor) % 2**64
    order = RowStreams(torch.tensor([0])).at(0, 1, "order").uniform(1)
    assert order.item() == ((state >> 12) + 0.5) * 2.0**-52


def test_even_and_uncorrelated():
    """Rows of one draw, and what purposes draw."""
    rows = RowStreams.make(0, 200).uniform(500)
    purposes = torch.cat([RowStreams.make(0, 20).at(i, "x").uniform(500) for i in range(10)])
    for draws in (rows, purposes):
        assert draws.dtype == torch.float64 and ((draws > 0) & (draws < 1)).all()
        assert stats.kstest(draws.flatten().numpy(), "uniform").pvalue > 1e-3
        correlation = torch.corrcoef(draws)
        assert correlation.fill_diagonal_(0).abs().max() < 6 / 500**0.5
    normal = RowStreams.make(1, 100).normal(500)
    assert stats.kstest(normal.flatten().numpy(), "norm").pvalue > 1e-3
    below = RowStreams.make(2, 100).below(7, 500)
    assert stats.chisquare(torch.bincount(below.flatten(), minlength=7).numpy()).pvalue > 1e-3
