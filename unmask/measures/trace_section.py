"""The section of traces: what the subject's states give back, in sentences, figures and tables."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from unmask.blocks import labels, tidy
from unmask.blocks.blocks import Column, Figure, Finding, Fold, Notice, ReportBlock, Table
from unmask.evaluation.equivalence import MARGIN
from unmask.measures.clean_runs import list_told_groups, tabulate_counts, tabulate_tests
from unmask.measures.result import Result
from unmask.measures.trace_effects import GROUP, HIGHEST, TOTAL
from unmask.measures.trace_summary import rank_stage
from unmask.results.effects import SHARE
from unmask.results.summaries import Rows, Summary, mark_outcome
from unmask.tracing.settings import WHOLE_SUBJECT, Tracing
from unmask.tracing.table import ASKED, FLOW, ONE_TOKEN, RESULT, SUBJECT_ROLES

Setup = Mapping[str, Any]
"""A run's settings, as its record has them."""
Columns = dict[str | Column, tidy.Get]
HIDDEN = {
    "subject": "the subject",
    "committed": "the answer tokens written so far",
    "both": "the subject and the answer tokens written so far",
}
JOINTS = (
    "Answers of these models are not scored in one way: compare where their effects are, not how "
    "large they are; `--joint chain_rule` scores both alike."
)
STAGES = (
    "A causal model's step is the answer token that it writes then: at any but the first, part of "
    "its answer is given, and less is asked of it than of the other. Compare them at the first."
)
NOISE = (
    "Noise is nothing that a diffusion model meets: on hand-written networks, whose mechanism is "
    "known, more states that do not matter are clear with it than with masks (`unmask bench`)."
)
TAKEN_AWAY = (
    "On networks whose mechanism is known, states that do not matter are clear with zeros or means "
    "in their place, hardly any with another question's: compare `--mode ablate` (`unmask bench`)."
)
ANSWER_ROLES = ("answer mask", "answer token", "whole answer")
VIEW = ("split", "corruption", "stage", "part")
SHOWN = ("mode", "run", "severed", "guidance")
"""Settings that are named where they are not the usual ones."""
COUNTS: Columns = {
    "recalled of considered": lambda row: (
        None if row["considered"] is None else f"{row['recalled']} of {row['considered']}"
    ),
    "layers changed together": "window",
    Column("p of the answer", is_short=True): "clean",
}


def describe(result: Result) -> Sequence[ReportBlock]:
    """A sentence for each model, the map, what is lost and given back; single texts folded away."""
    summary, settings = result.summary, result.settings.to_record()
    counts = summary["counts"]
    tables = [
        _tabulate_totals(summary, settings),
        _tabulate_shares(summary["shares"], settings),
        tabulate_bands(summary["bands"]),
        tabulate_counts(counts, COUNTS),
    ]
    shown: list[ReportBlock] = [draw_roles(summary["averages"], settings)]
    shown += [table for table in tables if table.rows]
    if summary["texts"]:
        texts = draw_text_maps(summary["texts"], settings)
        is_one = sum(row["prompts"] for row in counts) == 1
        folded = Fold("Single texts, token by token", [texts])
        shown.insert(0 if is_one else len(shown), texts if is_one else folded)
    changed = [name for name in SHOWN if settings[name] != getattr(Tracing(), name)]
    notes = [Notice(f"Setting `{name}`: {settings[name]}.") for name in changed]
    notes += [Notice(JOINTS)] if len(tidy.distinct(counts, "joint")) > 1 else []
    sides = {labels.is_causal(row["kind"]) for row in counts}
    if len(sides) > 1 and set(tidy.distinct(summary["averages"], "stage")) != {"first"}:
        notes.append(Notice(STAGES))
    if settings["corruption"] in ("gaussian", "uniform", "rome"):
        notes += [Notice(NOISE)] if "masked" in tidy.distinct(counts, "kind") else []
    notes += [Notice(TAKEN_AWAY)] if settings["mode"] in ("zero", "mean") else []
    return [*state_groups(summary, settings), *notes, *shown]


