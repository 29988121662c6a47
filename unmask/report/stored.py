"""The section of a small study with the full-scale results of its measure beside it.

`unmask/assets/results/stored.yaml` lists them by measure, which says how one is drawn.
"""

from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

from unmask.base.reading import parse_yaml
from unmask.blocks.blocks import DotPanel, Figure, Fold, MapPanel, Section, Stored, Text
from unmask.measures.measure import Measure
from unmask.measures.table import find_measure, list_measures

PAIRS = {
    "shipped": "The shipped pair.",
    "pretrained": "The pair made from SmolLM2-135M, on Berglund's facts.",
}


@dataclass(frozen=True)
class StoredResult:
    """A result under `unmask/assets/results`, and how it was made."""

    file: str
    pair: str
    about: str
    command: str
    """As one would make it today."""
    version: str = "0.2"
    """The version of this package with whose weights it was made."""


def list_stored(measure: str) -> list[StoredResult]:
    """The results of a measure, the shipped pair's first."""
    text = files("unmask.assets").joinpath("results", "stored.yaml").read_text("utf-8")
    return [StoredResult(**each) for each in parse_yaml(text, "stored.yaml").get(measure, ())]


def add_stored(section: Section) -> Section:
    """The section with the full-scale results of its measure, where a finding of it is not clear.

    The shipped pair's stands after its first figure, with the pretrained pair's folded into it;
    where the two figures do not show the same rows in the same unit it is folded away.
    """
    measure = list_measures().get(section.name)
    is_clear = all(finding.is_clear for finding in section.findings)
    if measure is None or measure.draw_stored is None or is_clear:
        return section
    blocks, stored = list(section.blocks), _read_stored(section.name)
    at = next((i for i, b in enumerate(blocks, 1) if isinstance(b, Figure)), len(blocks))
    drawn = [b for b in (*blocks[:at], *stored.blocks) if isinstance(b, Figure)]
    if len(drawn) == 2 and _describe_axes(drawn[0]) == _describe_axes(drawn[1]):
        blocks.insert(at, stored)
    else:
        blocks.insert(
            at, Fold("A stored result at full scale, in units or rows of its own", [stored])
        )
    return replace(section, blocks=blocks)


def _describe_axes(figure: Figure) -> object:
    """What two figures must share to be read beside each other: units, choices and rows."""
    panels = [panel for view in figure.views.values() for panel in view]
    rows = {row for panel in panels if isinstance(panel, MapPanel) for row in panel.y}
    rows |= {d.label for panel in panels if isinstance(panel, DotPanel) for d in panel.dots}
    choices = [(each.label, tuple(each.options)) for each in figure.controls]
    return figure.chart, figure.xlabel, figure.ylabel, choices, rows


@cache
def _read_stored(name: str) -> Stored:
    measure = find_measure(name)
    first, *others = (_read_result(measure, each) for each in list_stored(name))
    folds = [Fold(each.title, [Text(each.note), *each.blocks]) for each in others]
    return replace(first, blocks=[*first.blocks, *folds])


def _read_result(measure: Measure, result: StoredResult) -> Stored:
    assert measure.draw_stored is not None
    # Figures of one section need names of their own; the caption is that of the figure beside it.
    own = {"name": f"stored-{result.pair}", "caption": ""}
    blocks = [
        replace(block, **own) if isinstance(block, Figure) else block
        for block in measure.draw_stored(result.file)
    ]
    note = f"{result.about} Stored by version {result.version}; made again by `{result.command}`."
    return Stored(PAIRS[result.pair], note, blocks)
