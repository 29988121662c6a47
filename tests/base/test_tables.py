"""Tables come back as they were written, or not at all."""

from pathlib import Path

import pyarrow.parquet
import pytest

from unmask.base import tables
from unmask.base.errors import UserError
from unmask.base.tables import LazyTable, Parts, read_table, write_table

ROWS = [{"fact": "a", "hit": True, "logp": -1.5}, {"fact": "b", "hit": False, "logp": None}]


def test_a_table_takes_little_room(tmp_path):
    """Numbers that differ are longer with a dictionary, texts that repeat without one."""
    rows = [{"text": f"text {i % 7}", "p": 1 / (i + 1), "ps": [2 / (i + 3)]} for i in range(3000)]
    write_table(tmp_path / "ours.parquet", rows, "recall/1")
    assert read_table(tmp_path / "ours.parquet", "recall/1").to_pylist() == rows
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "usual.parquet")
    ours, usual = ((tmp_path / f"{name}.parquet").stat().st_size for name in ("ours", "usual"))
    assert ours < 0.8 * usual


def test_a_write_that_fails_leaves_the_table_before(tmp_path, monkeypatch):
    write_table(tmp_path / "x.parquet", ROWS, "recall/1")
    before = (tmp_path / "x.parquet").read_bytes()

    def fail(table, where, **options):
        Path(where).write_bytes(b"half")
        raise ValueError

    monkeypatch.setattr(pyarrow.parquet, "write_table", fail)
    for name in ("x", "new"):
        with pytest.raises(ValueError):
            write_table(tmp_path / f"{name}.parquet", ROWS[:1], "recall/1")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [before]


def test_another_schema_is_refused(tmp_path):
    write_table(tmp_path / "x.parquet", ROWS, "recall/1")
    with pytest.raises(UserError, match="holds recall/1, expected recall/2"):
        read_table(tmp_path / "x.parquet", "recall/2")


def test_missing_and_broken_files_are_sentences(tmp_path):
    with pytest.raises(UserError, match="not there"):
        read_table(tmp_path / "x.parquet", "recall/1")
    write_table(tmp_path / "x.parquet", ROWS, "recall/1")
    whole = (tmp_path / "x.parquet").read_bytes()
    (tmp_path / "x.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="cannot be read"):
        read_table(tmp_path / "x.parquet", "recall/1")


def test_parts_are_gathered_in_the_order_asked_for(tmp_path):
    parts = Parts(tmp_path / "parts", "recall/1")
    parts.write("one", ROWS[:1])
    parts.write("two", ROWS[1:])
    assert parts.has("one") and not parts.has("three")
    assert parts.read(["two", "one"]).to_pylist() == ROWS[::-1]
    parts.gather(["two", "one"], tmp_path / "x.parquet")
    assert read_table(tmp_path / "x.parquet", "recall/1").to_pylist() == ROWS[::-1]


def test_a_part_may_be_called_anything(tmp_path):
    """Keys hold names of one's own facts, of any length, and settings with paths in them."""
    parts = Parts(tmp_path / "parts", "recall/1")
    keys = ["a" * 300, "a" * 299 + "b", "山" * 109, "m-1-random;classifier=probes/a", "m-1-short"]
    for i, key in enumerate(keys):
        assert not parts.has(key)
        parts.write(key, [{"number": i}])
    assert [row["number"] for row in parts.read(keys).to_pylist()] == list(range(len(keys)))
    found = parts.keys()
    assert parts.read(found).num_rows == len(keys) and "m-1-short" in found


def test_gathered_parts_are_the_table_that_they_are_together(tmp_path, monkeypatch):
    """Whether they are written at once or in groups; a part may be empty, a column all None."""
    parts = Parts(tmp_path / "parts", "recall/1")
    rows = [{"fact": str(i), "logp": -i if i > 5 else None} for i in range(9)]
    parts.write("empty", [])
    for row in rows:
        parts.write(row["fact"], [row])
    keys, path = ["empty", *(row["fact"] for row in rows)], tmp_path / "x.parquet"
    for most, groups in ((1024, 1), (2, 5)):
        monkeypatch.setattr(tables, "_MOST_PARTS", most)
        parts.gather(keys, path, dtype="float32")
        file = pyarrow.parquet.ParquetFile(path)
        assert file.num_row_groups == groups
        assert file.schema_arrow.metadata[b"unmask.dtype"] == b"float32"
        whole = read_table(path, "recall/1")
        assert whole.equals(parts.read(keys)) and whole.to_pylist() == rows
    for lazy in (LazyTable([path], "recall/1"), parts.open(keys), LazyTable(parts.read(keys))):
        assert lazy.num_rows == len(rows)
        assert [row for piece in lazy.pieces() for row in piece.to_pylist()] == rows
        assert {name for piece in lazy.pieces(["logp"]) for name in piece.column_names} == {"logp"}
        assert lazy.select(fact="7", logp=-7).to_pylist() == rows[7:8]


def test_columns_of_any_row_are_kept(tmp_path):
    write_table(tmp_path / "x.parquet", [{"a": 1}, {"b": 3, "a": 2}], "recall/1")
    rows = read_table(tmp_path / "x.parquet", "recall/1").to_pylist()
    assert rows == [{"a": 1, "b": None}, {"a": 2, "b": 3}]


def test_numbers_that_are_whole_in_one_part_only(tmp_path):
    """A part's types are those of its values, the table's those of all parts."""
    parts, keys = Parts(tmp_path / "parts", "recall/1"), ["whole", "none", "other"]
    rows = [{"v": 2, "vs": [1]}, {"v": None, "vs": None}, {"v": 0.5, "vs": [0.5]}]
    for key, row in zip(keys, rows, strict=True):
        parts.write(key, [row])
    parts.gather(keys, tmp_path / "x.parquet")
    assert read_table(tmp_path / "x.parquet", "recall/1").to_pylist() == rows
    assert parts.read(keys).to_pylist() == rows
    lazy = parts.open(keys)
    assert [row for piece in lazy.pieces() for row in piece.to_pylist()] == rows
    assert lazy.select(v=2.0).to_pylist() == rows[:1]
    parts.write("text", [{"v": "two"}])
    with pytest.raises(UserError, match=r"text\.parquet does not fit .* expected one type"):
        parts.gather([*keys, "text"], tmp_path / "x.parquet")


def test_a_table_that_breaks_while_it_is_read_is_a_sentence(tmp_path):
    path = tmp_path / "x.parquet"
    write_table(path, ROWS, "recall/1")
    with pytest.raises(UserError, match="holds recall/1, expected recall/2"):
        LazyTable([path], "recall/2")
    whole = path.read_bytes()
    path.write_bytes(b"PAR1" + b"\xff" * 40 + whole[44:])
    lazy = LazyTable([path], "recall/1")
    for read in (lambda: list(lazy.pieces()), lambda: lazy.select(fact="a")):
        with pytest.raises(UserError, match="cannot be read"):
            read()
