"""Models, trajectories, traces and lenses as sections of a page, for `unmask.show`."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from unmask.blocks import labels
from unmask.blocks.blocks import (
    Column,
    Control,
    Figure,
    MapPanel,
    Notice,
    Panel,
    ReportBlock,
    Row,
    Section,
    Table,
    TextPanel,
)
from unmask.editing.edit import Edit
from unmask.net.model import Model
from unmask.net.sites import PARTS
from unmask.representation.lens import Lens
from unmask.sampling.trajectory import HIDDEN, Trajectory, show_token
from unmask.tracing.grid import TraceGrid
from unmask.tracing.table import find_roles

MOST_ROWS, MOST_GUESSES = 12, 5
"""Rows of a trajectory that are shown, and guesses at a position."""


def describe_model(model: Model) -> Section:
    """What a model is: its shape, its size and its sites."""
    from unmask.report.terminal import describe_shapes  # it needs rich

    config, mask = model.net.config, model.mask_id
    parts = " | ".join(PARTS)
    rows = {
        "kind": labels.name_kind(model.kind),
        **describe_shapes(config),
        "mask": "none" if mask is None else f"token {mask}",
        "tokenizer": "none"
        if model.tokenizer is None
        else f"{model.tokenizer.vocab_size:,} tokens",
        "on": f"{model.device}, {str(model.net.embedding.weight.dtype).removeprefix('torch.')}",
        "sites": f"embed, layers.0 to {config.layers - 1}.( {parts} ), final, logits",
    }
    columns = [Column("what"), Column("value")]
    table = Table("model", "", columns, [Row(each) for each in rows.items()], len(rows))
    return Section("model", model.name, [table])


def describe_edit(edit: Edit) -> Section:
    """What an edit writes: its facts as its record has them, and how much each layer gains."""
    facts = [each for each in edit.record.get("facts", ()) if isinstance(each, Mapping)]
    names = {"prompt": "prompt", "old_object": "before", "object": "after"}
    numbers = {"p_before": "p before the search", "p_after": "p after it"}
    rows = [
        [*(str(fact.get(name, "–")) for name in names), *map(fact.get, numbers)] for fact in facts
    ]
    columns = [*map(Column, names.values()), *(Column(each, 3) for each in numbers.values())]
    layers = [
        (str(layer), len(each.readers), float(each.update.norm()))
        for layer, each in sorted(edit.factors.items())
    ]
    gains = [Column("layer"), Column("facts"), Column("norm of what is added", 3)]
    return Section(
        "edit",
        "Edit",
        [
            Table("facts", "What is written", columns, [Row(each) for each in rows]),
            Table("layers", "Where it is written", gains, [Row(each) for each in layers]),
        ],
    )


def _draw_choices(views: Sequence[Sequence[Panel]], control: Control, **figure: Any) -> Figure:
    """A figure with a view for each option of a control, which is left out where there is one."""
    if len(views) == 1:
        return Figure(views={(): views[0]}, **figure)
    return Figure(views={(i,): view for i, view in enumerate(views)}, controls=[control], **figure)


def describe_trajectory(trajectory: Trajectory) -> Section:
    """Texts that are written step by step, with guesses in the masks where they were kept."""
    rows = range(min(MOST_ROWS, len(trajectory.tokens)))
    more = len(trajectory.tokens) - len(rows)
    caption = "Each token is coloured by the probability it had when it was written."
    if trajectory.guess_ids is not None:
        caption += " In the masks stand the model's guesses at each step."
    figure = _draw_choices(
        [[_draw_text(trajectory, row)] for row in rows],
        Control("row", list(map(str, rows))),
        name="texts",
        title="Written step by step",
        caption=caption,
        chart="unmasking",
    )
    blocks: list[ReportBlock] = [figure]
    if more:
        blocks.append(Notice(f"{labels.count(more, 'further row')} left out."))
    return Section("trajectory", "Trajectory", blocks)


def _draw_text(trajectory: Trajectory, row: int) -> TextPanel:
    size = trajectory.find_end(row)
    tokens = trajectory.tokens[row, :size].tolist()
    steps = trajectory.committed_at[row, :size].tolist()
    written = [step for step in steps if step]
    guesses: list[list[list[tuple[str, float]]]] = []
    if trajectory.guess_ids is not None and trajectory.guess_p is not None:
        ids = trajectory.guess_ids[:, row, :size, :MOST_GUESSES].tolist()
        p = trajectory.guess_p[:, row, :size, :MOST_GUESSES].tolist()
        guesses = [
            [
                [
                    (show_token(token, trajectory.tokenizer), chance)
                    for token, chance in zip(ids[at][i], p[at][i], strict=True)
                    if token >= 0
                ]
                for at in range(step)
            ]
            for i, step in enumerate(steps)
        ]
    return TextPanel(
        title=f"row {row}" if len(trajectory.tokens) > 1 else "",
        pieces=[show_token(token, trajectory.tokenizer) for token in tokens],
        steps=steps,
        confidence=trajectory.confidence[row, :size].tolist(),
        expected="",
        is_hit=False,
        guesses=guesses,
        # Written from left to right: there are no masks, and every token is later than the last.
        is_causal=trajectory.mask_id is None and written == list(range(1, len(written) + 1)),
    )


def write_states(trajectory: Trajectory) -> str:
    """The states of the first row as lines of text; without states the text alone."""
    last = len(trajectory) - 1
    lines = [f"at the end: {trajectory[last][0]}"]
    if trajectory.states is not None:
        lines[:0] = [f"before step {step + 1}: {trajectory[step][0]}" for step in range(last)]
    return "\n".join(lines)


def describe_grids(grids: Sequence[TraceGrid]) -> Section:
    """Effects by token and layer, a panel for each part, a slider over several steps."""
    first = grids[0]
    metric = labels.name_metric(first.metric) if isinstance(first.metric, str) else "score"
    verb = "restored" if first.mode == "restore" else "taken away"
    estimated = "Estimated by gradients. " if first.estimate else ""
    figure = _draw_choices(
        [[_draw_part(grid, part) for part in grid.logp] for grid in grids],
        Control("at", [f"step {grid.step or 1}" for grid in grids], is_slider=True),
        name="effects",
        title=f"Effect of each state that is {verb}",
        caption=f"{estimated}Clean {first.clean:.3g}, with the subject hidden "
        f"{first.corrupted:.3g} ({first.corruption}). Starred: the subject. → marks the answer, "
        f"{HIDDEN} what is masked.".replace("-", "−"),
        chart="heatmap",
        xlabel="layer",
        ylabel=f"effect, {metric}",
        is_signed=True,
    )
    return Section("trace", "Trace", [figure])


def _draw_part(grid: TraceGrid, part: str) -> MapPanel:
    """Tokens by layers; of heads, each layer's heads side by side."""
    effects, roles = grid.effects(part), find_roles(grid)
    columns = [str(layer) for layer in range(effects.shape[1])]
    if effects.ndim == 3:
        columns = [f"{layer}.{head}" for layer in columns for head in range(effects.shape[2])]
        effects = effects.flatten(1)
    notes = [labels.ROLES.get(roles[at[0]], roles[at[0]]) if at else "" for at in grid.places]
    return MapPanel(
        labels.name_part(part),
        columns,
        [_name_place(grid, at) for at in grid.places],
        [[None if value != value else value for value in row] for row in effects.tolist()],
        notes=notes,
    )


