"""Variants against controls, declared once; statistics, outcomes and all that is shown follow.

    rows                      one for each fact, phrasing, training run and variant
    → average(rows)           a mean with its interval for each group, variant and metric
    → subtract(rows)          each variant minus its controls, paired by fact, with its outcome
    → describe(summary)       a sentence for each group, the figure, the tables

A `Comparison` says by which columns rows are grouped and how readers see them (`Factor`), which
column holds the variant, which variant stands against which control, and in what metrics
(`Quantity`). A measure that is no more than this gives it as `comparison`; others use its methods
one by one.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from unmask.base.errors import UserError
from unmask.blocks import tidy
from unmask.blocks.blocks import CellValue, Column, Figure, Finding, ReportBlock, Table, is_clear
from unmask.blocks.labels import colour_models, count, name_split, order_splits
from unmask.results.summaries import (
    Rows,
    Summary,
    estimate_means,
    mark_outcome,
    name_outcome,
    subtract_paired,
)

MEANS, DIFFERENCES = "means", "differences"
"""The tables of a comparison's summary, where it gives them no names of its own."""


@dataclass(frozen=True)
class Quantity:
    """A number that rows hold: how it is called and written, and between which values it lies."""

    label: str
    unit: str = ""
    """What stands after a value in a sentence; values in "%" are shares times 100."""
    digits: int | None = None
    """Decimals: 1 of percents, else 2."""
    has_sign: bool = False
    """Values may lie on both sides of 0."""
    is_short: bool = False
    """Three significant digits instead of decimals."""
    least: float | None = None
    """What no mean can be below."""
    limits: tuple[float, float] | None = None
    """Between which values every interval is written; those of shares and points are known."""

    @property
    def is_percent(self) -> bool:
        return self.unit in ("%", "points")

    @property
    def is_share(self) -> bool:
        """Whether all values lie between 0 and 1, and so do their intervals."""
        return self.is_percent and not self.has_sign

    def head(self, *, is_difference: bool = False) -> Column:
        """The column of the metric's means, or of their differences."""
        digits = self.digits if self.digits is not None else 1 if self.is_percent else 2
        unit = "points" if is_difference and self.is_percent else self.unit
        label = f"{self.label}, {unit}" if unit else self.label
        has_sign = self.has_sign or is_difference
        limits = self._limit(is_difference)
        return Column(label, digits, self.is_percent, has_sign, self.is_short, limits)

    def say(self, row: tidy.Record, *, is_difference: bool = False) -> str:
        """A row's value with its interval, in a sentence."""
        unit = "points" if is_difference and self.is_percent else self.unit
        digits = 2 if self.digits is None else self.digits
        limits = self._limit(is_difference)
        return tidy.say(row, unit, digits, is_difference or self.has_sign, limits=limits)

    def _limit(self, is_difference: bool) -> tuple[float, float]:
        """Between which values a mean, or a difference of two, can lie."""
        least, most = self.limits or (-math.inf if self.least is None else self.least, math.inf)
        if self.is_share or self.unit == "points":
            least, most = (0.0 if self.is_share else -1.0), 1.0
        return (least - most, most - least) if is_difference else (least, most)


@dataclass(frozen=True)
class Factor:
    """A column by whose values rows are grouped; without a heading, readers do not see it."""

    column: str
    heading: str = ""
    words: Mapping[Any, str] | Callable[[Any], str] | None = None
    """What readers see in place of its ids."""
    is_told: bool = False
    """Each of its values has a sentence; of other factors, the first one has."""

    def name(self, value: Any) -> CellValue:
        """A value of the column as readers see it."""
        if self.words is None:
            return value
        return self.words[value] if isinstance(self.words, Mapping) else self.words(value)

    def say(self, value: Any) -> str:
        """A value of the column in a sentence."""
        return str(self.name(value))

    def get(self, row: tidy.Record) -> CellValue:
        """A row's value as readers see it."""
        return self.name(row[self.column])


