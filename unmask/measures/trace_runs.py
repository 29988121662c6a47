"""Several runs of traces as one, and runs of version 0.1."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.base.config import build
from unmask.base.errors import UserError
from unmask.base.runs import DIGESTS, RunRecord
from unmask.base.tables import Parts, read_table
from unmask.blocks.labels import KINDS, SPLITS
from unmask.blocks.tidy import distinct
from unmask.measures.measure import Tables
from unmask.measures.result import Result
from unmask.measures.runner import pool_tables
from unmask.measures.table import find_measure
from unmask.measures.trace_summary import count_facts, summarise
from unmask.measures.trainings import concatenate, number_trainings

if TYPE_CHECKING:
    import pyarrow

    from unmask.measures.trace import TraceSettings

ALIKE = ("metric", "mode", "run", "severed", "source", "cells")
"""Settings that all runs must share for their effects to be compared."""
ALIKE_OF_MODEL = ("steps", "guidance", "length", "dtype", "any_answer", "order", "remask")
"""Settings that runs of one model must share; a model and its twin may differ in them."""
OLD_TABLES = {
    "trace": ("parts", "trace/1"),
    "facts": ("records", "trace-facts/1"),
    "averages": ("", "trace-averages/1"),
    "tests": ("", "trace-tests/1"),
}
"""Tables of version 0.1: the folder of their parts, and their schema."""


def pool(results: Sequence[Result]) -> Tables:
    """The tables of several runs as one, if what they say can be said together."""
    for result in results:
        if not result.tables["trace"].num_rows:
            raise UserError(f"{result.folder} holds averages alone: draw it by itself.")
    _check_settings(results, ALIKE, "these runs")
    facts = [result.tables["facts"].to_pylist() for result in results]
    _check_values([set(distinct(rows, "window")) for rows in facts], "window", "these runs")
    trainings = number_trainings(facts)
    by_model: dict[tuple[str, int, str], list[int]] = {}
    for i, rows in enumerate(facts):
        for model in distinct(rows, "model"):
            key = (model, trainings[i][model], _identify(results[i], model))
            by_model.setdefault(key, []).append(i)
    if len({(model, training) for model, training, _ in by_model}) < len(by_model):
        # Different weights under one name: models are named by their runs.
        return pool_tables(results)
    for (model, *_), numbers in by_model.items():
        data = [{results[i].records[0].inputs.get("data")} for i in numbers]
        _check_values(data, "data", f"these runs of {model}")
    for model in dict.fromkeys(model for model, *_ in by_model):
        which = f"these runs of {model}"
        own = [i for i, each in enumerate(trainings) if model in each]
        _check_settings([results[i] for i in own], ALIKE_OF_MODEL, which)
        joints = [{row["joint"] for row in facts[i] if row["model"] == model} for i in own]
        _check_values(joints, "joint", which)
    keys = ("model", "seed", "split", "fact", "phrasing", "corruption")
    prompts = [
        (number[row["model"]], *(row[name] for name in keys))
        for rows, number in zip(facts, trainings, strict=True)
        for row in rows
    ]
    if len(set(prompts)) < len(prompts):
        raise UserError(
            "a prompt was traced in two of these runs under one corruption, and would count twice: "
            "trace all its steps in one run, or report the runs apart."
        )
    return concatenate(results, facts, trainings)


def _identify(result: Result, model: str) -> str:
    """What tells models of one name apart: what they hold, or in older runs where they lay."""
    inputs = result.records[0].inputs
    digests = inputs.get(DIGESTS, {})
    held = [digests[name] for name in digests if name == model or name.startswith(f"{model}, seed")]
    return str(held or inputs.get("weights", {}).get(model) or inputs.get("models", {}).get(model))


def _check_settings(results: Sequence[Result], names: Sequence[str], which: str) -> None:
    records = [result.settings.to_record() for result in results]
    for name in names:
        _check_values([{str(record[name])} for record in records], name, which)


def _check_values(values: Sequence[set[Any]], name: str, which: str) -> None:
    together = set().union(*values)
    if len(together) > 1:
        listed = ", ".join(sorted(map(str, together)))
        raise UserError(
            f"{which} differ in {name} ({listed}), so their effects cannot be compared: report "
            "them apart."
        )


@dataclass(frozen=True)
class _OldNames:
    """What version 0.1 named by kind, direction and training: models and splits."""

    models: Mapping[str, str]
    splits: Mapping[tuple[str, str], str]

    def locate(self, kind: str, direction: str, trained: str, prefix: str = "") -> dict[str, str]:
        """The model and the split."""
        split = self.splits[direction, trained]
        return {f"{prefix}model": self.models[kind], f"{prefix}split": split}

    def upgrade(self, table: "pyarrow.Table | None") -> "pyarrow.Table":
        """The table with its model, seed and split; a table that is not there is empty."""
        import pyarrow

        if table is None:
            return pyarrow.table({"model": pyarrow.array([], pyarrow.string())})
        keys = (table[name].to_pylist() for name in ("kind", "direction", "trained"))
        added = [self.locate(*key) | {"seed": 0} for key in zip(*keys, strict=True)]
        for name in ("model", "split", "seed"):
            table = table.append_column(name, pyarrow.array([row[name] for row in added]))
        return table

    def upgrade_test(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A stored test with its models and splits; its groups are named "masked d2p same"."""
        one, other = row["one"].split(), row["other"].split()
        return {**row, **self.locate(*one), **self.locate(*other, prefix="other_")}


