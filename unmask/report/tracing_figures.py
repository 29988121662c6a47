"""Figures of causal traces: heatmaps of one fact, averages over facts, steps, and twins."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unmask.report.style import CONTROL, EFFECTS, PALETTE, new_figure, save_figure
from unmask.tracing.averages import OTHER_TOKEN, TOTAL
from unmask.tracing.grid import TraceGrid
from unmask.tracing.roles import ROLES
from unmask.tracing.table import OTHER_FACT, RESULT

PART_NAMES = {
    "resid": "state",
    "mlp": "MLP output",
    "attn": "attention output",
    "attn_z": "head's output",
    "embed": "embedding",
}
Rows = Sequence[Mapping[str, Any]]
"""Rows of the table of averages."""


def describe_grid(grid: TraceGrid) -> str:
    """What a grid stands between, and how it was made."""
    clean, corrupted = grid.clean_value("p"), float(grid.corrupted_values("p").mean())
    step = "" if grid.step is None else f"step {grid.step}: "
    estimate = ", an estimate" if grid.estimate else ""
    return (
        f"{step}p clean {clean:.4f}, corrupted {corrupted:.4f} "
        f"({grid.corruption}, {grid.joint}, {grid.run}, {grid.mode}{estimate})"
    )


def grid_effects(grid: TraceGrid) -> dict[str, np.ndarray]:
    """Effects [token, layer] by part; of heads the strongest."""
    whole = {part: grid.effects(part).numpy() for part in grid.logp}
    return {part: x if x.ndim == 2 else x.max(-1) for part, x in whole.items()}


def draw_grid(path: str | Path, grid: TraceGrid, words: Sequence[str], title: str) -> None:
    """One fact's heatmaps: tokens by layers, part by part."""
    caption = f"{title}\n{describe_grid(grid)}"
    draw_heatmaps(path, grid_effects(grid), words, grid.subject, caption)


def draw_heatmaps(
    path: str | Path,
    effects: Mapping[str, np.ndarray],
    labels: Sequence[str],
    subject: tuple[int, int],
    caption: str,
) -> None:
    """Effects [token, layer] of each part beside each other, the subject's tokens starred."""
    most = max((float(np.abs(each).max()) for each in effects.values()), default=0.0) or 1.0
    marked = [
        f"{_readable(label)}*" if subject[0] <= i < subject[1] else _readable(label)
        for i, label in enumerate(labels)
    ]
    height = max(2.4, 0.16 * len(labels) + 1.2)
    with new_figure(2.4 + 2.4 * len(effects), height, 1, len(effects)) as (figure, axes):
        for i, (part, values) in enumerate(effects.items()):
            axis = axes[0, i]
            image = axis.imshow(values, cmap=EFFECTS, vmin=-most, vmax=most, aspect="auto")
            axis.set_title(PART_NAMES.get(part, part))
            _name_layers(axis)
            axis.grid(visible=False)
            axis.set_yticks(range(len(labels)), marked if i == 0 else [""] * len(labels))
            axis.tick_params(axis="y", labelsize=7, length=0)
        figure.colorbar(image, ax=list(axes[0]), label="indirect effect", fraction=0.04)
        figure.suptitle(caption, fontsize=9)
        save_figure(figure, path)


def draw_curves(path: str | Path, rows: Rows, group: Mapping[str, str]) -> None:
    """AIE by role over layers with intervals, part by part, the placebos in grey."""
    mine = [row for row in rows if all(row[name] == value for name, value in group.items())]
    parts = _parts(mine)
    with new_figure(1.0 + 3.0 * len(parts), 3.2, 1, len(parts)) as (figure, axes):
        for axis, part in zip(axes[0], parts, strict=True):
            shown = [role for role in ROLES if _line(mine, part, role, RESULT)]
            for i, role in enumerate(shown):
                colour = PALETTE[i % len(PALETTE)]
                # More roles than colours: the second round is dashed.
                style = "-" if i < len(PALETTE) else "--"
                _draw_line(axis, _line(mine, part, role, RESULT), role, colour, style)
            other = _line(mine, part, "placebo", OTHER_TOKEN)
            _draw_line(axis, other, "placebo: other token", CONTROL, ":")
            state = _line(mine, part, "last subject", OTHER_FACT)
            _draw_line(axis, state, "placebo: other's state", CONTROL, "--")
            axis.axhline(0.0, color="black", linewidth=0.6)
            axis.set_title(PART_NAMES.get(part, part))
            _name_layers(axis)
        axes[0, 0].set_ylabel("average indirect effect")
        handles, names = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside right upper", fontsize=7)
        total = next(
            (row for row in mine if row["part"] == TOTAL and row["control"] == RESULT), None
        )
        if total is not None:
            figure.suptitle(
                f"{describe_group(group)}: ATE {total['mean']:.3f} "
                f"[{total['low']:.3f}, {total['high']:.3f}], {total['facts']} facts",
                fontsize=9,
            )
        save_figure(figure, path)


