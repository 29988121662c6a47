"""The explorer's page in a real browser: links, files, keys, widths. Run by `make prove`."""

import json
from urllib.parse import quote

import pytest

from tests.explorer.pages import (
    ANSWER,
    PROMPT,
    REFUSED,
    choose_settings,
    open_page,
    pick_features,
    read_ids,
    save_html,
    serve,
    show_step,
    wait_for_runs,
    write,
)
from tests.report.test_accessibility import find_faults

pytestmark = pytest.mark.prove

VIEWS = ("write", "trace", "features", "edit", "compare", "runs")
FIRST_FRAME = 0.150
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"


@pytest.fixture(scope="module")
def address():
    with serve() as address:
        yield address


@pytest.fixture
def page(browser, address):
    with open_page(browser, address) as page:
        yield page


def trace_small(page) -> None:
    page.click("#tab-trace")
    choose_settings(page, "trace", steps=2)
    page.uncheck("#trace-mlp")
    page.uncheck("#trace-attn")
    page.press("#trace-text", "Enter")
    page.locator("#trace-map[aria-busy=false]").wait_for()


def test_the_page_is_there_before_any_answer(browser, address):
    context = browser.new_context()
    page = context.new_page()
    page.route("**/api/**", lambda route: None)  # Never answered.
    page.goto(address, wait_until="domcontentloaded")
    assert page.get_by_role("tab").count() == len(VIEWS)
    assert page.locator("#write-settings select").first.is_enabled()
    assert page.locator("#write-prompt").is_visible()
    page.locator("#write-prompt:focus").wait_for()
    context.close()


def test_the_first_guesses_are_fast(page):
    """The best of several: other programs may be busy."""
    write(page, PROMPT)
    watch = """() => new Promise((resolve) => {
      const runs = document.querySelector("#write-runs");
      const wait = new MutationObserver(() => {
        if (!runs.querySelector(".token.guess")) return;
        wait.disconnect();
        resolve(performance.now() - start);
      });
      const prompt = document.querySelector("#write-prompt");
      const options = { bubbles: true, cancelable: true, key: "Enter" };
      const start = performance.now();
      prompt.dispatchEvent(new KeyboardEvent("keydown", options));
      wait.observe(runs, { subtree: true, childList: true, attributes: true });
    })"""
    times = []
    for _ in range(8):
        times.append(page.evaluate(watch) / 1000)
        wait_for_runs(page, "write", 2)
    assert min(times) < FIRST_FRAME, times


def test_escape_stops_and_enter_starts_again(page):
    write(page, PROMPT, steps=2)
    choose_settings(page, "write", steps=900)
    page.press("#write-prompt", "Enter")
    page.locator("#write-runs .token.guess").first.wait_for()
    page.keyboard.press("Escape")
    card = page.locator("#write article.run").first
    card.get_by_text("stopped after step").wait_for()
    assert page.locator("#status").inner_text() == "Stopped."
    write(page, PROMPT, steps=2)
    assert "recalled" in card.locator(".status").inner_text()


def test_play_shows_the_steps_in_turn(page):
    write(page, PROMPT, steps=4)
    card = page.locator("#write article.run").first
    # A step is shown for part of a second: the page itself pauses at the first.
    card.evaluate(
        """card => new MutationObserver(() => {
            const buttons = [...card.querySelectorAll("button")];
            const pause = buttons.find((each) => each.textContent.includes("Pause"));
            if (card.querySelector(".step").textContent === "step 1 of 4") pause?.click();
        }).observe(card.querySelector(".step"), { childList: true })"""
    )
    card.get_by_role("button", name="Play").click()
    card.get_by_text("step 1 of 4").wait_for()
    card.get_by_role("button", name="Play").wait_for()
    masks = card.locator(".token.open").count()
    assert masks > 0
    card.get_by_role("button", name="One step on").click()
    assert card.locator(".token.open").count() < masks


