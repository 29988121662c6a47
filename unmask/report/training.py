"""Training in the terminal and as a figure: what would be trained, and how a run went."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.base.units import format_bytes, format_number
from unmask.blocks.labels import name_split
from unmask.report.style import PALETTE, new_figure, save_figure

if TYPE_CHECKING:
    from rich.console import Console

    from unmask.training.plan import TrainingPlan


def show_plan(console: "Console", plan: "TrainingPlan") -> None:
    """What would be trained: data, parameters, operations and memory."""
    from unmask.report.terminal import describe_shapes, show_pairs  # it needs rich

    flops = plan.flops_per_token
    steps = "as many as the minutes allow" if plan.steps is None else f"{plan.steps:,}"
    rows = {
        "data": f"{plan.label}: {plan.rows:,} rows",
        **describe_shapes(plan.config),
        "steps": f"{steps} of {plan.tokens_per_step:,} tokens",
        "training, per token": f"{format_number(flops)}FLOP",
        "training, per step": f"{format_number(flops * plan.tokens_per_step)}FLOP",
    }
    if plan.steps is not None:
        rows["training, all"] = f"{format_number(flops * plan.tokens_per_step * plan.steps)}FLOP"
    free = "" if plan.free is None else f" of {format_bytes(plan.free)} free"
    rows["memory, about"] = f"{format_bytes(sum(plan.memory.values()))}{free} on {plan.device}"
    parts = (f"{format_bytes(size)} for {what}" for what, size in plan.memory.items())
    rows["of it"] = ", ".join(parts)
    show_pairs(console, "what would be trained", rows)
    if plan.want:
        console.print(plan.want, markup=False)


def draw_training(records: Sequence[dict[str, Any]], path: str | Path, title: str) -> None:
    """Draw loss, and recall where it was asked, over the steps; `path` is without an ending."""
    losses = [record for record in records if "loss" in record]
    measured = [record for record in records if any(key.startswith("recall/") for key in record)]
    columns = 2 if measured else 1
    with new_figure(4.2 * columns, 3.0, columns=columns) as (figure, axes):
        left = axes[0, 0]
        left.plot([r["step"] for r in losses], [r["loss"] for r in losses], color=PALETTE[0])
        left.set(xlabel="step", ylabel="loss, nats", title=title)
        if losses and min(r["loss"] for r in losses) > 0:
            left.set_yscale("log")
        if measured:
            right = axes[0, 1]
            names = sorted({key for r in measured for key in r if key.startswith("recall/")})
            for name, colour in zip(names, PALETTE, strict=False):
                points = [(r["step"], 100 * r[name]) for r in measured if name in r]
                label = name_split(name.removeprefix("recall/"))
                right.plot(*zip(*points, strict=True), color=colour, marker=".", label=label)
            right.set(xlabel="step", ylabel="recalled, %", ylim=(-3, 103))
            right.legend()
        save_figure(figure, path)
