"""The page in a real browser: Debian's chromium, driven by playwright. Run by `make prove`."""

import json
import re

import pytest

from tests.report.browser import open_browser
from unmask.study.pipeline import PAGE

pytestmark = pytest.mark.prove


@pytest.fixture(scope="module")
def browser():
    yield from open_browser()


@pytest.fixture(params=[360, 768, 1440])
def tab(browser, finished, request):
    """The page, opened as a file; nothing may be said on the console, nothing asked of a host."""
    view = {"width": request.param, "height": 900}
    context = browser.new_context(viewport=view, reduced_motion="reduce")
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    local = ("file:", "data:", "blob:")
    page.on("request", lambda r: None if r.url.startswith(local) else said.append(r.url))
    page.goto((finished.folder / PAGE).resolve().as_uri())
    page.wait_for_selector("#recall .js-plotly-plot")
    yield page
    assert said == []
    context.close()


def read_figures(tab) -> dict:
    return json.loads(tab.locator("#page-data").text_content())["figures"]


def unfold(tab) -> None:
    """Open whatever is folded away, but the tables of values."""
    tab.evaluate(
        "document.querySelectorAll('details:not(.values)').forEach((fold) => { fold.open = true; })"
    )
    tab.wait_for_timeout(500)


def test_fits_its_width_and_draws_everything(tab):
    unfold(tab)
    wide, room = tab.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide <= room
    for name in read_figures(tab):
        assert tab.locator(f"#{name} .chart").bounding_box()["height"] > 60
        plots = tab.locator(f"#{name} .js-plotly-plot svg.main-svg")
        for i in range(plots.count()):
            named = plots.nth(i).get_attribute("aria-label")
            assert named or plots.nth(i).get_attribute("aria-hidden") == "true"


def test_no_label_of_a_figure_is_cut_or_covered(tab):
    """Scales of colours stood in titles of two lines; long names of axes ended outside."""
    unfold(tab)
    found = tab.evaluate(
        """() => [...document.querySelectorAll(".js-plotly-plot")].flatMap((plot) => {
          const all = (query) =>
            [...plot.querySelectorAll(query)].map((e) => e.getBoundingClientRect());
          const meet = (a, b) => a.left < b.right && b.left < a.right
            && a.top < b.bottom - 2 && b.top < a.bottom - 2;
          const [frame] = all("svg.main-svg"), faults = [];
          for (const label of plot.querySelectorAll(".ytick text, .annotation-text"))
            if (label.textContent.includes("…")) faults.push(`not whole: ${label.textContent}`);
          for (const box of all(".ytick text, .annotation-text"))
            if (box.left < frame.left - 1 || box.right > frame.right + 1) faults.push("beyond");
          for (const box of all(".ytitle, .y2title, .xtitle"))
            if (box.top < frame.top - 1 || box.bottom > frame.bottom + 1) faults.push("cut");
          for (const a of all(".annotation-text")) for (const b of all(".colorbar text"))
            if (b.width && meet(a, b)) faults.push("covered");
          return faults.map((fault) => `${plot.closest("[id]").id}: ${fault}`);
        })"""
    )
    assert found == []


def test_contents_stay_in_sight(tab):
    tab.evaluate("scrollTo(0, document.body.scrollHeight / 2)")
    contents = tab.get_by_role("navigation")
    assert 0 <= contents.bounding_box()["y"] < 100
    contents.get_by_role("link", name="What is recalled").click()
    assert -5 < tab.locator("#recall-section").bounding_box()["y"] < 150


def test_one_way_of_asking_holds_in_all_figures(tab):
    """It is chosen in one place that stays in sight, by keyboard as well."""
    unfold(tab)
    figures = read_figures(tab)
    asked = {
        name: figure["controls"][0]["options"]
        for name, figure in figures.items()
        if figure["controls"] and figure["controls"][0]["label"] == "asked"
    }
    ways = tab.locator("#page-asked input")
    assert ways.count() == len({option for options in asked.values() for option in options}) > 2
    assert tab.locator("figure .controls label", has_text="asked").count() == 0
    first, options = next(iter(asked.items()))
    assert ways.first.is_checked() and ways.first.get_attribute("value") == options[0]
    ways.first.focus()
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("ArrowDown")
    wanted = tab.locator("#page-asked input:checked").get_attribute("value")
    assert wanted == ways.nth(2).get_attribute("value")
    changed = 0
    for name, offered in asked.items():
        said = tab.locator(f"#{name} .other").text_content()
        assert (said == "") == (wanted in offered)
        changed += wanted in offered
    assert changed >= 3
    told = "[...document.querySelectorAll('section > .finding[data-ways]')]"
    told = tab.evaluate(f"{told}.map((e) => [e.closest('section').id, e.dataset.ways, e.hidden])")
    for section in {name for name, *_ in told}:
        own = [
            (wanted in json.loads(ways), hidden) for name, ways, hidden in told if name == section
        ]
        assert not any(is_about for is_about, _ in own) or all(a != hidden for a, hidden in own)
    values = tab.locator(f"#{first} .values")
    values.locator("summary").click()
    panels = figures[first]["views"][f"{options.index(wanted)}|0"]
    assert values.locator("tbody tr").count() == sum(len(panel["pieces"]) for panel in panels)
    tab.evaluate("scrollTo(0, document.body.scrollHeight / 2)")
    assert 0 <= tab.locator("#page-asked").bounding_box()["y"] < 700


