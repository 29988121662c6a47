"""A noise process from outside the package: trained, sampled and saved like the package's own."""

from dataclasses import dataclass, field, replace

import pytest
import torch
import torch.nn.functional as F

import unmask
from tests.training.runs import make_recipe, make_trainer, take_steps
from unmask.base.streams import RowStreams
from unmask.noise.process import Process
from unmask.noise.processes import PROCESSES
from unmask.noise.schedules import LinearSchedule
from unmask.objectives.batch import Batch
from unmask.objectives.discrete import process_loss
from unmask.sampling.ancestral import sample_ancestral

K = 5
TOY = {"data": {"source": "toy", "context": 6}}


@dataclass(frozen=True)
class Zeroed(Process):
    """Noise that turns tokens into token 0, which thereby stands for itself and for a mask."""

    num_tokens: int
    schedule: object = field(default_factory=LinearSchedule)

    @classmethod
    def from_config(cls, config, schedule, num_logits, mask_id, tokenizer=None):
        return cls(num_logits, schedule)

    @property
    def num_states(self):
        return self.num_tokens

    def corrupt(self, x0, t, streams):
        return torch.where(streams.uniform(x0.shape[1]) < self.schedule.noised(t), 0, x0)

    def prior(self, length, streams):
        return torch.zeros(streams.rows, length, dtype=torch.long, device=streams.keys.device)

    def needs(self, xt):
        return xt == 0

    def nll(self, logits, x0, xt, t):
        logp = self.predict(logits).gather(-1, x0[..., None])[..., 0]
        return torch.where(xt == 0, -logp * self.schedule.weight(t.clamp(min=1e-6)), 0.0)

    def posterior(self, logits, xt, t, s):
        stay = (self.schedule.noised(s) / self.schedule.noised(t))[..., None]
        at_zero = F.one_hot(torch.zeros_like(xt), self.num_tokens)
        drawn = (self.predict(logits).exp() * (1 - stay) + stay * at_zero).log()
        return torch.where((xt == 0)[..., None], drawn, F.one_hot(xt, self.num_tokens).log())


@pytest.fixture
def named():
    """The process under a name of its own, for recipes and models."""
    unmask.register("noise", Zeroed, "zeroed")
    yield "zeroed"
    PROCESSES.remove("zeroed")


def test_a_notebook_needs_six_methods(small_net):
    """A loss that falls, and samples of what was learned, without a word to the package."""
    process, streams = Zeroed(K), RowStreams.make(0, 32)
    x0 = torch.tensor([[1, 2, 3, 4]]).expand(32, 4)
    optimiser = torch.optim.AdamW(small_net.parameters(), lr=1e-2)
    losses = []
    for step in range(60):
        t = (torch.arange(32).double() + 0.5) / 32
        loss, terms = process_loss(small_net, process, Batch(x0), t, RowStreams.make(step, 32))
        assert (terms >= 0).all() and float(terms.sum() / 128) == pytest.approx(loss.item())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.1 * losses[0]
    texts = sample_ancestral(lambda xt, t: small_net(xt), process, 4, 16, streams)
    assert (texts == x0).double().mean() > 0.95


def test_it_trains_from_a_recipe_and_is_sampled_by_name(named, tmp_path):
    trainer = make_trainer(kind=named, **TOY)
    losses = take_steps(trainer, 12)
    assert losses[-1] < losses[0]
    model = replace(trainer.job.model, net=trainer.export())
    assert type(model.make_process()) is Zeroed and not model.paradigm.has_mask
    unmask.save(model, tmp_path / "model")
    again = unmask.load(tmp_path / "model", device="cpu", tokenizer=None)
    drawn = [unmask.sample(x, [[]] * 4, steps=8, length=6, seed=1).tokens for x in (model, again)]
    assert drawn[0].shape == (4, 6) and torch.equal(*drawn)


def test_unknown_kinds_are_refused(named):
    with pytest.raises(unmask.UserError, match="expected one of masked, .*, zeroed, causal"):
        make_recipe(kind="zeros")
    with pytest.raises(unmask.UserError, match="zeroed models minimise bound"):
        make_recipe(kind=named, objective={"name": "smdm"})
    with pytest.raises(unmask.UserError, match="define true_posterior"):
        Zeroed(K).true_posterior(*(torch.zeros(1, dtype=torch.long),) * 2, *(torch.ones(1),) * 2)


@pytest.fixture
def small_net():
    from unmask.net.config import NetConfig
    from unmask.net.transformer import Transformer

    config = NetConfig(
        vocab_size=K, width=32, layers=2, heads=2, mlp_width=48, context=6, positions="learned"
    )
    return Transformer(config, 0)
