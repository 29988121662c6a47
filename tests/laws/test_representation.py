"""What must hold for keys, values and the likenesses of symmetry."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.conftest import KINDS
from tests.representation.facts import PREFIXES, make_fact, make_facts, make_model
from tests.representation.planted import plant
from unmask.net.model import Model
from unmask.representation.keys import extract_key, find_keys
from unmask.representation.likeness import LIKENESSES, score_pairs
from unmask.representation.nulls import assess, assess_layers
from unmask.representation.prompts import Case, PromptRow, lay_out_case
from unmask.representation.settings import Extraction, choose_extraction
from unmask.representation.value_loss import ValueLoss
from unmask.representation.values import Value, extract_value, find_values, search

LAYER = 1
SHORT = {"length": 32}
GUIDED = {"guidance": 0.8, "revealed": (0.0, 0.5)}


@pytest.fixture(params=KINDS, ids="-".join)
def model(request) -> Model:
    return make_model(*request.param)


def read_plainly(
    model: Model, row: PromptRow, layer: int, delta: torch.Tensor, guidance: float
) -> float:
    """p of a row's targets by whole forward passes, the delta added by a patch at the site."""

    def add(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[0, row.position] += delta
        return x

    tokens = torch.tensor([row.tokens])
    with model.net.patch({f"layers.{layer}.mlp_out": add}):
        logits = model.net(tokens)[0, row.reads].double()
    if guidance:
        tokens[0, : row.prompt_length] = model.mask_id
        without = model.net(tokens)[0, row.reads].double()
        logits = without + (1 + guidance) * (logits - without)
    if model.mask_id is not None:
        logits[:, model.mask_id] = -torch.inf
    logp = logits.log_softmax(-1)[range(len(row.targets)), row.targets]
    return float(logp.sum().exp())


def settle(model: Model, **changes: object) -> Extraction:
    """Every option that the model's kind has."""
    more = {} if model.kind == "causal" else GUIDED
    return choose_extraction("rome", **(SHORT | more | changes))


def test_zero_steps_change_nothing(model):
    """To the bit: v* is v0, p is the same, and so are all logits."""
    settings = settle(model, search_steps=0)
    case = lay_out_case(model, make_fact(0, "p2d"), PREFIXES, settings)
    found = find_values(model, [case], LAYER, settings)[0]
    assert found.v_star.equal(found.v0) and found.distance == 0
    assert found.p_after == found.p_before and found.updates == 0
    tokens = torch.tensor([case.rows[0].tokens])
    plain = model.net(tokens)
    with model.net.patch({f"layers.{LAYER}.mlp_out": lambda x: x + found.delta}):
        assert model.net(tokens).equal(plain)
    with model.net.capture(f"layers.{LAYER}.mlp_out") as taken:
        model.net(tokens)
    own = taken[f"layers.{LAYER}.mlp_out"][0, case.rows[0].position]
    torch.testing.assert_close(found.v0, own, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("layer", [0, 2])
def test_the_delta_gives_the_reported_p(model, layer):
    """Checked by whole passes with a patch at the named site, before and after."""
    settings = settle(model, search_steps=6)
    fact = make_fact(1, "d2p")
    case = lay_out_case(model, fact, PREFIXES, settings)
    found = find_values(model, [case], layer, settings)[0]
    assert found.distance > 0 and found.p_after != found.p_before
    for delta, p in ((torch.zeros_like(found.v0), found.p_before), (found.delta, found.p_after)):
        plain = read_plainly(model, case.rows[0], layer, delta, settings.guidance)
        assert abs(plain - p) < 1e-5 * p + 1e-12
    losses = [
        -np.log(read_plainly(model, replace_one(row, i), layer, found.delta, settings.guidance))
        for row in case.rows
        for i in range(len(row.targets))
    ]
    each = np.split(np.array(losses), np.cumsum([len(row.targets) for row in case.rows])[:-1])
    assert found.nll == pytest.approx(np.mean([part.mean() for part in each]), rel=1e-4)


def replace_one(row: PromptRow, i: int) -> PromptRow:
    """The row with one of its targets alone."""
    return replace(row, reads=[row.reads[i]], targets=[row.targets[i]])


def test_gradients_are_finite_differences():
    for name, kind in KINDS:
        model = make_model(name, kind, torch.float64)
        settings = settle(model)
        cases = [lay_out_case(model, fact, PREFIXES[:2], settings) for fact in make_facts()[:2]]
        value_loss = ValueLoss(model, cases, LAYER, settings)
        delta = torch.randn(2, 64, generator=torch.Generator().manual_seed(0)).double()
        delta.requires_grad_()
        loss = value_loss.evaluate(delta).loss
        (slope,) = torch.autograd.grad(loss.sum(), delta)
        way = torch.randn(2, 64, generator=torch.Generator().manual_seed(1)).double()
        with torch.no_grad():
            ahead, back = (value_loss.evaluate(delta + h * way).loss for h in (1e-5, -1e-5))
        measured = (ahead - back) / 2e-5
        torch.testing.assert_close((slope * way).sum(-1), measured, atol=1e-7, rtol=1e-6)
        assert measured.abs().min() > 1e-4


@pytest.mark.parametrize("stop", ["steps", "p=0.001"])
def test_a_fact_does_not_depend_on_its_batch(model, stop):
    settings = settle(model, stop=stop, search_steps=3 if stop == "steps" else 6)
    cases = [lay_out_case(model, fact, PREFIXES, settings) for fact in make_facts()[:2]]
    together = find_values(model, cases, LAYER, settings)
    for case, found in zip(cases, together, strict=True):
        (alone,) = find_values(model, [case], LAYER, settings)
        assert alone.stopped == found.stopped and alone.updates == found.updates
        torch.testing.assert_close(alone.delta, found.delta, atol=1e-5, rtol=1e-5)
        assert alone.p_after == pytest.approx(found.p_after, rel=1e-5)
    keys = find_keys(model, cases, LAYER)
    for case, found in zip(cases, keys, strict=True):
        (alone,) = find_keys(model, [case], LAYER)
        torch.testing.assert_close(alone.k_star, found.k_star, atol=1e-5, rtol=1e-5)


def test_adam_is_torch_s_with_the_reference_s_projection(model):
    """The whole path again, one fact, in the plainest words."""
    settings = settle(model, search_steps=5)
    case = lay_out_case(model, make_fact(2, "p2d"), PREFIXES, settings)
    value_loss = ValueLoss(model, [case], LAYER, settings)
    delta = torch.zeros(1, 64, requires_grad=True)
    adam = torch.optim.Adam([delta], lr=settings.lr)
    for _ in range(4):
        adam.zero_grad()
        value_loss.evaluate(delta).loss.sum().backward()
        adam.step()
        most = settings.clamp * value_loss.v0.norm()
        if delta.norm() > most:
            delta.data *= most / delta.norm()
    (found,) = search(value_loss, LAYER, [case])
    torch.testing.assert_close(found.delta, delta.detach()[0], atol=1e-6, rtol=1e-5)


def test_a_key_is_the_mean_over_prefixes(model):
    case: Case = lay_out_case(model, make_fact(0, "d2p"), PREFIXES, settle(model))
    found = extract_key(model, make_fact(0, "d2p"), LAYER, prefixes=PREFIXES, **SHORT)
    each = []
    for row in case.key_rows:
        with model.net.capture(f"layers.{LAYER}.mlp_key", f"layers.{LAYER}.mlp_out") as taken:
            model.net(torch.tensor([row.tokens]))
        each.append([x[0, row.position] for x in taken.values()])
    keys, values = (torch.stack(part) for part in zip(*each, strict=True))
    torch.testing.assert_close(found.k_star, keys.mean(0), atol=1e-5, rtol=1e-5)
    # The down projection is linear: the mean key's image is the mean value.
    torch.testing.assert_close(found.mapped, values.mean(0), atol=1e-5, rtol=1e-5)


def cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(torch.cosine_similarity(one, other, dim=0))


@pytest.mark.parametrize("causal", [False, True])
def test_a_planted_key_and_value_are_recovered(causal):
    """A network whose one MLP holds one association; then the same with its answer erased."""
    planted = plant(causal, {"X": "Z"})
    quiet = {"kl": 0.0, "clamp": 0.0, "lr": 0.1, "prefixes": 1}
    given = (planted.model, planted.facts[0], 0)
    found = extract_key(*given, prefixes=1)
    assert cosine(found.k_star, planted.keys[0]) > 0.99
    assert cosine(found.mapped, planted.values[0]) > 0.99
    known: Value = extract_value(*given, **quiet)
    assert known.p_before > 0.9 and cosine(known.v_star, planted.values[0]) > 0.99
    planted.erase()
    lost = extract_value(*given, search_steps=40, **quiet)
    assert lost.p_before < 0.1 and lost.p_after > 0.9
    assert cosine(lost.v_star, planted.values[0]) > 0.99


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def test_procrustes_recovers_a_planted_rotation():
    hidden, turned = draw(30, 6), np.linalg.qr(draw(6, 6, seed=1))[0]
    left = hidden @ np.linalg.qr(draw(40, 6, seed=2))[0].T
    right = hidden @ turned @ np.linalg.qr(draw(25, 6, seed=3))[0].T + 3.0
    found = LIKENESSES["procrustes"](left, right)
    assert found.value > 0.999 and found.train > 0.999
    mixed = LIKENESSES["procrustes"](left, np.random.default_rng(4).permutation(right))
    assert abs(mixed.value) < 0.3 and mixed.train > mixed.value


def test_cka_is_the_unbiased_estimate_term_by_term():
    """Song et al. 2012's U-statistic, summed over all quadruples of different facts."""
    from itertools import permutations

    left, right = draw(6, 4), draw(6, 3, seed=1)

    def hsic(k: np.ndarray, g: np.ndarray) -> float:
        terms = [
            k[i, j] * (g[i, j] + g[q, r] - 2 * g[i, q]) for i, j, q, r in permutations(range(6), 4)
        ]
        return float(np.mean(terms))

    k, g = (x @ x.T for x in (left, right))
    expected = hsic(k, g) / np.sqrt(hsic(k, k) * hsic(g, g))
    assert LIKENESSES["cka"](left, right).value == pytest.approx(expected)


def test_retrieval_and_cosine_know_pairs_from_strangers():
    left = draw(20, 50)
    near = left + 0.5 * draw(20, 50, seed=1)
    assert LIKENESSES["retrieval"](left, near).value == 1.0
    matched = LIKENESSES["cosine"](left, near)
    assert matched.matched > 0.8 and abs(matched.unmatched) < 0.1
    assert matched.value == pytest.approx(matched.matched - matched.unmatched)
    strangers = [LIKENESSES["top-1"](draw(20, 50, seed=i), near).value for i in range(2, 42)]
    assert np.mean(strangers) == pytest.approx(1 / 20, abs=3 * np.sqrt(0.05 * 0.95 / 800))


def test_angles_are_those_of_shared_directions():
    """Two of three directions over the concepts are shared, the third is not."""
    shared, one, other = draw(30, 2), draw(30, 1, seed=1), draw(30, 1, seed=2)
    left = np.hstack([shared, one]) @ np.linalg.qr(draw(40, 3, seed=3))[0].T
    right = np.hstack([shared, other]) @ np.linalg.qr(draw(20, 3, seed=4))[0].T
    cosines = LIKENESSES["angles"](left, right, rank=3).cosines
    assert cosines[1] > 0.999 and cosines[2] < 0.6


@pytest.mark.parametrize("name", LIKENESSES)
def test_every_likeness_tells_pairs_from_shuffled_ones(name):
    left, noise = draw(16, 24), draw(16, 24, seed=1)
    likeness = LIKENESSES[name]
    found = assess(likeness, left, left + 0.5 * noise, permutations=99, seed=0)
    assert found.p == 0.01 and found.value.low <= found.value.mean <= found.value.high
    assert found.value.low > found.null_high
    mixed = assess(likeness, left, np.roll(left + 0.5 * noise, 1, axis=0), permutations=99, seed=0)
    assert mixed.p > 0.01 and mixed.value.mean < found.value.mean


def assess_shuffled_pairs(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Value and p of 200 pairings that were shuffled."""
    values, p = [], []
    for i in range(200):
        concepts = draw(20, 10, seed=i)
        left = concepts @ draw(10, 30, seed=1000 + i) + 0.3 * draw(20, 30, seed=2000 + i)
        right = left + 0.3 * draw(20, 30, seed=3000 + i)
        right = np.random.default_rng(4000 + i).permutation(right)
        found = assess(LIKENESSES[name], left, right, permutations=99, seed=i)
        values.append(found.value.mean)
        p.append(found.p)
    return np.array(values), np.array(p)


CHANCE = {"cka": 0.0, "retrieval": np.mean(1 / np.arange(1, 21))}
"""Values in expectation for unrelated sets, where they are known."""
SPREAD = 3 * np.sqrt(0.05 * 0.95 / 200)
"""Three standard errors of the share that a test at 0.05 rejects."""


@pytest.mark.prove
@pytest.mark.parametrize("name", [name for name in LIKENESSES if name != "top-1"])
def test_nulls_cover_shuffled_pairs(name):
    """p is uniform, and the mean value is chance."""
    values, p = assess_shuffled_pairs(name)
    assert abs(np.mean(p <= 0.05) - 0.05) < SPREAD
    assert abs(p.mean() - 0.505) < 3 * np.sqrt(1 / 12 / 200)
    if name in CHANCE:
        assert abs(values.mean() - CHANCE[name]) < 3 * values.std() / np.sqrt(200)


@pytest.mark.prove
def test_ties_count_against_the_finding():
    """Whole hits tie with each other: p is larger than uniform, the mean value is chance."""
    values, p = assess_shuffled_pairs("top-1")
    assert np.mean(p <= 0.05) < 0.05 + SPREAD and p.mean() > 0.5
    assert abs(values.mean() - 1 / 20) < 3 * values.std() / np.sqrt(200)


FACTS, WIDTH = 12, 16


def test_layers_are_one_family():
    """One strong layer among blank ones, facts missing here and there: its p is the least there is;
    a blank one's is larger than alone, and the strong one alone has the p of its own null."""
    generator = np.random.default_rng(0)
    names = [f"{i}" for i in range(FACTS)]
    blank = [generator.normal(size=(2, FACTS, WIDTH)) for _ in range(4)]
    side = generator.normal(size=(FACTS, WIDTH))
    layers = [(names, *each) for each in blank] + [(names[1:], side[1:], side[1:] + 0.1)]
    together = assess_layers(layers, 1999)
    for measure in ("retrieval", "top-1"):
        assert together[measure][4] == pytest.approx(1 / 2000)
        for i, layer in enumerate(layers[:4]):
            (alone,) = assess_layers([layer], 1999)[measure]
            assert together[measure][i] >= alone
            plain = assess(LIKENESSES[measure], *layer[1:], permutations=1999)
            assert alone == pytest.approx(plain.p, abs=0.05)
    scores = score_pairs(side, blank[0][0])
    order = generator.permutation(FACTS)
    for measure, each in scores.items():
        value = LIKENESSES[measure](side, blank[0][0][order]).value
        assert each[order, np.arange(FACTS)].mean() == pytest.approx(value)
    flat = [(names, side, np.zeros_like(side)), layers[0]]
    assert assess_layers(flat, 199)["retrieval"][0] == 1.0


@pytest.mark.parametrize("name", LIKENESSES)
def test_not_a_number_is_never_significant(name):
    """One fact alone varies: some likenesses have a value without it, some have none."""
    side = np.zeros((FACTS, WIDTH))
    side[0, 0] = 1.0
    right = np.random.default_rng(0).normal(size=(FACTS, WIDTH))
    assessed = assess(LIKENESSES[name], right, side, permutations=19)
    assert assessed.is_measured or assessed.p == 1


def test_ties_count_as_chance():
    """Vectors that are as near to all others hit as often as a guess does."""
    left = np.random.default_rng(0).normal(size=(FACTS, WIDTH))
    cosines = LIKENESSES["top-1"].compare(left, np.zeros((FACTS, WIDTH)))
    assert cosines.per_fact == pytest.approx(1 / FACTS) and cosines.value == 1 / FACTS
    ranks = LIKENESSES["retrieval"].compare(left, np.zeros((FACTS, WIDTH)))
    assert ranks.per_fact == pytest.approx(2 / (FACTS + 1))


def test_only_shares_have_an_interval_where_all_are_alike():
    """A cosine of 1 for every fact is no share of hits."""
    side = np.random.default_rng(0).normal(size=(FACTS, WIDTH))
    hits = assess(LIKENESSES["top-1"], side, side, permutations=19).value
    assert hits.mean == hits.high == 1 and hits.low < 0.8
    assert assess(LIKENESSES["procrustes"], side, side, permutations=19).value.low > 0.99
