"""Tiny recipes and runs for the tests of training."""

from pathlib import Path

import torch

from unmask.base.config import build
from unmask.training.build import prepare_job
from unmask.training.loop import Hooks, TrainingOutcome, run_loop
from unmask.training.parallel import World
from unmask.training.recipe import Recipe
from unmask.training.trainer import Trainer

CPU = World(torch.device("cpu"))
SMALL = {
    "kind": "masked", "data": {"source": "reversal", "facts": 2, "vocab": 600, "context": 80},
    "network": {"preset": "tiny", "changes": {"layers": 2, "width": 32, "mlp_width": 48}},
    "optimiser": {"rate": 3e-3}, "schedule": {"warmup": 3}, "batch": {"rows": 8},
    "budget": {"steps": 12}, "cadence": {"log": 1, "facts": 0, "samples": 0, "keep": 20},
}  # fmt: skip


def make_recipe(**changes: object) -> Recipe:
    """The small recipe, with sections updated key by key."""
    values: dict = {key: dict(v) if isinstance(v, dict) else v for key, v in SMALL.items()}
    for key, value in changes.items():
        values[key] = values.get(key, {}) | value if isinstance(value, dict) else value
    return build(Recipe, values, "test")


def make_trainer(**changes: object) -> Trainer:
    return Trainer(prepare_job(make_recipe(**changes), CPU))


def run(
    folder: Path, hooks: Hooks | None = None, **changes: object
) -> tuple[Trainer, TrainingOutcome]:
    """A run to its end, or on from the folder's newest checkpoint."""
    trainer = make_trainer(**changes)
    return trainer, run_loop(trainer, folder, hooks)


def take_steps(trainer: Trainer, number: int) -> list[float]:
    """The loss of each of the next steps."""
    losses = []
    for _ in range(number):
        trainer.take_step()
        loss = trainer.read_loss()
        assert loss is not None, "the step was skipped"
        losses.append(loss)
    return losses


def spoil(trainer: Trainer, *steps: int) -> None:
    """Make the losses of these steps, and with them their gradients, not numbers."""
    objective, loss = trainer.job.objective, trainer.job.objective.loss

    def spoiled(net, inputs):
        return loss(net, inputs) * (float("nan") if trainer.progress.step in steps else 1.0)

    object.__setattr__(objective, "loss", spoiled)
