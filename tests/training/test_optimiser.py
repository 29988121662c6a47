"""Optimiser, rates, guards and the moving average, against their definitions."""

import itertools
import math

import pytest
import torch
from torch import nn

from unmask.training.guards import Guard
from unmask.training.optimiser import Average, Optimiser, rate_at
from unmask.training.recipe import GuardSettings, OptimiserSettings, ScheduleSettings

NO, YES = torch.tensor(False), torch.tensor(True)


def make_module(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.ModuleDict({"embedding": nn.Linear(4, 6), "layers": nn.Linear(4, 4)})


def put_gradients(module: nn.Module, value: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(1)
    for weight in module.parameters():
        weight.grad = value * torch.randn(weight.shape, generator=generator)


def test_clipping_is_torchs():
    ours, theirs = make_module(), make_module()
    optimiser = Optimiser(ours.named_parameters(), OptimiserSettings(clip=0.5, decay=0.0))
    peer = torch.optim.AdamW(theirs.parameters(), 1e-3, betas=(0.9, 0.95), weight_decay=0.0)
    for value in (1.0, 100.0, 1e-3):
        put_gradients(ours, value)
        put_gradients(theirs, value)
        norm = optimiser.measure()
        assert torch.allclose(norm, nn.utils.clip_grad_norm_(theirs.parameters(), 0.5))
        optimiser.step(norm, NO)
        peer.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-7) and a.grad is None


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_a_bad_step_changes_nothing(name):
    module = make_module()
    optimiser = Optimiser(module.named_parameters(), OptimiserSettings(name=name))
    put_gradients(module)
    optimiser.step(optimiser.measure(), NO)
    state = {**optimiser.tensors(), **dict(module.named_parameters())}
    before = {key: value.detach().clone() for key, value in state.items()}
    put_gradients(module, math.nan)
    optimiser.step(optimiser.measure(), YES)
    assert all(torch.equal(before[key], value) for key, value in state.items())
    put_gradients(module)
    optimiser.step(optimiser.measure(), NO)
    assert not all(torch.equal(before[key], value) for key, value in state.items())


def test_matrices_decay_and_vectors_do_not():
    module = make_module()
    before = {name: weight.detach().clone() for name, weight in module.named_parameters()}
    optimiser = Optimiser(module.named_parameters(), OptimiserSettings(rate=0.1, decay=0.5))
    for weight in module.parameters():
        weight.grad = torch.zeros_like(weight)
    optimiser.step(optimiser.measure(), NO)
    for name, weight in module.named_parameters():
        share = 1.0 if name.endswith("bias") else 1 - 0.1 * 0.5
        assert torch.allclose(weight, share * before[name]), name


def test_muon_takes_the_layers_matrices_alone():
    module = make_module()
    optimiser = Optimiser(module.named_parameters(), OptimiserSettings(name="muon"))
    owners = {
        name: type(part).__name__
        for part in optimiser.parts
        for group in part.param_groups
        for name, weight in module.named_parameters()
        if any(weight is other for other in group["params"])
    }
    assert owners.pop("layers.weight") == "Muon"
    assert len(owners) == 3 and set(owners.values()) == {"AdamW"}


def test_average():
    module = make_module()
    average = Average(module.named_parameters(), 0.9)
    start = module["layers"].weight.detach().clone()
    with torch.no_grad():
        module["layers"].weight += 1
    average.update(YES)
    assert torch.equal(average.tensors()["layers.weight"], start)
    average.update(NO)
    expected = start + 0.1
    with average.in_place():
        assert torch.allclose(module["layers"].weight, expected)
    assert torch.allclose(module["layers"].weight, start + 1)
    assert torch.allclose(average.tensors()["layers.weight"], expected)


def test_rates():
    cosine = ScheduleSettings(name="cosine", warmup=10, floor=0.1)
    rates = [rate_at(step, 100, cosine) for step in range(100)]
    assert rates[:10] == pytest.approx([(step + 1) / 11 for step in range(10)])
    assert rates[10] == 1.0 and rates[-1] == pytest.approx(0.1)
    assert rates[10 + 89 // 2] == pytest.approx(0.55, abs=0.02)
    assert all(a > b for a, b in itertools.pairwise(rates[10:]))
    wsd = ScheduleSettings(name="wsd", warmup=10, floor=0.0, decay=0.2)
    rates = [rate_at(step, 100, wsd) for step in range(100)]
    assert rates[10:81] == [1.0] * 71 and rates[-1] == 0.0
    assert rates[90] - rates[91] == pytest.approx(rates[95] - rates[96])
    assert rate_at(500, None, cosine) == 1.0
    assert rate_at(50, 100, ScheduleSettings(name="constant", warmup=0)) == 1.0


def test_guard_skips_counts_and_recovers():
    guard = Guard(GuardSettings(spike=5.0, settle=3, patience=2), torch.device("cpu"))
    verdicts = [
        bool(guard.judge(torch.tensor(norm), step))
        for step, norm in enumerate([1.0, 9.0, 1.0, math.nan, 100.0, 1.0, math.inf])
    ]
    # Before it has settled long gradients pass, what is not a number never does.
    assert verdicts == [False, False, False, True, True, False, True]
    assert (int(guard.skipped), int(guard.in_a_row), int(guard.last)) == (3, 1, 6)
    assert (guard.read_longest(), guard.read_longest()) == (2, 1)
    assert int(guard.seen) == 4 and math.isfinite(float(guard.usual))
    calm = Guard(GuardSettings(spike=None, settle=0), torch.device("cpu"))
    calm.judge(torch.tensor(1.0), 0)
    assert not bool(calm.judge(torch.tensor(1e9), 1))


CALM = [0.3] * 5


@pytest.mark.parametrize(
    ("norms", "clip", "expected", "longest"),
    [
        # A model that knows its data has tiny gradients; one of ordinary length is no spike.
        ([0.01] * 10 + [12.0, 25.0, math.nan], 1.0, [11, 12], 2),
        # After a spike the weights stay where they are, and every batch is long there.
        ([*CALM, *[98.0] * 5, 0.3, 98.0], 1.0, [5, 6, 11], 2),
        # Without a clip there is no safe step, and what is no number is never taken.
        ([*CALM, *[98.0] * 5], None, range(5, 10), 5),
        ([*CALM, *[math.nan] * 5], 1.0, range(5, 10), 5),
    ],
)
def test_guard_skips_what_clipping_does_not_tame(norms, clip, expected, longest):
    settings = GuardSettings(spike=20.0, settle=3, patience=3)
    guard = Guard(settings, torch.device("cpu"), clip)
    skipped = [
        step for step, norm in enumerate(norms) if bool(guard.judge(torch.tensor(norm), step))
    ]
    assert skipped == list(expected) and int(guard.skipped) == len(skipped)
    assert guard.read_longest() == longest
