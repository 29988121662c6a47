"""The section of traces: what the subject's states give back, in sentences, figures and tables."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from unmask.blocks.blocks import (
    Block,
    Finding,
    Fold,
    Notice,
    Number,
    Section,
    Text,
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
)
from unmask.blocks.tidy import distinct, to_interval
from unmask.evaluation.statistics import Interval
from unmask.measures.measure import Rows
from unmask.measures.result import Result
from unmask.measures.trace_figures import draw_peaks, draw_roles, draw_texts, name_layer
from unmask.measures.trace_summary import Group, list_groups
from unmask.measures.trace_tables import (
    find_share,
    fold_peaks,
    fold_tests,
    tabulate_counts,
    tabulate_groups,
    tabulate_steps,
)

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
    notices = [Notice(text) for text in _list_notices(result)]
    texts = [draw_texts(summary["texts"], metric)] if summary["texts"] else []
    blocks: list[Block] = []
    if texts and sum(row["prompts"] for row in counts) == 1:
        blocks += [_state_text(groups[0], summary["texts"], result.verdicts, metric), *texts]
    else:
        blocks += [_state(group, result.verdicts, settings) for group in firsts[:2]]
        blocks += [*notices, draw_roles(groups, kinds, metric, how)]
        named = [group for group in groups if not group.stage.isdecimal()]
        blocks += [draw_peaks(named, kinds, metric)] if named else []
        blocks += [tabulate_groups(groups, result.verdicts, metric)]
        blocks += [tabulate_steps(groups, metric)] if _has_steps(groups) else []
        blocks += [tabulate_counts(counts), _explain_scores(groups, counts), *texts]
        blocks.append(fold_peaks(groups, result.verdicts))
        blocks += fold_tests(summary["tests"], result.verdicts, metric)
    blocks.append(Fold("Method", [Text(how), Text(_describe_statistics(counts))]))
    blocks.append(Fold("What an indirect effect does and does not say", [Text(LIMITS)]))
    numbers = list(_make_numbers(firsts, result.verdicts, metric))
    return Section("trace", _make_title(groups), blocks, numbers)


def _has_steps(groups: Sequence[Group]) -> bool:
    return len({group.stage for group in groups}) > 1


def _make_title(groups: Sequence[Group]) -> str:
    if any(group.stage.isdecimal() for group in groups):
        return f"{TITLE}, step by step"
    return f"{TITLE}, from the first step to the last" if _has_steps(groups) else TITLE


def _list_notices(result: Result) -> Iterator[str]:
    """What is not here: facts that a model does not recall, single traces of older runs."""
    counts = result.summary["counts"]
    for model in distinct(counts, "model"):
        rows = [row for row in counts if row["model"] == model]
        kept = {row["split"] for row in rows if row["kept"]}
        empty = [name_split(split) for split in distinct(rows, "split") if split not in kept]
        if empty:
            yield (
                f"{model}: no fact was left to trace of those asked {'; '.join(empty)}. The table "
                "of facts says why."
            )
    if not result.tables["trace"].num_rows:
        yield (
            "The single traces of this run are not here. Averages and tests are those that version "
            "0.1 stored, with its bootstrap intervals."
        )


def _state(group: Group, verdicts: Mapping[str, Verdict], settings: Mapping[str, Any]) -> Finding:
    """What a model loses, and which of the subject's states gives back most."""
    metric, lost = settings["metric"], to_interval(group.total)
    way = name_split(group.split)
    taken = (
        f"In {group.model}, {'asked' if '→' in way else 'on'} {way}, hiding "
        f"{HIDDEN[settings['source']]} takes {_format(lost, metric)} from the answer's "
        f"{_name_score(metric)}"
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
        f"{_format(to_interval(cell), metric)}, {find_share(cell, group):.0%} of what was lost, "
        f"{beside}."
    )
    return Finding(text, verdict)


def _state_text(group: Group, texts: Rows, verdicts: Mapping[str, Verdict], metric: str) -> Finding:
    """Of a single text, the token and the layer whose state gives back most."""
    row = next((row for row in texts if row["part"] == "resid"), texts[0])
    effect, i, layer = max(
        (effect, i, layer)
        for i, line in enumerate(row["effects"])
        for layer, effect in enumerate(line)
    )
    lost = to_interval(group.total)
    text = (
        f"In {group.model}, hiding the subject takes {_format(lost, metric)} from the "
        f"{_name_score(metric)} of {row['object'].strip()!r}. Most is given back at "
        f"{row['piece'][i].strip()!r} (position {row['positions'][i]}), layer {layer}: "
        f"{_format(Interval(effect, math.nan, math.nan), metric)}."
    )
    return Finding(text, verdicts[group.claim(group.total)])


def _name_score(metric: str) -> str:
    return METRICS.get(metric, metric).partition(" (")[0]


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
                f"{find_share(cell, group):.0%}",
                f"of {lost} lost: {group.model}, {name_split(group.split)}, "
                f"{ROLES[cell['role']]}, layer {cell['layer']}",
            )


def _explain_scores(groups: Sequence[Group], counts: Rows) -> Text:
    """What the probability of an answer is the product of, and where models differ in it."""
    parts = []
    for model, joint in distinct(counts, "model", "joint"):
        tokens = [group.asked for group in groups if group.model == model]
        known = [number for number in tokens if not math.isnan(number)]
        ends = dict.fromkeys(f"{each(known):.0f}" for each in (min, max)) if known else ()
        size = f", {' to '.join(ends)} tokens" if ends else ""
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
