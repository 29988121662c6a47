"""The section of traces: what the subject's states give back, in sentences, figures and tables."""

from collections.abc import Iterator, Mapping
from textwrap import shorten
from typing import Any

from unmask.blocks import labels, tidy
from unmask.blocks.blocks import (
    Column,
    Figure,
    Finding,
    Fold,
    Notice,
    Number,
    ReportBlock,
    Section,
    Table,
    Text,
)
from unmask.evaluation.statistics import ALPHA, ENOUGH, Interval
from unmask.measures.result import Result
from unmask.measures.trace_summary import GROUP, PLACEBO, find_best_subject, rank_stage
from unmask.results.summaries import Rows, mark_outcome
from unmask.tracing.averages import TOTAL
from unmask.tracing.table import ASKED, FLOW, ONE_TOKEN, RESULT

Settings = Mapping[str, Any]
"""A run's settings, as its record has them."""
Columns = dict[str | Column, tidy.Get]
TITLE = "Which states bring answers back"
FEW = 30
"""Facts of one's own below which a page says that models share few."""
HIDDEN = {
    "subject": "the subject",
    "committed": "the answer tokens written so far",
    "both": "the subject and the answer tokens written so far",
}
REPLACED = {
    "ablate": "Corrupted states",
    "zero": "Zeros",
    "mean": "Means over the positions of all facts' texts",
}
"""What is put into the clean run, by mode."""
SHARE, BEYOND = ("share", "share_low", "share_high"), ("beyond_share", "beyond_share_low", "beyond_share_high")  # fmt: skip
_CELL = ("model", "split", "corruption", "stage", "part", "role")
_PAIR = ("model", "split", "other_model", "other_split", "corruption", "stage")
_MOST = 24


def describe(result: Result) -> Section:
    """The findings, the maps, the tables of facts and effects; methods folded away."""
    summary, settings = result.summary, result.settings.to_record()
    peaks, counts, texts = summary["peaks"], summary["counts"], summary["texts"]
    groups = tidy.group_by(peaks, *GROUP).values()
    firsts = [*{rows[0]["model"]: rows for rows in [*groups][::-1]}.values()][::-1]
    drawn = [draw_texts(texts, settings)] if texts else []
    method, blocks = _describe_method(counts, settings), list[ReportBlock]()
    if texts and sum(row["prompts"] for row in counts) == 1:
        blocks += [_state_text(peaks[0], texts, settings), *drawn]
    else:
        blocks += [state_group(rows, settings, summary["shares"]) for rows in firsts[:2]]
        blocks += map(Notice, _list_notices(counts))
        blocks.append(draw_roles(summary["averages"], settings, method))
        blocks.append(_tabulate_totals(summary, settings))
        blocks += _tabulate_shares(summary["shares"], settings)
        blocks.append(_tabulate_counts(counts))
        blocks += [Fold("Single texts, token by token", drawn)] if drawn else []
        blocks.append(
            Fold("Every part and role, at its best layer", [_tabulate_peaks(summary, settings)])
        )
        pairs = [*tabulate_alike(summary["bands"]), *_tabulate_tests(summary["tests"], settings)]
        blocks += [Fold("Differences between models and ways of asking", pairs)] if pairs else []
    paragraphs = (result.measure.method or "").split("\n\n")
    blocks.append(Fold("Method", [Text(" ".join(each.split())) for each in (method, *paragraphs)]))
    stages, title = tidy.distinct(peaks, "stage"), TITLE
    if settings["mode"] != "restore":
        title = "What answers lose when states are replaced"
    if any(map(labels.is_numbered, stages)):
        title += ", step by step"
    elif len(stages) > 1:
        title += ", from the first step to the last"
    return Section("trace", title, blocks, list(_make_numbers(firsts[0], settings)))


def _choose(settings: Settings, restored: str, replaced: str) -> str:
    """One of two words: for states that are put back, or for what takes their place."""
    return restored if settings["mode"] == "restore" else replaced


def _name_effect(settings: Settings) -> str:
    return _choose(settings, "given back", "cost")


def _name_place(row: tidy.Record) -> str:
    return f"{labels.name_part(row['part'])}, {labels.ROLES[row['role']]}"


