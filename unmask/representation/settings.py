"""How keys and values are extracted: the loss and its search, the prompts, and the layers."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from unmask.base.config import CheckedSettings, build, option
from unmask.base.errors import UserError, suggest

ROME_LOSS = 0.05
"""The reference stops once its loss is below this."""
Reason = Literal["given", "trace", "middle"]
"""Why a layer was chosen."""


@dataclass(frozen=True, kw_only=True)
class Extraction(CheckedSettings):
    """What a fact is looked into with: settings of `unmask.extract_key`, `unmask.extract_value`.

    Both take one of these, or its fields as keyword arguments. The search for a value minimises
    -log p(object) + `kl` KL(p_delta || p) + `norm` ||delta|| / ||v0||^2; the KL is taken on
    "{subject} is a".

    >>> settings = unmask.Extraction(search_steps=40, prefixes=("", "One day"))
    >>> settings.lr, settings.prefixes
    (0.5, ('', 'One day'))
    """

    filled = ("revealed",)

    kl: float = option(1.0, "Weight of what else is said of the subject (KL).", least=0)
    norm: float = option(0.0, "Weight of the norm term.", least=0)
    kl_read: Literal["subject", "last"] = option(
        "last", 'Which next token the KL is about: after the subject, or after "is a".'
    )
    search_steps: int = option(
        20,
        "Evaluations of the search's loss; there is one update less. 0 leaves v0 as it is.",
        least=0,
        most=1_000_000,
    )
    lr: float = option(0.5, "Adam's learning rate.", above=0)
    clamp: float = option(
        4.0, "The longest change of a value, in lengths of it; 0: no limit.", least=0
    )
    stop: str = option(
        "steps",
        "`steps`: after all of them; `p=0.9`: once the object has that probability; `rome`: once "
        "the loss is below 0.05, as the reference does.",
    )
    prefixes: int | tuple[str, ...] = option(
        4,
        "Texts put before the prompt, the empty one first, or how many to sample from the model.",
        least=1,
    )
    revealed: tuple[float, ...] = option(
        (0.0,),
        "Mask patterns of a masked model: the share of the object's tokens shown in each.",
        least=0,
        below=1,
    )
    guidance: float = option(0.0, "Guidance of a masked model; 0 is off.", least=0)
    length: int | None = option(
        None, "Canvas of a masked model in tokens; 52 by default, or what a fact needs.", least=2
    )
    key_text: Literal["prompt", "subject"] = option(
        "prompt", "What follows a prefix where keys are read: the prompt, or the subject alone."
    )
    seed: int = option(0, "Of prefixes and mask patterns.", least=0)

    @property
    def target(self) -> float | None:
        """The probability to stop at, where `stop` names one."""
        if not self.stop.startswith("p="):
            return None
        try:
            return float(self.stop.removeprefix("p="))
        except ValueError:
            return math.nan

    def _problems(self) -> Iterator[str]:
        if self.stop not in ("steps", "rome") and not 0 < (self.target or 0) < 1:
            yield f"'stop' is {self.stop!r}, expected steps, rome or p=0.9 (any probability)"


OBJECTIVES: dict[str, dict[str, Any]] = {
    "seed": {"kl": 1.0, "norm": 0.0, "kl_read": "last"},
    "rome": {"kl": 0.0625, "norm": 0.5, "kl_read": "subject"},
}
"""The study's own objective, and the reference's (Meng et al. 2022)."""
OF_VALUES = ("kl", "norm", "kl_read", "search_steps", "lr", "clamp", "stop", "guidance")
"""Settings that no key depends on."""
OF_KEYS = ("key_text",)
"""Settings that no value depends on."""


def choose_extraction(objective: str = "seed", **changes: Any) -> Extraction:
    """The extraction with an objective by its name, single settings changed."""
    if objective not in OBJECTIVES:
        raise UserError(f"objective {objective!r} is unknown: {suggest(objective, OBJECTIVES)}")
    return build(Extraction, OBJECTIVES[objective] | changes, "Extraction")


def choose_layers(
    model: str, num_layers: int, text: str, traced: int | None = None
) -> tuple[tuple[int, ...], Reason]:
    """The layers that `auto`, `all`, `3` or `0,1,2` mean, and why they were chosen.

    `auto` is the `traced` layer, or the middle one. `all` leaves the last layer out: what it adds
    at a subject is read by no layer above.
    """
    if text == "auto" and traced is not None:
        return (traced,), "trace"
    if text == "auto":
        return (max(0, min(num_layers // 2, num_layers - 2)),), "middle"
    if text == "all" and num_layers == 1:
        raise UserError(
            f"{model} has one layer, and `all` leaves the last one out: use a model with more "
            "layers, or give layer 0."
        )
    if text == "all":
        return tuple(range(num_layers - 1)), "given"
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        raise UserError(f"layer {text!r} cannot be read: expected auto, all, 3, or 0,1,2.")
    chosen = tuple(sorted({int(word) for word in words}))
    if chosen[-1] >= num_layers:
        raise UserError(
            f"layer {chosen[-1]} is out of range: {model} has layers 0 to {num_layers - 1}."
        )
    return chosen, "given"


def find_traced_layer(
    averages: Iterable[Mapping[str, Any]], model: str, num_layers: int
) -> int | None:
    """The layer, the last left out, whose MLP does most at the last subject token, on average.

    `averages` are those of a run of `unmask trace`; None where they say nothing about this model's
    MLPs. Ways of asking and steps weigh alike; windows of several layers count for the layer in
    their middle, as tracing names them.
    """
    from unmask.tracing.table import RESULT

    effects: dict[int, list[float]] = defaultdict(list)
    for row in averages:
        cell = (row["part"], row["role"], row["control"], row["model"])
        if cell == ("mlp", "last subject", RESULT, model) and row["layer"] < num_layers - 1:
            effects[row["layer"]].append(row["mean"])
    means = {layer: sum(each) / len(each) for layer, each in effects.items()}
    return max(means, key=means.__getitem__, default=None)
