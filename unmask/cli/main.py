"""The command `unmask`: its verbs, and how its mistakes are shown."""

import json
import logging
import os
import sys
from importlib import import_module
from importlib.resources import files
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from unmask import __version__
from unmask.base.errors import UserError
from unmask.base.plugins import list_installed
from unmask.cli.exits import MISTAKE, explain_errors, show_any_text, stop_alike

_FILES = ("data", "explore", "harness", "models", "sample", "study", "sweep", "toy", "train")
MODULES = {name: name for name in _FILES}
MODULES |= {"report": "study", "info": "models", "convert": "models"}
"""The module of this folder for each verb that is no measure."""
FUNCTIONS = {"train": "train_recipe"}
"""Functions that are not called as their verb is."""

RANKED = ("train", "harness")
"""Verbs whose processes torchrun may start: torch and the harness let them work together."""


def list_verbs() -> dict[str, dict[str, str]]:
    """What each verb does, in a line, by heading; no measure is imported."""
    path = files("unmask.assets").joinpath("verbs.json")
    verbs: dict[str, dict[str, str]] = json.loads(path.read_text("utf-8"))
    if others := list_installed("measure"):
        verbs["Measures of other packages"] = {
            name: f"Of {package}; `unmask {name} --help` says more."
            for name, package in others.items()
        }
    return verbs


def load_verb(name: str) -> Any:
    """The command of a verb, with its options."""
    if name in MODULES:
        verb = getattr(import_module(f"unmask.cli.{MODULES[name]}"), FUNCTIONS.get(name, name))
    else:
        from unmask.cli.verbs import make_verb
        from unmask.measures.table import find_measure

        verb = make_verb(find_measure(name))
    if not isinstance(verb, typer.Typer):
        single = typer.Typer(add_completion=False)
        single.command(name)(verb)
        verb = single
    return typer.main.get_command(verb)


class Verbs(TyperGroup):
    """All commands; a line stands for each until it is asked for, so that help imports little.

    Each is in `stop_alike`, since typer makes an exit code of what stops it.
    """

    def __init__(self, **settings: Any):
        super().__init__(**settings)
        for heading, verbs in list_verbs().items():
            for name, line in verbs.items():
                self.add_command(TyperCommand(name, help=line, rich_help_panel=heading))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        refuse_ranks(str(name))
        return name, command and load_verb(str(name)), rest

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


def refuse_ranks(verb: str) -> None:
    """Refuse to be one of several processes of torchrun, where they would all do the same."""
    world = os.environ.get("WORLD_SIZE", "1")
    if verb not in RANKED and world != "1" and "RANK" in os.environ:
        raise UserError(
            f"unmask {verb} was started by torchrun ({world:.20} processes), which is for unmask "
            f"{' and unmask '.join(RANKED)}: give the command once, and where to work by --on, "
            "such as --on local:2; or unset RANK and WORLD_SIZE."
        )


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
