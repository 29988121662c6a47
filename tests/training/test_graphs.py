"""Steps captured and replayed: the same as steps that are launched kernel by kernel."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from tests.training.runs import make_recipe, make_trainer, take_steps
from tests.training.test_losses import KINDS
from unmask.training.build import prepare_job
from unmask.training.graphs import SHAPES, pad_inputs
from unmask.training.parallel import World
from unmask.training.speed import estimate_bytes
from unmask.training.trainer import Trainer

TARGETS = [name for name, changes in KINDS.items() if changes.get("kind") != "gaussian"]


def gradients(trainer: Trainer, inputs) -> list[torch.Tensor]:
    trainer.learner.zero_grad()
    trainer.learner(inputs).backward()
    return [weight.grad for weight in trainer.net.parameters() if weight.requires_grad]


@pytest.mark.parametrize("name", TARGETS)
def test_added_targets_weigh_nothing(name):
    """Padding the targets leaves the loss and every gradient what they were."""
    trainer = make_trainer(**KINDS[name])
    inputs = trainer.feed(0)[0].inputs
    count = len(inputs.targets.at)
    padded = replace(inputs, targets=inputs.targets.pad(count + 3))
    assert len(padded.targets.at) == count + 3
    loss, again = trainer.learner(inputs), trainer.learner(padded)
    torch.testing.assert_close(again, loss, rtol=1e-6, atol=0)
    for one, other in zip(gradients(trainer, inputs), gradients(trainer, padded), strict=True):
        assert (one - other).norm() <= 1e-5 * one.norm()


def test_batches_have_few_shapes():
    trainer = make_trainer()
    counts = {len(pad_inputs(trainer.feed(step)[0].inputs).targets.at) for step in range(30)}
    plain = {len(trainer.feed(step)[0].inputs.targets.at) for step in range(30)}
    assert len(counts) <= SHAPES < len(plain)


@pytest.mark.parametrize(("beside", "expected"), [(1.1, True), (0.9, False)])
def test_steps_are_recorded_where_activations_fit_twice(beside, expected, monkeypatch):
    """What is recorded keeps its memory, so that rows of other lengths need theirs beside it."""
    trainer = make_trainer()
    job = trainer.job
    needed = estimate_bytes(trainer.net.config, job.recipe, job.micro, short=False)
    room = sum(needed.values()) + beside * needed["activations"]
    monkeypatch.setattr("unmask.training.trainer.free_bytes", lambda device: int(room))
    assert trainer._wants_graphs() == expected


def make_on_gpu(graphs: str, **changes) -> Trainer:
    # Not compiled: the tests' shape checks are no code for a compiler.
    machine = {"graphs": graphs, "dtype": "bfloat16", "compile": "off"}
    recipe = make_recipe(**changes | {"machine": machine})
    return Trainer(prepare_job(recipe, World(torch.device("cuda"))))


@pytest.mark.gpu
@pytest.mark.parametrize("name", KINDS)
def test_replayed_steps_are_the_same(name):
    """Losses, weights, optimiser and guard, to the bit."""
    trainers = {graphs: make_on_gpu(graphs, **KINDS[name]) for graphs in ("on", "off")}
    losses = {graphs: take_steps(trainer, 12) for graphs, trainer in trainers.items()}
    replayed, plain = trainers["on"], trainers["off"]
    assert plain.graphs is None
    assert (replayed.graphs.replays > 0) == (name in TARGETS)
    assert losses["on"] == losses["off"]
    for name_, tensor in replayed.tensors().items():
        assert torch.equal(tensor, plain.tensors()[name_]), name_


@pytest.mark.gpu
def test_a_patched_step_is_not_replayed():
    """What waits at a site fires in every step, and changes it."""
    trainer = make_on_gpu("on")
    take_steps(trainer, 8)
    before, fired = trainer.graphs.replays, []

    def act(x):
        fired.append(1)
        return x

    with trainer.net.patch({"layers.0.mlp_out": act}):
        take_steps(trainer, 3)
    assert len(fired) == 3 and trainer.graphs.replays == before > 0


@pytest.mark.gpu
def test_trainers_side_by_side_learn_what_they_learn_alone():
    alone = [take_steps(make_on_gpu("on", seed=seed), 12) for seed in (0, 1)]
    trainers = [make_on_gpu("on", seed=seed) for seed in (0, 1)]
    for _ in range(12):
        for trainer in trainers:
            trainer.take_step()
    for trainer, losses in zip(trainers, alone, strict=True):
        assert trainer.read_loss() == pytest.approx(sum(losses) / 12, rel=1e-6)


META = torch.device("meta")


@pytest.mark.parametrize("name", KINDS)
def test_no_loss_waits_for_the_device(name, monkeypatch):
    """A meta tensor has a shape and no values: asking for one, or for a number of them, raises."""
    # Meta tensors know no autocast.
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: False)
    trainer = make_trainer(**KINDS[name])
    inputs = trainer.feed(0)[0].inputs
    trainer.net.to(META).tie_head()
    loss = trainer.learner(inputs.to(META))
    loss.backward()
    assert loss.device == META and loss.shape == ()
    assert all(
        weight.grad is not None for weight in trainer.net.parameters() if weight.requires_grad
    )


def test_a_value_that_is_looked_at_raises():
    with pytest.raises(RuntimeError, match="meta tensors"):
        bool(torch.ones(3, device=META).any())


@pytest.mark.parametrize("name", ["masked", "uniform", "hybrid", "score_entropy"])
def test_bad_tokens_are_found_before_the_device(name):
    """Tokens outside the vocabulary are a sentence, made where the batch is prepared."""
    trainer = make_trainer(**KINDS[name])

    def spoil(examples):
        def take(numbers):
            batch = examples.take(numbers)
            return replace(batch, tokens=batch.tokens + 100_000)

        return replace(examples, take=take)

    trainer.job = replace(trainer.job, examples=trainer.job.examples.change(spoil))
    with pytest.raises(ValueError, match="clean tokens run from"):
        trainer.feed(0)
