"""Laws of correctors: which of them leave the law of a text as it is, by enumeration.

The network is the oracle of a language of 27 texts, so that its predictions are conditionals of one
law. A corrector is a matrix over all 64 states, masks included, written down here anew; the sampler
is compared with that matrix, and the matrix with the law.
"""

from itertools import combinations, permutations

import pytest
import torch
from torch import Tensor

from tests.laws.enumeration import Language
from unmask.base.streams import RowStreams
from unmask.noise.masked import Masked
from unmask.sampling.correctors import UniformChoice, WrittenText, get_corrector
from unmask.sampling.state import Predictions
from unmask.sampling.token_sampler import TokenSampler

K, LENGTH, MASK, ROWS = 3, 3, 3, 20_000
POWERS = torch.tensor([16, 4, 1])


@pytest.fixture(scope="module")
def language() -> Language:
    return Language(Masked(K, MASK), LENGTH, seed=0)


@pytest.fixture(scope="module")
def conditionals(language) -> Tensor:
    """p(x_d | the others) [states, L, K], whatever stands at d itself."""
    return language.oracle(0.5).softmax(-1)


def number(states: Tensor) -> Tensor:
    """The place of each state among all."""
    return states @ POWERS


def list_written(state: Tensor) -> list[int]:
    return [d for d in range(LENGTH) if state[d] != MASK]


def put(state: Tensor, d: int, token: int) -> Tensor:
    return torch.where(torch.arange(LENGTH) == d, token, state)


def find_chances(state: Tensor, conditionals: Tensor, temperature: float) -> dict[int, float]:
    """s_d: the chance of each written position to be chosen by its margin."""
    margins = {}
    for d in list_written(state):
        p = conditionals[number(state), d].log()
        margins[d] = float(p[state[d]] - max(p[v] for v in range(K) if v != state[d]))
    if temperature == 0:
        least = min(margins, key=lambda d: (margins[d], d))
        return {d: float(d == least) for d in margins}
    weights = {d: torch.tensor(-c / temperature).exp().item() for d, c in margins.items()}
    return {d: weight / sum(weights.values()) for d, weight in weights.items()}


def fill(state: Tensor, order: tuple[int, ...], conditionals: Tensor) -> dict[int, float]:
    """The law of texts when positions are hidden and then refilled one after the other."""
    hidden = state.clone()
    hidden[list(order)] = MASK
    laws = [(hidden, 1.0)]
    for d in order:
        laws = [
            (put(z, d, v), p * float(conditionals[number(z), d, v]))
            for z, p in laws
            for v in range(K)
        ]
    return {int(number(z)): p for z, p in laws}


def find_kernel(language: Language, conditionals: Tensor, name: str) -> Tensor:
    """The chance of each state to become another [states, states], by hand."""
    kind, _, numbers = name.partition("=")
    values = [float(x) for x in numbers.split(",")]
    kernel = torch.zeros(len(language.states), len(language.states), dtype=torch.float64)
    for i, state in enumerate(language.states):
        written = list_written(state)
        if not written:
            kernel[i, i] = 1
        elif kind == "uniform":
            k = min(int(values[0]), len(written))
            orders = [o for some in combinations(written, k) for o in permutations(some)]
            for order in orders:
                for j, p in fill(state, order, conditionals).items():
                    kernel[i, j] += p / len(orders)
        else:
            temperature = values[-1] if kind in ("gumbel", "accepted") else 0.0
            chances = find_chances(state, conditionals, temperature)
            for d, chance in chances.items():
                for j, p in fill(state, (d,), conditionals).items():
                    accept = 1.0
                    if kind == "accepted" and chance:
                        again = find_chances(language.states[j], conditionals, temperature)
                        accept = min(1.0, again[d] / chance)
                    kernel[i, j] += chance * p * accept
                    kernel[i, i] += chance * p * (1 - accept)
    assert torch.allclose(kernel.sum(-1), torch.ones(64, dtype=torch.float64))
    return kernel


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


