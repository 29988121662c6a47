"""The section of traces: what the subject's states give back, in sentences, figures and tables."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from unmask.blocks import labels, tidy
from unmask.blocks.blocks import (
    Column,
    Finding,
    Fold,
    Notice,
    Number,
    ReportBlock,
    Section,
    Table,
    Text,
    Verdict,
)
from unmask.measures import trace_figures as figures
from unmask.measures.measure import Rows
from unmask.measures.result import Result, open_table
from unmask.measures.trace_effects import TOTAL
from unmask.measures.trace_shares import fold_bands, say_chosen_share, tabulate_shares
from unmask.measures.trace_summary import list_groups, name_cell
from unmask.measures.trace_words import REPLACED, RESTORING, Words, choose_words
from unmask.tracing.settings import WHOLE_ANSWER, WHOLE_SUBJECT
from unmask.tracing.table import ONE_TOKEN, RESULT

TITLE = "Which states bring answers back"
FEW = 30
"""Facts of one's own below which a page says that models share few."""
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
    summary, settings, verdicts = result.summary, result.settings.to_record(), result.verdicts
    groups, counts = list_groups(summary["averages"]), summary["counts"]
    kinds = dict(tidy.distinct(counts, "model", "kind"))
    metric, method = settings["metric"], _describe_method(groups, counts, settings)
    words = choose_words(settings["mode"])
    by_model = tidy.group_by(groups, "model")
    firsts = [by_model[model][0] for model in kinds if model in by_model]
    stages = tidy.distinct(groups, "stage")
    named = [group for group in groups if not labels.is_numbered(group["stage"])]
    texts = [figures.draw_text_figure(summary["texts"], metric)] if summary["texts"] else []
    blocks: list[ReportBlock] = []
    if texts and sum(row["prompts"] for row in counts) == 1:
        blocks += [_state_text(groups[0], summary["texts"], verdicts, metric), *texts]
    else:
        shares = summary.get("shares", ())
        blocks += [_state(group, verdicts, settings, shares) for group in firsts[:2]]
        blocks += map(Notice, _list_notices(result))
        blocks.append(figures.draw_roles(summary["averages"], kinds, metric, method, words))
        blocks += [figures.draw_peaks(named, kinds, metric)] if named else []
        blocks.append(figures.tabulate_groups(result, groups, metric, words))
        blocks += [figures.tabulate_steps(groups, metric)] if len(stages) > 1 else []
        blocks += _tabulate_together(summary["averages"], metric, words)
        blocks += tabulate_shares(shares, metric, words)
        blocks += _tabulate_further(summary, groups, metric)
        blocks += [figures.tabulate_counts(counts), _explain_scores(groups, counts)]
        blocks += [Fold("Single texts, token by token", texts)] if texts else []
        blocks.append(figures.fold_peaks(result, groups, words))
        blocks += figures.fold_tests(result, metric)
        blocks += fold_bands(summary)
    blocks.append(Fold("Method", [Text(method), Text(_describe_statistics(counts))]))
    blocks.append(Fold("What an indirect effect does and does not say", [Text(LIMITS)]))
    title = TITLE if words is RESTORING else "What answers lose when states are replaced"
    if len(stages) > 1 or len(named) < len(groups):
        is_named = len(named) == len(groups)
        title += ", from the first step to the last" if is_named else ", step by step"
    return Section("trace", title, blocks, list(_make_numbers(firsts, verdicts, metric, words)))


def _tabulate_together(averages: Rows, metric: str, words: Words) -> Iterator[Table]:
    """Several positions at once, and single answer tokens, each at its best layer."""
    rows = []
    cells = [row for row in averages if row["control"] in (RESULT, ONE_TOKEN)]
    for group in tidy.group_by(cells, "model", "split", "corruption", "stage", "control").values():
        (total,) = (row["mean"] for row in group if row["part"] == TOTAL)
        wanted = [row for row in group if row["layer"] >= 0 and row["head"] < 0]
        if group[0]["control"] == RESULT:
            wanted = [row for row in wanted if row["role"] in (WHOLE_SUBJECT, WHOLE_ANSWER)]
        for own in tidy.group_by(wanted, "part", "role").values():
            best = max(own, key=lambda row: row["mean"])
            rows.append({**best, "share": best["mean"] / total if total else None})
    if rows:
        yield tidy.tabulate(
            "together",
            f"All subject tokens or all positions of the answer {words.done} together; scored by "
            "the whole answer, or by one of its tokens at a time (then a single position is its "
            "own)",
            rows,
            {
                "model": "model",
                "asked": tidy.name_asked,
                "step": lambda row: labels.name_stage(row["stage"]),
                "scored": lambda row: (
                    "whole answer" if row["control"] == RESULT else "single tokens"
                ),
                words.done: lambda row: (
                    f"{labels.name_part(row['part'])}, {labels.ROLES[row['role']]}"
                ),
                "layer": figures.name_layer,
                Column(f"{words.effect}, {labels.name_metric(metric)}", is_short=True): (
                    tidy.to_interval
                ),
                Column("of lost, %", digits=0, is_percent=True): "share",
                "facts": "facts",
            },
            most=24,
        )


