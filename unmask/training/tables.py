"""What recipes may name: objectives and optimisers, this package's and others'."""

from collections.abc import Callable
from typing import Any

from unmask.base.plugins import Registry
from unmask.net.paradigm import get_paradigm
from unmask.noise.processes import PROCESSES


def _list_objectives() -> dict[str, str]:
    """What this package's kinds of noise, and causal models, can minimise."""
    kinds = [*PROCESSES.own, "causal"]
    names = [name for kind in kinds for name in get_paradigm(kind).objectives]
    return dict.fromkeys(names, "unmask.training.losses:make_objective")


OBJECTIVES = Registry[Callable[..., Any]](
    "objective",
    _list_objectives,
    callable,
    "a function of a model, a batch, times and streams to a loss, or a class over "
    "unmask.training.losses.Objective",
)
OPTIMISERS = Registry[Callable[..., Any]](
    "optimiser",
    dict.fromkeys(("adamw", "muon"), "unmask.training.optimiser:split_parameters"),
    callable,
    "a function of named parameters and the recipe's optimiser settings to a torch optimiser",
)
