"""Training objectives: parts of a step add up to the whole and agree with the plain losses."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from tests.training.golden import FILE, RUNS, STEPS, measure
from tests.training.runs import make_recipe, make_trainer, take_steps
from unmask import UserError
from unmask.base.reading import read_json
from unmask.base.streams import RowStreams
from unmask.objectives.batch import Batch, draw_times
from unmask.objectives.causal import next_token_loss
from unmask.objectives.masked import get_weighting, masked_loss, noise_batch
from unmask.training.losses import make_objective, min_length

TOY = {"data": {"source": "toy", "context": 6}}
KINDS = {
    "masked": {}, "bound": {"objective": {"name": "bound"}},
    "smdm_sft": {"objective": {"name": "smdm_sft", "response_only": True}},
    "llada": {"objective": {"name": "llada", "response_only": True}},
    "mdlm": {"objective": {"name": "mdlm", "filling": False}},
    "score_entropy": {"objective": {"name": "score_entropy"}}, "causal": {"kind": "causal"},
    "answers": {"kind": "causal", "objective": {"response_only": True, "filling": False}},
    "fixed_rate": {"objective": {"name": "fixed_rate", "rate": 0.4}},
    "no_loss": {"objective": {"subject": "no_loss"}}, "suffix": {"objective": {"name": "suffix"}},
    "left": {"kind": "causal", "objective": {"name": "masked"}},
    "masked_copy": {"kind": "causal", "objective": {"name": "masked_copy"}},
    "permuted": {"kind": "causal", "objective": {"name": "permuted"}},
    "fixed_orders": {"kind": "causal", "objective": {"name": "fixed_orders", "orders": 3}},
    "mask_inputs": {"kind": "causal", "objective": {"mask_inputs": 0.2}},
    "uniform": {"kind": "uniform"} | TOY, "hybrid": {"kind": "hybrid"} | TOY,
    "gaussian": {"kind": "gaussian", "objective": {"name": "bound"}} | TOY,
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_parts_add_up_to_the_step(name):
    """Accumulated micro-batches give the losses of one whole batch, step after step."""
    whole = take_steps(make_trainer(**KINDS[name]), 3)
    parts = take_steps(make_trainer(**KINDS[name] | {"batch": {"micro": 2}}), 3)
    assert parts == pytest.approx(whole, rel=1e-5)
    assert whole[0] != whole[1]


def test_masked_objective_is_the_masked_loss():
    trainer = make_trainer()
    part = trainer.feed(5)[0]
    inputs, share = part.inputs, part.share
    batch = trainer.job.examples.parts[""].take(trainer.orders[""].rows_at(5))
    objective = trainer.job.objective
    t = draw_times(RowStreams.make(0, 1), 8)
    noised = noise_batch(objective.process, batch, t, RowStreams.make(1, 8), get_weighting("smdm"))
    inputs = objective.prepare(batch, t, RowStreams.make(1, 8))
    expected = masked_loss(trainer.net, objective.process, batch, noised)[0]
    assert share == 1 and torch.equal(objective.loss(trainer.net, inputs), expected)


def test_causal_objective_is_the_next_token_loss():
    trainer = make_trainer(kind="causal", objective={"filling": False})
    batch = trainer.job.examples.parts[""].take(trainer.orders[""].rows_at(0))
    expected = next_token_loss(trainer.net, batch, learn_filling=False)[0]
    inputs = trainer.feed(0)[0].inputs
    assert torch.equal(trainer.learner(inputs), expected)


def test_the_end_token_that_closes_a_row_is_learned():
    """Without filling, one end token after each text is predicted, and none after it."""
    trainer = make_trainer(kind="causal", objective={"filling": False})
    inputs = trainer.feed(0)[0].inputs
    end = trainer.job.examples.tokenizer.end_id
    rows = inputs.targets.at // inputs.batch.tokens.shape[1]
    for row in range(8):
        targets = inputs.targets.tokens[rows == row]
        assert (targets == end).sum() == 1 and targets[-1] == end


SHORT = {
    "answers": {"objective": {"name": "llada", "response_only": True, "short": 1.0}},
    "smdm_sft": {"objective": {"name": "smdm_sft", "short": 1.0}},
    "causal": {"kind": "causal", "objective": {"short": 1.0}},
    "causal answers": {"kind": "causal", "objective": {"response_only": True, "short": 1.0}},
}


@pytest.mark.parametrize("name", SHORT)
def test_stochastic_length_leaves_something_to_learn(name):
    """All rows of a step are cut alike."""
    trainer = make_trainer(**SHORT[name] | {"batch": {"micro": 1}})
    lengths = set()
    for step in range(50):
        parts = trainer.feed(step)
        assert len(parts) == 8 and all(part.share > 0 for part in parts)
        assert sum(part.share for part in parts) == pytest.approx(1)
        (length,) = {part.inputs.batch.tokens.shape[1] for part in parts}
        lengths.add(length)
    assert len(lengths) > 20 and (name != "causal" or min(lengths) < 6)


def test_min_length_is_after_the_longest_prompt():
    batch = Batch(torch.zeros(2, 9, dtype=torch.long), torch.tensor([3, 6]), torch.tensor([9, 9]))
    answers = {"response_only": True}
    assert min_length(batch, make_recipe()) == 1
    assert min_length(batch, make_recipe(kind="causal")) == 2
    assert min_length(batch, make_recipe(objective=answers)) == 7
    assert min_length(batch.truncate(5), make_recipe(objective=answers)) == 5


def empty_rows(trainer, rows: slice) -> None:
    """Make these rows of every batch all prompt."""

    def empty(examples):
        def take(numbers):
            batch = examples.take(numbers)
            batch.prompt_length[rows] = batch.length[rows] = batch.tokens.shape[1]
            return batch

        return replace(examples, take=take)

    trainer.job = replace(trainer.job, examples=trainer.job.examples.change(empty))


@pytest.mark.parametrize("name", ["llada", "mdlm", "smdm_sft", "bound", "next_token"])
def test_rows_without_targets_add_nothing(name):
    kind = "causal" if name == "next_token" else "masked"
    settings = {"kind": kind, "objective": {"name": name, "response_only": True}}
    losses = []
    for micro in (8, 2):
        trainer = make_trainer(**settings, batch={"micro": micro})
        empty_rows(trainer, slice(2, 4))
        losses.append(take_steps(trainer, 2))
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_a_step_without_targets_is_an_error():
    trainer = make_trainer(objective={"response_only": True})
    empty_rows(trainer, slice(None))
    with pytest.raises(UserError, match="rows of step 0 have nothing to learn"):
        trainer.take_step()


BLOCKS = {"network": {"preset": "tiny-blocks", "changes": {"layers": 2, "width": 32}}}


def test_the_loss_is_that_of_each_block_behind_clean_ones():
    trainer = make_trainer(**BLOCKS, objective={"clean_blocks": True})
    net, blueprint = trainer.job.model.net, trainer.job.model.blueprint
    objective = make_objective(trainer.job.recipe, blueprint)
    batch = trainer.job.examples.parts[""].take(range(2))
    inputs = objective.prepare(batch, torch.tensor([0.4, 0.8]), RowStreams.make(0, 2))
    noisy, clean = inputs.batch.tokens.chunk(2, dim=1)
    assert torch.equal(clean, batch.tokens)
    logits = torch.cat(
        [
            net(torch.cat((clean[:, :start], noisy[:, start : start + 4]), 1))[:, start:]
            for start in range(0, clean.shape[1], 4)
        ],
        dim=1,
    )
    targets = inputs.targets
    assert targets is not None and logits.shape[-1] == blueprint.mask_id  # the mask has no logit
    each = F.cross_entropy(logits.flatten(0, 1)[targets.at], targets.tokens, reduction="none")
    expected = (targets.weights * each).sum()
    torch.testing.assert_close(objective.loss(net, inputs).double(), expected.double())


def test_it_learns_and_is_refused_without_blocks():
    losses = take_steps(make_trainer(**BLOCKS, objective={"clean_blocks": True}), 10)
    assert losses[-1] < losses[0]
    with pytest.raises(UserError, match="expected a masked cross-entropy, and a network with"):
        make_trainer(objective={"clean_blocks": True})
    assert not make_recipe().objective.clean_blocks


@pytest.mark.parametrize("name", RUNS)
def test_losses_are_golden(name):
    known = read_json(FILE)[name]
    assert len(known) == STEPS
    # Processors round differently in the last digits; nothing else may differ.
    assert measure(name) == pytest.approx(known, rel=2e-5)
