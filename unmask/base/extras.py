"""Packages that only a part of Unmask needs: installed as extras, named where they are missing."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from unmask.base.errors import UserError

EXTRAS = {
    "study": (
        *("typer", "rich", "pyarrow", "scipy", "sklearn", "threadpoolctl", "sacrebleu", "jinja2"),
        *("matplotlib", "plotly", "starlette", "uvicorn"),
    ),
    "lm-eval": ("lm_eval",),
    "cluster": ("submitit", "distributed"),
}
"""Modules of each extra: `study` has the command line, the measures, their report and the explorer,
`lm-eval` the lm-evaluation-harness, `cluster` Slurm and Dask."""
HOME = Path(__file__).parents[2]


def require_extra(extra: str, what: str, *modules: str) -> None:
    """Raise a `UserError` with the remedy where modules of an extra (all by default) are missing.

    `what` begins the sentence: what needs them.
    """
    missing = [module for module in modules or EXTRAS[extra] if find_spec(module) is None]
    if missing:
        raise UserError(
            f"{what} needs {', '.join(missing)}, which the base installation leaves out: "
            f"{name_install(extra)}"
        )


def name_install(extra: str) -> str:
    """The command that installs an extra: of the checkout that this is, or else of the package."""
    if not (HOME / "pyproject.toml").is_file():
        return f'pip install "unmask[{extra}]"'
    return f'pip install "{"." if Path.cwd() == HOME else HOME}[{extra}]"'


class Shown:
    """Something that a notebook shows as a picture.

    Pictures are drawn by the last layers (`unmask.report.notebook`), which this one must not know:
    they are reached by their public name, `unmask.show`, when something is shown.
    """

    def show(self) -> Any:
        """The picture that a notebook shows; outside of one it is a text, and can be saved."""
        import unmask

        show: Any = unmask.show
        return show(self)

    def plot(self) -> Any:
        """Its first figure as an image, which every viewer of notebooks shows."""
        import unmask

        show: Any = unmask.show
        return show(self, is_still=True)

    def _repr_html_(self) -> str | None:
        """For notebooks; None, and with it the plain text, where the extra `study` is missing."""
        try:
            return self.show()._repr_html_()
        except UserError:
            return None
