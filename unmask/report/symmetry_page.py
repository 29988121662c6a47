"""Symmetry as a page of Markdown, with the command that wrote it and a conclusion in words."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.base.files import replace_file
from unmask.evaluation.statistics import ALPHA
from unmask.report.markdown import format_table
from unmask.report.symmetry_table import (
    describe_place,
    format_difference,
    format_line,
    group_lines,
    summarise_extraction,
)
from unmask.report.symmetry_words import conclude, find_best_layers, tabulate_layers
from unmask.representation.symmetry import Difference, Line


@dataclass(frozen=True)
class Results:
    """What one or several runs gave."""

    extractions: Mapping[str, Sequence[Mapping[str, Any]]]
    """Rows of `unmask represent`, by model."""
    settings: Mapping[str, str]
    """How they were extracted, in words, by model."""
    lines: Sequence[Line]
    differences: Sequence[Difference]
    probes: Mapping[str, Sequence[Mapping[str, Any]]]
    figures: Mapping[str, Path]
    """Pictures without their ending, by what they show."""


def write_symmetry_page(path: Path, results: Results, command: str, setting: str) -> None:
    """Write the page, and the figures' PNGs beside it."""
    parts = [
        "# Do forward and reverse representations mirror each other?",
        f"`{command}`\n{setting}.",
        "## Conclusion",
        conclude(results.lines, results.differences),
        _MEANING,
    ]
    layers = {line.layer for line in results.lines}
    shown = find_best_layers(results.lines)
    if len(layers) > 1:
        parts += ["## Layer by layer", tabulate_layers(results.lines), _LAYERS]
    parts.append("## Extraction")
    for model, rows in results.extractions.items():
        parts += [f"{model}: {results.settings[model]}", _extraction(rows)]
    for title, figure in results.figures.items():
        picture = path.with_name(f"{path.stem}-{figure.name}.png")
        with replace_file(picture) as draft:
            shutil.copyfile(f"{figure}.png", draft)
        parts += [f"![{title}]({picture.name})", f"*{title}.*"]
    parts.append("## Measures")
    if shown < layers:
        parts.append(_SHOWN)
    for (model, kind, group, layer), members in group_lines(results.lines).items():
        if layer not in shown:
            continue
        parts += [
            f"### {describe_place(model, kind, group, layer, members[0])}",
            _measures(members),
        ]
    if results.differences:
        seen = [each for each in results.differences if shown.issuperset(each.layers)]
        parts += ["## Differences between models, paired by fact", _differences(seen)]
    if results.probes:
        parts += ["## Probes: which fact is it, in phrasings held out"]
        parts += [_probes(results.probes), _PROBED]
    with replace_file(path) as draft:
        draft.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


_MEANING = (
    "A name is looked up (key) when it is given and answered (value) when it is asked for, and "
    "so is a description; *key and value* compares the two. Cosine, retrieval and the map take "
    "the key through the layer's down projection; the others take it as it is. *key and v0* is "
    "a control: v0 is what the MLP answers there before any search. *key and delta* takes what "
    "the search added alone. All vectors are centred over the facts. *shuffled*: the measure "
    "when pairs are drawn at random, for *shared directions* when directions are; p is its "
    "share at least as large, *Holm* corrects it for the measures of one comparison at one "
    "layer in one group of facts, not for the number of comparisons; *shared directions* knows no "
    "pairs and is a test of its own. A dash stands where one side is the same for all facts. "
    "Brackets are 95 % t intervals by fact; where all facts hit or all miss, Clopper and Pearson's "
    "with facts as trials; a difference in hits or ranks that is the same for every fact reaches "
    "as far as their bound lets other facts move it. What is fitted (Procrustes, probes) is judged "
    "on facts or phrasings held out. A likeness says that the pairs can be told, not "
    "that the network uses it."
)


_LAYERS = (
    "Each cell: how many measures tell true pairs apart after correction (bold where any does), "
    "and how often a value finds its own key first among all facts."
)
_PROBED = (
    "*shuffled*: the tested facts change places. p is not corrected for the number of probes: one "
    "in twenty lies below 0.05 by chance."
)
_SHOWN = (
    "In full for the layers where a model tells keys and values apart best, which was seen on the "
    "same facts; all layers are in the run's symmetry.parquet."
)


def _extraction(rows: Sequence[Mapping[str, Any]]) -> str:
    header = ["layer", "facts trained", "asked", "facts", "p(object) before", "after"]
    header += ["distance / ‖v0‖", "diverged"]
    return format_table(header, summarise_extraction(rows))


def _measures(members: Sequence[Line]) -> str:
    header = ["comparison", "measure", "value [95 % by fact]", "shuffled [95 %]", "p", "Holm"]
    header += ["matched / unmatched, or train"]
    rows = []
    for line in members:
        more = ""
        if line.matched is not None and line.unmatched is not None:
            more = f"{line.matched:.3f} / {line.unmatched:.3f}"
        if line.train is not None:
            more = f"{line.train:.3f}"
        cells = format_line(line)
        if line.p_holm <= ALPHA:
            cells[1] = f"**{cells[1]}**"
        rows.append([line.comparison, *cells, more])
    return format_table(header, rows)


def _differences(differences: Sequence[Difference]) -> str:
    header = ["models", "facts", "layer", "comparison", "measure", "difference [95 %]"]
    return format_table(header, [format_difference(each) for each in differences])


def _probes(probes: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    rows = [
        [
            model,
            row["group"],
            str(row["layer"]),
            row["fitted"],
            row["tested"],
            f"{row['accuracy']:.3f} [{row['low']:.3f}, {row['high']:.3f}]",
            f"{row['null_mean']:.3f} (97.5 %: {row['null_high']:.3f})",
            f"{row['p']:.3f}",
        ]
        for model, found in probes.items()
        for row in found
    ]
    header = ["model", "facts trained", "layer", "fitted", "tested", "accuracy [95 % by fact]"]
    return format_table([*header, "shuffled", "p"], rows)
