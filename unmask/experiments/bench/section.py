"""What the scores of methods say: the leaderboard, the map, what misleads, one store or two."""

from collections.abc import Iterator, Sequence
from typing import Any

from unmask.blocks import labels, tidy
from unmask.blocks.blocks import Column, Figure, Finding, Notice, ReportBlock, Table
from unmask.evaluation.statistics import ENOUGH
from unmask.measures.measure import Rows, Summary, Tables
from unmask.measures.result import Result
from unmask.results.comparison import Comparison, Factor, Quantity

METHOD = Factor("model", "method")
SCORED, WEIGHTS = Factor("scored", "scores"), Factor("weights", "weights")
FOUND = Comparison(
    metrics={
        "auroc": Quantity("AUROC", least=0.0, limits=(0.0, 1.0)),
        "enough": Quantity("AUROC, what is enough", limits=(0.0, 1.0)),
        "precision": Quantity("average precision", limits=(0.0, 1.0)),
        "top": Quantity("among the strongest", "%"),
        "false": Quantity("false among clear", "%"),
        "kept": Quantity("clear among true", "%"),
    },
    groups=(METHOD, SCORED, WEIGHTS),
    chance={"auroc": 0.5},
    beside={"passes": "passes", "seconds": "seconds"},
    counted="networks",
    title="How well methods find what matters",
    means="Methods by the area under the curve, mean over networks",
    names=("methods", ""),
    most=40,
)
SHARED = Comparison(
    metrics={"right": Quantity("told apart", "%")},
    groups=(METHOD, WEIGHTS),
    counted="networks",
    title="One store or two",
    means="Networks of held-out mechanisms of which a method says rightly whether both directions "
    "of a fact have one store or two",
    names=("stores", ""),
    most=40,
)
HAND = "hand-written"
CONTROL = "random"
"""The method that knows nothing."""
LEAST_HELD = 0.95
"""Share of held-out exchanges from which on a trained network is said to have its mechanism."""
MISLED = 0.1
"""Share of places that do not matter above which a method is said to mislead there."""


def summarise(tables: Tables, settings: Any) -> Summary:
    """Scores by network, their means by method, where clear ones are false, and stores."""
    from unmask.experiments.bench import scoring

    scores, runs, truth = (tables[name].to_pylist() for name in ("bench", "runs", "truth"))
    networks = list(scoring.score_networks(scores, truth, runs))
    stores = list(scoring.judge_sharing(runs))
    means = FOUND.average(networks)
    # By their areas on hand-written networks, which come first, so that they are entered last.
    areas = reversed(tidy.select(means, metric="auroc"))
    order = {row["model"]: row["mean"] for row in areas}
    means.sort(key=lambda row: (row["weights"] != HAND, -order.get(row["model"], 0.0)))
    return {
        "methods": means,
        "networks": networks,
        "false": scoring.list_false(scores, truth, networks),
        "stores": SHARED.average(stores),
        "sharing": stores,
    }


def describe(result: Result) -> Sequence[ReportBlock]:
    """The leaderboard in sentences, the map, where methods mislead, and stores."""
    summary = result.summary
    blocks = [
        *_state(summary["methods"]),
        *_state_stores(summary["stores"]),
        *_say_held_out(summary["networks"]),
        *_say_decoy(summary["false"]),
        *_warn(summary["false"]),
    ]
    if max((row["facts"] for row in summary["methods"]), default=0) < ENOUGH:
        blocks.append(
            Notice(f"Fewer than {ENOUGH} networks were asked: too few to call anything clear.")
        )
    blocks += [draw_networks(summary["networks"]), FOUND.tabulate(summary["methods"])]
    if summary["stores"]:
        blocks.append(SHARED.tabulate(summary["stores"], **{"networks": "facts"}))
    return [*blocks, tabulate_false(summary["false"]), tabulate_networks(summary["networks"])]


def _state(means: Rows) -> Iterator[ReportBlock]:
    """A sentence for each method, by what it finds of what matters."""
    for row in tidy.select(means, metric="auroc"):
        value = FOUND.metrics["auroc"].say(row)
        yield Finding(
            f"`{row['model']}` finds what matters among {row['scored']} "
            f"{'worse than chance, ' if row['outcome'] == 'below' else ''}with an AUROC of {value} "
            f"({labels.count(row['facts'], row['weights'] + ' network')}).",
            row["outcome"],
            "networks",
        )