def _choose(settings: Setup, restored: str, replaced: str) -> str:
    """One of two words: for states that are put back, or for what takes their place."""
    return restored if settings["mode"] == "restore" else replaced


NOTHING = 0.0005
"""What reads as 0.000 in a sentence."""


def state_groups(summary: Summary, settings: Setup) -> Iterator[Finding]:
    """What hiding the subject takes from each model, and which of its states gives back most.

    Of a single fact no layer can be chosen on others: there the best cell stands for itself.
    """
    lost = tidy.select(summary["averages"], part=TOTAL, control=RESULT)
    say = partial(tidy.say, unit=labels.UNITS.get(settings["metric"], "").strip(), digits=3)
    splits = tidy.distinct(lost, "split")
    for is_further, (total, *_) in list_told_groups(lost):
        group = {name: total[name] for name in GROUP}
        rows = tidy.select(summary["shares"], **group) or tidy.select(summary["averages"], **group)
        cell, outcome = find_best_subject(rows), total["outcome"]
        way = f"{'asked' if '→' in tidy.name_asked(total) else 'on'} {tidy.name_asked(total)}"
        text = f"In {total['model']}, {way}, hiding {HIDDEN[settings['source']]} takes {say(total)}"
        brief, facts = "", f" ({labels.count(total['facts'], 'fact')})."
        if outcome in ("unsettled", "below") or total["mean"] < NOTHING:
            text += ": nothing is clearly lost, so nothing can be given back"
        elif cell is not None and cell["mean"] < 0 and settings["mode"] == "restore":
            text += "; none of its states gives any of it back"
            outcome = cell.get("outcome", outcome)
        elif cell is not None:
            state = "state" if cell["part"] == "resid" else labels.name_part(cell["part"])
            place = f"{state} of the {labels.ROLES[cell['role']]} at layer {_name_layers(cell)}"
            does = _choose(
                settings, f"the clean {place} gives back", f"replacing the {place} costs"
            )
            outcome = cell.get("outcome", "too few")
            share = f", {tidy.say_share(cell['share'])} of it" if "share" in cell else ""
            if outcome == "above" and cell[HIGHEST[0]] is not None:
                share += ", more than every placebo"
            text += f"; of the subject's, {does} most, {say(cell)}{share}"
            brief = f"In {total['model']}, {way}, {does} {say(cell)} of {total['mean']:.3g}{facts}"
        ways = list(map(labels.name_split, list_choices(total["split"], splits)))
        yield Finding(text + facts, outcome, ways=ways, is_further=is_further, brief=brief)


def find_best_subject(rows: Rows) -> tidy.Record | None:
    """The subject token that gives back most, or the whole subject where roles were restored; of
    states where there are any, else of other parts."""
    for own in (tidy.select(rows, part="resid"), rows):
        tokens = [row for row in own if row["role"] in SUBJECT_ROLES]
        if subjects := tokens or tidy.select(own, role=WHOLE_SUBJECT):
            return max(subjects, key=lambda row: row["mean"])
    return None


