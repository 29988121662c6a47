"""Tables that the repository keeps, in half of their room: what pages are drawn from.

Numbers are kept in 32 bits, seven digits, and read back in 64, so that sums are as exact as before.
Summaries are left out: they are computed from the tables when a run is read.
"""

import shutil
from pathlib import Path

import pyarrow
import pyarrow.parquet

from unmask.base.files import replace_file
from unmask.base.tables import choose_encoding
from unmask.measures.runner import SUMMARY


def shrink_tables(folder: Path) -> None:
    """Rewrite all tables below a folder; their columns, groups of rows and metadata stay."""
    for summary in list(folder.glob(f"**/{SUMMARY}")):
        shutil.rmtree(summary)
    for path in sorted(folder.glob("**/*.parquet")):
        file = pyarrow.parquet.ParquetFile(path)
        schema = _narrow(file.schema_arrow)
        options = choose_encoding(schema) | {"compression_level": 19}
        with (
            replace_file(path) as draft,
            pyarrow.parquet.ParquetWriter(draft, schema, **options) as writer,
        ):
            for group in range(file.num_row_groups):
                rows = file.read_row_group(group).cast(schema, safe=False)
                writer.write_table(rows, row_group_size=max(1, rows.num_rows))


def _narrow(schema: pyarrow.Schema) -> pyarrow.Schema:
    for at, field in enumerate(schema):
        if field.type == pyarrow.float64():
            schema = schema.set(at, field.with_type(pyarrow.float32()))
    return schema
