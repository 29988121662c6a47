"""The section of a small study with the full-scale results of its measure beside it."""

from dataclasses import replace
from functools import cache

from unmask.blocks.blocks import Figure, Finding, Fold, Section, Stored, Text
from unmask.measures.stored import StoredResult
from unmask.measures.table import list_measures

PAIRS = {
    "shipped": "The shipped pair.",
    "pretrained": "The pair made from SmolLM2-135M, on Berglund's facts.",
}


def add_stored(section: Section) -> Section:
    """The section with the full-scale results of its measure, where a finding of it is not clear.

    The shipped pair's stands after its first figure, with the pretrained pair's folded into it.
    """
    findings = [block for block in section.blocks if isinstance(block, Finding)]
    measure = list_measures().get(section.name)
    stored = () if measure is None else tuple(measure.stored)
    if not stored or all(finding.is_clear for finding in findings):
        return section
    at = next((i for i, b in enumerate(section.blocks, 1) if isinstance(b, Figure)), None)
    blocks = list(section.blocks)
    blocks[at:at] = [_read_stored(stored)]
    return replace(section, blocks=blocks)


@cache
def _read_stored(results: tuple[StoredResult, ...]) -> Stored:
    first, *others = map(_read_result, results)
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
