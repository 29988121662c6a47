"""What the scores of methods say: the leaderboard, the map, what misleads, one store or two."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from unmask.blocks import labels, tidy
from unmask.blocks.blocks import Column, Figure, Finding, Fold, Notice, ReportBlock, Table
from unmask.evaluation.statistics import ENOUGH
from unmask.measures.measure import Rows, Summary, Tables
from unmask.measures.result import Result
from unmask.results.comparison import Comparison, Factor, Quantity

METHOD = Factor("model", "method")
SCORED, WEIGHTS = Factor("scored", "scores"), Factor("weights", "weights")
FOUND = Comparison(
    metrics={
        "auroc": Quantity("AUROC", least=0.0, limits=(0.0, 1.0)),
        "stream": Quantity("AUROC, the stream", limits=(0.0, 1.0)),
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
LEADERBOARD = replace(FOUND, metrics={name: FOUND.metrics[name] for name in (
    "auroc", "precision", "top", "false", "kept")})  # fmt: skip
"""What is shown of the means; the rest stands in the table of networks."""
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
NEARLY, LITTLE = 0.99, 0.7
"""Areas from which on nearly all that matters is found, and up to which little of it is."""
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
    means.sort(
        key=lambda row: (-order.get(row["model"], 0.0), row["model"], row["weights"] == HAND)
    )
    return {
        "methods": means,
        "networks": networks,
        "false": scoring.list_false(scores, truth, networks),
        "stores": SHARED.average(stores),
        "sharing": stores,
    }


def describe(result: Result) -> Sequence[ReportBlock]:
    """What methods find in a sentence, the map, the leaderboard, and where they mislead."""
    summary = result.summary
    blocks = [
        *_state(summary["methods"]),
        *_state_weights(summary["networks"]),
        *_state_stores(summary["stores"]),
        *_say_held_out(summary["networks"]),
        *_say_decoy(summary["false"]),
    ]
    if max((row["facts"] for row in summary["methods"]), default=0) < ENOUGH:
        blocks.append(
            Notice(f"Fewer than {ENOUGH} networks were asked: too few to call anything clear.")
        )
    misled = [*_warn(summary["false"]), tabulate_false(summary["false"])]
    every = [tabulate_networks(summary["networks"])]
    blocks += [
        draw_networks(summary["networks"], tidy.distinct(summary["methods"], "model")),
        LEADERBOARD.tabulate(summary["methods"]),
        Fold("Where methods call clear what does not matter", misled),
    ]
    if summary["stores"]:
        judged = [SHARED.tabulate(summary["stores"], **{"networks": "facts"})]
        blocks.append(Fold("One store or two, by method", judged))
    return [*blocks, Fold("Every method on every network", every)]


def _state(means: Rows) -> Iterator[ReportBlock]:
    """Which methods find nearly all that matters, which a part, and which little, in a sentence."""
    areas = [row for row in tidy.select(means, metric="auroc") if row["model"] != CONTROL]
    for weights, rows in sorted(tidy.group_by(areas, "weights").items(), reverse=True):
        most = max(row["facts"] for row in rows)
        parted = {
            "nearly all that matters": [row for row in rows if row["mean"] >= NEARLY],
            "a part of what matters": [row for row in rows if LITTLE < row["mean"] < NEARLY],
            "little or nothing of what matters": [row for row in rows if row["mean"] <= LITTLE],
        }
        parts = [
            f"{_say_areas(own)} {'finds' if len(own) == 1 else 'find'} {what}"
            for what, own in parted.items()
            if own
        ]
        is_any = any(row["outcome"] == "above" for row in rows)
        yield Finding(
            f"On {labels.count(most, weights + ' network')} {'; '.join(parts)} (AUROC in "
            "brackets).",
            "too few" if most < ENOUGH else "above" if is_any else "unsettled",
            "networks",
        )


def _say_areas(rows: Rows) -> str:
    return ", ".join(f"`{row['model']}` ({row['mean']:.2f})" for row in rows)


def _state_weights(networks: Rows) -> Iterator[ReportBlock]:
    """Methods that do otherwise on trained networks than on hand-written ones with the same
    mechanisms, by the stream alone, which is all that is known of trained ones."""
    known = {(row["mechanism"], row["reads"]) for row in networks if row["weights"] != HAND}
    alike = [row for row in networks if (row["mechanism"], row["reads"]) in known]
    moved: dict[str, list[str]] = {"Worse": [], "Better": []}
    for method, rows in tidy.group_by(
        tidy.select(FOUND.average(alike), metric="stream"), "model"
    ).items():
        sides = {row["weights"]: row for row in rows}
        if len(sides) < 2 or min(row["facts"] for row in rows) < ENOUGH:
            continue
        hand, trained = sides.pop(HAND), next(iter(sides.values()))
        words = f"`{method}` ({hand['mean']:.2f} → {trained['mean']:.2f})"
        if trained["high"] < hand["low"]:
            moved["Worse"].append(words)
        elif trained["low"] > hand["high"]:
            moved["Better"].append(words)
    for word, methods in moved.items():
        if methods:
            yield Finding(
                f"{word} on trained networks than on hand-written ones of these mechanisms, by "
                f"AUROC of the stream: {', '.join(methods)}.",
                "above",
                "networks",
            )


def _state_stores(stores: Rows) -> Iterator[ReportBlock]:
    """Which methods tell one store from two in every network, and which do not."""
    for weights, rows in sorted(tidy.group_by(stores, "weights").items(), reverse=True):
        every = [row for row in rows if row["mean"] == 1.0]
        shares = [
            f"`{row['model']}` ({tidy.say_share(row['mean'])})" for row in rows if row["mean"] < 1.0
        ]
        most = max(row["facts"] for row in rows)
        networks = f"{most} {weights} networks, each held out with its mechanism"
        text = f"No method tells one store used both ways from two in all {networks}"
        if every:
            names = ", ".join(f"`{row['model']}`" for row in every)
            text = f"One store used both ways is told from two in all {networks}, by {names}"
            shares[:1] = [f"not by {share}" for share in shares[:1]]
        yield Finding(
            f"{'; '.join([text, ', '.join(shares)] if shares else [text])}.",
            "above" if any(row["low"] > 0.5 for row in every) else "unsettled",
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


def draw_networks(networks: Rows, methods: Sequence[str]) -> Figure:
    """AUROC of each method on each network, the best method on top."""
    rows = sorted(networks, key=lambda row: (row["fact"], methods.index(row["model"])))
    return tidy.draw_map(
        rows,
        "auroc",
        "What methods find in each network",
        "AUROC of each method on each network: how often a place that matters scores above one "
        "that does not; 0.5 is chance. Hand-written networks: 1 rotated, 2 along the axes and "
        "twice as deep, 3 with values that share room; 4 and 5 are 2 and 3, causal. Trained "
        "ones have the numbers of their seeds.",
        x=lambda row: row["fact"].replace(", trained", ""),
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