def test_the_first_screen_and_the_length_of_the_page(tab):
    """At 1440 the texts and the figure begin in the first screen, and all is at most 6,000 high."""
    if tab.viewport_size["width"] < 1440:
        return
    for name in ("order-unmasking", "recall-ways"):
        box = tab.locator(f"#{name} .chart").bounding_box()
        assert box["y"] + min(box["height"], 250) < 900
    assert tab.evaluate("document.documentElement.scrollHeight") <= 6000


def test_play_pause_and_steps(tab):
    (name,) = [n for n, figure in read_figures(tab).items() if figure["chart"] == "unmasking"]
    figure = read_figures(tab)[name]
    choice = "|".join("0" for _ in figure["controls"])
    panels = figure["views"][choice]
    last = max(step for panel in panels for step in panel["steps"])
    hidden, play = tab.locator(f"#{name} .hidden"), tab.get_by_role("button", name="Play")
    pause = tab.get_by_role("button", name="Pause")

    def count(step: int) -> int:
        masked = (panel for panel in panels if not panel["is_causal"])
        return sum(at > step for panel in masked for at in panel["steps"])

    def read_step() -> int:
        label = tab.locator(f"#{name} label.wide").last.inner_text()
        return int(re.findall(r"step (\d+) of", label)[0])

    assert hidden.count() == 0 and read_step() == last
    play.click()
    tab.wait_for_timeout(700)
    pause.click()
    now = read_step()
    assert 0 < now < last and hidden.count() == count(now)
    tab.wait_for_timeout(600)
    assert read_step() == now
    tab.get_by_role("button", name="One step back").click()
    assert hidden.count() == count(now - 1)
    tab.locator(f"#{name} input[type=range]").last.focus()
    for _ in range(last):
        tab.keyboard.press("ArrowRight")
    assert hidden.count() == 0


def test_a_mask_shows_its_guess_and_others_when_pointed_at(tab):
    (name,) = [n for n, figure in read_figures(tab).items() if figure["chart"] == "unmasking"]
    figure = read_figures(tab)[name]
    panel = figure["views"]["|".join("0" for _ in figure["controls"])][0]
    tab.locator(f"#{name} input[type=range]").last.focus()
    tab.keyboard.press("Home")
    at = next(i for i, step in enumerate(panel["steps"]) if step)
    guesses = panel["guesses"][at][0]
    mask = tab.locator(f"#{name} .text").first.locator(".mask").first
    assert mask.text_content() == (guesses[0][0].lstrip() or "·")
    mask.hover()
    tip = tab.locator(f"#{name} .tip")
    lines = [each.strip() for each in tip.locator("div").all_text_contents()]
    assert lines[0] == "Step 0: still masked" and len(lines) == 2 + len(guesses)
    for (piece, p), line in zip(guesses, lines[2:], strict=True):
        assert line.startswith(f"{100 * p:.{1 if p < 0.1 else 0}f} %")
        assert line.endswith(piece.strip() or "·")
    tab.mouse.move(0, 0)
    tab.locator(f"#{name} .text").first.focus()
    tab.keyboard.press("ArrowRight")
    again = [each.strip() for each in tip.locator("div").all_text_contents()]
    assert tip.is_visible() and again == lines
    tab.keyboard.press("Escape")
    assert not tip.is_visible()


def test_a_word_is_explained_by_pointer_and_by_tab(tab):
    term = tab.locator("#trace-effects .term").first
    note = tab.locator("#trace-effects .note").first
    term.scroll_into_view_if_needed()
    assert not note.is_visible()
    term.hover()
    assert note.is_visible() and len(note.text_content()) > 20
    tab.mouse.move(0, 0)
    assert not note.is_visible()
    tab.locator("#trace-effects .chart").evaluate("(chart) => chart.scrollIntoView()")
    term.focus()
    tab.keyboard.press("Shift+Tab")
    tab.keyboard.press("Tab")
    assert note.is_visible()
    box, room = note.bounding_box(), tab.viewport_size["width"]
    assert box["x"] >= 0 and box["x"] + box["width"] <= room


