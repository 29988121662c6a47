"""Laws of correctors: which of them leave the law of a text as it is, by enumeration.

The network is the oracle of a language of 27 texts, so that its predictions are conditionals of one
law. A corrector is a matrix over all 64 states, masks included; the sampler is compared with that
matrix, and the matrix with the law.
"""

import pytest
import torch
from torch import Tensor

from tests.laws.enumeration import Language
from unmask.base.streams import RowStreams
from unmask.experiments.correctors.laws import (
    SmallLanguage,
    find_bias,
    find_kernel,
    list_states,
)
from unmask.noise.masked import Masked
from unmask.sampling.correctors import UniformChoice, WrittenText, find_margin, get_corrector
from unmask.sampling.state import Predictions
from unmask.sampling.token_sampler import TokenSampler

K, LENGTH, MASK, ROWS = 3, 3, 3, 10_000
LAW = SmallLanguage(K, LENGTH, seed=0)


@pytest.fixture(scope="module")
def conditionals() -> Tensor:
    """p(x_d | the others) [states, L, K], whatever stands at d itself."""
    return Language(Masked(K, MASK), LENGTH, seed=0).oracle(0.5).softmax(-1)


def number(states: Tensor) -> Tensor:
    """The place of each state among all."""
    return states @ torch.tensor([16, 4, 1])


def apply(conditionals: Tensor, corrector, states: Tensor) -> tuple[Tensor, int]:
    """What the corrector itself makes of the states, and its network calls."""
    calls = []

    def predict(tokens: Tensor, open_: Tensor, count: int) -> Predictions:
        assert count == open_.sum() > 0 and (tokens[open_] == MASK).all()
        calls.append(count)
        return Predictions(open_, conditionals[number(tokens)][open_].log())

    written, ones = states != MASK, torch.ones(states.shape, dtype=torch.float64)
    text = WrittenText(
        states, written, written.sum(-1).tolist(), ones, 0 * ones, MASK, predict, TokenSampler(1.0)
    )
    corrector.correct(text, RowStreams.make(0, len(states)))
    assert torch.equal(text.tokens == MASK, states == MASK), "masks stay masks"
    return text.tokens, len(calls)


EXACT = ["uniform=1", "uniform=2", "uniform=3", "accepted=0", "accepted=0.5", "accepted=1"]
BIASED = ["margin=1", "gumbel=1,0.5", "gumbel=1,2"]


def test_the_law_and_the_margins_are_as_written_down(conditionals):
    states = list_states(LAW)
    for d in range(LENGTH):
        hidden = states.index_fill(1, torch.tensor([d]), MASK)
        torch.testing.assert_close(LAW.find_marginals(hidden)[:, d], conditionals[:, d])
    logp = conditionals[0].log()
    margins = [p[1] - max(p[0], p[2]) for p in logp.tolist()]
    assert find_margin(logp, torch.ones(3, dtype=torch.long)).tolist() == pytest.approx(margins)


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("masked", [0.0, 0.4])
def test_exact_correctors_leave_the_law_as_it_is(name, masked):
    kernel = find_kernel(LAW, get_corrector(name))
    assert find_bias(LAW, kernel, masked) < 1e-12
    assert (kernel.diagonal() < 1 - 1e-6).any(), "it moves"


def test_choosing_by_the_value_that_is_redrawn_is_biased():
    """The more the choice follows the margin, the further from the law."""
    kernels = [find_kernel(LAW, get_corrector(name)) for name in (*BIASED, "gumbel=1,1e9")]
    margin, cold, hot, even = (find_bias(LAW, kernel) for kernel in kernels)
    assert margin > cold > hot > 1e-3
    assert even < 1e-9, "an infinite temperature is a uniform choice"
    assert find_bias(LAW, kernels[0], times=20) > margin


@pytest.mark.parametrize("name", [*EXACT, *BIASED, "margin=2", "gumbel=2,1"])
def test_a_corrector_has_the_law_of_its_matrix(conditionals, name):
    """From full texts and from states with masks, within five standard errors."""
    corrector = get_corrector(name)
    kernel = find_kernel(LAW, corrector)
    assert torch.allclose(kernel.sum(-1), torch.ones(64, dtype=torch.float64))
    for state in ([0, 2, 1], [MASK, 1, 2], [1, MASK, MASK]):
        start = torch.tensor(state)
        ends, _ = apply(conditionals, corrector, start.repeat(ROWS, 1))
        shares = torch.bincount(number(ends), minlength=64) / ROWS
        law = kernel[number(start)]
        assert (
            (shares - law).abs() <= 5 * (law * (1 - law).clamp(min=0) / ROWS).sqrt() + 1e-9
        ).all()


def test_refilling_together_is_biased_but_for_one(conditionals):
    """In one call for two tokens: each is drawn as if the other stayed hidden."""
    start, distances = LAW.draw(4 * ROWS, seed=0), {}
    for k, together in ((1, True), (2, True), (2, False)):
        ends, calls = apply(conditionals, UniformChoice(k, together), start)
        assert calls == (1 if together else k)
        distances[k, together] = LAW.find_distance(ends)
    noise = float((LAW.law * (1 - LAW.law) / len(start)).sqrt().sum() / 2)
    assert distances[1, True] < 2 * noise and distances[2, False] < 2 * noise
    assert distances[2, True] > 4 * noise
