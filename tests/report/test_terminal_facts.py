"""Facts as `unmask data show` lists them."""

from io import StringIO

import pytest
from rich.console import Console

from unmask.data.facts import Fact
from unmask.report.terminal import show_facts


@pytest.mark.parametrize("color", [None, "truecolor"])
def test_the_first_line_says_what_a_line_holds(color):
    """It said "subject and object" above labels such as "Lumen Bay / Zorvia", object first."""
    console = Console(file=StringIO(), width=100, color_system=color, force_terminal=bool(color))
    fact = Fact.of("Zorvia", "Lumen Bay", "The capital of {} is")
    show_facts(console, [(fact.fact_id, fact)])
    first, line = console.file.getvalue().splitlines()
    assert first.startswith("label, then the text")
    # Without colours nothing tells them apart, so nothing is said of them.
    assert ("subject" in first) == (color is not None)
    assert "Lumen Bay / Zorvia" in line
