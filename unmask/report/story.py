"""What a study found, in words and in four numbers; every sentence follows from intervals by rule.

A sentence claims a difference only where intervals exclude it by chance, and says so where they do
not.
"""

from dataclasses import dataclass

from unmask.base.errors import UserError
from unmask.evaluation.statistics import ALPHA, ENOUGH
from unmask.evaluation.summary import Cell, Summary
from unmask.report.artefacts import SYMMETRY, TRACING, Row, StudyFolder
from unmask.report.blocks import format_interval
from unmask.report.recall_section import name_asked, tell_asked
from unmask.report.tracing_names import KINDS, name_metric, name_way
from unmask.report.tracing_section import keep_main
from unmask.tracing.averages import OTHER_TOKEN, TOTAL
from unmask.tracing.table import OTHER_FACT, RESULT

HEADLINE = ("p2d_reverse", "d2p_reverse", "own")
"""The way of asking that is told first: the reversal curse itself, where the data have it."""


@dataclass(frozen=True)
class Number:
    """One of the numbers that matter."""

    label: str
    value: str
    note: str


def tell_numbers(run: StudyFolder) -> list[Number]:
    """Four numbers: reverse recall of both models, the largest effect, the likeness of keys."""
    return [
        *_number_recall(run),
        _number_effect(run),
        _number_symmetry(run),
    ]


def _number_recall(run: StudyFolder) -> list[Number]:
    labels = {"model": "diffusion", "twin": "autoregressive twin"}
    try:
        summary = run.summary
        split = choose_headline(summary)
        found = []
        for part, label in labels.items():
            cell = _best(summary, run.names[part], split) if part in run.names else None
            found.append(
                Number(f"recall, {label}", _tell(cell), name_asked(split))
                if cell is not None
                else Number(f"recall, {label}", "–", "no twin was given")
            )
        return found
    except UserError as error:
        return [Number(f"recall, {label}", "–", str(error)) for label in labels.values()]


def choose_headline(summary: Summary) -> str:
    return next((split for split in HEADLINE if split in summary.splits), summary.splits[-1])


def _number_effect(run: StudyFolder) -> Number:
    try:
        row = find_peak(run.rows(f"{TRACING}/averages.parquet"), "masked")
    except UserError as error:
        note = "nothing to trace" if run.notes("tracing") else str(error)
        return Number("largest effect", "–", note)
    if row is None:
        return Number("largest effect", "–", "the diffusion model recalled no fact to trace")
    way = name_way(row["direction"], row["trained"])
    where = f"the best of all subject tokens and layers: {row['role']}, layer {row['layer']}"
    note = f"{where}; {_count_facts(row)}; {way}"
    return Number("largest effect of a subject's state", _tell_effect(row), note)


def _number_symmetry(run: StudyFolder) -> Number:
    label = "a value finds its key"
    try:
        row = find_retrieval(run.rows(SYMMETRY))
    except UserError as error:
        return Number(label, "–", "not compared" if run.notes("symmetry") else str(error))
    if row is None or row["value"] != row["value"]:
        return Number(label, "–", "not measured")
    value = format_interval(row["value"], row["low"], row["high"], digits=2)
    chance = f"chance {row['null_low']:.2f} to {row['null_high']:.2f}"
    return Number(label, value, f"mean reciprocal rank, names; {chance}")


def find_peak(rows: list[Row], kind: str) -> Row | None:
    """The largest effect of a state in the prompt at the first step, in reverse where there is one.

    Answer positions are left out: the last layer's state there is the answer itself.
    """
    found = [
        row
        for row in keep_main(rows)
        if (row["kind"], row["control"], row["part"], row["stage"])
        == (kind, RESULT, "resid", "first")
        and "subject" in row["role"]
        and row["role"] != "before subject"
    ]
    reverse = [row for row in found if row["trained"] == "reverse"]
    return max(reverse or found, key=lambda row: row["mean"], default=None)


def find_retrieval(rows: list[Row]) -> Row | None:
    """The likeness of names' keys and values in the diffusion model."""
    for row in rows:
        wanted = ("masked", "name: key and value", "retrieval")
        if (row["kind"], row["comparison"], row["measure"]) == wanted:
            return row
    return None


def tell_story(run: StudyFolder) -> list[str]:
    """The summary, a paragraph for each stage that is there."""
    told = []
    for tell in (_tell_recall, _tell_steps, _tell_tracing, _tell_symmetry):
        try:
            told.append(" ".join(tell(run)))
        except UserError as error:
            told.append(f"Not told: {error}")
    return [paragraph for paragraph in told if paragraph]


def _tell_recall(run: StudyFolder) -> list[str]:
    summary, names = run.summary, run.names
    split = choose_headline(summary)
    ours = _best(summary, names["model"], split)
    if ours is None:
        return []
    told = [
        f"{tell_asked(split)}, {names['model']} recalls {_tell(ours)} of the answers"
        f"{_tell_steps_of(ours)}."
    ]
    if ours.value.high < 0.05:
        told.append("That is as good as nothing.")
    elif ours.value.low == 0:
        told.append("The interval reaches down to nothing: few facts were asked.")
    same = split.replace("reverse", "same")
    trained = _best(summary, names["model"], same) if same != split else None
    if trained is not None:
        told.append(f"The way it was trained, it recalls {_tell(trained)}.")
    if "twin" not in names:
        return told
    twin = _best(summary, names["twin"], split)
    pair = next(
        (pair for pair in summary.pairs if pair.split == split and pair.steps == ours.steps), None
    )
    if twin is not None and pair is not None:
        value = pair.difference
        gap = format_interval(value.mean, value.low, value.high, 100, 0)
        verdict = (
            f"a difference of {gap} points that the interval puts above zero"
            if value.low > 0
            else f"a difference of {gap} points that is below zero"
            if value.high < 0
            else f"a difference of {gap} points that could be chance"
        )
        told.append(f"Its autoregressive twin recalls {_tell(twin)}: {verdict}.")
    return told


