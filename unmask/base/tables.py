"""Tidy tables as Parquet: whole or not there, their schema named and numbered."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.base.errors import UserError
from unmask.base.files import replace_file

if TYPE_CHECKING:
    import pyarrow

_SCHEMA, _DTYPE = b"unmask.schema", b"unmask.dtype"


def write_table(
    path: str | Path,
    rows: "Sequence[Mapping[str, Any]] | pyarrow.Table",
    schema: str,
    dtype: str | None = None,
) -> None:
    """Write rows as a Parquet file under a schema's name and number, such as "recall/1".

    `dtype`, what models computed them in, becomes part of the file's metadata as well.
    """
    import pyarrow
    import pyarrow.parquet

    table = rows if isinstance(rows, pyarrow.Table) else pyarrow.Table.from_pylist(list(rows))
    metadata = {_SCHEMA: schema.encode()} | ({} if dtype is None else {_DTYPE: dtype.encode()})
    table = table.replace_schema_metadata(metadata)
    with replace_file(path) as draft:
        pyarrow.parquet.write_table(table, draft)


def read_table(path: str | Path, schema: str) -> "pyarrow.Table":
    """The table in a file; one that is missing, broken or of another schema is a `UserError`."""
    import pyarrow
    import pyarrow.parquet

    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path} is not there: expected a table of {schema}.")
    try:
        # Not `read_table`, which would also take folders and their names apart.
        table = pyarrow.parquet.ParquetFile(path).read()
    except (pyarrow.ArrowInvalid, OSError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path} cannot be read ({reason}): remove it and make it anew.") from None
    actual = (table.schema.metadata or {}).get(_SCHEMA, b"no schema").decode()
    if actual != schema:
        raise UserError(
            f"{path} holds {actual}, expected {schema}: make it anew with this version."
        )
    return table


def list_rows(table: "pyarrow.Table", *leave_out: str) -> list[dict[str, Any]]:
    """The rows of a table, without some of its columns; equal texts are one object.

    Of many rows this holds far less memory than `to_pylist`.
    """
    names = [name for name in table.column_names if name not in leave_out]
    columns = []
    for name in names:
        seen: dict[Any, Any] = {}
        values = table[name].to_pylist()
        is_text = bool(values) and isinstance(values[0], str)
        columns.append([seen.setdefault(each, each) for each in values] if is_text else values)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def find_groups(table: "pyarrow.Table", *names: str) -> "dict[tuple[Any, ...], list[int]]":
    """Where the rows are that agree in these columns, by the values, in the order they are met."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    at = 0
    for batch in table.select(list(names)).to_batches(max_chunksize=4096):
        for key in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            groups.setdefault(key, []).append(at)
            at += 1
    return groups


class Parts:
    """A table made part by part, so that an interrupted run goes on with the parts still missing.

    Each part is a file of its own in `folder`, whole or absent, under a key that names it.
    """

    def __init__(self, folder: str | Path, schema: str):
        self.folder, self.schema = Path(folder), schema

    def has(self, key: str) -> bool:
        return self._path(key).is_file()

    def keys(self) -> list[str]:
        """The keys of all parts that are there, sorted."""
        return sorted(path.stem for path in self.folder.glob("*.parquet"))

    def write(self, key: str, rows: "Sequence[Mapping[str, Any]] | pyarrow.Table") -> None:
        write_table(self._path(key), rows, self.schema)

    def gather(self, keys: Iterable[str]) -> "pyarrow.Table":
        """The parts of those keys as one table, in that order."""
        import pyarrow

        tables = [read_table(self._path(key), self.schema) for key in keys]
        return pyarrow.concat_tables(tables, promote_options="default")

    def _path(self, key: str) -> Path:
        assert key and not set(key) & set("/\\\0"), key
        return self.folder / f"{key}.parquet"