def _tabulate_further(summary: Mapping[str, Rows], groups: Rows, metric: str) -> Iterator[Table]:
    """What is lost, and what the subject's best state gives back, in every metric of the run."""
    further = summary.get("further", ())
    if not further:
        return
    keys = ("model", "split", "corruption", "stage", "control", "part", "layer", "head", "role")
    values = {(*(row[key] for key in keys), row["metric"]): row for row in further}
    metrics = tidy.distinct(further, "metric")
    rows = [
        {**cell, "what": what}
        for group in groups
        for what, cell in (("lost", group["total"]), ("best at the subject", group["best"]))
        if cell is not None
    ]

    def read(metric: str) -> tidy.Get:
        def get(row: tidy.Record) -> Any:
            cell = values.get((*(row[key] for key in keys), metric))
            return None if cell is None else tidy.to_interval(cell)

        return get

    yield tidy.tabulate(
        "further",
        "The same cells in every metric; the best layer is that of the first one",
        rows,
        {
            "model": "model",
            "asked": tidy.name_asked,
            "step": lambda row: labels.name_stage(row["stage"]),
            "": "what",
            "layer": lambda row: None if row["layer"] < 0 else figures.name_layer(row),
            Column(labels.name_metric(metric), is_short=True): tidy.to_interval,
        }
        | {Column(labels.name_metric(each), is_short=True): read(each) for each in metrics},
    )


def _list_notices(result: Result) -> Iterator[str]:
    """What is not here: facts that a model does not recall, single traces of older runs."""
    from unmask.data.sources import OWN

    for model, rows in tidy.group_by(result.summary["counts"], "model").items():
        kept = {row["split"] for row in rows if row["kept"]}
        empty = [s for s in tidy.distinct(rows, "split") if s not in kept]
        if empty:
            yield (
                f"{model}: no fact was left to trace of those asked "
                f"{'; '.join(map(labels.name_split, empty))}. The table of facts says why."
            )
    own = tidy.select(result.summary["counts"], split=OWN)
    if len(tidy.distinct(own, "model")) > 1 and (both := own[0].get("shared", FEW)) < FEW:
        yield (
            f"{labels.count(both, 'fact')} traced in every model: fewer than {FEW}, so that only "
            "large differences between models could be seen."
        )
    if not open_table(result.tables, "trace").num_rows:
        yield (
            "The single traces of this run are not here. Averages and tests are those that version "
            "0.1 stored, with its bootstrap intervals."
        )


def _state(
    group: tidy.Record,
    verdicts: Mapping[str, Verdict],
    settings: Mapping[str, Any],
    shares: Rows,
) -> Finding:
    """What a model loses, and which of the subject's states gives back most."""
    metric, way, cell = settings["metric"], labels.name_split(group["split"]), group["best"]
    taken = (
        f"In {group['model']}, {'asked' if '→' in way else 'on'} {way}, hiding "
        f"{HIDDEN[settings['source']]} takes {_format(group['total'], metric)} from the answer's "
        f"{_name_score(metric)}"
    )
    verdict = verdicts[name_cell(group["total"])]
    if verdict.outcome in ("unsettled", "below"):
        return Finding(f"{taken}: nothing is clearly lost, so nothing can be given back.", verdict)
    if cell is None:
        return Finding(f"{taken}.", verdict)
    verdict = verdicts[name_cell(cell)]
    beside = {
        "above": "more than every placebo",
        "unsettled": "which a placebo could give as well",
        "too few": f"on {labels.count(verdict.facts, 'fact')}, too few to tell it from placebos",
    }[verdict.outcome]
    what = "state" if cell["part"] == "resid" else labels.name_part(cell["part"])
    one, among, where = "one", ", of the subject's tokens,", f"the {labels.ROLES[cell['role']]}, "
    if cell["role"] == WHOLE_SUBJECT:  # its states were put back together
        what = "states" if what == "state" else what
        one, among, where = "the subject's", "", ""
    does = f"Putting back {one} clean {what} gives back most"
    if settings["mode"] != "restore":
        does = f"{REPLACED[settings['mode']][1].format(f'{one} {what}')} costs most"
    share = cell["share"]
    of_lost = "" if share is None else f", {tidy.say_share(share)} of what was lost"
    text = (
        f"{taken}. {does}{among} at {where}layer {figures.name_layer(cell)}: "
        f"{_format(cell, metric)}{of_lost}, {beside}."
    )
    return Finding(f"{text}{say_chosen_share(shares, cell)}", verdict)


