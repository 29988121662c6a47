"""What circuits say: where the answer comes from by step, how good screens are, what is shared."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from unmask.base.errors import NotMeasuredError
from unmask.blocks import labels, tidy
from unmask.blocks.blocks import Column, Figure, Finding, Fold, ReportBlock, Table
from unmask.experiments.circuit.overlap import compare_circuits
from unmask.measures.measure import Rows, Summary, Tables
from unmask.measures.result import Result
from unmask.results.comparison import ASKED, KIND, MODEL, Comparison, Factor, Quantity
from unmask.results.summaries import estimate_means

STAGE = Factor("stage", "step", labels.name_stage)
SCREENS = {
    "exact": "exact",
    "attribution": "attribution",
    "integrated": "integrated gradients",
    "random": "random order",
}
SCREEN = Factor("screen", "by", SCREENS)
GROUP = (MODEL, KIND, ASKED, STAGE)
TOP = 0.02
"""The strongest of the edges, among which screens are to find them."""
PARTS = {"embed": "embeddings", "head": "heads", "mlp": "MLPs"}
PLACES = {
    "before": "before the subject", "first": "first subject token", "middle": "middle of subject",
    "last": "last subject token", "further": "rest of prompt", "committed": "committed answer",
    "answer": "predicting now", "masks": "other masks", "written": "other written",
}  # fmt: skip
KNOWN = Comparison(
    metrics={"auroc": Quantity("AUROC", limits=(0.0, 1.0))},
    groups=(SCREEN,),
    chance={"auroc": 0.5},
    counted="networks",
    title="Edges that matter in networks of known mechanism",
    means="Edges of networks of known mechanism: AUROC of exact effects and of screens",
    names=("known", ""),
)
AGREEMENT = Comparison(
    metrics={
        "correlation": Quantity("correlation with exact effects", has_sign=True, limits=(-1, 1)),
        "found": Quantity("strongest 2 % found", "%"),
    },
    groups=(*GROUP, Factor("of", "of"), SCREEN),
    title="How well screens agree with exact effects",
    means="Screens beside exact effects, of all nodes and of edges drawn at random",
    names=("agreement", ""),
    most=60,
)
FAITHFUL = Comparison(
    metrics={
        "cpr": Quantity("CPR", has_sign=True),
        "cmd": Quantity("CMD", least=0.0),
    },
    groups=GROUP,
    variant=SCREEN,
    against=[(name, "random") for name in ("exact", "attribution", "integrated")],
    title="Faithfulness of circuits",
    caption="Area under faithfulness over circuit sizes from 0.1 to 100 % of edges (CPR), edges by "
    "score. Bars are 95 % intervals by fact.",
    means="Faithfulness of circuits: CPR (edges by score) and CMD (by magnitude; 0 is best)",
    differences="CPR and CMD minus those of a random order of the edges",
    names=("faithfulness", "faithfulness-differences"),
    controls=("random",),
    most=60,
)
NEURONS = Comparison(
    metrics={"size": Quantity("size of the effect", "logits", least=0.0)},
    groups=GROUP,
    variant=Factor("group", "neurons", {"strongest": "strongest 16 of a layer", "random": "16 at "
                   "random", "alone": "one of the strongest"}),
    against=[("strongest", "random")],
    title="Neurons exchanged",
    caption="What the answer loses, or gains, where neurons take the other question's values, at "
    "the role where the layer's are strongest; mean over layers.",
    means="Neurons exchanged at a role: mean size of the effect over layers",
    differences="The strongest neurons of a layer minus as many at random",
    names=("neurons", "neurons-differences"),
    controls=("random",),
)  # fmt: skip
BY = ("model", "kind", "split", "stage")
NODE = ("layer", "part", "head", "role")


def summarise(tables: Tables, settings: Any) -> Summary:
    """Effects by role and node, agreement, faithfulness, neurons, overlap, known networks."""
    nodes, edges, neurons, steps, known, facts = (table.to_pylist() for table in tables.values())
    if not nodes:
        models = " and ".join(tidy.distinct(facts, "model"))
        raise NotMeasuredError("none recalled", models=models)
    for row in neurons:
        row["size"] = abs(row["effect"])
    return {
        "roles": list(_share_roles(nodes, steps)),
        "nodes": estimate_means(nodes, (*BY, *NODE), ("effect",)),
        "agreement": AGREEMENT.average([*_agree(nodes, "nodes"), *_agree(edges, "edges")]),
        **FAITHFUL.summarise(steps),
        **(NEURONS.summarise(neurons) if neurons else {}),
        "overlap": list(compare_circuits(nodes, settings.seed)),
        "known": KNOWN.average(known) if known else [],
        "counts": list(_count(facts, steps)),
    }


def _share_roles(nodes: Rows, steps: Rows) -> Iterator[dict[str, Any]]:
    """What the nodes of each role and part bring, the sum of effects' sizes, in units of what lies
    between the two questions."""
    ranges = {
        tuple(row[name] for name in (*BY, "fact", "seed")): row["clean"] - row["other"]
        for row in steps
    }
    sums = []
    for key, own in tidy.group_by(nodes, *BY, "fact", "seed", "role", "part").items():
        total = sum(abs(row["effect"]) for row in own) / abs(ranges[key[:6]])
        names = (*BY, "fact", "seed", "role", "part")
        sums.append(dict(zip(names, key, strict=True)) | {"share": total})
    order = list(PLACES)
    means = estimate_means(sums, (*BY, "role", "part"), ("share",))
    yield from sorted(means, key=lambda row: order.index(row["role"]))


def _agree(rows: Rows, of: str) -> Iterator[dict[str, Any]]:
    """For each question, step and screen how its estimates stand to the exact effects."""
    kept = [row for row in rows if row.get("is_drawn", True)]
    for key, own in tidy.group_by(kept, *BY, "fact", "seed").items():
        exact = np.array([row["effect"] for row in own])
        most = max(1, round(TOP * len(own)))
        top = set(np.argsort(-abs(exact), kind="stable")[:most])
        for name in ("attribution", "integrated"):
            estimate = np.array([row[name] for row in own])
            moves = exact.std() > 0 and estimate.std() > 0
            shared = top & set(np.argsort(-abs(estimate), kind="stable")[:most])
            yield dict(zip((*BY, "fact", "seed"), key, strict=True)) | {
                "of": of,
                "screen": name,
                "correlation": float(np.corrcoef(exact, estimate)[0, 1]) if moves else None,
                "found": len(shared) / most,
            }


def _count(facts: Rows, steps: Rows) -> Iterator[dict[str, Any]]:
    """How many prompts of each group were asked and kept, and what a step cost."""
    for (model, kind, split), own in tidy.group_by(facts, "model", "kind", "split").items():
        done = [row for row in tidy.select(steps, model=model, split=split)
                if row["screen"] == "random"]  # fmt: skip
        reasons = [row["reason"] for row in own if not row["kept"]]
        cost = {
            name: sum(row[name] for row in done) / len(done) if done else None
            for name in ("edges", "measured", "passes", "seconds")
        }
        yield {
            "model": model, "kind": kind, "split": split, "prompts": len(own),
            "kept": len(own) - len(reasons), "steps": len(done),
            "left_out": ", ".join(
                f"{reasons.count(each)} {each}" for each in sorted(set(reasons))
            ), **cost,
        }  # fmt: skip


def describe(result: Result) -> Sequence[ReportBlock]:
    """What brings the answer at each step, screens, faithfulness, overlap, and the tables."""
    summary = result.summary
    blocks: list[ReportBlock] = [*_state_known(summary["known"]), *_state_agreement(summary)]
    blocks += [*FAITHFUL.state(summary), _draw_roles(summary["roles"])]
    blocks += [tabulate_nodes(summary["nodes"]), *_state_overlap(summary["overlap"])]
    means = summary[FAITHFUL.names[0]]
    tables = [FAITHFUL.tabulate(means), AGREEMENT.tabulate(summary["agreement"])]
    tables.append(FAITHFUL.tabulate_differences(summary[FAITHFUL.names[1]]))
    if summary["known"]:
        tables.append(KNOWN.tabulate(summary["known"]))
    if NEURONS.names[0] in summary:
        tables.append(NEURONS.tabulate(summary[NEURONS.names[0]]))
        tables.append(NEURONS.tabulate_differences(summary[NEURONS.names[1]]))
    tables += [tabulate_overlap(summary["overlap"]), _tabulate_counts(summary["counts"])]
    return [*blocks, Fold("Numbers", [table for table in tables if table.rows])]


def _state_known(known: Rows) -> Iterator[ReportBlock]:
    """How well edges are found where the truth is known."""
    if known:
        areas = ", ".join(
            f"{SCREENS[row['screen']]} {tidy.say(row, '', 2, limits=(0.0, 1.0))}" for row in known
        )
        first = known[0]
        yield Finding(
            f"On {labels.count(first['facts'], 'network')} of known mechanism the edges that "
            f"matter are found with AUROC: {areas}.",
            first["outcome"],
            "networks",
        )


def _state_agreement(summary: Summary) -> Iterator[ReportBlock]:
    """How far each screen finds the strongest edges, by model: the ends over its groups."""
    rows = tidy.select(summary["agreement"], of="edges", metric="found")
    for (model, screen), own in tidy.group_by(rows, "model", "screen").items():
        low, high = (f(own, key=lambda row: row["mean"]) for f in (min, max))
        where = f"{tidy.name_asked(low)}, {labels.name_stage(low['stage'])}"
        yield Finding(
            f"In {model}, {SCREENS[screen]} finds between {tidy.say(low, '%')} ({where}) and "
            f"{tidy.say(high, '%')} of the strongest 2 % of edges.",
            "unsettled",
        )


def _draw_roles(roles: Rows) -> Figure:
    """What the nodes of each role bring, by step."""
    rows = [
        {**row, "place": PLACES[row["role"]], "kind_of": PARTS[row["part"]],
         "when": labels.name_stage(row["stage"])}
        for row in roles
    ]  # fmt: skip
    return tidy.draw_map(
        sorted(rows, key=lambda row: row["stage"]),
        "circuit",
        "What each role brings, by denoising step",
        "Sum of the sizes of the exact effects of a role's nodes, in units of what lies between "
        "the two questions. What an earlier step committed reaches a later one by the embeddings "
        "of the committed answer alone.",
        x="when",
        y="place",
        panel="model",
        choose=[tidy.ASKED, tidy.Choose("nodes", "kind_of")],
        xlabel="denoising step",
        ylabel="share",
    )


def tabulate_nodes(nodes: Rows) -> Table:
    """The strongest nodes of each group."""
    rows = []
    for own in tidy.group_by(nodes, *BY).values():
        rows += sorted(own, key=lambda row: -abs(row["mean"]))[:5]
    columns: dict[str | Column, tidy.Get] = {
        "model": "model", "asked": tidy.name_asked,
        "step": lambda row: labels.name_stage(row["stage"]),
        "node": name_node, "at": lambda row: PLACES[row["role"]],
        Column("logits lost", has_sign=True): tidy.to_interval, "facts": "facts",
    }  # fmt: skip
    return tidy.tabulate("nodes", "The strongest nodes of each group", rows, columns, most=40)


def name_node(row: tidy.Record) -> str:
    """A node in words."""
    if row["part"] == "embed":
        return "embeddings"
    return f"layer {row['layer']} " + ("MLP" if row["part"] == "mlp" else f"head {row['head']}")


def _state_overlap(overlap: Rows) -> Iterator[ReportBlock]:
    """What circuits share, with what they would share by chance and what halves of one do."""
    for row in overlap:
        names = [f"{row[f'{side}model']}, {labels.name_split(row[f'{side}split'])}"
                 for side in ("", "other_")]  # fmt: skip
        ceiling = "" if row["ceiling"] is None else f"; halves of a group {row['ceiling']:.0%}"
        yield Finding(
            f"At {labels.name_stage(row['stage'])} the circuits of {names[0]} and of {names[1]} "
            f"share {row['shared']:.0%} of their strongest tenth of nodes (by chance "
            f"{row['null']:.0%}{ceiling}; p = {row['p']:.3f}).".replace("%", " %"),
            row["outcome"],
            is_further=row["is_further"],
        )


def tabulate_overlap(overlap: Rows) -> Table:
    """Every pair of circuits."""
    share = [Column(each, 0, is_percent=True) for each in ("shared, %", "by chance, %", "halves of "
             "a group, %")]  # fmt: skip
    columns: dict[str | Column, tidy.Get] = {
        "one": lambda row: f"{row['model']}, {labels.name_split(row['split'])}",
        "other": lambda row: f"{row['other_model']}, {labels.name_split(row['other_split'])}",
        "step": lambda row: labels.name_stage(row["stage"]),
        share[0]: "shared", share[1]: "null", share[2]: "ceiling",
        Column("correlation", has_sign=True): "correlation", Column("p", 3): "p",
    }  # fmt: skip
    caption = "Nodes that two circuits share, of the strongest tenth of each"
    return tidy.tabulate("overlap", caption, overlap, columns, most=40)


def _tabulate_counts(counts: Rows) -> Table:
    """Prompts asked and kept, and what a step of one costs."""
    columns: dict[str | Column, tidy.Get] = {
        "model": "model", "asked": tidy.name_asked, "prompts": "prompts", "kept": "kept",
        "left out": lambda row: row["left_out"] or None, "steps": "steps",
        Column("edges", 0): "edges", Column("exact", 0): "measured",
        Column("passes a step", 0): "passes",
        Column("processor seconds a step", 1): "seconds",
    }  # fmt: skip
    return tidy.tabulate("counts", "Prompts asked, and what a step costs", counts, columns)
