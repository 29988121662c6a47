"""The section of traces: what the subject's states give back, in sentences, figures and tables."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from unmask.blocks.blocks import (
    Block,
    Column,
    Finding,
    Fold,
    Notice,
    Number,
    Row,
    Section,
    Table,
    Text,
    Value,
    Verdict,
)
from unmask.blocks.labels import (
    CORRUPTIONS,
    JOINTS,
    METRICS,
    PARTS,
    ROLES,
    UNITS,
    count,
    name_split,
    name_stage,
)
from unmask.evaluation.statistics import Interval
from unmask.measures.measure import Rows
from unmask.measures.result import Result
from unmask.measures.summaries import distinct, to_interval
from unmask.measures.trace_figures import draw_peaks, draw_roles, draw_texts, name_layer
from unmask.measures.trace_summary import Group, claim_test, list_groups
from unmask.tracing.averages import TOTAL
from unmask.tracing.table import FLOW

TITLE = "Where facts are recalled"
HIDDEN = {
    "subject": "the subject",
    "committed": "the answer tokens written so far",
    "both": "the subject and the answer tokens written so far",
}
LIMITS = (
    "An indirect effect says that a state is enough, under this corruption, to bring some of the "
    "answer back. It does not say that the fact is stored in that state or in those weights, nor "
    "that the network needs the state on other prompts. Noise takes a network outside of what it "
    "was trained on; masks do not, but hide only what the prompt says. Windows add up layers, "
    "which can hide opposing ones. A state of the subject can give back all that was lost, one of "
    "several answer masks only its own token's share: roles are not to be compared as if they "
    "held the same. Facts that a model does not recall are not in the averages."
)


def describe(result: Result) -> Section:
    """The findings, the maps, the tables of facts and effects; methods folded away."""
    summary, settings = result.summary, result.settings.to_record()
    groups, counts = list_groups(summary["averages"]), summary["counts"]
    kinds = dict(distinct(counts, "model", "kind"))
    metric, how = settings["metric"], _describe_method(groups, counts, settings)
    firsts = [
        next(group for group in groups if group.model == model)
        for model in kinds
        if any(group.model == model for group in groups)
    ]
    blocks: list[Block] = []
    if not result.tables["trace"].num_rows:
        blocks.append(
            Notice(
                "The single traces of this run are not here. Averages and tests are those that "
                "version 0.1 stored, with its bootstrap intervals."
            )
        )
    blocks += [_state(group, result.verdicts, settings) for group in firsts[:2]]
    texts = [draw_texts(summary["texts"], metric)] if summary["texts"] else []
    is_one = bool(texts) and all(group.total["facts"] == 1 for group in groups)
    if is_one:
        blocks += texts
    elif any(cell[1] >= 0 for group in groups for cell in group.cells):
        blocks += [draw_roles(groups, kinds, metric, how), draw_peaks(groups, kinds, metric)]
    blocks += [_tabulate_groups(groups, result.verdicts, metric), _tabulate_counts(counts)]
    blocks.append(_explain_scores(groups, counts))
    blocks += [] if is_one else texts
    blocks.append(_fold_peaks(groups, result.verdicts, metric))
    blocks += _fold_tests(summary["tests"], result.verdicts, metric)
    blocks.append(Fold("Method", [Text(how), Text(_describe_statistics(counts))]))
    blocks.append(Fold("What an indirect effect does and does not say", [Text(LIMITS)]))
    numbers = [] if is_one else list(_make_numbers(firsts, result.verdicts, metric))
    return Section("trace", _make_title(groups), blocks, numbers)


def _make_title(groups: Sequence[Group]) -> str:
    stages = {group.stage for group in groups}
    if any(stage.isdecimal() for stage in stages):
        return f"{TITLE}, step by step"
    return f"{TITLE}, from the first step to the last" if len(stages) > 1 else TITLE


def _state(group: Group, verdicts: Mapping[str, Verdict], settings: Mapping[str, Any]) -> Finding:
    """What a model loses, and which of the subject's states gives back most."""
    metric, lost = settings["metric"], to_interval(group.total)
    where = f"asked {name_split(group.split)}"
    score = METRICS.get(metric, metric).partition(" (")[0]
    taken = (
        f"In {group.model}, {where}, hiding {HIDDEN[settings['source']]} takes "
        f"{_format(lost, metric)} from the answer's {score}"
    )
    verdict, cell = verdicts[group.claim(group.total)], group.best_subject()
    if verdict.outcome in ("unsettled", "below"):
        return Finding(f"{taken}: nothing is clearly lost, so nothing can be given back.", verdict)
    if cell is None:
        return Finding(f"{taken}.", verdict)
    verdict = verdicts[group.claim(cell)]
    beside = {
        "above": "more than every placebo",
        "unsettled": "which a placebo could give as well",
        "too few": f"on {count(verdict.facts, 'fact')}, too few to tell it from placebos",
    }[verdict.outcome]
    what = "state" if cell["part"] == "resid" else PARTS[cell["part"]]
    does = f"Putting back one clean {what} gives back most"
    if settings["mode"] == "ablate":
        does = f"Corrupting one {what} costs most"
    text = (
        f"{taken}. {does} at the {ROLES[cell['role']]}, layer {name_layer(cell)}: "
        f"{_format(to_interval(cell), metric)}, {_find_share(cell, group):.0%} of what was lost, "
        f"{beside}."
    )
    return Finding(text, verdict)


