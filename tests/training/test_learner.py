"""Compiled blocks: one graph for all of them, and no recompiling whatever the batches bring."""

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor import config as inductor

from tests.training.runs import make_recipe, make_trainer, run, take_steps
from unmask.net.counts import count_parameters
from unmask.net.presets import preset
from unmask.training.speed import (
    advise_on_memory,
    count_training_flops,
    estimate_bytes,
)


# Tracing asks non-leaf tensors for gradients, which torch warns about before it hides the warning.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.usefixtures("unchecked_shapes")
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
    assert not inductor.quiesce_async_compile_pool  # restarted compilers may hang
    assert losses == pytest.approx(take_steps(make_trainer(**settings), 8), rel=1e-6)
    torch.compiler.reset()


def test_operations_follow_the_formula():
    """6 (N + head) + 12 layers D L a token; N without the norms, which are no products."""
    config = preset("1028M")
    parts, norms = count_parameters(config), 2 * config.layers * config.width
    expected = 6 * (parts.layers - norms + parts.head) + 12 * 20 * 1792 * 2048
    assert count_training_flops(config, 2048) == expected
    assert count_training_flops(config, 2048, passes=4) == pytest.approx(expected * 4 / 3)


@pytest.mark.parametrize(
    "changes",
    [{}, {"optimiser": {"name": "muon", "ema": 0.9}}, {"start": {"lora_rank": 3}}],
)
def test_memory_of_what_is_trained(changes, tmp_path):
    """Gradients, moments and averages are those that the trainer has; rows share activations."""
    if "start" in changes:
        run(tmp_path, budget={"steps": 1})
        changes = {"start": changes["start"] | {"model": str(tmp_path / "model")}}
        changes |= {"network": {"preset": "tiny", "changes": {}}}
    trainer = make_trainer(**changes)
    config, recipe = trainer.net.config, trainer.job.recipe
    found, half = (estimate_bytes(config, recipe, rows, short=False) for rows in (8, 4))
    weights = list(trainer.net.parameters())
    assert found["weights"] == 4 * sum(weight.numel() for weight in weights)
    assert found["gradients"] == 4 * sum(w.numel() for w in weights if w.requires_grad)
    kept = trainer.optimiser.tensors() | (trainer.average.tensors() if trainer.average else {})
    assert found["optimiser"] == 4 * sum(x.numel() for x in kept.values() if x.ndim > 0)
    again = make_recipe(machine={"recompute": True})
    recomputed = estimate_bytes(config, again, 8, short=False)["activations"]
    assert half["activations"] * 2 == found["activations"] > recomputed


@pytest.mark.parametrize(
    ("rows", "micro", "recompute", "said"),
    [
        (12, 12, False, "try batch.micro=6, or machine.recompute=true"),
        (15, 15, True, "try batch.micro=5"),
        (7, 7, True, "try batch.micro=1"),
        (4, 1, False, "try machine.recompute=true"),
        (4, 1, True, "use a smaller network or a shorter data.context"),
    ],
)
def test_advice_on_memory(rows, micro, recompute, said):
    recipe = make_recipe(machine={"recompute": recompute})
    assert advise_on_memory(recipe, micro, rows) == said


def test_bfloat16_products_leave_weights_in_float32():
    trainer = make_trainer(machine={"dtype": "bfloat16"}, optimiser={"ema": 0.9})
    (loss,) = take_steps(trainer, 1)
    (exact,) = take_steps(make_trainer(optimiser={"ema": 0.9}), 1)
    assert loss != exact and loss == pytest.approx(exact, rel=0.02)
    floats = [x for x in trainer.tensors().values() if x.is_floating_point()]
    assert len(floats) > 10 and all(x.dtype == torch.float32 for x in floats)
