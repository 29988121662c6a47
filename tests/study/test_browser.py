"""The page in a real browser: Debian's chromium, driven by playwright. Run by `make prove`."""

import json
import re

import pytest
from unmask.report.artefacts import PAGE, UNMASKING

from tests.study.browser import open_browser

pytestmark = pytest.mark.prove


@pytest.fixture(scope="module")
def browser():
    yield from open_browser()


@pytest.fixture(params=[360, 1440])
def tab(browser, finished, request):
    """The page, opened as a file; nothing may be said on the console, nothing asked of a host."""
    context = browser.new_context(viewport={"width": request.param, "height": 900})
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    local = ("file:", "data:", "blob:")
    page.on("request", lambda r: None if r.url.startswith(local) else said.append(r.url))
    page.goto((finished.path / PAGE).resolve().as_uri())
    page.wait_for_selector("#texts .js-plotly-plot")
    yield page
    assert said == []
    context.close()


def test_fits_its_width_and_draws_everything(tab):
    wide, room = tab.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide <= room
    for name in tab.evaluate("[...document.querySelectorAll('figure')].map((f) => f.id)"):
        assert tab.locator(f"#{name} .chart").bounding_box()["height"] > 60


def test_play_pause_and_steps(tab, finished):
    rows = finished.rows(UNMASKING)
    first = [row for row in rows if row["prompt"] == rows[0]["prompt"]]
    last = max(row["step"] for row in first)
    text, play = tab.locator("#unmasking .text"), tab.locator("#unmasking button").first
    assert text.locator(".hidden").count() == 0
    play.click()
    tab.wait_for_timeout(700)
    play.click()
    now = int(re.findall(r"step (\d+)", tab.locator("#unmasking label.wide").inner_text())[0])
    assert 0 < now < first[0]["steps"]
    assert text.locator(".hidden").count() == sum(row["step"] > now for row in first)
    tab.wait_for_timeout(600)
    assert text.locator(".hidden").count() == sum(row["step"] > now for row in first)
    tab.get_by_role("button", name="One step back").click()
    assert text.locator(".hidden").count() == sum(row["step"] > now - 1 for row in first)
    slider = tab.locator("#unmasking input[type=range]")
    slider.focus()
    for _ in range(last):
        tab.keyboard.press("ArrowRight")
    assert text.locator(".hidden").count() == 0


def test_slider_and_hover_show_the_table(tab, finished):
    """Move the slider by keyboard, point at a cell: the value is the one in the Parquet file."""
    cells = finished.rows("tracing/maps.parquet")
    steps = sorted({cell["step"] for cell in cells})
    slider = tab.locator("#texts input[type=range]")
    slider.focus()
    tab.keyboard.press("ArrowRight")
    assert f"step: {steps[1]} " in tab.locator("#texts label.wide").inner_text()
    options = tab.locator("#texts select").first.locator("option").all_inner_texts()
    texts = list(dict.fromkeys((cell["fact"], cell["direction"]) for cell in cells))
    assert len(options) == len(texts)
    plot = tab.locator("#texts .js-plotly-plot")
    plot.scroll_into_view_if_needed()
    box = tab.locator("#texts .nsewdrag").bounding_box()
    rows = tab.evaluate("document.querySelector('#texts .js-plotly-plot').data[0].z.length")
    # The middle of the fourth row, first layer.
    x, y = box["x"] + box["width"] / 4, box["y"] + box["height"] * 3.5 / rows
    tab.mouse.move(x - 3, y)
    tab.mouse.move(x, y, steps=3)
    label = tab.locator("#texts .hoverlayer .hovertext")
    label.wait_for()
    said = label.text_content()
    fact, direction = texts[0]
    (cell,) = [
        cell
        for cell in cells
        if (cell["fact"], cell["direction"], cell["step"]) == (fact, direction, steps[1])
        and (cell["token"], cell["layer"], cell["part"]) == (3, 0, "resid")
    ]
    assert f"effect {cell['effect']:.4f}".replace("-0.0000", "0.0000") in said.replace(
        "-0.0000", "0.0000"
    )
    assert "layer 0" in said and cell["role"] in said


def test_dark_and_light(tab):
    ground = "getComputedStyle(document.body).backgroundColor"
    before = tab.evaluate(ground)
    tab.get_by_role("button", name="Switch to dark colours").click()
    assert tab.evaluate(ground) != before
    assert tab.get_by_role("button", name="Switch to light colours").is_visible()


def test_download_is_the_figure(tab):
    with tab.expect_download() as waiting:
        tab.locator("#recall .download").click()
    lines = waiting.value.path().read_text().splitlines()
    assert waiting.value.suggested_filename == "recall.csv"
    panels = json.loads(tab.locator("#figures").text_content())["recall"]["panels"]
    assert lines[0] == "panel,line,x,y,low,high"
    assert len(lines) == 1 + sum(len(line["x"]) for panel in panels for line in panel["lines"])
