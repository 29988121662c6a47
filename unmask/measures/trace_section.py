"""The section of traces: what the subject's states give back, in sentences, figures and tables."""

from collections.abc import Iterator, Mapping
from typing import Any

from unmask.blocks import blocks, labels, tidy
from unmask.evaluation.statistics import ALPHA, ENOUGH
from unmask.measures.result import Result
from unmask.measures.trace_effects import TOTAL
from unmask.measures.trace_summary import (
    GROUP,
    HIDDEN,
    describe_setup,
    find_best_subject,
    rank_stage,
)
from unmask.results.summaries import Rows, mark_outcome
from unmask.tracing.table import ASKED, FLOW, ONE_TOKEN, RESULT

Setup = Mapping[str, Any]
"""A run's settings, as its record has them."""
Columns = dict[str | blocks.Column, tidy.Get]
TITLE = "Which states bring answers back"
JOINTS = (
    "Answers of these models are not scored in one way: compare where their effects are, not how "
    "large they are; `--joint chain_rule` scores both alike."
)
SHARE, BEYOND = (
    tuple(f"{which}share{end}" for end in ("", "_low", "_high")) for which in ("", "beyond_")
)
COUNTS: Columns = {
    "model": "model",
    "asked": tidy.name_asked,
    "subject hidden by": labels.name_corruption,
    "prompts": "prompts",
    "recalled of considered": lambda row: (
        None if row["considered"] is None else f"{row['recalled']} of {row['considered']}"
    ),
    "traced": "kept",
    "facts traced in every model": "shared",
    "left out": lambda row: row["left_out"] or None,
    "answers scored by": lambda row: row["joint"].replace("_", " "),
    blocks.Column("p of the answer", is_short=True): "clean",
}
_CELL = ("model", "split", "corruption", "stage", "part", "role")


def describe(result: Result) -> blocks.Section:
    """The findings, the maps, the tables of what is lost and given back; methods folded away."""
    summary, settings = result.summary, result.settings.to_record()
    peaks, counts, alike = summary["peaks"], summary["counts"], summary["alike"]
    by_model = tidy.group_by(peaks, "model").values()
    firsts = [next(iter(tidy.group_by(rows, *GROUP).values())) for rows in by_model]
    method = describe_setup(counts, settings)
    shown: list[blocks.ReportBlock] = [
        *(state_group(rows, settings, summary["shares"]) for rows in firsts[:2]),
        *([blocks.Notice(JOINTS)] if len(tidy.distinct(counts, "joint")) > 1 else []),
        draw_roles(summary["averages"], settings, method),
        _tabulate_totals(summary, settings),
        *_tabulate_shares(summary, settings),
        tidy.tabulate("facts", "Facts that were traced", counts, COUNTS),
    ]
    if summary["texts"]:
        texts = draw_text_maps(summary["texts"], settings)
        is_one = sum(row["prompts"] for row in counts) == 1
        folded = blocks.Fold("Single texts, token by token", [texts])
        shown.insert(1 if is_one else len(shown), texts if is_one else folded)
    pairs = [*tabulate_alike(alike)] if alike else []
    pairs += _tabulate_tests(summary["tests"], settings)
    if pairs:
        shown.append(blocks.Fold("Differences between models and ways of asking", pairs))
    paragraphs = [method, *(result.measure.method or "").split("\n\n")]
    texts = [blocks.Text(" ".join(each.split())) for each in paragraphs]
    shown.append(blocks.Fold("Method", texts))
    stages, title = tidy.distinct(peaks, "stage"), TITLE
    if len(stages) > 1:
        by_name = not any(map(labels.is_numbered, stages))
        title += ", from the first step to the last" if by_name else ", step by step"
    return blocks.Section("trace", title, shown)


def _choose(settings: Setup, restored: str, replaced: str) -> str:
    """One of two words: for states that are put back, or for what takes their place."""
    return restored if settings["mode"] == "restore" else replaced


