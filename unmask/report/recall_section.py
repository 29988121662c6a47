"""Recall on the page: the table beside the published one, curves, controls, the two sums."""

from collections.abc import Callable, Sequence

from unmask.evaluation.groups import estimate_groups
from unmask.evaluation.questions import CONTROL
from unmask.evaluation.summary import Cell, Summary
from unmask.report.artefacts import FACTORIZATION, StudyFolder
from unmask.report.blocks import Block, Figure, Grid, Section, Words, format_interval, make_blocks
from unmask.report.published import STUDY_RECALL, STUDY_SOURCE
from unmask.report.recall_table import tell_uncontrolled

ASKED = {
    "d2p_same": "description given, as trained",
    "d2p_reverse": "name given, in reverse",
    "p2d_same": "name given, as trained",
    "p2d_reverse": "description given, in reverse",
    "own": "one's own facts",
}
"""Splits in words: what is given, and whether training showed the fact that way."""


def name_asked(split: str) -> str:
    return ASKED.get(split, split.replace("_", " "))


def tell_asked(split: str) -> str:
    """The beginning of a sentence about a split."""
    return "On one's own facts" if split == "own" else f"With the {name_asked(split)}"


def tell_recall(run: StudyFolder, prefix: str = "") -> Section:
    """The section of recall."""
    summary = run.summary
    makers: list[Callable[[], Block]] = [
        lambda: _tell_how(summary),
        lambda: draw_recall_curves(summary, f"{prefix}recall"),
        lambda: _tabulate(summary),
    ]
    if set(summary.splits) & set(STUDY_RECALL):
        source = Words(f"In italics, for orientation: {STUDY_SOURCE}. Another model, other data.")
        makers.append(lambda: source)
    if summary.pairs:
        makers.append(lambda: compare_summary(summary))
    makers.append(lambda: _tabulate_sums(run))
    blocks = make_blocks(makers, run.advice)
    return Section(f"{prefix}recall-section", "What is recalled", blocks)


def _tell_how(summary: Summary) -> Words:
    """How much was asked, and how it was judged."""
    asked = {cell.split: cell for cell in summary.cells}
    counts = dict.fromkeys(
        f"{cell.prompts} prompts about {cell.facts} facts"
        for split, cell in asked.items()
        if not split.endswith(CONTROL)
    )
    # The words of one's own facts may be those that were trained on.
    fresh = "" if "own" in asked else ", in words that training never showed"
    return Words(
        f"Each split asks {' or '.join(counts)}{fresh}. A hit is an answer that contains the true "
        "one. Brackets are 95 % intervals, drawn again by fact. Steps are denoising steps; an "
        "autoregressive model has none and is measured once."
    )


def draw_recall_curves(summary: Summary, name: str) -> Figure:
    """Recall against steps, a panel a split."""
    steps = [count for count in summary.steps if count is not None] or [1]
    panels = []
    for split in summary.splits:
        lines = []
        for i, model in enumerate(summary.models):
            for suffix in ("", CONTROL):
                cells = [summary.find(model, split + suffix, count) for count in steps]
                found = [cell for cell in cells if cell is not None]
                if len(found) < len(steps):
                    continue
                lines.append(
                    {
                        "name": f"{model}, shuffled answers" if suffix else model,
                        "colour": _choose_colour(found[0].kind, i),
                        "dash": "dot" if suffix else "solid",
                        "x": steps,
                        "y": [100 * cell.value.mean for cell in found],
                        "low": None if suffix else [100 * cell.value.low for cell in found],
                        "high": None if suffix else [100 * cell.value.high for cell in found],
                    }
                )
        if split in STUDY_RECALL:
            known = {at: value for at, value in STUDY_RECALL[split].items() if at in steps}
            lines.append(
                {
                    "name": "published study",
                    "colour": "control",
                    "dash": "dash",
                    "x": list(known),
                    "y": list(known.values()),
                    "low": None,
                    "high": None,
                }
            )
        panels.append({"title": name_asked(split), "lines": lines})
    best = [
        f"{model} {_percent(summary.find(model, split, steps[-1]))} on {name_asked(split)}"
        for split in summary.splits
        for model in summary.models
    ]
    return Figure(
        name=name,
        title="Recall against denoising steps",
        alt="Line charts of recall in percent against denoising steps, one for each way of asking. "
        f"At {steps[-1]} steps: {'; '.join(best)}.",
        caption="Bands are 95 % intervals by fact. Dotted: the same texts held against other "
        f"facts' answers. Dashed grey: the published study. {tell_uncontrolled(summary)}".strip(),
        chart="lines",
        data={
            "panels": panels,
            "xlabel": "denoising steps",
            "ylabel": "recalled, %",
            "log2": True,
            "range": [-4, 104],
        },
    )


def _choose_colour(kind: str, number: int) -> str:
    own = {"masked": "diffusion", "causal": "causal"}
    return own.get(kind, f"p{number}") if number < 2 else f"p{number}"


def _percent(cell: Cell | None) -> str:
    return "–" if cell is None else f"{100 * cell.value.mean:.0f} %"


def _tabulate(summary: Summary) -> Grid:
    rows = []
    for steps in summary.steps:
        label = "–" if steps is None else str(steps)
        for model in summary.models:
            cells = [summary.find(model, split, steps) for split in summary.splits]
            rows.append([label, model, *map(_format, cells)])
            label = ""
        known = [STUDY_RECALL.get(split, {}).get(steps or 0) for split in summary.splits]
        if any(value is not None for value in known):
            texts = ["" if value is None else f"{value:.1f}" for value in known]
            rows.append(["", "published", *texts])
    return Grid(
        "Recalled, % [95 % interval]", ["steps", "model", *map(name_asked, summary.splits)], rows
    )


def _format(cell: Cell | None) -> str:
    if cell is None:
        return "–"
    value = cell.value
    return format_interval(value.mean, value.low, value.high, 100, 0)


def compare_summary(summary: Summary) -> Grid:
    """Differences between models at the most steps."""
    steps = summary.steps[-1]
    rows = []
    for pair in summary.pairs:
        if pair.steps in (steps, None):
            value = pair.difference
            told = format_interval(value.mean, value.low, value.high, 100, 0)
            rows.append([f"{pair.one} − {pair.other}", name_asked(pair.split), told])
    at = "" if steps is None else f" at {steps} steps"
    return Grid(f"Differences in points{at}, paired by fact", ["models", "asked", "points"], rows)


def _tabulate_sums(run: StudyFolder) -> Grid:
    labels = {
        "joint_forward": "log p(A) + log p(B|A)",
        "joint_backward": "log p(B) + log p(A|B)",
        "gap": "their distance",
    }
    groups = estimate_groups(run.rows(FACTORIZATION), ("model", "split"), list(labels))
    rows = []
    for group in groups:
        means: Sequence = [group.means[name] for name in labels]
        told = [format_interval(each.mean, each.low, each.high, digits=2) for each in means]
        rows.append([group.key["model"], name_asked(group.key["split"]), *told])
    return Grid(
        "A sentence's probability in two orders, nats a token (equal for a consistent model)",
        ["model", "asked", *labels.values()],
        rows,
    )
