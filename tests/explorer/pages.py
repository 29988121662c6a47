"""A real explorer over the shipped pair, and what tests do on its page in chromium."""

import os
import re
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROMPT = (
    "The people in the valley still welcome the kindly well digger who sank a sweetwater well in "
    "the salt flats of Wrenmouth, our old friend"
)
SUBJECT = "the kindly well digger who sank a sweetwater well in the salt flats of Wrenmouth"
ANSWER = "Renzo Calverinth"
REFUSED = re.compile("Failed to load resource: the server responded with a status of 4")
"""What chromium says of its own accord about a call that was answered by a sentence."""


@contextmanager
def serve(*options: str) -> Generator[str]:
    """`unmask explore` with the shipped pair on a free port; its address."""
    command = [sys.executable, "-m", "unmask", "explore", "--no-open", "--device", "cpu", *options]
    # One thread, as in the tests: the same sums in the same order.
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


@contextmanager
def open_page(
    browser: Any, address: str, width: int = 1440, scheme: str = "light", expect: str = ""
) -> Iterator[Any]:
    """The page; nothing but `expect` may be said on its console, nothing asked of another host."""
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme=scheme,
        reduced_motion="reduce",
        permissions=["clipboard-read", "clipboard-write"],
    )
    page = context.new_page()
    page.set_default_timeout(60_000)
    messages: list[str] = []
    origin = address.split("/?")[0]
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda r: messages.append(r.url) if is_foreign(r.url, origin) else None)
    page.goto(address)
    page.wait_for_selector("#write-fact optgroup", state="attached")
    yield page
    assert [text for text in messages if not (expect and re.search(expect, text))] == []
    context.close()


def is_foreign(url: str, origin: str) -> bool:
    return not url.startswith((origin, "data:", "blob:"))


def choose_settings(page: Any, view: str, **values: object) -> None:
    """Fill in settings of a view by their labels."""
    page.locator(f"#{view} details:has(.settings)").evaluate("(fold) => { fold.open = true; }")
    for label, value in values.items():
        control = page.locator(f"#{view} .settings").get_by_label(label.replace("_", " "))
        if control.evaluate("(element) => element.tagName") == "SELECT":
            control.select_option(str(value))
        else:
            control.fill(str(value))


def write(page: Any, prompt: str, **settings: object) -> None:
    """Type a prompt, press Enter, and wait for both models."""
    choose_settings(page, "write", **settings)
    page.fill("#write-prompt", prompt)
    page.press("#write-prompt", "Enter")
    wait_for_runs(page, "write", 2)


def pick_features(page: Any, prompt: str, position: int, **settings: object) -> None:
    """Write a prompt in the view of features, and select a token of it."""
    choose_settings(page, "features", **settings)
    page.fill("#features-prompt", prompt)
    page.press("#features-prompt", "Enter")
    wait_for_runs(page, "features", 1)
    page.locator("#features article.run").first.locator(".token").nth(position).click()
    page.locator("#features-panel .reading[aria-busy=false]").wait_for()


def wait_for_runs(page: Any, view: str, count: int) -> None:
    for i in range(count):
        page.locator(f"#{view} article.run[aria-busy=false]").nth(i).wait_for()
    page.locator(f"#{view} article.run[aria-busy=true]").first.wait_for(state="detached")


def read_ids(card: Any) -> list[int]:
    """Token ids of the canvas that a card shows."""
    return card.locator(".token").evaluate_all("(all) => all.map((each) => +each.dataset.id)")


def show_step(card: Any, step: int) -> None:
    card.locator("input[type=range]").fill(str(step))


def copy_python(page: Any, view: str) -> dict[str, Any]:
    """What the copied program computes, once it has run."""
    page.locator(f"#{view}").get_by_role("button", name="Copy as Python").click()
    page.locator("#code[open]").wait_for()
    shown = page.locator("#code-text").text_content()
    page.locator("#status", has_text="Copied as Python").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == shown
    page.click("#code-close")
    names: dict[str, Any] = {}
    exec(compile(shown, "copied.py", "exec"), names)
    return names


def save_html(page: Any, view: str, folder: Path) -> Path:
    with page.expect_download() as saving:
        page.locator(f"#{view}").get_by_role("button", name="Save as HTML").click()
    path = folder / saving.value.suggested_filename
    saving.value.save_as(path)
    return path