def test_slider_and_hover_show_the_data(tab):
    """Move a slider by keyboard, point at a cell: the value is the one that was measured."""
    unfold(tab)
    name, figure = next(
        (name, figure)
        for name, figure in read_figures(tab).items()
        if figure["chart"] == "heatmap" and any(c["is_slider"] for c in figure["controls"])
    )
    tab.locator(f"#{name} input[type=range]").focus()
    tab.keyboard.press("ArrowRight")
    state = ["1" if control["is_slider"] else "0" for control in figure["controls"]]
    panel = figure["views"]["|".join(state)][0]
    slider = next(control for control in figure["controls"] if control["is_slider"])
    label = tab.locator(f"#{name} label.wide").inner_text()
    assert label.startswith(f"{slider['label']}: {slider['options'][1]}")
    plot = tab.locator(f"#{name} .js-plotly-plot")
    plot.scroll_into_view_if_needed()
    box = tab.locator(f"#{name} .nsewdrag").first.bounding_box()
    row = len(panel["y"]) // 2
    x = box["x"] + box["width"] * 0.5 / len(panel["x"])
    y = box["y"] + box["height"] * (row + 0.5) / len(panel["y"])
    tab.mouse.move(x - 2, y)
    tab.mouse.move(x, y, steps=3)
    hover = tab.locator(f"#{name} .hoverlayer .hovertext")
    hover.wait_for()
    text = hover.text_content().replace("−", "-")
    value = panel["z"][row][0]
    assert panel["y"][row] in text and f"{figure['xlabel']} {panel['x'][0]}" in text
    assert re.search(
        rf"{re.escape(figure['ylabel'])} {value:.{4 if abs(value) < 10 else 2}f}", text
    )


def test_values_can_be_read_without_a_mouse(tab):
    tab.locator("#recall .values summary").focus()
    tab.keyboard.press("Enter")
    rows = tab.locator("#recall .values tbody tr")
    rows.first.wait_for()
    panels = read_figures(tab)["recall"]["views"][""]
    assert rows.count() == sum(len(line["x"]) for panel in panels for line in panel["lines"])


def test_dark_and_light_are_remembered(tab):
    ground = "getComputedStyle(document.body).backgroundColor"
    before = tab.evaluate(ground)
    tab.get_by_role("button", name="Switch to dark colours").click()
    dark = tab.evaluate(ground)
    assert dark != before
    tab.reload()
    tab.wait_for_selector("#recall .js-plotly-plot")
    assert tab.evaluate(ground) == dark
    assert tab.get_by_role("button", name="Switch to light colours").is_visible()


def test_download_is_the_figure(tab):
    with tab.expect_download() as waiting:
        tab.locator("#recall .download").click()
    lines = waiting.value.path().read_text("utf-8").splitlines()
    assert waiting.value.suggested_filename == "recall.csv"
    panels = read_figures(tab)["recall"]["views"][""]
    assert lines[0].startswith("panel,line,denoising steps,")
    assert len(lines) == 1 + sum(len(line["x"]) for panel in panels for line in panel["lines"])


@pytest.mark.parametrize(("kind", "begin"), [("svg", b"<svg"), ("png", b"\x89PNG")])
def test_a_picture_is_saved_with_its_legend(tab, kind, begin):
    with tab.expect_download() as waiting:
        tab.locator(f"#recall .save[data-format={kind}]").click()
    picture = waiting.value.path().read_bytes()
    assert waiting.value.suggested_filename == f"recall.{kind}" and picture.startswith(begin)
    if kind == "svg":
        text = picture.decode()
        figure = read_figures(tab)["recall"]
        names = {line["name"] for panel in figure["views"][""] for line in panel["lines"]}
        assert all(name in text for name in {figure["title"], *names})


def test_texts_that_are_code_elsewhere_stay_texts(browser, tmp_path):
    """Names that HTML, Plotly or a spreadsheet would run."""
    from unmask.blocks.blocks import Control, Dot, DotPanel, Figure, Section
    from unmask.evaluation.statistics import Interval
    from unmask.report.document import Document
    from unmask.report.render_html import render_html

    trap = "=<img src=x onerror='document.title=1'><b>bold</b>&amp; %{x} </script>"
    dots = [Dot(trap, trap, "p0", Interval(0.5, 0.0, 1.0), trap)]
    figure = Figure(
        "f", trap, trap, "dots", {(0,): [DotPanel(trap, dots)]}, [Control(trap, [trap])], trap
    )
    document = Document(trap, trap, [], [Section("s", trap, [figure])])
    (tmp_path / "page.html").write_text(render_html(document), encoding="utf-8")
    page = browser.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    page.wait_for_selector("#s-f .js-plotly-plot")
    assert page.title() == trap and page.locator("main img, main b").count() == 0
    assert page.locator("#s-f .legend li").inner_text() == trap
    assert trap in page.locator("#s-f .js-plotly-plot").text_content()
    with page.expect_download() as waiting:
        page.locator("#s-f .download").click()
    row = waiting.value.path().read_text("utf-8").splitlines()[1]
    assert row.startswith(f"'{trap},'{trap}")
    page.close()