def draw_roles(averages: Rows, settings: Setup) -> Figure:
    """Average effect by role and layer, a panel for each model; of heads the strongest.

    Beside a reversed way of asking stand the maps of the facts that are asked so as trained.
    """
    effects = [row for row in averages if row["control"] == RESULT and row["layer"] >= 0]
    cells = tidy.group_by(effects, "split", "corruption", "stage", "part", "model", "role", "layer")
    rows = [max(heads, key=lambda row: row["mean"]) for heads in cells.values()]
    roles, splits = list(labels.ROLES), tidy.distinct(rows, "split")
    last = max((row["layer"] for row in rows), default=0)
    rows = [
        {**row, "split": choice, "panel": _name_panel(row), "own": row["split"] == choice}
        for row in rows
        for choice in list_choices(row["split"], splits)
    ]
    rows = [filled for view in tidy.group_by(rows, *VIEW).values() for filled in _fill(view)]
    rows.sort(key=lambda row: (not row["own"], roles.index(row["role"]), row["layer"]))
    gives = "Purple states give the answer back, orange ones take it away."
    gives = _choose(settings, gives, "Purple: the answer loses by it, orange: it gains.")
    return _draw_map(
        rows,
        "effects",
        "Average effect by role and layer",
        f"Averages over facts with 95 % intervals. {gives} The positions that an answer is read "
        "from give it back by themselves, its own after the last layer and in an autoregressive "
        "model the last of the prompt: the scale of colours leaves them out.",
        panel="panel",
        is_scaled=lambda row: not _is_read(row, last),
        y=lambda row: labels.ROLES[row["role"]],
        note=lambda row: labels.count(row["facts"], "fact"),
        choose=[tidy.Choose("restored", "part", labels.name_part)],
        ylabel=f"average indirect effect, {labels.name_metric(settings['metric'])}",
    )


def list_choices(split: str, splits: Sequence[str]) -> list[str]:
    """The ways of asking beside which a way is shown: its own, and the same way reversed."""
    way = labels.name_split(split).partition(",")[0]
    beside = [
        each
        for each in splits
        if labels.is_reversed(each) and labels.name_split(each).partition(",")[0] == way
    ]
    return [split, *beside] if split.endswith("_same") else [split]


def _is_read(row: tidy.Record, last: int) -> bool:
    """Whether the answer is read from a state, which so gives it back whatever it holds."""
    is_own = row["role"] in ANSWER_ROLES and row["layer"] == last
    is_last = row["role"] == "last prompt" and labels.is_causal(row["kind"])
    return row["part"] == "resid" and (is_own or is_last)


def _name_panel(row: tidy.Record) -> str:
    """The model, and whether its facts are asked as trained or reversed."""
    note = labels.name_split(row["split"]).partition(", ")[2]
    return f"{row['model']}, {note}" if note else row["model"]


def _fill(view: Rows) -> Iterator[tidy.Record]:
    """The rows of a view and empty ones for the roles that a panel lacks, so that all have one
    axis."""
    yield from view
    for own in tidy.group_by(view, "panel").values():
        known = tidy.distinct(own, "role")
        for role in tidy.distinct(view, "role"):
            if role not in known:
                yield {**own[0], "role": role, "mean": None, "low": None, "high": None}


def draw_text_maps(texts: Rows, settings: Setup) -> Figure:
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


def _draw_map(rows: Rows, *about: str, choose: list[tidy.Choose], **more: Any) -> Figure:
    """A map over layers, its step to choose: a slider where they are numbers that follow each
    other."""
    is_slider = all(map(labels.is_numbered, tidy.distinct(rows, "stage")))
    hidden = tidy.Choose("hidden by", "corruption", lambda name: labels.CORRUPTIONS.get(name, name))
    step = tidy.Choose(
        "step", "stage", labels.name_stage, partial(sorted, key=rank_stage), is_slider
    )
    more |= {"choose": [tidy.ASKED, *choose, hidden, step], "x": "layer", "xlabel": "layer"}
    return tidy.draw_map(rows, *about, is_signed=True, **more)


def _name_groups(rows: Rows) -> dict[str, tidy.Get]:
    """What tells groups apart: corruption and step only where there are several."""
    columns: dict[str, tidy.Get] = {"model": "model", "asked": tidy.name_asked}
    if len(tidy.distinct(rows, "corruption")) > 1:
        columns["hidden by"] = labels.name_corruption
    if len(tidy.distinct(rows, "stage")) > 1:
        columns["step"] = lambda row: labels.name_stage(row["stage"])
    return columns


