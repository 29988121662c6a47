"""The HTML page of every result whose tables are kept, with all choices of its figures.

    python paper/draw_html.py            all that take seconds; `make docs` runs it
    python paper/draw_html.py tracing    some, by the names of their Markdown pages

They lie in build/site/pages. A page is drawn by the command that wrote its Markdown, from
docs/results/tables: no model, no data, no GPU. One that was drawn from the same tables by the
same code is left as it is.
"""

import argparse
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from html import escape
from pathlib import Path

from run import Runner, call_command
from run_pages import PAGES, find_command, find_pages, is_slow, list_tables
from run_stages import NAMES, Stage, read_stages

from unmask.base.engines import LocalEngine
from unmask.base.errors import UserError, suggest
from unmask.base.files import replace_file
from unmask.base.identity import digest_path, digest_values
from unmask.base.reading import read_text
from unmask.base.work import CallWork, run_jobs

PROCESSES = 2
_LINK = re.compile(r"\[([^]]*)\]\((?:\.\./)?([\w/-]+)\.md\)")


def draw_page(code: str, name: str) -> None:
    """Draw a page, unless it is there."""
    stages = read_stages()[1]
    stage = find_pages(stages)[name]
    page, stamp = PAGES / f"{name}.html", PAGES / f"{name}.digest"
    parts: list[object] = [code, find_command(stage), stage.note, read_text(Path(__file__))]
    parts += [digest_path(stages[each].folder) for each in list_tables(stage)]
    parts += [read_text(path) for path in stage.scripts]
    digest = digest_values(parts)
    if page.is_file() and stamp.is_file() and stamp.read_text("utf-8") == digest:
        return
    places = {each: stages[each].folder for each in list_tables(stage)} | {"page": page}
    command = NAMES.sub(lambda found: str(places[found[1]]), find_command(stage))
    page.parent.mkdir(parents=True, exist_ok=True)
    if (status := call_command(shlex.split(command))) != 0:
        raise UserError(f"{command} ended with {status}, expected 0: what it said is above.")
    text = read_text(page).replace("</h1>", "</h1>\n" + "\n".join(describe_page(stage)), 1)
    with replace_file(page) as draft:
        draft.write_text(text, "utf-8")
    stamp.write_text(digest, "utf-8")


def describe_page(stage: Stage) -> Iterator[str]:
    """How to read the page, and its way back."""
    where = f"../results/{Path(stage.page or '').stem}.html"
    yield f'<p><a href="{where}">The page in the site</a> has the same in words and tables.</p>'
    if stage.note:
        note = _LINK.sub(r'<a href="../results/\2.html">\1</a>', escape(stage.note.strip(), False))
        yield f"<p>{note.replace('../results/limits', '../limits')}</p>"


def draw_pages(names: Sequence[str]) -> list[str]:
    """Draw these pages, or all, two at a time; what went wrong."""
    data, stages = read_stages()
    pages = find_pages(stages)
    for name in names:
        if name not in pages:
            raise UserError(f"no kept tables have a page {name!r}: {suggest(name, pages)}")
    code = Runner(data, stages, Path("data")).code
    quick = [name for name, stage in pages.items() if not is_slow(stage)]
    wanted = names or quick
    engine = LocalEngine(PROCESSES) if len(wanted) > 1 else None
    with tempfile.TemporaryDirectory() as scratch:
        work = CallWork(Path(scratch), partial(draw_page, code))
        costs = {name: _weigh(pages[name], stages) for name in wanted}
        with closing(run_jobs(work, costs, engine, "pages")) as jobs:
            return [str(error) for _, error in jobs if error is not None]


def _weigh(stage: Stage, stages: Mapping[str, Stage]) -> int:
    """The bytes of its tables: what takes long is begun first."""
    folders = [stages[name].folder for name in list_tables(stage)]
    return sum(file.stat().st_size for folder in folders for file in folder.rglob("*.parquet"))


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("pages", nargs="*", help="names of pages, by default all")
    try:
        errors = draw_pages(parser.parse_args(words).pages)
    except UserError as error:
        errors = [str(error)]
    for error in errors:
        print(f"error: {error}", file=sys.stderr)
    return 2 if errors else 0


if __name__ == "__main__":
    from draw_html import main  # by its name, by which workers find what they are to call

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
