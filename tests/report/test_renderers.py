"""One section, four media: the same outcomes, the same numbers, whatever the texts hold."""

import json
import math
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.report.reading import read_figures, read_html, read_markdown, read_terminal, state
from unmask.blocks.blocks import (
    Column,
    Control,
    Dot,
    DotPanel,
    Figure,
    Finding,
    Fold,
    Line,
    LinePanel,
    MapPanel,
    Notice,
    Number,
    Row,
    Section,
    Table,
    Text,
    TextPanel,
    make_views,
)
from unmask.evaluation.statistics import Interval
from unmask.measures.table import list_measures
from unmask.report.document import Document
from unmask.report.render_figures import draw_figure
from unmask.report.render_html import render_html
from unmask.report.render_markdown import render_markdown, write_csv
from unmask.report.style import find_range

SIGNS = "|<>&\"'`$*_~[]()#!\\{}+-=:.%^/0123456789aAzZé→ "
# What Markdown, HTML, rich or matplotlib would take for more than text.
TRAPS = [
    "`a`",
    "``",
    "*a*",
    "_a_",
    "a_b",
    "**a**",
    "~~a~~",
    "[a](b)",
    "[a]:b",
    "![a](b)",
    "<b>a</b>",
    "&amp;",
    "&",
    "\\",
    "\\|",
    "|",
    "[bold]",
    "[/]",
    ":car:",
    "$a^2$",
    "$",
    "=1",
    "{{a}}",
    "</script>",
    "_",
]
TRAPS += ["- ", "1. ", "# "]
pieces = st.sampled_from(TRAPS) | st.text(SIGNS, min_size=1, max_size=6)
texts = st.lists(pieces, min_size=1, max_size=4).map("".join).filter(str.strip)
lines_of_text = (
    st.lists(pieces | st.just("\n"), min_size=1, max_size=6).map("".join).filter(str.strip)
)
numbers = st.floats(-1e6, 1e6) | st.just(math.nan)
intervals = st.builds(Interval, numbers, numbers, numbers)
columns = st.builds(Column, texts, st.integers(0, 4), st.booleans(), st.booleans(), st.booleans())
roles = st.sampled_from(["plain", "control", "published", "strong"])
values = texts | numbers | intervals | st.integers(-(10**7), 10**7) | st.none()
outcomes = st.sampled_from(["above", "below", "alike", "unsettled", "too few", "not measured"])


@st.composite
def tables(draw) -> Table:
    heads = draw(st.lists(columns, min_size=1, max_size=4))
    row = st.builds(Row, st.tuples(*[values] * len(heads)), roles)
    return Table(
        "table", draw(texts), heads, draw(st.lists(row, max_size=6)), draw(st.integers(1, 4))
    )


@st.composite
def panels(draw, chart: str):
    title = draw(st.just("") | texts)
    if chart == "lines":
        count = draw(st.integers(0, 4))
        series = st.lists(numbers, min_size=count, max_size=count)
        ends = st.none() | series
        line = st.builds(
            Line, texts, st.sampled_from(["diffusion", "causal", "control", "p2", "p11"]),
            st.just([float(2**i) for i in range(count)]), series, ends, ends,
            st.sampled_from(["solid", "dash", "dot"]),
        )  # fmt: skip
        return LinePanel(title, draw(st.lists(line, max_size=3)))
    if chart == "dots":
        dot = st.builds(
            Dot, texts, texts, st.sampled_from(["diffusion", "control", "p3"]), intervals,
            st.just(""), st.none() | intervals,
        )  # fmt: skip
        return DotPanel(title, draw(st.lists(dot, max_size=4)))
    if chart == "heatmap":
        x, y = draw(st.lists(texts, max_size=4)), draw(st.lists(texts, max_size=4))
        row = st.lists(numbers | st.none(), min_size=len(x), max_size=len(x))
        z = st.lists(row, min_size=len(y), max_size=len(y))
        return MapPanel(title, x, y, draw(z), draw(st.none() | z), draw(st.none() | z))
    pieces = draw(st.lists(lines_of_text, min_size=1, max_size=12))
    steps = draw(st.lists(st.integers(0, 200), min_size=len(pieces), max_size=len(pieces)))
    chances = st.lists(st.floats(0, 1), min_size=len(pieces), max_size=len(pieces))
    return TextPanel(title, pieces, steps, draw(chances), draw(texts), draw(st.booleans()))


