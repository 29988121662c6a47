"""The hardest functions explain themselves by numbered steps, as decision 0044 lists them."""

import inspect
import re
from pathlib import Path
from pkgutil import resolve_name

import pytest

PAGE = Path(__file__).parents[1] / "docs/decisions/0044-hard-functions.md"
NAMES = re.findall(r"^- `([\w.]+)`$", PAGE.read_text(), re.MULTILINE)


def test_thirty_functions_are_listed():
    assert len(set(NAMES)) == len(NAMES) >= 30


@pytest.mark.parametrize("name", NAMES)
def test_a_listed_function_has_numbered_steps(name: str):
    found = resolve_name(f"unmask.{name}")
    steps = re.findall(r"# (\d)\. ", inspect.getsource(inspect.unwrap(found)))
    assert len(steps) >= 2
    assert steps == [str(i + 1) for i in range(len(steps))]
