"""What edits did, in numbers: the summary of the measure `edit`, and what may be said of it."""

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from unmask.blocks import tidy
from unmask.blocks.blocks import Verdict
from unmask.evaluation.statistics import cluster, estimate_difference, rank_correlation
from unmask.measures.measure import Rows, Summary, Tables, judge_differences, judge_interval
from unmask.results.summaries import compare_means, estimate_means, subtract_shares

if TYPE_CHECKING:
    from unmask.measures.edit_data import EditSettings

SHARES = ("success_before", "success_after", "said_before", "said_after")
METRICS = (*SHARES, "gain", "rank_before", "rank_after", "share")
FORWARD = ("edited", "paraphrase", "neighbour")
"""Roles whose success makes up the score."""
BY_VARIANT = ("model", "kind", "variant")
CONTROL_METRICS = ("success_after", "said_after", "gain")
OUTCOMES = ("preferred", "said", "said_reverse", "judged", "text_kl")
"""What one row says of a change: forwards, in reverse, and of other text."""
CHANGE_METRICS = ("magnitude", "reached", "updates", "text_bits_before", "text_bits_after")
SEARCH_METRICS = ("search_nll_before", "search_nll", "search_relative_distance")
STATE_METRICS = ("share", "share_masks", "share_words")
SHARING = ("probe", "cosine", "share")
"""What the gain in reverse is held against, one number per fact."""


def summarise(tables: Tables, settings: "EditSettings") -> Summary:
    """Means by model and role, the score, forwards against reversed, controls, shares by state."""
    all_rows, states = tables["edit"].to_pylist(), tables["edit_steps"].to_pylist()
    rows = tidy.select(all_rows, variant="edit")
    edited, back = (tidy.select(rows, role=role) for role in ("edited", "reverse new"))
    means = estimate_means(rows, ("model", "kind", "role"), METRICS, SHARES)
    own = tidy.select(states, states="own")
    steps = estimate_means(own, ("model", "kind", "role", "step"), ["share"])
    by_line = tidy.group_by(steps, "model", "role").values()
    given = [{**row, "shown": _name_shown(row)} for row in tidy.select(states, states="given")]
    by_length = [{**row, "answer": _name_length(row)} for row in (*edited, *back)]
    examples = [
        row
        for own in tidy.group_by(tidy.select(rows, seed=0), "model").values()
        for fact in tidy.distinct(own, "fact")[: settings.examples]
        for row in tidy.select(own, fact=fact)
        if row["text_after"] is not None
    ]
    return {
        "means": means,
        "ways": estimate_means(
            [*edited, *back], ("model", "kind", "group", "direction", "role"), METRICS, SHARES
        ),
        "scores": list(_score(means)),
        "differences": list(_compare_directions(rows)),
        "searches": estimate_means(edited, ("model", "kind"), SEARCH_METRICS),
        "outcomes": list(_list_outcomes(all_rows)),
        "facts": list(_count_facts(edited)),
        "controls": estimate_means(all_rows, (*BY_VARIANT, "role"), CONTROL_METRICS, SHARES),
        "baseline": list(_compare_learned(all_rows, settings.seed)),
        "changes": estimate_means(
            tidy.select(all_rows, role="edited"), BY_VARIANT, CHANGE_METRICS, ("reached",)
        ),
        "canvases": estimate_means(
            tables["edit_canvases"].to_pylist(),
            ("model", "kind", "length", "steps", "role"),
            SHARES[2:],
            SHARES,
        ),
        "lengths": estimate_means(
            by_length, ("model", "kind", "role", "answer"), CONTROL_METRICS, SHARES
        ),
        "states": estimate_means(given, ("model", "kind", "role", "shown"), STATE_METRICS),
        "sharing": list(_correlate(back, settings.seed)),
        # As long as every fact has a state there: texts end at different steps.
        "trajectories": [row for own in by_line for row in own if row["facts"] == own[0]["facts"]],
        "examples": examples,
    }


def _name_shown(row: Mapping[str, Any]) -> str:
    """How much of the right answer a given state shows."""
    return "none" if not row["step"] else "all" if row["step"] == row["tokens"] else "half"


def _name_length(row: Mapping[str, Any]) -> str:
    """How many tokens an answer has; long ones are put together."""
    tokens = row["tokens"]
    return str(tokens) if tokens <= 4 else "5 to 8" if tokens <= 8 else "9 or more"


def _score(means: Rows) -> Iterator[dict[str, Any]]:
    """The harmonic mean of the three means, as in the papers; 0 where one of them is."""
    after = tidy.select(means, metric="success_after")
    for (model, kind), own in tidy.group_by(after, "model", "kind").items():
        values = {row["role"]: row["mean"] for row in own if row["role"] in FORWARD}
        score = None
        if len(values) == len(FORWARD):
            score = 3 / sum(1 / value for value in values.values()) if all(values.values()) else 0.0
        yield {"model": model, "kind": kind, "score": score} | {
            role: values.get(role) for role in FORWARD
        }


