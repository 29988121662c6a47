"""Symmetry as a page of Markdown, with the command that wrote it and a conclusion in plain words.

The conclusion is made from the numbers alone, by fixed rules: what passes the corrected test is
told, what does not is told to have not been found.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.base.files import replace_file
from unmask.report.recall_page import format_table
from unmask.report.symmetry_table import (
    ALPHA,
    LABELS,
    describe_place,
    format_difference,
    format_line,
    group_lines,
    summarise_extraction,
)
from unmask.representation.symmetry import ASKED, OVERLAP, Difference, Line


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
        "## Extraction",
    ]
    for model, rows in results.extractions.items():
        parts += [f"{model}: {results.settings[model]}", _extraction(rows)]
    for title, figure in results.figures.items():
        picture = path.with_name(f"{path.stem}-{figure.name}.png")
        with replace_file(picture) as draft:
            shutil.copyfile(f"{figure}.png", draft)
        parts += [f"![{title}]({picture.name})", f"*{title}.*"]
    parts.append("## Measures")
    for (model, kind, group, layer), members in group_lines(results.lines).items():
        parts += [
            f"### {describe_place(model, kind, group, layer, members[0])}",
            _measures(members),
        ]
    if results.differences:
        parts += ["## Differences between models, paired by fact", _differences(results)]
    if results.probes:
        parts += ["## Probes: which fact is it, in phrasings held out", _probes(results.probes)]
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
    "layer in one group of facts, not for the number of comparisons. Brackets hold 95 % of a "
    "bootstrap by fact. What is fitted (Procrustes, probes) is judged on facts or phrasings "
    "held out. A likeness says that the pairs can be told, not that the network uses it."
)


def conclude(lines: Sequence[Line], differences: Sequence[Difference]) -> str:
    """What the numbers say, a sentence for each model, group of facts, layer and comparison."""
    told = []
    for (model, kind, group, layer), members in group_lines(lines).items():
        where = describe_place(model, kind, group, layer, members[0])
        sentences, silent = [], []
        for comparison in dict.fromkeys(line.comparison for line in members if not line.is_control):
            mine = [ln for ln in members if ln.comparison == comparison and ln.measure != OVERLAP]
            if any(line.p_holm <= ALPHA for line in mine):
                sentences.append(_conclude_one(comparison, mine, members))
            else:
                silent.append(comparison)
        if silent:
            sentences.append(
                f"No measure tells true pairs from shuffled ones after correction in {len(silent)} "
                f"of {len(silent) + len(sentences)} comparisons ({'; '.join(silent)})."
            )
        told.append(f"- **{where}.** " + " ".join(sentences))
    clear = [each for each in differences if not each.value.low <= 0 <= each.value.high]
    asked = [each for each in clear if each.comparison.endswith(ASKED)]
    if differences:
        told.append(
            f"- **Between models** {len(asked)} of "
            f"{sum(each.comparison.endswith(ASKED) for each in differences)} differences "
            "of *key and value* have intervals that leave out 0 (not corrected for their number)"
            + (": " + "; ".join(_tell_difference(each) for each in asked) if asked else "")
            + "."
        )
    return "\n".join(told)


def _conclude_one(comparison: str, mine: Sequence[Line], members: Sequence[Line]) -> str:
    passed = [line for line in mine if line.p_holm <= ALPHA]
    name = comparison[0].upper() + comparison[1:]
    listed = ", ".join(LABELS[line.measure] for line in passed)
    sentence = f"{name}: {len(passed)} of {len(mine)} measures tell true pairs apart ({listed})"
    control = comparison.replace(ASKED, "key and v0")
    if control != comparison:
        also = {ln.measure for ln in members if ln.comparison == control and ln.p_holm <= ALPHA}
        shared = [line for line in passed if line.measure in also]
        if shared:
            sentence += (
                f"; {len(shared)} of them do so with v0 as well, so that the search is not needed "
                "for it"
            )
    return sentence + "."


def _tell_difference(each: Difference) -> str:
    value = each.value
    return (
        f"{each.one} − {each.other}, {each.group}, layer {each.place}, {each.comparison}, "
        f"{LABELS[each.measure]}: {value.mean:+.3f} [{value.low:+.3f}, {value.high:+.3f}]"
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


def _differences(results: Results) -> str:
    header = ["models", "facts", "layer", "comparison", "measure", "difference [95 %]"]
    return format_table(header, [format_difference(each) for each in results.differences])


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
