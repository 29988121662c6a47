"""What a page says, before any medium: the sections of its runs, and how each run was made.

Runs of one measure become one section where they can be pooled. Whatever cannot be read is a
sentence in its place, and the rest is there.
"""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from unmask.base.errors import UserError, describe_notice
from unmask.base.reading import read_json
from unmask.base.runs import DIGESTS, RunRecord, find_folder, read_record
from unmask.base.unpacking import PACKED
from unmask.blocks.blocks import Figure, Finding, Fold, Notice, Number, ReportBlock, Section, Table
from unmask.measures.measure import Measure
from unmask.measures.result import Result, list_differences, name_folders
from unmask.measures.runner import pool_results, read_result
from unmask.measures.table import find_measure, list_measures
from unmask.measures.trainings import join_openings
from unmask.report.provenance import describe_runs, show_value
from unmask.report.stored import add_stored

STUDY = "study"
"""What run.json of a study calls its verb; its folder holds a run folder for each stage."""
MOST_NUMBERS = 4
MOST_CONCLUSIONS = 4


@dataclass(frozen=True)
class Document:
    """A page: its heading, what it is about, and its sections."""

    title: str
    lead: str
    notices: Sequence[Notice]
    """About runs that could not be read."""
    sections: Sequence[Section]
    is_single: bool = True
    """Whether it is about one run."""

    @cached_property
    def opening(self) -> list[tuple[Section, Figure]]:
        """The figures of the first screen, with their sections: texts come first."""
        figures = [(section, figure) for section in self.sections for figure in section.opening]
        return sorted(figures, key=lambda each: each[1].chart != "unmasking")

    @cached_property
    def headline(self) -> str:
        """The sentence that a page about one run begins with, where a section has one."""
        sentences = [section.headline for section in self.sections if section.headline]
        return sentences[0] if sentences and self.is_single else ""

    @cached_property
    def conclusions(self) -> list[tuple[Section, Finding]]:
        """What a page of several measures shows, in a few sentences: each the first of its section,
        clear ones before others. Further stages of a measure say it again and are left out."""
        measures = list_measures()
        first = [(s, s.findings[0]) for s in self.sections if s.name in measures and s.findings]
        if not self.is_single or len(first) < 2:
            return []
        ranked = sorted(first, key=lambda each: not each[1].is_clear)[:MOST_CONCLUSIONS]
        return [each for each in first if each in ranked]

    @cached_property
    def numbers(self) -> list[Number]:
        """The numbers that stand on top."""
        return [each for section in self.sections for each in section.numbers][:MOST_NUMBERS]


@dataclass(frozen=True)
class Entry:
    """A result that takes part in a page, or the sentence in its place.

    Entries of one name are pooled: the name is the measure's, or that of the study's stage.
    """

    name: str
    measure: Measure | None
    run: str
    """The name of the run that was given; of a stage, the study's."""
    folder: Path
    result: Result | None = None
    notice: str = ""


@dataclass(frozen=True)
class Run:
    """A run folder that was given: of one measure, or a study's with all its stages."""

    name: str
    record: RunRecord
    entries: Sequence[Entry]
    stages: Sequence[dict[str, Any]] = ()
    """What the study noted of each stage."""

    @property
    def has_own_facts(self) -> bool:
        """Whether a file of one's own facts was asked, which has no directions of training."""
        return Path(str(self.record.settings.get("data"))).suffix in (".csv", ".jsonl", *PACKED)


