"""Debian's chromium, driven by playwright."""

import shutil
from collections.abc import Iterator
from typing import Any

CHROMIUM = shutil.which("chromium")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def open_browser() -> Iterator[Any]:
    """The browser, for a fixture to hand out and close."""
    assert CHROMIUM, "chromium is not installed: apt-get install chromium"
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()
