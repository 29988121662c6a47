"""What relearning says of a model: whether the other direction follows, stays, or moves in part."""

from collections.abc import Iterator, Sequence
from typing import Any

from unmask.blocks import tidy
from unmask.blocks.blocks import Column, Finding, ReportBlock, Table
from unmask.evaluation.statistics import Interval, estimate_mean
from unmask.measures.measure import Rows, Summary, Tables
from unmask.measures.result import Result
from unmask.results.comparison import ASKED, KIND, MODEL, Comparison, Factor, Quantity
from unmask.results.summaries import cluster_ratio, keep_shared, name_outcome

FOLLOWS, STAYS = 0.5, 0.9
"""The share that follows above which one memory is said to be read, and the share that stays above
which there are two."""
LEFT = 0.5
"""The share that follows or stays below which the other direction was lost."""
ONE_WAY, BOTH, DRIFT, EDITED = "one way", "both", "drift", "edited"
CONDITIONS = {
    ONE_WAY: "other direction taught",
    EDITED: "other direction edited",
    BOTH: "both directions taught (ceiling)",
    DRIFT: "other facts taught (drift)",
}
COMPARISON = Comparison(
    metrics={
        "follows": Quantity("new answer", "%"),
        "stays": Quantity("old answer", "%"),
        "neither": Quantity("neither", "%"),
        "was_known": Quantity("old answer before", "%"),
        "moved": Quantity("log-odds moved", "nats", has_sign=True),
    },
    groups=(MODEL, KIND, ASKED),
    variant=Factor("condition", "condition", CONDITIONS),
    against=[(ONE_WAY, DRIFT), (ONE_WAY, BOTH), (EDITED, DRIFT)],
    compared=("follows", "stays", "moved"),
    title="What follows when one direction is relearned",
    caption="Share of questions, in held-out phrasings, that get the exchanged name's description "
    "or the exchanged description's name. Bars are 95 % intervals by fact and training seed; void "
    "runs are among them.",
    means="What is answered in the direction that was not taught, and where both were",
    differences="One direction taught, minus other facts taught and minus both directions taught",
    controls=(DRIFT,),
    most=40,
)
RUN = ("model", "seed", "taught", "split")
QUESTION = ("seed", "split", "fact", "phrasing")


def summarise(tables: Tables, settings: Any) -> Summary:
    """Verdicts, means and differences by condition, and what each run came to."""
    rows = tables["relearn"].to_pylist()
    drifts = {
        key: sum(row["moved"] for row in own) / len(own)
        for key, own in tidy.group_by([x for x in rows if not x["is_taught"]], *RUN).items()
    }
    rows = [
        row | {"condition": _name_condition(row), "net": row["moved"] - drifts[_name_run(row)]}
        for row in rows
    ]
    trained = [
        row | {"void": say_void(row, settings.enough, settings.kept)}
        for row in tables["runs"].to_pylist()
    ]
    shown = [row for row in rows if row["condition"]]
    return {
        "verdicts": list(judge(shown, trained)),
        **COMPARISON.summarise(shown),
        "runs": trained,
    }


def _name_run(row: tidy.Record) -> tuple[Any, ...]:
    """Which training a question was asked after, and which way of asking it is."""
    return tuple(row[name] for name in RUN)


def _name_condition(row: tidy.Record) -> str:
    """Under which condition a question was asked; none for what was taught itself."""
    if row["taught"] == "both":
        return BOTH if row["is_taught"] else ""
    if row["is_learned"]:
        return ""
    is_edited = row["taught"] == "edited names"
    if not row["is_taught"]:
        return "" if is_edited else DRIFT
    return EDITED if is_edited else ONE_WAY


def say_void(row: tidy.Record, enough: float, kept: float) -> str:
    """Why a run says nothing; empty where it counts."""
    reasons = []
    if row["learned"] < enough:
        reasons.append(f"{row['learned']:.0%} learned")
    for way, given in (("d2p", "descriptions"), ("p2d", "names")):
        left = row[f"kept_{way}"]
        if left is not None and left < kept:
            reasons.append(f"{left:.0%} kept of other facts, {given} given")
    return "; ".join(reasons).replace("%", " %")


def judge(rows: Rows, runs: Rows) -> Iterator[dict[str, Any]]:
    """For each model and what it was taught, what the other direction did, over runs that count."""
    full = [
        (row["model"], row["seed"]) for row in runs if row["taught"] == "both" and not row["void"]
    ]
    ceiling = [
        row for row in tidy.select(rows, condition=BOTH) if (row["model"], row["seed"]) in full
    ]
    for (model, kind, taught), own in tidy.group_by(runs, "model", "kind", "taught").items():
        if taught == "both":
            continue
        counted = {row["seed"] for row in own if not row["void"]}
        one = [
            row
            for row in tidy.select(rows, model=model, taught=taught)
            if row["condition"] in (ONE_WAY, EDITED)
        ]
        left = [row for row in one if row["seed"] in counted]
        measured = _measure(left, tidy.select(ceiling, model=model))
        reasons = list(dict.fromkeys(row["void"] for row in own if row["void"]))
        other = "names" if taught == "descriptions" else "descriptions"
        yield {
            "model": model, "kind": kind, "taught": taught, "asked": other,
            "verdict": name_verdict(measured),
            "runs": len(counted), "void": len(own) - len(counted),
            "reason": reasons[0] if reasons else "",
            "learned": sum(row["learned"] for row in own) / len(own),
            "steps": sum(row["steps"] for row in own) / len(own),
            **measured,
        }  # fmt: skip


