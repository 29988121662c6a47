"""What measures and those who run them agree on: rows, tables, jobs, arguments and inputs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from unmask.base.config import CheckedSettings
from unmask.blocks.blocks import FirstScreen, Number, ReportBlock
from unmask.results.summaries import Rows as Rows
from unmask.results.summaries import Summary as Summary
from unmask.results.summaries import Tables as Tables

if TYPE_CHECKING:
    import pyarrow

Described = ReportBlock | Number | FirstScreen
LEAKS = "leaks"
"""The entry of a run's inputs that says, by model, what its training gave away of the questions."""


@dataclass(frozen=True)
class Job:
    """A part of a run: a key that is unique in it, and the work that gives the rows of its tables.

    A part that is there already is not worked on again, so that a run resumes where it stopped.
    """

    key: str
    work: Callable[[], "Mapping[str, Rows | pyarrow.Table]"]
    cost: float = 1.0
    """How long it takes beside the others, in any unit, for the time left."""


class Inputs(Protocol):
    """Inputs that were read, and what identifies them when a run is resumed."""

    def record(self) -> dict[str, Any]: ...


class InputSpec(Protocol):
    """What a measure is asked about: models and data, or run folders of another measure."""

    def parameters(self) -> "Sequence[Argument]":
        """What the command line takes for it."""

    def read(self, given: Mapping[str, Any], settings: CheckedSettings) -> Inputs:
        """The inputs, read and checked."""


@dataclass(frozen=True)
class Argument:
    """An argument of a verb (`is_option`: an option) that is not one of its settings."""

    name: str
    help: str
    metavar: str | None = None
    is_list: bool = False
    is_option: bool = False
    is_required: bool = True
