"""Devices, number formats, seeds and settings."""

from dataclasses import dataclass

import pytest
import torch

from unmask import UserError
from unmask.base.config import SettingsError, build
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
    with pytest.raises(UserError, match="number format 'bf16' is unknown"):
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
