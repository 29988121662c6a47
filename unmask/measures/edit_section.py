"""What edits did, in words, tables and figures: the section of the measure `edit`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from unmask.blocks import blocks, labels, tidy
from unmask.blocks.blocks import Column
from unmask.measures.edit_summary import CONTROL_METRICS, SHARES, name_learned, name_sharing
from unmask.measures.measure import Summary
from unmask.measures.result import Result

METRICS = {
    "success_before": Column("preferred before, %", 1, is_percent=True),
    "success_after": Column("preferred after, %", 1, is_percent=True),
    "said_before": Column("said before, %", 1, is_percent=True),
    "said_after": Column("said after, %", 1, is_percent=True),
    "gain": Column("gain of log p, nats per token"),
    "rank_before": Column("subject's rank before", 1),
    "rank_after": Column("subject's rank after", 1),
    "share": Column("share of the edit that acts"),
}
OUTCOMES = {
    "preferred": Column("new object preferred, %", 1, is_percent=True),
    "said": Column("new object said, %", 1, is_percent=True),
    "said_reverse": Column("subject said in reverse, %", 1, is_percent=True),
    "judged": Column("judged right from two sides, %", 1, is_percent=True),
    "text_kl": Column("KL on other text, nats per token", 4),
}
CHANGES = {
    "magnitude": Column("norm of the change"),
    "reached": Column("as likely as edited, %", 0, is_percent=True),
    "updates": Column("updates", 1),
    "text_bits_before": Column("bits per token before", 3),
    "text_bits_after": Column("bits per token after", 3),
}
STATES = {
    "share": Column("at the subject's last token"),
    "share_masks": Column("at masks, mean size"),
    "share_words": Column("at other words, mean size"),
}
ROLES = {
    "edited": "the edited prompt",
    "paraphrase": "other phrasings",
    "neighbour": "neighbours",
    "reverse new": "reversed, new object",
    "reverse old": "reversed, old object",
    "reverse neighbour": "reversed, another fact",
}
UNLIKELY = 1.0
"""Nats per token of a new object at the value itself, from which on the search is too short."""
VARIANTS = {
    "none": "no change",
    "edit": "the edit",
    "layer": "in a random layer",
    "key": "the wrong subject's key",
    "delta": "another fact's delta",
    "tuned": "learned, whole network",
    "tuned-layer": "learned, edited projections",
}
SHARING = {
    "probe": "probe across directions, log-odds",
    "cosine": "cosine of key and v0 in reverse",
    "share": "share of the edit in reverse",
}
GAINS = {"gain": "log p of the subject", "rank": "rank of the subject"}
SCORES = {
    Column(f"{name}, %", 1, is_percent=True): column
    for column, name in (
        ("edited", "preferred, edited prompt"),
        ("paraphrase", "preferred, other phrasings"),
        ("neighbour", "preferred, neighbours"),
        ("score", "harmonic mean"),
    )
}


def describe(result: Result) -> Sequence[blocks.ReportBlock]:
    """What edits did: sentences for each model, scores, shares by state, texts side by side."""
    summary = result.summary
    scores = tidy.tabulate(
        "scores",
        "How often the right answer is preferred, and the harmonic mean of the three shares",
        summary["scores"],
        {"model": "model", **SCORES},
    )
    by_role = {"model": "model", "asked": lambda row: ROLES[row["role"]]}
    title = (
        "Before and after the edit: is the right answer preferred to its rival, is it said, what "
        "does it gain?"
    )
    means = tidy.tabulate_means("means", title, summary["means"], by_role, METRICS)
    steps = tidy.draw_lines(
        summary["trajectories"],
        "shares",
        "How much of an edit acts while its answer is written",
        "At the subject's last token, in states of the edited model's own texts; 1 is all of it. "
        "Bands are 95 % intervals by fact.",
        x="step",
        line="model",
        colour=lambda row: _choose_colour(row["kind"]),
        panel=lambda row: ROLES[row["role"]],
        xlabel="step",
        ylabel="share of the edit",
    )
    texts = tidy.tabulate(
        "examples",
        "What is said before and after the edit",
        summary["examples"],
        {
            **by_role,
            "prompt": "prompt",
            "right answer": "wanted",
            "before": "text_before",
            "after": "text_after",
        },
    )
    shown = [texts] if summary["examples"] else []
    figures = [_draw_said(summary)] if tidy.select(summary["means"], metric="said_after") else []
    tables = [tabulate_outcomes(summary), scores, means, *_tabulate_rest(result)]
    return [*_state(result), *figures, *tables, steps, *shown]


def tabulate_outcomes(summary: Summary) -> blocks.Table:
    """One row for the model as it was, its edits, each control and the learned statement."""
    keys = {"model": "model", "change": lambda row: VARIANTS[row["variant"]], "facts": "facts"}
    norms = ""
    if {"key", "delta"} & {*tidy.distinct(summary["outcomes"], "variant")}:
        norms = (
            ". The wrong subject's key and another fact's delta have the norm of the edit; a "
            "random layer has the norm that the search finds there"
        )
    return tidy.tabulate_means(
        "outcomes",
        f"What follows from each change; 50 % of two-sided judgements is chance{norms}",
        summary["outcomes"],
        keys,
        OUTCOMES,
        most=len(summary["outcomes"]),
    )


def _choose_colour(kind: str) -> str:
    return "causal" if labels.is_causal(kind) else "diffusion"


def _draw_said(summary: Summary) -> blocks.Figure:
    """Forwards and in reverse, before and after: what is said."""
    rows = [
        {**row, **{end: 100 * row[end] for end in tidy.ENDS}}
        for metric in ("said_before", "said_after")
        for row in tidy.select(summary["means"], metric=metric)
    ]
    rows.sort(key=lambda row: list(ROLES).index(row["role"]))
    when = {"said_before": "before", "said_after": "with the edit"}
    return tidy.draw_dots(
        rows,
        "said",
        "How often the right answer is said, forwards and in reverse",
        "Share of generated texts that hold the right answer, with 95 % intervals by fact. "
        "Reversed: the object is given, and the subject asked for.",
        label=lambda row: f"{ROLES[row['role']]}, {when[row['metric']]}",
        group="model",
        colour=lambda row: _choose_colour(row["kind"]),
        note=lambda row: labels.count(row["facts"], "fact"),
        panel=lambda row: "",
        xlabel="said, %",
        limits=(0, 100),
    )


def _tabulate_rest(result: Result) -> Iterator[blocks.ReportBlock]:
    """Tables of what the edits stand beside, each where there is something in it."""
    summary = result.summary
    by_variant = {"model": "model", "change": lambda row: VARIANTS[row["variant"]]}
    by_role = {"asked": lambda row: ROLES[row["role"]]}
    controls = {name: METRICS[name] for name in CONTROL_METRICS}
    if len(tidy.distinct(summary["controls"], "variant")) > 1:
        title = "Every question under the edit, its controls and the statement learned"
        columns = by_variant | by_role
        yield tidy.tabulate_means("controls", title, summary["controls"], columns, controls)
    if summary["baseline"]:
        yield _tabulate_learned(result)
    if len(tidy.distinct(summary["ways"], "group", "direction")) > 1:
        columns = {
            "model": "model",
            "facts": lambda row: labels.GROUPS.get(row["group"], row["group"]),
            "edited": lambda row: labels.DIRECTIONS[row["direction"]],
        }
        title = "By how a fact was trained, and which way it was edited"
        yield tidy.tabulate_means("ways", title, summary["ways"], columns | by_role, METRICS)
    title = "The size of each change, and bits per token of text that no training showed"
    yield tidy.tabulate_means("changes", title, summary["changes"], by_variant, CHANGES)
    if len(tidy.distinct(summary["lengths"], "answer")) > 1:
        columns = {"model": "model"} | by_role | {"tokens of the answer": "answer"}
        title = "By the length of the answer"
        yield tidy.tabulate_means("lengths", title, summary["lengths"], columns, controls)
    columns = {"model": "model"} | by_role | {"of the answer is shown": "shown"}
    title = "How much of an edit acts, by question and state; 1 is all of it"
    yield tidy.tabulate_means("states", title, summary["states"], columns, STATES)
    if len(tidy.distinct(summary["canvases"], "length", "steps")) > 1:
        columns = {"model": "model", "canvas": "length", "steps": "steps"} | by_role
        metrics = {name: METRICS[name] for name in SHARES[2:]}
        title = "What is said, by canvas and steps"
        yield tidy.tabulate_means("canvases", title, summary["canvases"], columns, metrics)
    if summary["sharing"]:
        yield _tabulate_sharing(result)
    yield _tabulate_facts(summary)


def _mark(result: Result, claim: str) -> blocks.RowRole:
    verdict = result.verdicts.get(claim)
    return "strong" if verdict is not None and verdict.is_clear else "plain"


def _tabulate_learned(result: Result) -> blocks.Table:
    return tidy.tabulate(
        "baseline",
        "The subject asked in reverse: the learned statement minus the edit, where both make the "
        "new statement equally likely",
        result.summary["baseline"],
        {
            "model": "model",
            "change": lambda row: VARIANTS[row["variant"]],
            "of the subject": lambda row: (
                "log p, nats per token" if row["metric"] == "gain" else "share said"
            ),
            Column("difference", 2): tidy.to_interval,
            "facts": "facts",
        },
        role=lambda row: _mark(result, name_learned(row)),
    )


def _tabulate_sharing(result: Result) -> blocks.Table:
    rows = result.summary["sharing"]
    return tidy.tabulate(
        "sharing",
        "Spearman's correlation over facts: likeness of the two directions before the edit, and "
        "what the subject gains in reverse; "
        f"{labels.count(len(rows), 'interval')}, none corrected for their number",
        rows,
        {
            "model": "model",
            "likeness": lambda row: SHARING[row["sharing"]],
            "gain in": lambda row: GAINS[row["outcome"]],
            Column("correlation", 2): tidy.to_interval,
            "facts": "facts",
        },
        role=lambda row: _mark(result, name_sharing(row)),
    )


def _tabulate_facts(summary: Summary) -> blocks.Table:
    def describe_condition(row: Mapping[str, Any]) -> str:
        return "identity" if row["condition"] is None else f"{row['condition']:.1e}"

    return tidy.tabulate(
        "facts",
        "Numbers of edited facts and of those whose old object the model said before; condition "
        "number of the keys' second moments",
        summary["facts"],
        {
            "model": "model",
            "facts": lambda row: labels.GROUPS.get(row["group"], row["group"]),
            "edited": lambda row: labels.DIRECTIONS[row["direction"]],
            "number": "facts",
            "old object said": "recalled",
            "condition number": describe_condition,
        },
    )


def _state(result: Result) -> Iterator[blocks.Finding | blocks.Notice]:
    summary = result.summary
    for row in summary["differences"]:
        own = tidy.select(summary["means"], model=row["model"], metric="said_after")
        shares = {mean["role"]: tidy.say(tidy.to_interval(mean), "%") for mean in own}
        change = tidy.say(tidy.to_interval(row), "points")
        yield blocks.Finding(
            f"{row['model']} ({labels.KINDS[row['kind']]}) says {shares['edited']} of the new "
            f"objects when asked as edited, and {shares['reverse new']} of the subjects when given "
            f"the new object, a difference of {change}.",
            result.verdicts[row["model"]],
        )
    compared = tidy.distinct(summary["differences"], "model")
    for row in tidy.select(summary["means"], metric="said_after", role="edited"):
        if row["model"] not in compared:
            share = tidy.say(tidy.to_interval(row), "%")
            yield blocks.Notice(
                f"{row['model']} ({labels.KINDS[row['kind']]}) says {share} of the new objects "
                "when asked as edited. The data ask nothing in reverse."
            )
    for row in tidy.select(summary["baseline"], metric="gain"):
        reached = tidy.select(
            summary["changes"], model=row["model"], variant=row["variant"], metric="reached"
        )
        share = tidy.say(tidy.to_interval(reached[0]), "%")
        yield blocks.Finding(
            f"In {row['model']}, training on the new statement instead of the edit "
            f"({VARIANTS[row['variant']]}) makes {share} of the statements as likely as the edit "
            "does; on these, log p of the subject asked in reverse gains "
            f"{tidy.say(row, 'nats per token', has_sign=True)} compared with the edit.",
            result.verdicts[name_learned(row)],
        )
    yield from _warn_of_short_searches(result)


def _warn_of_short_searches(result: Result) -> Iterator[blocks.Notice]:
    """Where values that were written do not make their objects likely themselves."""
    settings = result.records[0].settings
    for model, rows in tidy.group_by(result.summary["searches"], "model").items():
        means = {row["metric"]: tidy.to_interval(row) for row in rows}
        cost = means["search_nll"]
        if cost.mean > UNLIKELY:
            before, distance = (
                means[f"search_{name}"].mean for name in ("nll_before", "relative_distance")
            )
            yield blocks.Notice(
                f"The search for values in {model} ended after {settings['search_steps']} steps "
                f"where the new objects still cost {tidy.say(cost, 'nats per token')} "
                f"({before:.1f} before), {distance:.1f} lengths of a value away from it (the "
                f"clamp is {settings['clamp']:g}): no edit can do more than its value. More "
                "`--search-steps` or a higher `--lr` bring it further."
            )