def _name_layers(row: tidy.Record) -> str:
    """A cell's layer (and head), or those that the two halves of the facts chose."""
    sides = [(row["layer"], row["head"])]
    sides += [(row["other_layer"], row["other_head"])] if "other_layer" in row else []
    names = [f"{at}, head {head}" if head >= 0 else str(at) for at, head in sides]
    return " / ".join(dict.fromkeys(names))


def _tabulate_totals(summary: Summary, settings: Setup) -> Table:
    """What is asked and lost in each group, in every metric, and where p comes from."""
    ends = [row for row in summary["averages"] if row["layer"] < 0]
    ends += tidy.select(summary.get("further", ()), part=TOTAL)
    rows = [
        {**row, "metric": (row["part"], row["role"], row["metric"])}
        for row in tidy.select(ends, control=RESULT)
    ]

    def head(part: str, role: str, metric: str) -> Column:
        if part == ASKED:
            return Column("tokens asked", 1)
        source = {"subject": "the subject", "committed": "written tokens"}.get(role)
        name = f"p from {source}" if part == FLOW else f"lost, {labels.name_metric(metric)}"
        return Column(name, is_short=True)

    heads = {key: head(*key) for key in tidy.distinct(rows, "metric")}
    caption = (
        "What hiding the subject takes; a step asks for the tokens that are still masked, so "
        "compare steps with as many facts"
    )
    keys = _name_groups(rows) | {"facts": "facts"}
    return tidy.tabulate_means("groups", caption, rows, keys, heads, mark_outcome)


def _tabulate_shares(shares: Rows, settings: Setup) -> Table:
    """Each role at the layers that other facts chose, the largest shares of a group first."""
    rows = [row for row in shares if row["control"] in (RESULT, ONE_TOKEN)]
    head = f"{_choose(settings, 'given back', 'cost')}, {labels.name_metric(settings['metric'])}"

    columns: Columns = {
        **_name_groups(rows),
        "scored": lambda row: "whole answer" if row["control"] == RESULT else "single tokens",
        _choose(settings, "restored", "replaced"): _name_place,
        "layers": _name_layers,
        Column(head, is_short=True): tidy.to_interval,
        Column("of lost, %", 0, is_percent=True): partial(tidy.to_interval, columns=SHARE),
        Column("highest placebo, %", 0, is_percent=True): lambda row: (
            None if row[HIGHEST[0]] is None else tidy.to_interval(row, HIGHEST)
        ),
        "facts": "facts",
    }
    caption = (
        "Each role, at the layers that are best for other facts: the first is read on one half of "
        "the facts and was chosen on the other half, the second the other way round. Bold: above "
        "0 and above every placebo"
    )
    groups = tidy.group_by(rows, *GROUP[:-1]).values()
    rows = [row for own in groups for row in sorted(own, key=lambda row: -row["share"])]
    return tidy.tabulate("shares", caption, rows, columns, mark_outcome, most=24)


def _name_place(row: tidy.Record) -> str:
    return f"{labels.name_part(row['part'])}, {labels.ROLES[row['role']]}"


def tabulate_bands(bands: Rows) -> Table:
    """Shares of two groups compared, role by role and by third of the layers."""
    margin = next((row["margin"] for row in bands), MARGIN)
    outcomes = Counter(row["outcome"] for row in bands)
    caption = (
        "Shares of the total effect of two groups compared, by third of the layers: "
        f"{outcomes['above'] + outcomes['below']} of {len(bands)} differ (permutation test by "
        f"fact, Holm over a pair), {outcomes['alike']} are alike (two one-sided tests, within "
        f"±{margin:g}); of the others neither is shown"
    )
    columns: dict[str, tidy.Get] = {
        "hidden by": labels.name_corruption,
        "restored": _name_place,
        "layers": lambda row: f"{row['first']} to {row['last']}",
    }
    return tabulate_tests(bands, caption, columns)
