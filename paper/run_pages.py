"""Which pages are drawn from kept tables, and where their HTML pages are."""

from collections.abc import Mapping
from pathlib import Path

from run_stages import NAMES, Stage

from unmask.base.files import replace_file
from unmask.base.reading import read_text

PAGES = Path("build") / "site" / "pages"
"""Where HTML pages are drawn; `make docs` puts what is in build/site into the site."""
RESULTS = Path("docs") / "results"
BEGIN = "*All choices of its figures, one HTML page:* "


def find_pages(stages: Mapping[str, Stage]) -> dict[str, Stage]:
    """The stages whose page is drawn from kept tables that are there, by the page's name."""
    return {
        Path(stage.page).stem: stage
        for stage in stages.values()
        if Path(stage.page or "").parent == RESULTS
        and all(_is_kept(name, stages) for name in list_tables(stage))
    }


def _is_kept(name: str, stages: Mapping[str, Stage]) -> bool:
    return name in stages and stages[name].keep and stages[name].folder.is_dir()


def find_command(stage: Stage) -> str:
    """The command that writes the stage's page."""
    return next(command for command in stage.run if "{page}" in command)


def list_tables(stage: Stage) -> list[str]:
    """What the page is drawn from: stages whose folders it names, its own among them."""
    names = set(NAMES.findall(find_command(stage))) - {"page"} or {"out"}
    return sorted(stage.name if name == "out" else name for name in names)


def is_slow(stage: Stage) -> bool:
    """Whether it takes minutes to draw: statistics of keys and values are made by permutation."""
    return "/represent" in find_command(stage)


def say_where(stage: Stage, stages: Mapping[str, Stage]) -> None:
    """Write into a stage's Markdown page where its HTML page is, where it has or needs one."""
    page = Path(stage.page or "")
    text, name = read_text(page), page.stem
    if name in find_pages(stages):
        command = f"`python paper/draw_html.py {name}`"
        line = f"{BEGIN}`{PAGES.name}/{name}.html` in the site that `make docs` builds; "
        line += f"alone: {command}."
        if is_slow(stage):
            line = f"{BEGIN}`{PAGES.name}/{name}.html`, drawn by {command}, which takes minutes."
    elif "HTML page" in text and page.parent.name == "results":
        line = f"{BEGIN}its tables are not kept; `make paper STAGE={stage.name}` draws them anew."
    else:
        return
    parts = [each for each in text.split("\n\n") if not each.startswith(BEGIN)]
    at = next((i for i, each in enumerate(parts) if i and not each.startswith(">")), len(parts))
    with replace_file(page) as draft:
        draft.write_text("\n\n".join([*parts[:at], line, *parts[at:]]), "utf-8")
