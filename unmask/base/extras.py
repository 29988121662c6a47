"""Packages that only a part of Unmask needs: installed as extras, named where they are missing."""

from importlib.util import find_spec

from unmask.base.errors import UserError

STUDY = (
    "typer",
    "rich",
    "pyarrow",
    "scipy",
    "sklearn",
    "threadpoolctl",
    "sacrebleu",
    "jinja2",
    "matplotlib",
    "plotly",
)
"""Modules of the extra `study`: the command line, the measures and their report."""


def require_study(what: str, *modules: str) -> None:
    """Raise a `UserError` with the remedy where modules of the extra `study` (all) are missing.

    `what` begins the sentence: what needs them.
    """
    missing = [module for module in modules or STUDY if find_spec(module) is None]
    if missing:
        raise UserError(
            f"{what} needs {', '.join(missing)}, which the base installation leaves out: "
            'pip install "unmask[study]"'
        )