def read_old(folder: Path, record: RunRecord | None) -> Result:
    """A run of version 0.1's `unmask trace`, or the averages that its `trace-report` left.

    Of a run that was cut short, what it has. A folder without `run.json` does not say what its
    models are called and how answers were scored.
    """
    import pyarrow

    stored: Mapping[str, Any] = {} if record is None else record.settings
    facts = _read_old_table(folder, "facts")
    if facts is None:
        raise UserError(f"{folder} holds no traced fact yet: trace them with this version.")
    settings = _read_old_settings(folder, None if record is None else stored)
    # One's own facts were labelled as another split.
    is_own = Path(str(stored.get("data", ""))).suffix in (".csv", ".jsonl", ".xz")
    splits = dict.fromkeys(SPLITS, "own") if is_own else SPLITS
    names = _OldNames(_name_models(facts, stored), splits)
    joints = {"causal": "chain_rule", "masked": settings.joint}
    more = {"sigma": None, "window": settings.window, "considered": None, "recalled": None}
    rows = [
        row | more | {"joint": joints.get(row["kind"], settings.joint)}
        for row in names.upgrade(facts).to_pylist()
    ]
    trace, averages = (_read_old_table(folder, name) for name in ("trace", "averages"))
    tables = {"trace": names.upgrade(trace), "tokens": names.upgrade(None)}
    tables["facts"] = pyarrow.Table.from_pylist(rows)
    if trace is not None or averages is None:
        summary = summarise(tables, settings)
    else:
        # Averages and tests as they were stored.
        tests = _read_old_table(folder, "tests")
        summary = {
            "averages": names.upgrade(averages).to_pylist(),
            "tests": [] if tests is None else [*map(names.upgrade_test, tests.to_pylist())],
            "counts": list(count_facts(rows)),
            "texts": [],
        }
    places = [str(stored["model"])] if "model" in stored else []
    models = dict.fromkeys(names.models.values(), places) if places else {}
    record = RunRecord(
        format=1,
        verb="trace",
        settings=settings.to_record(),
        inputs={"models": models, "data": stored.get("data", "")},
        versions={"unmask": "0.1"} if record is None else record.versions,
    )
    is_complete = (folder / "facts.parquet").is_file()
    result = Result(
        find_measure("trace"), settings, (record,), tables, folder, is_complete=is_complete
    )
    return result.with_summary(summary)


def _read_old_settings(folder: Path, stored: Mapping[str, Any] | None) -> "TraceSettings":
    """Settings of a run's record that there still are; without one the metric is not known."""
    cls = find_measure("trace").settings
    if stored is None:
        return cls(metric="score")
    names = {field.name for field in fields(cls)}
    chosen = {name: value for name, value in stored.items() if name in names}
    if "split" in stored:
        chosen["splits"] = tuple(name.strip() for name in stored["split"].split(","))
    return build(cls, chosen, f"{folder}/run.json")


def _name_models(facts: "pyarrow.Table", stored: Mapping[str, Any]) -> dict[str, str]:
    """Names of models by kind: the run's own model, or where several were combined the kinds'."""
    kinds = list(dict.fromkeys(facts["kind"].to_pylist()))
    if len(kinds) > 1 or "model" not in stored:
        return {kind: KINDS[kind] for kind in kinds}
    path = Path(stored["model"])
    return {kinds[0]: path.parent.name if path.name == "model" else path.name}


def _read_old_table(folder: Path, name: str) -> "pyarrow.Table | None":
    """A table of an old run, or the parts of it that are there; None where nothing is."""
    parts, schema = OLD_TABLES[name]
    if (folder / f"{name}.parquet").is_file():
        return read_table(folder / f"{name}.parquet", schema)
    pieces = Parts(folder / parts, schema)
    return pieces.read(pieces.keys()) if parts and pieces.keys() else None
