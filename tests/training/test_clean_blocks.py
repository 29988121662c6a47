"""Training by blocks: what stands before a noised block is read clean."""

import pytest
import torch
import torch.nn.functional as F

from tests.training.runs import make_recipe, make_trainer, take_steps
from unmask import UserError
from unmask.base.streams import RowStreams
from unmask.training.losses import make_objective

BLOCKS = {"network": {"preset": "tiny-blocks", "changes": {"layers": 2, "width": 32}}}


def test_the_loss_is_that_of_each_block_behind_clean_ones():
    trainer = make_trainer(**BLOCKS, objective={"clean_blocks": True})
    net, blueprint = trainer.job.model.net, trainer.job.model.blueprint
    objective = make_objective(trainer.job.recipe, blueprint)
    batch = trainer.job.examples.take(range(2))
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
