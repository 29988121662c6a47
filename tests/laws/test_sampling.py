"""Laws of samplers: on a language of two tokens every path can be written down."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import unmask
from tests.conftest import build, lively
from unmask.base.streams import RowStreams
from unmask.net.config import NetConfig
from unmask.net.model import Blueprint, Model
from unmask.noise.settings import NoiseConfig
from unmask.sampling.loop import set_clock
from unmask.sampling.remasking import Remasking, get_remasking

LENGTH, STEPS, ROWS, MASK = 2, 4, 10_000, 2


def make(kind: str, **noise) -> Model:
    """A network over tokens 0 and 1, the mask behind them, that sees where it is."""
    config = NetConfig(
        vocab_size=3, num_logits=2, width=16, layers=2, heads=2, mlp_width=32, context=LENGTH,
        positions="learned", mlp="gelu", time=kind == "uniform",
    )  # fmt: skip
    net = lively(config)
    for weight in net.parameters():
        weight.mul_(4.0)
    mask_id = None if kind == "uniform" else MASK
    return Model("two tokens", net, Blueprint(config, kind, mask_id, noise=NoiseConfig(**noise)))


def count_ends(model: Model, steps: int = STEPS, **how) -> Tensor:
    """Shares of the four texts among many samples."""
    found = unmask.sample(model, [[]] * ROWS, length=LENGTH, steps=steps, keep_states=False, **how)
    return torch.bincount(found.tokens @ torch.tensor([2, 1]), minlength=4) / ROWS


def close(shares: Tensor, law: Tensor) -> bool:
    """Within five standard errors everywhere."""
    return bool(((shares - law).abs() < 5 * (law * (1 - law) / ROWS).sqrt() + 1e-9).all())


def follow(start: Tensor, step, steps: int = STEPS) -> Tensor:
    """The law of the ends, from the law of all states and a function that gives the next one."""
    law = start
    for i in range(1, steps + 1):
        law = step(law, i)
    assert law.sum() == pytest.approx(1)
    return law


@pytest.mark.parametrize("remask", ["none", "cap=0.3", "rescale=0.5", "loop=0.2"])
def test_masked_ancestral_sampling_has_the_law_of_its_chain(remask):
    """Every path through the nine states, remasking included, against the sampler's shares."""
    model, remasking = make("masked"), get_remasking(remask)
    states = torch.tensor(list(product(range(3), repeat=LENGTH)))
    p = model.logits(states).double().softmax(-1)

    def step(law: Tensor, i: int) -> Tensor:
        times = set_clock(remasking, i, STEPS)
        rate = remasking.rate(times) if remasking is not None and i < STEPS else 0.0
        reveal = 1.0 if i == STEPS else times.reveal_chance(rate)
        each = torch.zeros(9, LENGTH, 3, dtype=torch.float64)
        hidden = states == MASK
        each[..., :2] = torch.where(
            hidden[..., None], reveal * p, (1 - rate) * F.one_hot(states, 3)[..., :2]
        )
        each[..., 2] = torch.where(hidden, 1 - reveal, rate)
        move = each[:, 0, states[:, 0]] * each[:, 1, states[:, 1]]
        return law @ move

    start = torch.zeros(9, dtype=torch.float64)
    start[-1] = 1
    law = follow(start, step)
    ends = law[[0, 1, 3, 4]]
    assert ends.sum() == pytest.approx(1)
    how = {"plan": "ancestral", "order": "random", "temperature": 1.0, "remask": remask}
    shares = count_ends(model, **how)
    assert close(shares, ends)
    if remask != "none":
        assert not close(shares, follow_plain(model)), "the remasking is seen at all"


def follow_plain(model: Model) -> Tensor:
    """The law of one position after the other in a random order, the limit of many steps."""
    p = [
        model.logits(torch.tensor([[a, b]])).double().softmax(-1)[0]
        for a, b in [(2, 2), (0, 2), (1, 2), (2, 0), (2, 1)]
    ]
    both, after_first, after_second = p[0], p[1:3], p[3:5]
    law = torch.zeros(4, dtype=torch.float64)
    for a, b in product(range(2), repeat=2):
        law[2 * a + b] = 0.5 * (
            both[0, a] * after_first[a][1, b] + both[1, b] * after_second[b][0, a]
        )
    return law


def test_one_at_a_time_has_the_law_of_random_orders():
    shares = count_ends(make("masked"), plan="one", order="random", temperature=1.0)
    assert close(shares, follow_plain(make("masked")))


