"""The options in `docs/verbs`, written from the command line: prose is typed, tables are not.

python tools/write_verbs.py

Each page holds, for every command it tells about, a pair of markers; what stands between them is
written anew. The index lists the pages with the first line of each command's help; the times of
examples are those that benchmarks/commands.py measured.
"""

import csv
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import typer

from unmask.cli.main import app, load_verb

FOLDER = Path(__file__).parents[1] / "docs" / "verbs"
INDEX, TIMES = "index", "times"
MEASURED = FOLDER / "times.csv"
MARKED = re.compile(
    r"(<!-- (?P<what>[\w -]+): written by tools/write_verbs\.py -->\n).*?(<!-- end -->)", re.DOTALL
)


@cache
def list_commands() -> dict[str, Any]:
    """Every command by its words, such as `data make reversal`."""
    verbs: Any = typer.main.get_command(app)  # a line stands for each until it is loaded
    return {
        words: each for name in verbs.commands for words, each in _walk(load_verb(name), (name,))
    }


def _walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield " ".join(words), command
        return
    for name, inner in command.commands.items():
        yield from _walk(inner, (*words, name))


def name_page(words: str) -> str:
    """The page of a command: one for each first word."""
    return f"{words.split()[0]}.md"


def format_options(words: str, command: Any) -> str:
    """How the command is called, and a table of what it takes."""
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [
        each for each in command.params if each.param_type_name == "option" and not each.hidden
    ]
    needed = [f"{each.opts[0]} …" for each in options if each.required]
    parts = ["unmask", words, *(_name_argument(each) for each in arguments), *needed]
    usage = " ".join(parts + (["[options]"] if len(options) > len(needed) else []))
    lines = ["```console", usage, "```", ""]
    if command.params:
        lines += ["| | default | meaning |", "|---|---|---|"]
    for each in (*arguments, *options):
        name = each.metavar or each.name.upper()
        if each.param_type_name == "option":
            name = "`, `".join((*each.opts, *each.secondary_opts))
        lines.append(f"| `{name}` | {_format_default(each)} | {_escape(each.help or '')} |")
    return "\n".join(lines).rstrip() + "\n"


def _name_argument(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    return name if argument.required or name.startswith("[") else f"[{name}]"


def _format_default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    if isinstance(parameter.default, bool):
        return "on" if parameter.default else "off"
    empty = parameter.default is None or parameter.default in ("", [], ())
    return "" if empty else _escape(str(parameter.default))


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


def format_index() -> str:
    """Tables of all commands under the headings of `unmask --help`, each linked to its page."""
    group: Any = typer.main.get_command(app)
    tables: dict[str, list[str]] = {}
    for words, command in list_commands().items():
        heading = group.commands[words.split()[0]].rich_help_panel
        first = command.help.strip().splitlines()[0]
        row = f"| [unmask {words}]({name_page(words)}) | {_escape(first)} |"
        tables.setdefault(heading, []).append(row)
    lines = [[f"**{heading}**", "", "| command | what it does |", "|---|---|", *rows]
             for heading, rows in tables.items()]  # fmt: skip
    return "\n\n".join("\n".join(each) for each in lines) + "\n"


def format_times() -> str:
    """Seconds of the processor that each measured command takes, those that ended by themselves."""
    with MEASURED.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["status"] == "0"]
    lines = ["| command | seconds |", "|---|---|"]
    for row in rows:
        command = _escape(re.split(r" +#", row["command"])[0])
        lines.append(f"| `{command}` | {float(row['processor']):.0f} |")
    return "\n".join(lines) + "\n"


def rewrite(text: str) -> str:
    """A page with everything between its markers written anew."""

    def fill(found: re.Match[str]) -> str:
        what = found["what"]
        written = {INDEX: format_index, TIMES: format_times}.get(what)
        body = written() if written else format_options(what, list_commands()[what])
        return f"{found[1]}\n{body}\n{found[3]}"

    return MARKED.sub(fill, text)


def find_marks(text: str) -> list[str]:
    """The commands whose options a page has a place for."""
    return [found["what"] for found in MARKED.finditer(text)]


if __name__ == "__main__":
    for page in sorted(FOLDER.glob("*.md")):
        page.write_text(rewrite(page.read_text("utf-8")), "utf-8")
    told = {what for page in FOLDER.glob("*.md") for what in find_marks(page.read_text("utf-8"))}
    print(
        "\n".join(
            f"no page tells about: unmask {words}" for words in list_commands() if words not in told
        )
        or "written"
    )