def _name_layer(row: tidy.Record) -> str:
    """A cell's layer, and the window around it or its head where it has one."""
    window = f" ({row['first']} to {row['last']})" if row["first"] < row["last"] else ""
    return f"{row['layer']}{window}" + (f", head {row['head']}" if row["head"] >= 0 else "")


def _name_layers(row: tidy.Record) -> str:
    """The layers that the two halves of the facts chose."""
    sides = ((row["layer"], row["head"]), (row["other_layer"], row["other_head"]))
    return " / ".join(f"{at}, head {head}" if head >= 0 else str(at) for at, head in sides)


def _say(row: tidy.Record, settings: Settings) -> str:
    """An effect with its unit: 2.07 nats [1.5, 2.6]."""
    unit = labels.UNITS.get(settings["metric"], "")
    ends = "" if row["low"] != row["low"] else f" [{row['low']:.3g}, {row['high']:.3g}]"
    return f"{row['mean']:.3g}{unit}{ends}".replace("-", "−")


# Sentences.


def state_group(rows: Rows, settings: Settings, shares: Rows) -> Finding:
    """What a group loses, and which of the subject's states gives back most."""
    total, cell = rows[0], find_best_subject(rows)
    taken = _say_taken(total, settings)
    if total["outcome"] in ("unsettled", "below"):
        text = f"{taken}: nothing is clearly lost, so nothing can be given back."
        return Finding(text, total["outcome"])
    if cell is None:
        return Finding(f"{taken}.", total["outcome"])
    beside = {
        "above": "more than every placebo",
        "unsettled": "which a placebo could give as well",
        "too few": f"on {labels.count(cell['facts'], 'fact')}, too few to tell it from placebos",
    }[cell["outcome"]]
    what = "state" if cell["part"] == "resid" else labels.name_part(cell["part"])
    place = f"{what} of the {labels.ROLES[cell['role']]} at layer {_name_layer(cell)}"
    does = _choose(settings, f"The clean {place} gives back", f"Replacing the {place} costs")
    share = "" if cell["share"] is None else f", {tidy.say_share(cell['share'])} of what was lost"
    text = f"{taken}. {does} most of the subject's: {_say(cell, settings)}{share}, {beside}."
    chosen = tidy.select(shares, control=RESULT, **{name: cell[name] for name in _CELL})
    if chosen and chosen[0]["facts"] >= ENOUGH:
        fitted = tidy.say(tidy.to_interval(chosen[0], SHARE), "%")
        text += f" At layers that other facts chose ({_name_layers(chosen[0])}) it is {fitted}."
    return Finding(text, cell["outcome"])


def _say_taken(total: tidy.Record, settings: Settings) -> str:
    way = labels.name_split(total["split"])
    return (
        f"In {total['model']}, {'asked' if '→' in way else 'on'} {way}, hiding "
        f"{HIDDEN[settings['source']]} takes {_say(total, settings)} from the answer's "
        f"{labels.name_metric(settings['metric']).partition(' (')[0]}"
    )


def _state_text(total: tidy.Record, texts: Rows, settings: Settings) -> Finding:
    """The token and the layer of a single text whose state gives back most."""
    states = tidy.select(texts, part="resid") or texts
    row = max(states, key=lambda row: max(row["effects"]))
    effect = max(row["effects"])
    text = (
        f"{_say_taken(total, settings)}, {row['object'].strip()!r}. Most is {_name_effect(settings)} "
        f"at {row['piece'].strip()!r} (position {row['position']}), layer "
        f"{row['effects'].index(effect)}: {effect:.3g}."
    )
    return Finding(text, total["outcome"])


def _list_notices(counts: Rows) -> Iterator[str]:
    """What models do not recall, and what keeps them from being compared."""
    from unmask.data.sources import OWN

    for model, rows in tidy.group_by(counts, "model").items():
        kept = {row["split"] for row in rows if row["kept"]}
        empty = [each for each in tidy.distinct(rows, "split") if each not in kept]
        if empty:
            yield (
                f"{model}: no fact was left to trace of those asked "
                f"{'; '.join(map(labels.name_split, empty))}. The table of facts says why."
            )
    own = tidy.select(counts, split=OWN)
    if len(tidy.distinct(own, "model")) > 1 and own[0]["shared"] < FEW:
        yield (
            f"{labels.count(own[0]['shared'], 'fact')} traced in every model: fewer than {FEW}, so "
            "that only large differences between models could be seen."
        )
    if len(joints := tidy.distinct(counts, "joint")) > 1:
        yield (
            f"Answers are scored in two ways: {'; '.join(labels.JOINTS[each] for each in joints)}. "
            "Compare where the effects of these models are, not how large they are; `--joint "
            "chain_rule` scores both alike."
        )


