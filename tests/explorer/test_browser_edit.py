"""The Edit view in a real browser: on in every view, and undone. Run by `make prove`."""

import re
from contextlib import ExitStack

import pytest

import unmask
from tests.explorer.pages import (
    ANSWER,
    PROMPT,
    SUBJECT,
    choose_settings,
    copy_python,
    open_page,
    read_ids,
    serve,
    write,
)

pytestmark = pytest.mark.prove


@pytest.fixture
def page(browser):
    with (
        serve("--dtype", "float32") as address,
        open_page(browser, address) as page,
    ):
        yield page


@pytest.fixture(scope="module")
def model():
    return unmask.load("reversal-mdm", device="cpu", dtype="float32")


def test_a_fact_is_edited_and_undone(page, browser, model):
    page.click("#tab-edit")
    texts = {"prompt": PROMPT, "subject": SUBJECT, "old": ANSWER, "new": "Catalina Tuvesdal"}
    for name, text in texts.items():
        page.fill(f"#edit-{name}", text)
    page.fill("#edit-reverse", "After years of work, {} is remembered as")
    choose_settings(page, "edit", layer="1", search_steps=12)
    page.press("#edit-new", "Enter")
    cards = page.locator("#edit article[aria-busy=false]:has(dd.after)")
    cards.nth(1).wait_for()
    question = PROMPT.replace(SUBJECT, "{}")
    fact = unmask.Fact.of(SUBJECT, ANSWER, question, fact_id="explorer")
    settings = {"layers": 1, "search_steps": 12, "prefixes": 1, "length": 44}
    edit = unmask.edit(model, fact, texts["new"], **settings)
    reverse = "After years of work, {} is remembered as"
    asked = [PROMPT, reverse.format(texts["new"]), reverse.format(ANSWER)]
    before = [unmask.sample(model, each, steps=8, length=44).texts[0] for each in asked]
    with edit.on(model):
        after = [unmask.sample(model, each, steps=8, length=44).texts[0] for each in asked]
    for name, expected in (("before", before), ("after", after)):
        shown = cards.first.locator(f"dd.{name}").all_inner_texts()
        ends = [
            text.removeprefix(prompt).strip() for prompt, text in zip(asked, expected, strict=True)
        ]
        assert shown == ends
    assert before[0] != after[0]
    names = copy_python(page, "edit")  # that of the twin comes last
    written = [row["text_after"].strip() for row in names["answer"][1]]
    assert cards.nth(1).locator("dd.after").all_inner_texts() == written
    # The edit is on in every view, and on a page that is opened later.
    page.click("#tab-write")
    write(page, PROMPT, steps=8, canvas_length=44)
    first = page.locator("#write article.run").first
    with edit.on(model):
        changed = unmask.sample(model, PROMPT, steps=8, length=44).tokens[0].tolist()
    assert read_ids(first) == changed
    with open_page(browser, page.url.split("#")[0]) as other:
        assert "reversal-mdm and reversal-ar are edited" in other.locator("#edited").inner_text()
    page.locator("#edited").get_by_role("button", name="Undo").click()
    page.locator("#edited").wait_for(state="hidden")
    write(page, PROMPT, steps=8, canvas_length=44)
    usual = unmask.sample(model, PROMPT, steps=8, length=44).tokens[0].tolist()
    assert read_ids(first) == usual != changed


def test_a_fact_is_picked_with_its_question_in_reverse(page):
    page.click("#tab-edit")
    page.select_option("#edit-fact", "0")
    values = {
        name: page.input_value(f"#edit-{name}")
        for name in ("prompt", "subject", "old", "new", "reverse")
    }
    assert values["subject"] in values["prompt"] and values["old"] != values["new"]
    assert values["reverse"].count("{}") == 1 and values["subject"] not in values["reverse"]
    page.fill("#edit-subject", "nobody here")
    page.press("#edit-subject", "Enter")
    page.locator("#status.error", has_text="words of the question").wait_for()
    assert page.locator("#edit article").count() == 0 and page.locator("#edit-undo").is_disabled()


def test_a_server_that_is_gone_is_told_with_what_became_of_the_edit(browser):
    with ExitStack() as running:
        address = running.enter_context(serve("--dtype", "float32"))
        with open_page(browser, address, expect="ERR_") as page:
            page.click("#tab-edit")
            texts = {"prompt": PROMPT, "subject": SUBJECT, "old": ANSWER, "new": "Bashir Tobel"}
            for name, text in texts.items():
                page.fill(f"#edit-{name}", text)
            choose_settings(page, "edit", search_steps=200)
            page.press("#edit-new", "Enter")
            status = page.locator("#edit article .status").first
            status.filter(has_text="searching").wait_for()
            running.close()
            status.filter(has_text="server does not answer").wait_for()
            assert "No edit outlives the server." in status.inner_text()


def edit(page, **changes):
    """Fill in the form and begin; of one model, unless `twin`."""
    page.click("#tab-edit")
    page.uncheck("#edit-twin")
    texts = {"prompt": PROMPT, "subject": SUBJECT, "old": ANSWER, "new": "Bashir Tobel"}
    for name, text in texts.items():
        page.fill(f"#edit-{name}", text)
    choose_settings(page, "edit", **changes)
    page.press("#edit-new", "Enter")


def test_undo_ends_a_running_edit(page):
    """It came after the search, however long that was, and there was none for a first edit."""
    edit(page, search_steps=200)
    status = page.locator("#edit article .status").first
    status.filter(has_text=re.compile(r"evaluation [1-9]\d? of 200")).wait_for()
    page.click("#edit-undo")
    page.locator("#status", has_text="Undone").wait_for()
    status.filter(has_text=re.compile("undone|No edit holds")).wait_for()
    assert page.locator("#edited").is_hidden() and page.locator("#edit dd.after").count() == 0


def test_a_reload_shows_what_was_found_and_searches_nothing(page):
    edit(page, search_steps=2)
    answers = page.locator("#edit article[aria-busy=false] dd.after")
    answers.first.wait_for()
    page.wait_for_url("**#edit=*")
    found, asked = answers.all_inner_texts(), []
    page.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
    page.reload()
    answers.first.wait_for()
    assert answers.all_inner_texts() == found and "edit" not in asked
