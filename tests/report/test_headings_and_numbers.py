"""Headings are said once, and numbers can be read."""

import pytest

from unmask.blocks.blocks import Column, Section, format_value
from unmask.report.document import Document
from unmask.report.render_html import render_html
from unmask.report.render_markdown import render_markdown


@pytest.mark.parametrize(
    "value, text",
    [
        (0.012345, "0.0123"),
        (999.6, "1,000"),
        (3533.0, "3,530"),
        (-123456.0, "−123,000"),
        (1e6, "1e+06"),
    ],
)
def test_numbers_of_three_digits(value, text):
    assert format_value(value, Column("x", is_short=True)) == text


def test_the_only_section_needs_no_second_heading():
    """A page that is named like its section had the same heading twice."""
    page = Document("Families", "", [], [Section("a", "Families", []), Section("b", "More", [])])
    text = render_markdown(page, lambda *_: [], lambda *_: "")
    assert text.split() == ["#", "Families", "##", "More"]
    html = render_html(page)
    assert html.count("<h2>Families</h2>") == 0 and html.count("<h2>More</h2>") == 1