def read_document(given: Sequence[str | Path | Result], join: bool = False) -> Document:
    """The page of these runs; one that cannot be read is an error only where it is the only one.

    With `join`, runs that were measured in one way become one, in which models of one name are one.
    """
    if not given:
        raise UserError("no run was given: expected folders of runs.")
    if any("\0" in str(run) for run in given if not isinstance(run, Result)):
        raise UserError("a run's name holds a null character: expected folders of runs.")
    if join:
        given = _join(given)
    names = name_folders([run.folder if isinstance(run, Result) else Path(run) for run in given])
    runs, errors = [], []
    for name, run in zip(names, given, strict=True):
        try:
            runs.append(_read_run(name, run))
        except UserError as error:
            errors.append(error)
    if not runs:
        raise errors[0]
    entries = [entry for run in runs for entry in run.entries]
    sections = [section for name in _order(entries) for section in _describe(name, entries)]
    if any(run.record.verb == STUDY and not run.has_own_facts for run in runs):
        sections = [add_stored(section) for section in sections]
    records = [(name, record, run.stages) for run in runs for name, record in _list_records(run)]
    stages = [
        (f"{entry.run}/{entry.name}", record, ())
        for run in runs
        if run.record.verb == STUDY
        for entry in run.entries
        if entry.result is not None
        for record in entry.result.records
    ]
    return Document(
        _write_title(runs),
        _write_lead(runs),
        [Notice(str(error)) for error in errors],
        [*sections, describe_runs([*records, *stages])],
        is_single=len(given) == 1,
    )


def _join(given: Sequence[str | Path | Result]) -> list[Result]:
    """One result for each measure and way of measuring."""
    groups: list[list[Result]] = []
    for run in given:
        result = run if isinstance(run, Result) else read_result(run)
        alike = (group for group in groups if group[0].measure.name == result.measure.name
                 and not list_differences([group[0], result]))  # fmt: skip
        group = next(alike, None)
        if group is None:
            groups.append([result])
        else:
            group.append(result)
    return list(map(join_openings, groups))


def _list_records(run: Run) -> Iterator[tuple[str, RunRecord]]:
    """How the run was made; of runs that were joined, each of them."""
    results = [entry.result for entry in run.entries if entry.result is not None]
    if run.record.verb == STUDY or len(results) != 1 or len(results[0].records) == 1:
        yield run.name, run.record
        return
    for number, record in enumerate(results[0].records, 1):
        yield f"{run.name}, run {number}", record


def _read_run(name: str, run: str | Path | Result) -> Run:
    if not isinstance(run, Result) and _is_study(find_folder(run)):
        return _read_study(name, Path(run))
    result = run if isinstance(run, Result) else read_result(run)
    entry = Entry(result.measure.name, result.measure, name, result.folder, result)
    return Run(name, result.records[0], [entry])


def _is_study(folder: Path) -> bool:
    if not (folder / "run.json").is_file():
        return False
    return read_record(folder).verb == STUDY


def _read_study(name: str, folder: Path) -> Run:
    """The stages that are there, and those that could not be measured; of one cut short, some."""
    record = read_record(folder)
    path = folder / "stages.json"
    stages = {stage["stage"]: stage for stage in (read_json(path) if path.is_file() else [])}
    folders = {place.parent.name: place.parent for place in sorted(folder.glob("*/run.json"))}
    entries = []
    for stage in dict.fromkeys([*stages, *folders]):
        noted = stages.get(stage, {"measure": stage, "missing": None})
        entry = Entry(stage, list_measures().get(noted["measure"]), name, folder)
        if noted["missing"] is not None:
            entries.append(replace(entry, notice=describe_notice(**noted["missing"])))
        else:
            entries.append(_read_stage(entry, folder / stage))
    if not entries:
        raise UserError(
            f"{folder} is a study without a finished stage: resume it with "
            f"`unmask study --resume --out {shlex.quote(str(folder))}`."
        )
    return Run(name, record, entries, list(stages.values()))


def _read_stage(entry: Entry, folder: Path) -> Entry:
    """The entry with its result, or with why it cannot be read."""
    try:
        result = read_result(folder)
    except UserError as error:
        return replace(entry, notice=str(error))
    return replace(entry, measure=result.measure, result=result)


def _order(entries: Sequence[Entry]) -> list[str]:
    """The names of the sections, in the order of the table of measures: recall comes first."""
    known = list(list_measures())

    def place(entry: Entry) -> int:
        name = entry.name if entry.measure is None else entry.measure.name
        return known.index(name) if name in known else len(known)

    return list(dict.fromkeys(entry.name for entry in sorted(entries, key=place)))


