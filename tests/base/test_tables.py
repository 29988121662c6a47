"""Tables come back as they were written, or not at all."""

import pytest

from unmask.base.errors import UserError
from unmask.base.tables import Parts, read_table, write_table

ROWS = [{"fact": "a", "hit": True, "logp": -1.5}, {"fact": "b", "hit": False, "logp": None}]


def test_a_table_comes_back(tmp_path):
    write_table(tmp_path / "x.parquet", ROWS, "recall/1")
    assert read_table(tmp_path / "x.parquet", "recall/1").to_pylist() == ROWS


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
