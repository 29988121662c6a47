"""Running a measure: parts that resume, tables, the summary; and reading and pooling finished runs.

run_measure     inputs + settings → a run folder, and its `Result`
read_result     a run folder → its `Result`, without a model
pool_results    several results of one measure → one
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from unmask.base.code import PLAIN, digest_code
from unmask.base.config import CheckedSettings, build
from unmask.base.errors import UserError
from unmask.base.identity import digest_file
from unmask.base.locks import RunRefusedError
from unmask.base.plugins import describe_plugins, require_plugins
from unmask.base.progress import announce, track
from unmask.base.runs import RunRecord, check_run, find_folder, make_record, open_run, read_record
from unmask.base.tables import Parts, has_rows, read_table, write_table
from unmask.measures.contract import Inputs, Job, Rows, Tables
from unmask.measures.result import FolderTables, Result, list_differences, name_dtypes, name_folders
from unmask.measures.settings import MachineSettings
from unmask.measures.table import MEASURES, find_measure, is_shipped, list_own_files
from unmask.measures.trainings import join_trainings, stack_tables, unite

if TYPE_CHECKING:
    import pyarrow

    from unmask.measures.measure import Measure

_log = logging.getLogger(__name__)

SUMMARY = "summary"
MEASURE = "the measure"
"""Whose code a record of a run has, beside that of functions that were given."""
_PATIENCE = 30.0
"""Seconds that the first process waits for others without a word."""


def settle(settings: CheckedSettings) -> CheckedSettings:
    """The settings with what depends on this machine decided, as inputs and records need them."""
    return settings.settle() if isinstance(settings, MachineSettings) else settings


def run_measure(
    measure: "Measure",
    inputs: Inputs,
    settings: CheckedSettings,
    folder: Path,
    fresh: bool = False,
    shard: str | None = None,
    rank: int = 0,
    world: int = 1,
) -> Result | None:
    """Run what is missing of a measure in `folder`, and write its tables and its summary.

    With `fresh` the run that the folder holds is removed first, as is another run of this measure
    that was refused before it had a row. Of `world` processes each works on its share of the jobs;
    they share nothing but the folder. The first one (`rank` 0) waits for the others and
    gathers the tables; they return None. With `shard` "i/n" this process works on the i-th of n
    shares and waits for none of the others: it gathers the tables if all parts are there, and else
    returns None.
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
    if shard is not None:
        if world > 1:
            raise UserError(
                f"--shard {shard} was given to {world} processes of torchrun, which share the work "
                "themselves: leave it out, or start the processes one by one."
            )
        rank, world = parse_shard(shard)
    files = list_run_files(measure)
    fresh = fresh or (world == 1 and gives_way)
    with open_run(folder, record, loose=loose, files=files, fresh=fresh, rank=rank, world=world):
        return _run_jobs(measure, jobs, settings, folder, rank, world, waits=shard is None)


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


def parse_shard(shard: str) -> tuple[int, int]:
    """The number of a share, from 0, and of all shares, given as "i/n" with i from 1."""
    number, _, count = shard.partition("/")
    is_number = len(shard) < 20 and number.isdecimal() and count.isdecimal()
    if not (is_number and 1 <= int(number) <= int(count)):
        raise UserError(
            f"--shard is {shard!r:.60}: expected i/n, such as 1/4 for the first of four."
        )
    return int(number) - 1, int(count)


def list_run_files(measure: "Measure") -> list[str]:
    """Patterns of all files that a run of the measure leaves in its folder."""
    tables = [f"{name}.parquet" for name in measure.tables]
    parts = [f"parts/{name}/*.parquet" for name in measure.tables]
    return [*tables, *parts, f"{SUMMARY}/*.parquet"]


def _run_jobs(
    measure: "Measure",
    jobs: Sequence[Job],
    settings: CheckedSettings,
    folder: Path,
    rank: int,
    world: int,
    waits: bool,
) -> Result | None:
    parts = {
        name: Parts(folder / "parts" / name, schema) for name, schema in measure.tables.items()
    }
    # The last table's part is written last: with it, all parts of a job are there.
    done = parts[list(parts)[-1]]
    missing = [job for job in jobs[rank::world] if not done.has(job.key)]
    shown = track(missing, measure.name, len(missing), in_lines=True, cost=lambda job: job.cost)
    with closing(shown) as tracked:
        for job in tracked:
            _work(job, parts)

    if waits and rank == 0:
        _wait_for(jobs, done, world)
    if (waits and rank != 0) or not all(done.has(job.key) for job in jobs):
        return None
    tables, record = FolderTables(folder, measure.tables), read_record(folder)
    dtype = name_dtypes([record])
    for name in measure.tables:
        parts[name].gather((job.key for job in jobs), folder / f"{name}.parquet", dtype)
    result = Result(measure, settings, (record,), tables, folder)
    for name, rows in result.summary.items():
        path = folder / SUMMARY / f"{name}.parquet"
        write_table(path, rows, summary_schema(measure, name), dtype)
    return result


def _wait_for(jobs: Sequence[Job], done: Parts, world: int) -> None:
    """Return once the other processes have written their parts; if one fails, torchrun ends all."""
    due: float | None = time.monotonic() + _PATIENCE
    while missing := sum(not done.has(job.key) for job in jobs):
        if due is not None and time.monotonic() >= due:
            _log.warning(
                "%d of %d parts are still to come from the other processes: WORLD_SIZE is %d. If "
                "they were not started, stop this one, and unset RANK and WORLD_SIZE.",
                missing, len(jobs), world,
            )  # fmt: skip
            due = None
        time.sleep(1.0)


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
