"""Running a measure: parts that resume, tables, the summary; and reading and pooling finished runs.

run_measure     inputs + settings → a run folder, and its `Result`
read_result     a run folder → its `Result`, without a model
pool_results    several results of one measure → one
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.base.code import PLAIN, digest_code
from unmask.base.config import CheckedSettings, build
from unmask.base.errors import UserError
from unmask.base.identity import digest_file
from unmask.base.locks import RunRefusedError
from unmask.base.plugins import describe_plugins, require_plugins
from unmask.base.progress import announce
from unmask.base.runs import RunRecord, check_run, find_folder, make_record, open_run, read_record
from unmask.base.tables import Parts, has_rows, read_table, write_table
from unmask.base.work import FOLDER as WORK
from unmask.base.work import WorkEngine, run_jobs
from unmask.measures.contract import Inputs, Job, Rows, Tables
from unmask.measures.result import FolderTables, Result, list_differences, name_dtypes, name_folders
from unmask.measures.settings import MachineSettings
from unmask.measures.table import MEASURES, find_measure, is_shipped, list_own_files
from unmask.measures.trainings import join_trainings, stack_tables, unite

if TYPE_CHECKING:
    import pyarrow

    from unmask.measures.measure import Measure

SUMMARY = "summary"
MEASURE = "the measure"
"""Whose code a record of a run has, beside that of functions that were given."""


def settle(settings: CheckedSettings) -> CheckedSettings:
    """The settings with what depends on this machine decided, as inputs and records need them."""
    return settings.settle() if isinstance(settings, MachineSettings) else settings


def run_measure(
    measure: "Measure",
    inputs: Inputs,
    settings: CheckedSettings,
    folder: Path,
    fresh: bool = False,
    engine: WorkEngine | None = None,
    given: Mapping[str, Any] | None = None,
) -> Result:
    """Run what is missing of a measure in `folder`, and write its tables and its summary.

    With `fresh` the run that the folder holds is removed first, as is another run of this measure
    that was refused before it had a row. Without an engine this process does the jobs, and the
    first that fails ends the run. The workers of an `engine` read the inputs by themselves, from
    what was `given`; one job that fails stops no other, and another command may join.
    """
    known = fields(settings)
    loose = frozenset(each.name for each in known if not each.metadata.get("is_identity", True))
    device = getattr(settings, "device", "cpu")
    record = make_record(
        measure.name,
        settings.to_record(),
        inputs.record(),
        measure.tables,
        device,
        _digest_code(measure, settings),
        describe_plugins(_list_chosen(measure, inputs, settings)),
    )
    # Before jobs are made, which may ask a model.
    gives_way = not fresh and _gives_way(measure, folder, record, loose)
    with announce(f"{measure.name}, what is asked"):
        jobs = list(measure.jobs(inputs, settings))
    if not jobs:
        raise UserError(f"{measure.name}: there is nothing to measure in what was given.")
    files, shared = list_run_files(measure), engine is not None
    options: dict[str, Any] = {"fresh": fresh or gives_way, "shared": shared}
    with open_run(folder, record, loose=loose, files=files, **options):
        work = MeasureWork(measure, settings, folder, given or {}, {job.key: job for job in jobs})
        _do_jobs(work, engine)
        return _gather(work)


def _list_chosen(
    measure: "Measure", inputs: Inputs, settings: CheckedSettings
) -> Iterator[tuple[str, object]]:
    """What takes part by its name: the measure, strategies among its settings, models' noise."""
    if measure.name in MEASURES and MEASURES[measure.name] is measure:
        yield "measure", measure.name
    for field in fields(settings):
        if kind := field.metadata.get("plugin"):
            value = getattr(settings, field.name)
            yield from ((kind, each) for each in (value if isinstance(value, tuple) else (value,)))
    yield from (("noise", family.kind) for family in getattr(inputs, "families", ()))


def _digest_code(measure: "Measure", settings: CheckedSettings) -> dict[str, dict[str, str]]:
    """Digests of a measure's code and of the functions among its settings, by what they are."""
    return {MEASURE: digest_measure(measure)} | {
        f"the {name} given": {"code": digest_code(value)}
        for name, value in vars(settings).items()
        if not isinstance(value, (*PLAIN, tuple))
    }


def digest_measure(measure: "Measure") -> dict[str, str]:
    """Digests of a measure's own files and, where it is not this package's, of its functions.

    Those of a notebook have no file, and several may be made in one.
    """
    files = list_own_files(measure)
    own = {f"code in {path.name}": digest_file(path) for path in files}
    if not is_shipped(measure):
        functions = [each for each in vars(measure).values() if callable(each)]
        own["functions"] = digest_code(*functions, measure.inputs)
    return own


def _gives_way(measure: "Measure", folder: Path, record: RunRecord, loose: frozenset[str]) -> bool:
    """Whether a folder holds another run, one without a row; any other run but this is refused."""
    try:
        check_run(folder, record, loose)
    except RunRefusedError:
        name, is_other = measure.name, read_record(folder).verb != measure.name
        paths = [*folder.glob(f"{name}.parquet"), *folder.glob(f"parts/{name}/*.parquet")]
        if is_other or (folder / SUMMARY).exists() or has_rows(paths):
            raise
        return True
    return False


def list_run_files(measure: "Measure") -> list[str]:
    """Patterns of all files that a run of the measure leaves in its folder."""
    tables = [f"{name}.parquet" for name in measure.tables]
    parts = [f"parts/{name}/*.parquet" for name in measure.tables]
    return [*tables, *parts, f"{SUMMARY}/*.parquet", f"{WORK}/*", f"{WORK}/slurm/*"]


