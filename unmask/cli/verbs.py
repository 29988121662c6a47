"""The verbs of measures, all derived from the table of measures."""

import json
import shlex
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from unmask.base.config import CheckedSettings
from unmask.base.engines import ON, find_engine
from unmask.base.errors import UserError
from unmask.base.progress import announce
from unmask.base.work import WorkEngine
from unmask.cli.exits import note_when_stopped, repeat_command
from unmask.cli.options import add_option, make_command
from unmask.measures.measure import Measure


def make_verb(measure: Measure) -> Any:
    """The command of one measure."""
    out, again = Path("runs") / measure.name, "Remove the run that --out holds, and begin anew."
    extras = (
        add_option("out", Path, out, "Folder of the run; resumes what it holds."),
        add_option("fresh", bool, False, again),
        add_option("on", str | None, None, ON),
        add_option("page", Path | None, None, "Also draw the result to this .html or .md file."),
        add_option("show_all", bool, False, "Print all tables, whole.", "--all"),
        add_option("as_json", bool, False, "Print the summary as JSON instead.", "--json"),
    )

    arguments, call = measure.inputs.parameters(), partial(run_verb, measure)
    return make_command(measure.name, measure.help, arguments, measure.settings, extras, call)


def run_verb(
    measure: Measure, given: Mapping[str, Any], settings: CheckedSettings, extras: Mapping[str, Any]
) -> None:
    """Run a measure and show what it found."""
    from rich.console import Console

    from unmask.measures.runner import run_measure, settle
    from unmask.report.render_terminal import show_section

    out, page, engine = extras["out"], extras["page"], find_engine(extras["on"])
    if page is not None:
        from unmask.report.page import check_place

        check_place(page)
    with note_when_stopped(lambda: _describe_rest(out)):
        _check_dtype(settings, engine)
        settings = settle(settings)
        with announce(f"{measure.name}, reading models and data"):
            inputs = measure.inputs.read(given, settings)
        result = run_measure(measure, inputs, settings, out, extras["fresh"], engine, given)
    if page is not None:
        from unmask.report.page import draw_report

        draw_report([out], page)
    if extras["as_json"]:
        json.dump({"summary": result.summary}, sys.stdout, default=str)
        print()
        return
    console = Console()
    show_section(console, result.section, extras["show_all"])
    drawn = f"page: {page}" if page else f"draw it: unmask report {shlex.quote(str(out))}"
    more = "" if extras["show_all"] else "; all of it here: --all"
    console.print(f"tables: {out}; {drawn}{more}", markup=False, highlight=False, soft_wrap=True)


def _check_dtype(settings: CheckedSettings, engine: WorkEngine | None) -> None:
    """Refuse to choose a dtype on this machine for others that have GPUs."""
    import torch

    is_open = getattr(engine, "gpus", 0) and getattr(settings, "dtype", "") == "auto"
    if is_open and not torch.cuda.is_available():
        raise UserError(
            "--on asks for GPUs, and there is none here, where the dtype auto is decided: add "
            "--dtype float32 or --dtype bfloat16."
        )


def _describe_rest(out: Path) -> str | None:
    """What a run that was stopped leaves, and how it is resumed."""
    if not (out / "run.json").is_file():
        return None
    return f"what is done is kept in {out}; go on where it stopped with: {repeat_command()}"
