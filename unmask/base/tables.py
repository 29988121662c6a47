"""Tidy tables as Parquet: whole or not there, their schema named and numbered."""

import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.base.errors import UserError
from unmask.base.files import replace_file
from unmask.base.identity import digest_values

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.compute
    import pyarrow.parquet

_SCHEMA, _DTYPE = b"unmask.schema", b"unmask.dtype"
_MOST_BYTES, _MOST_PARTS = 2**24, 1024
"""What a table that is gathered from its parts is written by: so much is in memory at once."""
_MOST_IN_NAME = 200
"""Bytes of a key in the name of its file; of the 255 that there are, a draft's name needs more."""


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

    table = rows if isinstance(rows, pyarrow.Table) else _make_table(list(rows))
    table = table.replace_schema_metadata(_make_metadata(schema, dtype))
    with replace_file(path) as draft:
        pyarrow.parquet.write_table(table, draft, **choose_encoding(table.schema))


def _make_table(rows: "Sequence[Mapping[str, Any]]") -> "pyarrow.Table":
    """The columns of all rows: `from_pylist` takes those of the first."""
    import pyarrow

    names = dict.fromkeys(name for row in rows for name in row)
    return pyarrow.table({name: [row.get(name) for row in rows] for name in names})


def choose_encoding(schema: "pyarrow.Schema") -> dict[str, Any]:
    """Options that take two thirds of the room of pyarrow's own, in no more time.

    A dictionary of numbers that hardly repeat is longer than the numbers; their bytes compress
    when all first ones stand together, then all second ones, and so on.
    """
    from pyarrow import types

    numbers, repeating = [], []
    for field in schema:
        name, kind = field.name, field.type
        while types.is_list(kind):
            name, kind = f"{name}.list.element", kind.value_type
        (numbers if types.is_floating(kind) else repeating).append(name)
    return {
        "compression": "zstd",
        "compression_level": 9,
        "use_dictionary": repeating,
        "use_byte_stream_split": numbers,
    }


def _make_metadata(schema: str, dtype: str | None) -> dict[bytes, bytes]:
    return {_SCHEMA: schema.encode()} | ({} if dtype is None else {_DTYPE: dtype.encode()})


def read_table(path: str | Path, schema: str) -> "pyarrow.Table":
    """The table in a file; one that is missing, broken or of another schema is a `UserError`."""
    file = _open_file(path, schema)
    with _refuse_broken(path):
        table = file.read()
    return table.cast(_widen(table.schema))


def has_rows(paths: Iterable[Path]) -> bool:
    """Whether any of these tables has a row; one that cannot be read may have."""
    import pyarrow.parquet

    try:
        return any(pyarrow.parquet.read_metadata(path).num_rows for path in paths)
    except (OSError, pyarrow.ArrowException):
        return True


def _open_file(path: str | Path, schema: str) -> "pyarrow.parquet.ParquetFile":
    import pyarrow.parquet

    if not Path(path).is_file():
        raise UserError(f"{path} is not there: expected a table of {schema}.")
    with _refuse_broken(path):
        # Not `read_table`, which would also take folders and their names apart.
        file = pyarrow.parquet.ParquetFile(path)
        actual = (file.schema_arrow.metadata or {}).get(_SCHEMA, b"no schema").decode()
    if actual != schema:
        raise UserError(
            f"{path} holds {actual}, expected {schema}: make it anew with this version."
        )
    return file


def _widen(schema: "pyarrow.Schema") -> "pyarrow.Schema":
    """Columns of numbers in 64 bits, as all are computed with, whatever they are kept in."""
    import pyarrow

    for at, field in enumerate(schema):
        if field.type == pyarrow.float32():
            schema = schema.set(at, field.with_type(pyarrow.float64()))
    return schema


@contextmanager
def _refuse_broken(path: str | Path) -> Generator[None]:
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowInvalid, OSError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path} cannot be read ({reason}): remove it and make it anew.") from None


def _unify_schemas(paths: Iterable[Path], schema: str) -> "pyarrow.Schema":
    """The columns of all files, in the order they are met; an empty part may lack some.

    Numbers that are whole in one file and not in another are not in all.
    """
    import pyarrow

    unified = pyarrow.schema([])
    for path in paths:
        columns = _widen(_open_file(path, schema).schema_arrow.remove_metadata())
        if columns != unified:
            try:
                unified = pyarrow.unify_schemas([unified, columns], promote_options="permissive")
            except (pyarrow.ArrowTypeError, pyarrow.ArrowInvalid) as error:
                reason = str(error).splitlines()[0].rstrip(".")
                raise UserError(
                    f"{path} does not fit the parts before it ({reason}): expected one type in "
                    "each column; mend the measure and begin anew."
                ) from None
    return unified