def _state_stores(stores: Rows) -> Iterator[ReportBlock]:
    """Which methods tell one store from two in every network, and which do not."""
    for weights, rows in tidy.group_by(stores, "weights").items():
        most = max(row["facts"] for row in rows)
        every = [f"`{row['model']}`" for row in rows if row["mean"] == 1.0]
        rest = [row for row in rows if row["mean"] < 1.0]
        shares = [f"`{row['model']}` ({tidy.say_share(row['mean'])})" for row in rest]
        yield Finding(
            f"One store used both ways is told from two in all {most} {weights} "
            f"networks, each held out with its mechanism, by {_join(every)}; not by "
            f"{_join(shares)}.",
            "above" if every and most >= ENOUGH else "unsettled",
            "networks",
        )


def _warn(false: Rows) -> Iterator[ReportBlock]:
    """Where methods call clear what does not matter, the worst mechanism of each."""
    known = [row for row in false if row["method"] != CONTROL]
    for (method, scored, weights), rows in tidy.group_by(
        known, "method", "scored", "weights"
    ).items():
        shares = [(row["clear"] / row["places"], row) for row in rows if row["places"]]
        worst, row = max(shares, key=lambda each: each[0], default=(0.0, None))
        if row is not None and worst > MISLED and row["places"] >= ENOUGH:
            yield Notice(
                f"`{method}` misleads in “{row['mechanism']}” ({weights}, {row['reads']}): of "
                f"{row['places']} {scored} at {_say_role(row['role'])} that do not matter "
                f"{row['clear']} are clear to it."
            )


def _say_held_out(networks: Rows) -> Iterator[ReportBlock]:
    """Trained networks of which the mechanism is not shown."""
    for name, held in tidy.distinct(networks, "fact", "held_out"):
        if held is not None and held < LEAST_HELD:
            yield Notice(
                f"“{name}” does {tidy.say_share(held)} of held-out exchanges as its mechanism has "
                f"it, of which {tidy.say_share(LEAST_HELD)} would show that it has it: train it "
                "longer (paper/forced.py --updates)."
            )


def _say_decoy(false: Rows) -> Iterator[ReportBlock]:
    """Methods to which the decoy is clear: the same states without it are not."""
    at_verb = tidy.select(false, role="verb", reads="masked", weights=HAND)
    for method, rows in tidy.group_by(at_verb, "method").items():
        counts = {row["mechanism"]: (row["clear"], row["places"]) for row in rows}
        clear, places = counts.get("decoy", (0, 0))
        others, without = counts.get("two stores", (0, 0))
        if places and without and clear / places - others / without > MISLED:
            yield Notice(
                f"The decoy misleads `{method}`: of {places} states at the verb, where the subject "
                f"stands and nothing uses it, {clear} are clear to it; without the decoy {others} "
                f"of {without}."
            )


def draw_networks(networks: Rows) -> Figure:
    """AUROC of each method on each network."""
    order = {name: min(i for i, row in enumerate(networks) if row["fact"] == name)
             for name in tidy.distinct(networks, "fact")}  # fmt: skip
    rows = sorted(networks, key=lambda row: order[row["fact"]])
    return tidy.draw_map(
        rows,
        "auroc",
        "What methods find in each network",
        "AUROC of each method on each network; 0.5 is chance.",
        x="fact",
        y="model",
        ends=("auroc",),
        panel=lambda row: f"{row['weights']} networks",
        xlabel="network",
        ylabel="AUROC",
        limits=(0.0, 1.0),
    )


def tabulate_false(false: Rows) -> Table:
    """How often places that do not matter are called clear, by mechanism and role."""

    def share(row: tidy.Record) -> float:
        return row["clear"] / max(1, row["places"])

    return tidy.tabulate(
        "false",
        "Places that do not matter and are called clear, by what their position is to the question",
        sorted(
            (row for row in false if row["clear"] and row["method"] != CONTROL),
            key=lambda row: -share(row),
        ),
        {
            "method": "method",
            "mechanism": "mechanism",
            "networks": lambda row: f"{row['weights']}, {row['reads']}",
            "position": lambda row: _say_role(row["role"]),
            "places": "places",
            "clear": "clear",
            Column("share, %", 1, is_percent=True): share,
        },
        most=30,
    )


def tabulate_networks(networks: Rows) -> Table:
    """Every method on every network: what others hold theirs against."""
    shown = {metric.head(): name for name, metric in FOUND.metrics.items()}
    columns: dict[str | Column, tidy.Get] = {"network": "fact", "method": "model"}
    columns |= {"scores": "scored", "weights": "weights", **shown}
    columns |= {Column("passes", 0): "passes", "seconds": "seconds"}
    rows = sorted(networks, key=lambda row: (row["fact"], -(row["auroc"] or 0.0)))
    return tidy.tabulate("networks", "Every method on every network", rows, columns, most=12)


def _say_role(role: str) -> str:
    return {"before": "words before the subject"}.get(role, f"the {role}")


def _join(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "none"
