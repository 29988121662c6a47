"""What edits did: the means that the measure `edit` declares, and what is special to it."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from unmask.blocks import blocks, labels, tidy
from unmask.blocks.blocks import Column
from unmask.evaluation.statistics import cluster, estimate_difference, rank_correlation
from unmask.measures.edit_data import EditSettings
from unmask.measures.result import Result
from unmask.results.comparison import KIND, MODEL, Comparison, Factor, Quantity
from unmask.results.summaries import Rows, Summary, Tables, add_outcome, compare_means, mark_outcome

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
SEARCHES = {f"search_{name}": Quantity(name) for name in ("nll_before", "nll", "relative_distance")}
UNLIKELY = 1.0
"""Nats per token of a new object at the value itself, from which on the search is too short."""
FORWARD = ("edited", "paraphrase", "neighbour")
"""Roles whose success makes up the score."""
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
SHARING = {"probe": "probe across directions, log-odds", "cosine": "cosine of key and v0"}
SHARING |= {"share": "share of the edit in reverse"}
"""What the gain in reverse is held against, one number per fact."""
GAINS = {"gain": "log p of the subject", "rank": "rank of the subject"}
_SHARES = {role: f"preferred, {ROLE.name(role)}" for role in FORWARD} | {"score": "harmonic mean"}
SCORES = {Quantity(name, "%").head(): column for column, name in _SHARES.items()}


def _declare(title: str, metrics: Mapping[str, Quantity], *groups: Factor) -> Comparison:
    return Comparison(title=title, means=title, metrics=metrics, groups=(MODEL, KIND, *groups))


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
TRAJECTORY = Comparison(
    metrics={"share": Quantity("share of the edit")},
    groups=(MODEL, KIND, ROLE),
    axis=Factor("step", "step"),
    title="How much of an edit acts while its answer is written",
    caption="At the subject's last token, in states of the edited model's own texts; 1 is all of "
    "it. Bands are 95 % intervals by fact.",
)
LENGTH, SHOWN = Factor("answer", "tokens of the answer"), Factor("shown", "of the answer is shown")
CANVAS = Factor("length", "canvas"), Factor("steps", "steps"), ROLE
MEANS = {
    "means": ASKED,
    "outcomes": _declare("Each change; 50 % of two-sided judgements is chance", OUTCOMES, VARIANT),
    "controls": _declare("Every question under each change", AFTER, VARIANT, ROLE),
    "ways": _declare("By how a fact was trained, and edited", METRICS, GROUP, WAY, ROLE),
    "changes": _declare("The size of each change, and bits of unseen text", CHANGES, VARIANT),
    "lengths": _declare("By the length of the answer", AFTER, ROLE, LENGTH),
    "states": _declare("How much of an edit acts; 1 is all of it", STATES, ROLE, SHOWN),
    "canvases": _declare("What is said, by canvas and steps", SAID, *CANVAS),
    "searches": _declare("Searches for values", SEARCHES),
}
"""What is averaged, by the name of the summary's table."""


def _name_shown(row: tidy.Record) -> str:
    return "none" if not row["step"] else "all" if row["step"] == row["tokens"] else "half"


def _name_length(tokens: int) -> str:
    return str(tokens) if tokens <= 4 else "5 to 8" if tokens <= 8 else "9 or more"


def summarise(tables: Tables, settings: EditSettings) -> Summary:
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
            {**row, "shown": _name_shown(row)} for row in states if row["states"] == "given"
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
    """What questions say of each change, and of the model as it was (`none`), by equal metrics.

    A judgement from two sides is the mean of two rows.
    """
    read = {
        "edited": {"preferred": "success", "said": "said"},
        "reverse new": {"said_reverse": "said", "judged": "success"},
        "reverse neighbour": {"judged": "success"},
    }
    none: dict[str, Any] = dict.fromkeys(OUTCOMES)
    relevant = [row for row in rows if row["role"] in read]
    for own in tidy.group_by(relevant, "model").values():
        for row in tidy.select(own, variant="edit"):
            values = {name: row[f"{it}_before"] for name, it in read[row["role"]].items()}
            yield none | {**row, "text_kl": None, "variant": "none"} | values
        for row in own:
            values = {name: row[f"{it}_after"] for name, it in read[row["role"]].items()}
            kl = row["text_kl"] if row["role"] == "edited" else None
            yield none | {**row, "text_kl": kl} | values


def _score(means: Rows) -> Iterator[dict[str, Any]]:
    """The harmonic mean of the three means, as in the papers; 0 where one of them is."""
    after = tidy.select(means, metric="success_after")
    for (model, kind), own in tidy.group_by(after, "model", "kind").items():
        by_role = {row["role"]: row["mean"] for row in own}
        values: dict[str, Any] = {role: by_role.get(role) for role in FORWARD}
        score = None
        if None not in values.values():
            score = 3 / sum(1 / each for each in values.values()) if all(values.values()) else 0.0
        yield {"model": model, "kind": kind, "score": score} | values


def _compare_learned(rows: Rows, seed: int) -> Iterator[dict[str, Any]]:
    """How much more the reverse gains where the statement is learned than where it is edited in.

    Over the facts whose statement became as likely as under the edit: equal forward success.
    """
    for (model, kind), own in tidy.group_by(rows, "model", "kind").items():
        for variant in ("tuned", "tuned-layer"):
            learned = tidy.select(own, variant=variant, reached=True)
            facts = {row["fact"] for row in learned}
            edits = [row for row in tidy.select(own, variant="edit") if row["fact"] in facts]
            which = {"model": model, "kind": kind, "variant": variant}
            for column in ("gain", "said_after"):
                difference = compare_means(learned, edits, column, seed)
                if difference is None:
                    continue
                row = which | {"metric": column} | vars(difference)
                if column == "said_after":  # a share that was never hit keeps its bound
                    sides = (
                        cluster([each[column] for each in side], [each["fact"] for each in side])
                        for side in (learned, edits)
                    )
                    row |= vars(estimate_difference(*sides, is_share=True))
                yield add_outcome(row)


