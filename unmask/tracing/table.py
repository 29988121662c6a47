"""Traces as tidy tables: one row for each fact, step, part, layer, token and noise sample."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from unmask.tracing.settings import WHOLE_ANSWER

if TYPE_CHECKING:
    import pyarrow

    from unmask.tracing.grid import TraceGrid

SCHEMA, TOKENS_SCHEMA, FACTS_SCHEMA = "trace/2", "trace-tokens/1", "trace-facts/2"
RESULT, OTHER_FACT, SHUFFLED = "none", "other fact", "shuffled answer"
RANDOM = "random direction"
"""What a row is a control for: nothing, another fact's state put in, another fact's answer read, or
the corrupted state moved in a random direction, as far as the clean one is away."""
ONE_TOKEN = "one token"
"""In place of a control: rows scored by one answer token alone, at the row it is read from and at
rows that restore several positions."""
CLEAN, CORRUPTED = "clean", "corrupted"
"""Parts of the rows that cells stand between: the score without and with the corruption."""
ASKED, FLOW = "asked", "flow"
"""Parts of the rows that count the answer tokens asked for, and that say what the subject and the
committed answer tokens give to the answer's probability."""
SUBJECT_ROLES = ("first subject", "middle subject", "last subject")
PLACEBO_ROLES = ("before subject", "further")
"""Prompt tokens that neither are the subject nor end the prompt or follow the subject."""
_CELLS = ("part", "layer", "head", "token", "role", "sample")


def find_roles(grid: "TraceGrid") -> list[str]:
    """The role of every position; a subject of one token is a last subject token."""
    begin, end = grid.subject
    roles = []
    for position, token in enumerate(grid.tokens):
        if begin <= position < end:
            at = 2 if position == end - 1 else 0 if position == begin else 1
            roles.append(SUBJECT_ROLES[at])
        elif position in grid.committed:
            roles.append("answer token")
        elif position in grid.answer:
            # A causal model is given the answer's earlier tokens.
            roles.append("answer mask" if token == grid.mask_id else "answer token")
        elif position >= grid.prompt_length:
            roles.append("other mask" if token == grid.mask_id else "other token")
        elif position == grid.prompt_length - 1:
            roles.append("last prompt")
        elif position < begin:
            roles.append("before subject")
        else:
            roles.append("first after" if position == end else "further")
    return roles


def condense(table: "pyarrow.Table") -> "pyarrow.Table":
    """The rows of a prompt with one for each cell of a role: means over its tokens and samples."""
    values = table.column_names[table.column_names.index("value") :]
    keys = [name for name in table.column_names if name not in (*values, "token", "sample")]
    means = table.group_by(keys, use_threads=False).aggregate([(name, "mean") for name in values])
    means = means.rename_columns([name.removesuffix("_mean") for name in means.column_names])
    nothing = np.full(len(means), -1, dtype=np.int32)
    for name in ("token", "sample"):
        means = means.append_column(name, [nothing])
    return means.select(table.column_names)


def tabulate_grid(
    grid: "TraceGrid",
    keys: Mapping[str, Any],
    control: str = RESULT,
    metrics: Sequence[str] = (),
) -> "pyarrow.Table":
    """The rows of one grid; of a shuffled answer only the mean over samples (sample -1).

    `keys` are columns that say which model, fact and step it is about. Further `metrics` of the
    same runs are columns beside the value.
    """
    import pyarrow

    which = 1 if control == SHUFFLED else 0
    roles = np.array([*find_roles(grid), ""], dtype=object)
    step = 1 if grid.step is None else grid.step
    constant = {**keys, "corruption": grid.corruption, "step": step, "control": control}
    tables = []

    def add(part: str, read: Callable[[str | None], Any], role: Any = None, **cells: Any) -> None:
        """A row for each value; what a cell does not name (layer, token, …) is -1."""
        # 1. Every value a row: an array of any shape, and of its shape what says where each one is.
        value = np.asarray(read(None), dtype=float)
        columns: dict[str, Any] = {
            name: np.broadcast_to(cells.get(name, -1), value.shape).ravel().astype(np.int32)
            for name in ("layer", "head", "token", "sample")
        }
        columns["role"] = roles[columns["token"]]
        if role is not None:
            columns["role"] = np.broadcast_to(role, value.shape).ravel()
        columns["value"] = value.ravel()
        for metric in metrics:
            # A logit difference has both answers in it already, and needs the other one.
            has_metric = metric != "logit_difference" or (has_foil and control != SHUFFLED)
            further = np.asarray(read(metric) if has_metric else value * np.nan, dtype=float)
            columns[metric] = further.ravel()
        named = constant | {"part": part}
        table = pyarrow.table(
            {name: pyarrow.repeat(x, value.size) for name, x in named.items()} | columns
        )
        tables.append(table.select([*constant, *_CELLS, "value", *metrics]))

    def add_cells(grid: "TraceGrid", chosen: Sequence[int]) -> None:
        """The cells of some rows of the grid, and what they stand between."""
        # 2. The token and role of each row of the grid; tokens put in together have a name only.
        whole = {row: name for name, row in grid.together.items()}
        tokens = np.array([-1 if row in whole else grid.places[row][0] for row in chosen])
        names = np.array([whole.get(row, roles[grid.places[row][0]]) for row in chosen], object)
        for part in grid.logp:

            def read(metric: str | None, part: str = part) -> np.ndarray:
                values = grid.values(part, metric, which)[list(chosen)].numpy()
                return values.mean(-1, keepdims=True) if control == SHUFFLED else values

            # 3. Values [places, layers, samples], with heads [places, layers, heads, samples].
            axes = np.ogrid[tuple(map(slice, read(None).shape))]
            cells: dict[str, Any] = {"token": tokens[axes[0]], "layer": axes[1]}
            cells |= {} if control == SHUFFLED else {"sample": axes[-1]}
            cells["head"] = axes[2] if len(axes) == 4 else -1
            add(part, read, names[axes[0]], **cells)
        add(CLEAN, lambda metric: [grid.clean_value(metric, which)])
        samples = np.arange(len(grid.corrupted_logp))
        add(CORRUPTED, lambda metric: grid.corrupted_values(metric, which).numpy(), sample=samples)

    has_foil = grid.clean_logp.shape[1] > 1
    # 4. Of single answer tokens: their own row, and those of several together.
    if control == ONE_TOKEN:
        rows = grid.places[grid.together[WHOLE_ANSWER]]
        for position, row in zip(sorted(grid.answer), rows, strict=True):
            alone = [grid.places.index((row,))] if (row,) in grid.places else []
            add_cells(grid.take_position(position), [*alone, *grid.together.values()])
        return pyarrow.concat_tables(tables).combine_chunks()
    # 5. The whole grid, and what it stands beside.
    add_cells(grid, range(len(grid.places)))
    if control == RESULT:
        add(ASKED, lambda metric: [len(grid.answer)])
    if grid.flow is not None and control == RESULT:
        for source, share in (("subject", grid.flow.subject), ("committed", grid.flow.committed)):
            add(FLOW, lambda metric, share=share: [share], source)
    return pyarrow.concat_tables(tables).combine_chunks()
