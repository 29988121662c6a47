"""Recall as a page of Markdown, with the command that wrote it."""

import shutil
from pathlib import Path

from unmask.base.files import replace_file
from unmask.evaluation.questions import CONTROL
from unmask.evaluation.summary import Cell, Interval, Summary
from unmask.report.markdown import format_table
from unmask.report.published import STUDY_RECALL, STUDY_SOURCE
from unmask.report.recall_table import LABELS, PERCENT, name_split, tell_uncontrolled


def write_recall_page(
    path: Path, summary: Summary, command: str, setting: str, figure: Path, published: bool
) -> None:
    """Write the page, and the figure's PNG beside it."""
    picture = path.with_suffix(".png")
    with replace_file(picture) as draft:
        shutil.copyfile(f"{figure}.png", draft)
    parts = [
        "# Recall against sampling steps",
        f"`{command}`\n{setting}.",
        _describe(summary),
        f"![Recall against sampling steps]({picture.name})",
        "## Contained match, %",
        _hits(summary, published),
    ]
    if published:
        parts += [
            f"*The study's*: {STUDY_SOURCE}.",
            "## Best cells beside the study's",
            _best(summary),
        ]
    if summary.pairs:
        parts += ["## Differences between models, points, paired by fact", _pairs(summary)]
    steps = summary.steps[-1]
    at = "" if steps is None else f", at {steps} steps"
    parts += [f"## Other metrics{at}", _metrics(summary), _MEANINGS, f"BLEU: `{summary.bleu}`."]
    with replace_file(path) as draft:
        draft.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _describe(summary: Summary) -> str:
    sizes = {cell.model: cell for cell in summary.cells}
    models = ", ".join(
        f"{cell.model} ({cell.kind}, {cell.seeds} training seed{'s' * (cell.seeds > 1)})"
        for cell in sizes.values()
    )
    first = summary.cells[0]
    return (
        f"Models: {models}. {first.prompts} prompts of {first.facts} facts a split. Brackets: 95 % "
        "intervals by fact, and by training seed where there are several; where all "
        "prompts hit or all miss, Clopper and Pearson's with facts as trials; a difference that is "
        "the same for every fact reaches as far as their bound lets other facts move it. Causal "
        "models have neither steps nor guidance: they are measured once and shown in every row. "
        "*shuffled*: the same texts held against other facts' answers."
        f"{_tell_left_out(summary)}"
    )


def _tell_left_out(summary: Summary) -> str:
    told = tell_uncontrolled(summary)
    return f" {told} They are left out of all that is told about shuffled answers." if told else ""


_MEANINGS = (
    "*strict match*: the text is the true answer and nothing else; a model whose training texts go "
    "on behind the answer goes on as well, and hardly ever matches strictly. *log p*: of the true "
    "answer by the chain rule from left to right, without guidance. *rank*: "
    "of the true answer among the answers of all facts of the split in the prompt's phrasing, by "
    "log p for causal models and by the mean field (all of the answer masked) for masked ones. "
    "*likelier than shuffled*: by log p, for the same prompt, where it has a control."
)


def _hits(summary: Summary, published: bool) -> str:
    rows = []
    for steps in summary.steps:
        label = "–" if steps is None else str(steps)
        for model in summary.models:
            cells = [summary.find(model, split, steps) for split in summary.splits]
            rows.append([label, model, *map(_format, cells)])
            controls = [summary.find(model, split + CONTROL, steps) for split in summary.splits]
            if any(controls):
                rows.append(["", f"{model}, *shuffled*", *map(_format_mean, controls)])
            label = ""
        if published and steps is not None:
            known = [STUDY_RECALL.get(split, {}).get(steps) for split in summary.splits]
            texts = ["" if value is None else f"*{value:.1f}*" for value in known]
            rows.append(["", "*the study's*", *texts])
    return format_table(["steps", "model", *map(name_split, summary.splits)], rows)


def _best(summary: Summary) -> str:
    """Each diffusion model's best step count on each split against the study's best."""
    rows = []
    causal = {cell.model for cell in summary.cells if cell.kind == "causal"}
    for model in (model for model in summary.models if model not in causal):
        cells: list[str] = []
        for split in summary.splits:
            found = [cell for steps in summary.steps if (cell := summary.find(model, split, steps))]
            best = max(found, key=lambda cell: cell.value.mean)
            at = "" if best.steps is None else f" at {best.steps}"
            text = f"{_format(best)}{at}"
            if split in STUDY_RECALL:
                goal = max(STUDY_RECALL[split].values())
                gap = 100 * best.value.mean - goal
                verdict = "reached" if gap >= 0 else f"short by {-gap:.1f}"
                text += f" – {goal:.1f}: {verdict}"
            cells.append(text)
        rows.append([model, *cells])
    header = [f"{name_split(split)}: ours, steps – the study's" for split in summary.splits]
    return format_table(["model", *header], rows)


def _pairs(summary: Summary) -> str:
    rows = []
    for steps in summary.steps:
        found = [pair for pair in summary.pairs if pair.steps == steps]
        for one, other in dict.fromkeys((pair.one, pair.other) for pair in found):
            by_split = {
                pair.split: pair.difference
                for pair in found
                if (pair.one, pair.other) == (one, other)
            }
            cells = [_format_interval(by_split[split], 100, "+") for split in summary.splits]
            rows.append(["–" if steps is None else str(steps), f"{one} − {other}", *cells])
    return format_table(["steps", "difference", *map(name_split, summary.splits)], rows)


def _metrics(summary: Summary) -> str:
    rows = []
    for metric, label in LABELS.items():
        for model in summary.models:
            found = [
                summary.find(model, split, summary.steps[-1], metric) for split in summary.splits
            ]
            if any(found):
                rows.append([label, model, *map(_format, found)])
    return format_table(["metric", "model", *map(name_split, summary.splits)], rows)


def _format(cell: Cell | None) -> str:
    if cell is None:
        return ""
    return _format_interval(cell.value, 100 if cell.metric in PERCENT else 1)


def _format_interval(value: Interval, scale: float, sign: str = "") -> str:
    mean, low, high = (f"{scale * x:{sign}.1f}" for x in (value.mean, value.low, value.high))
    return f"{mean} [{low}, {high}]"


def _format_mean(cell: Cell | None) -> str:
    return "" if cell is None else f"*{100 * cell.value.mean:.1f}*"
