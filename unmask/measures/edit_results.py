"""What edits did: the means that the measure `edit` declares, and what is special to it."""

import math
from collections.abc import Iterator, Mapping
from itertools import product
from statistics import harmonic_mean
from typing import TYPE_CHECKING, Any

from unmask.blocks import labels, tidy
from unmask.blocks.blocks import Column, Notice, ReportBlock
from unmask.evaluation.statistics import rank_correlation
from unmask.measures.result import Result
from unmask.results.comparison import KIND, MODEL, Comparison, Factor, Quantity
from unmask.results.summaries import Rows, Summary, Tables, compare_means

if TYPE_CHECKING:
    from unmask.measures.edit import EditSettings

METRICS = {
    "success_before": Quantity("answer preferred before", "%"),
    "success_after": Quantity("answer preferred with the edit", "%"),
    "said_before": Quantity("answer said before", "%"),
    "said_after": Quantity("answer said with the edit", "%"),
    "gain": Quantity("gain of log p", "nats per token"),
    "rank_before": Quantity("subject's rank before", digits=1),
    "rank_after": Quantity("subject's rank after", digits=1),
    "share": Quantity("share of the edit that acts"),
}
AFTER = {name: METRICS[name] for name in ("success_after", "said_after", "gain")}
SAID = {name: METRICS[name] for name in ("said_before", "said_after")}
OUTCOMES = {
    "preferred": Quantity("new object preferred", "%"),
    "said": Quantity("new object said", "%"),
    "said_reverse": Quantity("subject said in reverse", "%"),
    "judged": Quantity("judged right from two sides", "%"),
    "text_kl": Quantity("KL on other text", "nats per token", digits=4),
}
CHANGES = {
    "magnitude": Quantity("norm of the change"),
    "reached": Quantity("as likely as edited", "%", digits=0),
    "updates": Quantity("updates", digits=1),
    "text_bits_before": Quantity("bits per token before", digits=3),
    "text_bits_after": Quantity("bits per token after", digits=3),
}
STATES = {
    "share": Quantity("at the subject's last token"),
    "share_masks": Quantity("at masks, mean size"),
    "share_words": Quantity("at other words, mean size"),
}
SEARCHES = {
    "search_nll_before": Quantity("cost of the new object before", "nats per token"),
    "search_nll": Quantity("at the value found", "nats per token"),
    "search_relative_distance": Quantity("‖delta‖ / ‖v0‖"),
}
FORWARD = ("edited", "paraphrase", "neighbour")
"""Roles whose success makes up the score."""
READ = {
    "edited": {"preferred": "success", "said": "said"},
    "reverse new": {"said_reverse": "said", "judged": "success"},
    "reverse neighbour": {"judged": "success"},
}
"""The answers that outcomes are read from; a judgement from two sides is the mean of two rows."""
ROLE = Factor(
    "role",
    "asked",
    {
        "edited": "the edited prompt",
        "paraphrase": "other phrasings",
        "neighbour": "neighbours",
        "reverse new": "reversed, new object",
        "reverse old": "reversed, old object",
        "reverse neighbour": "reversed, another fact",
    },
)
VARIANT = Factor(
    "variant",
    "change",
    {
        "none": "no change",
        "edit": "the edit",
        "layer": "in a random layer",
        "key": "the wrong subject's key",
        "delta": "another fact's delta",
        "tuned": "learned, whole network",
        "tuned-layer": "learned, edited projections",
    },
)
GROUP = Factor("group", "facts", lambda group: labels.GROUPS.get(group, group))
WAY = Factor("direction", "edited", labels.DIRECTIONS)
_SHARES = {role: f"preferred, {ROLE.name(role)}" for role in FORWARD} | {"score": "harmonic mean"}
SCORES = {Quantity(name, "%").head(): column for column, name in _SHARES.items()}


def _declare(name: str, title: str, metrics: Mapping[str, Quantity], *groups: Factor) -> Comparison:
    groups, names = (MODEL, KIND, *groups), (name, "")
    return Comparison(title=title, means=title, metrics=metrics, groups=groups, names=names)