def _make_numbers(rows: Rows, settings: Settings) -> Iterator[Number]:
    """The first model's best subject state, where it is clear."""
    total, cell = rows[0], find_best_subject(rows)
    if cell is not None and cell["outcome"] == "above" and cell["share"] is not None:
        yield Number(
            f"{_name_effect(settings)} by the {labels.ROLES[cell['role']]}",
            tidy.say_share(cell["share"]),
            f"of {_say(total, settings).partition(' [')[0]} lost: {total['model']}, "
            f"{labels.name_split(total['split'])}, layer {cell['layer']}",
        )


def _describe_method(counts: Rows, settings: Settings) -> str:
    """How the facts were traced, in sentences."""
    hidden, source = " or ".join(tidy.group_by(counts, labels.name_corruption)), settings["source"]
    also = "" if source == "subject" else ", the subject"
    sentences = [f"{HIDDEN[source].capitalize()} is hidden{also} by {hidden}."]
    if (window := counts[0]["window"]) and {"mlp", "attn"} & {*settings["parts"]}:
        width = f"in windows of {window} layers around the named one"
        width = "one by one" if window == 1 else width
        sentences.append(f"MLP and attention outputs are restored {width}.")
    if settings["mode"] != "restore":
        states = REPLACED[settings["mode"]]
        sentences.append(f"{states} are put into the clean run: effects are what that costs.")
    if settings["severed"]:
        sentences.append(f"Later outputs of {settings['severed']} stay as in the run without it.")
    if settings["run"] == "free_running":
        sentences.append("The corrupted prompt's own generation is traced (free running).")
    if settings["guidance"]:
        sentences.append(f"Guidance {settings['guidance']:g}.")
    return " ".join(sentences)


# Figures.


def draw_roles(averages: Rows, settings: Settings, method: str) -> Figure:
    """Average effect by role and layer, a panel for each model; of heads the strongest."""
    effects = [row for row in averages if row["control"] == RESULT and row["layer"] >= 0]
    cells = tidy.group_by(_add_steps(effects), *_CELL[:2], "at", "part", "role", "layer")
    strongest = [max(heads, key=lambda row: row["mean"]) for heads in cells.values()]
    rows: list[tidy.Record] = []
    for view in tidy.group_by(strongest, "split", "at", "part").values():
        known = tidy.distinct(view, "role")
        for own in tidy.group_by(view, "model").values():
            # A role that only another model has is an empty line.
            lines = tidy.group_by(own, "role")
            empty = {**own[0], **dict.fromkeys(tidy.ENDS), "facts": 0}
            for role in (role for role in labels.ROLES if role in known):
                rows += sorted(
                    lines.get(role, [{**empty, "role": role}]), key=lambda row: row["layer"]
                )
    return tidy.draw_map(
        rows,
        "effects",
        "Average effect by role and layer",
        f"Averages over facts with 95 % intervals. {method} "
        + _choose(
            settings,
            "Purple states give the answer back, orange ones take it away.",
            "Purple: the answer loses by it, orange: it gains.",
        ),
        x="layer",
        y=lambda row: labels.ROLES[row["role"]],
        note=lambda row: labels.count(row["facts"], "fact"),
        choose=[tidy.ASKED, _RESTORED, _choose_step(rows)],
        xlabel="layer",
        ylabel=f"average indirect effect, {labels.name_metric(settings['metric'])}",
        is_signed=True,
    )


_RESTORED = tidy.Choose(
    "restored",
    "part",
    labels.name_part,
    lambda parts: sorted(parts, key=lambda part: [*labels.PARTS].index(part.partition("@")[0])),
)


