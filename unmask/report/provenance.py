"""How runs were made: the command that repeats each, its settings, its models, its versions."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, fields
from typing import Any

from unmask.base.runs import DIGESTS, RunRecord
from unmask.blocks.blocks import Column, Fold, ReportBlock, Row, Section, Table, Text
from unmask.measures.table import list_measures
from unmask.net.families import name_path

NamedRun = tuple[str, RunRecord, Sequence[Mapping[str, Any]]]
"""Its name, its record, and the stages of a study."""


def describe_runs(runs: Iterable[NamedRun]) -> Section:
    """A section with a fold for each run; the stages of studies come after them, in one fold."""
    blocks: list[ReportBlock] = [
        Text(
            "`unmask report` draws all of this again from the tables of the runs, without a model."
        )
    ]
    studies, others = [], []
    for number, (name, record, stages) in enumerate(runs):
        title = f"unmask {record.verb}: {name}"
        fold = Fold(title, list(_describe(record, stages, number)))
        (studies if record.verb == "study" else others).append(fold)
    blocks += [*studies, Fold("Every stage", others)] if studies and others else [*studies, *others]
    return Section("settings", "Settings and versions", blocks)


def _describe(
    record: RunRecord, stages: Sequence[Mapping[str, Any]], number: int
) -> Iterator[ReportBlock]:
    known = {field.name: field.metadata.get("help", "") for field in _list_fields(record.verb)}
    settings = [
        (name, show_value(value), known.get(name, "")) for name, value in record.settings.items()
    ]
    yield Text(f"`{write_command(record)}`")
    yield _tabulate(f"settings-{number}", "Settings", ("setting", "value", "meaning"), settings)
    inputs = list(_list_inputs(record))
    yield _tabulate(f"inputs-{number}", "Made from, and with", ("what", "value"), inputs)
    if stages:
        times = [(stage["stage"], f"{stage['seconds']:.1f} s") for stage in stages]
        yield _tabulate(f"stages-{number}", "Time", ("stage", "took"), times)


def _list_inputs(record: RunRecord) -> Iterator[tuple[str, str]]:
    """Models, data, versions and digests of a run."""
    for key, value in record.inputs.items():
        if key != DIGESTS:
            yield key, show_value(value)
    yield from ((key, str(value)) for key, value in record.versions.items() if value)
    for owner, parts in {**record.inputs.get(DIGESTS, {}), **record.code}.items():
        yield f"digests of {owner}", "; ".join(f"{part} {parts[part]}" for part in parts)


def _tabulate(
    name: str, caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]]
) -> Table:
    columns = [Column(head) for head in heads]
    return Table(name, caption, columns, [Row(row) for row in rows], most=len(rows))


def show_value(value: Any) -> str:
    """A setting as a reader writes it: no null, no brackets."""
    if value is None or value == [] or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return "; ".join(
            str(key) if [key] == each else f"{key}: {show_value(each)}"
            for key, each in value.items()
        )
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def write_command(record: RunRecord) -> str:
    """The command that makes such a run again, with the settings that differ from the defaults."""
    words = ["unmask", record.verb]
    if "model" not in record.settings:  # a study names its models by options
        models = record.inputs.get("models", {})
        words += [_join(name, models) for name in models]
    words += record.inputs.get("runs", {}).values()
    if _is_path(data := record.inputs.get("data", "")):
        words += ["--data", data]
    for name, value in list_changed_settings(record).items():
        words += _write_option(name, value)
    return shlex.join(map(str, words))


def list_changed_settings(record: RunRecord) -> dict[str, Any]:
    """The settings of a run that are not its measure's defaults."""
    defaults = {field.name: field.default for field in _list_fields(record.verb)}
    defaults |= {name: list(own) for name, own in defaults.items() if isinstance(own, tuple)}
    return {name: value for name, value in record.settings.items() if value != defaults.get(name)}


def _list_fields(verb: str) -> Sequence[Field]:
    measure = list_measures().get(verb)
    return () if measure is None else fields(measure.settings)


def _join(name: str, models: Mapping[str, Sequence[str]] | Sequence[str]) -> str:
    """A model as the command line takes it: a place, or a name with one for each training seed."""
    places = models[name] if isinstance(models, Mapping) else [name]
    is_plain = len(places) == 1 and name in (places[0], name_path(places[0]))
    return places[0] if is_plain else f"{name}={','.join(places)}"


def _is_path(source: str) -> bool:
    """Whether data came from a path; a corpus names itself in words."""
    return "/" in source or source.endswith((".csv", ".jsonl", ".json", ".txt"))


def _write_option(name: str, value: Any) -> list[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    if value is None:
        return []
    return [f"--{flag}", ",".join(map(str, value)) if isinstance(value, list) else str(value)]