def _measure(rows: Rows, ceiling: Rows) -> dict[str, Any]:
    """Shares of what was known before, and the share moved of what teaching both moved, both beyond
    drift."""
    rows = keep_shared(rows)
    known = [row for row in rows if row["was_known"]]
    measured: dict[str, Any] = {"facts": len({row["fact"] for row in known})}
    measured["known"] = len(known) / len(rows) if rows else None
    for name in ("follows", "stays"):
        weighed = [{**row, name: row[name] * row["was_known"]} for row in rows]
        value = estimate_mean(cluster_ratio(weighed, name, "was_known"), True) if known else None
        measured |= _spread(name, value)
    most = {tuple(row[x] for x in QUESTION): row["net"] for row in ceiling}
    both = [
        {**row, "most": most[key]}
        for row in rows
        if (key := tuple(row[x] for x in QUESTION)) in most
    ]
    both = list(keep_shared(both))
    is_moved = sum(row["most"] for row in both) > 0
    share = estimate_mean(cluster_ratio(both, "net", "most")) if is_moved else None
    return measured | _spread("moved", share)


def _spread(name: str, value: Interval | None) -> dict[str, float | None]:
    """A value with its interval as columns; None where there is none."""
    ends = (None,) * 3 if value is None else (value.mean, value.low, value.high)
    return dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))


def name_verdict(measured: tidy.Record) -> str:
    """What a model's shares come to: follows, stays, lost or in part; void where there are none."""
    if measured["follows"] is None:
        return "void"
    if measured["follows"] > FOLLOWS:
        return "follows"
    if measured["stays"] > STAYS:
        return "stays"
    return "lost" if measured["follows"] + measured["stays"] < LEFT else "in part"


def _find(row: tidy.Record, name: str) -> Interval | None:
    """A value of a verdict with its interval."""
    if row[name] is None:
        return None
    return Interval(row[name], row[f"{name}_low"], row[f"{name}_high"])


def describe(result: Result) -> Sequence[ReportBlock]:
    """The verdicts in a sentence each and as a table, the figure, and what runs came to."""
    summary = result.summary
    return [
        *map(_say_verdict, summary["verdicts"]),
        COMPARISON.draw(summary["means"]),
        tabulate_verdicts(summary["verdicts"]),
        COMPARISON.tabulate(summary["means"]),
        COMPARISON.tabulate_differences(summary["differences"]),
        tabulate_runs(summary["runs"]),
    ]


def _say_verdict(row: tidy.Record) -> Finding:
    """What the other direction did, in a sentence."""
    lead = f"{row['model']}: with {row['taught']} taught and {row['asked']} asked"
    follows, stays, moved = (_find(row, name) for name in ("follows", "stays", "moved"))
    if follows is None or stays is None:
        why = row["reason"] or "nothing was answered before"
        return Finding(f"{lead}, the test is void: {why}.", "not measured")
    share = tidy.say(moved, "%", limits=(-9.99, 9.99)) if moved is not None else ""
    more = (
        f"; log-odds moved by {share} of what teaching both moved, drift taken off"
        if moved is not None
        else ""
    )
    text = (
        f"{lead}, the verdict is “{row['verdict']}”: {tidy.say(follows, '%')} follow and "
        f"{tidy.say(stays, '%')} stay{more} ({row['facts']} facts)."
    )
    return Finding(text, name_outcome(follows, row["facts"], FOLLOWS))


def tabulate_verdicts(rows: Rows) -> Table:
    """Verdicts with their shares, and the gates they rest on."""
    columns: dict[Any, Any] = {
        "model": "model",
        "kind": "kind",
        "taught": "taught",
        "asked": "asked",
        "verdict": "verdict",
        Column("follows, %", 1, is_percent=True): lambda row: _find(row, "follows"),
        Column("stays, %", 1, is_percent=True): lambda row: _find(row, "stays"),
        Column("moved, % of both", 1, is_percent=True): lambda row: _find(row, "moved"),
        Column("known before, %", 1, is_percent=True): "known",
        "facts": "facts",
        Column("learned, %", 1, is_percent=True): "learned",
        Column("steps", digits=0): "steps",
        "runs": "runs",
        "void": "void",
    }
    caption = (
        f"Verdicts: follows above {FOLLOWS:.0%} that follow, stays above {STAYS:.0%} that stay, of "
        f"questions answered before; lost below {LEFT:.0%} that do either; else in part"
    )
    return tidy.tabulate("verdicts", caption.replace("%", " %"), rows, columns, most=40)


def tabulate_runs(rows: Rows) -> Table:
    """What each run came to, and why one is void."""
    columns: dict[Any, Any] = {
        "model": "model",
        "seed": "seed",
        "taught": "taught",
        "steps": "steps",
        Column("rate", is_short=True): "rate",
        Column("learned, %", 1, is_percent=True): "learned",
        Column("kept, descriptions given, %", 1, is_percent=True): "kept_d2p",
        Column("kept, names given, %", 1, is_percent=True): "kept_p2d",
        "void": "void",
    }
    caption = "Runs: the share learned, and of other facts' right answers the share that is left"
    return tidy.tabulate("runs", caption, rows, columns, most=40)