def draw_texts(texts: Rows, settings: Settings) -> Figure:
    """Single texts: tokens by layers, what is restored side by side, a slider over the steps."""
    known: dict[tuple[Any, ...], list[Any]] = {}
    cells = []
    keys = ("split", "model", "corruption", "fact", "phrasing", "step")
    for (*group, fact, phrasing, _), rows in tidy.group_by(texts, *keys).items():
        numbers = known.setdefault(tuple(group), [])
        numbers += [] if (fact, phrasing) in numbers else [(fact, phrasing)]
        # What comes after the first end token is padding.
        end = min((row["position"] for row in rows if row["piece"] == "⏎"), default=None)
        for row in rows:
            if end is not None and row["position"] > end:
                continue
            title = labels.name_part(row["part"])
            if row["part"] == rows[0]["part"]:
                scores = f"{row['clean']:.3g} → {row['corrupted']:.3g}".replace("-", "−")
                title += f": {shorten(row['object'], 24, placeholder='…')}, {scores}"
            about = {name: row[name] for name in (*keys, "role")}
            about |= {"stage": row["step"], "title": title, "token": _spell(row)}
            about["text"] = 1 + numbers.index((fact, phrasing))
            cells += [about | {"layer": i, "effect": each} for i, each in enumerate(row["effects"])]
    cells = _add_steps(cells)
    return tidy.draw_map(
        cells,
        "texts",
        "One text, token by token",
        "Starred: the subject. → marks the answer, ░ what is still masked at that step. In "
        "the title, the answer and its score, clean → with the subject hidden.",
        x="layer",
        y="token",
        ends=("effect",),
        note=lambda row: labels.ROLES.get(row["role"], row["role"]),
        panel="title",
        choose=[
            tidy.ASKED,
            tidy.Choose("model", "model"),
            tidy.Choose("text", "text", lambda number: f"text {number}", sorted),
            _choose_step(cells),
        ],
        xlabel="layer",
        ylabel=f"effect, {labels.name_metric(settings['metric'])}",
        is_signed=True,
    )


def _spell(row: tidy.Record) -> str:
    """A token as it is seen at the step; its position makes it unique."""
    # A causal model is given the answer's earlier tokens.
    is_masked = not labels.is_causal(row["kind"]) and row["written"] >= row["step"]
    piece = "░" if is_masked else row["piece"].strip() or "·"
    arrow, star = "→ " if row["in_answer"] else "", "*" if row["in_subject"] else ""
    return f"{row['position']} {arrow}{piece}{star}"


def _add_steps(rows: Rows) -> list[dict[str, Any]]:
    """The rows with what `_choose_step` chooses: the step under its corruption."""
    return [{**row, "at": (row["corruption"], str(row["stage"]))} for row in rows]


def _choose_step(rows: Rows) -> tidy.Choose:
    """The choice of a step; the corruption is named where there are several, and numbers of steps
    that follow each other are a slider."""
    has_several = len(tidy.distinct(rows, "corruption")) > 1
    is_slider = not has_several and all(labels.is_numbered(str(row["stage"])) for row in rows)

    def name(at: tuple[str, str]) -> str:
        hidden = f", {labels.CORRUPTIONS.get(at[0], at[0])}" if has_several else ""
        return at[1] if is_slider else labels.name_stage(at[1]) + hidden

    def arrange(options: Any) -> list[Any]:
        return sorted(options, key=lambda at: (at[0], rank_stage(at[1])))

    return tidy.Choose("step", "at", name, arrange, is_slider)


# Tables.


def _name_groups(rows: Rows) -> Columns:
    """What tells groups apart: corruption and step only where there are several."""
    columns: Columns = {"model": "model", "asked": tidy.name_asked}
    if len(tidy.distinct(rows, "corruption")) > 1:
        columns["hidden by"] = labels.name_corruption
    if len(tidy.distinct(rows, "stage")) > 1:
        columns["step"] = lambda row: labels.name_stage(row["stage"])
    return columns


def _list_metrics(summary: Mapping[str, Rows], settings: Settings, effect: str) -> Columns:
    """A column of effects for each metric of the run."""
    further = summary.get("further", ())
    keys = (*GROUP, "part", "layer", "head", "role")
    cells = {
        (*(row[key] for key in keys), row["metric"]): tidy.to_interval(row)
        for row in tidy.select(further, control=RESULT)
    }
    head = Column(f"{effect}, {labels.name_metric(settings['metric'])}", is_short=True)
    return {head: tidy.to_interval} | {
        Column(labels.name_metric(metric), is_short=True): lambda row, metric=metric: cells.get(
            (*(row[key] for key in keys), metric)
        )
        for metric in tidy.distinct(further, "metric")
    }


