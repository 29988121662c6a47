"""The study's figures for papers, PNG and PDF, beside its page."""

from contextlib import suppress
from pathlib import Path

from unmask.base.errors import UserError
from unmask.base.files import replace_folder
from unmask.evaluation.commits import summarise_commits
from unmask.report.artefacts import ALONG, ORDER, SUMMARY, TRACING, StudyFolder
from unmask.report.order_figures import draw_order
from unmask.report.recall_figures import draw_recall
from unmask.report.tracing_figures import PART_NAMES, draw_curves, draw_steps, draw_twins
from unmask.report.tracing_section import keep_main, keep_shared
from unmask.tracing.table import RESULT

FOLDER = "figures"
_GROUP = ("kind", "direction", "trained", "corruption", "stage")


def draw_figures(run: StudyFolder) -> None:
    """Draw what there are tables for, where no figure is younger than its table.

    A table that is missing or broken is told on the page.
    """
    _ = run.record  # a folder of anything else is refused at once
    for source, draw in (
        (SUMMARY, _draw_recall),
        (ORDER, _draw_order),
        (f"{TRACING}/averages.parquet", _draw_effects),
        (f"{ALONG}/averages.parquet", _draw_steps),
    ):
        folder = run.path / FOLDER / source.split("/")[-2]
        if run.has(source) and not _is_older(run.path / source, folder):
            with suppress(UserError), replace_folder(folder) as draft:
                draw(run, draft)


def _is_older(table: Path, folder: Path) -> bool:
    return folder.is_dir() and table.stat().st_mtime_ns < folder.stat().st_mtime_ns


def _draw_recall(run: StudyFolder, folder: Path) -> None:
    draw_recall(run.summary, folder / "recall", published=False)


def _draw_order(run: StudyFolder, folder: Path) -> None:
    draw_order(summarise_commits(run.rows(ORDER)), folder / "order")


def _draw_effects(run: StudyFolder, folder: Path) -> None:
    """Each group's curves at the first step, and for each part the models beside each other."""
    rows = run.rows(f"{TRACING}/averages.parquet")
    for part, name in PART_NAMES.items():
        mine = [row for row in keep_shared(rows) if row["part"] == part and row["stage"] == "first"]
        if mine:
            draw_twins(folder / f"twins-{part}", mine, f"{name}, first step")
    results = [
        row for row in keep_main(rows) if row["control"] == RESULT and row["stage"] == "first"
    ]
    for key in dict.fromkeys(tuple(row[name] for name in _GROUP) for row in results):
        group = dict(zip(_GROUP, key, strict=True))
        draw_curves(folder / "-".join(("curves", *key)), rows, group)


def _draw_steps(run: StudyFolder, folder: Path) -> None:
    rows = run.rows(f"{ALONG}/averages.parquet")
    for key in dict.fromkeys(tuple(row[name] for name in _GROUP[:4]) for row in rows):
        group = dict(zip(_GROUP[:4], key, strict=True))
        draw_steps(folder / "-".join(("steps", *key)), rows, group, "last subject")
