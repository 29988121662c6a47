"""The study from data to page, stage by stage; what is done is not done again."""

import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from unmask.base.devices import describe_device, resolve_device
from unmask.base.errors import UserError, suggest
from unmask.base.files import write_json
from unmask.base.progress import show_stages
from unmask.report.artefacts import ENVIRONMENT, PAGE, Mark, StudyFolder
from unmask.report.page import write_page
from unmask.report.study_figures import draw_figures
from unmask.study import measuring, symmetry, tracing
from unmask.study.bench import Bench
from unmask.study.outcome import Outcome
from unmask.study.settings import STAGES, Study

Tell = Callable[[str, float | None], None]
"""Told of a stage that is done: its name and its seconds; None where it was there already."""


def run_study(
    settings: Study,
    out: Path,
    stages: Sequence[str] = STAGES,
    device: str = "auto",
    tell: Tell | None = None,
) -> StudyFolder:
    """The folder of the study, with the stages asked for done; `data` always comes first."""
    for name in stages:
        if name not in STAGES:
            raise UserError(f"the study has no stage {name!r}: {suggest(name, STAGES)}")
    wanted = [name for name in STAGES if name in stages or name == "data"]
    bench = Bench(settings, out, device)
    _note_environment(bench)
    found = StudyFolder(bench.folder)
    with show_stages(wanted) as show:
        for name in wanted:
            show(name, False)
            start = time.perf_counter()
            # The page is cheap, and may be older than what it shows.
            there = name != "page" and is_done(found, name)
            if not there:
                outcome = _WORK[name](bench)
                seconds = time.perf_counter() - start
                _mark(bench.folder, name, outcome, seconds)
            show(name, True)
            if tell is not None:
                tell(name, None if there else seconds)
    return found


def is_done(folder: StudyFolder, stage: str) -> bool:
    """Whether a stage has left its mark and its artefacts are still there."""
    mark = folder.mark(stage)
    return mark is not None and all(folder.has(name) for name in mark.artefacts)


def _draw_page(bench: Bench) -> Outcome:
    found = StudyFolder(bench.folder)
    draw_figures(found)
    write_page([found], bench.folder / PAGE)
    return Outcome((PAGE,))


_WORK: dict[str, Callable[[Bench], Outcome]] = {
    "data": measuring.ask,
    "recall": measuring.recall,
    "denoising": measuring.denoise,
    "tracing": tracing.trace,
    "symmetry": symmetry.find_symmetry,
    "page": _draw_page,
}


def _mark(folder: Path, stage: str, outcome: Outcome, seconds: float) -> None:
    mark = Mark(stage=stage, seconds=seconds, artefacts=outcome.artefacts, notes=outcome.notes)
    write_json(folder / "stages" / f"{stage}.json", asdict(mark))


def _note_environment(bench: Bench) -> None:
    """What the study was begun on; of a study in several sittings the first."""
    if (bench.folder / ENVIRONMENT).is_file():
        return
    device = resolve_device(bench.device)
    write_json(
        bench.folder / ENVIRONMENT,
        {
            "device": str(device),
            "machine": describe_device(device),
            "system": f"{platform.system()} {platform.machine()}",
            "cores": os.cpu_count(),
        },
    )
