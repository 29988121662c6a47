"""The section of guidance: means of each way, differences at equal passes, and the page."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from unmask.blocks import blocks, tidy
from unmask.measures.measure import Rows, Summary, Tables, judge_interval
from unmask.measures.result import Result
from unmask.results.summaries import GRAMS, estimate_means, subtract_shares

WAYS = {
    "plain": "plain",
    "label": "label",
    "cfg": "classifier-free guidance",
    "classifier": "classifier",
    "rates": "classifier (rates)",
    "rejection": "rejection",
}
COLOURS = {"plain": "control", "label": "p0"}
COLOURS |= {"cfg": "p1", "classifier": "p2", "rates": "p6", "rejection": "p3"}
LEVEL = ("plain", "label")
"""Ways without a strength."""
WAY = ("way", "strength", "passes")
GROUP = ("model", "kind", *WAY)
METRICS = {
    "has_attribute": blocks.Column("biographies by the judge, %", 0, is_percent=True),
    "p_guide": blocks.Column("p(biography) by the guide"),
    "bits_per_token": blocks.Column("bits per token"),
}


def summarise(tables: Tables, settings: Any) -> Summary:
    """Means of each way, its variety, and its share of biographies minus that of others."""
    from unmask.evaluation.quality import find_distinct_share

    rows = tables["guidance"].to_pylist()
    variety = []
    for key, own in tidy.group_by(rows, *GROUP).items():
        texts = [row["text"] for row in own]
        grams = {f"distinct_{n}": find_distinct_share(texts, n) for n in GRAMS}
        spent = {"steps": own[0]["steps"], "spent": own[0]["spent"], "texts": len(own)}
        variety.append(dict(zip(GROUP, key, strict=True)) | spent | grams)
    return {
        "judges": tables["judges"].to_pylist(),
        "means": estimate_means(rows, GROUP, list(METRICS), ("has_attribute", "p_guide")),
        "variety": variety,
        "differences": list(_compare(rows)),
    }


def _compare(rows: Rows) -> Iterator[dict[str, Any]]:
    """Shares of biographies: every way minus plain texts and minus rejection, at equal passes."""
    for (model, passes), own in tidy.group_by(rows, "model", "passes").items():
        ways = tidy.group_by(own, "way", "strength")
        for (way, strength), ours in ways.items():
            for (other, draws), theirs in ways.items():
                if way not in ("plain", other) and other in ("plain", "rejection"):
                    where = {"model": model, "passes": passes, "way": way, "strength": strength}
                    minus = {"minus": other, "minus_strength": draws}
                    yield where | minus | subtract_shares(ours, theirs, "has_attribute")


def name_guidance_claim(row: tidy.Record) -> str:
    """The claim that a row of the differences is about."""
    return f"{row['model']}, {row['passes']}: {name_way(row)} − {_name_other(row)}"


def _name_other(row: tidy.Record) -> str:
    return name_way({"way": row["minus"], "strength": row["minus_strength"]})


def name_way(row: tidy.Record) -> str:
    """A way with its strength, in words."""
    strength = f" {row['strength']:g}" if row["strength"] else ""
    return f"{WAYS[row['way']]}{strength}" + (" draws" if row["way"] == "rejection" else "")


def judge(summary: Summary, settings: Any) -> Iterable[blocks.Verdict]:
    """Whether a way has more biographies than plain texts, and than rejection."""
    for row in summary["differences"]:
        yield judge_interval(name_guidance_claim(row), tidy.to_interval(row), row["facts"])


def describe(result: Result) -> Sequence[blocks.ReportBlock]:
    """Shares of biographies, each way against rejection, the judges, the figure, the tables."""
    means, variety = result.summary["means"], result.summary["variety"]
    figure = tidy.draw_lines(
        list(_level(tidy.select(means, metric="has_attribute"))),
        "shares",
        "Share of texts that are biographies, by the judge",
        "By the strength of guidance, or the number of texts that rejection draws at most; all at "
        "equal passes. Dashed: plain texts and texts by label, which have no strength. Bands are "
        f"{_say_intervals(means)}.",
        x="strength",
        line=lambda row: WAYS[row["way"]],
        colour=lambda row: COLOURS[row["way"]],
        dash=lambda row: "dash" if row["way"] in LEVEL else "solid",
        scale=100,
        panel=lambda row: f"{row['model']}, {row['passes']} passes",
        xlabel="strength, or texts drawn",
        ylabel="% of texts",
        is_log2=True,
    )
    keys: dict[str, tidy.Get] = {"model": "model", "passes": "passes", "way": name_way}
    table = tidy.tabulate_means(
        "means",
        "Biographies and bits per token of each way's texts, at equal passes",
        means,
        keys,
        METRICS,
        most=60,
    )
    columns: dict[str | blocks.Column, tidy.Get] = {**keys}
    columns |= {"steps": "steps", "passes spent": "spent"}
    columns |= {blocks.Column(f"distinct-{n}", 3): f"distinct_{n}" for n in GRAMS}
    more = tidy.tabulate(
        "variety",
        "Variety of each way's texts; distinct-n: different n-grams of words among all",
        variety,
        columns,
        most=60,
    )
    differences = tidy.tabulate(
        "differences",
        "Share of biographies minus that of plain texts or of rejection, in points",
        result.summary["differences"],
        keys
        | {"minus": _name_other}
        | {blocks.Column("difference, points", 0, True, has_sign=True): tidy.to_interval},
        role=result.mark(name_guidance_claim),
        most=60,
    )
    return [*_state(result), figure, table, more, differences]


def _level(rows: Rows) -> Iterator[tidy.Record]:
    """The points of a figure: a way without a strength is level from the lowest to the highest."""
    strengths = [row["strength"] for row in rows if row["way"] not in LEVEL] or [1.0]
    for row in rows:
        ends = {min(strengths), max(strengths)} if row["way"] in LEVEL else {row["strength"]}
        yield from ({**row, "strength": strength} for strength in ends)


def _say_intervals(means: Rows) -> str:
    """What the intervals are of."""
    if max(row["seeds"] for row in means) > 1:
        return "95 % intervals by text and training seed"
    return "95 % intervals by text, of one training run"


def _state(result: Result) -> Iterator[blocks.ReportBlock]:
    means = result.summary["means"]
    shares = tidy.select(means, metric="has_attribute")
    for (model, passes), rows in tidy.group_by(shares, "model", "passes").items():
        ways = tidy.group_by(rows, "way").values()
        best = [max(own, key=lambda row: row["mean"]) for own in ways]
        parts = [f"{tidy.say(row, '%')} {name_way(row)}" for row in best]
        yield blocks.Text(
            f"Biographies among the texts of {model} at {passes} passes, each way at the strength "
            f"with most of them: {', '.join(parts)} ({_say_intervals(means)})."
        )
        yield from _count_clear(result, model, passes)
    for row in result.summary["judges"]:
        seed = f", seed {row['seed']}" if row["seed"] else ""
        yield blocks.Text(
            f"In {row['model']}{seed}, the guide is right about {tidy.say_share(row['guide'])} of "
            f"unseen texts, the judge about {tidy.say_share(row['judge'])}; "
            f"{tidy.say_share(row['biographies'])} of these texts are biographies."
        )


def _count_clear(result: Result, model: str, passes: int) -> Iterator[blocks.Text]:
    """How often each way has clearly more, or fewer, biographies than rejection."""
    where = {"model": model, "passes": passes, "minus": "rejection"}
    differences, counts = tidy.select(result.summary["differences"], **where), []
    for way, rows in tidy.group_by(differences, "way").items():
        outcomes = [result.verdicts[name_guidance_claim(row)].outcome for row in rows]
        more, fewer = outcomes.count("above"), outcomes.count("below")
        counts.append(f"{WAYS[way]} clearly more in {more} of {len(rows)}, fewer in {fewer}")
    if counts:
        yield blocks.Text(
            "Compared with rejection at as many passes, each strength with each number of draws: "
            f"{'; '.join(counts)}."
        )
