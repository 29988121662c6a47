"""Nothing in a loss looks at values, for which the host would have to wait for the device."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from tests.training.runs import make_trainer
from tests.training.test_losses import KINDS

META = torch.device("meta")


@pytest.mark.parametrize("name", KINDS)
def test_no_loss_waits_for_the_device(name, monkeypatch):
    """A meta tensor has a shape and no values: asking for one, or for a number of them, raises."""
    # Meta tensors know no autocast.
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: False)
    trainer = make_trainer(**KINDS[name])
    ((inputs, _),) = trainer.feed(0)
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
    examples = trainer.job.examples

    def take(numbers):
        batch = examples.take(numbers)
        return replace(batch, tokens=batch.tokens + 100_000)

    trainer.job = replace(trainer.job, examples=replace(examples, take=take))
    with pytest.raises(ValueError, match="clean tokens run from"):
        trainer.feed(0)
