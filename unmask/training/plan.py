"""What a recipe would train, without training: shapes, operations, memory."""

from dataclasses import dataclass

import torch

from unmask.base.devices import free_bytes
from unmask.net.config import NetConfig
from unmask.net.loading import inspect, inspect_tokenizer
from unmask.training.build import (
    choose_training_dtype,
    describe_want,
    fit_tokenizer,
    plan_model,
)
from unmask.training.mixture import read_mixture
from unmask.training.parallel import World
from unmask.training.recipe import Recipe
from unmask.training.speed import count_training_flops, estimate_bytes


@dataclass(frozen=True)
class TrainingPlan:
    """What a recipe comes to on a device."""

    label: str
    """The label of the data."""
    rows: int
    config: NetConfig
    tokens_per_step: int
    steps: int | None
    """None for a budget of minutes."""
    flops_per_token: float
    memory: dict[str, int]
    """Bytes by what they are for."""
    free: int | None
    device: str
    want: str
    """What the device lacks, as a sentence."""


def plan_training(recipe: Recipe, device: torch.device) -> TrainingPlan:
    """The plan of a recipe; data are read, no weights are made or loaded."""
    start = recipe.start.model
    examples = read_mixture(recipe.data, None if start is None else inspect_tokenizer(start))
    if start is None:
        tokenizer = fit_tokenizer(recipe, examples.tokenizer)
        config = plan_model(recipe, tokenizer).config
    else:
        config = inspect(start)[0].config
    short = choose_training_dtype(recipe, device) == torch.bfloat16
    rows = recipe.batch.micro or recipe.batch.rows
    return TrainingPlan(
        examples.label,
        examples.num_rows,
        config,
        sum(rows * recipe.parts[name].context for name, rows in recipe.rows.items()),
        recipe.steps,
        count_training_flops(config, recipe.input_length, recipe.passes),
        estimate_bytes(config, recipe, rows, short),
        free_bytes(device),
        str(device),
        describe_want(config, recipe, World(device), short),
    )