def test_a_link_holds_the_view(browser, address, page):
    write(page, PROMPT, steps=4, seed=3)
    card = page.locator("#write article.run").first
    show_step(card, 2)
    card.locator(".token.open").first.click()
    page.locator("#write-panel .reading[aria-busy=false]").wait_for()
    page.locator("#write").get_by_role("button", name="Copy link").click()
    page.locator("#status", has_text="Copied a link").wait_for()
    link = page.evaluate("navigator.clipboard.readText()")
    ids, panel = read_ids(card), page.locator("#write-panel").inner_text()
    with open_page(browser, link) as other:
        other.locator("#write-panel .reading[aria-busy=false]").wait_for()
        assert read_ids(other.locator("#write article.run").first) == ids
        assert other.locator("#write-panel").inner_text() == panel
        assert other.locator("#write-settings").get_by_label("seed").input_value() == "3"


def test_a_link_to_a_trace_holds_its_cell(browser, page):
    trace_small(page)
    page.locator('#trace-map td[data-layer="3"]').nth(18).click()
    page.locator("#trace-panel dd.restored").wait_for()
    panel = page.locator("#trace-panel").inner_text()
    with open_page(browser, page.evaluate("location.href")) as other:
        other.locator("#trace-panel dd.restored").wait_for()
        assert other.locator("#trace-panel").inner_text() == panel


@pytest.mark.parametrize("state", ["%7Bcut", quote(json.dumps([1, 2])), quote('"x"'), "%E0%A4%A"])
def test_a_broken_link_starts_an_empty_view(browser, address, state):
    with open_page(browser, f"{address}#trace={state}") as page:
        assert page.locator("#trace").is_visible()
        write_tab = page.locator("#tab-write")
        write_tab.click()
        write(page, PROMPT, steps=1)


def test_a_saved_file_needs_nothing(browser, page, tmp_path):
    write(page, PROMPT, steps=4)
    trace = tmp_path / "trace"
    trace.mkdir()
    written = save_html(page, "write", tmp_path)
    ids = page.locator("#write article.run").first.locator(".token").count()
    trace_small(page)
    traced = save_html(page, "trace", trace)
    context = browser.new_context(offline=True)
    still = context.new_page()
    requests: list[str] = []
    still.on("request", lambda request: requests.append(request.url))
    still.goto(written.as_uri())
    assert ANSWER in still.locator("article.run").first.inner_text().replace("\n", " ")
    frames = still.locator("article.run").first.locator(".frame")
    assert frames.count() == 5 and frames.first.locator(".token").count() == ids
    assert not frames.first.is_visible()
    still.locator("input[type=range]").first.fill("0")
    assert frames.first.is_visible() and not frames.last.is_visible()
    assert "unmask.sample(" in still.locator("pre").text_content()
    assert still.locator("button, textarea").count() == 0
    still.goto(traced.as_uri())
    assert still.locator("td.cell:not(.waiting)").count() > 100
    assert all(url.startswith("file:") for url in requests)
    context.close()


def test_texts_are_texts(browser, address):
    with open_page(browser, address) as page:
        page.on("dialog", lambda dialog: pytest.fail("a text was run as a script"))
        write(page, HOSTILE, steps=2)
        card = page.locator("#write article.run").first
        assert card.locator(".text").inner_text().startswith("<img src=x")
        assert page.locator("main img, main script").count() == 0
        page.click("#tab-trace")
        page.fill("#trace-text", HOSTILE)
        assert page.locator("#trace-marks").inner_text() == HOSTILE
        page.click("#tab-edit")
        page.fill("#edit-reverse", "")
        hostile = {"prompt": "<img src=x>", "subject": "<img", "old": "<b>", "new": "<i>x</i>"}
        for name, text in hostile.items():  # short: all must fit the context
            page.fill(f"#edit-{name}", text)
        page.press("#edit-new", "Enter")
        page.locator("#edit .status", has_text="edited layer").first.wait_for()
        assert "<i>x</i>" in page.locator("#edited").inner_text()
        assert page.locator("main img, main script").count() == 0
        page.click("#edit-undo")
        page.locator("#edited").wait_for(state="hidden")


