"""Compiled blocks: one graph for all of them, and no recompiling whatever the batches bring."""

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from tests.training.runs import make_trainer, take_steps
from unmask.net.counts import count_parameters
from unmask.net.presets import preset
from unmask.training.speed import count_training_flops, estimate_bytes, measure_peak


# Tracing asks non-leaf tensors for gradients, which torch warns about before it hides the warning.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("recompute", [False, True])
def test_blocks_compile_once(recompute, monkeypatch):
    """Stochastic lengths, other numbers of masks and sampling all run without a new graph."""
    compile_ = nn.Module.compile
    # Graphs as they would be compiled, run as they are: no compiler is needed.
    monkeypatch.setattr(nn.Module, "compile", lambda m, **s: compile_(m, backend="aot_eager", **s))
    torch.compiler.reset()
    counters.clear()
    settings = {"objective": {"short": 0.4}, "network": {"changes": {"layers": 4}}}
    trainer = make_trainer(machine={"compile": "on", "recompute": recompute}, **settings)
    losses = take_steps(trainer, 4)
    with trainer.show_model() as model:
        model.net(torch.zeros(1, 5, dtype=torch.long))
    losses += take_steps(trainer, 4)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    assert losses == pytest.approx(take_steps(make_trainer(**settings), 8), rel=1e-6)
    torch.compiler.reset()


def test_operations_follow_the_formula():
    """6 (N + head) + 12 layers D L a token; N without the norms, which are no products."""
    config = preset("1028M")
    parts, norms = count_parameters(config), 2 * config.layers * config.width
    expected = 6 * (parts.layers - norms + parts.head) + 12 * 20 * 1792 * 2048
    assert count_training_flops(config, 2048) == expected


def test_memory_estimates():
    trainer = make_trainer()
    config, recipe = trainer.net.config, trainer.job.recipe
    number = sum(weight.numel() for weight in trainer.net.parameters())
    found = estimate_bytes(config, recipe, 8, short=False)
    assert found["weights"] == found["gradients"] == found["optimiser"] / 2 == 4 * number
    assert estimate_bytes(config, recipe, 4, short=False)["activations"] * 2 == found["activations"]
    again = make_trainer(machine={"recompute": True}).job.recipe
    assert estimate_bytes(config, again, 8, short=False)["activations"] < found["activations"]


def test_peak_is_plausible():
    assert 1e8 < measure_peak(torch.device("cpu"), torch.float32, 256, 0.05) < 1e14
