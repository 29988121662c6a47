"""Circuits: every law that ties exact effects, circuits, screens and steps together."""

from dataclasses import replace

import pytest
import torch

import unmask
from tests.laws.test_tracing import make
from tests.tracing.learned import make_facts
from unmask import UserError
from unmask.data.facts import tokenize_fact
from unmask.tracing.circuits import ROLES, Contrast, Wiring
from unmask.tracing.clean_run import generate
from unmask.tracing.contrasts import contrast_step, list_partners
from unmask.tracing.faithfulness import CIRCUIT_SIZES, measure_faithfulness
from unmask.tracing.screens import SCREENS, measure_neurons, screen
from unmask.tracing.settings import Tracing

NAMES = ("before", "last", "further", "further", "answer", "answer")


OWN_KINDS = [("tiny", "masked"), ("tiny-grouped", "shifted"), ("tiny-gpt2", "causal"),
             ("tiny-pythia", "masked")]  # fmt: skip


@pytest.fixture(params=OWN_KINDS, ids="-".join)
def wiring(request) -> Wiring:
    """Two drawn texts that differ in two tokens, in float64."""
    model = make(*request.param)
    model.net.double()
    stream = torch.Generator().manual_seed(3)
    clean = torch.randint(3, 20, (len(NAMES),), generator=stream)
    other = clean.clone()
    other[1], other[3] = (clean[1] + 5) % 17, (clean[3] + 4) % 17
    if model.mask_id is not None:
        clean[4:] = other[4:] = model.mask_id
    return Wiring(Contrast(model, clean, other, (4, 5), (7, 9), (8, 11), NAMES))


def test_a_circuit_of_everything_is_the_network_and_of_nothing_the_other_question(wiring):
    both = wiring.run_circuits(torch.stack([wiring.edges, torch.zeros_like(wiring.edges)]))
    assert both.tolist() == pytest.approx(wiring.ends(), abs=1e-9)
    assert abs(wiring.ends()[0] - wiring.ends()[1]) > 1e-3


def test_an_edges_effect_is_what_the_circuit_without_it_loses(wiring):
    effects, places = wiring.measure_edges(), wiring.edges.nonzero()
    assert bool((effects.isnan() == ~wiring.edges).all())
    order = effects[wiring.edges].abs().argsort(descending=True)
    for place in [*places[order[:12]], *places[order[::29]]]:
        without = wiring.edges.clone()
        without[tuple(place)] = False
        lost = wiring.ends()[0] - float(wiring.run_circuits(without[None]))
        assert float(effects[tuple(place)]) == pytest.approx(lost, abs=1e-9)


def test_a_nodes_effect_is_what_the_circuit_without_its_edges_loses(wiring):
    effects = wiring.measure_nodes()
    order = effects.abs().flatten().argsort(descending=True)
    for number, role in (divmod(int(place), len(wiring.names)) for place in order[::7]):
        without = wiring.edges.clone()
        without[:, :, number, role] = False
        lost = wiring.ends()[0] - float(wiring.run_circuits(without[None]))
        assert float(effects[number, role]) == pytest.approx(lost, abs=1e-9)


def test_small_changes_do_what_attribution_says(wiring):
    """To first order exact effects are the screen, of nodes, edges and neurons alike."""
    wiring.changes = wiring.changes * 1e-5
    estimated = screen(wiring, "attribution")
    nodes, edges = wiring.measure_nodes(), wiring.measure_edges()
    assert torch.allclose(nodes, estimated.nodes, rtol=2e-3, atol=1e-8)
    there = wiring.edges
    assert torch.allclose(edges[there], estimated.edges[there], rtol=2e-3, atol=1e-8)
    assert edges[there].abs().max() > 1e-7


def test_integrated_gradients_of_the_embeddings_add_up_to_the_difference(wiring):
    found = screen(wiring, "integrated", points=64).nodes[0].sum()
    clean, other = wiring.ends()
    assert float(found) == pytest.approx(clean - other, rel=0.02)