def _describe(name: str, entries: Sequence[Entry]) -> Iterator[Section]:
    """The section of that name: all its runs pooled, or one section for each and why."""
    entries = [entry for entry in entries if entry.name == name]
    # Pooled models are told apart by the folders that were given, not by those of stages.
    results = [replace(e.result, folder=e.folder) for e in entries if e.result is not None]
    broken = [Notice(entry.notice) for entry in entries if entry.result is None]
    if not results:
        measures = [entry.measure for entry in entries if entry.measure is not None]
        yield Section(name, measures[0].title if measures else name, broken)
        return
    measure, which = results[0].measure.name, ""
    if measure != name:  # a further stage of a measure
        which = f": {name.removeprefix(f'{measure}-')}"
    try:
        section = pool_results(results).section
        blocks = _fold_rest(section.blocks) if which else section.blocks
        title = f"{section.title}{which}"
        yield replace(section, name=name, title=title, blocks=[*broken, *blocks])
    except UserError as error:
        runs = [entry.run for entry in entries if entry.result is not None]
        reason = Notice(f"These runs stand below each other and are not pooled: {error}")
        for number, (run, result) in enumerate(zip(runs, results, strict=True)):
            section = result.section
            above = [*broken, reason] if number == 0 else []
            yield replace(
                section,
                name=f"{name}-{number + 1}",
                title=f"{section.title}{which}: {run}",
                blocks=[*above, *section.blocks],
            )


def _fold_rest(blocks: Sequence[ReportBlock]) -> list[ReportBlock]:
    """The blocks before the first figure or table, and the others folded away."""
    first = (i for i, block in enumerate(blocks) if isinstance(block, Figure | Table | Fold))
    at = next(first, len(blocks))
    return [*blocks[:at], Fold("Figures, tables and method", blocks[at:])]


def _write_title(runs: Sequence[Run]) -> str:
    """A heading that names the models of one run, or the runs."""
    if len(runs) > 1:
        return " and ".join(run.name for run in runs) + ", side by side"
    (run,) = runs
    models = " and ".join(run.record.inputs.get("models", ()))
    if run.record.verb == STUDY:
        return f"Facts forwards and backwards: {models}"
    title = find_measure(run.record.verb).title
    return f"{title}: {models}" if models and not title.endswith("?") else title


def _list_models(run: Run) -> list[str]:
    made = [record.inputs.get("models", ()) for _, record in _list_records(run)]
    return list(dict.fromkeys(name for names in made for name in names))


def _compare(runs: Sequence[Run]) -> str:
    """What runs beside each other were not made with alike."""
    unlike, records = [], [run.record for run in runs]
    models = [_list_models(run) for run in runs]
    if any(set(each) != set(models[0]) for each in models):
        unlike.append(f"models ({'; '.join(', '.join(each) or 'none' for each in models)})")
    data = [record.inputs.get(DIGESTS, {}).get("the data") for record in records]
    verbs = dict.fromkeys(record.verb for record in records)
    # Measures read different parts of a corpus, and have settings of their own.
    if len(verbs) == 1 and None not in data and any(each != data[0] for each in data):
        unlike.append("the data")
    for verb in verbs:
        group = [record.settings for record in records if record.verb == verb]
        for name in dict.fromkeys(name for settings in group for name in settings):
            values = [settings.get(name) for settings in group]
            if any(value != values[0] for value in values):
                unlike.append(f"{name} ({', '.join(map(show_value, values))})")
    if unlike:
        return f"Different: {', '.join(unlike)}."
    return "No setting differs." if len(verbs) == 1 else ""


def _write_lead(runs: Sequence[Run]) -> str:
    """One or two sentences on what the page is about."""
    if len(runs) > 1:
        return _compare(runs)
    if any(run.record.verb == STUDY for run in runs):
        sizes = {run.record.settings.get("size") for run in runs}
        small = " This is a quick look: the samples are small." if sizes == {"quick"} else ""
        return (
            "A language model that has learned “A is B” often cannot answer “B is A”: the reversal "
            "curse. Here the same facts are asked in both directions, and followed through the "
            f"networks that recall them.{small}"
        )
    verbs = dict.fromkeys(run.record.verb for run in runs)
    return " ".join(find_measure(verb).help for verb in verbs)