def _correlate(rows: Rows, seed: int) -> Iterator[dict[str, Any]]:
    """Whether the reverse follows more where both directions share more: Spearman, by fact."""
    risen = [
        {**row, "rank": None if (last := row["rank_after"]) is None else row["rank_before"] - last}
        for row in rows
    ]
    for (model, kind), own in tidy.group_by(risen, "model", "kind").items():
        for column in SHARING:
            for gain in GAINS:
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
                    yield which | vars(value) | {"facts": len(facts)}


def describe(result: Result) -> list[blocks.ReportBlock]:
    """Sentences for each model, then figures and every table that has something in it."""
    return [*_state(result.summary), *_warn(result), *_show(result.summary)]


def _state(summary: Summary) -> Iterator[blocks.ReportBlock]:
    yield from ASKED.state(summary)
    compared = tidy.distinct(summary["differences"], "model")
    for row in tidy.select(summary["means"], metric="said_after", role="edited"):
        if row["model"] not in compared:
            yield blocks.Notice(
                f"{row['model']} says {tidy.say(row, '%')} of the new objects as edited. The data "
                "ask nothing in reverse."
            )
    for row in tidy.select(summary["baseline"], metric="gain"):
        yield blocks.Finding(
            f"In {row['model']}, log p of the subject asked in reverse gains "
            f"{METRICS['gain'].say(row, is_difference=True)} more with the statement "
            f"{VARIANT.get(row)}, than with the edit ({labels.count(row['facts'], 'fact')} whose "
            "statement became as likely).",
            row["outcome"],
        )


def _warn(result: Result) -> Iterator[blocks.Notice]:
    """Where values that were written do not make their objects likely themselves."""
    settings = result.records[0].settings
    for row in tidy.select(result.summary["searches"], metric="search_nll"):
        if row["mean"] > UNLIKELY:
            yield blocks.Notice(
                f"The search for values in {row['model']} ended after {settings['search_steps']} "
                f"steps where the new objects still cost {tidy.say(row, 'nats per token')}: no "
                "edit can do more than its value. Try more `--search-steps` or a higher `--lr`."
            )


def _show(summary: Summary) -> Iterator[blocks.ReportBlock]:
    if shares := [row for row in summary["means"] if row["metric"] in SAID]:
        look: dict[str, Any] = {
            "colour": lambda row: "control" if row["metric"] == "said_before" else "p1"
        }
        look |= {"label": lambda row: f"{ROLE.get(row)}, {row['metric'].removeprefix('said_')}"}
        drawn = ASKED.draw(shares, choose=[], xlabel="said, %", limits=(0, 100), **look)
        yield replace(drawn, name="said")
    yield tabulate_outcomes(summary)
    title = "How often the right answer is preferred, and the harmonic mean of the three shares"
    yield tidy.tabulate("scores", title, summary["scores"], {"model": "model", **SCORES})
    yield ASKED.tabulate(summary["means"])
    several = {"controls": ["variant"], "ways": ["group", "direction"], "changes": ["metric"]}
    several |= {"lengths": ["answer"], "states": ["metric"], "canvases": ["length", "steps"]}
    for name, columns in several.items():
        if len(tidy.distinct(summary[name], *columns)) > 1:
            yield replace(MEANS[name].tabulate(summary[name]), name=name)
    if summary["baseline"]:
        title = "In reverse: learned minus edited, where both make the statement equally likely"
        keys = {"model": "model", "change": VARIANT.get, "facts": "facts"}
        heads = {name: METRICS[name].head(is_difference=True) for name in ("gain", "said_after")}
        rows = summary["baseline"]
        yield tidy.tabulate_means("baseline", title, rows, keys, heads, role=mark_outcome)
    if rows := summary["sharing"]:
        number = labels.count(len(rows), "interval")
        yield tidy.tabulate(
            "sharing",
            "Spearman's correlation over facts: likeness of both directions before the edit, and "
            f"what the subject gains in reverse; {number}, none corrected for their number",
            rows,
            {"model": "model", "likeness": lambda row: SHARING[row["sharing"]]}
            | {"gain in": lambda row: GAINS[row["outcome"]]}
            | {Column("correlation", 2): tidy.to_interval, "facts": "facts"},
            role=lambda row: mark_outcome(add_outcome(row)),
        )
    yield tidy.tabulate(
        "facts",
        "Edited facts, and those whose old object was said before; condition of the keys' moments",
        summary["facts"],
        {"model": "model", GROUP.heading: GROUP.get, WAY.heading: WAY.get, "number": "facts"}
        | {"old object said": "recalled", Column("condition number", is_short=True): "condition"},
    )
    steps = TRAJECTORY.draw(summary["trajectories"], panel=ROLE.get, choose=[])
    yield replace(steps, name="shares")
    if summary["examples"]:
        title = "What is said before and after the edit"
        columns: dict[str | Column, tidy.Get] = {"model": "model", "asked": ROLE.get}
        columns |= {"prompt": "prompt", "wanted": "wanted"}
        columns |= {"before": "text_before", "after": "text_after"}
        yield tidy.tabulate("examples", title, summary["examples"], columns)


def tabulate_outcomes(summary: Summary) -> blocks.Table:
    """One row for the model as it was, its edits, each control and the learned statement."""
    table = MEANS["outcomes"].tabulate(summary["outcomes"], facts="facts")
    return replace(table, name="outcomes", most=len(table.rows))
