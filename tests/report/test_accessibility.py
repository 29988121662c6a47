"""The page under axe-core, in a real browser: nothing locks a reader out. Run by `make prove`."""

from pathlib import Path

import pytest

from tests.report.browser import open_browser
from unmask.study.pipeline import PAGE

pytestmark = pytest.mark.prove

AXE = Path(__file__).parents[2] / "build" / "axe" / "node_modules" / "axe-core" / "axe.min.js"
GRAVE = ("serious", "critical")


@pytest.fixture(scope="module")
def browser():
    yield from open_browser()


def find_faults(page) -> list[str]:
    """Grave faults as `rule: element`; what axe could not decide about roles and names counts."""
    assert AXE.is_file(), f"axe-core is not there: make {AXE.relative_to(AXE.parents[4])}"
    page.evaluate(AXE.read_text(encoding="utf-8"))
    report = page.evaluate("axe.run(document)")
    # Contrast stays undecided where a character is too short or lies over a drawing.
    undecided = [rule for rule in report["incomplete"] if rule["id"] != "color-contrast"]
    return [
        f"{rule['id']}: {node['html'][:120]}"
        for rule in report["violations"] + undecided
        if rule["impact"] in GRAVE
        for node in rule["nodes"]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1440])
def test_no_grave_fault(browser, finished, width, scheme):
    view = {"width": width, "height": 900}
    context = browser.new_context(viewport=view, color_scheme=scheme)
    page = context.new_page()
    page.goto((finished.folder / PAGE).resolve().as_uri())
    page.wait_for_selector("#recall .js-plotly-plot")
    page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
    page.wait_for_timeout(800)
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    assert find_faults(page) == []
    context.close()


def test_a_fault_would_be_reported(browser):
    page = browser.new_page()
    page.set_content(
        "<!doctype html><html lang='en'><title>x</title><main><h1>x</h1>"
        "<p style='color: #bbb; background: #fff'>Hardly legible words</p><input type='range'>"
    )
    rules = {fault.split(":")[0] for fault in find_faults(page)}
    assert rules == {"color-contrast", "label"}
