"""One measurement after the other over all members of model families, each kept as a part."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.base.progress import track
from unmask.base.tables import Parts, write_table
from unmask.evaluation.families import Family
from unmask.evaluation.questions import check_scored
from unmask.net.loading import load
from unmask.net.model import Model

if TYPE_CHECKING:
    import pyarrow


def measure_members(
    families: Sequence[Family],
    measure: Callable[[Model], Iterable[Mapping[str, Any]]],
    folder: Path,
    schema: str,
    device: str = "auto",
    dtype: str = "auto",
) -> "pyarrow.Table":
    """The rows that `measure` gives for every member, with its model, kind and training seed.

    A member that is already there is not measured again. The table is written to `folder` under
    the schema's name.
    """
    parts, name = Parts(folder / "parts", schema), schema.partition("/")[0]
    members = [(family, seed) for family in families for seed in range(len(family.members))]
    for family, seed in track(members, name, len(members)):
        if parts.has(f"{family.name}-{seed}"):
            continue
        model = load(family.members[seed], device, dtype, quiet=True)
        check_scored(model)
        whose = {"model": family.name, "kind": family.kind, "seed": seed}
        parts.write(f"{family.name}-{seed}", [whose | dict(row) for row in measure(model)])
    table = parts.gather(f"{family.name}-{seed}" for family, seed in members)
    write_table(folder / f"{name}.parquet", table, schema)
    return table