@pytest.mark.parametrize(
    "kind,noise", [("uniform", {"mixture": True}), ("hybrid", {"share_start": 0.5})]
)
def test_other_processes_have_the_law_of_their_posteriors(kind, noise):
    model = make(kind, **noise)
    process = model.make_process()
    num = process.num_states
    states = torch.tensor(list(product(range(num), repeat=LENGTH)))

    def step(law: Tensor, i: int) -> Tensor:
        t, s = (
            torch.full((len(states), 1), 1 - j / STEPS, dtype=torch.float64) for j in (i - 1, i)
        )
        told = t[:, 0] if model.net.config.time else None
        back = process.posterior(model.logits(states, t=told).double(), states, t, s).exp()
        return law @ (back[:, 0, states[:, 0]] * back[:, 1, states[:, 1]])

    if kind == "uniform":
        start = torch.full((4,), 0.25, dtype=torch.float64)
    else:
        start = torch.zeros(9, dtype=torch.float64)
        start[-1] = 1
    law = follow(start, step)
    ends = law if num == 2 else law[[0, 1, 3, 4]]
    assert close(count_ends(model), ends)


@pytest.mark.parametrize("guidance,temperature", [(0.0, 0.5), (1.5, 1.0)])
def test_guidance_and_temperature_of_other_processes(guidance, temperature):
    """In one step from pure noise the posterior is the prediction: its guided law by hand.

    Where the prompt is hidden there is noise, drawn once for each row.
    """
    model = make("uniform")
    t = torch.ones(1, dtype=torch.float64)
    law = torch.zeros(2, dtype=torch.float64)
    for hidden, other in product(range(2), repeat=2):
        with_it, without = (
            (
                model.logits(torch.tensor([[a, other]]), t=t)[0, 1].double() / temperature
            ).log_softmax(-1)
            for a in (1, hidden)
        )
        law += (without + (guidance + 1) * (with_it - without)).softmax(-1) / 4
    how = {"guidance": guidance, "temperature": temperature, "keep_states": False}
    found = unmask.sample(model, [[1]] * ROWS, length=LENGTH, steps=1, **how)
    assert close(torch.bincount(found.tokens[:, 1], minlength=2) / ROWS, law)
    plain = model.logits(torch.tensor([[1, 0], [1, 1]]), t=t.repeat(2))[:, 1].double().softmax(-1)
    assert not close(plain.mean(0), law), "it makes a difference"


@pytest.mark.parametrize("kind", ["uniform", "hybrid"])
def test_other_processes_never_write_what_is_forbidden(kind):
    config = NetConfig(
        vocab_size=7, num_logits=6, width=16, layers=1, heads=2, mlp_width=32, context=8
    )
    model = Model("six", lively(config), Blueprint(config, kind, 6 if kind == "hybrid" else None))
    found = unmask.sample(model, [[1]] * 99, length=8, steps=4, forbid=[0, 2, 3])
    assert set(found.tokens[:, 1:].flatten().tolist()) == {1, 4, 5}


@pytest.mark.parametrize("remask", ["cap", "cap=0.5", "rescale", "rescale=0.9", "loop"])
def test_remasking_keeps_the_marginal(remask):
    """The share of masks after each step is 1 - alpha_s, by ReMDM's closed form."""
    remasking, steps = get_remasking(remask), 40
    masked = 1.0
    for i in range(1, steps):
        times = set_clock(remasking, i, steps)
        if i > 1 and times.alpha_t != pytest.approx(1 - masked):
            assert remask == "loop"  # where its window closes, its clock jumps
            masked = 1 - times.alpha_t
        rate = remasking.rate(times)
        assert 0 <= rate <= times.highest_rate and 0 <= times.reveal_chance(rate) <= 1 + 1e-12
        masked = masked * (1 - times.reveal_chance(rate)) + (1 - masked) * rate
        assert masked == pytest.approx(1 - times.alpha_s, abs=1e-12)


@pytest.mark.parametrize("remask", ["cap=0.2", "conf", "loop=0.2", "rescale=0.4"])
def test_the_sampler_masks_again_at_the_stated_rate(remask):
    """Shares of masks along many trajectories; `conf` masks sigma_max of a row's tokens a step."""
    remasking: Remasking | None = get_remasking(remask)
    small = {"width": 16, "layers": 1, "heads": 2, "mlp_width": 32}
    model = build(vocab_size=12, num_logits=11, context=6, **small)
    how = {"plan": "ancestral", "order": "random", "temperature": 1.0, "remask": remask}
    found = unmask.sample(model, [[]] * 4000, length=6, steps=8, **how)
    for i in range(1, 8):
        before, after = (found.states[j] == 11 for j in (i - 1, i))
        times = set_clock(remasking, i, 8)
        rate = remasking.rate(times)
        wanted = before * (1 - times.reveal_chance(rate)) + ~before * rate
        back = wanted.double().sum(-1)
        if remask == "conf":
            back = back + times.highest_rate * (~before).any(-1)
        difference = after.sum(-1) - back
        assert difference.mean().abs() < 5 * difference.std() / len(difference) ** 0.5 + 1e-9
    assert (found.states[-1] != 11).all()


