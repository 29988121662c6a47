"""What the averages of traces say, in plain words, by fixed rules.

A cell is told when its interval lies above 0 and above those of all its placebos.
"""

from collections.abc import Callable, Sequence

from unmask.evaluation.statistics import ALPHA, ENOUGH
from unmask.report.markdown import format_table
from unmask.report.tracing_figures import PART_NAMES, describe_group, name_stage
from unmask.report.tracing_groups import (
    GROUP,
    Row,
    find_asked,
    find_groups,
    find_peaks,
    find_placebos,
    find_total,
    name_layer,
    rows_of,
)
from unmask.report.tracing_names import METRICS
from unmask.tracing.roles import SUBJECT_ROLES
from unmask.tracing.table import RESULT

_GONE = 0.1
"""Of the highest total effect: below this nothing much is left."""


def conclude(rows: Sequence[Row], tests: Sequence[Row], metric: str) -> str:
    """A table of the groups at named steps, a line for each course over steps, and the tests."""
    header = ["group", "facts", f"lost, {METRICS[metric]}", "best at the subject", "best elsewhere"]
    header += ["subject's states lead"]
    table = [
        [describe_group(group), *_tell(rows_of(rows, group))]
        for group in find_groups(rows, numbered=False)
    ]
    told = [format_table(header, table)] if table else []
    steps = find_groups(rows, numbered=True)
    lines = []
    for course in dict.fromkeys(tuple(group[name] for name in GROUP[:-1]) for group in steps):
        group = dict(zip(GROUP, course, strict=False))
        stages = [each["stage"] for each in steps if each | group == each]
        title = f"- **{describe_group(group)}, step by step.**"
        told_course = _tell_course(rows_of(rows, group), stages, metric == "logp")
        lines.append(f"{title} {told_course}")
    if tests:
        effects = [test for test in tests if test["part"] != "flow"]
        found = [test for test in effects if test["p_holm"] <= ALPHA]
        lines.append(
            f"- **Differences.** {len(found)} of {len(effects)} between groups have a p below "
            f"{ALPHA}, corrected within each pair of groups."
        )
    return "\n\n".join([*told, "\n".join(lines)]).strip()


def _tell(rows: Sequence[Row]) -> list[str]:
    """One group at one step: what is lost, what gives it back, and where the subject hands over."""
    total = find_total(rows)
    said = [str(total["facts"]), f"{total['mean']:.3g}"]
    if total["low"] <= 0:
        return [*said, "nothing clear was lost", "–", "–"]
    clear = sorted((row for row in find_peaks(rows) if _is_clear(rows, row)), key=_by_mean)
    at_subject = [row for row in clear if row["role"] in SUBJECT_ROLES]
    elsewhere = [row for row in clear if row["role"] not in SUBJECT_ROLES]
    cells = [_tell_cells(each[:2], total) for each in (at_subject, elsewhere)]
    return [*said, *cells, _tell_handover(rows) if clear else "–"]


def _tell_cells(rows: Sequence[Row], total: Row) -> str:
    """Cells with their share of what was lost."""
    told = [
        f"{PART_NAMES.get(row['part'], row['part'])}, {row['role']}, layer {name_layer(row)}: "
        f"{row['mean'] / total['mean']:.0%}"
        for row in rows
    ]
    return "<br>".join(told) or "nothing clear"


def _tell_handover(rows: Sequence[Row]) -> str:
    """Up to which layer the subject's states give back more than any other."""
    states = [row for row in rows if row["part"] == "resid" and row["control"] == RESULT]
    layers = sorted({row["layer"] for row in states})
    leaders = [
        max((row for row in states if row["layer"] == layer), key=lambda row: row["mean"])["role"]
        for layer in layers
    ]
    ahead = [layer for layer, role in zip(layers, leaders, strict=True) if role in SUBJECT_ROLES]
    if not leaders:
        return "–"
    if not ahead:
        return f"at no layer; {leaders[-1]} at the last"
    if ahead[-1] == layers[-1]:
        return "at the last layer too"
    return f"to layer {ahead[-1]} of {layers[-1]}, then {leaders[-1]}"


def _is_clear(rows: Sequence[Row], cell: Row) -> bool:
    """Whether a cell's interval lies above 0 and above all its placebos'."""
    highest = max((each["high"] for each in find_placebos(rows, cell) if each), default=0.0)
    return cell["low"] > max(0.0, highest)


def _by_mean(row: Row) -> float:
    return -row["mean"]


def _tell_course(rows: Sequence[Row], stages: Sequence[str], by_token: bool) -> str:
    """How the total effect goes over the steps, and when committed tokens overtake the subject.

    Told are the steps that all facts have, so that no fact comes or goes; log-probabilities, which
    add up over tokens, by the token asked for.
    """
    mine = {stage: rows_of(rows, {"stage": stage}) for stage in stages}
    totals = {stage: find_total(mine[stage]) for stage in stages}
    facts = max(total["facts"] for total in totals.values())
    shared = [stage for stage in stages if totals[stage]["facts"] == facts]
    if facts < ENOUGH or len(shared) < 2:
        return (
            "Most answers are committed within one step, or there are too few: no course to tell."
        )
    lost = {stage: totals[stage]["mean"] for stage in shared}
    asked = {stage: find_asked(mine[stage]) for stage in shared}
    if by_token and all(asked.values()):
        lost = {stage: value / (asked[stage] or 1) for stage, value in lost.items()}
    highest = max(shared, key=lambda stage: lost[stage])
    unit = " a token" if by_token and all(asked.values()) else ""
    told = (
        f"From step {shared[0]} to {shared[-1]}, which all {facts} facts have, corrupting the "
        f"subject takes most at {name_stage(highest)} ({lost[highest]:.3g}{unit})"
    )
    gone = _find_lasting(
        shared,
        lambda stage: lost[stage] < _GONE * lost[highest] and int(stage) > int(highest),
    )
    told += f" and less than a tenth of that from {name_stage(gone)} on." if gone else "."
    flows = {(row["stage"], row["role"]): row["mean"] for row in rows if row["part"] == "flow"}
    seen = [stage for stage in shared if (stage, "committed") in flows]
    taken = _find_lasting(seen, lambda stage: flows[stage, "committed"] > flows[stage, "subject"])
    if taken:
        told += (
            f" From {name_stage(taken)} on, committed answer tokens give more of p than it does."
        )
    elif seen:
        told += " The subject gives more of p than committed answer tokens to the end."
    return told


def _find_lasting(stages: Sequence[str], holds: Callable[[str], bool]) -> str | None:
    """The first step from which on something holds, to the last."""
    found = None
    for stage in reversed(stages):
        if not holds(stage):
            break
        found = stage
    return found