ASKED = Comparison(
    metrics=METRICS,
    groups=(MODEL, KIND),
    variant=ROLE,
    against=[("edited", "reverse new")],
    compared=["said_after"],
    title="How often the right answer is said, forwards and in reverse",
    caption="Share of texts that hold the right answer, with 95 % intervals by fact. Reversed: the "
    "object is given, and the subject asked for.",
    means="Is the right answer preferred to its rival, is it said, what does it gain?",
)
LEARNED = Comparison(
    metrics={
        "gain": Quantity("gain in reverse of statements as likely as edited", "nats per token"),
        "said_after": METRICS["said_after"],
    },
    groups=(MODEL, KIND),
    variant=VARIANT,
    against=[("tuned", "edit"), ("tuned-layer", "edit")],
    title="",
    names=("", "baseline"),
    differences="In reverse: learned minus edited, where both make the statement equally likely",
)
TRAJECTORY = Comparison(
    metrics={"share": Quantity("share of the edit")},
    groups=(MODEL, KIND),
    variant=ROLE,
    axis=Factor("step", "step"),
    title="How much of an edit acts while its answer is written",
    caption="At the subject's last token, in states of the edited model's own texts; 1 is all of "
    "it. Bands are 95 % intervals by fact.",
    names=("shares", ""),
)
LIKENESS = {
    "probe": "probe across directions, log-odds",
    "cosine": "cosine of key and v0",
    "share": "share of the edit in reverse",
}
SHARING = Comparison(
    metrics={"gain": Quantity("with log p of the subject"), "rank": Quantity("with its rank")},
    groups=(MODEL, KIND, Factor("sharing", "likeness of both directions", LIKENESS)),
    title="",
    names=("sharing", ""),
    means="What the subject gains in reverse: Spearman's correlations over facts, not corrected "
    "for their number",
)
LENGTH, SHOWN = Factor("answer", "tokens of the answer"), Factor("shown", "of the answer is shown")
CANVAS = Factor("length", "canvas"), Factor("steps", "steps"), ROLE
OUTCOME = "Each change; 50 % of two-sided judgements is chance"
DECLARED = (
    ASKED,
    _declare("outcomes", OUTCOME, OUTCOMES, VARIANT),
    _declare("controls", "Every question under each change", AFTER, VARIANT, ROLE),
    _declare("ways", "By how a fact was trained, and edited", METRICS, GROUP, WAY, ROLE),
    _declare("changes", "The size of each change, and bits of unseen text", CHANGES, VARIANT),
    _declare("lengths", "By the length of the answer", AFTER, ROLE, LENGTH),
    _declare("states", "How much of an edit acts; 1 is all of it", STATES, ROLE, SHOWN),
    _declare("canvases", "What is said, by canvas and steps", SAID, *CANVAS),
    _declare("searches", "Searches for values: no edit can do more than its value", SEARCHES),
)
MEANS = {each.names[0]: each for each in DECLARED}
"""What is averaged, by the name of the summary's table."""
ALWAYS = ("means", "changes", "searches")
"""What a page shows even of edits alone; other tables where something in them varies."""


def _name_shown(row: tidy.Record) -> str:
    return "none" if not row["step"] else "all" if row["step"] == row["tokens"] else "half"


def _name_length(tokens: int) -> str:
    return str(tokens) if tokens <= 4 else "5 to 8" if tokens <= 8 else "9 or more"


def summarise(tables: Tables, settings: "EditSettings") -> Summary:
    """Means by model and role, the score, forwards against reversed, controls, shares by state."""
    every, states = tables["edit"].to_pylist(), tables["edit_steps"].to_pylist()
    rows = tidy.select(every, variant="edit")
    edited, back = (tidy.select(rows, role=role) for role in ("edited", "reverse new"))
    averaged: dict[str, Rows] = {
        "means": rows,
        "outcomes": list(_read_outcomes(every)),
        "controls": every,
        "ways": [*edited, *back],
        "changes": tidy.select(every, role="edited"),
        "lengths": [{**row, "answer": _name_length(row["tokens"])} for row in (*edited, *back)],
        "states": [
            {**row, "shown": _name_shown(row)} for row in tidy.select(states, states="given")
        ],
        "canvases": tables["edit_canvases"].to_pylist(),
        "searches": edited,
    }
    summary = {name: MEANS[name].average(own) for name, own in averaged.items()}
    steps = TRAJECTORY.average(tidy.select(states, states="own"), "step")
    by_line = tidy.group_by(steps, "model", "role").values()
    written = [row for row in rows if row["seed"] == 0 and row["text_after"] is not None]
    return summary | {
        "differences": ASKED.subtract([*edited, *back]),
        # As long as every fact has a state there: texts end at different steps.
        "trajectories": [row for own in by_line for row in own if row["facts"] == own[0]["facts"]],
        "scores": list(_score(summary["means"])),
        "facts": [
            {name: own[0][name] for name in ("model", "kind", "group", "direction", "condition")}
            | {"facts": len(tidy.distinct(own, "fact"))}
            | {"recalled": sum(row["recalled"] for row in own)}
            for own in tidy.group_by(edited, "model", "kind", "group", "direction").values()
        ],
        "baseline": list(_compare_learned(tidy.select(every, role="reverse new"), settings.seed)),
        "sharing": list(_correlate(back, settings.seed)),
        "examples": [
            row
            for own in tidy.group_by(written, "model").values()
            for fact in tidy.distinct(own, "fact")[: settings.examples]
            for row in tidy.select(own, fact=fact)
        ],
    }


