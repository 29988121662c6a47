"""The study: every measure that takes part in it, in order, then one page of all of them.

A stage is a run folder of its measure inside the study's, so that `unmask report` draws it alone as
well. What is done is not done again; what a stage could not measure is stored as a code. A stage
that an error stopped is tried again when the study is resumed.
"""

import logging
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from unmask.base.config import CheckedSettings, build, check_arguments
from unmask.base.engines import find_engine
from unmask.base.errors import NotMeasuredError, UserError, suggest
from unmask.base.files import write_json
from unmask.base.identity import digest_values
from unmask.base.locks import RunRefusedError
from unmask.base.progress import announce, show_stages
from unmask.base.reading import read_json
from unmask.base.runs import DIGESTS, PAGE, RECORD, make_record, open_run, read_record
from unmask.base.work import WorkEngine
from unmask.measures import runner
from unmask.measures.inputs import RunFolders, digest_families, record_models
from unmask.measures.measure import Measure, Stage
from unmask.measures.runner import read_result, run_measure
from unmask.measures.table import list_measures
from unmask.study.inputs import find_asked, find_families, save_made_corpus
from unmask.study.pace import SAMPLE, Pace, count_units, count_usual, find_count
from unmask.study.settings import CORPUS, Size, StudySettings

if TYPE_CHECKING:
    from unmask.measures.result import Result

STAGES_FILE = "stages.json"

_log = logging.getLogger(__name__)

Report = Callable[[str, float | None], None]
"""Called when a stage is done, with its name and its seconds; None where it was done before."""


@dataclass(frozen=True)
class StudyRun:
    """A study's folder, as far as it goes."""

    folder: Path

    def records(self) -> dict[str, dict[str, Any]]:
        """What each finished stage took, and what it could not measure."""
        path = self.folder / STAGES_FILE
        return {entry["stage"]: entry for entry in read_json(path)} if path.is_file() else {}

    def is_done(self, stage: str) -> bool:
        """Whether a stage has ended, and its tables are still there.

        One that an error stopped, such as too little memory, or that had no run to read may
        succeed another time.
        """
        entry = self.records().get(stage)
        if entry is None:
            return False
        if entry["missing"] is not None:
            return entry["missing"]["code"] not in ("error", "no runs")
        return all((self.folder / stage / name).is_file() for name in entry["tables"])

    def results(self) -> "dict[str, Result]":
        """The results of the stages that measured something."""
        return {
            name: read_result(self.folder / name)
            for name, entry in self.records().items()
            if entry["missing"] is None
        }


def list_stages(size: str | None = None) -> dict[str, tuple[Measure, Stage]]:
    """The stages of a study of that size by name, in the order of the table of measures.

    Without a size, those of every size.
    """
    return {
        stage.name or measure.name: (measure, stage)
        for measure in list_measures().values()
        for stage in measure.stages
        if size is None or stage.sizes.get(size, {}) is not None
    }


@check_arguments()
def run_study(
    settings: StudySettings | None = None,
    out: str | Path = "runs/study",
    stages: Sequence[str] = (),
    report: Report | None = None,
    fresh: bool = False,
    on: str | None = None,
    **changes: Any,
) -> StudyRun:
    """Run the study in `out`, or some stages of it, and draw its page.

    A study that was stopped is resumed.

    Args:
        settings: Models, facts, how much is measured.
        out: The study's folder.
        stages: Names of the stages to run; all of them by default.
        report: Called after each stage with its name and its seconds, None where it was done
            before.
        fresh: Remove the study that `out` holds, and begin anew.
        on: Where stages are worked on, as by `unmask.base.engines`; by default in this process.
        changes: Settings by name, such as `size="quick"`.
    """
    from unmask.report.page import draw_report

    began = time.perf_counter()
    settings, engine = build(StudySettings, changes, "unmask.run_study", settings), find_engine(on)
    known = list_stages(settings.size)
    for name in stages:
        if name not in known:
            raise UserError(_describe_unknown(name, settings.size))
    wanted = [name for name in known if not stages or name in stages]
    with ExitStack() as stack:
        study = stack.enter_context(_open(settings, Path(out), fresh))
        pace = _find_pace(study, settings, wanted)
        costs = {name: count_units(name, number) for name, number in pace.left.items()}
        shown = show_stages([*wanted, "page"], lambda name: costs.get(name, 0.0))
        show = stack.enter_context(shown)
        for name in wanted:
            show(name, False)
            start, used = time.perf_counter(), time.process_time()
            was_done = study.is_done(name)
            if not was_done:
                counts = _choose_counts(study, settings, name, pace, start - began)
                entry = _run_stage(study, settings, name, *known[name], engine, counts)
                seconds = time.perf_counter() - start
                used = time.process_time() - used
                _record(study, entry | {"seconds": seconds, "processor_seconds": used})
                pace.end(name, counts, seconds, entry["missing"] is None)
            show(name, True)
            if report is not None:
                report(name, None if was_done else time.perf_counter() - start)
        show("page", False)
        draw_report([study.folder], study.folder / PAGE)
        show("page", True)
    return study