def _tell_steps(run: StudyFolder) -> list[str]:
    summary, model = run.summary, run.names["model"]
    steps = [count for count in summary.steps if count is not None]
    if len(steps) < 2:
        return []
    split = choose_headline(summary)
    one, many = (summary.find(model, split, count) for count in (steps[0], steps[-1]))
    if one is None or many is None:
        return []
    if many.value.low > one.value.high:
        return [
            f"More denoising steps help: from {_tell(one)} in {steps[0]} to {_tell(many)} in "
            f"{steps[-1]} steps."
        ]
    return [
        f"Between {steps[0]} and {steps[-1]} denoising steps the intervals overlap "
        f"({_tell(one)} and {_tell(many)}): whether steps help is not settled here."
    ]


def _tell_tracing(run: StudyFolder) -> list[str]:
    notes = list(run.notes("tracing"))
    if not run.has(f"{TRACING}/averages.parquet") and notes:
        return notes
    rows = run.rows(f"{TRACING}/averages.parquet")
    told = []
    for kind, name in KINDS.items():
        row = find_peak(rows, kind)
        if row is None:
            continue
        way = name_way(row["direction"], row["trained"])
        told.append(
            f"In the {name} network, with the {way}, the subject's state that brings most back "
            f"stands at the {row['role']} token, layer {row['layer']}: {_tell_effect(row)} in "
            f"{name_metric(run)}{_tell_share(rows, row)}, over {_count_facts(row)}, "
            f"{_judge(row, _find_placebo(rows, row))}."
        )
    return told + notes


def _tell_effect(row: Row) -> str:
    """An effect; with an interval only where there are facts enough for one."""
    if row["facts"] < ENOUGH:
        return f"{row['mean']:.3f}".replace("-", "−")
    return format_interval(row["mean"], row["low"], row["high"], digits=3)


def _count_facts(row: Row) -> str:
    return f"{row['facts']} fact{'s' if row['facts'] != 1 else ''}"


def _tell_share(rows: list[Row], at: Row) -> str:
    """How much that is of what the corruption took."""
    same = ("kind", "direction", "trained", "corruption", "stage")
    totals = [
        row["mean"]
        for row in rows
        if (row["part"], row["control"]) == (TOTAL, RESULT)
        and all(row[name] == at[name] for name in same)
    ]
    if not totals or totals[0] <= 0:
        return ""
    return f", {at['mean'] / totals[0]:.0%} of the {totals[0]:.3g} that hiding the subject took"


def _judge(row: Row, placebo: Row | None) -> str:
    if row["facts"] < ENOUGH:
        return "too few to tell it from its placebos"
    if row["low"] <= 0:
        return "an interval that holds zero"
    if placebo is None:
        return "an interval above zero"
    if row["low"] > placebo["high"]:
        return "above zero and above its placebos"
    return "above zero, but not clearly above its placebos"


def _find_placebo(rows: list[Row], at: Row) -> Row | None:
    """The higher of the two placebos at the same layer."""
    same = ("kind", "direction", "trained", "corruption", "stage", "part", "layer")
    found = [
        row
        for row in rows
        if all(row[name] == at[name] for name in same)
        and (row["control"], row["role"]) in ((OTHER_TOKEN, "placebo"), (OTHER_FACT, at["role"]))
        and row["high"] == row["high"]
    ]
    return max(found, key=lambda row: row["high"], default=None)


def _tell_symmetry(run: StudyFolder) -> list[str]:
    if not run.has(SYMMETRY) and run.notes("symmetry"):
        return list(run.notes("symmetry"))
    rows = run.rows(SYMMETRY)
    row = find_retrieval(rows)
    if row is None or row["value"] != row["value"]:
        return []
    value = format_interval(row["value"], row["low"], row["high"], digits=2)
    verdict = (
        "above what shuffled pairs give"
        if row["p_holm"] <= ALPHA
        else "no more than shuffled pairs could give"
    )
    return [
        f"A name's value in one direction finds its key in the other with a mean reciprocal rank "
        f"of {value} among {row['facts']} names, {verdict} (corrected p {row['p_holm']:.3f})."
    ]


def _best(summary: Summary, model: str, split: str) -> Cell | None:
    """The cell at the most steps: chosen beforehand, not by its value."""
    return summary.find(model, split, summary.steps[-1])


def _tell(cell: Cell) -> str:
    value = cell.value
    mean, low, high = (f"{100 * x:.0f}" for x in (value.mean, value.low, value.high))
    return f"{mean} % [{low}, {high}]"


def _tell_steps_of(cell: Cell) -> str:
    sizes = f"{cell.prompts} prompts of {cell.facts} facts"
    return f" ({sizes}" + (f", {cell.steps} steps)" if cell.steps else ")")