def _find_share(cell: Mapping[str, Any], group: Group) -> float:
    """A cell's effect as a share of what the corruption takes."""
    return cell["mean"] / group.total["mean"] if group.total["mean"] else math.nan


def _format(value: Interval, metric: str) -> str:
    """An effect with its unit: 2.07 nats [1.5, 2.6]."""
    unit = UNITS.get(metric, "")
    ends = "" if math.isnan(value.low) else f" [{value.low:.3g}, {value.high:.3g}]"
    return f"{value.mean:.3g}{unit}{ends}".replace("-", "−")


def _make_numbers(
    groups: Sequence[Group], verdicts: Mapping[str, Verdict], metric: str
) -> Iterator[Number]:
    """The first model's best subject state, where it is clear."""
    for group in groups[:1]:
        cell = group.best_subject()
        if cell is not None and verdicts[group.claim(cell)].is_clear:
            lost = f"{group.total['mean']:.3g}{UNITS.get(metric, '')}"
            yield Number(
                "given back by one state of the subject",
                f"{_find_share(cell, group):.0%}",
                f"of {lost} lost: {group.model}, {name_split(group.split)}, "
                f"{ROLES[cell['role']]}, layer {cell['layer']}",
            )


def _tabulate_counts(counts: Rows) -> Table:
    """Which facts were traced, and why others were not."""
    is_ranked = any(row["considered"] is not None for row in counts)
    columns = [Column("model"), Column("asked"), Column("subject hidden by"), Column("prompts")]
    columns += [Column("recalled of considered")] if is_ranked else []
    columns += [Column("traced"), Column("left out"), Column("p of the answer", is_short=True)]
    rows = []
    for row in counts:
        ranked: list[Value] = [f"{row['recalled']} of {row['considered']}"] if is_ranked else []
        hidden = CORRUPTIONS.get(row["corruption"], row["corruption"])
        about = [row["model"], name_split(row["split"]), hidden, row["prompts"]]
        rows.append(Row([*about, *ranked, row["kept"], row["left_out"] or None, row["clean"]]))
    return Table("facts", "Facts that were traced", columns, rows)


def _explain_scores(groups: Sequence[Group], counts: Rows) -> Text:
    """What the probability of an answer is the product of, and where models differ in it."""
    parts = []
    for model, joint in distinct(counts, "model", "joint"):
        tokens = [group.asked for group in groups if group.model == model]
        known = [number for number in tokens if not math.isnan(number)]
        size = f", {min(known):.0f} to {max(known):.0f} tokens" if known else ""
        parts.append(f"in {model} {JOINTS[joint]}{size}")
    text = f"p is the probability of the whole answer at the first step traced: {'; '.join(parts)}."
    joints = distinct(counts, "joint")
    if "mean_field" in joints:
        text += (
            " A product over masks can be near 0 for an answer that is recalled: it is written "
            "step by step."
        )
    if len(joints) > 1:
        text += (
            " So compare where the effects of these models are, and not how large they are; "
            "`--joint chain_rule` scores both alike."
        )
    return Text(text)