@dataclass
class MeasureWork:
    """The jobs of a run. In another process they are made anew, from what names its inputs."""

    measure: "Measure"
    settings: CheckedSettings
    folder: Path
    given: Mapping[str, Any]
    jobs: Mapping[str, Job]
    deadline: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"measure": self.measure.name, "jobs": {}}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state, measure=find_measure(state["measure"]))

    @cached_property
    def parts(self) -> dict[str, Parts]:
        """The parts of each table; a job's part of the last one is written last."""
        tables = self.measure.tables.items()
        return {name: Parts(self.folder / "parts" / name, schema) for name, schema in tables}

    def is_done(self, key: str) -> bool:
        return self.parts[list(self.parts)[-1]].has(key)

    def open(self) -> Callable[[str], None]:
        if not self.jobs:
            inputs = self.measure.inputs.read(self.given, self.settings)
            self.jobs = {job.key: job for job in self.measure.jobs(inputs, self.settings)}
        return lambda key: _work(self.jobs[key], self.parts)


def _do_jobs(work: MeasureWork, engine: WorkEngine | None) -> None:
    """Do all jobs; the first error is raised, here at once, of an engine after the others."""
    costs, first = {key: job.cost for key, job in work.jobs.items()}, None
    with closing(run_jobs(work, costs, engine, work.measure.name)) as ended:
        for _, error in ended:
            first = first or error
            if first is not None and engine is None:
                break
    if first is not None:
        raise first


def _gather(work: MeasureWork) -> Result:
    """The result of all parts, with its tables and its summary written."""
    measure, folder = work.measure, work.folder
    tables, record = FolderTables(folder, measure.tables), read_record(folder)
    dtype = name_dtypes([record])
    for name in measure.tables:
        work.parts[name].gather(work.jobs, folder / f"{name}.parquet", dtype)
    result = Result(measure, work.settings, (record,), tables, folder)
    for name, rows in result.summary.items():
        path = folder / SUMMARY / f"{name}.parquet"
        write_table(path, rows, summary_schema(measure, name), dtype)
    return result


def _work(job: Job, parts: Mapping[str, Parts]) -> None:
    rows = job.work()
    if unknown := rows.keys() - parts.keys():
        raise UserError(
            f"the part {job.key} gives the table {', '.join(sorted(unknown))}, which the measure "
            f"does not have: its tables are {', '.join(parts)}."
        )
    for name, store in parts.items():
        store.write(job.key, rows.get(name, ()))


def summary_schema(measure: "Measure", name: str) -> str:
    """A summary's tables have the version of the main table that they are made from."""
    version = next(iter(measure.tables.values())).rpartition("/")[2]
    return f"{measure.name}-{name}/{version}"


def read_result(folder: str | Path) -> Result:
    """The result in a run folder; a study's folder, another version's or no run's is refused."""
    folder = find_folder(folder)
    record = read_record(folder)
    drawn = ("measure.", "metric.", "rule.")  # what else took part is not needed to read rows
    needed = {key: origin for key, origin in record.plugins.items() if key.startswith(drawn)}
    require_plugins(needed, str(folder))
    measure = find_measure(record.verb)
    dropped = measure.settings.dropped
    known = {name: value for name, value in record.settings.items() if name not in dropped}
    settings = build(measure.settings, known, f"{folder}/run.json")
    tables = FolderTables(folder, measure.tables)
    is_complete = all((folder / f"{name}.parquet").is_file() for name in measure.tables)
    if not is_complete and not Parts(folder / "parts" / measure.name, "").keys():
        raise UserError(
            f"{folder} holds no finished part of `unmask {measure.name}` yet: run it to its end."
        )
    return Result(measure, settings, (record,), tables, folder, is_complete=is_complete)


def read_summary(measure: "Measure", folder: Path) -> dict[str, Rows]:
    """The statistics that a run wrote, for those who have its summary and not all of its rows."""
    return {
        path.stem: read_table(path, summary_schema(measure, path.stem)).to_pylist()
        for path in sorted((folder / SUMMARY).glob("*.parquet"))
    }


def pool_results(results: Sequence[Result]) -> Result:
    """Several results of one measure as one; models of one name are told apart by their runs."""
    if len(results) == 1:
        return results[0]
    # A measure that pools by itself checks by itself what must be alike.
    if (pool := results[0].measure.pool) is not None:
        return unite(results, pool(results))
    return unite(results, pool_tables(results), list_differences(results))


def pool_tables(results: Sequence[Result]) -> Tables:
    """Rows one below the other; where two runs have a model of one name, both are renamed, unless
    they are two trainings of it, with the roles of its facts swapped."""
    if (joined := join_trainings(results)) is not None:
        return joined
    names = [name for result in results for name in _list_models(result)]
    twice = {name for name in names if names.count(name) > 1}
    labels = name_folders([result.folder for result in results])
    renamed = [{name: f"{label}: {name}" for name in twice} for label in labels]
    return stack_tables(results, renamed, rename_models)


def _list_models(result: Result) -> list[str]:
    """The models that any table of a result is about."""
    models: dict[str, None] = {}
    for name in result.measure.tables:
        if "model" in (table := result.tables[name]).column_names:
            models |= dict.fromkeys(table["model"].unique().to_pylist())
    return list(models)


def rename_models(table: "pyarrow.Table", names: Mapping[str, str]) -> "pyarrow.Table":
    """The table with its column `model` renamed."""
    import pyarrow

    if "model" not in table.column_names or not names:
        return table
    renamed = [names.get(model, model) for model in table["model"].to_pylist()]
    at = table.column_names.index("model")
    return table.set_column(at, "model", pyarrow.array(renamed, pyarrow.string()))
