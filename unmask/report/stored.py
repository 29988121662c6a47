"""Full-scale results that come with the package, to stand beside what a small study leaves open.

Traces are run folders with averages alone; of recall and likenesses the tables hold the digits that
the pages in docs/results show.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import as_file, files
from typing import Any

from unmask.blocks import labels, tidy
from unmask.blocks.blocks import Figure, Finding, Fold, ReportBlock, Section, Stored, Text
from unmask.measures.recall_section import draw_curves
from unmask.measures.runner import read_result
from unmask.measures.symmetry_section import draw_measures
from unmask.tracing.averages import TOTAL

PAIRS = {
    "shipped": "The shipped pair.",
    "pretrained": "The pair made from SmolLM2-135M, on Berglund's facts.",
}


@dataclass(frozen=True)
class StoredResult:
    """A result under `unmask/assets/results`, how it was made, and how it is read."""

    file: str
    pair: str
    about: str
    command: str
    """As one would make it today."""
    read: Callable[[str], list[ReportBlock]]
    version: str = "0.2"
    """The version of this package with whose weights it was made."""


def add_stored(section: Section) -> Section:
    """The section with the full-scale results of its measure, where a finding of it is not clear.

    The shipped pair's stands after its first figure, with the pretrained pair's folded into it.
    """
    findings = [block for block in section.blocks if isinstance(block, Finding)]
    if section.name not in STORED or all(finding.verdict.is_clear for finding in findings):
        return section
    at = next((i for i, b in enumerate(section.blocks, 1) if isinstance(b, Figure)), None)
    blocks = list(section.blocks)
    blocks[at:at] = [_read_stored(section.name)]
    return replace(section, blocks=blocks)


@cache
def _read_stored(measure: str) -> Stored:
    first, *others = (_read_result(result) for result in STORED[measure])
    folds = [Fold(each.title, [Text(each.note), *each.blocks]) for each in others]
    return replace(first, blocks=[*first.blocks, *folds])


def _read_result(result: StoredResult) -> Stored:
    # Figures of one section need names of their own; the caption is that of the figure beside it.
    own = {"name": f"stored-{result.pair}", "caption": ""}
    blocks = [
        replace(block, **own) if isinstance(block, Figure) else block
        for block in result.read(result.file)
    ]
    note = f"{result.about} Stored by version {result.version}; made again by `{result.command}`."
    return Stored(PAIRS[result.pair], note, blocks)


def _read_traces(folder: str) -> list[ReportBlock]:
    """The diffusion model's finding and the map of residual streams, at step 1."""
    with as_file(files("unmask.assets").joinpath("results", folder)) as path:
        result = read_result(path)
        averages = [
            row
            for row in tidy.select(result.summary["averages"], stage="first")
            if row["part"] in ("resid", TOTAL)
        ]
        blocks = replace(result, summary={**result.summary, "averages": averages}).section.blocks
    kinds = (Finding, Figure)
    return [next(block for block in blocks if isinstance(block, kind)) for kind in kinds]


def _read_recall(file: str) -> list[ReportBlock]:
    """Curves of recall; the twin has no steps."""
    rows = _read_csv(file, ("steps",), ("percent", "low", "high"))
    colours = labels.colour_models(dict(tidy.distinct(rows, "model", "kind")))
    cells = [
        {**row, "name": row["model"], "role": "plain", "colour": colours[row["model"]]}
        | {"mean": row["percent"] / 100, "low": row["low"] / 100, "high": row["high"] / 100}
        for row in rows
    ]
    return [draw_curves(cells, labels.order_splits(tidy.distinct(rows, "split")))]


def _read_likenesses(file: str) -> list[ReportBlock]:
    """Every measure, at the layer where a model's values find their keys best."""
    numbers = ("value", "low", "high", "null_mean", "null_low", "null_high", "p", "p_holm")
    rows = _read_csv(file, ("layer",), numbers)
    return [draw_measures([row | {"is_shown": True} for row in rows])]


def _read_csv(file: str, counts: Sequence[str], numbers: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of a table: whole numbers, where there are any, and numbers are told from texts."""
    lines = files("unmask.assets").joinpath("results", file).read_text("utf-8").splitlines()

    def convert(row: Mapping[str, str]) -> dict[str, Any]:
        whole = {name: int(row[name]) if row[name] else None for name in counts}
        return {**row, **whole, **{name: float(row[name]) for name in numbers}}

    return [convert(row) for row in csv.DictReader(lines)]


STORED: dict[str, Sequence[StoredResult]] = {
    "recall": (
        StoredResult(
            "recall.csv",
            "shipped",
            "300 prompts about 30 facts each way of asking, three training seeds, of which the "
            "first is shipped, on one GPU.",
            "unmask recall reversal-mdm reversal-ar",
            _read_recall,
        ),
        StoredResult(
            "recall-berglund.csv",
            "pretrained",
            "300 prompts about 30 facts each way of asking, three adaptations with three "
            "fine-tunings each, guidance 0.8, on one GPU. The twin read the same text before.",
            "make paper STAGE=recall",
            _read_recall,
        ),
    ),
    "trace": (
        StoredResult(
            "tracing",
            "shipped",
            "20 recalled facts each way of asking, the mean embedding in the subject's place at "
            "the first step, all positions of a role restored together.",
            "make paper STAGE=mechanism-shipped",
            _read_traces,
        ),
        StoredResult(
            "tracing-berglund",
            "pretrained",
            "29 to 32 recalled facts each way of asking, the mean embedding in the subject's place "
            "at the first step; each model trained twice, the groups of facts swapped.",
            "make paper STAGE=tracing",
            _read_traces,
        ),
    ),
    "symmetry": (
        StoredResult(
            "symmetry.csv",
            "shipped",
            "30 facts of each group; of the layers that were kept, the one where values find their "
            "keys best.",
            "make paper STAGE=symmetry-shipped",
            _read_likenesses,
        ),
        StoredResult(
            "symmetry-berglund.csv",
            "pretrained",
            "30 facts of each group, one adaptation and one fine-tuning of each model; of five "
            "layers the one where values find their keys best.",
            "make paper STAGE=symmetry",
            _read_likenesses,
        ),
    ),
}  # fmt: skip
