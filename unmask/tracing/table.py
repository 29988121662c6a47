"""Traces as tidy tables: one row for each fact, step, part, layer, token and noise sample."""

from typing import TYPE_CHECKING, Any

import numpy as np

from unmask.data.facts import Fact
from unmask.tracing.grid import TraceGrid
from unmask.tracing.roles import find_roles

if TYPE_CHECKING:
    import pyarrow

SCHEMA = "trace/1"
FACTS_SCHEMA = "trace-facts/1"
RESULT, OTHER_FACT, SHUFFLED = "none", "other fact", "shuffled answer"
"""What a row is a control for: nothing, another fact's state put in, another fact's answer read."""
ASKED = "asked"
"""The part of a row that counts the answer tokens asked for."""
_KEYS = ("fact", "phrasing", "direction", "trained", "kind", "corruption", "stage", "step")
_KEYS += ("control",)
_CELLS = ("part", "layer", "head", "token", "role", "sample")


def tabulate(
    grid: TraceGrid, fact: Fact, kind: str, stage: str, control: str = RESULT
) -> "pyarrow.Table":
    """The rows of one grid; of a shuffled answer only the mean over samples (sample -1).

    Rows of part `clean` and `corrupted` hold what the cells stand between, a row of part `asked`
    how many answer tokens were asked for, and rows of part `flow` what the subject and the
    committed answer tokens give to p.
    """
    import pyarrow

    which = 1 if control == SHUFFLED else 0
    roles = np.array([*find_roles(grid), ""], dtype=object)
    columns: dict[str, list[Any]] = {name: [] for name in (*_CELLS, "value")}

    def add(part: str, values: np.ndarray, token: Any, layer: Any, head: Any, sample: Any) -> None:
        shape = values.shape
        cells = {"token": token, "layer": layer, "head": head, "sample": sample}
        for name, one in cells.items():
            columns[name].append(np.broadcast_to(one, shape).ravel().astype(np.int32))
        columns["role"].append(roles[np.broadcast_to(token, shape).ravel()])
        columns["part"].append(np.full(values.size, part, dtype=object))
        columns["value"].append(values.ravel())

    tokens = np.array([at[0] for at in grid.places])
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
    add("clean", np.array([grid.clean_value(which=which)]), -1, -1, -1, -1)
    add("corrupted", corrupted, -1, -1, -1, np.arange(len(corrupted)))
    keys = {
        "fact": fact.fact_id,
        "phrasing": fact.phrasing,
        "direction": fact.direction,
        "trained": fact.trained,
        "kind": kind,
        "corruption": grid.corruption,
        "stage": stage,
        "step": grid.step if grid.step is not None else 1,
        "control": control,
    }
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    if grid.flow is not None and control == RESULT:
        joined = _append_flow(joined, grid)
    size = len(joined["value"])
    constant = {name: pyarrow.repeat(keys[name], size) for name in _KEYS}
    arrays = {name: pyarrow.array(joined[name]) for name in (*_CELLS, "value")}
    return pyarrow.table(constant | arrays)


def _append_flow(columns: dict[str, np.ndarray], grid: TraceGrid) -> dict[str, np.ndarray]:
    assert grid.flow is not None
    more = {name: np.full(2, -1, dtype=np.int32) for name in ("token", "layer", "head", "sample")}
    texts = {"part": np.array(["flow", "flow"], dtype=object)}
    texts["role"] = np.array(["subject", "committed"], dtype=object)
    values = {"value": np.array([grid.flow.subject, grid.flow.committed])}
    return {
        name: np.concatenate((column, (more | texts | values)[name]))
        for name, column in columns.items()
    }
