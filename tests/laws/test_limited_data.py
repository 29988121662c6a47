"""Causal training on little text: fixed orders, masked inputs and dropout, each by its law."""

import pytest
import torch

from tests.laws.conftest import B, L, T
from tests.training.runs import make_recipe, make_trainer, run, take_steps
from unmask.base.config import SettingsError
from unmask.base.streams import RowStreams
from unmask.objectives.causal import next_token_loss
from unmask.objectives.rearranged import list_orders, reorder
from unmask.objectives.targets import targets_loss
from unmask.training.losses import FixedOrdersObjective
from unmask.training.recipe import ObjectiveSettings

CAUSAL = {"kind": "causal"}
ORDERS = CAUSAL | {"objective": {"name": "fixed_orders", "orders": 4}}
MASKED = CAUSAL | {"objective": {"mask_inputs": 0.5}}
DROPPED = CAUSAL | {"network": {"dropout": 0.3}}


def test_orders_are_fixed_and_begin_with_the_first_token():
    orders = list_orders(16, 40)
    assert orders[0].tolist() == list(range(40)) and (orders[:, 0] == 0).all()
    assert (orders.sort(-1).values == torch.arange(40)).all()
    assert torch.equal(list_orders(4, 40), orders[:4])
    moved = (orders - torch.arange(40)).abs().double().mean(-1)
    assert moved[0] == 0 and moved[1] < moved[15] and len(orders.unique(dim=0)) == 16


def test_a_row_in_an_order_is_the_chain_rule_of_that_order(causal, batch):
    """Each token given those read before it, all at their own positions."""
    order = list_orders(B, L)
    may = torch.ones(B, L, dtype=torch.bool)
    made = reorder(batch, may, order)
    x = causal.run_layers(causal.embed(made.tokens), positions=made.positions)
    _, terms = targets_loss(causal, x, made.targets)
    expected = []
    for row in range(B):
        for turn in range(1, L):
            seen = order[row, :turn][None]
            stream = causal.embed(batch.tokens[row][seen])
            logits = causal.unembed(causal.run_layers(stream, positions=seen))[0, -1]
            token = batch.tokens[row, order[row, turn]]
            expected.append(-logits.double().log_softmax(-1)[token])
    torch.testing.assert_close(terms.double(), torch.stack(expected), atol=1e-4, rtol=1e-4)


def test_one_order_is_the_next_token(batch, causal):
    made = reorder(batch, torch.ones(B, L, dtype=torch.bool), list_orders(1, L).expand(B, -1))
    x = causal.run_layers(causal.embed(made.tokens), positions=made.positions)
    loss, _ = targets_loss(causal, x, made.targets)
    torch.testing.assert_close(loss, next_token_loss(causal, batch)[0])


def test_prompts_are_read_first_and_filling_last(batch):
    objective = FixedOrdersObjective(ObjectiveSettings(orders=4), -1)
    made = objective.rearrange(batch, T, RowStreams.make(0, B))
    for read, prompt, length in zip(made.positions, batch.prompt_length, batch.length, strict=True):
        assert (read[:prompt] < prompt).all() and (read[length:] >= length).all()


def test_masked_inputs_leave_the_targets():
    plain, masked = (make_trainer(**each).feed(0)[0].inputs for each in (CAUSAL, MASKED))
    assert torch.equal(plain.targets.tokens, masked.targets.tokens)
    mask_id = make_trainer(**MASKED).job.model.mask_id
    hidden = masked.batch.tokens == mask_id
    assert 0.4 < float(hidden.double().mean()) < 0.6
    assert torch.equal(plain.batch.tokens[~hidden], masked.batch.tokens[~hidden])


def test_dropout_is_a_function_of_seed_and_step(tmp_path):
    """Steps that were stopped and resumed are those that never stopped, whatever else draws."""
    whole, _ = run(tmp_path / "whole", **DROPPED, budget={"steps": 6})
    run(tmp_path / "parts", **DROPPED, budget={"steps": 3})
    torch.rand(7)
    parts, _ = run(tmp_path / "parts", **DROPPED, budget={"steps": 6})
    pairs = zip(whole.net.parameters(), parts.net.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    none = take_steps(make_trainer(**CAUSAL), 1)
    assert take_steps(make_trainer(**DROPPED), 1) != none


def test_nothing_is_dropped_outside_of_training():
    trainer, plain = make_trainer(**DROPPED), make_trainer(**CAUSAL)
    tokens = trainer.job.examples.parts[""].take([0, 1]).tokens
    with trainer.show_model() as model, plain.show_model() as other:
        assert torch.equal(model.logits(tokens), other.logits(tokens))


def test_all_dropped_leaves_the_embedding():
    trainer = make_trainer(kind="causal", network={"dropout": 1.0})
    net, tokens = trainer.net, trainer.job.examples.parts[""].take([0]).tokens
    assert torch.equal(net.run_layers(net.embed(tokens)), net.embed(tokens))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"objective": {"mask_inputs": 0.1}}, "'objective.mask_inputs' is for causal models"),
        (CAUSAL | {"objective": {"name": "fixed_orders"}}, "needs one: 1 or more"),
        (CAUSAL | {"objective": {"orders": 4}}, "is for the objective fixed_orders"),
        ({"network": {"dropout": 1.5}}, "'network.dropout' is 1.5, expected 0 to 1"),
    ],
)
def test_bad_recipes(changes, sentence):
    with pytest.raises(SettingsError, match=sentence):
        make_recipe(**changes)
