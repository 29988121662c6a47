"""Tables in terminals that are too narrow for them, and facts as `unmask data show` has them."""

from io import StringIO

import pytest
from rich.console import Console

from unmask.blocks.blocks import Column, Finding, Row, Section, Table
from unmask.data.facts import Fact
from unmask.evaluation.statistics import Interval
from unmask.report.render_terminal import show_blocks, show_section
from unmask.report.terminal import show_facts

MODELS = ("reversal-mdm", "reversal-ar")
NAMES = ("likelihood", "perplexity", "preference", "standardised", "distances", "of documents")


def show(table: Table, width: int) -> list[str]:
    console = Console(file=StringIO(), width=width, color_system=None)
    show_blocks(console, [table], is_full=False)
    return console.file.getvalue().splitlines()


def make_table(most: int = 12) -> Table:
    columns = [Column(name) for name in ("steps", "model", "asked", *NAMES)]
    values = [Interval(-11.53, -12.37, -10.69)] * len(NAMES)
    rows = [Row([16, model, "the person of a description", *values]) for model in MODELS]
    return Table("means", "Means", columns, rows, most)


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160, 300])
def test_no_word_is_cut_in_any_width(width):
    lines = show(make_table(), width)
    assert max(map(len, lines)) <= width
    shown = " ".join(lines)
    for word in (*MODELS, *" ".join(NAMES).split(), "description", "−11.53", "[−12.37,", "−10.69]"):
        assert word in shown, (word, lines)
    assert shown.count("−11.53") == len(MODELS) * len(NAMES), "and every value is there once"
    assert "…" not in shown


def test_a_table_that_does_not_fit_names_its_rows_again():
    lines = show(make_table(most=1), 60)
    assert sum(" model " in line for line in lines) > 1
    assert sum("reversal-mdm" in line for line in lines) == sum(" model " in line for line in lines)
    assert lines[0].strip() == "Means" and lines.count(lines[0]) == 1
    assert "and 1 more rows" in lines[-1]


def test_a_section_is_short_unless_all_of_it_is_asked_for():
    """Sentences, the first table with numbers, twelve rows, every value whole in one line."""
    rows = 20 * make_table().rows
    words = Table("texts", "Texts", [Column("text")], [Row(["examples have no numbers"])])
    values = Table("means", "Means", make_table().columns, rows)
    later = Table("later", "Later", make_table().columns, rows)
    said = [Finding(f"Finding {i}.", "above") for i in range(9)]
    section = Section("recall", "What is recalled", [*said, words, values, later])

    def read(is_full: bool) -> list[str]:
        console = Console(file=StringIO(), width=80, color_system=None)
        show_section(console, section, is_full)
        return console.file.getvalue().splitlines()

    brief, full = read(is_full=False), read(is_full=True)
    assert sum("−11.53 [−12.37, −10.69]" in line for line in brief) == 12
    assert sum(line.startswith("└") for line in brief) == 1
    assert "Finding 7." in "".join(brief) and "Finding 8." not in "".join(brief)
    assert "and 1 more sentences" in brief[-1]
    assert any("and 28 more rows and 5 more columns" in line for line in brief)
    for left_out in ("Finding 8.", "examples have", "Later"):
        assert left_out in "".join(full) and left_out not in "".join(brief)


def test_a_word_longer_than_the_line_goes_on_below():
    columns = [Column("model"), Column("file")]
    lines = show(Table("files", "Files", columns, [Row(["mdm", 50 * "ab"])]), 40)
    letters = "".join(c for line in lines[4:] for c in line if c in "ab")
    assert letters == 50 * "ab" and max(map(len, lines)) <= 40


def test_a_long_sampler_is_broken_between_its_settings():
    """It was broken within a word, and its numbers stood in another table, without its name."""
    settings = ["confidence", "temperature=0.75", "top_p=0.95", "remask=rescale=0.05", "guidance=1"]
    columns = [Column(name) for name in ("model", "sampler", "steps", "nats per token")]
    rows = [Row(["reversal-mdm", ";".join(settings), 16, Interval(1.0, 0.5, 2.0)])]
    lines = show(Table("costs", "Costs", columns, rows), 80)
    assert all(word in " ".join(lines) for word in settings)
    assert sum(" model " in line for line in lines) == 1
    assert ";".join(settings) in " ".join(show(Table("costs", "Costs", columns, rows), 160))


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
