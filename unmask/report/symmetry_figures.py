"""Pictures of symmetry: the map of concepts, spectra, retrieval by layer, null distributions."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unmask.report.style import CAUSAL, CONTROL, DIFFUSION, PALETTE, new_figure, save_figure
from unmask.report.symmetry_table import LABELS
from unmask.representation.measures import find_singular_values, project_map
from unmask.representation.symmetry import ASKED, COMPARISONS, Line, Vectors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = tuple(each for each in COMPARISONS if each.name.endswith(ASKED))
"""The comparisons that the study asks about."""
_KEY, _VALUE = PALETTE[0], PALETTE[4]


def draw_map(vectors: Mapping[str, Vectors], path: Path) -> None:
    """Keys and values on the plane of their first two principal components, pairs joined."""
    titles = list(vectors)
    with new_figure(3.4 * len(SHOWN), 3.1 * len(titles), len(titles), len(SHOWN)) as (figure, axes):
        for row, title in zip(axes, titles, strict=True):
            for panel, comparison in zip(row, SHOWN, strict=True):
                sides = vectors[title].sides
                (keys, values), shares = project_map(
                    sides[comparison.left], sides[comparison.right]
                )
                for key, value in zip(keys, values, strict=True):
                    panel.plot(*zip(key, value, strict=True), color=CONTROL, lw=0.5, zorder=1)
                panel.scatter(*keys.T, s=12, color=_KEY, label="key, mapped", zorder=2)
                panel.scatter(*values.T, s=12, color=_VALUE, marker="^", label="value", zorder=2)
                panel.set_title(f"{title}\n{comparison.name}", fontsize=8)
                panel.set_xlabel(f"component 1 ({shares[0]:.0%})")
                panel.set_ylabel(f"component 2 ({shares[1]:.0%})")
        axes[0, 0].legend()
        save_figure(figure, path)


def draw_spectrum(vectors: Mapping[str, Vectors], path: Path) -> None:
    """How much of each set's variance lies along its own directions."""
    titles = list(vectors)
    with new_figure(3.4 * len(titles), 2.8, 1, len(titles)) as (figure, axes):
        for panel, title in zip(axes[0], titles, strict=True):
            sides = vectors[title].sides
            for i, (name, way) in enumerate((n, w) for n in ("k_star", "v_star") for w in _WAYS):
                shares = find_singular_values(sides[name, way])
                label = f"{_NAMES[name]}, {way}"
                panel.plot(
                    1 + np.arange(len(shares)), shares, "o-", ms=2, color=PALETTE[i], label=label
                )
            panel.set_title(title, fontsize=8)
            panel.set_xlabel("direction")
        axes[0, 0].set_ylabel("share of variance")
        axes[0, 0].legend()
        save_figure(figure, path)


_WAYS = ("p2d", "d2p")
_NAMES = {"k_star": "keys", "v_star": "values"}


def draw_retrieval(lines: Sequence[Line], path: Path) -> None:
    """Mean reciprocal rank of a value's own key, layer by layer, with its null."""
    groups = list(dict.fromkeys(line.group for line in lines))
    columns = [(group, each.name) for group in groups for each in SHOWN]
    with new_figure(2.9 * len(columns), 2.8, 1, len(columns)) as (figure, axes):
        for panel, (group, comparison) in zip(axes[0], columns, strict=True):
            wanted = (group, comparison, "retrieval")
            for model, colour in choose_colours(lines).items():
                found = [
                    line
                    for line in lines
                    if line.model == model and (line.group, line.comparison, line.measure) == wanted
                ]
                _draw_layers(panel, model, sorted(found, key=lambda line: line.layer), colour)
            panel.set_title(f"facts trained {group}\n{comparison}", fontsize=8)
            panel.set_xlabel("layer")
            _count_layers(panel)
        axes[0, 0].set_ylabel("mean reciprocal rank")
        _add_legend(figure, axes[0, 0])
        save_figure(figure, path)


def _draw_layers(panel: "Axes", model: str, found: Sequence[Line], colour: str) -> None:
    if not found:
        return
    layers = [line.layer for line in found]
    values = [line.found.value for line in found]
    means = np.array([value.mean for value in values])
    ends = [means - [value.low for value in values], [value.high for value in values] - means]
    panel.errorbar(layers, means, np.maximum(ends, 0), color=colour, capsize=2, lw=0.8, fmt="none")
    panel.plot(layers, means, "o-", ms=3, color=colour, label=model)
    null = [line.found for line in found]
    panel.plot(
        layers, [each.null_mean for each in null], ":", color=colour, label=f"{model}, shuffled"
    )
    low, high = [each.null_low for each in null], [each.null_high for each in null]
    panel.fill_between(layers, low, high, color=colour, alpha=0.12, lw=0)