def test_all_neurons_of_a_layer_together_are_its_mlp(wiring):
    layer = wiring.layers - 1
    width = screen(wiring, "attribution").neurons.shape[1]
    role = wiring.names.index("answer")
    lost = measure_neurons(wiring, [(layer, range(width), role), (layer, [0], role)])
    mlp = wiring.measure_nodes()[wiring.first_of(layer) + wiring.heads, role]
    assert float(lost[0]) == pytest.approx(float(mlp), abs=1e-6)
    assert float(lost[1]) != pytest.approx(float(mlp), abs=1e-6)


def test_faithfulness_of_the_exact_order_beats_its_reverse(wiring):
    clean, other = wiring.ends()
    exact = wiring.measure_edges() * (1 if clean > other else -1)
    good, bad = measure_faithfulness(wiring, exact), measure_faithfulness(wiring, -exact)
    assert good.positive[-1] == bad.positive[-1] == 1.0
    assert good.cpr > bad.cpr
    areas = sum(CIRCUIT_SIZES[i + 1] - CIRCUIT_SIZES[i] for i in range(len(CIRCUIT_SIZES) - 1))
    flat = replace(good, positive=(1.0,) * 10, strongest=(0.5,) * 10)
    assert (flat.cpr, flat.cmd) == pytest.approx((areas, areas / 2))


def test_questions_of_two_lengths_have_no_circuit(unchecked_shapes):
    model = make("tiny", "masked")
    row = torch.tensor([3, 4, 5])
    with pytest.raises(UserError, match="3 tokens, and the other one 2"):
        Contrast(model, row, row[:2], (2,), (4,), (5,), ("before",) * 3)


def test_between_steps_nothing_goes_but_committed_tokens(masked):
    """Whatever is done inside the network at a step, the next one is a function of its canvas."""
    names = [f"layers.{i}.resid_out" for i in range(masked.net.config.layers)]
    prompt = make_facts()[0].prompt

    def disturb(scale: float):
        def act(x):
            return x + scale * torch.sin(torch.arange(x.numel()).view(x.shape).float())

        return {name: act for name in names}

    canvases = {}
    for scale in (0.0, 0.01, 30.0):
        with masked.net.patch(disturb(scale), steps=1), masked.net.capture(*names, steps=2) as kept:
            drawn = unmask.sample(masked, prompt, steps=4, length=16, order="left")
        assert drawn.states is not None
        canvas = drawn.states[1]  # what step 2 starts from
        with torch.no_grad(), masked.net.capture(*names) as fresh:
            masked.net(canvas)
        for name in names:
            assert torch.equal(kept[2][name], fresh[name])
        canvases[scale] = canvas
    assert torch.equal(canvases[0.0], canvases[0.01])
    assert not torch.equal(canvases[0.0], canvases[30.0])


def test_steps_of_two_questions_have_positions_that_stand_for_the_same(taught):
    facts = make_facts()
    fact = facts[0]
    clean = generate(taught, fact, Tracing(steps=4, any_answer=True))
    partners = list_partners(clean, fact, facts)
    assert partners and all(each.subject == clean.subject for each in partners)
    tokens = tokenize_fact(fact, taught.tokenizer)
    for step in dict.fromkeys((clean.t1, clean.t2)):
        contrast = next(
            each for other in partners if (each := contrast_step(clean, step, other)) is not None
        )
        differ = (contrast.clean != contrast.other).nonzero()[:, 0].tolist()
        roles = {contrast.roles[at] for at in differ}
        # A causal model predicts at the token that it wrote last.
        own = set() if taught.paradigm.sees_later else {"answer"}
        assert roles <= {"first", "middle", "last", "committed", *own}
        assert {*contrast.roles} <= {*ROLES}
        assert "committed" not in roles or step > clean.t1
        assert contrast.roles[tokens.subject[1] - 1] == "last"
        for row, word in zip(contrast.reads, contrast.words, strict=True):
            assert contrast.roles[row] == "answer"
            assert word in clean.answer.values()


@pytest.mark.parametrize("method", SCREENS)
def test_screens_have_no_effect_where_there_is_no_edge(wiring, method):
    found = screen(wiring, method, points=2)
    assert bool((found.edges.isnan() == ~wiring.edges).all())