@st.composite
def figures(draw, chart: str) -> Figure:
    options = st.lists(texts, min_size=1, max_size=2)
    controls = draw(st.lists(st.builds(Control, texts, options, st.booleans()), max_size=2))
    view = st.lists(panels(chart), max_size=2)
    limits = draw(st.none() | st.just((0.0, 1.0)))
    return Figure(
        "figure", draw(texts), draw(st.just("") | lines_of_text), chart,
        make_views([control.options for control in controls], lambda *_: draw(view)),
        controls, draw(texts), draw(texts), is_signed=draw(st.booleans()),
        is_log2=draw(st.booleans()), limits=limits,
    )  # fmt: skip


any_figure = st.sampled_from(["lines", "dots", "heatmap", "unmasking"]).flatmap(figures)
sentences = st.one_of(
    st.builds(Text, lines_of_text),
    st.builds(Notice, lines_of_text),
    st.builds(Finding, lines_of_text, outcomes),
)
sections = st.builds(
    Section,
    st.just("section"),
    texts,
    st.lists(sentences | tables() | any_figure, max_size=6),
    st.lists(st.builds(Number, texts, texts, texts), max_size=2),
)


@pytest.fixture(scope="module", autouse=True)
def without_plotly():
    """Pages without the library that draws them, which is most of their size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unmask.report.render_html.pack_library", lambda: "")
        yield


def write_document(*parts: Section) -> Document:
    return Document("Title", "Lead.", [], parts)


def write_markdown(document: Document) -> str:
    return render_markdown(
        document, lambda section, figure: [("a [choice]", "a.png")], lambda section, table: "t.csv"
    )


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(section=sections)
def test_media_state_the_same_verdicts_and_numbers(section):
    document, wanted = write_document(section), state([section])
    html = read_html(render_html(document))
    markdown, terminal = read_markdown(write_markdown(document)), read_terminal([section])
    for medium in (html, markdown, terminal):
        assert medium.cells == wanted.cells
        assert medium.verdicts == wanted.verdicts
    assert html.texts == wanted.texts
    # Markdown has captions between its paragraphs.
    remaining = iter(markdown.texts)
    assert all(text in remaining for text in wanted.texts)


MEASURED = [
    "recall", "order", "factorization", "trace", "trace-steps", "trace-denoising", "represent",
    "nll", "knowns", "perplexity", "symmetry", "edit", "knockout", "paths", "interchange",
    "erasure", "quality", "mending", "infilling", "slots", "correctors", "planted", "guidance",
    "bench", "relearn", "parallel", "transparency", "gradients", "alignment", "circuit",
    "features", "subspaces", "steer", "lens",
]  # fmt: skip


def test_every_measure_is_rendered_below(results):
    assert set(results) == set(MEASURED)
    assert {result.measure.name for result in results.values()} == set(list_measures())


@pytest.mark.parametrize("name", MEASURED)
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32 - 1))
def test_media_agree_whatever_a_summary_says(results, name, seed):
    """Other means, intervals, tests and counts in every row of a measure's own summary."""
    result = results[name]
    generator = np.random.default_rng(seed)
    summary = {
        table: [row | draw_statistics(row, generator) for row in rows]
        for table, rows in result.summary.items()
    }
    section = result.with_summary(summary).section
    document, wanted = write_document(section), state([section])
    assert wanted.cells
    markdown = read_markdown(write_markdown(document))
    for medium in (read_html(render_html(document)), markdown):
        assert medium.cells == wanted.cells
        assert medium.verdicts == wanted.verdicts
    unfolded = replace(section, blocks=[b for b in section.blocks if not isinstance(b, Fold)])
    wanted, terminal = state([unfolded]), read_terminal([section])
    assert (terminal.cells, terminal.verdicts) == (wanted.cells, wanted.verdicts)


