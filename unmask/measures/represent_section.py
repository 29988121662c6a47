"""Keys and values in sentences: what probes say across directions, what the searches did."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from unmask.blocks import labels, tidy
from unmask.blocks.blocks import (
    Block,
    Column,
    Figure,
    Finding,
    Notice,
    Number,
    Table,
    Text,
    Verdict,
)

if TYPE_CHECKING:
    from unmask.measures.result import Result

FACTS = tidy.Choose("facts", "group", labels.GROUPS.__getitem__)
ACROSS = (("d2p", "p2d"), ("p2d", "d2p"))
"""Directions that probes are fitted and tested in."""
REASONS = {
    "given": "as given",
    "middle": "the middle one, since no trace chose another",
    "trace": "where restoring the MLP at the last subject token does most",
}
Record = Mapping[str, Any]


def describe(result: "Result") -> Sequence[Block | Number]:
    """Probes first, then what the searches did, then the lens."""
    summary = result.summary
    blocks: list[Block | Number] = [*_state_probes(result), *_state_elicited(result)]
    if summary["probes"]:
        blocks += [_draw_probes(summary["probes"]), _tabulate_probes(result)]
    blocks.append(_tabulate_searches(summary["searches"], summary["values"]))
    for model, rows in tidy.group_by(summary["searches"], "model").items():
        layers = sorted(tidy.distinct(rows, "layer"))
        noun = "layer" if len(layers) == 1 else "layers"
        listed = ", ".join(map(str, layers))
        blocks.append(Text(f"{model}: {noun} {listed}, {REASONS[rows[0]['chosen_by']]}."))
    if summary["lens"]:
        blocks.append(_draw_lens(summary["lens"]))
    return [*blocks, *_notice_left_out(result)]


def name_probe(row: Record) -> str:
    """The claim that a probe tells facts at some layer."""
    return f"{row['model']}: {row['group']}: {row['fitted']} to {row['tested']}"


def choose_best(probes: tidy.Records) -> list[Record]:
    """The best layer of each kind of probe, those across directions first."""
    families = tidy.group_by(probes, name_probe).values()
    best = [max(rows, key=lambda row: row["mean"]) for rows in families]
    return sorted(best, key=lambda row: row["fitted"] == row["tested"])


def _state_probes(result: "Result") -> Iterator[Finding | Number]:
    """One sentence for each model; its verdict is that of the weaker of the two directions."""
    across = [
        row for row in choose_best(result.summary["probes"]) if name_probe(row) in result.verdicts
    ]
    for model, rows in tidy.group_by(across, "model").items():
        rows = tidy.select(rows, group=rows[0]["group"])
        parts = [
            f"{tidy.say(tidy.to_interval(row), '%')} right when fitted on "
            f"{labels.GIVEN[row['fitted']]}s and tested on {labels.GIVEN[row['tested']]}s"
            for row in rows
        ]
        weaker = max(rows, key=lambda row: row["p_layers"])
        verdict = result.verdicts[name_probe(weaker)]
        lead = {
            "above": "can be read off across directions",
            "unsettled": "cannot clearly be read off across directions",
        }.get(verdict.outcome, f"was asked of {labels.count(verdict.facts, 'fact')} only")
        chance = f"chance {100 / weaker['facts']:.0f} %"
        yield Finding(
            f"In {model} ({labels.KINDS[weaker['kind']]}), which fact a state belongs to {lead}: "
            f"linear probes are {' and '.join(parts)} (best layer; "
            f"{labels.GROUPS[weaker['group']]}; {chance}).",
            verdict,
        )
        if verdict.is_clear:
            share = tidy.say(tidy.to_interval(weaker), "%")
            note = f"{model}, by probes across directions; {chance}"
            yield Number("which fact a state belongs to", share, note)


def _state_elicited(result: "Result") -> Iterator[Finding]:
    """Whether values do what a value is for."""
    for model, rows in tidy.group_by(result.summary["elicited"], "model").items():
        values = {row["metric"]: tidy.to_interval(row) for row in rows}
        verdict = result.verdicts[f"{model}: elicited"]
        caution = {
            "above": "",
            "below": ": most are not values in ROME's sense",
        }.get(verdict.outcome, ": whether most do is not settled")
        yield Finding(
            f"In {model}, {tidy.say(values['elicited'], '%')} of the values elicit their object, "
            f"with a probability of ½ or more (on average {values['p_before'].mean:.2g} before the "
            f"search, {values['p_after'].mean:.2g} after){caution}.",
            verdict,
        )


def _draw_probes(probes: tidy.Records) -> Figure:
    lines = [
        {
            **row,
            "line": f"fitted on {labels.GIVEN[row['fitted']]}s, tested on "
            f"{labels.GIVEN[row['tested']]}s",
            "colour": {"d2p": "p1", "p2d": "p5"}[row["fitted"]],
            "dash": "dash" if row["fitted"] == row["tested"] else "solid",
        }
        for row in probes
    ]
    chance = {"line": "chance", "colour": "control", "dash": "dot"}
    lines += [
        {**row, **chance, "mean": row["null_mean"], "low": row["null_mean"]}
        for row in tidy.select(probes, fitted=probes[0]["fitted"], tested=probes[0]["tested"])
    ]
    return tidy.draw_lines(
        lines,
        "probes",
        "Which fact is it? Linear probes, layer by layer",
        "Prompts in phrasings held out. Solid: across directions. Bands are 95 % intervals by "
        "fact; chance: facts that change their names.",
        x="layer",
        line="line",
        colour="colour",
        dash="dash",
        choose=[FACTS],
        xlabel="after layer",
        ylabel="accuracy",
        limits=(0.0, 1.0),
    )


def _tabulate_probes(result: "Result") -> Table:
    def is_clear(row: Record) -> bool:
        verdict: Verdict | None = result.verdicts.get(name_probe(row))
        return verdict is not None and verdict.is_clear

    return tidy.tabulate(
        "probes",
        "Probes: which fact is it, in phrasings held out",
        choose_best(result.summary["probes"]),
        {
            "model": "model",
            "facts": lambda row: labels.GROUPS[row["group"]],
            "fitted on": lambda row: f"{labels.GIVEN[row['fitted']]}s",
            "tested on": lambda row: f"{labels.GIVEN[row['tested']]}s",
            "best layer": "layer",
            Column("right, %", 0, is_percent=True): tidy.to_interval,
            Column("chance, %", 0, is_percent=True): "null_mean",
            Column("p over all layers", 3): "p_layers",
        },
        lambda row: "strong" if is_clear(row) else "plain",
    )


def _tabulate_searches(searches: tidy.Records, values: tidy.Records) -> Table:
    place = ("model", "group", "split", "layer")
    cells = {
        (*key, row["metric"]): row
        for key, rows in tidy.group_by(values, *place).items()
        for row in rows
    }

    def find(row: Record, metric: str) -> Record | None:
        """Nothing where all searches diverged."""
        return cells.get((*(row[name] for name in place), metric))

    def average(metric: str) -> tidy.Get:
        return lambda row: cell["mean"] if (cell := find(row, metric)) else None

    def estimate(metric: str) -> tidy.Get:
        return lambda row: tidy.to_interval(cell) if (cell := find(row, metric)) else None

    return tidy.tabulate(
        "values",
        "Searches for values: means over the facts whose search did not diverge",
        searches,
        {
            "model": "model",
            "asked": lambda row: labels.name_split(row["split"]),
            "layer": "layer",
            "facts": "facts",
            "diverged": "diverged",
            Column("p(object) before", is_short=True): average("p_before"),
            Column("p(object) after", is_short=True): average("p_after"),
            Column("p after ≥ ½, %", 0, is_percent=True): estimate("elicited"),
            Column("‖delta‖ / ‖v0‖"): estimate("relative_distance"),
        },
    )


def _draw_lens(lens: tidy.Records) -> Figure:
    return tidy.draw_lines(
        tidy.select(lens, metric="logp"),
        "lens",
        "The logit lens",
        "log p of the object's hidden tokens if the stream after a layer were read by the head; at "
        "step s of S the share (s − 1)/S of the object is shown. Bands are 95 % intervals by fact.",
        x="layer",
        line=lambda row: f"step {row['step']} of {row['steps']}",
        colour=lambda row: f"p{(row['step'] - 1) % 8}",
        choose=[tidy.ASKED],
        xlabel="after layer",
        ylabel="log p, nats",
    )


def _notice_left_out(result: "Result") -> Iterator[Notice]:
    """What was asked for and could not be measured."""
    settings = result.settings.to_record()
    there = tidy.distinct(result.summary["searches"], "group")
    missing = [] if "own" in there else [g for g in settings["groups"] if g not in there]
    if missing:
        yield Notice(f"The data have no {' and no '.join(labels.GROUPS[g] for g in missing)}.")
    probed = tidy.distinct(result.summary["probes"], "group")
    unprobed = [labels.GROUPS[group] for group in there if group not in probed]
    if settings["probes"] and unprobed:
        yield Notice(
            f"No probes were fitted for {' and '.join(unprobed)}: they need at least 2 facts in 3 "
            "phrasings in each direction."
        )
