"""Settings of the documentation site; `make docs` builds it into build/docs, without network."""

import dataclasses
import re
import sys
from pathlib import Path
from typing import Any

from pygments.lexers.special import TextLexer

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import unmask  # noqa: E402  (the checkout's, wherever else it is installed)

project = "Unmask"
author = "The Unmask team"
version = release = unmask.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["examples", "**.ipynb", "**.digest"]
html_theme = "furo"
html_title = "Unmask"
# What is drawn beside the site: HTML pages of results (paper/draw_html.py).
EXTRA = ROOT / "build" / "site"
html_extra_path = [str(EXTRA)] if EXTRA.is_dir() else []

myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath", "fieldlist"]
# Docstrings write names in single backticks, as Markdown does.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 80


def list_settings(
    app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Add the fields of a settings class, with default and help, to its docstring."""
    if what != "class" or not dataclasses.is_dataclass(thing):
        return
    fields = [field for field in dataclasses.fields(thing) if "help" in field.metadata]
    for field in fields:
        lines += ["", f":param {field.name}: {field.metadata['help']}"]


def link_pages(app: Any, name: str, source: list[str]) -> None:
    """Turn the place of a result's HTML page into a link where the page was drawn."""

    def link(found: re.Match[str]) -> str:
        file = found[1]
        is_there = (EXTRA / file).is_file()
        return f'<a href="../{file}">{file}</a>' if is_there else found[0]

    if name.startswith("results/"):
        source[0] = re.sub(r"`(pages/[\w-]+\.html)`", link, source[0])


def setup(app: Any) -> None:
    for language in ("csv", "txt"):
        app.add_lexer(language, TextLexer)
    app.connect("autodoc-process-docstring", list_settings)
    app.connect("source-read", link_pages)
