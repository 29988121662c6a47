"""Figures of traces: role by layer, roles at their best layer, and single texts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from textwrap import shorten
from typing import Any

from unmask.blocks.blocks import (
    Chart,
    Control,
    Dot,
    DotPanel,
    Figure,
    MapPanel,
    Panel,
    make_views,
)
from unmask.blocks.labels import (
    CORRUPTIONS,
    METRICS,
    PARTS,
    PLACEBOS,
    ROLES,
    colour_models,
    count,
    is_causal,
    name_split,
    name_stage,
    order_splits,
)
from unmask.blocks.tidy import distinct, to_interval
from unmask.measures.measure import Rows
from unmask.measures.trace_summary import Group, rank_stage
from unmask.tracing.table import RESULT

Choice = dict[str, Any]
"""What is chosen in each control, by its label."""


def draw_roles(groups: Sequence[Group], kinds: Mapping[str, str], metric: str, how: str) -> Figure:
    """Average effect by role and layer, a panel for each model; `how` says how it was traced."""

    def fill(choice: Choice) -> list[Panel]:
        shown = _select(groups, choice)
        return _draw_maps(shown, kinds, choice["restored"]) if shown else []

    is_one = all(group.total["facts"] == 1 for group in groups)
    averaged = "Of one fact each." if is_one else "Averages over facts with 95 % intervals."
    return _make_figure(
        "effects",
        f"{'Effect' if is_one else 'Average effect'} by role and layer",
        "Heatmaps, one for each model: rows are roles of tokens, columns layers. Purple states "
        "give the answer back, orange ones take it away.",
        f"{averaged} {how}",
        "heatmap",
        _list_options(groups),
        fill,
        "layer",
        _name_effect(metric),
        is_signed=True,
    )


def _draw_maps(shown: Mapping[str, Group], kinds: Mapping[str, str], part: str) -> list[Panel]:
    """A panel for each model; one that recalls nothing asked this way has an empty one."""
    cells = {model: _find_cells(group, part) for model, group in shown.items()}
    known = {role for own in cells.values() for role, _ in own}
    roles = [role for role in ROLES if role in known]
    most = 1 + max((layer for own in cells.values() for _, layer in own), default=-1)
    panels: list[Panel] = []
    for model in kinds if roles else ():
        own = cells.get(model, {})
        layers = 1 + max((layer for _, layer in own), default=most - 1)

        def fill(column: str, own=own, layers=layers) -> list[list[float | None]]:
            return [
                [own[role, i][column] if (role, i) in own else None for i in range(layers)]
                for role in roles
            ]

        facts = [
            max((own[at]["facts"] for at in own if at[0] == role), default=0) for role in roles
        ]
        panels.append(
            MapPanel(
                model if own else f"{model}: nothing recalled",
                [str(layer) for layer in range(layers)],
                [ROLES[role] for role in roles],
                fill("mean"),
                fill("low"),
                fill("high"),
                [count(number, "fact") for number in facts],
            )
        )
    return panels


def _find_cells(group: Group, part: str) -> dict[tuple[str, int], Any]:
    """Rows of the averages by role and layer; of heads the strongest."""
    cells: dict[tuple[str, int], Any] = {}
    for (own, layer, _, role, control), row in group.cells.items():
        if own != part or control != RESULT or layer < 0:
            continue
        if (role, layer) not in cells or row["mean"] > cells[role, layer]["mean"]:
            cells[role, layer] = row
    return cells


def draw_peaks(groups: Sequence[Group], kinds: Mapping[str, str], metric: str) -> Figure:
    """Each role's effect at its best layer, a panel for each model, with placebos."""
    colours = colour_models(dict(kinds))

    def fill(choice: Choice) -> list[Panel]:
        shown = _select(groups, choice)
        panels = (
            DotPanel(model, list(_list_dots(group, choice["restored"], colours[model])))
            for model, group in shown.items()
        )
        return [panel for panel in panels if panel.dots]

    return _make_figure(
        "roles",
        "Effect by role, each at its best layer",
        "Dots with intervals, a panel for each model: for every role of a token, the average "
        "indirect effect at the layer where it is highest; placebos below in grey.",
        "The layer is chosen on the same facts, so intervals are narrow for a claim about that "
        "very layer. Placebos stand at the layer of the best subject token.",
        "dots",
        _list_options(groups),
        fill,
        _name_effect(metric),
    )


def _list_dots(group: Group, part: str, colour: str) -> Iterator[Dot]:
    peaks = {row["role"]: row for row in group.peaks() if row["part"] == part}
    for role in (role for role in ROLES if role in peaks):
        yield _make_dot(peaks[role], ROLES[role], group.model, colour)
    subjects = [row for role, row in peaks.items() if role.endswith("subject")]
    if subjects:
        best = max(subjects, key=lambda row: row["mean"])
        for name, row in group.placebos(best).items():
            yield _make_dot(row, PLACEBOS[name], "placebo", "control")


def _make_dot(row: Mapping[str, Any], label: str, group: str, colour: str) -> Dot:
    note = f"layer {name_layer(row)}, {count(row['facts'], 'fact')}"
    return Dot(label, group, colour, to_interval(row), note)


def name_layer(cell: Mapping[str, Any]) -> str:
    """A cell's layer, and its head where it has one."""
    return f"{cell['layer']}" + (f", head {cell['head']}" if cell["head"] >= 0 else "")


