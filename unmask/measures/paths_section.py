"""The section of path patching: effects by fact, what is above controls, heads, and the page."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from unmask.blocks import blocks, labels, tidy
from unmask.evaluation.equivalence import divide, find_shares
from unmask.evaluation.statistics import mean_intervals
from unmask.measures.knockout_section import COUNTS, ROLES
from unmask.measures.knockout_summary import GROUP, Effects, count_prompts, find_prompt_effects
from unmask.measures.measure import Rows, Summary, Tables, judge_interval
from unmask.measures.result import Result

METRICS = {
    "p": blocks.Column("probability", is_short=True),
    "logp_per_token": blocks.Column("log p per token, nats", 3),
}
COMPARED = "logp_per_token"
"""The metric of shares, of heads and of what is above the controls."""
OWN = "none"
"""The control of rows that have none: the fact's own states are sent."""
CLEAN, HIDDEN = "nothing hidden", "subject hidden"
"""Senders of the rows that say what paths stand between."""
EVERY_WAY = "every way"
CELL = ("sender", "sent", "receiver", "first", "last", "head")
TOTAL = (CLEAN, -1, "", -1, -1, -1)
READS = ROLES | {EVERY_WAY: EVERY_WAY}
"""Receivers, in the figure's words."""
TOLD = {"answer": "the answer's positions", "masks": "the other masks"}
"""Receivers that the page has a sentence about."""
MOST_HEADS = 5
"""Heads that each half of the facts chooses."""

FactValues = dict[str, float]
"""By fact."""


def summarise(tables: Tables, settings: Any) -> Summary:
    """Average effects and their shares, what is above the controls, the strongest heads, counts."""
    counts = count_prompts(tables)
    effects = _find_effects(tables["paths"].to_pylist())
    return {
        "effects": list(_average(effects)),
        "above": list(_subtract_controls(effects)),
        "heads": list(_choose_heads(effects)),
        "counts": counts,
    }


def _find_effects(rows: Rows) -> Effects:
    """What each path gives back, phrasings and training seeds of a fact averaged.

    The total effect stands under `TOTAL`: what hiding the subject takes.
    """
    return find_prompt_effects(rows, ("sender", HIDDEN), ("control", *CELL), METRICS)


def _estimate(values: FactValues, totals: FactValues) -> dict[str, Any]:
    """The mean and its interval, and the same of its share of the total effect."""
    own = np.array([*values.values()])
    wanted = [totals[fact] for fact in values]
    shares = find_shares(own, wanted) if any(wanted) else np.full(len(own), np.nan)
    ends = mean_intervals(np.stack([own, shares], 1))
    names = ("mean", "low", "high", "share", "share_low", "share_high")
    numbers = [float(end[i]) for i in (0, 1) for end in ends]
    return dict(zip(names, numbers, strict=True)) | {"facts": len(own)}


def _average(effects: Effects) -> Iterator[dict[str, Any]]:
    """A row for each group, control, cell and metric; single heads stand elsewhere."""
    for group, cells in effects.items():
        for cell, metrics in cells.items():
            if cell[-1] >= 0:
                continue
            where = dict(zip((*GROUP, "control", *CELL), (*group, *cell), strict=True))
            for metric, values in metrics.items():
                yield where | {"metric": metric} | _estimate(values, cells[OWN, *TOTAL][metric])


def _subtract_controls(effects: Effects) -> Iterator[dict[str, Any]]:
    """What each path gives beyond the control that gives more, fact by fact."""
    for group, cells in effects.items():
        controls = list(dict.fromkeys(cell[0] for cell in cells if cell[0] != OWN))
        totals = cells[OWN, *TOTAL][COMPARED]
        for (control, *cell), metrics in cells.items():
            beside = [cells[name, *cell][COMPARED] for name in controls if (name, *cell) in cells]
            if control != OWN or not beside:
                continue
            beyond = {
                fact: value - max(own[fact] for own in beside if fact in own)
                for fact, value in metrics[COMPARED].items()
                if any(fact in own for own in beside)
            }
            where = dict(zip((*GROUP, *CELL), (*group, *cell), strict=True))
            yield where | _estimate(beyond, totals)


def _choose_heads(effects: Effects) -> Iterator[dict[str, Any]]:
    """The strongest heads of each half of the facts, read on the other; `chosen` by how many."""
    for group, cells in effects.items():
        totals = cells[OWN, *TOTAL][COMPARED]
        heads = {cell[1:]: own[COMPARED] for cell, own in cells.items() if cell[-1] >= 0}
        halves = divide(totals)
        chosen: dict[tuple, list[int]] = {}
        for side in (0, 1):
            facts = [fact for fact, own in halves.items() if own != side]
            if not facts:
                continue
            means = {cell: np.mean([own[fact] for fact in facts]) for cell, own in heads.items()}
            for cell in sorted(means, key=lambda cell: -means[cell])[:MOST_HEADS]:
                chosen.setdefault(cell, []).append(side)
        for cell, sides in chosen.items():
            own = {fact: x for fact, x in heads[cell].items() if halves[fact] in sides}
            if own:
                where = dict(zip((*GROUP, *CELL), (*group, *cell), strict=True))
                yield where | _estimate(own, totals) | {"chosen": len(sides)}


def judge(summary: Summary, settings: Any) -> Iterator[blocks.Verdict]:
    """What hiding the subject takes, and whether each way of it is above the controls."""
    for row in tidy.select(summary["effects"], sender=CLEAN, metric=COMPARED):
        yield judge_interval(_name(row), tidy.to_interval(row), row["facts"])
    for row in summary["above"]:
        yield judge_interval(_name(row), tidy.to_interval(row), row["facts"])


