"""Laws of guidance by a classifier, on a language of 27 texts and an attribute of each.

The oracle network and the exact classifier of noised texts, p(y | z), are enumerated.
"""

from itertools import product

import pytest
import torch
from torch import Tensor

import unmask
from tests.laws.enumeration import Language
from unmask.experiments.correctors.laws import ExactModel, SmallLanguage
from unmask.noise.guidance import find_log_rate, mix
from unmask.noise.masked import Masked
from unmask.sampling.attributes import AttributeGuidance, OneHotClassifier
from unmask.sampling.state import Predictions

K, LENGTH, MASK, ROWS = 3, 3, 3, 20_000
POWERS = torch.tensor([16, 4, 1])


@pytest.fixture(scope="module")
def language() -> Language:
    return Language(Masked(K, MASK), LENGTH, seed=0)


@pytest.fixture(scope="module")
def p_attribute(language) -> Tensor:
    """p(y | text) of every text, drawn once."""
    return torch.rand(27, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def agree(language: Language) -> Tensor:
    """Which texts may stand behind which states [states, texts]."""
    states, texts = language.states[:, None], language.texts[None]
    return ((states == MASK) | (states == texts)).all(-1).double()


@pytest.fixture(scope="module")
def classifier(language, p_attribute):
    """log p(y | z) = log of the mean of p(y | text) over the texts behind z."""
    behind = agree(language) * language.law
    logp = (behind @ p_attribute / behind.sum(-1)).log()
    return lambda tokens, t: logp[tokens @ POWERS]


@pytest.fixture(scope="module")
def predictions(language) -> Predictions:
    """The oracle's at the masks of all states."""
    open_ = language.states == MASK
    return Predictions(open_, language.oracle(0.5).log_softmax(-1)[open_])


def conditional(language: Language, weights: Tensor) -> Tensor:
    """log p(x_l | z) at every mask when texts have these weights [N, K]."""
    behind = agree(language) * weights
    rows = [
        [float(behind[i][language.texts[:, d] == v].sum()) for v in range(K)]
        for i, state in enumerate(language.states)
        for d in range(LENGTH)
        if state[d] == MASK
    ]
    p = torch.tensor(rows, dtype=torch.float64)
    return (p / p.sum(-1, keepdim=True)).log()


def test_the_exact_classifier_gives_the_conditional(language, predictions, classifier, p_attribute):
    """At strength 1, at every mask of every state: one position per step then samples p(x | y)."""
    wanted = conditional(language, language.law * p_attribute)
    for judged in ("all", K, 99):
        guided, calls = AttributeGuidance(classifier, judged).guide(
            predictions, language.states, 1.0, MASK
        )
        assert torch.allclose(guided.rows, wanted, atol=1e-12) and calls == 0
    assert not torch.allclose(predictions.rows, wanted, atol=1e-2), "it makes a difference"


def test_the_tower_rule(language, predictions, classifier):
    """sum_v p(v | z) p(y | z with v at l) = p(y | z): Z is 1, and rates are unchanged."""
    guide = AttributeGuidance(classifier, rates=True)
    exact, _ = guide.guide(predictions, language.states, 1.0, MASK)
    assert exact.log_z.abs().max() < 1e-12
    # Z(g) is a mean of g-th powers of a ratio with mean 1 (Jensen).
    faster, _ = guide.guide(predictions, language.states, 2.0, MASK)
    slower, _ = guide.guide(predictions, language.states, 0.5, MASK)
    assert faster.log_z.min() > -1e-12 and faster.log_z.max() > 0.01
    assert slower.log_z.max() < 1e-12 and slower.log_z.min() < -0.01


@pytest.mark.parametrize("strength", [0.5, 1.0, 3.0])
def test_first_order_is_exact_for_sums_over_positions(language, predictions, strength):
    weights = torch.randn(LENGTH, K + 1, generator=torch.Generator().manual_seed(2)).double()
    additive = OneHotClassifier(lambda x, t: (x * weights).sum((1, 2)), K + 1, K)
    curved = OneHotClassifier(lambda x, t: (x * weights).sum((1, 2)) ** 2, K + 1, K)
    for each, is_same in ((additive, True), (curved, False)):
        exact, first = (
            AttributeGuidance(each, how).guide(predictions, language.states, strength, MASK)[0]
            for how in ("all", "first-order")
        )
        assert torch.allclose(exact.rows, first.rows, atol=1e-10) == is_same


def test_unlikely_tokens_are_not_judged(language, predictions, classifier):
    two, _ = AttributeGuidance(classifier, 2).guide(predictions, language.states, 1.0, MASK)
    worst = predictions.rows.argmin(-1)
    assert (two.rows.gather(-1, worst[:, None]) == -torch.inf).all()
    assert torch.allclose(two.rows.logsumexp(-1), torch.zeros(len(worst)).double(), atol=1e-12)


def test_log_z_of_rates():
    """Convex in g, 0 at g = 0 and 1, at most 0 between them and at least 0 outside."""
    generator = torch.Generator().manual_seed(0)
    c, u = torch.randn(2, 50, 7, generator=generator, dtype=torch.float64).log_softmax(-1)
    grid = [i / 10 for i in range(-20, 41)]
    z = torch.stack([find_log_rate(c, u, g - 1) for g in grid])
    for g, row in zip(grid, z, strict=True):
        sign = 0 if g in (0, 1) else -1 if 0 < g < 1 else 1
        assert (row.abs() < 1e-12).all() if sign == 0 else (sign * row > 0).all()
    assert (z[2:] - 2 * z[1:-1] + z[:-2] > 0).all()
    # What is normalised away is Z: the guided law is the mixture over it.
    w = 1.7
    mixed = mix(c, u, w)
    assert torch.allclose(mixed.log_softmax(-1), mixed - find_log_rate(c, u, w)[:, None])
    c, u = (x.index_fill(-1, torch.tensor([3]), -torch.inf).log_softmax(-1) for x in (c, u))
    assert find_log_rate(c, u, w).isfinite().all(), "what neither allows adds nothing"


def draw_shares(**settings) -> Tensor:
    """Shares of the texts that the oracle's sampler draws."""
    model = ExactModel.make(SmallLanguage(K, LENGTH, seed=0))
    drawn = unmask.sample(
        model, [[]] * ROWS, length=LENGTH, temperature=1.0, keep_states=False, **settings
    )
    return torch.bincount(drawn.tokens @ torch.tensor([9, 3, 1]), minlength=27) / ROWS


def is_close(shares: Tensor, law: Tensor) -> bool:
    return bool(((shares - law).abs() < 5 * (law * (1 - law) / ROWS).sqrt()).all())


@pytest.mark.parametrize("order", ["random", "left"])
def test_one_position_per_step_samples_the_conditional(language, classifier, p_attribute, order):
    wanted = language.law * p_attribute / (language.law @ p_attribute)
    shares = draw_shares(plan="one", order=order, classifier=classifier, judged="all")
    assert is_close(shares, wanted) and not is_close(shares, language.law)


def test_correctors_keep_the_conditional(language, classifier, p_attribute):
    """A corrector is guided as the steps are."""
    wanted = language.law * p_attribute / (language.law @ p_attribute)
    how = {"plan": "one", "order": "random", "corrector": "uniform=1"}
    assert is_close(draw_shares(classifier=classifier, judged="all", **how), wanted)


@pytest.mark.parametrize("strength", [1.0, 3.0])
def test_rates_have_the_law_of_their_chain(language, predictions, classifier, strength):
    """Two steps: each mask becomes a token with 1 - (1/2)^Z, then all the rest are filled."""
    guide = AttributeGuidance(classifier, rates=True)
    guided, _ = guide.guide(predictions, language.states, strength, MASK)
    p = guided.spread(guided.rows.exp(), 0.0)
    chance = guided.spread(1 - 0.5 ** guided.log_z.exp(), 0.0)
    law, start = torch.zeros(27, dtype=torch.float64), len(language.states) - 1
    for middle in product(range(K + 1), repeat=LENGTH):
        factors = [
            1 - chance[start, d] if v == MASK else chance[start, d] * p[start, d, v]
            for d, v in enumerate(middle)
        ]
        state = int(torch.tensor(middle) @ POWERS)
        for i, text in enumerate(language.texts.tolist()):
            ends = [
                p[state, d, v] if middle[d] == MASK else float(middle[d] == v)
                for d, v in enumerate(text)
            ]
            law[i] += torch.tensor(factors).double().prod() * torch.tensor(ends).double().prod()
    assert float(law.sum()) == pytest.approx(1)
    how = {"plan": "ancestral", "order": "random", "steps": 2, "classifier": classifier}
    how |= {"classifier_guidance": strength, "judged": "all"}
    assert is_close(draw_shares(rates=True, **how), law)
    if strength > 1:
        assert not is_close(draw_shares(**how), law), "rates make a difference"
