"""The page: one HTML file that needs nothing else, drawn from artefacts alone."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from unmask import __version__
from unmask.base.errors import UserError
from unmask.base.files import read_json_object, replace_file
from unmask.evaluation.summary import Summary
from unmask.report.artefacts import ENVIRONMENT, QUESTIONS, StudyFolder
from unmask.report.blocks import Block, Figure, Grid, Missing, Section, Words, shorten
from unmask.report.denoising_section import tell_denoising
from unmask.report.recall_section import name_asked, tell_recall
from unmask.report.story import Number, tell_numbers, tell_story
from unmask.report.symmetry_section import tell_symmetry
from unmask.report.tracing_section import tell_tracing

MOST_BYTES = 8_000_000
"""A page must pass as a mail attachment."""


RESULTS = {
    "recall": "recall",
    "tracing": "tracing",
    "symmetry": "symmetry",
    "README": "speed, all others",
}
"""Pages of the project's own results, at full scale, and what they are about."""


@dataclass(frozen=True)
class Chapter:
    """Everything about one run."""

    title: str
    prefix: str
    numbers: Sequence[Number]
    story: Sequence[str]
    sections: Sequence[Section]


def write_page(runs: Sequence[StudyFolder], out: Path, comparison: Section | None = None) -> None:
    """Write the page of one run, or of several below each other, what they compare to on top.

    An artefact that is missing or broken is a sentence in its place.
    """
    import plotly.offline
    from jinja2 import Environment, PackageLoader, StrictUndefined

    chapters = [_tell_run(run, f"r{i}-" if len(runs) > 1 else "") for i, run in enumerate(runs)]
    sections = [section for chapter in chapters for section in chapter.sections]
    if comparison is not None:
        sections.insert(0, comparison)
    figures = {
        block.name: {"chart": block.chart, "title": block.title, **block.data}
        for section in sections
        for block in section.blocks
        if isinstance(block, Figure)
    }
    environment = Environment(
        loader=PackageLoader("unmask.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text = environment.get_template("page.html").render(
        title=" and ".join(chapter.title for chapter in chapters),
        chapters=chapters,
        comparison=comparison,
        version=__version__,
        style=_read("page.css"),
        scripts=[plotly.offline.get_plotlyjs(), _read("charts.js"), _read("page.js")],
        figures=_embed(figures),
        tables=_find_tables(out.parent),
    )
    if len(text.encode()) > MOST_BYTES:
        raise UserError(
            f"the page of {', '.join(str(run.path) for run in runs)} would have "
            f"{len(text.encode()) / 1e6:.1f} MB, more than {MOST_BYTES / 1e6:.0f}: report fewer "
            "runs at once."
        )
    with replace_file(out) as draft:
        draft.write_text(text, encoding="utf-8")


def _tell_run(run: StudyFolder, prefix: str) -> Chapter:
    settings = run.record.settings
    names = run.names
    title = names["model"] + (f" and its twin {names['twin']}" if "twin" in names else "")
    sections = [
        _guard(run, prefix, name, heading, tell)
        for name, heading, tell in (
            ("recall", "What is recalled", tell_recall),
            ("denoising", "How answers un-mask", tell_denoising),
            ("tracing", "Where facts are recalled", tell_tracing),
            ("symmetry", "Do keys and values mirror each other?", tell_symmetry),
            ("data", "What was asked", _tell_data),
            ("settings", "Settings and environment", _tell_settings),
        )
    ]
    size = {"quick": "a quick look", "laptop": "laptop scale", "full": "full scale"}
    return Chapter(
        f"{title} ({size.get(settings['size'], settings['size'])})",
        prefix,
        tell_numbers(run),
        tell_story(run),
        sections,
    )


def _guard(
    run: StudyFolder,
    prefix: str,
    name: str,
    heading: str,
    tell: Callable[[StudyFolder, str], Section],
) -> Section:
    """The section, or a sentence in its place."""
    try:
        return tell(run, prefix)
    except UserError as error:
        return Section(f"{prefix}{name}-section", heading, [Missing(f"{error}{run.advice}")])


def _tell_data(run: StudyFolder, prefix: str) -> Section:
    rows = run.rows(QUESTIONS)
    splits = list(dict.fromkeys(row["split"] for row in rows))
    counts, examples = [], []
    for split in splits:
        mine = [row for row in rows if row["split"] == split]
        counts.append(
            [
                split,
                name_asked(split),
                str(len({row["fact"] for row in mine})),
                str(len({row["phrasing"] for row in mine})),
                str(len(mine)),
            ]
        )
        examples += [[split, row["prompt"], row["completion"].strip()] for row in mine[:2]]
    blocks: list[Block] = [
        Grid("Prompts", ["split", "asked", "facts", "phrasings", "prompts"], counts),
        Grid("Some of them", ["split", "prompt", "true answer"], examples),
    ]
    return Section(f"{prefix}data-section", "What was asked", blocks)


def _tell_settings(run: StudyFolder, prefix: str) -> Section:
    record = run.record
    settings = [[key, _show(value)] for key, value in record.settings.items()]
    versions = [[key, _show(value)] for key, value in record.versions.items()]
    if run.has(ENVIRONMENT):
        found = read_json_object(run.path / ENVIRONMENT)
        versions += [[key, _show(value)] for key, value in found.items()]
    marks = [run.mark(stage) for stage in ("data", "recall", "denoising", "tracing", "symmetry")]
    times = [[mark.stage, f"{mark.seconds:.1f} s"] for mark in marks if mark is not None]
    blocks: list[Block] = [
        Words(
            "Everything on this page was drawn from the tables beside it; `unmask report` draws it "
            "again without a model."
        ),
        Grid("Settings", ["setting", "value"], settings),
        Grid("Environment", ["what", "value"], versions),
        Grid("Time", ["stage", "took"], times),
    ]
    return Section(f"{prefix}settings-section", "Settings and environment", blocks)


def _show(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _find_tables(folder: Path) -> list[tuple[str, str]]:
    """Where the project's full tables lie as seen from a folder; none but in a checkout."""
    root = Path(__file__).resolve().parents[2] / "docs" / "results"
    pages = {about: root / f"{name}.md" for name, about in RESULTS.items()}
    return [
        (about, Path(os.path.relpath(page, folder.resolve())).as_posix())
        for about, page in pages.items()
        if page.is_file()
    ]


def _embed(value: Any) -> str:
    """JSON that can stand inside a script element."""
    text = json.dumps(shorten(value), ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _read(name: str) -> str:
    return files("unmask.report").joinpath("templates", name).read_text("utf-8")


def draw_comparison(summary: Summary, titles: Sequence[str]) -> Section:
    """What two runs recall of the same prompts, beside each other."""
    from unmask.report.recall_section import compare_summary, draw_recall_curves

    blocks: list[Block] = [
        Words(f"Models are named after their runs: {'; '.join(titles)}."),
        draw_recall_curves(summary, "comparison"),
        compare_summary(summary),
    ]
    return Section("comparison-section", "Both runs beside each other", blocks)
