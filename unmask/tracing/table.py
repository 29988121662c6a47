"""Traces as tidy tables: one row for each fact, step, part, layer, token and noise sample."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow

    from unmask.tracing.grid import TraceGrid

SCHEMA, TOKENS_SCHEMA, FACTS_SCHEMA = "trace/2", "trace-tokens/1", "trace-facts/2"
RESULT, OTHER_FACT, SHUFFLED = "none", "other fact", "shuffled answer"
"""What a row is a control for: nothing, another fact's state put in, another fact's answer read."""
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


def tabulate(grid: "TraceGrid", keys: Mapping[str, Any], control: str = RESULT) -> "pyarrow.Table":
    """The rows of one grid; of a shuffled answer only the mean over samples (sample -1).

    `keys` are columns that say which model, fact and step it is about.
    """
    import pyarrow

    which = 1 if control == SHUFFLED else 0
    roles = np.array([*find_roles(grid), ""], dtype=object)
    step = 1 if grid.step is None else grid.step
    constant = {**keys, "corruption": grid.corruption, "step": step, "control": control}
    tables = []

    def add(part: str, values: Any, role: str | None = None, **cells: Any) -> None:
        """A row for each value; what a cell does not name (layer, token, …) is -1."""
        values = np.asarray(values, dtype=float)
        columns: dict[str, Any] = {
            name: np.broadcast_to(cells.get(name, -1), values.shape).ravel().astype(np.int32)
            for name in ("layer", "head", "token", "sample")
        }
        columns["role"] = roles[columns["token"]] if role is None else [role] * values.size
        columns["value"] = values.ravel()
        same = {
            name: pyarrow.repeat(x, values.size) for name, x in (constant | {"part": part}).items()
        }
        table = pyarrow.table(same | columns)
        tables.append(table.select([*constant, *_CELLS, "value"]))

    for part in grid.logp:
        values = grid.values(part, which=which).numpy()
        cells: dict[str, Any] = {"sample": np.arange(values.shape[-1])}
        if control == SHUFFLED:
            values, cells = values.mean(-1, keepdims=True), {}
        # Axes are places, layers, heads where there are any, and samples.
        axes = np.ogrid[tuple(map(slice, values.shape))]
        cells |= {"token": np.array([at[0] for at in grid.places])[axes[0]], "layer": axes[1]}
        add(part, values, head=axes[2] if values.ndim == 4 else -1, **cells)
    if control == RESULT:
        add(ASKED, [len(grid.answer)])
    add(CLEAN, [grid.clean_value(which=which)])
    corrupted = grid.corrupted_values(which=which).numpy()
    add(CORRUPTED, corrupted, sample=np.arange(len(corrupted)))
    if grid.flow is not None and control == RESULT:
        for source in ("subject", "committed"):
            add(FLOW, [getattr(grid.flow, source)], source)
    return pyarrow.concat_tables(tables).combine_chunks()