def state_group(rows: Rows, settings: Setup, shares: Rows) -> blocks.Finding:
    """What a group loses, and which of the subject's states gives back most."""
    total, cell, way = rows[0], find_best_subject(rows), labels.name_split(rows[0]["split"])
    text = (
        f"In {total['model']}, {'asked' if '→' in way else 'on'} {way}, hiding "
        f"{HIDDEN[settings['source']]} takes {_say(total, settings)} from the answer's "
        f"{labels.name_metric(settings['metric']).partition(' (')[0]}"
    )
    if total["outcome"] in ("unsettled", "below"):
        text += ": nothing is clearly lost, so nothing can be given back."
        return blocks.Finding(text, total["outcome"])
    if cell is None:
        return blocks.Finding(f"{text}.", total["outcome"])
    beside = {
        "above": "more than every placebo",
        "unsettled": "which a placebo could give as well",
        "too few": f"on {labels.count(cell['facts'], 'fact')}, too few to tell it from placebos",
    }[cell["outcome"]]
    what = "state" if cell["part"] == "resid" else labels.name_part(cell["part"])
    place = f"{what} of the {labels.ROLES[cell['role']]} at layer {cell['layer']}"
    place += f", head {cell['head']}," if cell["head"] >= 0 else ""
    does = _choose(settings, f"The clean {place} gives back", f"Replacing the {place} costs")
    share = "" if cell["share"] is None else f", {tidy.say_share(cell['share'])} of what was lost"
    text += f". {does} most of the subject's: {_say(cell, settings)}{share}, {beside}."
    chosen = tidy.select(shares, control=RESULT, **{name: cell[name] for name in _CELL})
    if chosen and chosen[0]["facts"] >= ENOUGH:
        fitted = tidy.say(tidy.to_interval(chosen[0], SHARE), "%")
        text += f" At layers that other facts chose ({_name_layers(chosen[0])}) it is {fitted}."
    return blocks.Finding(text, cell["outcome"])


def _say(row: tidy.Record, settings: Setup) -> str:
    """An effect with its unit: 2.07 nats [1.5, 2.6]."""
    unit = labels.UNITS.get(settings["metric"], "")
    ends = "" if row["low"] != row["low"] else f" [{row['low']:.3g}, {row['high']:.3g}]"
    return f"{row['mean']:.3g}{unit}{ends}".replace("-", "−")


def draw_roles(averages: Rows, settings: Setup, method: str) -> blocks.Figure:
    """Average effect by role and layer, a panel for each model; of heads the strongest."""
    effects = [row for row in averages if row["control"] == RESULT and row["layer"] >= 0]
    cells = tidy.group_by(effects, "split", "corruption", "stage", "part", "model", "role", "layer")
    strongest = [max(heads, key=lambda row: row["mean"]) for heads in cells.values()]
    rows: list[tidy.Record] = []
    for view in tidy.group_by(strongest, "split", "corruption", "stage", "part").values():
        known = tidy.distinct(view, "role")
        for members in tidy.group_by(view, "model").values():
            # A role that only another model has is an empty line.
            empty, lines = (
                {**members[0], **dict.fromkeys(tidy.ENDS)},
                tidy.group_by(members, "role"),
            )
            for role in (each for each in labels.ROLES if each in known):
                rows += lines.get(role, [empty | {"role": role, "facts": 0}])
    gives = "Purple states give the answer back, orange ones take it away."
    gives = _choose(settings, gives, "Purple: the answer loses by it, orange: it gains.")
    return _draw_map(
        rows,
        "effects",
        "Average effect by role and layer",
        f"Averages over facts with 95 % intervals. {method} {gives}",
        y=lambda row: labels.ROLES[row["role"]],
        note=lambda row: labels.count(row["facts"], "fact"),
        choose=[tidy.Choose("restored", "part", labels.name_part)],
        ylabel=f"average indirect effect, {labels.name_metric(settings['metric'])}",
    )


def draw_text_maps(texts: Rows, settings: Setup) -> blocks.Figure:
    """Single texts: tokens by layers, what is restored side by side, a slider over the steps."""
    cells = [
        {**row} | {"stage": str(row["step"]), "layer": layer, "effect": effect}
        for row in texts
        for layer, effect in enumerate(row["effects"])
    ]
    return _draw_map(
        cells,
        "texts",
        "One text, token by token",
        "Starred: the subject. → marks the answer, ░ what is still masked at that step. In "
        "the title, the answer and its score, clean → with the subject hidden.",
        y=_spell,
        ends=("effect",),
        note=lambda row: labels.ROLES.get(row["role"], row["role"]),
        panel=lambda row: (
            f"{labels.name_part(row['part'])}: {row['object'].strip()}, "
            f"{row['clean']:.3g} → {row['corrupted']:.3g}".replace("-", "−")
        ),
        choose=[
            tidy.Choose("model", "model"),
            tidy.Choose("text", "text", lambda number: f"text {number}", sorted),
        ],
        ylabel=f"effect, {labels.name_metric(settings['metric'])}",
    )