def _state_text(
    group: tidy.Record, texts: Rows, verdicts: Mapping[str, Verdict], metric: str
) -> Finding:
    """The token and the layer of a single text whose state gives back most."""
    row = next((row for row in texts if row["part"] == "resid"), texts[0])
    effect, i, layer = max(
        (effect, i, layer)
        for i, line in enumerate(row["effects"])
        for layer, effect in enumerate(line)
    )
    back = {"mean": effect, "low": math.nan, "high": math.nan}
    text = (
        f"In {group['model']}, hiding the subject takes {_format(group['total'], metric)} from the "
        f"{_name_score(metric)} of {row['object'].strip()!r}. Most is given back at "
        f"{row['piece'][i].strip()!r} (position {row['positions'][i]}), layer {layer}: "
        f"{_format(back, metric)}."
    )
    return Finding(text, verdicts[name_cell(group["total"])])


def _name_score(metric: str) -> str:
    return labels.name_metric(metric).partition(" (")[0]


def _format(row: tidy.Record, metric: str) -> str:
    """An effect with its unit: 2.07 nats [1.5, 2.6]."""
    unit = labels.UNITS.get(metric, "")
    ends = "" if math.isnan(row["low"]) else f" [{row['low']:.3g}, {row['high']:.3g}]"
    return f"{row['mean']:.3g}{unit}{ends}".replace("-", "−")


def _make_numbers(
    groups: Rows, verdicts: Mapping[str, Verdict], metric: str, words: Words
) -> Iterator[Number]:
    """The first model's best subject state, where it is clear."""
    for group in groups[:1]:
        cell = group["best"]
        if cell is not None and verdicts[name_cell(cell)].is_clear:
            lost = f"{group['total']['mean']:.3g}{labels.UNITS.get(metric, '')}"
            is_role = cell["role"] == WHOLE_SUBJECT
            which = "the subject's states" if is_role else "one state of the subject"
            yield Number(
                f"given back by {which}" if words is RESTORING else f"cost of {which}",
                tidy.say_share(cell["share"]),
                f"of {lost} lost: {group['model']}, {labels.name_split(group['split'])}, "
                f"{labels.ROLES[cell['role']]}, layer {cell['layer']}",
            )


def _explain_scores(groups: Rows, counts: Rows) -> Text:
    """What the probability of an answer is the product of, and where models differ in it."""
    parts = []
    for model, joint in tidy.distinct(counts, "model", "joint"):
        known = [g["asked"]["mean"] for g in groups if g["model"] == model and g["asked"]]
        ends = dict.fromkeys(f"{each(known):.0f}" for each in (min, max)) if known else ()
        size = f", {' to '.join(ends)} tokens" if ends else ""
        parts.append(f"in {model} {labels.JOINTS[joint]}{size}")
    text = f"p is the probability of the whole answer at the first step traced: {'; '.join(parts)}."
    joints = tidy.distinct(counts, "joint")
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


def _describe_method(groups: Rows, counts: Rows, settings: Mapping[str, Any]) -> str:
    """How the facts were traced, in sentences."""
    hidden = " or ".join(tidy.group_by(counts, labels.name_corruption))
    window, source = counts[0]["window"], settings["source"]
    sentences = [f"{HIDDEN[source].capitalize()} is hidden by {hidden}."]
    if source != "subject":
        sentences = [f"Hidden are {HIDDEN[source]}, the subject by {hidden}."]
    parts = {cell["part"] for group in groups for cell in group["peaks"]}
    if window and parts & {"mlp", "attn"}:
        width = f"in windows of {window} layers around the named one"
        width = "one by one" if window == 1 else width
        sentences.append(f"MLP and attention outputs are restored {width}.")
    if settings["mode"] != "restore":
        states = REPLACED[settings["mode"]][0]
        sentences.append(f"{states} are put into the clean run: effects are what that costs.")
    if settings["severed"]:
        sentences.append(f"Later outputs of {settings['severed']} stay as in the run without it.")
    if settings["run"] == "free_running":
        sentences.append("The corrupted prompt's own generation is traced (free running).")
    if settings["guidance"]:
        sentences.append(f"Guidance {settings['guidance']:g}.")
    return " ".join(sentences)


def _describe_statistics(counts: Rows) -> str:
    seeds = max(row["seeds"] for row in counts)
    averaged = "phrasings" if seeds == 1 else f"phrasings and {seeds} training seeds"
    alone = "" if seeds == 1 else ", and say nothing of other seeds"
    return (
        f"Effects of a fact's {averaged} are averaged first; intervals are 95 % t intervals over "
        f"facts{alone}. Placebos are a prompt token that is not the subject's, another fact's "
        "state (or a state as far away in a random direction) put in at the subject and at the "
        "answer's rows, and the same restored run read for another answer. An effect is clear if "
        "its interval lies above 0 and above those of all placebos that were measured. Shares are "
        "ratios of means over facts, their intervals by the delta method; layers are chosen by "
        "two-fold cross-fitting over a hash of the fact."
    )