@pytest.mark.parametrize("schedule", ["linear", "cosine", "polynomial", "geometric"])
def test_masked_networks_are_told_the_time_of_their_schedule(schedule):
    """At that time as many tokens are masked as in the canvas."""
    config = NetConfig(
        vocab_size=7, width=16, layers=1, heads=2, mlp_width=32, context=8, time=True
    )
    blueprint = Blueprint(config, "masked", 6, noise=NoiseConfig(schedule=schedule))
    model, told = Model("timed", lively(config), blueprint), []
    model.net.time.register_forward_pre_hook(lambda _, given: told.append(given[0]))
    unmask.sample(model, [[], []], length=[8, 4], steps=4, plan="linear")
    process = model.make_process()
    for t, share in zip(told, [1, 0.75, 0.5, 0.25], strict=True):
        assert process.schedule.noised(t).tolist() == pytest.approx([share] * 2, abs=1e-9)


@pytest.mark.parametrize("kind", ["uniform", "hybrid"])
def test_no_number_is_drawn_twice_and_every_token_is_committed(kind, monkeypatch):
    """Neither by the prior and a step, nor by two steps; noise that happens to be right, too."""
    model, drawn = make(kind, share_start=0.2, share_stop=0.5), []
    draw = RowStreams.uniform

    def note(self: RowStreams, *shape: int) -> Tensor:
        numbers = draw(self, *shape)
        drawn.extend(numbers.flatten().tolist())
        return numbers

    monkeypatch.setattr(RowStreams, "uniform", note)
    found = unmask.sample(model, [[1]] * 99, length=LENGTH, steps=STEPS)
    assert len(drawn) == len(set(drawn)) >= 99 * (STEPS + 1) * LENGTH
    assert (found.committed_at[:, 0] == 0).all() and (found.committed_at[:, 1:] > 0).all()
    assert (found.confidence[:, 1:] < 1).any()
    assert torch.equal(found.states[-1], found.tokens) and (found.tokens != MASK).all()


TOLD_THE_TIME = {"width": 16, "layers": 1, "heads": 2, "mlp_width": 32, "context": 6, "time": True}


def test_gaussian_models_write_through_the_same_call():
    """A network that always says the same is obeyed, and given tokens stay."""
    config = NetConfig(vocab_size=5, latent_width=8, **TOLD_THE_TIME)
    noise = NoiseConfig(schedule="sigmoid", schedule_settings={"start": 8.0, "stop": -8.0})
    model = Model("vectors", lively(config), Blueprint(config, "gaussian", noise=noise))
    say = torch.tensor([0.0, 0.0, 0.0, 30.0, 0.0])
    with model.net.patch({"logits": lambda x: torch.zeros_like(x) + say}):
        found = unmask.sample(model, [[1, 2], [4]], steps=24, length=[6, 5])
    assert found.tokens[0].tolist() == [1, 2, 3, 3, 3, 3]
    assert found.tokens[1, :5].tolist() == [4, 3, 3, 3, 3]
    assert found.calls == 24 and found.states is not None and len(found.states) == 25
    with model.net.patch({"logits": lambda x: torch.zeros_like(x) + say}):
        alone = unmask.sample(model, [[4]], steps=24, length=5)
    assert torch.equal(alone.states[:, 0], found.states[:, 1, :5])


def test_gaussian_models_never_write_what_is_forbidden():
    """Halfway between two tokens lies a third, nearer than both."""
    config = NetConfig(vocab_size=3, latent_width=2, **TOLD_THE_TIME)
    model = Model("plane", lively(config), Blueprint(config, "gaussian"))
    model.net.latents.vectors.weight.copy_(torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]))
    say = torch.tensor([9.0, 0.0, 9.0])
    with model.net.patch({"logits": lambda x: torch.zeros_like(x) + say}):
        free = unmask.sample(model, [[0]], steps=24, length=6)
        bound = unmask.sample(model, [[0]], steps=24, length=6, forbid=[1])
    assert free.tokens[0].tolist() == [0, 1, 1, 1, 1, 1]
    assert (bound.tokens != 1).all() and (bound.committed_at[:, 1:] > 0).all()