def draw_texts(texts: Rows, metric: str) -> Figure:
    """Single texts: tokens by layers, what is restored side by side, a slider over the steps."""
    keys = ("split", "model", "corruption", "fact", "phrasing")
    numbers: dict[tuple[Any, ...], int] = {}
    for split, model, corruption, *fact in distinct(texts, *keys):
        group = (split, model, corruption)
        before = [key for key in numbers if key[:3] == group]
        numbers[*group, *fact] = len(before)
    splits, models = order_splits(distinct(texts, "split")), distinct(texts, "model")
    steps = {at: f"step {at[1]}" for at in sorted(distinct(texts, "corruption", "step"))}
    options = {
        "asked": {split: name_split(split) for split in splits},
        "model": {model: model for model in models},
        "text": {number: f"text {number + 1}" for number in sorted(set(numbers.values()))},
        "step": _name_steps(steps),
    }

    def fill(choice: Choice) -> list[Panel]:
        rows = {
            row["part"]: row
            for row in texts
            if (row["split"], row["model"]) == (choice["asked"], choice["model"])
            and (row["corruption"], row["step"]) == choice["step"]
            and numbers[tuple(row[key] for key in keys)] == choice["text"]
        }
        return [_draw_text(row, is_first=i == 0) for i, row in enumerate(rows.values())]

    return _make_figure(
        "texts",
        "One text, token by token",
        "Heatmaps of single texts: rows are tokens, columns layers, a panel for what is restored. "
        "Purple states bring the answer back, orange ones take it away.",
        "Starred: the subject. → marks the answer, ░ what is still masked at that step. In "
        "the title, the answer and its score, clean → with the subject hidden.",
        "heatmap",
        options,
        fill,
        "layer",
        f"effect, {METRICS.get(metric, metric)}",
        is_signed=True,
    )


def _draw_text(row: Mapping[str, Any], is_first: bool) -> MapPanel:
    # What comes after the first end token is padding.
    size = row["piece"].index("⏎") + 1 if "⏎" in row["piece"] else len(row["piece"])
    effects = row["effects"][:size]
    answer = shorten(row["object"], 24, placeholder="…")
    scores = f"{row['clean']:.3g} → {row['corrupted']:.3g}".replace("-", "−")
    about = f": {answer}, {scores}" if is_first else ""
    return MapPanel(
        PARTS[row["part"]] + about,
        [str(layer) for layer in range(len(effects[0]))],
        [_spell(row, i) for i in range(size)],
        effects,
        notes=[ROLES.get(role, role) for role in row["roles"][:size]],
    )


def _spell(row: Mapping[str, Any], i: int) -> str:
    """A token as it is seen at the step; its position makes it unique."""
    # A causal model is given the answer's earlier tokens.
    is_masked = not is_causal(row["kind"]) and row["written"][i] >= row["step"]
    piece = "░" if is_masked else row["piece"][i].strip() or "·"
    arrow, star = "→ " if row["in_answer"][i] else "", "*" if row["in_subject"][i] else ""
    return f"{row['positions'][i]} {arrow}{piece}{star}"


def _select(groups: Sequence[Group], choice: Choice) -> dict[str, Group]:
    """The chosen group of each model."""
    return {
        group.model: group
        for group in groups
        if (group.split, (group.corruption, group.stage)) == (choice["asked"], choice["step"])
    }


def _list_options(groups: Sequence[Group]) -> dict[str, dict[Any, str]]:
    """What can be chosen, by the label of its control: ids with their names."""
    restored = {cell[0] for group in groups for cell in group.cells if cell[1] >= 0}
    ordered = sorted(groups, key=lambda group: (group.corruption, rank_stage(group.stage)))
    steps = {(group.corruption, group.stage): name_stage(group.stage) for group in ordered}
    return {
        "asked": {split: name_split(split) for split in order_splits([g.split for g in groups])},
        "restored": {part: name for part, name in PARTS.items() if part in restored},
        "step": _name_steps(steps),
    }


def _name_steps(steps: Mapping[tuple[str, Any], str]) -> dict[tuple[str, Any], str]:
    """Steps under each corruption; it is named where there are several."""
    if len({corruption for corruption, _ in steps}) == 1:
        return dict(steps)
    return {at: f"{name}, {CORRUPTIONS.get(at[0], at[0])}" for at, name in steps.items()}


def _make_figure(
    name: str,
    title: str,
    alt: str,
    caption: str,
    chart: Chart,
    options: Mapping[str, Mapping[Any, str]],
    fill: Callable[[Choice], Sequence[Panel]],
    xlabel: str,
    ylabel: str = "",
    is_signed: bool = False,
) -> Figure:
    """A figure with a control for each choice; the way of asking is always one."""
    labels = [label for label in options if label == "asked" or len(options[label]) > 1]
    only = {label: next(iter(each)) for label, each in options.items()}

    def fill_view(*values: Any) -> Sequence[Panel]:
        return fill(only | dict(zip(labels, values, strict=True)))

    return Figure(
        name=name,
        title=title,
        alt=alt,
        caption=caption,
        chart=chart,
        views=make_views([list(options[label]) for label in labels], fill_view),
        controls=[_make_control(label, options[label]) for label in labels],
        xlabel=xlabel,
        ylabel=ylabel,
        is_signed=is_signed,
    )


def _make_control(label: str, options: Mapping[Any, str]) -> Control:
    """A choice; steps that follow each other are a slider over their numbers."""
    if label == "step":
        corruptions = {corruption for corruption, _ in options}
        steps = [str(step) for _, step in options]
        if len(corruptions) == 1 and all(step.isdecimal() for step in steps):
            return Control(label, steps, is_slider=True)
    return Control(label, list(options.values()))


def _name_effect(metric: str) -> str:
    return f"average indirect effect, {METRICS.get(metric, metric)}"
