"""`unmask study` and `unmask report`: the main job, and pages of any runs."""

import json
import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from unmask.base.engines import ON
from unmask.base.errors import UserError, describe_notice
from unmask.base.progress import announce
from unmask.cli.exits import note_when_stopped
from unmask.cli.options import add_option, make_command
from unmask.study.settings import StudySettings

if TYPE_CHECKING:
    from rich.console import Console

    from unmask.study.pipeline import StudyRun

EXTRAS = (
    add_option("quick", bool, False, "The size quick: a first look."),
    add_option("full", bool, False, "The size full: all prompts, for a GPU."),
    add_option("stages", str, "", "Some of the stages, separated by commas; all by default."),
    add_option("resume", bool, False, "Go on with the study in --out, with its own settings."),
    add_option("fresh", bool, False, "Remove the study that --out holds, and begin anew."),
    add_option("as_json", bool, False, "Print the findings as JSON.", "--json"),
    add_option("out", Path, Path("runs/study"), "Folder of the tables and the page."),
    add_option("on", str | None, None, ON),
)


def _run(given: Mapping[str, Any], settings: Any, extras: Mapping[str, Any]) -> None:
    from rich.console import Console

    from unmask.study.pipeline import PAGE, resume_study, run_study

    out, console = extras["out"], Console(quiet=extras["as_json"])
    if extras["quick"] and extras["full"]:
        raise UserError("--quick and --full were both given: leave one of them out.")
    if extras["resume"] and extras["fresh"]:
        raise UserError("--resume and --fresh were both given: leave one of them out.")
    size = "quick" if extras["quick"] else "full" if extras["full"] else settings.size
    stages = tuple(name.strip() for name in extras["stages"].split(",") if name.strip())

    def report(stage: str, seconds: float | None) -> None:
        took = "done before" if seconds is None else f"{seconds:.1f} s"
        console.print(f"{stage}: {took}", style="dim", highlight=False)

    if settings.model is not None and settings.data is None and not extras["resume"]:
        console.print(
            f"No --data were given: {settings.model} is asked about a reversal corpus that is made "
            "for the study, which it may never have seen.",
            markup=False,
        )
    resume = f"unmask study --resume --out {shlex.quote(str(out))}"
    with note_when_stopped(lambda: f"go on where it stopped with: {resume}"):
        if extras["resume"]:
            study = resume_study(out, stages, report, on=extras["on"])
        else:
            settings, more = replace(settings, size=size), (extras["fresh"], extras["on"])
            study = run_study(settings, out, stages, report, *more)
    if extras["as_json"]:
        print(json.dumps(_collect(study), ensure_ascii=False))
    else:
        _show(console, study)
    if not study.results():
        raise UserError(
            f"no stage measured anything: {study.folder / PAGE} says why for each. Name facts that "
            "the model was trained on, and that fit its context, by --data."
        )
    if any((entry["missing"] or {}).get("code") == "error" for entry in study.records().values()):
        raise typer.Exit(1)  # the other stages stand on the page


def _collect(study: "StudyRun") -> dict[str, Any]:
    """What the study found, as `--json` prints it."""
    from unmask.study.pipeline import PAGE

    results = study.results()
    return {
        "run": str(study.folder),
        "page": str(study.folder / PAGE),
        "numbers": [vars(n) for result in results.values() for n in result.section.numbers],
        "outcomes": {name: dict(Counter(result.outcomes)) for name, result in results.items()},
        "missing": {
            name: entry["missing"] for name, entry in study.records().items() if entry["missing"]
        },
    }


def _show(console: "Console", study: "StudyRun") -> None:
    """The first finding of each stage, and where the page is."""
    from unmask.blocks.blocks import Finding
    from unmask.report.render_terminal import show_blocks
    from unmask.study.pipeline import PAGE

    for result in study.results().values():
        first = next((each for each in result.section.walk() if isinstance(each, Finding)), None)
        if first is not None:
            show_blocks(console, [first], is_full=False)
    for name, entry in study.records().items():
        if entry["missing"]:
            console.print(f"{name}: {describe_notice(**entry['missing'])}", markup=False)
    page = (study.folder / PAGE).resolve().as_uri()
    for line in (f"page: {page}", f"tables: {study.folder.resolve()}"):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def report(
    runs: list[Path] = typer.Argument(
        ..., metavar="RUN…", help="Run folders of any measure, or studies; several are compared."
    ),
    out: Path | None = typer.Option(
        None,
        help="A .html or .md file, or a folder for figures alone; by default page.html in the run, "
        "or runs/comparison.html for several.",
    ),
    join: bool = typer.Option(
        False,
        "--join",
        help="Models of one name are one model, trained apart: runs of one measure, with the same "
        "settings, become one.",
    ),
    title: str | None = typer.Option(None, help="Heading of the page; by default what is drawn."),
) -> None:
    """Draw runs as a page, as Markdown or as figures, from their tables, without a model."""
    from rich.console import Console

    from unmask.report.page import draw_report

    with announce("drawing the page"):
        place = draw_report(runs, out, join, title)
    Console().print(f"drawn: {place.resolve().as_uri()}", markup=False, soft_wrap=True)


study = make_command(
    "study",
    "Run the study, from data to a page you can read; a study that was stopped is resumed.",
    [],
    StudySettings,
    EXTRAS,
    _run,
)
