"""Devices, dtypes, seeds and settings."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from unmask import UserError
from unmask.base.config import CheckedSettings, SettingsError, adjust, build, option
from unmask.base.devices import resolve_device, resolve_dtype
from unmask.base.seeds import derive_seed, python_stream, torch_stream


def test_devices():
    assert resolve_device("cpu") == torch.device("cpu")
    assert resolve_device("auto").type in ("cpu", "cuda", "mps")
    with pytest.raises(UserError, match="device 'gpu' is unknown: expected auto, cpu, cuda"):
        resolve_device("gpu")
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="'cuda:7' is not on this machine"):
            resolve_device("cuda:7")


def test_number_formats():
    assert resolve_dtype("bfloat16") is torch.bfloat16
    with pytest.raises(UserError, match="dtype 'bf16' is unknown"):
        resolve_dtype("bf16")


def test_streams_are_independent_and_stable():
    assert derive_seed(0, "weights") == derive_seed(0, "weights")
    assert derive_seed(0, "weights") != derive_seed(0, "noise") != derive_seed(1, "noise")
    # Written down once: a change here would change every corpus and every run.
    assert derive_seed(0, "people") == 284026788577855336
    assert python_stream(0, "a").random() == python_stream(0, "a").random()
    draws = [torch.rand(3, generator=torch_stream(0, name)) for name in ("a", "a", "b")]
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])


@dataclass(frozen=True)
class Example:
    rate: float
    names: tuple[str, ...] = ()
    limit: int | None = None


def test_build_converts_what_json_cannot_say():
    assert build(Example, {"rate": 1, "names": ["a"], "limit": None}, "x") == Example(1.0, ("a",))
    with pytest.raises(SettingsError, match="'names' is 'a', expected a list of a text"):
        build(Example, {"rate": 0.5, "names": "a"}, "x")
    with pytest.raises(SettingsError, match="'limit' is 'no', expected an integer or nothing"):
        build(Example, {"rate": 0.5, "limit": "no"}, "x")


@dataclass(frozen=True, kw_only=True)
class Cooking(CheckedSettings):
    """How soup is cooked."""

    minutes: int = option(10, "How long.", least=1)
    spice: str = option("salt", "What makes it taste.")


def cook(settings: Cooking | None = None, *, pot: str = "iron", **changes) -> Cooking:
    return adjust(cook, Cooking, settings, changes, leave_out=("spice",))


def test_keyword_arguments_change_settings():
    """A name that is none is refused with the near one, an argument of the function included."""
    assert cook() == Cooking() and cook(minutes=3) == Cooking(minutes=3)
    assert cook(Cooking(minutes=3, spice="dill"), minutes=4) == Cooking(minutes=4, spice="dill")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"minute": 3}, "cook has no argument 'minute': did you mean 'minutes'?"),
        ({"pots": "tin"}, "cook has no argument 'pots': did you mean 'pot'?"),
        ({"spice": "dill"}, "cook has no argument 'spice': known: minutes, pot"),
        ({"minutes": 0}, "Cooking: 'minutes' is 0, expected at least 1"),
        ({"settings": 5}, "cook was given 5 as its settings: expected Cooking"),
    ]
    for changes, sentence in cases:
        with pytest.raises(UserError) as caught:
            cook(**changes)
        assert sentence in str(caught.value)
    with pytest.raises(SettingsError, match="'spice' is .*, expected a text without halves of"):
        Cooking(spice="\ud800")  # no file could hold it


def test_settings_are_documented_by_their_options():
    assert (Cooking.__doc__ or "").splitlines() == [
        "How soup is cooked.",
        "",
        "Args:",
        "    minutes: How long.",
        "    spice: What makes it taste.",
    ]
