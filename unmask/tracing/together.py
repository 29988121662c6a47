"""Several surveys as one: what they say together, if it can be said."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.base.errors import UserError
from unmask.base.files import read_json_object
from unmask.base.tables import Parts, read_table, write_table
from unmask.tracing.survey import write_averages
from unmask.tracing.table import FACTS_SCHEMA, SCHEMA

if TYPE_CHECKING:
    import pyarrow

_SAME_OF_KIND = ("model", "data", "dtype", "steps", "guidance", "length", "joint")
_SAME_OF_KIND += ("any_answer",)
"""What runs of one kind of model must share; a model and its twin may differ in it."""
_ASKED = ["kind", "fact", "phrasing", "direction", "trained", "corruption"]


def combine(folders: Sequence[Path], out: Path, seed: int = 0) -> None:
    """Write what several surveys say together: facts, averages, and tests across them.

    Of one that was cut short, what it has so far.
    """
    import pyarrow

    found = [read_json_object(folder / "run.json")["settings"] for folder in folders]
    _check_alike(found, ("metric", "mode", "window", "run", "severed", "source"), "these runs")
    told = []
    for folder in folders:
        facts = _read_whole(folder, "facts", "records", FACTS_SCHEMA)
        if facts is None:
            raise UserError(f"nothing was traced yet in {folder}: go on with it, or leave it out.")
        told.append(facts)
    kinds = [table["kind"][0].as_py() for table in told]
    for kind in sorted(set(kinds)):
        mine = [settings for settings, its in zip(found, kinds, strict=True) if its == kind]
        _check_alike(mine, _SAME_OF_KIND, f"these runs of a {kind} model")
    together = pyarrow.concat_tables(told, promote_options="default")
    asked = together.group_by(_ASKED).aggregate([([], "count_all")])
    if asked.num_rows < together.num_rows:
        raise UserError(
            "a prompt was traced in two of these runs under one corruption, and would count twice: "
            "trace all its steps in one run, or report the runs apart."
        )
    write_table(out / "facts.parquet", together, FACTS_SCHEMA)
    traces = [_read_whole(folder, "trace", "parts", SCHEMA) for folder in folders]
    there = [table for table in traces if table is not None]
    if not there:
        raise UserError("no fact was kept in any of these runs: there is nothing to report.")
    write_averages(out, pyarrow.concat_tables(there), found[0]["mode"], seed)


def _check_alike(runs: Sequence[Mapping[str, Any]], keys: Sequence[str], which: str) -> None:
    for key in keys:
        if len(values := {str(settings.get(key)) for settings in runs}) > 1:
            raise UserError(
                f"{which} differ in {key} ({', '.join(sorted(values))}), so their effects cannot "
                "be compared: report them apart."
            )


def _read_whole(folder: Path, name: str, parts: str, schema: str) -> "pyarrow.Table | None":
    """A table of a survey, or the parts of it that are there; None where nothing is."""
    if (whole := folder / f"{name}.parquet").is_file():
        return read_table(whole, schema)
    pieces = Parts(folder / parts, schema)
    keys = pieces.keys()
    return pieces.gather(keys) if keys else None