MODEL, KIND, ASKED = Factor("model", "model"), Factor("kind"), Factor("split", "asked", name_split)
_Pairs = Sequence[tuple[Any, Any]]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What a result compares; its methods make everything that is shown of it."""

    metrics: Mapping[str, Quantity]
    """By column; the first is the one that sentences and the figure are about."""
    groups: Sequence[Factor] = (MODEL, KIND, ASKED)
    """What a row of every table is about."""
    variant: Factor | None = None
    """What stands against each other within a group."""
    against: _Pairs | Callable[[Sequence[Any]], _Pairs] = ()
    """Pairs of a variant and its control, or a function that pairs the variants that are there."""
    axis: Factor | None = None
    """What the figure's x axis shows; without it, means are dots."""
    compared: Sequence[str] = ()
    """Metrics of which differences are made; all by default."""
    paired_by: Sequence[str] = ("fact",)
    """What both sides of a difference must have: rows without a partner do not count."""
    chance: Mapping[str, float] = field(default_factory=dict)
    """Metrics whose mean is itself a result, with what it is held against."""
    beside: Mapping[str, str] = field(default_factory=dict)
    """Further columns whose averages stand beside the means, with their headings."""
    counted: str = "facts"
    """What an interval is over, in words."""
    title: str
    """What stands above the figure."""
    caption: str = "Bands and bars are 95 % intervals by fact."
    """What stands below the figure."""
    names: tuple[str, str] = (MEANS, DIFFERENCES)
    """What its two tables are called; several comparisons of one result need names apart."""
    means: str = "Means"
    """The caption of the table of means."""
    differences: str = "Each variant minus its control"
    """The caption of the table of differences."""
    controls: Sequence[Any] = ()
    """Variants that are drawn dotted."""
    most: int = 30
    """Rows of each table that a page shows."""

    def __post_init__(self) -> None:
        factors = [*self._places, *([] if self.variant is None else [self.variant])]
        heads = [each.heading for each in factors if each.heading]
        heads += ["minus", self.counted] if self.against else []
        # Columns of one heading would be one, and rows that differ in the other would be merged.
        assert len(set(heads)) == len(heads), f"{self.title}: columns need headings apart: {heads}"

    @property
    def _places(self) -> list[Factor]:
        """What says of a row where it belongs: its groups, and its place on the axis."""
        return [*self.groups, *([] if self.axis is None else [self.axis])]

    # Statistics: the summary.

    def summarise(self, rows: Rows) -> dict[str, Rows]:
        """The means, and the differences where variants stand against controls."""
        self._check(rows)
        more = [self.axis.column] if self.axis is not None else []
        summary: dict[str, Rows] = {self.names[0]: self.average(rows, *more)}
        if self.against:
            summary[self.names[1]] = self.subtract(rows, *more)
        return summary

    def _check(self, rows: Rows) -> None:
        """Refuses rows that lack a column, or among whose variants none has its control."""
        factors = [each for each in (*self.groups, self.axis, self.variant) if each is not None]
        there = {name for row in rows for name in row}
        if rows and (missing := ({each.column for each in factors} | {*self.metrics}) - there):
            raise UserError(
                f"the comparison names {', '.join(sorted(missing))}, which no row has: rows have "
                f"{', '.join(sorted(there))}."
            )
        if self.variant is None or not isinstance(self.against, Sequence) or not self.against:
            return
        variants = tidy.distinct(rows, self.variant.column)
        if len(variants) > 1 and not any({*pair} <= {*variants} for pair in self.against):
            raise UserError(
                f"no variant stands against its control: {self.variant.column} is "
                f"{', '.join(map(str, variants))} in the rows, and the comparison's pairs are "
                f"{', '.join(map(str, self.against))}."
            )

    def average(self, rows: Rows, *more: str) -> list[dict[str, Any]]:
        """Means by group, variant and further columns; those of `chance` with their outcome."""
        by = [factor.column for factor in self.groups]
        by += [self.variant.column] if self.variant is not None else []
        shares = [name for name, metric in self.metrics.items() if metric.is_share]
        least = {name: m.least for name, m in self.metrics.items() if m.least is not None}
        means = []
        for members in tidy.group_by(rows, *by, *more).values():
            number = len(members)
            averages = {name: sum(row[name] for row in members) / number for name in self.beside}
            estimates = estimate_means(members, (*by, *more), list(self.metrics), shares, least)
            means += [row | averages for row in estimates]
        for row in means:
            if (chance := self.chance.get(row["metric"])) is not None:
                row["outcome"] = name_outcome(tidy.to_interval(row), row["facts"], chance)
        return means

    def subtract(self, rows: Rows, *more: str) -> list[dict[str, Any]]:
        """Each variant minus its controls, by group, further columns and metric."""
        assert self.variant is not None, "a comparison without variants has no differences"
        columns = [factor.column for factor in self.groups] + list(more)
        differences = []
        for key, members in tidy.group_by(rows, lambda row: tuple(map(row.get, columns))).items():
            sides = tidy.group_by(members, self.variant.column)
            known = self.against
            pairs = known if isinstance(known, Sequence) else known(list(sides))
            for one, control in pairs:
                if one not in sides or control not in sides:
                    continue
                where = dict(zip(columns, key, strict=True))
                where |= {self.variant.column: one, "minus": control}
                for name in self.compared or self.metrics:
                    is_share = self.metrics[name].is_share
                    gap = subtract_paired(
                        sides[one], sides[control], name, self.paired_by, is_share=is_share
                    )
                    if gap is not None:
                        differences.append(where | {"metric": name} | gap)
        return differences

    # What readers see: the section.

    def describe(self, summary: Summary) -> list[ReportBlock]:
        """Sentences, the figure, and the tables."""
        means, differences = summary[self.names[0]], summary.get(self.names[1], ())
        tables = [self.tabulate(means)]
        tables += [self.tabulate_differences(differences)] if differences else []
        return [*self.state(summary), self.draw(means), *tables]

    def state(self, summary: Summary) -> Iterator[Finding]:
        """A sentence for each model and variant: its mean beside its controls', in one metric.

        Of the groups of a model the first counts, reversed questions before others; where there is
        an axis, its first value. The tables have all of them. Of several controls, the one that
        the variant differs from least clearly gives the sentence its interval and outcome.
        """
        name = next(iter(self.compared or self.chance or self.metrics))
        table = self.names[bool(self.against)]
        rows = [row for row in tidy.select(summary[table], metric=name) if "outcome" in row]
        means = tidy.select(summary[self.names[0]], metric=name)
        for own in self._choose_told(rows):
            yield self._compare(own, means, name) if self.against else self._say_mean(own[0], name)

    def _choose_told(self, rows: Rows) -> Iterator[list[tidy.Record]]:
        """The rows of each sentence: of each model's first group, by variant."""
        fixed = [each.column for each in self._places if not each.is_told]
        split = ["model", *(each.column for each in self._places if each.is_told)]
        split += [self.variant.column] if self.variant is not None else []
        for same in tidy.group_by(rows, "model").values():
            if "split" in same[0]:
                same = tidy.select(same, split=order_splits(tidy.distinct(same, "split"))[0])
            same = tidy.select(same, **{name: same[0][name] for name in fixed})
            yield from tidy.group_by(same, *split).values()

    def _say_mean(self, row: tidy.Record, name: str) -> Finding:
        variant = f", {self.variant.get(row)}" if self.variant is not None else ""
        metric = self.metrics[name]
        return self._find(f"{self._lead(row)}{metric.label}{variant}: {metric.say(row)}", row)

    def _compare(self, rows: Rows, means: Rows, name: str) -> Finding:
        """One variant beside each of its controls."""
        assert self.variant is not None
        factor, first, metric = self.variant, rows[0], self.metrics[name]
        shared = [each.column for each in self._places]

        def say_mean(variant: Any) -> str:
            where = {each: first[each] for each in shared} | {factor.column: variant}
            mean = next(iter(tidy.select(means, **where)), None)
            value = f" {metric.say(mean).partition(' [')[0]}" if mean is not None else ""
            return f"{factor.name(variant)}{value}"

        controls = ", ".join(say_mean(row["minus"]) for row in rows)
        row = min(rows, key=lambda row: is_clear(row["outcome"]))
        gap = metric.say(row, is_difference=True)
        which = f" from “{factor.name(row['minus'])}”" if len(rows) > 1 else ""
        least = "The least clear difference" if len(rows) > 1 else "The difference"
        lead = f"{self._lead(first)}{metric.label}: {say_mean(first[factor.column])}; {controls}"
        finding = self._find(f"{lead}. {least}{which} is {gap}", row)
        return replace(finding, brief=finding.text.replace(f". {least}{which} is", ":"))

    def _lead(self, row: tidy.Record) -> str:
        """Which group a sentence is about."""
        lead = ", ".join(_say_level(factor, row) for factor in self._places if factor.heading)
        return f"{lead[:1].upper()}{lead[1:]}: "

    def _find(self, text: str, row: tidy.Record) -> Finding:
        one = self.counted.removesuffix("s")
        number = count(row["facts"], one) if one != self.counted else f"{row['facts']:,} {one}"
        return Finding(f"{text} ({number}).", row["outcome"], self.counted)

    def tabulate(self, means: Rows, **columns: tidy.Get) -> Table:
        """Means by group and variant, a column for each metric; `columns` are shown beside keys."""
        averages = {heading: name for name, heading in self.beside.items()}
        keys = self._list_keys() | averages | columns
        heads = {name: metric.head() for name, metric in self.metrics.items()}
        return tidy.tabulate_means(
            self.names[0], self.means, means, keys, heads, role=mark_outcome, most=self.most
        )

    def tabulate_differences(self, rows: Rows, **columns: tidy.Get) -> Table:
        """Differences by group, variant and control, a column for each metric; `columns` beside."""
        assert self.variant is not None
        name = self.variant.name
        keys = self._list_keys() | {"minus": lambda row: name(row["minus"]), self.counted: "facts"}
        keys |= columns
        heads = {
            name: self.metrics[name].head(is_difference=True)
            for name in self.compared or self.metrics
        }
        return tidy.tabulate_means(
            self.names[1], self.differences, rows, keys, heads, role=mark_outcome, most=self.most
        )

    def _list_keys(self) -> dict[str, tidy.Get]:
        keys = [*self._places, *([] if self.variant is None else [self.variant])]
        return {factor.heading: factor.get for factor in keys if factor.heading}

    def draw(self, means: Rows, axis: Factor | None = None, **more: Any) -> Figure:
        """The means: lines along the axis, or dots; metrics of the first one's unit to choose."""
        axis = axis or self.axis
        unit = next(iter(self.metrics.values())).unit
        drawn = {name: metric for name, metric in self.metrics.items() if metric.unit == unit}
        rows = [row for row in means if row["metric"] in drawn]
        if axis is not None:
            rows = [row for row in rows if row[axis.column] is not None]
        choose = [
            tidy.ASKED
            if factor.column == "split"
            else tidy.Choose(factor.heading, factor.column, factor.say)
            for factor in self.groups
            if factor.heading and factor.column != "model"
        ]
        choose.append(tidy.Choose("shown", "metric", lambda name: drawn[name].label))
        models = dict(tidy.distinct(rows, "model", "kind")) if rows and "kind" in rows[0] else {}
        colours, variants = colour_models(models), self._list_variants(rows)
        label = next(iter(drawn.values())).head().label if len(drawn) == 1 else unit

        def name_line(row: tidy.Record) -> str:
            return str((self.variant or MODEL).get(row))

        def choose_colour(row: tidy.Record) -> str:
            if self.variant is None:
                return colours[row["model"]]
            return f"p{1 + variants.index(row[self.variant.column])}"

        def choose_dash(row: tidy.Record) -> str:
            return "dot" if self.variant and row[self.variant.column] in self.controls else "solid"

        scale = 100 if unit in ("%", "points") else 1
        shared: dict[str, Any] = {"colour": choose_colour, "choose": choose}
        about = (self.names[0], self.title, self.caption)
        if axis is not None:
            shared |= {"x": axis.column, "line": name_line, "dash": choose_dash}
            shared |= {"scale": scale, "xlabel": axis.heading, "ylabel": label}
            return tidy.draw_lines(rows, *about, **shared | more)
        scaled = [{**row, **{end: scale * row[end] for end in tidy.ENDS}} for row in rows]
        shared |= {"label": name_line, "group": "model", "xlabel": label}
        return tidy.draw_dots(scaled, *about, **shared | more)

    def _list_variants(self, rows: Iterable[tidy.Record]) -> list[Any]:
        """Variants in the order of their words, or else as they are met."""
        if self.variant is None:
            return []
        met = tidy.distinct(rows, self.variant.column)
        words = self.variant.words
        return list(dict.fromkeys([*words, *met])) if isinstance(words, Mapping) else met


def _say_level(factor: Factor, row: tidy.Record) -> str:
    """A group in a sentence: models and ways of asking stand for themselves."""
    shown = str(factor.get(row))
    if factor.column == "model":
        return f"In {shown}"
    return f"asked {shown}" if factor.column == "split" else f"{factor.heading} {shown}"
