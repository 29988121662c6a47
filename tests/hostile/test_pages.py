"""Texts of others on pages: whatever they hold, each medium shows it and runs none of it."""

import csv
import io
import json
from html.parser import HTMLParser

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from unmask.blocks.blocks import Column, Figure, Row, Section, Table, Text, TextPanel
from unmask.report.document import Document
from unmask.report.render_html import embed_json, mark_code, render_html
from unmask.report.render_markdown import escape, quote_csv, render_markdown

SIGNS = "|<>`*_~$&#[](){}!\\=+-@\"'\t\r\n:;/.,0aZ é🐙"
texts = st.one_of(
    st.text(alphabet=SIGNS, max_size=30), st.text(max_size=30).filter(str.isprintable)
)
TRAPS = ["a|b", "<b>x</b>", "<script>alert(1)</script>", "`x`", "``", "[a](javascript:x)", "&lt;"]
TRAPS += ["=1+1", "a\nb", "a\r\n| b |", "\\|", "\\", "![x](y)", "<!--", "]]>", "{{ x }}", "# x"]


def plain(text: str) -> str:
    """What a page shows of a text: blanks as one space."""
    return " ".join(text.split())


class Reader(HTMLParser):
    """The texts and the elements of a piece of HTML."""

    def __init__(self, page: str):
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.texts.append(data)


def read_markdown(page: str) -> Reader:
    """The page as an independent reader of Markdown, raw HTML allowed, makes it."""
    return Reader(MarkdownIt("commonmark", {"html": True}).enable("table").render(page))


def with_traps(test):
    for trap in TRAPS:
        test = example(trap)(test)
    return test


@with_traps
@given(texts)
def test_a_markdown_cell_is_one_cell_of_text(text):
    reader = read_markdown(f"| head |\n| --- |\n| {escape(text)} |\n| last |\n")
    assert reader.tags == ["table", "thead", "tr", "th", "tbody", "tr", "td", "tr", "td"]
    cells = [each for each in "".join(reader.texts).split("\n") if each]
    assert [plain(each) for each in cells] == [
        each for each in ("head", plain(text), "last") if each
    ]


@with_traps
@given(texts)
def test_a_markdown_page_has_no_element_of_a_text(text):
    table = Table("t", text, [Column(text)], [Row([text]), Row(["x"])])
    document = Document(text, "lead", [], [Section("s", text, [Text("x " + text), table])])
    page = render_markdown(document, lambda *_: [], lambda *_: "")
    allowed = {"h1", "h2", "p", "strong", "table", "thead", "tbody", "tr", "th", "td", "code"}
    assert set(read_markdown(page).tags) <= allowed


@with_traps
@given(texts)
def test_html_shows_a_text_and_marks_only_code(text):
    reader = Reader(str(mark_code(text)))
    assert set(reader.tags) <= {"code"}
    assert "".join(reader.texts).replace("`", "") == text.replace("`", "")


@pytest.mark.parametrize("trap", TRAPS)
def test_an_html_page_has_no_element_of_a_text(trap):
    def draw(text: str) -> Reader:
        panel = TextPanel(text, [text], [0], [1.0], text, True)
        figure = Figure("f", text, text, "unmasking", {(): [panel]})
        table = Table("t", text, [Column(text)], [Row([text])])
        blocks = [Text(text), table, figure]
        return Reader(render_html(Document(text, text, [], [Section("s", text, blocks)])))

    tags = [tag for tag in draw(trap).tags if tag != "code"]
    assert tags == draw("plain").tags


@with_traps
@given(texts)
def test_data_in_a_script_element_stays_data(text):
    page = f'<script type="application/json">{embed_json({"x": [text]})}</script><p>after</p>'
    reader = Reader(page)
    assert reader.tags == ["script", "p"] and json.loads(reader.texts[0]) == {"x": [text]}


@with_traps
@given(texts)
def test_a_csv_cell_is_one_text_and_no_formula(text):
    line = quote_csv(text) + "," + quote_csv("end") + "\n"
    ((cell, end),) = csv.reader(io.StringIO(line, newline=""), strict=True)
    assert end == "end" and cell in (text, f"'{text}")
    assert not cell.startswith(tuple("=+-@\t\r"))
    assert (cell != text) == text.startswith(tuple("=+-@\t\r"))