def _tabulate_groups(
    groups: Sequence[Group], verdicts: Mapping[str, Verdict], metric: str
) -> Table:
    """What is lost, what the subject's best state gives back, and where p comes from."""
    has_steps = len({group.stage for group in groups}) > 1
    has_flow = any(group.flow("committed") for group in groups)
    score = METRICS.get(metric, metric)
    columns = [*_name_columns(groups), Column("facts")]
    columns += [Column("tokens asked", digits=1)] if has_steps else []
    columns += [Column(f"lost, {score}", is_short=True)]
    columns += [Column("per token", is_short=True)] if has_steps and metric == "logp" else []
    columns += [Column("best at the subject"), Column("given back", is_short=True)]
    columns += [Column("of lost, %", digits=0, is_percent=True)]
    columns += [Column("highest placebo", is_short=True)]
    columns += [Column("p from the subject"), Column("p from written tokens")] if has_flow else []
    rows = []
    for group in groups:
        total, cell = group.total, group.best_subject()
        values: list[Value] = [*_name_group(group, groups), total["facts"]]
        values += [group.asked] if has_steps else []
        values.append(to_interval(total))
        values += [total["mean"] / group.asked] if has_steps and metric == "logp" else []
        values += [None] * 4 if cell is None else _show_cell(group, cell)
        values += [group.flow("subject"), group.flow("committed")] if has_flow else []
        is_clear = cell is not None and verdicts[group.claim(cell)].is_clear
        rows.append(Row(values, "strong" if is_clear else "plain"))
    caption = "What hiding the subject takes, and what its best state gives back"
    if has_steps:
        caption += (
            "; a step asks for the tokens that are still masked, and early ones are those of facts "
            "that begin early: compare steps with as many facts"
        )
    return Table("groups", caption, columns, rows)


def _name_columns(groups: Sequence[Group]) -> list[Column]:
    """What tells groups apart: corruption and step only where there are several."""
    columns = [Column("model"), Column("asked")]
    columns += [Column("hidden by")] if len({group.corruption for group in groups}) > 1 else []
    return columns + ([Column("step")] if len({group.stage for group in groups}) > 1 else [])


def _name_group(group: Group, groups: Sequence[Group]) -> list[Value]:
    values: list[Value] = [group.model, name_split(group.split)]
    if len({each.corruption for each in groups}) > 1:
        values.append(CORRUPTIONS.get(group.corruption, group.corruption))
    return values + ([name_stage(group.stage)] if len({each.stage for each in groups}) > 1 else [])


def _show_cell(group: Group, cell: Mapping[str, Any]) -> list[Value]:
    """Where a cell is, its effect, its share of what was lost, and its highest placebo."""
    placebos = [to_interval(row) for row in group.placebos(cell).values()]
    highest = max(placebos, key=lambda placebo: placebo.mean, default=None)
    part = "" if cell["part"] == "resid" else f"{PARTS[cell['part']]}, "
    where = f"{part}{ROLES[cell['role']]}, layer {name_layer(cell)}"
    return [where, to_interval(cell), _find_share(cell, group), highest]


def _fold_peaks(groups: Sequence[Group], verdicts: Mapping[str, Verdict], metric: str) -> Fold:
    """Every part and role at its best layer, the clear ones first."""
    columns = [*_name_columns(groups), Column("restored")]
    columns += [Column(f"given back, {METRICS.get(metric, metric)}", is_short=True)]
    columns += [Column("of lost, %", digits=0, is_percent=True)]
    columns += [Column("highest placebo", is_short=True), Column("facts")]
    lines = []
    for group in groups:
        for cell in group.peaks():
            is_clear = verdicts[group.claim(cell)].is_clear
            values = [*_name_group(group, groups), *_show_cell(group, cell), cell["facts"]]
            lines.append((is_clear, cell["mean"], Row(values, "strong" if is_clear else "plain")))
    lines.sort(key=lambda line: (not line[0], -line[1]))
    caption = "Restored states, or outputs where named; bold: above 0 and above every placebo"
    table = Table("peaks", caption, columns, [row for *_, row in lines])
    return Fold("Every part and role, at its best layer", [table])


