"""Measures asked of models in memory, and their sections as text."""

from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console

from unmask.base.identity import digest_values
from unmask.measures.inputs import ModelInputs
from unmask.measures.measure import Measure
from unmask.measures.result import Result
from unmask.measures.runner import run_measure
from unmask.net.families import Family
from unmask.report.render_terminal import show_section


def ask(
    measure: Measure, families: Sequence[Family], data: Any, folder: Path, **settings: Any
) -> Result:
    """The result of a measure; a family may hold several training seeds."""
    chosen = measure.settings(**{"device": "cpu"} | settings)
    asked, source, contents = measure.inputs.read_data(data, chosen, list(families))
    inputs = ModelInputs(list(families), asked, source, digest_values(contents))
    result = run_measure(measure, inputs, chosen, folder)
    assert result is not None
    return result


def show(result: Result) -> str:
    """The section as the terminal shows it, everything unfolded."""
    console = Console(file=StringIO(), width=400)
    show_section(console, result.section, is_full=True)
    return console.file.getvalue()
