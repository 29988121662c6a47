"""The explorer's pictures in docs: `python tools/draw_explorer.py`, which needs Debian's chromium.

Each is a view of the shipped pair as a reader meets it, written and traced anew.
"""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

DOCS = Path(__file__).parents[1] / "docs"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def write(page: Any) -> None:
    """Both models write a prompt; a mask of the first one is opened in the midst of it."""
    page.press("#write-prompt", "Enter")
    page.locator("#write .verdict").nth(1).wait_for()
    card = page.locator("#write article.run").first
    card.locator("input[type=range]").fill("6")
    card.locator(".token.open").first.click()
    page.locator("#write-panel .reading[aria-busy=false]").wait_for()


def trace(page: Any) -> None:
    """A fact is traced, and the cell that gives back most is opened."""
    page.click("#tab-trace")
    page.evaluate("document.getElementById('trace-samples').value = 2")
    page.press("#trace-text", "Enter")
    page.locator("#trace-map[aria-busy=false]").wait_for()
    page.evaluate(
        """() => {
          const all = [...document.querySelectorAll('#trace-map td[data-part="resid"]')];
          all.reduce((a, b) => (+a.dataset.value >= +b.dataset.value ? a : b)).click();
        }"""
    )
    page.locator("#trace-panel dd.restored").wait_for()


PICTURES: dict[str, tuple[Literal["light", "dark"], int, Callable[[Any], None]]] = {
    "explorer-write-1440.png": ("light", 1000, write),
    "explorer-trace-1440-dark.png": ("dark", 1200, trace),
}
"""The scheme and height of each, and what is done before it is taken."""


def main() -> None:
    from PIL import Image
    from playwright.sync_api import sync_playwright

    command = [sys.executable, "-m", "unmask", "explore", "--no-open", "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            address = server.stdout.readline().strip()
            with sync_playwright() as driver:
                path = shutil.which("chromium")
                browser = driver.chromium.launch(executable_path=path, args=ARGUMENTS)
                for name, (scheme, height, act) in PICTURES.items():
                    page = browser.new_page(
                        viewport={"width": 1440, "height": height},
                        color_scheme=scheme,
                        reduced_motion="reduce",
                    )
                    page.set_default_timeout(300_000)
                    page.goto(address)
                    page.wait_for_selector("#write-fact optgroup", state="attached")
                    act(page)
                    page.evaluate("scrollTo(0, 0)")
                    page.screenshot(path=DOCS / name)
                    # Flat colours: a palette is a third of the size.
                    with Image.open(DOCS / name) as taken:
                        taken.quantize(200).save(DOCS / name, optimize=True)
                browser.close()
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
