"""The result of a measure: its tables, its summary and its section."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from unmask.base.config import CheckedSettings
from unmask.base.errors import UserError
from unmask.base.extras import Shown
from unmask.base.runs import DIGESTS, DTYPES, RunRecord
from unmask.base.tables import LazyTable, Parts, find_row_groups, read_table
from unmask.blocks.blocks import (
    Figure,
    FirstScreen,
    Fold,
    Notice,
    Number,
    Outcome,
    ReportBlock,
    Section,
    Text,
    is_clear,
)
from unmask.blocks.labels import say_outcome
from unmask.measures.contract import LEAKS, Summary, Tables

if TYPE_CHECKING:
    import pyarrow

    from unmask.measures.measure import Measure


@dataclass(frozen=True, repr=False)
class Result(Shown):
    """What a measure found in one run, or in several that were pooled."""

    measure: "Measure"
    settings: CheckedSettings
    records: tuple[RunRecord, ...]
    """The records of the runs that it was made by."""
    tables: Tables = field(repr=False)
    folder: Path
    is_complete: bool = True
    differences: Sequence[str] = ()
    """What the runs that were pooled were not all made with."""

    def __repr__(self) -> str:
        names = (str(name) for each in self.records for name in each.inputs.get("models", ()))
        models = dict.fromkeys(names)
        clear = sum(map(is_clear, self.outcomes))
        of = f" of {', '.join(models)}" if models else ""
        return (
            f"Result({self.measure.name}{of}: {clear} of {len(self.outcomes)} outcomes clear, in "
            f"{self.folder}{'' if self.is_complete else ', cut short'})"
        )

    def __str__(self) -> str:
        sentences = [f"{each.text} [{say_outcome(each)}]" for each in self.section.findings]
        return "\n".join([repr(self), *sentences])

    @cached_property
    def summary(self) -> Summary:
        """The statistics of its tables, computed when they are first looked at."""
        return self.measure.make_summary(self.tables, self.settings)

    def with_summary(self, summary: Summary) -> "Result":
        """The result with other statistics in place of those of its tables."""
        changed = replace(self)
        vars(changed)["summary"] = summary
        return changed

    @property
    def outcomes(self) -> list[Outcome]:
        """What may be said of each estimate that was held against something."""
        rows = (row for rows in self.summary.values() for row in rows)
        return [row["outcome"] for row in rows if row.get("outcome") in get_args(Outcome)]

    @cached_property
    def section(self) -> Section:
        """The result in sentences, figures and tables; what is broken is a sentence instead."""
        section, dtype = self._describe(), name_dtypes(self.records)
        if dtype is None:
            return section
        return replace(section, blocks=[*section.blocks, Text(f"Computed in {dtype}.")])

    def _describe(self) -> Section:
        measure, blocks = self.measure, list[ReportBlock]()
        if not self.is_complete:
            blocks.append(Notice("This run was cut short: this is what it had until then."))
        if self.differences:
            differences = ", ".join(self.differences)
            blocks.append(Notice(f"The runs that are shown together differ in {differences}."))
        recorded = (record.inputs.get(LEAKS) for record in self.records)
        leaks = [str(text) for own in recorded if isinstance(own, dict) for text in own.values()]
        blocks += map(Notice, dict.fromkeys(leaks))
        try:
            described = measure.make_section(self)
        except UserError as error:
            return Section(measure.name, measure.title, [Notice(str(error))])
        if isinstance(described, Section):
            return replace(described, blocks=[*blocks, *described.blocks])
        blocks += [block for block in described if not isinstance(block, Number | FirstScreen)]
        numbers = [number for number in described if isinstance(number, Number)]
        opening = [each.content for each in described if isinstance(each, FirstScreen)]
        figures = [each for each in opening if isinstance(each, Figure)]
        headline = next((each for each in opening if isinstance(each, str)), "")
        if measure.method:
            paragraphs = [" ".join(each.split()) for each in measure.method.strip().split("\n\n")]
            blocks.append(Fold("Method", [Text(each) for each in paragraphs]))
        return Section(measure.name, measure.title, blocks, numbers, figures, headline)

    def rows(self, table: str | None = None) -> list[dict[str, Any]]:
        """The rows of a table, the main one by default."""
        return self.tables[table or self.measure.name].to_pylist()

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of each model, in the order given."""
        kinds: dict[str, str] = {}
        for piece in open_table(self.tables, self.measure.name).pieces(["model", "kind"]):
            kinds |= find_row_groups(piece, "model", "kind").keys()
        return kinds


def open_table(tables: Tables, name: str) -> LazyTable:
    """A table to be read as far as it is needed, where it lies in a run folder."""
    if isinstance(tables, FolderTables):
        return tables.open(name)
    return LazyTable(tables[name])


class FolderTables(Mapping[str, "pyarrow.Table"]):
    """The tables of a run folder, read when they are asked for; of a run cut short, its parts."""

    def __init__(self, folder: Path, schemas: Mapping[str, str]):
        self.folder, self.schemas = folder, schemas
        self._read: dict[str, pyarrow.Table] = {}

    def __getitem__(self, name: str) -> "pyarrow.Table":
        if name not in self._read:
            path, schema = self.folder / f"{name}.parquet", self.schemas[name]
            is_whole = path.is_file()
            self._read[name] = read_table(path, schema) if is_whole else self.open(name).select()
        return self._read[name]

    def open(self, name: str) -> LazyTable:
        """A table of which only what is needed is read."""
        path, schema = self.folder / f"{name}.parquet", self.schemas[name]
        parts = Parts(self.folder / "parts" / name, schema)
        keys = [] if path.is_file() else parts.keys()
        return parts.open(keys) if keys else LazyTable([path], schema)

    def __iter__(self) -> Iterator[str]:
        return iter(self.schemas)

    def __len__(self) -> int:
        return len(self.schemas)


def name_dtypes(records: Sequence[RunRecord]) -> str | None:
    """What the models of some runs computed in; None where no model was asked, or none recorded."""
    pairs = [pair for record in records for pair in record.inputs.get(DTYPES, {}).items()]
    if len({dtype for _, dtype in pairs}) <= 1:
        return pairs[0][1] if pairs else None
    return ", ".join(f"{dtype} ({model})" for model, dtype in dict.fromkeys(pairs))


def list_differences(results: Sequence[Result]) -> list[str]:
    """Settings, data, code and versions that runs to be pooled were not all made with."""
    known = fields(results[0].settings)
    names = [each.name for each in known if each.metadata.get("is_identity", True)]
    records = [record for each in results for record in each.records]
    values = {name: [record.settings.get(name) for record in records] for name in names}
    values["the data"] = [record.inputs.get(DIGESTS, {}).get("the data") for record in records]
    values["the code"] = [record.code for record in records]
    values["the version of unmask"] = [record.versions.get("unmask") for record in records]
    return [name for name, each in values.items() if any(value != each[0] for value in each)]


def name_folders(folders: Sequence[Path]) -> list[str]:
    """Names of folders that tell them apart: the last parts of their paths."""
    paths = [folder.resolve() for folder in folders]
    for depth in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    raise UserError(f"a run was given twice ({folders[0]}): give each once.")
