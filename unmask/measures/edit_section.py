"""What edits did, in numbers and in words: the summary and the section of the measure `edit`."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from unmask.blocks import blocks, labels, tidy
from unmask.blocks.blocks import Column
from unmask.evaluation.statistics import rank_correlation
from unmask.measures.measure import Rows, Summary, Tables
from unmask.measures.result import Result
from unmask.measures.summaries import estimate_means, subtract_shares

if TYPE_CHECKING:
    from unmask.measures.edit import EditSettings

METRICS = {
    "success_before": Column("right before, %", 1, is_percent=True),
    "success_after": Column("right after, %", 1, is_percent=True),
    "said_before": Column("said before, %", 1, is_percent=True),
    "said_after": Column("said after, %", 1, is_percent=True),
    "gain": Column("gain, nats per token"),
    "rank_before": Column("rank before", 1),
    "rank_after": Column("rank after", 1),
    "share": Column("share of the edit"),
}
SHARES = ("success_before", "success_after", "said_before", "said_after")
FORWARD = ("edited", "paraphrase", "neighbour")
"""Roles whose success makes up the score."""
ROLES = {
    "edited": "the edited prompt",
    "paraphrase": "other phrasings",
    "neighbour": "neighbours",
    "reverse new": "reversed, new object",
    "reverse old": "reversed, old object",
    "reverse neighbour": "reversed, another fact",
}
JUDGED = ("reverse new", "reverse neighbour")
"""Roles whose success is a judgement from two sides."""
BY_VARIANT = ("model", "kind", "variant")
CONTROL_METRICS = {name: METRICS[name] for name in ("success_after", "said_after", "gain")}
TEXT = {
    "text_kl": Column("KL, nats per token", 4),
    "text_bits_before": Column("bits per token before", 3),
    "text_bits_after": Column("bits per token after", 3),
}
VARIANTS = {
    "edit": "the edit",
    "layer": "in a random layer",
    "key": "the wrong subject's key",
    "delta": "another fact's delta",
    "tuned": "learned, whole network",
    "tuned-layer": "learned, edited projections",
}
SHARING = {"cosine": "cosine of keys", "share": "share of the edit"}


def summarise(tables: Tables, settings: "EditSettings") -> Summary:
    """Means by model and role, the score, forwards against reversed, controls, shares by step."""
    all_rows = tables["edit"].to_pylist()
    rows = tidy.select(all_rows, variant="edit")
    means = estimate_means(rows, ("model", "kind", "role"), list(METRICS), SHARES)
    steps = estimate_means(tables["edit_steps"].to_pylist(), ("model", "kind", "step"), ["share"])
    by_model = tidy.group_by(steps, "model").values()
    shown = tidy.select(rows, seed=0)
    examples = [
        row
        for own in tidy.group_by(shown, "model").values()
        for fact in tidy.distinct(own, "fact")[: settings.examples]
        for row in tidy.select(own, fact=fact)
        if row["text_after"] is not None
    ]
    return {
        "means": means,
        "ways": estimate_means(rows, ("model", "kind", "direction", "role"), list(METRICS), SHARES),
        "scores": list(_score(means)),
        "differences": list(_compare_directions(rows)),
        "controls": estimate_means(all_rows, (*BY_VARIANT, "role"), list(CONTROL_METRICS), SHARES),
        "judgement": estimate_means(
            [row for row in all_rows if row["role"] in JUDGED], BY_VARIANT, SHARES[:2], SHARES
        ),
        "text": estimate_means(tidy.select(all_rows, role="edited"), BY_VARIANT, list(TEXT)),
        "canvases": estimate_means(
            tables["edit_canvases"].to_pylist(),
            ("model", "kind", "length", "steps", "role"),
            SHARES[2:],
            SHARES,
        ),
        "sharing": list(_correlate(tidy.select(rows, role="reverse new"), settings.seed)),
        # As long as every fact has a state there: texts end at different steps.
        "steps": [row for own in by_model for row in own if row["facts"] == own[0]["facts"]],
        "examples": examples,
    }


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


def _compare_directions(rows: Rows) -> Iterator[dict[str, Any]]:
    """How much more often the new object is said forwards than the subject in reverse."""
    for (model, kind), own in tidy.group_by(rows, "model", "kind").items():
        reverse = tidy.select(own, role="reverse new")
        facts = {row["fact"] for row in reverse}
        forward = [row for row in tidy.select(own, role="edited") if row["fact"] in facts]
        if reverse:
            yield {"model": model, "kind": kind} | subtract_shares(forward, reverse, "said_after")


def _correlate(rows: Rows, seed: int) -> Iterator[dict[str, Any]]:
    """Whether the reverse follows more where the reverse question shares the edited key."""
    for (model, kind), own in tidy.group_by(rows, "model", "kind").items():
        for column in SHARING:
            for outcome in ("gain", "rank"):
                values = [
                    (row[column], row["gain"] if outcome == "gain" else _count_risen(row))
                    for row in own
                ]
                estimate = rank_correlation(*zip(*values, strict=True), seed=seed)
                which = {"model": model, "kind": kind, "sharing": column, "outcome": outcome}
                if math.isfinite(estimate.mean):  # it is not where all facts are alike
                    yield which | vars(estimate) | {"facts": len(own)}


def _count_risen(row: Mapping[str, Any]) -> float:
    """Ranks that the subject has risen by."""
    return 0.0 if row["rank_after"] is None else row["rank_before"] - row["rank_after"]


def describe(result: Result) -> Sequence[blocks.ReportBlock]:
    """What edits did: a sentence for each model, the scores, shares by step, texts side by side."""
    summary = result.summary
    scores = tidy.tabulate(
        "scores",
        "Share of edits that are right by likelihood, %",
        summary["scores"],
        {
            "model": "model",
            Column("efficacy", 1, is_percent=True): "edited",
            Column("paraphrase", 1, is_percent=True): "paraphrase",
            Column("neighbourhood", 1, is_percent=True): "neighbour",
            Column("harmonic mean", 1, is_percent=True): "score",
        },
    )
    means = tidy.tabulate_means(
        "means",
        "Before and after the edit",
        summary["means"],
        {"model": "model", "asked": lambda row: ROLES[row["role"]]},
        METRICS,
    )
    figure = tidy.draw_lines(
        summary["steps"],
        "shares",
        "How much of an edit acts while its answer is written",
        "At the subject's last token; 1 is all of it. Bands are 95 % intervals by fact.",
        x="step",
        line="model",
        colour=lambda row: "p3" if labels.is_causal(row["kind"]) else "p2",
        panel=lambda row: "the edited model's own states",
        xlabel="step",
        ylabel="share of the edit",
    )
    texts = tidy.tabulate(
        "examples",
        "Answers before and after",
        summary["examples"],
        {
            "model": "model",
            "asked": lambda row: ROLES[row["role"]],
            "prompt": "prompt",
            "right": "wanted",
            "before": "text_before",
            "after": "text_after",
        },
    )
    shown = [texts] if summary["examples"] else []
    return [*_state(result), scores, means, *_tabulate_rest(summary), figure, *shown]


def _tabulate_rest(summary: Summary) -> Iterator[blocks.ReportBlock]:
    """Tables of what the edits stand beside, each where there is something in it."""
    by_variant = {"model": "model", "change": lambda row: VARIANTS[row["variant"]]}
    by_role = {"asked": lambda row: ROLES[row["role"]]}
    if len(tidy.distinct(summary["controls"], "variant")) > 1:
        title = "The edit beside controls of equal norm and the statement learned"
        columns = by_variant | by_role
        yield tidy.tabulate_means("controls", title, summary["controls"], columns, CONTROL_METRICS)
    if summary["judgement"]:
        title = "Statements judged from two sides; 50 % is chance"
        metrics = {name: METRICS[name] for name in SHARES[:2]}
        yield tidy.tabulate_means("judgement", title, summary["judgement"], by_variant, metrics)
    if summary["text"]:
        title = "What becomes of other text"
        yield tidy.tabulate_means("text", title, summary["text"], by_variant, TEXT)
    if len(tidy.distinct(summary["canvases"], "length", "steps")) > 1:
        columns = {"model": "model", "canvas": "length", "steps": "steps"} | by_role
        metrics = {name: METRICS[name] for name in SHARES[2:]}
        title = "Generations by canvas and steps"
        yield tidy.tabulate_means("canvases", title, summary["canvases"], columns, metrics)
    if summary["sharing"]:
        yield tidy.tabulate(
            "sharing",
            "Does the reverse follow where keys are shared? Spearman's correlation over facts",
            summary["sharing"],
            {
                "model": "model",
                "sharing": lambda row: SHARING[row["sharing"]],
                "of the subject in reverse": lambda row: row["outcome"],
                Column("correlation", 2): tidy.to_interval,
                "facts": "facts",
            },
        )


def _state(result: Result) -> Iterator[blocks.Finding]:
    for row in result.summary["differences"]:
        own = tidy.select(result.summary["means"], model=row["model"], metric="said_after")
        shares = {mean["role"]: tidy.say(tidy.to_interval(mean), "%") for mean in own}
        change = tidy.say(tidy.to_interval(row), "points")
        yield blocks.Finding(
            f"{row['model']} ({labels.KINDS[row['kind']]}) says {shares['edited']} of the new "
            f"objects when asked as edited, and {shares['reverse new']} of the subjects when given "
            f"the new object, a difference of {change}.",
            result.verdicts[row["model"]],
        )
