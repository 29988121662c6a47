"""A measure: one thing that can be asked of models, from its settings to its section.

Its verb, its run folder, its stage in the study, its section on the page, `unmask report` and its
page in the docs are derived from this record. A new measure is one file and its test.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from unmask.base.config import CheckedSettings
from unmask.base.extras import require_extra
from unmask.blocks.blocks import ReportBlock, Section
from unmask.measures.contract import Argument as Argument  # for a measure's file, with the rest
from unmask.measures.contract import Described, InputSpec, Job, Summary, Tables
from unmask.measures.contract import Rows as Rows
from unmask.results.comparison import Comparison

if TYPE_CHECKING:
    from pathlib import Path

    from unmask.measures.result import Result

S = TypeVar("S", bound=CheckedSettings)


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
    comparison: Comparison | None = None
    """What is compared, for a measure whose result is that: summary and section follow from it."""
    prepare: Callable[[Tables, S], Rows] | None = None
    """The rows that are compared, with columns derived; by default those of the main table."""
    summarise: Callable[[Tables, S], Summary] | None = None
    """The only place that computes statistics; by default the comparison's."""
    describe: "Callable[[Result], Sequence[Described] | Section] | None" = None
    """Sentences, figures as data and tables of values; every number comes from the summary. By
    default the comparison's."""
    conclude: "Callable[[Result], Iterable[Described]] | None" = None
    """What follows from the comparison, in sentences a colleague would say; they stand first."""
    check: "Callable[[S], None] | None" = None
    """Refuses settings that name what is not there, before a sweep trains anything."""
    method: str | None = None
    """How it is measured, for the end of its section; usually the module's docstring."""
    pool: "Callable[[Sequence[Result]], Tables] | None" = None
    """Tables of several runs as one; None: rows one below the other, models named by their run."""
    stages: Sequence[Stage] = ()
    """Its parts in the study; none: it takes no part."""
    draw_stored: Callable[[str], Sequence[ReportBlock]] | None = None
    """What is shown of a full-scale result that comes with the package, given its file, on the
    page of a small study; `unmask/assets/results/stored.yaml` lists them."""

    def __post_init__(self) -> None:
        assert self.comparison or (self.summarise and self.describe), f"{self.name} shows nothing"
        # What `help` and completion in notebooks show: this measure's own words and settings.
        object.__setattr__(self, "__doc__", _document(self))
        object.__setattr__(self, "__signature__", _list_parameters(self))

    def make_summary(self, tables: Tables, settings: S) -> Summary:
        """All statistics of a run's tables."""
        if self.summarise is not None:
            return self.summarise(tables, settings)
        assert self.comparison is not None
        if self.prepare is not None:
            return self.comparison.summarise(self.prepare(tables, settings))
        return self.comparison.summarise(tables[next(iter(self.tables))].to_pylist())

    def make_section(self, result: "Result") -> Sequence[Described] | Section:
        """What readers see of a result."""
        if self.describe is not None:
            return self.describe(result)
        assert self.comparison is not None
        described = self.comparison.describe(result.summary)
        return [*(self.conclude(result) if self.conclude is not None else ()), *described]

    def __call__(
        self,
        *subjects: Any,
        data: Any = None,
        out: "str | Path | None" = None,
        settings: S | None = None,
        fresh: bool = False,
        on: str | None = None,
        **changes: Any,
    ) -> "Result":
        """Run the measure on models, or on run folders; each setting can be given by its name.

        `data` is a path, a corpus, a fact or facts (which may also stand after the models). `out`
        the folder of the run, which is resumed if it holds one, or begun anew if `fresh`; without
        it the tables live as long as the result. `on` says where to work, as `--on` does, such as
        "local:4"; models and data are then given by name or path.
        """
        from unmask.measures.calls import call_measure

        require_extra("study", f"unmask.{self.name}")
        return call_measure(self, subjects, data, out, settings, changes, fresh, on)


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
