"""Tables that the repository keeps, in half of their room: what pages are drawn from.

Numbers are kept in 32 bits, seven digits, and read back in 64, so that sums are as exact as before.
Columns of few values, such as strengths of guidance, stay as they are: rows are chosen by them, and
0.8 in 32 bits is not 0.8. Summaries are left out: they are computed from the tables when a run is
read.
"""

import shutil
from pathlib import Path

import pyarrow
import pyarrow.compute
import pyarrow.parquet

from unmask.base.files import replace_file
from unmask.base.tables import choose_encoding
from unmask.measures.runner import SUMMARY

FEW = 64
"""Different values that a column may have to stay as it is."""


def shrink_tables(folder: Path) -> None:
    """Rewrite all tables below a folder; their columns, groups of rows and metadata stay."""
    for summary in list(folder.glob(f"**/{SUMMARY}")):
        shutil.rmtree(summary)
    for path in sorted(folder.glob("**/*.parquet")):
        file = pyarrow.parquet.ParquetFile(path)
        schema = _narrow(file)
        options = choose_encoding(schema) | {"compression_level": 19}
        with (
            replace_file(path) as draft,
            pyarrow.parquet.ParquetWriter(draft, schema, **options) as writer,
        ):
            for group in range(file.num_row_groups):
                rows = file.read_row_group(group).cast(schema, safe=False)
                writer.write_table(rows, row_group_size=max(1, rows.num_rows))


def _narrow(file: pyarrow.parquet.ParquetFile) -> pyarrow.Schema:
    schema = file.schema_arrow
    for at, field in enumerate(schema):
        if field.type == pyarrow.float64():
            column = file.read([field.name])[field.name]
            if pyarrow.compute.count_distinct(column).as_py() > FEW:
                schema = schema.set(at, field.with_type(pyarrow.float32()))
    return schema
