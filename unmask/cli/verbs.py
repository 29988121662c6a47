"""The verbs of measures, all derived from the table of measures."""

import json
import shlex
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from unmask.base.config import CheckedSettings
from unmask.base.devices import read_ranks
from unmask.base.progress import announce
from unmask.cli.exits import note_when_stopped, repeat_command
from unmask.cli.options import add_option, make_command
from unmask.measures.measure import Measure


def make_verb(measure: Measure) -> Any:
    """The command of one measure."""
    out, again = Path("runs") / measure.name, "Remove the run that --out holds, and begin anew."
    share = "Work on one of several shares of the run, such as 1/4; the last to end merges."
    extras = (
        add_option("out", Path, out, "Folder of the run; resumes what it holds."),
        add_option("fresh", bool, False, again),
        add_option("shard", str | None, None, share),
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

    out, shard, page = (extras[name] for name in ("out", "shard", "page"))
    if page is not None:
        from unmask.report.page import check_place

        check_place(page)
    with note_when_stopped(lambda: _describe_rest(out)):
        settings = settle(settings)
        with announce(f"{measure.name}, reading models and data"):
            inputs = measure.inputs.read(given, settings)
        # As torchrun sets them. A call from Python does not read them: a notebook may have them.
        rank, world, _ = read_ranks()
        result = run_measure(measure, inputs, settings, out, extras["fresh"], shard, rank, world)
    if result is None:  # another process of several shows it
        if shard is not None:
            print(f"share {shard} is done, others are not yet; the last one writes the tables")
        return
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


def _describe_rest(out: Path) -> str | None:
    """What a run that was stopped leaves, and how it is resumed."""
    if not (out / "run.json").is_file():
        return None
    return f"what is done is kept in {out}; go on where it stopped with: {repeat_command()}"
