"""The circuit below a trace in a real browser: drawn, kept in the link. Run by `make prove`."""

import re

import pytest

from tests.explorer.pages import REFUSED, choose_settings, copy_python, open_page, serve

pytestmark = pytest.mark.prove


@pytest.fixture(scope="module")
def address():
    with serve("--dtype", "float32") as address:
        yield address


@pytest.fixture
def page(browser, address):
    with open_page(browser, address, expect=REFUSED.pattern) as page:
        yield page


def test_the_circuit_of_a_fact_is_drawn_step_by_step(page):
    page.click("#tab-trace")
    choose_settings(page, "trace", steps=4)
    page.select_option("#trace-fact", "0")
    page.locator("#trace-map[aria-busy=false]").wait_for()
    page.locator("#circuit > summary").click()
    page.click("#circuit-find")
    page.locator("#circuit-status", has_text=re.compile(r"steps? in [\d.]+ s")).wait_for()
    steps = copy_python(page, "trace")["answer"]
    drawn = page.locator("#circuit-picture .scroll svg")
    assert drawn.locator(".node").count() == sum(len(each["nodes"]) + 1 for each in steps)
    assert drawn.locator(".edge").count() == sum(len(each["edges"]) for each in steps)
    assert drawn.locator(".commit").count() == len(steps) - 1
    best = steps[0]["nodes"][0]
    words = f"layer {best['layer']} head {best['head']} at predicting now"
    share = f"{words} {round(100 * best['effect'])} %"
    assert share in page.locator("#circuit-picture table").inner_text()
    shown = page.locator("#circuit-picture table").inner_text()
    page.reload()
    page.locator("#circuit-status", has_text=re.compile(r"steps? in [\d.]+ s")).wait_for()
    assert page.locator("#circuit-picture table").inner_text() == shown
    page.select_option("#trace-fact", "1")
    page.locator("#trace-map[aria-busy=false]").wait_for()
    assert page.locator("#circuit-picture svg").count() == 0, "it was another fact's"


def test_a_circuit_that_cannot_be_asked_for_is_a_sentence(page):
    page.click("#tab-trace")
    page.locator("#circuit > summary").click()
    page.fill("#circuit-subject", "nobody")
    page.click("#circuit-find")
    page.locator("#status.error", has_text="the other question is not whole").wait_for()
    assert page.locator("#circuit-picture svg").count() == 0