def _find_pace(study: StudyRun, settings: StudySettings, stages: Sequence[str]) -> Pace:
    """What is left to do and how fast it goes, by a moment's work; said where it is known."""
    known = list_stages(settings.size)
    pace = Pace({name: count_usual(name, known[name][1].sizes.get("laptop")) for name in stages
                 if not study.is_done(name)} | {"page": 0})  # fmt: skip
    if settings.size != "laptop" or len(pace.left) == 1:
        return pace
    with suppress(UserError):  # where it cannot be run, its stage says why
        with announce("how fast this machine is"):
            pace.time_sample(find_sample(study, settings, *known[SAMPLE]))
        if settings.within is None:
            speed = "at the speed of the first seconds"
            _log.info("%s %s; --within MINUTES chooses sizes", pace.say(), speed)
        elif pace.estimate(0.0) > 60 * settings.within:
            too_little = "--within %g is too little: the smallest study takes %s"
            _log.warning(too_little, settings.within, pace.say(0.0))
    return pace


def find_sample(
    study: StudyRun, settings: StudySettings, measure: Measure, stage: Stage
) -> Callable[[], object]:
    """A piece of a study's work: the first job of a stage, with a prompt of each split."""
    chosen = choose_settings(study, settings, measure, stage, {"limit": 1})
    inputs = measure.inputs.read(_choose_inputs(study, settings, measure, stage), chosen)
    return next(iter(measure.jobs(inputs, chosen))).work


def _choose_counts(
    study: StudyRun, settings: StudySettings, name: str, pace: Pace, passed: float
) -> dict[str, int]:
    """How many prompts or facts a stage has, where that is not as usual."""
    count = find_count(name, list_stages()[name][1].sizes.get("laptop"))
    if count is None or settings.size != "laptop":
        return {}
    if (study.folder / name / RECORD).is_file():  # what was begun keeps its size
        return {count: read_record(study.folder / name).settings[count]}
    within = settings.within
    return {} if within is None else {count: pace.choose(name, 60 * within - passed)}


def _describe_unknown(stage: str, size: str) -> str:
    sizes = [each for each in get_args(Size) if stage in list_stages(each)]
    if not sizes:
        return f"the study has no stage {stage!r}: {suggest(stage, list_stages(size))}"
    return (
        f"a study of the size {size} has no stage {stage!r}: use --size {' or '.join(sizes)}, and "
        "another folder."
    )


@check_arguments()
def resume_study(
    out: str | Path,
    stages: Sequence[str] = (),
    report: Report | None = None,
    fresh: bool = False,
    on: str | None = None,
) -> StudyRun:
    """Go on with the study in `out`, with its own settings.

    Args:
        out: The study's folder.
        stages: Names of the stages to run; all of them by default.
        report: Called after each stage, as by `unmask.run_study`.
        fresh: Remove what the study has done, and begin it anew.
        on: Where stages are worked on, as by `unmask.run_study`.
    """
    record = read_record(out)
    if record.verb != "study":
        raise UserError(f"{out} holds a run of `unmask {record.verb}`, expected a study.")
    settings = build(StudySettings, record.settings, f"{out}/run.json")
    return run_study(settings, out, stages, report, fresh, on)