def _fold_tests(tests: Rows, verdicts: Mapping[str, Verdict], metric: str) -> Iterator[Fold]:
    """Differences between groups, the total effects and what passes its test first."""
    compared = [test for test in tests if test["part"] != FLOW]
    if not compared:
        return
    is_clear = {id(test): verdicts[claim_test(test)].is_clear for test in compared}
    ordered = sorted(compared, key=lambda test: (not is_clear[id(test)], test["p_holm"]))
    rows = []
    for test in ordered:
        pair = [(test["model"], test["split"]), (test["other_model"], test["other_split"])]
        one, other = (f"{model}, {name_split(split)}" for model, split in pair)
        at = f"{name_stage(test['stage'])}, {CORRUPTIONS.get(test['corruption'], '')}"
        what = "total effect" if test["part"] == TOTAL else _name_role(test)
        how = f"{test['facts']} {'paired' if test['paired'] else 'unpaired'}"
        values = [one, other, at.rstrip(", "), what, to_interval(test), test["p_holm"], how]
        rows.append(Row(values, "strong" if is_clear[id(test)] else "plain"))
    columns = [Column("one"), Column("minus"), Column("at"), Column("what")]
    columns += [Column(f"difference, {METRICS.get(metric, metric)}", is_short=True)]
    columns += [Column("p (Holm)", digits=3), Column("facts")]
    sentence = Text(
        f"Mean effects over layers, one group minus the other; permutation tests by fact, "
        f"corrected within each pair of groups. {sum(is_clear.values())} of {len(compared)} pass."
    )
    table = Table("tests", "Differences between groups", columns, rows)
    yield Fold("Differences between models and ways of asking", [sentence, table])


def _name_role(test: Mapping[str, Any]) -> str:
    return f"{PARTS.get(test['part'], test['part'])}, {ROLES.get(test['role'], test['role'])}"


def _describe_method(groups: Sequence[Group], counts: Rows, settings: Mapping[str, Any]) -> str:
    """How the facts were traced, in sentences."""
    hidden = " or ".join(CORRUPTIONS.get(each, each) for each in distinct(counts, "corruption"))
    window = counts[0]["window"]
    sentences = [f"{HIDDEN[settings['source']].capitalize()} is hidden by {hidden}."]
    if settings["source"] != "subject":
        sentences = [f"Hidden are {HIDDEN[settings['source']]}, the subject by {hidden}."]
    if window and any(cell[0] in ("mlp", "attn") for group in groups for cell in group.cells):
        width = (
            "one by one" if window == 1 else f"in windows of {window} layers around the named one"
        )
        sentences.append(f"MLP and attention outputs are restored {width}.")
    if settings["mode"] == "ablate":
        sentences.append(
            "Corrupted states are put into the clean run: effects are what that costs."
        )
    if settings["severed"]:
        sentences.append(f"Later outputs of {settings['severed']} stay as in the corrupted run.")
    if settings["run"] == "free_running":
        sentences.append("The corrupted prompt's own generation is traced (free running).")
    if settings["guidance"]:
        sentences.append(f"Guidance {settings['guidance']:g}.")
    return " ".join(sentences)


def _describe_statistics(counts: Rows) -> str:
    seeds = max(row["seeds"] for row in counts)
    averaged = "phrasings" if seeds == 1 else f"phrasings and {seeds} training seeds"
    return (
        f"Effects of a fact's {averaged} are averaged first; intervals are 95 % t intervals over "
        "facts. Placebos are a prompt token that is not the subject's, another fact's state put in "
        "at the subject, and the same restored run read for another answer. An effect is clear if "
        "its interval lies above 0 and above those of all placebos that were measured."
    )