def _list_outcomes(rows: Rows) -> Iterator[dict[str, Any]]:
    """Every change by the same five metrics, after the model as it was (`none`)."""
    for own in tidy.group_by(rows, "model").values():
        before = [
            row
            | {"variant": "none", "text_kl": None}
            | {f"{name}_after": row[f"{name}_before"] for name in ("success", "said")}
            for row in map(dict, tidy.select(own, variant="edit"))
        ]
        outcomes = [row | _read_outcome(row) for row in (*before, *map(dict, own))]
        yield from estimate_means(outcomes, BY_VARIANT, OUTCOMES, OUTCOMES[:-1])


def _read_outcome(row: Mapping[str, Any]) -> dict[str, Any]:
    """What a question says of its change; a judgement from two sides is the mean of two rows."""
    values = {
        "edited": {"preferred": "success_after", "said": "said_after", "text_kl": "text_kl"},
        "reverse new": {"said_reverse": "said_after", "judged": "success_after"},
        "reverse neighbour": {"judged": "success_after"},
    }
    read = values.get(row["role"], {})
    return {name: row[read[name]] if name in read else None for name in OUTCOMES}


def _compare_directions(rows: Rows) -> Iterator[dict[str, Any]]:
    """How much more often the new object is said forwards than the subject in reverse."""
    for (model, kind), own in tidy.group_by(rows, "model", "kind").items():
        reverse = tidy.select(own, role="reverse new")
        facts = {row["fact"] for row in reverse}
        forward = [row for row in tidy.select(own, role="edited") if row["fact"] in facts]
        if reverse:
            yield {"model": model, "kind": kind} | subtract_shares(forward, reverse, "said_after")


def _count_facts(edited: Rows) -> Iterator[dict[str, Any]]:
    """How many facts each model's edits are of, and of how many it said the old object before."""
    for (model, kind, group, way), own in tidy.group_by(
        edited, "model", "kind", "group", "direction"
    ).items():
        yield {
            "model": model,
            "kind": kind,
            "group": group,
            "direction": way,
            "facts": len(tidy.distinct(own, "fact")),
            "recalled": sum(row["recalled"] for row in own),
            "condition": own[0]["condition"],
        }


def _compare_learned(rows: Rows, seed: int) -> Iterator[dict[str, Any]]:
    """How much more the reverse gains where the statement is learned than where it is edited in.

    Over the facts whose statement became as likely as under the edit: equal forward success.
    """
    reverse = tidy.select(rows, role="reverse new")
    for (model, kind), own in tidy.group_by(reverse, "model", "kind").items():
        edits = tidy.select(own, variant="edit")
        for variant in ("tuned", "tuned-layer"):
            learned = [row for row in tidy.select(own, variant=variant) if row["reached"]]
            facts = {row["fact"] for row in learned}
            beside = [row for row in edits if row["fact"] in facts]
            which = {"model": model, "kind": kind, "variant": variant}
            for column in ("gain", "said_after"):
                difference = compare_means(learned, beside, column, seed)
                if difference is None:
                    continue
                row = which | {"metric": column} | vars(difference)
                if column in SHARES:  # a share that was never hit keeps its bound
                    sides = (
                        cluster([each[column] for each in side], [each["fact"] for each in side])
                        for side in (learned, beside)
                    )
                    row |= vars(estimate_difference(*sides, is_share=True))
                yield row


def _correlate(rows: Rows, seed: int) -> Iterator[dict[str, Any]]:
    """Whether the reverse follows more where both directions share more: Spearman, by fact."""
    for (model, kind), own in tidy.group_by(rows, "model", "kind").items():
        for column in SHARING:
            for outcome in ("gain", "rank"):
                pairs = [
                    {"fact": row["fact"], "one": row[column], "other": value}
                    for row in own
                    if None not in (row[column], value := _read_change(row, outcome))
                ]
                # Training seeds of a fact are no further facts: their mean stands for it.
                means = [
                    [
                        sum(pair[side] for pair in members) / len(members)
                        for side in ("one", "other")
                    ]
                    for members in tidy.group_by(pairs, "fact").values()
                ]
                if not means:
                    continue
                estimate = rank_correlation(*zip(*means, strict=True), seed=seed)
                which = {"model": model, "kind": kind, "sharing": column, "outcome": outcome}
                if math.isfinite(estimate.mean):  # it is not where all facts are alike
                    yield which | vars(estimate) | {"facts": len(means)}


def _read_change(row: Mapping[str, Any], outcome: str) -> float | None:
    """What the subject gains, or the ranks that it has risen by; None where it has no rank."""
    if outcome == "gain":
        return row["gain"]
    return None if row["rank_after"] is None else row["rank_before"] - row["rank_after"]


def judge(summary: Summary, settings: "EditSettings") -> Iterator[Verdict]:
    """Whether forwards is above reversed, learned above edited, and each correlation from 0."""
    yield from judge_differences(summary, settings)
    for row in summary["baseline"]:
        yield judge_interval(name_learned(row), tidy.to_interval(row), row["facts"])
    for row in summary["sharing"]:
        yield judge_interval(name_sharing(row), tidy.to_interval(row), row["facts"])


def name_learned(row: Mapping[str, Any]) -> str:
    """The claim that a learned statement gains more in reverse."""
    return f"{row['model']}: {row['variant']}, {row['metric']}"


def name_sharing(row: Mapping[str, Any]) -> str:
    """The claim that the reverse follows what both directions share."""
    return f"{row['model']}: {row['sharing']}, {row['outcome']}"
