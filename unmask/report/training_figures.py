"""The course of a training run as figures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unmask.report.style import PALETTE, new_figure, save_figure


def draw_training(records: Sequence[dict[str, Any]], path: str | Path, title: str) -> None:
    """Draw loss, and recall where it was asked, over the steps; `path` is without an ending."""
    losses = [record for record in records if "loss" in record]
    asked = [record for record in records if any(key.startswith("recall/") for key in record)]
    columns = 2 if asked else 1
    with new_figure(4.2 * columns, 3.0, columns=columns) as (figure, axes):
        left = axes[0, 0]
        left.plot([r["step"] for r in losses], [r["loss"] for r in losses], color=PALETTE[0])
        left.set(xlabel="step", ylabel="loss, nats", title=title)
        if losses and min(r["loss"] for r in losses) > 0:
            left.set_yscale("log")
        if asked:
            right = axes[0, 1]
            names = sorted({key for r in asked for key in r if key.startswith("recall/")})
            for name, color in zip(names, PALETTE, strict=False):
                points = [(r["step"], 100 * r[name]) for r in asked if name in r]
                label = name.removeprefix("recall/").replace("_", " ")
                right.plot(*zip(*points, strict=True), color=color, marker=".", label=label)
            right.set(xlabel="step", ylabel="recalled, %", ylim=(-3, 103))
            right.legend()
        save_figure(figure, path)
