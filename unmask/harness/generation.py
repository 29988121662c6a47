"""How a task of lm-evaluation-harness wants its texts: its `generation_kwargs`, checked."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from lm_eval.models.utils import normalize_gen_kwargs

from unmask.base.config import build
from unmask.base.errors import UserError
from unmask.base.seeds import derive_seed
from unmask.evaluation.signals import GUESSES
from unmask.harness.settings import OF_ONE_TEXT, HarnessSettings
from unmask.net.model import Model
from unmask.sampling.settings import Sampling

_NEUTRAL = {"num_beams": 1, "num_return_sequences": 1, "repetition_penalty": 1.0}
"""Settings of other libraries that tasks may name, and the values at which they do nothing."""


@dataclass(frozen=True)
class Generation:
    """How texts are drawn, the strings that end them, and their tokens at most."""

    settings: Sampling
    until: list[str]
    ends: frozenset[int]
    """Special tokens among these strings, which a decoded text does not show."""
    room: int


def read_generation(
    model: Model, settings: HarnessSettings, given: Mapping[str, Any], repeat: int
) -> Generation:
    """What a task's `generation_kwargs` ask for; `repeat` counts equal requests before this one."""
    context = model.net.config.context
    kwargs = _normalise(given, settings, min(settings.max_gen_toks, max(1, context // 2)))
    until, room = kwargs.pop("until"), kwargs.pop("max_gen_toks")
    is_drawn, temperature = kwargs.pop("do_sample"), kwargs.pop("temperature", None)
    if room < 1:
        raise UserError(f"the task asks for {room} tokens: expected max_gen_toks of at least 1.")
    if room >= context:
        raise UserError(
            f"the task asks for {room} tokens, which leaves no room for a prompt in the "
            f"context of {context}: give max_gen_toks below that in --gen-kwargs."
        )
    names = {field.name for field in fields(Sampling)} - set(OF_ONE_TEXT)
    unknown = {
        name: value
        for name, value in kwargs.items()
        if name not in names and _NEUTRAL.get(name) != value
    }
    if unknown:
        raise UserError(
            f"the task's generation_kwargs hold {unknown}: expected until, max_gen_toks, "
            f"do_sample, temperature or one of {', '.join(sorted(names))}."
        )
    changes = {name: value for name, value in kwargs.items() if name in names}
    if "do_sample" in given or "temperature" in given:
        # Noise other than masks is undone by drawing: the likeliest token has no meaning there.
        greedy = 0.0 if model.paradigm.sampler in ("unmasking", "causal") else None
        changes["temperature"] = temperature if is_drawn else greedy
    own = {field.name: getattr(settings, field.name) for field in fields(Sampling)}
    seed = changes.get("seed", settings.seed)
    changes["seed"] = derive_seed(seed, "repeat", repeat) if repeat else seed
    changes |= {"keep_states": False, "chat": False, "guesses": GUESSES * settings.signals}
    ends = model.require_tokenizer().find_special(until)
    return Generation(build(Sampling, own | changes, "generation_kwargs"), until, ends, room)


def _normalise(given: Mapping[str, Any], settings: HarnessSettings, default: int) -> dict[str, Any]:
    """The harness's own reading of lengths, stops and draws, which must be of their types."""
    kwargs = dict(given)
    if kwargs.get("until") is None:
        kwargs["until"] = []
    if kwargs.get("temperature") is None:
        kwargs.pop("temperature", None)
        if kwargs.get("do_sample") is True:
            # Draws are wanted and the temperature is left open: the user's, or the model's law.
            kwargs["temperature"] = settings.temperature or 1.0
    until = kwargs["until"] if isinstance(kwargs["until"], list) else [kwargs["until"]]
    if not all(isinstance(each, str) for each in until):
        raise UserError(
            f"the task's until is {kwargs['until']!r:.200}: expected a string or a list of strings."
        )
    if not isinstance(kwargs.get("do_sample"), bool | None):
        raise UserError(
            f"the task's do_sample is {kwargs['do_sample']!r:.200}: expected true or false."
        )
    try:
        return dict(normalize_gen_kwargs(kwargs, default))
    except (TypeError, ValueError) as error:
        raise UserError(
            f"the task's generation_kwargs are {dict(given)!r:.300}: expected numbers for "
            f"max_gen_toks and temperature ({error})."
        ) from error