@contextmanager
def _open(settings: StudySettings, out: Path, fresh: bool) -> Generator[StudyRun]:
    """The study's folder, once models and facts are known to be what a study needs."""
    from unmask.base.devices import resolve_dtype

    if settings.dtype != "auto":
        resolve_dtype(settings.dtype)
    families, corpus = find_families(settings), find_asked(settings, out, fresh)
    contents = digest_values(corpus.splits.items())
    inputs = record_models(families) | {
        DIGESTS: digest_families(families) | {"the data": {"contents": contents}}
    }
    record = make_record("study", settings.to_record(), inputs, device=settings.device)
    before = read_record(out).settings if (out / RECORD).is_file() else settings.to_record()
    files = list_study_files(before.get("data") is None)
    with open_run(
        out, record, loose=frozenset({"device", "within"}), files=files, fresh=fresh
    ) as folder:
        if settings.data is None and not (folder / CORPUS / "corpus.json").is_file():
            save_made_corpus(corpus, folder / CORPUS, families[0])
        yield StudyRun(folder)


def list_study_files(makes_corpus: bool) -> list[str]:
    """Patterns of all files that a study leaves in its folder, those of its stages among them."""
    stages = [
        f"{stage}/{pattern}"
        for stage, (measure, _) in list_stages().items()
        for pattern in (*runner.list_run_files(measure), RECORD)
    ]
    corpus = [f"{CORPUS}/{name}" for name in ("*.jsonl", "*.json")] if makes_corpus else []
    return [*stages, *corpus, STAGES_FILE]


def _run_stage(
    study: StudyRun,
    settings: StudySettings,
    name: str,
    measure: Measure,
    stage: Stage,
    engine: WorkEngine | None,
    counts: Mapping[str, int],
) -> dict[str, Any]:
    """Run a stage; what stops it as a whole is stored as a code with its values."""
    entry: dict[str, Any] = {"stage": name, "measure": measure.name, "missing": None}
    try:
        chosen = choose_settings(study, settings, measure, stage, counts)
        given = _choose_inputs(study, settings, measure, stage)
        inputs = measure.inputs.read(given, chosen)
        run_measure(measure, inputs, chosen, study.folder / name, engine=engine, given=given)
    except NotMeasuredError as error:
        return entry | {"tables": [], "missing": {"code": error.code, "values": error.values}}
    except RunRefusedError:
        raise
    except UserError as error:
        values = {"message": str(error)}
        return entry | {"tables": [], "missing": {"code": "error", "values": values}}
    return entry | {"tables": [f"{table}.parquet" for table in measure.tables]}


def choose_settings(
    study: StudyRun,
    settings: StudySettings,
    measure: Measure,
    stage: Stage,
    counts: Mapping[str, int] = MappingProxyType({}),
) -> CheckedSettings:
    """A measure's settings: the size's, else the study's of the same name, else its defaults.

    `counts` take the place of the size's.
    """
    from unmask.base.devices import choose_dtype

    own = {field.name for field in fields(measure.settings)}
    shared = {"guidance", "metric", "seed", "dtype", "device"} & own
    values = {name: getattr(settings, name) for name in shared}
    takes_one = get_type_hints(measure.settings).get("guidance") is float
    if isinstance(settings.guidance, tuple) and takes_one:
        values["guidance"] = settings.guidance[0]  # what takes one strength has the first
    values |= {**(stage.sizes.get(settings.size) or {}), **counts}
    if values.get("dtype") == "auto":
        # A stage that leaves the choice to the file does not do so in a study.
        on_gpu = getattr(measure.settings, "dtype_on_gpu", "auto")
        on_gpu = "float32" if on_gpu == "auto" else on_gpu
        values["dtype"] = choose_dtype("auto", settings.device, on_gpu, "float32")
    if stage.adjust is not None:
        folders = {name: study.folder / name for name in study.results()}
        values |= stage.adjust(folders)
    return build(measure.settings, values, f"the study's stage {stage.name or measure.name}")


def _choose_inputs(
    study: StudyRun, settings: StudySettings, measure: Measure, stage: Stage
) -> Mapping[str, Any]:
    if isinstance(measure.inputs, RunFolders):
        of = measure.inputs.of
        runs = [result.folder for result in study.results().values() if result.measure.name == of]
        if not runs:
            raise NotMeasuredError("no runs", measure=of)
        return {"runs": runs}
    models = [name for name in settings.pair if name is not None]
    data = settings.data if settings.data is not None else str(study.folder / CORPUS)
    return {"models": models[:1] if stage.models == "diffusion" else models, "data": data}


def _record(study: StudyRun, entry: dict[str, Any]) -> None:
    entries = study.records() | {entry["stage"]: entry}
    ordered = [entries[name] for name in list_stages() if name in entries]
    write_json(study.folder / STAGES_FILE, ordered)