def _spell(row: tidy.Record) -> str:
    """A token as it is seen at the step; its position makes it unique."""
    # A causal model is given the answer's earlier tokens.
    is_masked = not labels.is_causal(row["kind"]) and row["written"] >= row["step"]
    piece = "░" if is_masked else row["piece"].strip() or "·"
    arrow, star = "→ " if row["in_answer"] else "", "*" if row["in_subject"] else ""
    return f"{row['position']} {arrow}{piece}{star}"


def _draw_map(rows: Rows, *about: str, choose: list[tidy.Choose], **more: Any) -> blocks.Figure:
    """A map over layers, its step to choose: a slider where they are numbers that follow each
    other. The corruption is named where there are several."""
    rows = [{**row, "at": (row["corruption"], row["stage"])} for row in rows]
    has_several = len(tidy.distinct(rows, "corruption")) > 1
    is_slider = not has_several and all(labels.is_numbered(str(row["stage"])) for row in rows)

    def name(at: tuple[str, str]) -> str:
        hidden = f", {labels.CORRUPTIONS.get(at[0], at[0])}" if has_several else ""
        return at[1] if is_slider else labels.name_stage(at[1]) + hidden

    def arrange(options: Any) -> list[Any]:
        return sorted(options, key=lambda at: (at[0], rank_stage(at[1])))

    step = tidy.Choose("step", "at", name, arrange, is_slider)
    more |= {"choose": [tidy.ASKED, *choose, step], "x": "layer", "xlabel": "layer"}
    return tidy.draw_map(rows, *about, is_signed=True, **more)


def _name_groups(rows: Rows) -> Columns:
    """What tells groups apart: corruption and step only where there are several."""
    columns: Columns = {"model": "model", "asked": tidy.name_asked}
    if len(tidy.distinct(rows, "corruption")) > 1:
        columns["hidden by"] = labels.name_corruption
    if len(tidy.distinct(rows, "stage")) > 1:
        columns["step"] = lambda row: labels.name_stage(row["stage"])
    return columns


def _name_place(row: tidy.Record) -> str:
    return f"{labels.name_part(row['part'])}, {labels.ROLES[row['role']]}"


def _name_layers(row: tidy.Record) -> str:
    """The layers (and heads) that the two halves of the facts chose."""
    sides = ((row["layer"], row["head"]), (row["other_layer"], row["other_head"]))
    return " / ".join(f"{at}, head {head}" if head >= 0 else str(at) for at, head in sides)


def _tabulate_totals(summary: Mapping[str, Rows], settings: Setup) -> blocks.Table:
    """What is asked and lost in each group, in every metric, and where p comes from."""
    rows = tidy.select(summary["peaks"], part=TOTAL)
    ends = [*summary["averages"], *summary.get("further", ())]
    ends = [{"metric": settings["metric"], **row} for row in ends if row["layer"] < 0]
    key = (*GROUP, "part", "role", "metric")
    cells = {
        tuple(row[name] for name in key): tidy.to_interval(row)
        for row in tidy.select(ends, control=RESULT)
    }

    def read(part: str, role: str, metric: str) -> tidy.Get:
        return lambda row: cells.get((*(row[name] for name in GROUP), part, role, metric))

    columns = _name_groups(rows) | {"facts": "facts"}
    for metric in tidy.distinct(ends, "metric"):
        head = f"lost, {labels.name_metric(metric)}"
        columns[blocks.Column(head, is_short=True)] = read(TOTAL, "", metric)
    counted = {blocks.Column("tokens asked", 1): (ASKED, "")}
    for role, name in (("subject", "the subject"), ("committed", "written tokens")):
        counted[blocks.Column(f"p from {name}", is_short=True)] = (FLOW, role)
    for head, (part, role) in counted.items():
        if any(row["part"] == part for row in ends):
            columns[head] = read(part, role, settings["metric"])
    caption = (
        "What hiding the subject takes; a step asks for the tokens that are still masked, so "
        "compare steps with as many facts"
    )
    return tidy.tabulate("groups", caption, rows, columns, mark_outcome)