def draw_statistics(row, generator: np.random.Generator) -> dict[str, Any]:
    """Random values for the statistics that a row has; one fact has a mean and no interval."""
    facts = int(generator.choice([0, 1, 2, 5, 6, 30]))
    mean = float(generator.normal() * 10.0 ** generator.integers(-4, 3))
    reach = math.nan if facts < 2 else abs(float(generator.normal()))
    p = float(generator.choice([0.0, 0.04, 0.05, 0.3, 1.0]))
    drawn = {"mean": mean, "value": mean, "low": mean - reach, "high": mean + reach}
    drawn |= {"facts": facts, "p": p, "p_holm": p}
    return {key: drawn[key] for key in drawn if isinstance(row.get(key), int | float)}


def test_a_folded_block_is_stated_too():
    fold = Fold("More", [Finding("Less.", "below"), Table("t", "c", [Column("x")], [Row([0.5])])])
    section = Section("section", "Title", [fold])
    wanted = state([section])
    assert wanted.verdicts == ["clear"] and wanted.cells == [["0.50"]]
    for medium in (read_html(render_html(write_document(section))),
                   read_markdown(write_markdown(write_document(section)))):  # fmt: skip
        assert (medium.cells, medium.verdicts) == (wanted.cells, wanted.verdicts)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(figure=any_figure)