def draw_nulls(lines: Sequence[Line], path: Path) -> None:
    """What every measure gives for shuffled pairs, and for the true ones: one layer a model."""
    measures = list(dict.fromkeys(line.measure for line in lines))
    titles = [each.name for each in SHOWN]
    chosen = _choose_layer(lines)
    columns = [
        (group, title) for group in dict.fromkeys(line.group for line in lines) for title in titles
    ]
    shape = (len(measures), len(columns))
    with new_figure(2.5 * shape[1], 1.5 * shape[0], *shape) as (figure, axes):
        colours = choose_colours(lines)
        for i, measure in enumerate(measures):
            for j, (group, title) in enumerate(columns):
                panel = axes[i, j]
                for line in chosen:
                    if (line.group, line.comparison, line.measure) != (group, title, measure):
                        continue
                    if not line.found.is_measured:
                        continue
                    colour = colours[line.model]
                    panel.hist(line.found.null, 30, color=colour, alpha=0.35, density=True)
                    panel.axvline(line.found.value.mean, color=colour, label=line.model)
                panel.set_yticks([])
                panel.set_xlabel(LABELS[measure], fontsize=7)
                if i == 0:
                    panel.set_title(f"facts trained {group}\n{title}", fontsize=8)
        axes[0, 0].legend(fontsize=6)
        save_figure(figure, path)


def draw_lens(rows: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """log p of the object's hidden tokens behind each layer, one line a moment of denoising.

    Facts asked as trained stand above those asked in reverse.
    """
    columns = [(model, way) for model in rows for way in _WAYS]
    kinds = [
        trained
        for trained in _TRAINED
        if any(row["trained"] == trained for found in rows.values() for row in found)
    ]
    shape = (len(kinds), len(columns))
    with new_figure(2.9 * shape[1], 2.8 * shape[0], *shape) as (figure, axes):
        for line, trained in zip(axes, kinds, strict=True):
            for panel, (model, way) in zip(line, columns, strict=True):
                wanted = (way, trained)
                mine = [row for row in rows[model] if (row["direction"], row["trained"]) == wanted]
                if not mine:  # facts of one group are trained in one direction
                    panel.set_axis_off()
                    continue
                _draw_moments(panel, mine)
                panel.set_title(f"{model}, {way}, {_TRAINED[trained]}", fontsize=8)
            line[0].set_ylabel("log p of hidden object tokens, nats")
        # A causal model has one moment, a masked one several.
        _add_legend(figure, *axes.flat)
        save_figure(figure, path)


_TRAINED = {"same": "as trained", "reverse": "in reverse"}


def _draw_moments(panel: "Axes", rows: Sequence[Mapping[str, Any]]) -> None:
    """Means over the facts by layer, a line for each step."""
    found: dict[int, dict[int, list[float]]] = {}
    for row in rows:
        found.setdefault(row["step"], {}).setdefault(row["layer"], []).append(row["logp"])
    for i, (step, layers) in enumerate(sorted(found.items())):
        means = [float(np.mean(values)) for values in layers.values()]
        panel.plot(list(layers), means, "o-", ms=3, color=PALETTE[i % 8], label=f"step {step}")
    panel.set_xlabel("layer")
    _count_layers(panel)


def draw_probes(rows: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Accuracy of the probes on phrasings held out, within and across directions."""
    columns = [(model, group) for model in rows for group in _list_groups(rows[model])]
    with new_figure(2.9 * len(columns), 2.8, 1, len(columns)) as (figure, axes):
        for panel, (model, group) in zip(axes[0], columns, strict=True):
            mine = [row for row in rows[model] if row["group"] == group]
            pairs = dict.fromkeys((row["fitted"], row["tested"]) for row in mine)
            for i, (fitted, tested) in enumerate(pairs):
                found = [row for row in mine if (row["fitted"], row["tested"]) == (fitted, tested)]
                layers = [row["layer"] for row in found]
                means = [row["accuracy"] for row in found]
                label = f"fitted {fitted}, tested {tested}"
                panel.plot(layers, means, "o-", ms=3, color=PALETTE[i], label=label)
                ends = [[row[end] for row in found] for end in ("low", "high")]
                panel.fill_between(layers, *ends, color=PALETTE[i], alpha=0.12, lw=0)
            panel.axhline(1 / mine[0]["facts"], color=CONTROL, ls=":", lw=1)
            panel.set_title(f"{model}\nfacts trained {group}", fontsize=8)
            panel.set_xlabel("layer")
            _count_layers(panel)
        axes[0, 0].set_ylabel("accuracy, held-out phrasings")
        _add_legend(figure, axes[0, 0])
        save_figure(figure, path)


def choose_colours(lines: Sequence[Line]) -> dict[str, str]:
    """The palette's own colours for the first diffusion and the first causal model."""
    others = iter(PALETTE[2:] * 4)
    colours: dict[str, str] = {}
    for model, kind in dict.fromkeys((line.model, line.kind) for line in lines):
        own = CAUSAL if kind == "causal" else DIFFUSION
        colours[model] = next(others) if own in colours.values() else own
    return colours


def _choose_layer(lines: Sequence[Line]) -> list[Line]:
    """The lines of each model's middle layer among those looked into."""
    layers: dict[str, list[int]] = {}
    for line in lines:
        layers.setdefault(line.model, []).append(line.layer)
    middle = {model: sorted(set(found))[len(set(found)) // 2] for model, found in layers.items()}
    return [line for line in lines if line.layer == middle[line.model]]


def _add_legend(figure: "Figure", *panels: "Axes") -> None:
    """Below all panels, the given ones' lines that have a name."""
    lines = {str(line.get_label()): line for panel in panels for line in panel.get_lines()}
    named = {label: line for label, line in lines.items() if not label.startswith("_")}
    figure.legend(named.values(), named, loc="outside lower center", ncols=4)


def _count_layers(panel: "Axes") -> None:
    from matplotlib.ticker import MaxNLocator

    panel.xaxis.set_major_locator(MaxNLocator(integer=True))


def _list_groups(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["group"] for row in rows))
