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
    columns: dict[str, list[Any]] = {name: [] for name in (*_CELLS, "value")}

    def add(part: str, values: np.ndarray, token: Any, layer: Any, head: Any, sample: Any) -> None:
        shape = values.shape
        cells = {"token": token, "layer": layer, "head": head, "sample": sample}
        for name, numbers in cells.items():
            columns[name].append(np.broadcast_to(numbers, shape).ravel().astype(np.int32))
        columns["role"].append(roles[np.broadcast_to(token, shape).ravel()])
        columns["part"].append(np.full(values.size, part, dtype=object))
        columns["value"].append(values.ravel())

    tokens = np.array([positions[0] for positions in grid.places])
    for part in grid.logp:
        values = grid.values(part, which=which).numpy()
        heads = values.shape[2] if values.ndim == 4 else 0
        values = values if heads else values[:, :, None]
        samples = np.arange(values.shape[-1])
        if control == SHUFFLED:
            values, samples = values.mean(-1, keepdims=True), np.array([-1])
        add(
            part,
            values,
            tokens[:, None, None, None],
            np.arange(values.shape[1])[None, :, None, None],
            (np.arange(heads) if heads else np.array([-1]))[None, None, :, None],
            samples,
        )
    corrupted = grid.corrupted_values(which=which).numpy()
    if control == RESULT:
        add(ASKED, np.array([float(len(grid.answer))]), -1, -1, -1, -1)
    add(CLEAN, np.array([grid.clean_value(which=which)]), -1, -1, -1, -1)
    add(CORRUPTED, corrupted, -1, -1, -1, np.arange(len(corrupted)))
    if grid.flow is not None and control == RESULT:
        for source, share in (("subject", grid.flow.subject), ("committed", grid.flow.committed)):
            add(FLOW, np.array([share]), -1, -1, -1, -1)
            columns["role"][-1] = np.array([source], dtype=object)
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    step = 1 if grid.step is None else grid.step
    constant = {**keys, "corruption": grid.corruption, "step": step, "control": control}
    size = len(joined["value"])
    return pyarrow.table(
        {name: pyarrow.repeat(value, size) for name, value in constant.items()}
        | {name: pyarrow.array(joined[name]) for name in (*_CELLS, "value")}
    )
