"""The command `unmask`: its verbs, and how its mistakes are shown."""

import logging
import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from unmask import __version__
from unmask.cli import data, explore, harness, models, sample, study, sweep, toy, train
from unmask.cli.exits import MISTAKE, explain_errors, show_any_text, stop_alike
from unmask.cli.verbs import add_measures


class Verbs(TyperGroup):
    """All commands; each is in `stop_alike`, since typer makes an exit code of what stops it."""

    def invoke(self, ctx: Any) -> Any:
        with stop_alike():
            return super().invoke(ctx)


app = typer.Typer(
    name="unmask",
    cls=Verbs,
    help="Train, sample, evaluate and open up diffusion language models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
BEGIN, TRAIN, MODELS = "Begin here", "Train", "Models"
"""Headings of the list of commands; measures have their own."""
app.command("study", rich_help_panel=BEGIN)(study.make_study())
app.command("report", rich_help_panel=BEGIN)(study.report)
app.command("sample", rich_help_panel=BEGIN)(sample.sample)
app.command("explore", rich_help_panel=BEGIN)(explore.explore)
add_measures(app)
app.command("harness", rich_help_panel="Texts")(harness.harness)
app.command("train", rich_help_panel=TRAIN)(train.train_recipe)
app.command("sweep", rich_help_panel=TRAIN)(sweep.sweep)
app.add_typer(data.app, name="data", rich_help_panel=TRAIN)
app.command("toy", rich_help_panel=TRAIN)(toy.make_toy())
app.command("models", rich_help_panel=MODELS)(models.models)
app.command("info", rich_help_panel=MODELS)(models.info)
app.command("convert", rich_help_panel=MODELS)(models.convert)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"unmask {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Show the version."
    ),
) -> None:
    pass


def run_command_line() -> None:
    """Run the command line; a user's mistake is one sentence on stderr and exit code 2."""
    show_any_text()
    _show_log()
    with stop_alike(), explain_errors():
        try:
            status = app(standalone_mode=False)
        except Exception as error:
            show = getattr(error, "show", None)  # a usage error of the command line's library
            if show is None:
                raise
            show()
            sys.exit(getattr(error, "exit_code", MISTAKE))
        sys.exit(status if isinstance(status, int) else 0)


class _StderrHandler(logging.Handler):
    """Writes to what is `sys.stderr` at that moment: a progress display stands in for it."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr)


def _show_log() -> None:
    """Have the package's log shown on stderr; of several processes only the first says it all."""
    log = logging.getLogger("unmask")
    log.setLevel(logging.INFO if os.environ.get("RANK", "0") == "0" else logging.WARNING)
    if not any(isinstance(handler, _StderrHandler) for handler in log.handlers):
        log.addHandler(_StderrHandler())