def draw_steps(path: str | Path, rows: Rows, group: Mapping[str, str], role: str) -> None:
    """AIE of a role over steps and layers, part by part."""
    mine = [
        row
        for row in rows
        if row["stage"].isdecimal()
        and row["role"] == role
        and row["control"] == RESULT
        and row["head"] < 0
        and all(row[name] == value for name, value in group.items())
    ]
    parts, steps = _parts(mine), sorted({int(row["stage"]) for row in mine})
    with new_figure(1.0 + 3.0 * len(parts), 3.0, 1, len(parts)) as (figure, axes):
        layers = 1 + max(row["layer"] for row in mine)
        maps = np.full((len(parts), len(steps), layers), np.nan)
        for row in mine:
            place = parts.index(row["part"]), steps.index(int(row["stage"])), row["layer"]
            maps[place] = row["mean"]
        most = float(np.nanmax(np.abs(maps))) or 1.0
        for i, part in enumerate(parts):
            axis = axes[0, i]
            image = axis.imshow(maps[i], cmap=EFFECTS, vmin=-most, vmax=most, aspect="auto")
            axis.set_title(PART_NAMES.get(part, part))
            _name_layers(axis)
            axis.grid(visible=False)
            axis.set_yticks(range(len(steps)), steps if i == 0 else [""] * len(steps))
        axes[0, 0].set_ylabel("denoising step")
        figure.colorbar(image, ax=list(axes[0]), label="average indirect effect", fraction=0.04)
        figure.suptitle(f"{describe_group(group)}: {role}", fontsize=9)
        save_figure(figure, path)


def draw_twins(path: str | Path, rows: Rows, title: str) -> None:
    """AIE of a part by role and layer, each kind of model beside the other, a row a group."""
    mine = [row for row in rows if row["control"] == RESULT and row["head"] < 0]
    kinds = sorted({row["kind"] for row in mine}, reverse=True)
    groups = sorted({(row["direction"], row["trained"]) for row in mine})
    roles = [role for role in ROLES if any(row["role"] == role for row in mine)]
    layers = 1 + max(row["layer"] for row in mine)
    most = max(abs(row["mean"]) for row in mine) or 1.0
    size = (2.2 + 2.6 * len(kinds), 0.8 + 2.2 * len(groups))
    with new_figure(*size, len(groups), len(kinds)) as (figure, axes):
        for i, (direction, trained) in enumerate(groups):
            for j, kind in enumerate(kinds):
                values = np.full((len(roles), layers), np.nan)
                for row in mine:
                    if (row["direction"], row["trained"], row["kind"]) == (
                        direction,
                        trained,
                        kind,
                    ):
                        values[roles.index(row["role"]), row["layer"]] = row["mean"]
                axis = axes[i, j]
                image = axis.imshow(values, cmap=EFFECTS, vmin=-most, vmax=most, aspect="auto")
                if np.isnan(values).all():
                    middle = {"transform": axis.transAxes, "ha": "center", "va": "center"}
                    axis.text(0.5, 0.5, "no fact recalled", fontsize=8, color=CONTROL, **middle)
                axis.set_title(f"{kind} {direction} {trained}")
                axis.grid(visible=False)
                axis.set_yticks(range(len(roles)), roles if j == 0 else [""] * len(roles))
                axis.tick_params(axis="y", labelsize=7, length=0)
                _name_layers(axis)
        figure.colorbar(image, ax=axes.ravel().tolist(), label="AIE", fraction=0.04)
        figure.suptitle(title, fontsize=9)
        save_figure(figure, path)


def describe_group(group: Mapping[str, str]) -> str:
    """A group in words."""
    words = " ".join(group[name] for name in ("kind", "direction", "trained") if name in group)
    step = [name_stage(group["stage"])] if "stage" in group else []
    how = [group["corruption"]] if "corruption" in group else []
    return ", ".join([words, *step, *how])


def name_stage(stage: str) -> str:
    """A step in words."""
    return f"step {stage}" if stage.isdecimal() else f"{stage} step"


def _line(rows: Rows, part: str, role: str, control: str) -> list[Mapping[str, Any]]:
    found = [
        row
        for row in rows
        if (row["part"], row["role"], row["control"]) == (part, role, control) and row["head"] < 0
    ]
    return sorted(found, key=lambda row: row["layer"])


def _draw_line(axis: Any, line: Rows, label: str, colour: str, style: str) -> None:
    if not line:
        return
    layers = [row["layer"] for row in line]
    axis.plot(
        layers, [row["mean"] for row in line], style, color=colour, label=label, linewidth=1.2
    )
    low, high = ([row[end] for row in line] for end in ("low", "high"))
    axis.fill_between(layers, low, high, color=colour, alpha=0.15, linewidth=0)


def _name_layers(axis: Any) -> None:
    axis.set_xlabel("layer")
    axis.xaxis.get_major_locator().set_params(integer=True)


def _parts(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    found = {row["part"] for row in rows if row["head"] < 0}
    return [part for part in PART_NAMES if part in found]


def _readable(token: str) -> str:
    """A token's text with its spaces visible and nothing that a figure would interpret."""
    return token.replace("$", r"\$").replace("\n", "⏎").replace(" ", "·") or "·"
