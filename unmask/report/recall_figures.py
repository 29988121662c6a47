"""Recall against sampling steps, one panel a split."""

from pathlib import Path
from typing import TYPE_CHECKING

from unmask.evaluation.questions import CONTROL
from unmask.evaluation.summary import Cell, Summary
from unmask.report.published import STUDY_RECALL
from unmask.report.recall_table import name_split
from unmask.report.style import CAUSAL, DIFFUSION, PALETTE, new_figure, save_figure
from unmask.report.style import CONTROL as CONTROL_COLOUR

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_OTHERS = PALETTE[2:]


def draw_recall(summary: Summary, path: str | Path, published: bool) -> None:
    """Write the figure as PNG and PDF: every model with its interval; causal ones are level."""
    splits = summary.splits
    with new_figure(2.6 * len(splits), 2.7, columns=len(splits)) as (figure, axes):
        for panel, split in zip(axes[0], splits, strict=True):
            _draw_split(panel, summary, split, published)
        axes[0, 0].set_ylabel("contained match, %")
        # A split may lack what another has, such as controls.
        lines = {line.get_label(): line for panel in axes[0] for line in panel.get_lines()}
        figure.legend(lines.values(), lines, loc="outside lower center", ncols=5)
        save_figure(figure, path)


def _draw_split(panel: "Axes", summary: Summary, split: str, published: bool) -> None:
    colours = _choose_colours(summary)
    steps = [count for count in summary.steps if count is not None] or [1]
    for model, colour in colours.items():
        cells = [cell for count in steps if (cell := summary.find(model, split, count))]
        panel.plot(steps, _percent(cells, "mean"), "o-", ms=3, color=colour, label=model)
        panel.fill_between(
            steps, _percent(cells, "low"), _percent(cells, "high"), color=colour, alpha=0.15, lw=0
        )
        found = [summary.find(model, split + CONTROL, count) for count in steps]
        controls = [cell for cell in found if cell is not None]
        if len(controls) == len(steps):
            values = _percent(controls, "mean")
            panel.plot(steps, values, ":", color=colour, lw=1, label=f"{model}, shuffled answers")
    if published and split in STUDY_RECALL:
        known = STUDY_RECALL[split]
        panel.plot(
            list(known), list(known.values()), "--", color=CONTROL_COLOUR, lw=1, label="the study's"
        )
    panel.set_xscale("log", base=2)
    panel.set_xticks(steps, [str(count) for count in steps])
    panel.minorticks_off()
    panel.set_ylim(-3, 103)
    panel.set_xlabel("sampling steps")
    panel.set_title(name_split(split))


def _choose_colours(summary: Summary) -> dict[str, str]:
    """The palette's own colours for the first diffusion and the first causal model."""
    kinds = {cell.model: cell.kind for cell in summary.cells}
    colours, others = {}, iter(_OTHERS * (1 + len(kinds) // len(_OTHERS)))
    for model, kind in kinds.items():
        own = CAUSAL if kind == "causal" else DIFFUSION
        colours[model] = next(others) if own in colours.values() else own
    return colours


def _percent(cells: list[Cell], part: str) -> list[float]:
    return [100 * getattr(cell.value, part) for cell in cells]