def _tabulate_totals(summary: Mapping[str, Rows], settings: Settings) -> Table:
    """What is asked and lost in each group, and where p comes from."""
    rows = tidy.select(summary["peaks"], part=TOTAL)
    counted = tidy.select(summary["averages"], control=RESULT, layer=-1)
    ends = {(*(row[key] for key in GROUP), row["part"], row["role"]): row for row in counted}

    def read(part: str, role: str, get: tidy.Get) -> tidy.Get:
        def find(row: tidy.Record) -> Any:
            found = ends.get((*(row[key] for key in GROUP), part, role))
            return None if found is None else tidy.get_value(found, get)

        return find

    columns = _name_groups(rows) | {"facts": "facts"}
    columns |= {Column("tokens asked", digits=1): read(ASKED, "", "mean")}
    columns |= _list_metrics(summary, settings, "lost")
    for role, name in (("subject", "the subject"), ("committed", "written tokens")):
        if any(row["part"] == FLOW and row["role"] == role for row in counted):
            columns[Column(f"p from {name}", is_short=True)] = read(FLOW, role, tidy.to_interval)
    caption = (
        "What hiding the subject takes; a step asks for the tokens that are still masked, so "
        "compare steps with as many facts"
    )
    return tidy.tabulate("groups", caption, rows, columns, mark_outcome)


def _tabulate_shares(shares: Rows, settings: Settings) -> Iterator[Table]:
    """Each role at the layers that other facts chose, the largest shares of a group first."""
    results = [row for row in shares if row["control"] in (RESULT, ONE_TOKEN)]
    controls = [row for row in shares if row["control"] not in (RESULT, ONE_TOKEN)]
    placebos = {
        key: max((tidy.to_interval(row, SHARE) for row in rows), key=lambda value: value.mean)
        for key, rows in tidy.group_by(controls, *_CELL).items()
    }

    def is_whole(row: tidy.Record) -> bool:
        return row["control"] == RESULT

    def find_placebo(row: tidy.Record) -> Interval | None:
        return placebos.get(tuple(row[name] for name in _CELL)) if is_whole(row) else None

    columns = _name_groups(results)
    if not all(map(is_whole, results)):
        columns["scored"] = lambda row: "whole answer" if is_whole(row) else "single tokens"
    columns |= {
        _choose(settings, "restored", "replaced"): _name_place,
        "layers": _name_layers,
        Column(
            f"{_name_effect(settings)}, {labels.name_metric(settings['metric'])}", is_short=True
        ): tidy.to_interval,
        Column("of lost, %", 0, is_percent=True): lambda row: tidy.to_interval(row, SHARE),
        Column("highest placebo, %", 0, is_percent=True): find_placebo,
    }
    if any(row["beyond_share"] is not None for row in results):
        columns[Column("beyond its embedding, %", 0, is_percent=True)] = lambda row: (
            None if row["beyond_share"] is None else tidy.to_interval(row, BEYOND)
        )
    groups = tidy.group_by(results, *_CELL[:4]).values()
    rows = [row for rows in groups for row in sorted(rows, key=lambda row: -row["share"])]
    caption = (
        "Each role, at the layers that are best for other facts: the first is read on one half of "
        "the facts and was chosen on the other half, the second the other way round"
    )
    if rows:
        yield tidy.tabulate("shares", caption, rows, columns | {"facts": "facts"}, most=_MOST)


def _tabulate_peaks(summary: Mapping[str, Rows], settings: Settings) -> Table:
    """Every part and role at its best layer, the clear ones first."""
    rows = [row for row in summary["peaks"] if row["part"] != TOTAL]
    columns = _name_groups(rows) | {_choose(settings, "restored", "replaced"): _name_place}
    columns |= {"layer": _name_layer} | _list_metrics(summary, settings, _name_effect(settings))
    columns[Column("of lost, %", 0, is_percent=True)] = "share"
    columns[Column("highest placebo", is_short=True)] = lambda row: (
        None if row["placebo"] is None else tidy.to_interval(row, PLACEBO[1:])
    )
    rows.sort(key=lambda row: (mark_outcome(row) == "plain", -row["mean"]))
    caption = "Bold: above 0 and above every placebo; layers are chosen on the same facts"
    return tidy.tabulate("peaks", caption, rows, columns | {"facts": "facts"}, mark_outcome)