def test_mistakes_are_sentences(browser, address):
    with open_page(browser, address, expect=REFUSED.pattern) as page:
        page.fill("#write-prompt", "very long " * 200)
        page.press("#write-prompt", "Enter")
        page.locator("#status.error").wait_for()
        assert "44" in page.locator("#status").inner_text()
        choose_settings(page, "write", steps=0)
        page.fill("#write-prompt", PROMPT)
        page.press("#write-prompt", "Enter")
        page.locator("#status.error", has_text="steps").wait_for()
        page.click("#tab-trace")
        page.fill("#trace-text", "No subject here")
        page.press("#trace-text", "Enter")
        page.locator("#status.error", has_text="Select the subject and the answer").wait_for()
        page.click("#tab-write")
        write(page, PROMPT, steps=2)
        assert page.locator("#status.error").count() == 0


def test_tabs_by_keyboard(page):
    page.locator("#tab-write").focus()
    for name in (*VIEWS[1:], VIEWS[0]):
        page.keyboard.press("ArrowRight" if name != "write" else "Home")
        assert page.locator(f"#{name}").is_visible()
        assert page.locator("[role=tab][aria-selected=true]").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1440])
def test_every_view_fits_and_locks_nobody_out(browser, address, width, scheme):
    with open_page(browser, address, width, scheme) as page:
        for name in VIEWS:
            if name == "write":
                write(page, PROMPT, steps=4)
                show_step(page.locator("#write article.run").first, 2)
                page.locator("#write article.run").first.locator(".token.open").first.click()
                page.locator("#write-panel .reading[aria-busy=false]").wait_for()
            elif name == "trace":
                trace_small(page)
                page.locator("#trace-map td").nth(100).click()
                page.locator("#trace-panel dd.restored").wait_for()
                page.locator("#move > summary").click()
                page.locator("#circuit > summary").click()
                page.click("#circuit-find")
                page.locator("#circuit-picture[aria-busy=false] svg").first.wait_for()
            else:
                page.click(f"#tab-{name}")
            if name == "features":
                pick_features(page, PROMPT, 20)
                page.locator("#features-panel .feature").first.click()
                wait_for_runs(page, "features", 2)
            if name == "edit":
                page.press("#edit-new", "Enter")
                page.locator("#edit article[aria-busy=false]:has(dd.after)").nth(1).wait_for()
            if name == "compare":
                page.press("#compare-first", "Enter")
                wait_for_runs(page, "compare", 2)
            page.locator(f"#{name} details").evaluate_all(
                "(folds) => folds.forEach((fold) => { fold.open = true; })"
            )
            wide, room = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
            assert wide <= room, name
            assert find_faults(page) == [], name


def test_back_returns_to_the_view_before(page):
    write(page, PROMPT, steps=2, canvas_length=40)
    written = read_ids(page.locator("#write article.run").first)
    page.click("#tab-trace")
    page.click("#tab-edit")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for view in ("trace", "write"):
        page.go_back()
        page.locator(f"#{view}").wait_for()
    assert read_ids(page.locator("#write article.run").first) == written and asked == []


def test_a_text_plays_by_itself(browser, address):
    """Where the reader does not ask for stillness: step by step, then the verdict and the map."""
    context = browser.new_context(reduced_motion="no-preference")
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector("#write-fact optgroup", state="attached")
    groups = page.locator("#write-fact optgroup").evaluate_all("(all) => all.map((e) => e.label)")
    assert ["must fail" in name for name in groups] == ["reversed" in name for name in groups]
    page.evaluate(
        """() => {
          window.steps = [];
          new MutationObserver(() => {
            const card = document.querySelector("#write article.run");
            const told = card.querySelector(".verdict") !== null;
            window.steps.push([card.querySelector(".step").textContent, told]);
          }).observe(document.getElementById("write-runs"), { subtree: true, childList: true });
        }"""
    )
    page.press("#write-prompt", "Enter")
    page.locator("#write article.run").first.locator(".verdict").wait_for()
    steps = page.evaluate("window.steps")
    shown = list(dict.fromkeys(step for step, _ in steps))
    assert [f"step {i} of 16" for i in range(17)] == [each for each in shown if "of 16" in each]
    assert all(step == "step 16 of 16" for step, has_verdict in steps if has_verdict)
    context.close()
