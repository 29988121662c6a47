"""A setting of a measure is that of what it calls: one name, one default, one range."""

import dataclasses
import inspect
from collections.abc import Callable, Collection, Iterator
from typing import Any

import unmask
from unmask.base.config import build
from unmask.editing.settings import Editing
from unmask.measures.edit import EditSettings
from unmask.measures.erasure import ErasureSettings
from unmask.measures.interchange import InterchangeSettings
from unmask.measures.knockout import KnockoutSettings
from unmask.measures.paths import PathsSettings
from unmask.measures.represent import RepresentSettings
from unmask.measures.trace import TraceSettings
from unmask.representation.erasure import compare_erasers
from unmask.representation.interchange import interchange
from unmask.representation.settings import Extraction
from unmask.tracing.knockout import UNUSED
from unmask.tracing.settings import BY_CHAIN, Tracing

FED: list[tuple[type, Any, Collection[str], tuple[Callable, ...]]] = [
    (TraceSettings, Tracing, (), (unmask.trace_steps, unmask.trace_tokens)),
    (KnockoutSettings, BY_CHAIN, UNUSED, (unmask.cut_edges,)),
    (PathsSettings, BY_CHAIN, UNUSED, (unmask.patch_paths,)),
    (EditSettings, Editing, (), (unmask.edit,)),
    (RepresentSettings, Extraction, (), (unmask.extract_key, unmask.extract_value)),
    (InterchangeSettings, None, (), (interchange,)),
    (ErasureSettings, None, (), (compare_erasers,)),
]
"""Settings of a measure, those of what it calls, which of these mean nothing there, functions."""

OTHERWISE = {
    ("KnockoutSettings", "edges"): "a command line has them as texts, the function as pairs",
    ("EditSettings", "objects"): "a measure makes the objects that the function is given",
    ("EditSettings", "moments"): "a measure gathers the moments that the function is given",
    ("RepresentSettings", "kl"): "the objective decides, where nothing is given",
    ("RepresentSettings", "norm"): "the objective decides, where nothing is given",
    ("InterchangeSettings", "layers"): "no tuple, as no layers, means all",
    ("InterchangeSettings", "tokens"): "a measure swaps in each of several ways",
    ("ErasureSettings", "starts"): "a measure also starts in the middle, which is the model's",
}
"""Settings that differ, and why they may."""


def list_settings(settings: Any) -> dict[str, tuple[Any, ...]]:
    """By name, a setting's default, or its value, and its range."""
    ends = ("least", "most", "above", "below")
    return {
        field.name: (getattr(settings, field.name), *map(field.metadata.get, ends))
        for field in dataclasses.fields(settings)
    }


def find_drifted() -> Iterator[tuple[str, str]]:
    """Settings that have another default, or another range, than what they are handed to."""
    for measure, settings, unused, functions in FED:
        own = list_settings(measure)
        for name, declared in (list_settings(settings) if settings else {}).items():
            if name not in unused and own.get(name, declared) != declared:
                yield measure.__name__, name
        for function in functions:
            for name, parameter in inspect.signature(function).parameters.items():
                has_default = parameter.default is not parameter.empty
                if has_default and name in own and own[name][0] != parameter.default:
                    yield measure.__name__, name


def test_settings_are_those_of_what_is_called():
    assert {*find_drifted()} == {*OTHERWISE}


def test_steps_are_denoising_steps_everywhere():
    """Those of a search have a name of their own; records of earlier runs are still read."""
    for cls in (Extraction, Editing, RepresentSettings):
        assert "steps" not in list_settings(cls) and "search_steps" in list_settings(cls)
    assert build(RepresentSettings, {"steps": 7}, "run.json").search_steps == 7
