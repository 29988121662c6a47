"""Keys, values and their symmetry as tables in the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from unmask.evaluation.statistics import ALPHA
from unmask.representation.measures import MEANINGS
from unmask.representation.symmetry import ASKED, OVERLAP, Difference, Line

LABELS = MEANINGS | {OVERLAP: "shared directions, mean cosine"}


def show_extraction(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """What the searches did, by group, direction and layer; diverged ones are counted apart."""
    table = Table(
        "layer",
        "facts trained",
        "asked",
        "facts",
        "p(object) before",
        "after",
        "distance / ‖v0‖",
        "diverged",
        title="values: means over the facts whose search did not diverge",
    )
    for line in summarise_extraction(rows):
        table.add_row(*map(escape, line))
    console.print(table)


def summarise_extraction(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The same as lists of texts."""
    groups: dict[tuple, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["layer"], row["group"], row["direction"]), []).append(row)
    lines = []
    for (layer, group, direction), members in groups.items():
        sound = [row for row in members if not row["diverged"]]
        means = [
            f"{sum(row[name] for row in sound) / len(sound):.3g}" if sound else "–"
            for name in ("p_before", "p_after", "relative_distance")
        ]
        asked = f"{direction}, {members[0]['trained']}"
        counts = [str(len(sound)), *means, str(len(members) - len(sound))]
        lines.append([str(layer), group, asked, *counts])
    return lines


def show_symmetry(
    console: Console, lines: Sequence[Line], differences: Sequence[Difference]
) -> None:
    """What the study asks about, with its null beside it; what passes the corrected test is bold.

    The other comparisons are in the table on disk and on the page.
    """
    lines = [line for line in lines if line.comparison.endswith(ASKED)]
    differences = [each for each in differences if each.comparison.endswith(ASKED)]
    for key, members in group_lines(lines).items():
        model, kind, group, layer = key
        table = Table(
            "comparison",
            "measure",
            "value [95 % by fact]",
            "shuffled [95 %]",
            "p",
            "Holm",
            title=escape(describe_place(model, kind, group, layer, members[0])),
        )
        label = None
        for line in members:
            first = line.comparison if line.comparison != label else ""
            label = line.comparison
            style = "bold" if line.p_holm <= ALPHA else None
            table.add_row(escape(first), *map(escape, format_line(line)), style=style)
        console.print(table)
    if differences:
        table = Table("models", "facts", "layer", "comparison", "measure", "difference")
        for each in differences:
            table.add_row(*map(escape, format_difference(each)))
        console.print(table)


def group_lines(lines: Sequence[Line]) -> dict[tuple[str, str, str, int], list[Line]]:
    """Lines by model, kind, group and layer."""
    groups: dict[tuple[str, str, str, int], list[Line]] = {}
    for line in lines:
        groups.setdefault((line.model, line.kind, line.group, line.layer), []).append(line)
    return groups


def describe_place(model: str, kind: str, group: str, layer: int, line: Line) -> str:
    return f"{model} ({kind}), layer {layer}, {describe_facts(group, line)}"


def describe_facts(group: str, line: Line) -> str:
    left_out = f", {line.diverged} diverged and left out" if line.diverged else ""
    trained = {"p2d": "trained name to description", "d2p": "trained description to name"}
    return f"{len(line.facts)} facts {trained.get(group, f'group {group}')}{left_out}"


def format_line(line: Line) -> list[str]:
    """Measure, value, null and p as texts; dashes where a side does not vary."""
    value, found = line.found.value, line.found
    if not found.is_measured:
        return [LABELS[line.measure], *["–"] * 4]
    return [
        LABELS[line.measure],
        f"{value.mean:.3f} [{value.low:.3f}, {value.high:.3f}]",
        f"{found.null_mean:.3f} [{found.null_low:.3f}, {found.null_high:.3f}]",
        f"{found.p:.3f}",
        f"{line.p_holm:.3f}",
    ]


def format_difference(each: Difference) -> list[str]:
    value = each.value
    return [
        f"{each.one} − {each.other}",
        f"{each.facts} of {each.group}",
        each.place,
        each.comparison,
        LABELS[each.measure],
        f"{value.mean:+.3f} [{value.low:+.3f}, {value.high:+.3f}]",
    ]
