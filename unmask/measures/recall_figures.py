"""Recall drawn: every way of asking on one scale, and curves over the steps."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from unmask.blocks import labels, tidy
from unmask.blocks.blocks import Figure
from unmask.measures.measure import Rows
from unmask.measures.recall_summary import CONTROL, FILE_CONTROL, name_base, widen

if TYPE_CHECKING:
    from unmask.measures.result import Result

MOST_DRAWN = 4
"""Models whose controls are drawn as well; of more, the table alone has them."""
PUBLISHED_SOURCE = (
    "Rai 2025, How is bidirectional information retrieved and generated in masked diffusion "
    "language models?, Table 3: SMDM-1028M fine-tuned on Berglund's set, guidance 0.8, context 52"
)
PUBLISHED: dict[str, dict[int, float]] = {
    "d2p_same": {1: 91.3, 2: 97.0, 4: 96.3, 8: 97.3, 16: 98.0, 32: 97.7},
    "d2p_reverse": {1: 0.0, 2: 0.7, 4: 17.0, 8: 27.3, 16: 31.0, 32: 29.7},
    "p2d_same": {1: 0.0, 2: 2.3, 4: 25.0, 8: 37.7, 16: 42.0, 32: 43.0},
    "p2d_reverse": {1: 40.3, 2: 79.0, 4: 87.7, 8: 87.3, 16: 88.3, 32: 90.0},
}
"""Per cent by the study's rule, by split and steps."""


def list_cells(result: "Result", rows: Rows, splits: Sequence[str]) -> list[dict[str, Any]]:
    """Recall of models, of their controls, and published numbers; the most steps come first."""
    colours = labels.colour_models(dict(tidy.distinct(rows, "model", "kind")))
    endings = {FILE_CONTROL: ", Berglund's shuffled file", CONTROL: ", shuffled", "": ""}
    cells: list[dict[str, Any]] = []
    for row in map(widen, rows):
        split = name_base(row["split"])
        ending = row["split"].removeprefix(split)
        shown = {"name": row["model"] + endings[ending], "colour": colours[row["model"]]}
        shown |= {"role": "control" if ending else "plain", "is_file": ending == FILE_CONTROL}
        cells.append(row | {"split": split} | shown)
    counts = {row["steps"] for row in rows} - {None}
    by_study = {cell["split"] for cell in cells if cell["metric"] == "hit"}
    sources = [record.inputs.get("data", "") for record in result.records]
    is_berglund = all(source.startswith("reversal-curse files") for source in sources)
    for split in by_study.intersection(PUBLISHED) if is_berglund else ():
        for steps in counts.intersection(PUBLISHED[split]):
            value = {"mean": PUBLISHED[split][steps] / 100, "low": math.nan, "high": math.nan}
            shown = {"name": "published", "role": "published", "colour": "control"}
            cells.append({"split": split, "steps": steps} | value | shown)
    names, most = tidy.distinct(cells, "name"), max(counts, default=0)
    cells.sort(key=lambda cell: (-(cell["steps"] or most), names.index(cell["name"])))
    return [cell | {"is_last": cell["steps"] in (None, most)} for cell in cells]


def draw_ways(last: Rows, splits: Sequence[str]) -> Figure:
    """Recall of each model at the most steps, every way of asking on one scale."""
    shown = [cell for cell in last if cell["role"] == "plain"]
    rows = [{**cell, **{end: 100 * cell[end] for end in tidy.ENDS}} for cell in shown]
    rows.sort(key=lambda cell: splits.index(cell["split"]))
    steps = max((cell["steps"] or 0 for cell in rows), default=0)
    after = f" in {labels.count(steps, 'step')}" if steps else ""
    return tidy.draw_dots(
        rows,
        "ways",
        "Answers recalled, each way of asking",
        f"Shares of prompts answered{after}, with 95 % intervals: descriptions by content where it "
        "was judged, names contained. Reversed: training showed the other way round only.",
        label=tidy.name_asked,
        group="name",
        colour="colour",
        note=lambda cell: labels.count(cell["facts"], "fact"),
        panel=lambda cell: "",
        xlabel="recalled, %",
        limits=(0, 100),
    )


def draw_curves(cells: Rows, splits: Sequence[str]) -> Figure:
    """Recall against steps, a panel for each way of asking."""
    counts = sorted({cell["steps"] for cell in cells} - {None}) or [1]
    drawn = {cell["name"] for cell in cells if cell["role"] == "plain"}
    points = []
    for cell in sorted(cells, key=lambda cell: splits.index(cell["split"])):
        if cell["role"] == "control" and (len(drawn) > MOST_DRAWN or cell["is_file"]):
            continue
        band = {} if cell["role"] == "plain" else {"low": cell["mean"], "high": cell["mean"]}
        # A causal model is the same at every step count.
        steps = counts if cell["steps"] is None else [cell["steps"]]
        points += [{**cell, **band, "steps": at} for at in steps]
    return tidy.draw_lines(
        points,
        "recall",
        "Recall against denoising steps",
        "Bands are 95 % intervals. Dotted: the same texts held against other facts' answers "
        "(control). Dashed grey: another model, published. An autoregressive model has no steps.",
        x="steps",
        line="name",
        colour="colour",
        dash=lambda cell: {"control": "dot", "published": "dash"}.get(cell["role"], "solid"),
        scale=100,
        panel=lambda cell: labels.name_split(cell["split"]),
        xlabel="denoising steps",
        ylabel="recalled, %",
        is_log2=True,
        limits=(-4, 104),
    )
