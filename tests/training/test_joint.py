"""The objective of both readings: what it is made of, row by row, and what trains by it."""

import pytest
import torch

from tests.training.runs import make_recipe, make_trainer, take_steps
from tests.training.test_resume import same_tensors
from unmask import UserError
from unmask.base.config import SettingsError
from unmask.net.readings import open_causally
from unmask.objectives.causal import next_token_loss

JOINT = {"objective": {"name": "joint"}}


def feed(trainer):
    (part,) = trainer.feed(0)
    return part.inputs


def find_gradient(trainer, loss) -> torch.Tensor:
    trainer.net.zero_grad()
    loss.backward()
    return torch.cat([weight.grad.flatten() for weight in trainer.net.parameters()])


@pytest.mark.parametrize("weight", [0.3, 1.0])
def test_rows_of_both_readings_have_the_sum_of_both_losses(weight):
    trainer = make_trainer(objective={"name": "joint", "diffusion_weight": weight})
    masked = make_trainer(objective={"name": "smdm"})
    objective, net = trainer.job.objective, trainer.net
    both = objective.loss(net, feed(trainer))
    diffusion = masked.job.objective.loss(net, feed(masked))
    batch = trainer.job.examples.parts[""].take(trainer.orders[""].rows_at(0))
    causal = next_token_loss(open_causally(net), batch, learn_filling=False)[0]
    torch.testing.assert_close(both, causal + weight * diffusion)
    together = find_gradient(trainer, both)
    apart = find_gradient(trainer, causal) + weight * find_gradient(trainer, diffusion)
    torch.testing.assert_close(together, apart, rtol=1e-3, atol=1e-6)


OPEN = {"network": {"changes": {"block": 4, "open_block": True}}}


@pytest.mark.parametrize("reading", ["both", "diffusion"])
def test_an_open_block_is_learned_behind_clean_text(reading):
    """Each reading's own loss, the masked one that of `objective.clean_blocks`."""
    clean = {"clean_blocks": True}
    joint = make_trainer(**OPEN, objective=JOINT["objective"] | clean, data={"reading": reading})
    masked = make_trainer(**OPEN, objective={"name": "smdm"} | clean)
    net, found = joint.net, joint.job.objective.loss(joint.net, feed(joint))
    expected = masked.job.objective.loss(net, feed(masked))
    if reading == "both":
        batch = joint.job.examples.parts[""].take(joint.orders[""].rows_at(0))
        causal = next_token_loss(open_causally(net), batch, learn_filling=False)[0]
        expected = causal + 0.3 * expected
    torch.testing.assert_close(found, expected)
    assert joint.job.recipe.passes == {"both": 9, "diffusion": 6}[reading]
    losses = take_steps(joint, 6)
    assert losses[-1] < losses[0]


def test_rows_of_one_reading_are_its_objective_s_to_the_bit():
    one = make_trainer(objective={"name": "joint"}, data={"reading": "diffusion"})
    other = make_trainer(objective={"name": "smdm"})
    assert take_steps(one, 3) == take_steps(other, 3) and same_tensors(
        one.tensors(), other.tensors()
    )
    causal = make_trainer(objective={"name": "joint"}, data={"reading": "causal"})
    batch = causal.job.examples.parts[""].take(causal.orders[""].rows_at(0))
    alone = next_token_loss(open_causally(causal.net), batch, learn_filling=False)[0].detach()
    assert take_steps(causal, 1) == [alone.item()]


def test_sources_of_a_mixture_are_learned_by_their_readings():
    own = {"source": "reversal", "facts": 2, "vocab": 600}
    sources = {"a": own | {"reading": "causal"}, "b": own | {"share": 3, "reading": "diffusion"}}
    data = {"source": "mixture", "sources": sources}
    trainer = make_trainer(**JOINT, data=data)
    causal, diffusion = trainer.feed(0)
    mask_id = trainer.job.model.mask_id
    assert not (causal.inputs.batch.tokens == mask_id).any() and causal.share == 0.25
    assert (diffusion.inputs.batch.tokens == mask_id).any() and diffusion.share == 0.75
    assert trainer.job.recipe.readings == 1 and make_recipe(**JOINT).passes == 6
    take_steps(trainer, 2)


def test_what_it_is_not_for():
    with pytest.raises(SettingsError, match=r"'data\.reading' is for the objective joint"):
        make_recipe(data={"reading": "causal"})
    with pytest.raises(SettingsError, match=r"'objective\.diffusion_weight' is 0.0, expected more"):
        make_recipe(objective={"name": "joint", "diffusion_weight": 0.0})
    with pytest.raises(UserError, match="joint is for networks that are not told the time"):
        make_trainer(**JOINT, network={"changes": {"time": True}})
    with pytest.raises(UserError, match=r"training needs objective\.clean_blocks"):
        take_steps(make_trainer(**JOINT, **OPEN), 1)