def _read_outcomes(rows: Rows) -> Iterator[dict[str, Any]]:
    """What questions say of each change, and of the model as it was (`none`), by equal metrics."""
    for own in tidy.group_by(rows, "model").values():
        for when, members in (("before", tidy.select(own, variant="edit")), ("after", own)):
            for row in (row for row in members if row["role"] in READ):
                is_before = when == "before"
                kl = None if is_before or row["role"] != "edited" else row["text_kl"]
                variant = "none" if is_before else row["variant"]
                read = {name: row[f"{it}_{when}"] for name, it in READ[row["role"]].items()}
                read = dict.fromkeys(OUTCOMES) | read | {"text_kl": kl, "variant": variant}
                yield {**row, **read}


def _score(means: Rows) -> Iterator[dict[str, Any]]:
    """The harmonic mean of the three means, as in the papers; 0 where one of them is."""
    after = tidy.select(means, metric="success_after")
    for (model, kind), own in tidy.group_by(after, "model", "kind").items():
        by_role = {row["role"]: float(row["mean"]) for row in own if row["role"] in FORWARD}
        score = harmonic_mean(by_role.values()) if len(by_role) == len(FORWARD) else None
        shares = {role: by_role.get(role) for role in FORWARD}
        yield {"model": model, "kind": kind, "score": score, **shares}


def _compare_learned(rows: Rows, seed: int) -> Iterator[dict[str, Any]]:
    """How much more the reverse gains where the statement is learned than where it is edited in.

    Over the facts whose statement became as likely as under the edit: equal forward success.
    """
    equal = [row for row in rows if row["variant"] == "edit" or row["reached"]]
    for gap in LEARNED.subtract(equal):
        own = tidy.select(equal, model=gap["model"])
        learned, edits = (tidy.select(own, variant=gap[side]) for side in ("variant", "minus"))
        if difference := compare_means(learned, edits, gap["metric"], seed):
            yield vars(difference) | gap


def _correlate(rows: Rows, seed: int) -> Iterator[dict[str, Any]]:
    """Whether the reverse follows more where both directions share more: Spearman, by fact."""
    risen = [
        {**row, "rank": None if (last := row["rank_after"]) is None else row["rank_before"] - last}
        for row in rows
    ]
    for (model, kind), own in tidy.group_by(risen, "model", "kind").items():
        for column, gain in product(LIKENESS, SHARING.metrics):
            known = [row for row in own if None not in (row[column], row[gain])]
            # Training seeds of a fact are no further facts: their mean stands for it.
            facts = tidy.group_by(known, "fact").values()
            sides = (
                [sum(row[name] for row in each) / len(each) for each in facts]
                for name in (column, gain)
            )
            value = rank_correlation(*sides, seed=seed)
            if math.isfinite(value.mean):  # it is not where all facts are alike
                which = {"model": model, "kind": kind, "sharing": column, "outcome": gain}
                yield which | {"metric": gain} | vars(value) | {"facts": len(facts)}


def describe(result: Result) -> list[ReportBlock]:
    """Sentences for each model, then the figures and every table in which something varies."""
    return list(_show(result.summary))


def _show(summary: Summary) -> Iterator[ReportBlock]:
    yield from ASKED.state(summary)
    if not summary["differences"]:
        yield Notice("The data ask nothing in reverse: the tables say what is said as edited.")
    yield from LEARNED.state({"": (), "baseline": summary["baseline"]})
    yield ASKED.draw([row for row in summary["means"] if row["metric"] in SAID])
    yield TRAJECTORY.draw(summary["trajectories"])
    title = "How often the right answer is preferred, and the harmonic mean of the three shares"
    yield tidy.tabulate("scores", title, summary["scores"], {"model": "model", **SCORES})
    for name, comparison in MEANS.items():
        varied = {each.column for each in comparison.groups} - {"model", "kind", "role"}
        if name in ALWAYS or len(tidy.distinct(summary[name], *varied)) > 1:
            yield comparison.tabulate(summary[name])
    if summary["baseline"]:
        yield LEARNED.tabulate_differences(summary["baseline"])
    if summary["sharing"]:
        yield SHARING.tabulate(summary["sharing"], facts="facts")
    columns: dict[str | Column, tidy.Get] = {"model": "model", "facts": GROUP.get}
    columns |= {"edited": WAY.get, "number": "facts", "old object said": "recalled"}
    columns[Column("condition number", is_short=True)] = "condition"
    title = "Edited facts, those whose old object was said before, condition of the keys' moments"
    yield tidy.tabulate("facts", title, summary["facts"], columns)
    if summary["examples"]:
        columns = {"model": "model", "asked": ROLE.get, "prompt": "prompt", "wanted": "wanted"}
        columns |= {"before": "text_before", "after": "text_after"}
        title = "What is said before and after the edit"
        yield tidy.tabulate("examples", title, summary["examples"], columns)