def _name(row: tidy.Record) -> str:
    cell = (row[name] for name in ("sender", "sent", "receiver", "first", "last"))
    return ", ".join(map(str, (row["model"], row["split"], row["stage"], *cell)))


def name_band(row: tidy.Record) -> str:
    """The layers of a receiver."""
    return f"{row['first']}–{row['last']}" if row["first"] < row["last"] else f"{row['first']}"


def name_sender(row: tidy.Record) -> str:
    """Whose states are sent, and after which layer."""
    after = f"after layer {row['sent']}" if row["sent"] >= 0 else "embeddings"
    return f"{READS[row['sender']]}, {after}"


def _to_share(row: tidy.Record) -> Any:
    return tidy.to_interval(row, ("share", "share_low", "share_high"))


PATH: Mapping[str | blocks.Column, tidy.Get] = {
    "model": "model",
    "asked": tidy.name_asked,
    "sender": name_sender,
    "receiver": lambda row: READS[row["receiver"]],
    "layers": name_band,
}
SHARES: Mapping[str | blocks.Column, tidy.Get] = {
    blocks.Column("nats per token", 3): tidy.to_interval,
    blocks.Column("% of the total effect", 1, is_percent=True): _to_share,
}
"""Columns of the tables: which path, and what it gives back."""


def describe(result: Result) -> Sequence[blocks.ReportBlock]:
    """By which way: sentences, a map of receivers and layers, heads, controls, counts."""
    summary = result.summary
    own = [
        row
        for row in tidy.select(summary["effects"], metric=COMPARED, control=OWN)
        if row["sender"] != CLEAN
    ]
    heads = tidy.tabulate(
        "heads",
        "The strongest heads by which the answer's positions read the subject: chosen on one half "
        "of the facts, measured on the other",
        summary["heads"],
        {**PATH, "head": "head", **SHARES, "halves that chose it": "chosen"},
        most=30,
    )
    whole = tidy.tabulate(
        "ways",
        "What comes back when the receiver reads the sender in all layers above it",
        list(_list_whole(own)),
        {**PATH, **SHARES},
        most=40,
    )
    above = tidy.tabulate(
        "above",
        "What a path from the subject gives back beyond the stronger of its controls",
        summary["above"],
        {**PATH, **SHARES},
        most=40,
    )
    counts = tidy.tabulate(
        "counts",
        "Prompts asked, and those kept: recalled by the model, and patched",
        summary["counts"],
        COUNTS,
    )
    more = [heads] if summary["heads"] else []
    numbers = blocks.Fold("Numbers", [whole, above, counts])
    return [*_state(result), _draw_map(own), *more, numbers]


def _draw_map(rows: Rows) -> blocks.Figure:
    """What single receivers give back, band by band."""
    bands = _find_bands(rows)
    shown = [
        {**row, "percent": 100 * row["share"], "to": READS[row["receiver"]]}
        | {"from": name_sender(row), "layers": name_band(row)}
        for row in rows
        if row["receiver"] != EVERY_WAY and _find_layers(row) in bands
    ]
    return tidy.draw_map(
        shown,
        "paths",
        "Through which positions and layers a state reaches the answer",
        "Share of the total effect (what hiding the subject takes) that comes back when only the "
        "attention of these positions in these layers reads the sender's clean states.",
        x="layers",
        y="to",
        ends=("percent",),
        choose=[tidy.ASKED, tidy.Choose("sender", "from")],
        xlabel="layers of the receiver",
        ylabel="% of the total effect",
        is_signed=True,
    )


def _find_layers(row: tidy.Record) -> tuple:
    return row["model"], row["first"], row["last"]


def _find_bands(rows: Rows) -> set[tuple]:
    """The bands of each model: of what begins at a layer, the shortest."""
    ends: dict[tuple, int] = {}
    for row in rows:
        start = row["model"], row["first"]
        ends[start] = min(row["last"], ends.get(start, row["last"]))
    return {(*start, last) for start, last in ends.items()}


def _list_whole(rows: Rows) -> Iterator[tidy.Record]:
    """The paths by all layers above their sender, and by every way."""
    ends: dict[str, int] = {}
    for row in rows:
        ends[row["model"]] = max(row["last"], ends.get(row["model"], 0))
    for row in rows:
        if (row["first"], row["last"]) == (row["sent"] + 1, ends[row["model"]]):
            yield row


def _state(result: Result) -> Iterator[blocks.Finding]:
    """What the answer and other masks give back by reading the subject's states, by model."""
    rows = [row for row in result.summary["above"] if row["sender"] == "subject"]
    for (model, split, stage), own in tidy.group_by(rows, "model", "split", "stage").items():
        # After the first band, where the subject's tokens have read each other.
        sent = sorted({row["sent"] for row in own})[:2][-1]
        for row in _list_whole(own):
            if row["sent"] == sent and row["receiver"] in TOLD:
                yield blocks.Finding(
                    f"In {model}, asked {labels.name_split(split)}, at {labels.name_stage(stage)}: "
                    f"the subject's states after layer {row['sent']}, read by the attention of "
                    f"{TOLD[row['receiver']]} alone, give back {tidy.say(row, 'nats per token')} "
                    f"beyond the controls, {tidy.say_share(row['share'])} of what hiding the "
                    f"subject takes ({labels.count(row['facts'], 'fact')}).",
                    result.verdicts[_name(row)],
                )
