"""What the gradients of surrogates say: a sentence for each sampler, the map, and the tables."""

from collections.abc import Iterator, Sequence
from typing import Any

from unmask.blocks import tidy
from unmask.blocks.blocks import Figure, Finding, Fold, Notice, ReportBlock, Table
from unmask.evaluation.statistics import ENOUGH
from unmask.measures.measure import Rows, Summary, Tables
from unmask.measures.result import Result
from unmask.results.comparison import Comparison, Factor, Quantity

POLICY = Factor(
    "policy",
    "policy",
    {
        "table": "tables",
        "language": "tables of a language",
        "network": "drawn networks",
        "trained": "trained networks",
    },
)
SCALE = Factor("scale", "logit scale", "{:g}".format)
COSINE = Quantity("cosine", has_sign=True, limits=(-1.0, 1.0))
FOUND = Comparison(
    metrics={
        "cosine": COSINE,
        "wrong": Quantity("pointing the wrong way", "%"),
        "bias": Quantity("bias", least=0.0),
        "noise": Quantity("noise", digits=1, least=0.0),
        "reached": Quantity("cosine at equal passes", has_sign=True, limits=(-1.0, 1.0)),
    },
    groups=(
        Factor("model", "surrogate"),
        POLICY,
        SCALE,
        Factor("sampler", "sampler"),
    ),
    chance={"cosine": 0.0},
    counted="policies",
    title="Cosine of surrogates with the exact gradient",
    means="All surrogates, by policy and sampler",
    names=("means", ""),
    most=96,
)
EXACT = 0.9995
"""Mean cosine from which on a surrogate is called exact."""
OFTEN = 0.1
"""Share of policies for which a surrogate points the wrong way, above which that is said."""


def summarise(tables: Tables, settings: Any) -> Summary:
    """Means of every surrogate by policy, scale and sampler."""
    return {"means": FOUND.average(tables["gradients"].to_pylist())}


def pool(results: Sequence[Result]) -> Tables:
    """Rows one below the other: surrogates of one name are one, whatever policies they met."""
    import pyarrow

    parts = [result.tables["gradients"] for result in results]
    return {"gradients": pyarrow.concat_tables(parts, promote_options="permissive")}


def describe(result: Result) -> Sequence[ReportBlock]:
    """The cosines in a sentence for each sampler, the map, a table for each sort of policy."""
    means = result.summary["means"]
    blocks: list[ReportBlock] = [*_state(means), *_warn(means)]
    if max((row["facts"] for row in means), default=0) < ENOUGH:
        blocks.append(Notice(f"Fewer than {ENOUGH} policies were drawn: too few to say anything."))
    blocks += [draw_cosines(means), *_tabulate_each(means, "cosine")]
    more = [table for name in ("wrong", "reached") for table in _tabulate_each(means, name)]
    blocks.append(Fold("Wrong ways, and cosines at equal passes", more))
    blocks.append(Fold("Bias and noise of every surrogate", [FOUND.tabulate(means)]))
    return blocks


def _state(means: Rows) -> Iterator[ReportBlock]:
    """For each sampler and scale which surrogates are exact, and the ends of all others."""
    cosines = tidy.select(means, metric="cosine")
    for (sampler, scale), rows in tidy.group_by(cosines, "sampler", "scale").items():
        by_name = tidy.group_by(rows, "model")
        exact = [
            f"`{name}`" for name, own in by_name.items() if all(row["mean"] >= EXACT for row in own)
        ]
        others = [row for row in rows if f"`{row['model']}`" not in exact]
        others.sort(key=lambda row: row["mean"])
        ends = f"{' and '.join(exact) or 'no surrogate'} {'is' if len(exact) < 2 else 'are'} exact"
        if others:
            ends += (
                f"; the mean cosine of the others goes from {_say(others[0])} to "
                f"{_say(others[-1])}, of at least {min(row['facts'] for row in rows)} policies of "
                "each sort"
            )
        yield Finding(
            f"{sampler.capitalize()}, logit scale {scale:g}: {ends}.",
            "above" if all(row["outcome"] == "above" for row in rows) else "unsettled",
            "policies",
        )


def _say(row: tidy.Record) -> str:
    return f"{row['mean']:.2f} (`{row['model']}`, {POLICY.say(row['policy'])})"


def _warn(means: Rows) -> Iterator[ReportBlock]:
    """How often following a surrogate lowers the expected reward, and which does most."""
    for policy, own in tidy.group_by(tidy.select(means, metric="wrong"), "policy").items():
        often = [row for row in own if row["mean"] > OFTEN]
        if often:
            most = max(often, key=lambda row: row["mean"])
            yield Notice(
                f"In {POLICY.say(policy)} {len(often)} of {len(own)} combinations of surrogate, "
                f"sampler and scale point the wrong way in more than {tidy.say_share(OFTEN)}; "
                f"`{most['model']}` in {tidy.say_share(most['mean'])} ({most['sampler']}, scale "
                f"{most['scale']:g})."
            )


def draw_cosines(means: Rows) -> Figure:
    """Mean cosines, a panel for each sort of policy."""
    return tidy.draw_map(
        tidy.select(means, metric="cosine"),
        "cosines",
        FOUND.title,
        "Mean cosine between the expected gradient of each surrogate and the exact one, by "
        "sampler: 1 points where the expected reward rises fastest, below 0 it falls.",
        x="sampler",
        y="model",
        ends=("mean",),
        panel=POLICY.get,
        choose=[tidy.Choose(SCALE.heading, "scale", SCALE.say)],
        xlabel="sampler",
        ylabel="cosine",
        limits=(-1.0, 1.0),
        is_signed=True,
    )


def _tabulate_each(means: Rows, metric: str) -> Iterator[Table]:
    """A table for each sort of policy: surrogates by scale, a column for each sampler."""
    quantity = FOUND.metrics[metric]
    for policy, rows in tidy.group_by(tidy.select(means, metric=metric), "policy").items():
        samplers = tidy.distinct(rows, "sampler")
        head = quantity.head()
        columns = {
            sampler: type(head)(sampler, head.digits, head.is_percent, head.has_sign,
                                limits=head.limits)
            for sampler in samplers
        }  # fmt: skip
        shown = [{**row, "metric": row["sampler"]} for row in rows]
        yield tidy.tabulate_means(
            f"{metric}-{policy}",
            f"{quantity.label.capitalize()}, {POLICY.say(policy)}",
            sorted(shown, key=lambda row: row["scale"]),
            {SCALE.heading: SCALE.get, "surrogate": "model"},
            columns,
            most=len(rows),
        )