def find_bias(language: Language, kernel: Tensor, t: float) -> float:
    """Total variation between the law of states at a time and what the corrector makes of it."""
    law = language.law @ language.noised(t)
    return float((law @ kernel - law).abs().sum() / 2)


EXACT = ["uniform=1", "uniform=2", "uniform=3", "accepted=0", "accepted=0.5", "accepted=1"]
BIASED = ["margin=1", "gumbel=1,0.5", "gumbel=1,2"]


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("t", [1e-9, 0.4])
def test_exact_correctors_leave_the_law_as_it_is(language, conditionals, name, t):
    kernel = find_kernel(language, conditionals, name)
    assert find_bias(language, kernel, t) < 1e-12
    assert (kernel.diagonal() < 1 - 1e-6).any(), "it moves"


def test_choosing_by_the_value_that_is_redrawn_is_biased(language, conditionals):
    """The more the choice follows the margin, the further from the law."""
    margin, cold, hot = (
        find_bias(language, find_kernel(language, conditionals, name), 1e-9) for name in BIASED
    )
    assert margin > cold > hot > 1e-3
    far = find_bias(language, find_kernel(language, conditionals, "gumbel=1,1e9"), 1e-9)
    assert far < 1e-9, "an infinite temperature is a uniform choice"


@pytest.mark.parametrize("name", [*EXACT, *BIASED])
def test_a_corrector_has_the_law_of_its_matrix(language, conditionals, name):
    """From full texts and from states with masks, within five standard errors."""
    kernel, corrector = find_kernel(language, conditionals, name), get_corrector(name)
    for state in ([0, 2, 1], [MASK, 1, 2], [1, MASK, MASK]):
        start = torch.tensor(state)
        ends, _ = apply(conditionals, corrector, start.repeat(ROWS, 1))
        shares = torch.bincount(number(ends), minlength=64) / ROWS
        law = kernel[number(start)]
        assert (
            (shares - law).abs() <= 5 * (law * (1 - law).clamp(min=0) / ROWS).sqrt() + 1e-9
        ).all()


def test_refilling_together_is_biased_but_for_one(language, conditionals):
    """In one call for two tokens: each is drawn as if the other stayed hidden."""
    start = language.texts[torch.multinomial(language.law, 4 * ROWS, True, generator=seeded())]
    law = language.law
    distances = {}
    for k, together in ((1, True), (2, True), (2, False)):
        ends, calls = apply(conditionals, UniformChoice(k, together), start)
        assert calls == (1 if together else k)
        shares = torch.bincount(ends @ torch.tensor([9, 3, 1]), minlength=27) / len(ends)
        distances[k, together] = float((shares - law).abs().sum() / 2)
    noise = float((law * (1 - law) / len(start)).sqrt().sum() / 2)
    assert distances[1, True] < 2 * noise and distances[2, False] < 2 * noise
    assert distances[2, True] > 4 * noise


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize(
    "name,calls", [("uniform=0", 0), ("uniform=2", 2), ("margin=2", 5), ("accepted", 6)]
)
def test_calls_are_those_of_the_row_with_most_tokens(conditionals, name, calls):
    states = torch.tensor([[0, 1, 2], [0, MASK, MASK], [MASK, MASK, MASK]])
    assert apply(conditionals, get_corrector(name), states)[1] == calls
    nothing = torch.full((2, LENGTH), MASK)
    assert apply(conditionals, get_corrector(name), nothing)[1] == 0


@pytest.mark.parametrize("name", ["uniform=2", "margin=2", "gumbel=2,1", "accepted"])
def test_a_row_is_corrected_as_if_it_were_alone(conditionals, name):
    states = torch.tensor([[0, 1, 2], [0, MASK, 1], [MASK, MASK, 2], [2, 2, 2]])
    together, _ = apply(conditionals, get_corrector(name), states)
    for size in (1, 2, 3):
        assert torch.equal(
            apply(conditionals, get_corrector(name), states[:size])[0], together[:size]
        )
