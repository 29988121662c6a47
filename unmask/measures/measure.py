"""A measure: one thing that can be asked of models, from its settings to its section.

Its verb, its run folder, its stage in the study, its section on the page, `unmask report` and its
page in the docs are derived from this record. A new measure is one file and its test.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from unmask.base.config import CheckedSettings
from unmask.base.extras import require_study
from unmask.blocks.blocks import FirstScreen, Number, ReportBlock, Section, Verdict
from unmask.blocks.tidy import to_interval
from unmask.evaluation.statistics import ALPHA, ENOUGH, Interval

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow

    from unmask.measures.inputs import Inputs
    from unmask.measures.result import Result

S = TypeVar("S", bound=CheckedSettings)

Rows = Sequence[Mapping[str, Any]]
Tables = Mapping[str, "pyarrow.Table"]
Described = ReportBlock | Number | FirstScreen
Summary = Mapping[str, Rows]
"""Tables of statistics by name; `summarise` makes them, and nothing else computes any."""


@dataclass(frozen=True)
class Job:
    """A part of a run: a key that is unique in it, and the work that gives the rows of its tables.

    A part that is there already is not worked on again, so that a run resumes where it stopped.
    """

    key: str
    work: Callable[[], "Mapping[str, Rows | pyarrow.Table]"]


class InputSpec(Protocol):
    """What a measure is asked about: models and data, or run folders of another measure."""

    def parameters(self) -> "Sequence[Argument]":
        """What the command line takes for it."""
        ...

    def read(self, given: Mapping[str, Any], settings: CheckedSettings) -> "Inputs":
        """The inputs, read and checked."""
        ...


@dataclass(frozen=True)
class Argument:
    """An argument of a verb (`is_option`: an option) that is not one of its settings."""

    name: str
    help: str
    metavar: str | None = None
    is_list: bool = False
    is_option: bool = False
    is_required: bool = True


@dataclass(frozen=True)
class Stage:
    """How a measure takes part in the study: which models it asks, its settings by size.

    Settings that the study has as well (`seed`, `guidance`, `dtype`, …) are the study's unless
    the size names them.
    """

    name: str = ""
    """The stage and its folder; by default the measure's name."""
    models: Literal["all", "diffusion"] = "all"
    sizes: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    """Settings that differ from the defaults, for `quick`, `laptop` and `full`; None where the
    stage is left out."""
    adjust: "Callable[[Mapping[str, Path]], Mapping[str, Any]] | None" = None
    """Settings that depend on earlier stages, given their folders by name."""


def judge_interval(
    claim: str, value: Interval | None, facts: int, counted: str = "facts"
) -> Verdict:
    """Whether a difference lies above or below 0; too few facts, or people, settle nothing."""
    if value is None:
        return Verdict(claim, "not measured")
    if facts < ENOUGH:
        return Verdict(claim, "too few", value, facts, counted=counted)
    outcome = "above" if value.low > 0 else "below" if value.high < 0 else "unsettled"
    return Verdict(claim, outcome, value, facts)


def judge_p(claim: str, value: Interval | None, p: float, facts: int) -> Verdict:
    """Whether a value passes its corrected test against chance."""
    if value is None or value.mean != value.mean:
        return Verdict(claim, "not measured")
    if facts < ENOUGH:
        return Verdict(claim, "too few", value, facts, p)
    return Verdict(claim, "above" if p <= ALPHA else "unsettled", value, facts, p)


def judge_differences(summary: Summary, settings: Any) -> Iterator[Verdict]:
    """Whether each row of the summary's `differences` lies above or below 0, by its model."""
    for row in summary["differences"]:
        yield judge_interval(row["model"], to_interval(row), row["facts"])


@dataclass(frozen=True, kw_only=True)
class Measure(Generic[S]):
    """One thing that can be asked of models. Calling it is what its verb does.

    `unmask.recall("reversal-mdm", steps=(1, 4))` runs the measure and gives its `Result`.
    """

    name: str
    """The verb, the run folder, the main table, the section."""
    title: str
    """The section's heading."""
    help: str
    """What the verb does, in one line."""
    settings: type[S]
    tables: Mapping[str, str]
    """The schema of each table, the main one first."""
    inputs: InputSpec
    jobs: Callable[[Any, S], Iterable[Job]]
    """The parts of a run, in the order of their rows; nothing is computed until one is worked."""
    summarise: Callable[[Tables, S], Summary]
    """The only place that computes statistics; what it gives is written with the run."""
    judge: Callable[[Summary, S], Iterable[Verdict]] = judge_differences
    """The only place that says what is clear, by the rules of `evaluation.statistics`."""
    describe: "Callable[[Result], Sequence[Described] | Section]"
    """Sentences, figures as data and tables of values; every number comes from the summary."""
    method: str | None = None
    """How it is measured, for the end of its section; usually the module's docstring."""
    pool: "Callable[[Sequence[Result]], Tables] | None" = None
    """Tables of several runs as one; None: rows one below the other, models named by their run."""
    finish: "Callable[[Result], None] | None" = None
    """Writes what a run leaves beside its tables, for other programs."""
    files: Sequence[str] = ()
    """Patterns of what `finish` writes, so that a run that is begun anew removes it."""
    stages: Sequence[Stage] = ()
    """Its parts in the study; none: it takes no part."""

    def __post_init__(self) -> None:
        # What `help` and completion in notebooks show: this measure's own words and settings.
        object.__setattr__(self, "__doc__", _document(self))
        object.__setattr__(self, "__signature__", _list_parameters(self))

    def __call__(
        self,
        *subjects: Any,
        data: Any = None,
        out: "str | Path | None" = None,
        settings: S | None = None,
        fresh: bool = False,
        **changes: Any,
    ) -> "Result":
        """Run the measure on models, or on run folders; each setting can be given by its name.

        `data` is a path, a corpus, a fact or facts (which may also stand after the models). `out`
        the folder of the run, which is resumed if it holds one, or begun anew if `fresh`; without
        it the tables live as long as the result.
        """
        from unmask.measures.calls import call_measure

        require_study(f"unmask.{self.name}")
        return call_measure(self, subjects, data, out, settings, changes, fresh)


def _document(measure: Measure) -> str:
    """What a measure does, what its call takes, and how it is measured."""
    call = inspect.cleandoc(Measure.__call__.__doc__ or "")
    settings = [
        f"    {each.name}: {each.metadata.get('help', '')}" for each in fields(measure.settings)
    ]
    parts = [measure.help, call, "\n".join(["Settings:", *settings])]
    return "\n\n".join([*parts, *filter(None, [measure.method])])


def _list_parameters(measure: Measure) -> inspect.Signature:
    """The signature of a measure's call, with its settings by name in place of `**changes`."""
    signature = inspect.signature(Measure.__call__)
    own = [each for name, each in signature.parameters.items() if name not in ("self", "changes")]
    changes = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, each in inspect.signature(measure.settings).parameters.items()
        if name not in signature.parameters
    ]
    return signature.replace(parameters=[*own, *changes])
