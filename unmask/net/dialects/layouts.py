"""Settings as classes of `transformers` write them: what a table, constants and angles can say."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from unmask.base.config import SettingsError, build
from unmask.net.config import NetConfig
from unmask.net.dialects.dialect import TOKEN_FIELDS, Dialect, FieldTable, Source, find_mask
from unmask.net.dialects.names import Names
from unmask.net.model import Blueprint

_TURNS: dict[str, dict[str, tuple[str, int | None]]] = {
    "llama3": {"rotary_slow": ("low_freq_factor", None), "rotary_fast": ("high_freq_factor", None)},
    "yarn": {"rotary_slow": ("beta_slow", 1), "rotary_fast": ("beta_fast", 32)},
}
"""By the kind of rotary scaling: our field, theirs and what its absence means."""
_CONTEXT = "original_max_position_embeddings"


@dataclass(frozen=True)
class Layout:
    """How the models of one class are told by their settings, read from them and written."""

    model_type: str
    architecture: str
    table: FieldTable
    names: Names
    network: Mapping[str, Any] = field(default_factory=dict)
    """What all of its networks have, by our fields."""
    is_masked: bool = False
    """Whether its models are masked ones; else causal."""
    shift: bool = False
    has_rotary: bool = True
    """Whether its settings say how positions turn."""
    complete: Callable[[dict[str, Any], Source], Mapping[str, Any]] = lambda values, source: {}
    """Our fields that take more than a table, from those read so far and all that is there."""
    add: Callable[[Blueprint], Mapping[str, Any]] = lambda blueprint: {}
    """Their fields that take more than a table."""

    def recognise(self, source: Source) -> bool:
        return source.config.get("model_type") == self.model_type

    def read(self, source: Source) -> Blueprint:
        values: dict[str, Any] = {"causal": not self.is_masked, **self.network}
        if self.has_rotary:
            values |= read_rotary(source.config, source.label)
        values |= self.table.read(source.config, source.label)
        values |= self.complete(values, source)
        config = build(NetConfig, values, source.label)
        if not self.is_masked:
            return Blueprint(config, "causal")
        return Blueprint(config, "masked", find_mask(source), self.shift)

    def write(self, blueprint: Blueprint) -> dict[str, Any]:
        settings: dict[str, Any] = {"architectures": [self.architecture]}
        settings |= {"model_type": self.model_type} | self.table.write(blueprint.config)
        if self.has_rotary:
            settings |= write_rotary(blueprint.config)
        if self.is_masked:
            settings["mask_token_id"] = blueprint.mask_id
        return settings | dict(self.add(blueprint))

    def make_dialect(self, name: str, about: str, **more: Any) -> Dialect:
        """The dialect; `more` are its fields that differ from those of Llama's kin."""
        dialect = Dialect(
            name,
            about,
            self.recognise,
            self.read,
            self.names.map_tensors,
            self.write,
            ignored=("rotary_emb.inv_freq",),
            tied_head="lm_head.weight",
            token_fields=TOKEN_FIELDS,
            needs_mask=self.is_masked,
        )
        return replace(dialect, **more)


def read_rotary(config: Mapping[str, Any], label: str) -> dict[str, Any]:
    """Our settings of the rotary positions, from their old or their new keys."""
    rotary = config.get("rope_parameters") or config.get("rope_scaling") or {}
    scaling = rotary.get("rope_type", rotary.get("type")) if isinstance(rotary, dict) else rotary
    is_known = scaling in (None, "default", "linear", *_TURNS)
    if not isinstance(rotary, dict) or not is_known:
        known = ", ".join(("linear", *_TURNS))
        raise SettingsError(label, [f"rotary scaling {scaling!r} is not supported, only {known}"])
    base = config.get("rope_theta", config.get("rotary_emb_base", 10_000.0))
    given: dict[str, Any] = {"rope_theta": rotary.get("rope_theta", base)}
    own = {"rotary_base": "rope_theta"}
    if scaling in ("linear", *_TURNS):
        given["factor"], own["rotary_factor"] = rotary.get("factor"), "factor"
    if scaling in _TURNS:
        for ours, (theirs, default) in _TURNS[scaling].items():
            given[theirs], own[ours] = rotary.get(theirs) or default, theirs
        own["rotary_context"] = _CONTEXT
        given[_CONTEXT] = rotary.get(_CONTEXT) or config.get("max_position_embeddings")
    problems = [
        f"{name!r} is {value!r}, expected a number"
        for name, value in given.items()
        if type(value) not in (int, float)
    ]
    if rotary.get("truncate", True) is not True or rotary.get("mscale"):
        problems += ["'truncate' and 'mscale' of rotary scaling are not supported"]
    if problems:
        raise SettingsError(label, problems)
    values: dict[str, Any] = {ours: float(given[theirs]) for ours, theirs in own.items()}
    if scaling in ("linear", *_TURNS):
        values["rotary_scaling"] = scaling
    if scaling in _TURNS:
        values["rotary_context"] = int(given[_CONTEXT])
    if scaling == "yarn":
        usual = 0.1 * math.log(max(values["rotary_factor"], 1.0)) + 1.0
        values["rotary_gain"] = rotary.get("attention_factor") or usual
    return values


def write_rotary(config: NetConfig) -> dict[str, Any]:
    """The settings of rotary angles under both keys, for old and new readers."""
    scaling = "default" if config.rotary_scaling == "none" else config.rotary_scaling
    rotary: dict[str, Any] = {"rope_type": scaling}
    if scaling != "default":
        rotary["factor"] = config.rotary_factor
    if scaling in _TURNS:
        rotary |= {theirs: getattr(config, ours) for ours, (theirs, _) in _TURNS[scaling].items()}
        rotary[_CONTEXT] = config.rotary_context
    if scaling == "yarn":
        rotary["attention_factor"] = config.rotary_gain
    base = {"rope_theta": config.rotary_base}
    old = {} if scaling == "default" else {"rope_scaling": dict(rotary)}
    return {**base, **old, "rope_parameters": rotary | base}
