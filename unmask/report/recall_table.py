"""Recall as tables in the terminal."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from unmask.evaluation.questions import CONTROL
from unmask.evaluation.summary import BEATS, SHARES, Cell, Pair, Summary
from unmask.report.published import STUDY_RECALL

PERCENT = (*SHARES, "token_accuracy")
LABELS = {
    "strict": "strict match, %",
    "token_accuracy": "tokens in place, %",
    "bleu": "BLEU",
    "rank": "rank",
    "logp": "log p, nats",
    "logp_mean_field": "log p, mean field",
    "first_token_entropy": "entropy of token 1",
    BEATS: "likelier than shuffled, %",
}


def show_recall(console: Console, summary: Summary, published: bool) -> None:
    """Contained matches against steps, then the other metrics at the most steps, then pairs."""
    show_hits(console, summary, published)
    show_metrics(console, summary)
    show_pairs(console, summary)


def show_hits(console: Console, summary: Summary, published: bool) -> None:
    """The study's table: the share of prompts whose answer is contained in the generation."""
    first = summary.cells[0]
    title = (
        f"contained match, % [95 % interval by fact]; {first.prompts} prompts of {first.facts} "
        "facts a split"
    )
    table = Table("steps", "model", *map(name_split, summary.splits), title=title)
    for steps in summary.steps:
        label = "" if steps is None else str(steps)
        for model in summary.models:
            cells = [summary.find(model, split, steps) for split in summary.splits]
            table.add_row(label, escape(model), *map(format_cell, cells))
            label = ""
            controls = [summary.find(model, split + CONTROL, steps) for split in summary.splits]
            if any(controls):
                table.add_row("", "  shuffled", *map(_format_mean, controls), style="dim")
        known = [STUDY_RECALL.get(split, {}).get(steps or 0) for split in summary.splits]
        if published and any(value is not None for value in known):
            texts = ("" if value is None else f"{value:.1f}" for value in known)
            table.add_row("", "the study's", *texts, style="dim italic")
        table.add_section()
    console.print(table)
    if told := tell_uncontrolled(summary):
        console.print(told, style="dim", markup=False)


def tell_uncontrolled(summary: Summary) -> str:
    """A sentence about the prompts without a control; nothing where all have one."""
    found = summary.count_uncontrolled()
    if not found:
        return ""
    counts = ", ".join(f"{count} of {name_split(split)}" for split, count in found.items())
    return (
        "The shuffling left some prompts an answer of their own fact, which is no control: "
        f"{counts}."
    )


def show_metrics(console: Console, summary: Summary) -> None:
    """Every other metric, at the highest step count."""
    steps = summary.steps[-1]
    at = "" if steps is None else f" at {steps} steps"
    table = Table("metric", "model", *map(name_split, summary.splits), title=f"other metrics{at}")
    for metric, label in LABELS.items():
        for model in summary.models:
            cells = [summary.find(model, split, steps, metric) for split in summary.splits]
            if any(cell is not None for cell in cells):
                table.add_row(label, escape(model), *map(format_cell, cells))
                label = ""
        table.add_section()
    console.print(table)
    console.print(f"BLEU: {summary.bleu}", style="dim", markup=False)


def show_pairs(console: Console, summary: Summary) -> None:
    """Differences between models, paired by fact, at the highest step count."""
    steps = summary.steps[-1]
    shown = [pair for pair in summary.pairs if pair.steps in (steps, None)]
    if not shown:
        return
    table = Table("difference", *map(name_split, summary.splits), title="points, paired by fact")
    for one, other in dict.fromkeys((pair.one, pair.other) for pair in shown):
        found = {pair.split: pair for pair in shown if (pair.one, pair.other) == (one, other)}
        cells = [_format_difference(found.get(split)) for split in summary.splits]
        table.add_row(escape(f"{one} − {other}"), *cells)
    console.print(table)


def format_cell(cell: Cell | None) -> str:
    """A mean with its interval, in percent where it is a share."""
    if cell is None:
        return ""
    scale, value = (100 if cell.metric in PERCENT else 1), cell.value
    low, high = (f"{scale * x:.{0 if scale == 100 else 1}f}" for x in (value.low, value.high))
    return escape(f"{scale * value.mean:.1f} [{low}, {high}]")


def _format_mean(cell: Cell | None) -> str:
    return "" if cell is None else f"{100 * cell.value.mean:.1f}"


def _format_difference(pair: Pair | None) -> str:
    if pair is None:
        return ""
    mean, low, high = (
        100 * x for x in (pair.difference.mean, pair.difference.low, pair.difference.high)
    )
    return escape(f"{mean:+.1f} [{low:+.0f}, {high:+.0f}]")


def name_split(split: str) -> str:
    return split.replace("_", " ")