def _name_place(grid: TraceGrid, at: Sequence[int]) -> str:
    """Positions and their tokens; a causal model's answer may stand after the last one."""
    pieces = [
        HIDDEN
        if grid.tokens[i] == grid.mask_id
        else show_token(grid.tokens[i], grid.tokenizer).strip() or "·"
        for i in at
    ]
    arrow = "→ " if any(i in grid.answer for i in at) else ""
    star = "*" if any(grid.subject[0] <= i < grid.subject[1] for i in at) else ""
    return f"{','.join(map(str, at))} {arrow}{' '.join(pieces)}{star}"


def describe_lens(lens: Lens) -> Section:
    """Probabilities by position and layer, and the words of each layer."""
    layers = [str(layer) for layer in range(lens.logp.shape[1])]
    positions = [
        f"{position} {show_token(token, lens.tokenizer).strip() or '·'}"
        for position, token in zip(lens.positions, lens.target.tolist(), strict=True)
    ]
    words = [
        [[layer[0][0] for layer in lens.at(position, step)] for position in lens.positions]
        for step in lens.steps
    ]
    views = [
        [
            MapPanel("the likeliest token", layers, positions, p[..., 0].T.tolist(), words=top),
            MapPanel(
                "probability of the token at the side", layers, positions, logp.exp().T.tolist()
            ),
        ]
        for logp, p, top in zip(lens.logp, lens.p, words, strict=True)
    ]
    figure = _draw_choices(
        views,
        Control("at", [f"step {step}" for step in lens.steps], is_slider=True),
        name="lens",
        title="What each layer would say",
        caption="The stream after each layer, read as if it were the last.",
        chart="heatmap",
        xlabel="layer",
        ylabel="probability",
        limits=(0.0, 1.0),
    )
    return Section("lens", f"Logit lens: {lens.followed}", [figure])


def describe_pattern(pattern: Tensor, words: Sequence[str]) -> Section:
    """Where each position looks: of one text's pattern, all heads on average and each alone."""
    heads = pattern.detach().double().cpu().reshape(-1, *pattern.shape[-2:])  # [H, L, L]
    names = [f"{i} {words[i].strip() or '·'}" if words else str(i) for i in range(heads.shape[-1])]
    views = [heads.mean(0), *heads] if len(heads) > 1 else [*heads]
    figure = _draw_choices(
        [
            [MapPanel("", names[-each.shape[1] :], names[-each.shape[0] :], each.tolist())]
            for each in views
        ],
        Control("head", ["all, mean", *map(str, range(len(heads)))][: len(views)]),
        name="pattern",
        title="Attention: where each position looks",
        caption="A row is a position that reads, a column one that is read; a row adds up to 1.",
        chart="heatmap",
        xlabel="read",
        ylabel="attention",
    )
    return Section("pattern", "Attention", [figure])