class LazyTable:
    """A table of which only the columns and rows that are needed are read from its files."""

    def __init__(self, source: "Sequence[Path] | pyarrow.Table", schema: str = ""):
        """`source`: the files of the table, all under one schema; or a table in memory."""
        import pyarrow
        import pyarrow.dataset
        from pyarrow.fs import LocalFileSystem

        if isinstance(source, pyarrow.Table):
            self.name, self._dataset = "a table", pyarrow.dataset.InMemoryDataset(source)
            return
        self.name = source[0] if len(source) == 1 else source[0].parent
        self._dataset = pyarrow.dataset.dataset(
            [str(path) for path in source],
            schema=_unify_schemas(source, schema),
            format="parquet",
            filesystem=LocalFileSystem(),
        )

    @property
    def num_rows(self) -> int:
        with _refuse_broken(self.name):
            return self._dataset.count_rows()

    def pieces(
        self, columns: Sequence[str] | None = None, keep: "pyarrow.compute.Expression | None" = None
    ) -> "Iterator[pyarrow.Table]":
        """The rows in their order, those to keep, a group of rows of a file at a time."""
        import pyarrow.dataset

        schema = self._dataset.schema
        for fragment in self._dataset.get_fragments(keep):
            is_file = isinstance(fragment, pyarrow.dataset.ParquetFileFragment)
            for group in fragment.split_by_row_group(keep, schema) if is_file else [fragment]:
                with _refuse_broken(self.name):
                    piece = group.to_table(schema, columns, filter=keep, use_threads=False)
                yield piece

    def select(self, **values: Any) -> "pyarrow.Table":
        """The rows that have these values in the columns of these names."""
        import pyarrow
        import pyarrow.compute as pc

        keep = pc.scalar(True)
        for name, value in values.items():
            keep = keep & (pc.field(name) == value)
        # Not the dataset's own `to_table`, which reads many groups of rows ahead.
        return pyarrow.concat_tables([self._dataset.schema.empty_table(), *self.pieces(None, keep)])


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


def find_row_groups(table: "pyarrow.Table", *names: str) -> "dict[tuple[Any, ...], list[int]]":
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

    def read(self, keys: Iterable[str]) -> "pyarrow.Table":
        """The parts of those keys as one table, in that order."""
        return self.open(keys).select()

    def open(self, keys: Iterable[str]) -> LazyTable:
        """The table of these parts, read when and as far as it is needed."""
        return LazyTable([self._path(key) for key in keys], self.schema)

    def gather(self, keys: Iterable[str], path: str | Path, dtype: str | None = None) -> None:
        """Write the parts of those keys as one table, in that order, a few of them at a time.

        No part is cut: a row group of the file holds whole ones.
        """
        import pyarrow.parquet

        paths = [self._path(key) for key in keys]
        schema = _unify_schemas(paths, self.schema)
        schema = schema.with_metadata(_make_metadata(self.schema, dtype))
        with (
            replace_file(path) as draft,
            pyarrow.parquet.ParquetWriter(draft, schema, **choose_encoding(schema)) as writer,
        ):
            for table in self._read_some(paths, schema):
                writer.write_table(table, row_group_size=max(1, table.num_rows))

    def _read_some(
        self, paths: Sequence[Path], schema: "pyarrow.Schema"
    ) -> "Iterator[pyarrow.Table]":
        """Tables of a few parts each, under the columns of all."""
        import pyarrow

        tables, size = [schema.empty_table()], 0
        for i, path in enumerate(paths, 1):
            tables.append(read_table(path, self.schema))
            size += tables[-1].nbytes
            if size >= _MOST_BYTES or len(tables) > _MOST_PARTS or i == len(paths):
                yield pyarrow.concat_tables(tables, promote_options="permissive")
                tables, size = tables[:1], 0

    def _path(self, key: str) -> Path:
        return self.folder / f"{_name_file(key)}.parquet"


def _name_file(key: str) -> str:
    """A key as a file's name: one that no file can have is cut, and gets a digest to be unique."""
    assert key
    if len(key.encode()) <= _MOST_IN_NAME and not set(key) & set("/\\\0"):
        return key
    start = re.sub(r"[/\\\0]", "_", key).encode()[: _MOST_IN_NAME // 2].decode(errors="ignore")
    return f"{start}-{digest_values([key])[:16]}"
