"""`unmask toy`: a language of 57 sentences under every process."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unmask.cli.options import add_option, make_command
from unmask.toy.settings import ToySettings


def _run(given: Mapping[str, Any], settings: Any, extras: Mapping[str, Any]) -> None:
    from rich.console import Console

    from unmask.toy.run import run_toy
    from unmask.toy.show import show_report

    console = Console()
    show_report(console, run_toy(settings, extras["out"]), extras["show_all"])
    console.print(f"all numbers: {extras['out'] / 'toy.json'}", markup=False)


toy = make_command(
    "toy",
    "Train every kind of model on a toy language and show how well each speaks it.",
    [],
    ToySettings,
    [
        add_option("out", Path, Path("runs/toy"), "Folder for toy.json."),
        add_option(
            "show_all", bool, False, "Print each variant's noise and samples, too.", "--all"
        ),
    ],
    _run,
)
