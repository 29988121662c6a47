"""The study's figures for papers, PNG and PDF, beside its page."""

from unmask.base.errors import UserError
from unmask.evaluation.commits import summarise_commits
from unmask.report.artefacts import ALONG, ORDER, TRACING, StudyFolder
from unmask.report.order_figures import draw_order
from unmask.report.recall_figures import draw_recall
from unmask.report.tracing_figures import PART_NAMES, draw_curves, draw_steps, draw_twins
from unmask.report.tracing_section import keep_main, keep_shared
from unmask.tracing.table import RESULT

FOLDER = "figures"
_GROUP = ("kind", "direction", "trained", "corruption", "stage")


def draw_figures(run: StudyFolder) -> None:
    """Draw what there are tables for; a table that is missing or broken is told on the page."""
    _ = run.record  # a folder of anything else is refused at once
    for draw in (_draw_recall, _draw_order, _draw_effects, _draw_steps):
        try:
            draw(run)
        except UserError:
            continue


def _draw_recall(run: StudyFolder) -> None:
    draw_recall(run.summary, run.path / FOLDER / "recall", published=False)


def _draw_order(run: StudyFolder) -> None:
    draw_order(summarise_commits(run.rows(ORDER)), run.path / FOLDER / "order")


def _draw_effects(run: StudyFolder) -> None:
    """Each group's curves, and for each part the models beside each other."""
    rows = run.rows(f"{TRACING}/averages.parquet")
    for part, name in PART_NAMES.items():
        mine = [row for row in keep_shared(rows) if row["part"] == part and row["stage"] == "first"]
        if mine:
            draw_twins(run.path / FOLDER / f"effects-{part}", mine, f"{name}, first step")
    results = [row for row in keep_main(rows) if row["control"] == RESULT]
    for key in dict.fromkeys(tuple(row[name] for name in _GROUP) for row in results):
        group = dict(zip(_GROUP, key, strict=True))
        draw_curves(run.path / FOLDER / "-".join(("curves", *key)), rows, group)


def _draw_steps(run: StudyFolder) -> None:
    rows = run.rows(f"{ALONG}/averages.parquet")
    for key in dict.fromkeys(tuple(row[name] for name in _GROUP[:4]) for row in rows):
        group = dict(zip(_GROUP[:4], key, strict=True))
        name = "-".join(("steps", *key))
        draw_steps(run.path / FOLDER / name, rows, group, "last subject")
