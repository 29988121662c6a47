"""What the verbs that measure several models share: their options, their run folders."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from unmask.evaluation.families import Family
    from unmask.evaluation.groups import Group

MODELS = typer.Argument(
    ...,
    metavar="MODEL…",
    help="Models to compare. NAME=DIR,DIR,… is one model trained with several seeds.",
)
CORPUS = typer.Option(
    ..., "--data", help="A corpus folder, this project's or Berglund's, or a file of facts."
)
SPLITS = typer.Option("", help="Splits, separated by commas; the four tests by default.")
LENGTH = typer.Option(None, help="Canvas in tokens; 52 by default, or what the longest text needs.")
DTYPE = typer.Option("auto", help="Number format; auto suits file and device.")
DEVICE = typer.Option("auto", help="auto, cpu, cuda, cuda:N or mps.")
JSON = typer.Option(False, "--json", help="Print the numbers as JSON instead.")


def open_measurement(
    out: Path, verb: str, families: "Sequence[Family]", settings: Mapping[str, Any]
) -> Path:
    """The run folder; models, their weights and the settings must be those it was begun with."""
    from unmask.base.runs import open_run

    models = {family.name: list(family.members) for family in families}
    weights = {family.name: list(family.digests) for family in families}
    return open_run(out, verb, {"models": models, "weights": weights, **settings})


def print_json(groups: "Sequence[Group]") -> None:
    """Groups and their means on stdout."""
    import json
    from dataclasses import asdict

    print(json.dumps([asdict(group) for group in groups], ensure_ascii=False))