def _tabulate_counts(counts: Rows) -> Table:
    """Which facts were traced, and why others were not."""
    columns: Columns = {"model": "model", "asked": tidy.name_asked}
    columns |= {"subject hidden by": labels.name_corruption, "prompts": "prompts"}
    if any(row["considered"] is not None for row in counts):
        columns["recalled of considered"] = lambda row: (
            None if row["considered"] is None else f"{row['recalled']} of {row['considered']}"
        )
    columns["traced"] = "kept"
    if len(tidy.distinct(counts, "model")) > 1:
        columns["facts traced in every model"] = "shared"
    columns |= {"left out": lambda row: row["left_out"] or None}
    columns |= {"answers scored by": lambda row: row["joint"].replace("_", " ")}
    columns[Column("p of the answer", is_short=True)] = "clean"
    splits = labels.order_splits(tidy.distinct(counts, "split"))
    rows = sorted(counts, key=lambda row: splits.index(row["split"]))
    return tidy.tabulate("facts", "Facts that were traced", rows, columns)


_SIDES: Columns = {
    "one": lambda row: f"{row['model']}, {tidy.name_asked(row)}",
    "other": lambda row: f"{row['other_model']}, {labels.name_split(row['other_split'])}",
    "at": lambda row: f"{labels.name_stage(row['stage'])}, {labels.name_corruption(row)}",
}
_FACTS: Columns = {"facts": lambda row: f"{row['facts']} {'' if row['paired'] else 'un'}paired"}


def tabulate_alike(bands: Rows) -> Iterator[Text | Table]:
    """Pairs of groups: how many bands of layers differ and are alike, and what that is."""
    pairs = []
    for rows in tidy.group_by(bands, *_PAIR).values():
        outcomes = [row["outcome"] for row in rows]
        within = all(row["p_equivalent"] <= ALPHA for row in rows)
        differ, alike = outcomes.count("above") + outcomes.count("below"), outcomes.count("alike")
        verdict = "alike" if within else "no difference detected"
        if differ:
            verdict = "differ, within the margin" if within else "differ"
        pair = {"bands": len(rows), "differ": differ, "alike": alike}
        pair |= {"neither": len(rows) - differ - alike}
        pair |= {"widest": max(row["smallest_margin"] for row in rows)}
        pair |= {"weakest": min(row["power"] for row in rows)}
        pair |= {"verdict": "too few facts" if "too few" in outcomes else verdict}
        pairs.append({**rows[0], **pair})
    if not pairs:
        return
    margin = f"±{bands[0]['margin']:g} of the total effect"
    yield Text(
        "Shares of the total effect, by part, role and third of the layers; the unit is a fact. "
        f"Alike: two one-sided tests at {ALPHA} put a difference within {margin}. Where neither "
        "that nor a difference (permutation test, Holm over a pair) is shown, no difference was "
        "detected, which is not the same. Power: how often such a test would pass without any "
        "difference."
    )
    columns: Columns = {"compared": "bands", "differ": "differ", "alike": "alike"}
    columns |= {"neither": "neither", Column("smallest margin for all"): "widest"}
    columns |= {Column("least power"): "weakest", "": "verdict"}
    caption = f"Which groups are alike, margin {margin}"
    yield tidy.tabulate("alike", caption, pairs, _SIDES | columns | _FACTS, most=_MOST)


def _tabulate_tests(tests: Rows, settings: Settings) -> Iterator[Table]:
    """Differences between groups, what passes its test first."""
    rows = [row for row in tests if row["part"] != FLOW]
    rows.sort(key=lambda row: (mark_outcome(row) == "plain", row["p_holm"]))
    columns = {
        "what": lambda row: "total effect" if row["part"] == TOTAL else _name_place(row),
        Column(
            f"difference, {labels.name_metric(settings['metric'])}", is_short=True
        ): tidy.to_interval,
        Column("p (Holm)", digits=3): "p_holm",
    }
    caption = (
        "Mean effects over layers, one group minus the other; bold: passes a permutation test by "
        "fact, corrected within each pair of groups"
    )
    if rows:
        yield tidy.tabulate("tests", caption, rows, _SIDES | columns | _FACTS, mark_outcome)