def _tabulate_shares(summary: Mapping[str, Rows], settings: Setup) -> Iterator[blocks.Table]:
    """Each role at the layers that other facts chose, the largest shares of a group first; bold
    where its best layer is above every placebo."""
    results = [row for row in summary["shares"] if row["control"] in (RESULT, ONE_TOKEN)]
    controls = [row for row in summary["shares"] if row["control"] not in (RESULT, ONE_TOKEN)]
    placebos = {
        (RESULT, *key): max(
            (tidy.to_interval(row, SHARE) for row in rows), key=lambda value: value.mean
        )
        for key, rows in tidy.group_by(controls, *_CELL).items()
    }
    outcomes = {_locate(row): row["outcome"] for row in summary["peaks"]}
    head = f"{_choose(settings, 'given back', 'cost')}, {labels.name_metric(settings['metric'])}"
    columns = _name_groups(results) | {
        "scored": lambda row: "whole answer" if row["control"] == RESULT else "single tokens",
        _choose(settings, "restored", "replaced"): _name_place,
        "layers": _name_layers,
        blocks.Column(head, is_short=True): tidy.to_interval,
        blocks.Column("of lost, %", 0, is_percent=True): lambda row: tidy.to_interval(row, SHARE),
        blocks.Column("highest placebo, %", 0, is_percent=True): lambda row: placebos.get(
            _locate(row)
        ),
        blocks.Column("beyond its embedding, %", 0, is_percent=True): lambda row: (
            None if row["beyond_share"] is None else tidy.to_interval(row, BEYOND)
        ),
        "facts": "facts",
    }
    groups = tidy.group_by(results, *_CELL[:4]).values()
    rows = [row for rows in groups for row in sorted(rows, key=lambda row: -row["share"])]
    caption = (
        "Each role, at the layers that are best for other facts: the first is read on one half of "
        "the facts and was chosen on the other half, the second the other way round. Bold: at the "
        "best layer for all facts above 0 and above every placebo"
    )

    if rows:
        rows = [{**row, "outcome": outcomes.get(_locate(row), "unsettled")} for row in rows]
        yield tidy.tabulate("shares", caption, rows, columns, mark_outcome, most=24)


def _locate(row: tidy.Record) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("control", *_CELL))


_SIDES: Columns = {
    "one": lambda row: f"{row['model']}, {tidy.name_asked(row)}",
    "other": lambda row: f"{row['other_model']}, {labels.name_split(row['other_split'])}",
    "at": lambda row: f"{labels.name_stage(row['stage'])}, {labels.name_corruption(row)}",
    "facts": lambda row: f"{row['facts']} {'' if row['paired'] else 'un'}paired",
}


def tabulate_alike(pairs: Rows) -> tuple[blocks.Text, blocks.Table]:
    """Pairs of groups: how many bands of layers differ and are alike, and what that is."""
    margin = f"±{pairs[0]['margin']:g} of the total effect"
    text = (
        "Shares of the total effect, by part, role and third of the layers; the unit is a fact. "
        f"Alike: two one-sided tests at {ALPHA} put a difference within {margin}. Where neither "
        "that nor a difference (permutation test, Holm over a pair) is shown, no difference was "
        "detected, which is not the same. Power: how often such a test would pass without any "
        "difference."
    )
    columns: Columns = {name: name for name in ("compared", "differ", "alike", "neither")}
    columns[blocks.Column("smallest margin for all")] = "smallest_margin"
    columns |= {blocks.Column("least power"): "power", "": "together"}
    caption = f"Which groups are alike, margin {margin}"
    table = tidy.tabulate("alike", caption, pairs, _SIDES | columns, most=24)
    return blocks.Text(text), table


def _tabulate_tests(tests: Rows, settings: Setup) -> Iterator[blocks.Table]:
    """Differences between groups, what passes its test first."""
    rows = [row for row in tests if row["part"] != FLOW]
    if not rows:
        return
    rows.sort(key=lambda row: (mark_outcome(row) == "plain", row["p_holm"]))
    head = blocks.Column(f"difference, {labels.name_metric(settings['metric'])}", is_short=True)
    columns: Columns = {
        "what": lambda row: "total effect" if row["part"] == TOTAL else _name_place(row),
        head: tidy.to_interval,
        blocks.Column("p (Holm)", digits=3): "p_holm",
    }
    caption = (
        "Mean effects over layers, one group minus the other; bold: passes a permutation test by "
        "fact, corrected within each pair of groups"
    )
    yield tidy.tabulate("tests", caption, rows, _SIDES | columns, mark_outcome)
