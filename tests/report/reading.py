"""What each medium states: the cells of its tables, its verdicts, its paragraphs, in order.

A reader knows the medium, not the code that wrote it: HTML and Markdown are parsed, the terminal's
screen is taken as it is printed.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import unescape
from html.parser import HTMLParser
from io import StringIO

from unmask.blocks.blocks import Finding, Fold, Notice, Section, Table, Text, format_value
from unmask.blocks.labels import OUTCOMES, say_outcome

WORDS = [rf"{words}(?: \w+)?" for words in sorted(set(OUTCOMES.values()))]


@dataclass
class Said:
    """Texts without their spaces, which media break and join as they like."""

    cells: list[list[str]] = field(default_factory=list)
    """Rows of all tables, as far as they are shown at once."""
    verdicts: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


def squeeze(text: str) -> str:
    return "".join(text.split())


def state(sections: Sequence[Section]) -> Said:
    """What blocks say themselves."""
    said = Said()
    for section in sections:
        for block in section.walk():
            match block:
                case Table():
                    for row in block.rows[: block.most]:
                        pairs = zip(row.values, block.columns, strict=True)
                        said.cells.append([squeeze(format_value(*pair)) for pair in pairs])
                case Finding(is_further=True):
                    pass
                case Finding(text):
                    said.verdicts.append(say_outcome(block))
                    said.texts.append(text)
                case Text(text) | Notice(text):
                    said.texts.append(text)
                case Fold():
                    pass
    code = re.compile(r"(?<!`)`([^`]+)`(?!`)")
    said.texts = [squeeze(code.sub(r"\1", text)) for text in said.texts]
    return said


class _Page(HTMLParser):
    """Reads the sections of a page; rows that a reader must unfold are left out, and so are
    sentences that are told only where their way of asking is chosen."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.said = Said()
        self.open: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        kind = "further" if "data-further" in dict(attrs) else dict(attrs).get("class") or ""
        if tag in ("p", "td", "span", "tr", "code", "section", "details", "tbody"):
            self.open.append((tag, kind))
        if self._is_shown():
            if tag == "tr" and any(each == "tbody" for each, _ in self.open):
                self.said.cells.append([])
            elif tag == "td":
                self.said.cells[-1].append("")
            elif tag == "p":
                self.said.texts.append("")
            elif tag == "span" and kind.startswith("verdict"):
                self.said.verdicts.append("")

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1][0] == tag:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        tags = [tag for tag, _ in self.open]
        if not self._is_shown():
            return
        if any(kind.startswith("verdict") for _, kind in self.open):
            self.said.verdicts[-1] += data
        elif "td" in tags:
            self.said.cells[-1][-1] += squeeze(data)
        elif "p" in tags:
            self.said.texts[-1] += squeeze(data)

    def _is_shown(self) -> bool:
        is_inside = any(tag == "section" for tag, _ in self.open)
        return is_inside and not {("details", "rest"), ("p", "further")} & set(self.open)


def read_html(text: str) -> Said:
    page = _Page()
    page.feed(text.split("<script")[0])
    return page.said


def read_markdown(text: str) -> Said:
    from markdown_it import MarkdownIt

    said, row, is_cell = Said(), [], False
    in_head = False
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    for i, token in enumerate(tokens):
        if token.type in ("thead_open", "thead_close"):
            in_head = token.type == "thead_open"
        elif token.type == "tr_open":
            row = []
        elif token.type == "tr_close" and not in_head:
            said.cells.append(row)
        elif token.type in ("td_open", "td_close"):
            is_cell = token.type == "td_open"
        elif token.type == "inline" and is_cell:
            row.append(squeeze(_flatten(token)))
        elif token.type == "inline" and tokens[i - 1].type == "paragraph_open":
            said.texts.append(_flatten(token))
    # A verdict ends its paragraph; captions of tables and figures are no sentences of a section.
    ending = re.compile(rf"^(.*)\[({'|'.join(WORDS)})\]$", re.DOTALL)
    for i, paragraph in enumerate(said.texts):
        if match := ending.match(paragraph):
            said.verdicts.append(match[2])
            said.texts[i] = match[1]
    said.texts = [squeeze(paragraph) for paragraph in said.texts]
    return said


def _flatten(token) -> str:
    """The text that a reader sees; links, pictures and emphasis may only come from the renderer."""
    return "".join(
        child.content if child.type in ("text", "code_inline", "text_special") else " "
        for child in token.children
        if child.type in ("text", "code_inline", "text_special", "softbreak", "hardbreak")
    )


def read_terminal(sections: Sequence[Section]) -> Said:
    from rich.console import Console

    from unmask.report.render_terminal import show_blocks

    console = Console(file=StringIO(), width=4000, color_system=None)
    for section in sections:
        show_blocks(console, [*section.opening, *section.blocks], is_full=False)
    said = Said()
    for line in console.file.getvalue().splitlines():
        if line.startswith("│"):
            said.cells.append([squeeze(cell) for cell in line.strip("│").split("│")])
        elif match := re.search(rf"\[({'|'.join(WORDS)})\]$", line):
            said.verdicts.append(match[1])
    return said


def read_figures(text: str) -> dict:
    (data,) = re.findall(r'id="page-data">(.*?)</script>', text, re.DOTALL)
    return json.loads(data)["figures"]


def read_own(text: str) -> str:
    """The page without its scripts."""
    return re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)


def list_titles(text: str) -> list[str]:
    return [unescape(title) for title in re.findall(r"<h2>(.*?)</h2>", text)]
