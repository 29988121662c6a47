"""Pages from finished studies, without a model: one run again, or two compared."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow
import pyarrow.compute

from unmask.base.errors import UserError
from unmask.base.tables import read_table
from unmask.evaluation.recall import SCHEMA
from unmask.evaluation.summary import summarise
from unmask.report.artefacts import RECALL, StudyFolder
from unmask.report.blocks import Missing, Section
from unmask.report.page import draw_comparison, write_page
from unmask.report.study_figures import draw_figures


def redraw(runs: Sequence[StudyFolder], out: Path) -> None:
    """Write the page of the runs; a run that the page goes into gets its figures, too.

    Two runs are compared on the prompts that both were asked.
    """
    for run in runs:
        if out.parent.resolve() == run.path.resolve():
            draw_figures(run)
    write_page(runs, out, compare(runs) if len(runs) > 1 else None)


def compare(runs: Sequence[StudyFolder]) -> Section:
    """Recall of all models of the runs on the prompts they share."""
    labels = _label(runs)
    try:
        tables = [read_table(run.path / RECALL, SCHEMA) for run in runs]
        shared = set.intersection(*(set(_prompts(table)) for table in tables))
        if not shared:
            raise UserError("the runs share no prompt: they can be read below each other only.")
        kept = [_keep(table, shared, label) for table, label in zip(tables, labels, strict=True)]
        return draw_comparison(
            summarise(pyarrow.concat_tables(kept, promote_options="default")), labels
        )
    except UserError as error:
        return Section("comparison-section", "Both runs beside each other", [Missing(str(error))])


def _label(runs: Sequence[StudyFolder]) -> list[str]:
    """Names of the runs that tell them apart."""
    names = [run.path.resolve().name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.path) for run in runs]


def _prompts(table: pyarrow.Table) -> list[tuple[str, str]]:
    return list(zip(table["split"].to_pylist(), table["prompt"].to_pylist(), strict=True))


def _keep(table: pyarrow.Table, shared: set[tuple[str, str]], label: str) -> pyarrow.Table:
    """The rows of the shared prompts, their models named after the run."""
    mask = pyarrow.array([prompt in shared for prompt in _prompts(table)])
    kept = table.filter(mask)
    names = pyarrow.array([f"{label}: {name}" for name in kept["model"].to_pylist()])
    return kept.set_column(kept.schema.get_field_index("model"), "model", names)
