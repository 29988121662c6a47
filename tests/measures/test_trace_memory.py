"""trace: what is held of the tables at once does not grow with the number of facts."""

import pyarrow
import pytest

from tests.tracing.learned import LENGTH, make_facts
from unmask.base import tables as stored
from unmask.base.tables import LazyTable, Parts
from unmask.measures import result as results
from unmask.measures.result import FolderTables, Result
from unmask.measures.trace import MEASURE
from unmask.measures.trace_section import describe
from unmask.measures.trace_summary import summarise

USUAL = {"steps": 6, "length": LENGTH, "window": 2, "samples": 2, "any_answer": True}


@pytest.fixture(scope="module")
def done(masked, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trace") / "run"
    return MEASURE(masked, make_facts(), out=folder, device="cpu", **USUAL)


def write_parts(run, folder, copies):
    """The parts of a run many times over, each time under other names of facts."""
    for name, schema in MEASURE.tables.items():
        known, more = Parts(run / "parts" / name, schema), Parts(folder / "parts" / name, schema)
        for copy in range(copies):
            for key in sorted(known.keys()):
                table = known.read([key])
                at = table.column_names.index("fact")
                renamed = [f"{fact}-{copy:03d}" for fact in table["fact"].to_pylist()]
                more.write(f"{copy:03d}-{key}", table.set_column(at, "fact", [renamed]))


class Watch:
    """The largest table that is read, and the most that all tables hold, in bytes."""

    def __init__(self, patch):
        self.largest, self.held, self.before = 0, 0, pyarrow.total_allocated_bytes()
        names = ((stored, "read_table"), (results, "read_table"), (Parts, "read"))
        for owner, name in (*names, (LazyTable, "select")):
            patch.setattr(owner, name, self._watch(getattr(owner, name)))
        pieces = LazyTable.pieces
        patch.setattr(LazyTable, "pieces", lambda *given: map(self._note, pieces(*given)))

    def _watch(self, read):
        return lambda *given, **named: self._note(read(*given, **named))

    def _note(self, table):
        self.largest = max(self.largest, table.nbytes)
        self.held = max(self.held, pyarrow.total_allocated_bytes() - self.before)
        return table


def summarise_copies(done, folder, copies, monkeypatch):
    """What was held while so many copies were gathered, summarised and described; the summary."""
    write_parts(done.folder, folder, copies)
    with monkeypatch.context() as patch:
        patch.setattr(stored, "_MOST_BYTES", 2**18)
        patch.setattr(stored, "_MOST_PARTS", 4)
        watch = Watch(patch)
        for name, schema in MEASURE.tables.items():
            parts = Parts(folder / "parts" / name, schema)
            parts.gather(parts.keys(), folder / f"{name}.parquet")
        tables = FolderTables(folder, MEASURE.tables)
        summary = summarise(tables, done.settings)
        result = Result(MEASURE, done.settings, done.records, tables, folder)
        assert result.kinds == done.kinds and describe(result)
    return watch, summary


@pytest.mark.prove
def test_what_is_held_at_once_does_not_grow_with_the_facts(done, tmp_path, monkeypatch):
    few, _ = summarise_copies(done, tmp_path / "few", 4, monkeypatch)
    many, summary = summarise_copies(done, tmp_path / "many", 24, monkeypatch)
    tables = dict(FolderTables(tmp_path / "many", MEASURE.tables))
    assert many.largest <= 1.1 * few.largest < tables["trace"].nbytes / 4
    # What grows is the table of facts, a row for each prompt.
    assert many.held <= 1.1 * few.held + tables["facts"].nbytes
    # And the statistics are those of the table as a whole.
    assert repr(summarise(tables, done.settings)) == repr(summary)