def test_figures_become_data_that_a_browser_reads(figure):
    text = render_html(write_document(Section("section", "Title", [figure])))
    (data,) = re.findall(r'id="page-data">(.*?)</script>', text, re.DOTALL)

    def refuse(name: str):
        raise AssertionError(f"{name} is not JSON")

    packed = json.loads(data, parse_constant=refuse)["figures"]["section-figure"]
    assert set(packed["views"]) == {"|".join(map(str, choice)) for choice in figure.views}
    for low, high in packed["ranges"].values():
        assert low < high


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(figure=any_figure)
def test_figures_are_drawn_a_file_for_each_choice_after_the_first(figure):
    with tempfile.TemporaryDirectory() as folder:
        drawn = draw_figure(figure, Path(folder), "name")
        # Of a slider the ends and the middle; nothing where no view is.
        kept = [
            {0, len(each.options) // 2, len(each.options) - 1} if each.is_slider else None
            for each in figure.controls[1:]
        ]
        choices = {
            choice[1:]
            for choice in figure.views
            if all(own is None or i in own for own, i in zip(kept, choice[1:], strict=False))
        }
        assert len(drawn) == len(choices) == len({file for _, file in drawn})
        written = {path.name for path in Path(folder).iterdir()}
        stems = {file.removesuffix(".png") for _, file in drawn}
        assert written == {f"{stem}.{kind}" for stem in stems for kind in ("png", "pdf")}


@pytest.mark.parametrize("chart", ["lines", "dots", "heatmap", "unmasking"])
def test_a_formula_that_is_none_is_drawn_as_it_stands(tmp_path, chart):
    trap, one = r"_$\frac$", Interval(0.5, 0.0, 1.0)
    panel = {
        "lines": LinePanel(trap, [Line(trap, "p0", [1.0], [2.0])]),
        "dots": DotPanel(trap, [Dot(trap, trap, "p0", one)]),
        "heatmap": MapPanel(trap, [trap], [trap], [[1.0]]),
        "unmasking": TextPanel(trap, [trap], [1], [0.5], trap, True),
    }[chart]
    figure = Figure("f", trap, trap, chart, {(): [panel]}, (), trap, trap)
    assert [file for _, file in draw_figure(figure, tmp_path, "f")] == ["f.png"]


def test_a_tall_figure_goes_on_in_further_files(tmp_path, monkeypatch):
    monkeypatch.setattr("unmask.report.render_figures._draw_picture", lambda *_: None)
    rows = [str(i) for i in range(60)]
    options = ["one", "two", "three"]
    panel = MapPanel("model", ["0"], rows, [[0.0]] * 60)
    figure = Figure(
        "maps", "Maps", "", "heatmap", {(i,): [panel] for i in range(3)},
        [Control("asked", options)],
    )  # fmt: skip
    files = [file for _, file in draw_figure(figure, tmp_path, "maps")]
    assert files == ["maps-1.png", "maps-2.png", "maps-3.png"]


@pytest.mark.parametrize(
    ("is_slider", "is_paper", "drawn"),
    [
        (False, True, list(range(16))),
        (True, True, [0, 8, 15]),
        (False, False, [0]),
        (True, False, [0]),
    ],
)
def test_of_many_options_some_are_drawn(tmp_path, monkeypatch, is_slider, is_paper, drawn):
    """A page of text has the first choice; of a slider a paper has the ends and the middle."""
    monkeypatch.setattr("unmask.report.render_figures._draw_picture", lambda *_: None)
    steps = [str(i) for i in range(16)]
    views = {(0, i): [DotPanel("", [])] for i in range(16)}
    controls = [Control("asked", ["a"]), Control("step", steps, is_slider)]
    figure = Figure("f", "t", "", "dots", views, controls)
    files = [file for _, file in draw_figure(figure, tmp_path, "f", is_paper)]
    assert files == [f"f-step-{i}.png" for i in drawn]


def test_a_picture_is_put_into_words_by_what_it_draws(tmp_path, monkeypatch):
    monkeypatch.setattr("unmask.report.render_figures._draw_picture", lambda *_: None)

    def draw(value: float) -> list[DotPanel]:
        dot = Dot("subject", "g", "p0", Interval(value, value, value))
        return [DotPanel("ours", [dot]), DotPanel("theirs", [])]

    values = {(0, 0): 1.0, (1, 0): 2.0, (0, 1): 9.0}
    controls = [Control("asked", ["forwards", "back"]), Control("window", ["1", "5"])]
    views = {choice: draw(value) for choice, value in values.items()}
    figure = Figure("f", "t", "", "dots", views, controls, "loss")
    words = [each for each, _ in draw_figure(figure, tmp_path, "f")]
    start = "Dots with intervals of loss, side by side: ours, theirs; window"
    assert words == [
        f"{start} 1. Highest: back, ours, g, subject, 2.",
        f"{start} 5. Highest: forwards, ours, g, subject, 9.",
    ]


def test_ranges_have_a_margin_and_colours_are_even():
    dots = [Dot("a", "g", "p0", Interval(1.0, 0.0, 2.0), null=Interval(0.0, -1.0, 1.0))]
    figure = Figure("f", "t", "", "dots", {(): [DotPanel("", dots)]})
    low, high = find_range(figure, figure.views.values())
    assert low < -1.0 and high > 2.0
    cells = [MapPanel("", ["0"], ["a"], [[-3.0]]), MapPanel("", ["0"], ["a"], [[None]])]
    signed = Figure("f", "t", "", "heatmap", {(): cells}, is_signed=True)
    assert find_range(signed, signed.views.values()) == (-3.0, 3.0)
    shares = Figure("f", "t", "", "heatmap", {(): [MapPanel("", ["0"], ["a"], [[0.2]])]})
    assert find_range(shares, shares.views.values()) == (0.0, 0.2)


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\tx"])
def test_a_table_file_holds_every_row_and_no_formula(tmp_path, text):
    rows = [Row([text, Interval(0.1, -0.2, 0.3)]), Row(['a "b", c', None]), Row(["d", 2])]
    table = Table("t", "c", [Column("name"), Column("value", is_percent=True)], rows, most=1)
    write_csv(table, tmp_path / "t.csv")
    lines = (tmp_path / "t.csv").read_text("utf-8").split("\n")
    assert lines[0] == 'name,value,"value, low","value, high"'
    assert lines[1] == f"'{text},0.1,-0.2,0.3"
    assert lines[2:] == ['"a ""b"", c",,,', "d,2,,", ""]


def test_cells_of_a_pair_are_outlined(tmp_path):
    """On the page by what its script reads, in a picture by what is drawn."""
    panel = MapPanel("", ["Ada", "Bo"], ["Bo", "Ada"], [[0.1, 0.9], [0.8, 0.2]])
    pictures = []
    for is_paired in (False, True):
        figure = Figure("f", "F", "", "heatmap", {(): [panel]}, is_paired=is_paired)
        page = render_html(write_document(Section("s", "S", [figure])))
        assert read_figures(page)["s-f"]["is_paired"] == is_paired
        draw_figure(figure, tmp_path, "f", is_paper=False)
        pictures.append((tmp_path / "f.png").read_bytes())
    assert pictures[0] != pictures[1]
