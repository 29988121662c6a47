"""The shipped pair in an explorer, loaded once, its calls, and a browser for its page."""

import pytest

from tests.explorer.serving import load_pair, open_client
from tests.report.browser import open_browser
from unmask.explorer.session import Explorer


@pytest.fixture(scope="session")
def explorer() -> Explorer:
    return load_pair()


@pytest.fixture(scope="module")
def client(explorer):
    with open_client(explorer) as client:
        yield client


@pytest.fixture(scope="module")
def browser():
    yield from open_browser()
