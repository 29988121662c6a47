"""Figures and tables of traces: role by layer, roles at their best layer, single texts, counts."""

from collections.abc import Iterator, Mapping
from textwrap import shorten
from typing import Any

from unmask.blocks import labels, tidy
from unmask.blocks.blocks import Column, Figure, Fold, Table, Text
from unmask.measures.measure import Rows
from unmask.measures.result import Result
from unmask.measures.trace_effects import TOTAL
from unmask.measures.trace_summary import find_best_subject, name_cell, name_test, rank_stage
from unmask.measures.trace_words import Words
from unmask.tracing.table import FLOW, RESULT

RESTORED = tidy.Choose(
    "restored",
    "part",
    labels.name_part,
    lambda parts: sorted(parts, key=lambda part: [*labels.PARTS].index(part.partition("@")[0])),
)


def draw_roles(
    averages: Rows, kinds: Mapping[str, str], metric: str, method: str, words: Words
) -> Figure:
    """Average effect by role and layer, a panel for each model; of heads the strongest.

    A model that recalls nothing asked this way has an empty panel.
    """
    effects = [row for row in averages if row["control"] == RESULT and row["layer"] >= 0]
    cells = [max(heads, key=lambda row: row["mean"]) for heads in tidy.group_by(
        _name_steps(effects, "stage"), "model", "split", "at", "part", "role", "layer"
    ).values()]  # fmt: skip
    rows = []
    for view in tidy.group_by(cells, "split", "at", "part").values():
        known = tidy.distinct(view, "role")
        for model in kinds:
            own = tidy.select(view, model=model)
            at = {(row["role"], row["layer"]): row for row in own}
            title = model if own else f"{model}: nothing recalled"
            empty = {**view[0], **dict.fromkeys(tidy.ENDS), "facts": 0}
            rows += [
                {**empty, **at.get((role, layer), {}), "title": title, "role": role, "layer": layer}
                for role in labels.ROLES
                if role in known
                for layer in sorted(tidy.distinct(own or view, "layer"))
            ]
    is_one = all(row["facts"] == 1 for row in averages if row["part"] == TOTAL)
    averaged = "Of one fact each." if is_one else "Averages over facts with 95 % intervals."
    return tidy.draw_map(
        rows,
        "effects",
        f"{'Effect' if is_one else 'Average effect'} by role and layer",
        f"{averaged} {method} {words.colours}",
        x="layer",
        y=lambda row: labels.ROLES[row["role"]],
        note=lambda row: labels.count(row["facts"], "fact"),
        panel="title",
        choose=[tidy.ASKED, RESTORED, _choose_step(rows, "stage")],
        xlabel="layer",
        ylabel=f"average indirect effect, {labels.name_metric(metric)}",
        is_signed=True,
    )


def draw_peaks(groups: Rows, kinds: Mapping[str, str], metric: str) -> Figure:
    """Each role's effect at its best layer, a panel for each model, with placebos."""
    colours = labels.colour_models(dict(kinds))
    rows: list[dict[str, Any]] = []
    for group in groups:
        who = {"who": group["model"], "colour": colours[group["model"]]}
        for peaks in tidy.group_by(group["peaks"], "part").values():
            by_role = {cell["role"]: cell for cell in peaks}
            rows += [
                {**by_role[role], **who, "label": label}
                for role, label in labels.ROLES.items()
                if role in by_role
            ]
            best = find_best_subject(peaks)
            placebo = {"who": "placebo", "colour": "control"}
            rows += [
                {**row, **placebo, "label": labels.PLACEBOS[name]}
                for name, row in (best["placebos"] if best else {}).items()
            ]
    has_placebos = any(row["who"] == "placebo" for row in rows)
    grey = " Placebos (grey) stand at the subject's best layer." if has_placebos else ""
    return tidy.draw_dots(
        _name_steps(rows, "stage"),
        "roles",
        "Effect by role, each at its best layer",
        "The layer is chosen on the same facts, so intervals are narrow for a claim about that "
        f"very layer.{grey}",
        label="label",
        group="who",
        colour="colour",
        note=lambda row: f"layer {name_layer(row)}, {labels.count(row['facts'], 'fact')}",
        choose=[tidy.ASKED, RESTORED, _choose_step(rows, "stage")],
        xlabel=f"average indirect effect, {labels.name_metric(metric)}",
    )


def draw_text_figure(texts: Rows, metric: str) -> Figure:
    """Single texts: tokens by layers, what is restored side by side, a slider over the steps."""
    known: dict[tuple[Any, ...], list[Any]] = {}
    cells = []
    keys = ("split", "model", "corruption", "fact", "phrasing", "step")
    for (*group, fact, phrasing, _), rows in tidy.group_by(texts, *keys).items():
        numbers = known.setdefault(tuple(group), [])
        numbers += [] if (fact, phrasing) in numbers else [(fact, phrasing)]
        for row in rows:
            title = labels.name_part(row["part"])
            if row is rows[0]:
                scores = f"{row['clean']:.3g} → {row['corrupted']:.3g}".replace("-", "−")
                title += f": {shorten(row['object'], 24, placeholder='…')}, {scores}"
            about = {name: row[name] for name in keys}
            about |= {"title": title, "text": 1 + numbers.index((fact, phrasing))}
            # What comes after the first end token is padding.
            size = row["piece"].index("⏎") + 1 if "⏎" in row["piece"] else len(row["piece"])
            for i, effects in enumerate(row["effects"][:size]):
                token = {"token": _spell(row, i), "role": row["roles"][i]}
                places = enumerate(effects)
                cells += [about | token | {"layer": at, "effect": effect} for at, effect in places]
    return tidy.draw_map(
        _name_steps(cells, "step"),
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
            _choose_step(cells, "step"),
        ],
        xlabel="layer",
        ylabel=f"effect, {labels.name_metric(metric)}",
        is_signed=True,
    )


def _spell(row: tidy.Record, i: int) -> str:
    """A token as it is seen at the step; its position makes it unique."""
    # A causal model is given the answer's earlier tokens.
    is_masked = not labels.is_causal(row["kind"]) and row["written"][i] >= row["step"]
    piece = "░" if is_masked else row["piece"][i].strip() or "·"
    arrow, star = "→ " if row["in_answer"][i] else "", "*" if row["in_subject"][i] else ""
    return f"{row['positions'][i]} {arrow}{piece}{star}"


def name_layer(cell: tidy.Record) -> str:
    """A cell's layer, and the window around it or its head where it has one."""
    first, last = cell.get("first", cell["layer"]), cell.get("last", cell["layer"])
    window = f" ({first} to {last})" if first < last else ""
    return f"{cell['layer']}{window}" + (f", head {cell['head']}" if cell["head"] >= 0 else "")


def _name_steps(rows: Rows, column: str) -> list[dict[str, Any]]:
    """The rows with what `_choose_step` chooses: the step under its corruption."""
    return [{**row, "at": (row["corruption"], str(row[column]))} for row in rows]


def _choose_step(rows: Rows, column: str) -> tidy.Choose:
    """The choice of a step; the corruption is named where there are several, and numbers of steps
    that follow each other are a slider."""
    has_several = len(tidy.distinct(rows, "corruption")) > 1
    is_slider = not has_several and all(labels.is_numbered(str(row[column])) for row in rows)

    def name(at: tuple[str, str]) -> str:
        corruption, step = at
        hidden = f", {labels.CORRUPTIONS.get(corruption, corruption)}" if has_several else ""
        return step if is_slider else labels.name_stage(step) + hidden

    def arrange(options: Any) -> list[Any]:
        return sorted(options, key=lambda at: (at[0], rank_stage(at[1])))

    return tidy.Choose("step", "at", name, arrange, is_slider)


Columns = dict[str | Column, tidy.Get]


def _name_groups(groups: Rows) -> Columns:
    """What tells groups apart: corruption and step only where there are several."""
    columns: Columns = {"model": "model", "asked": tidy.name_asked}
    if len(tidy.distinct(groups, "corruption")) > 1:
        columns["hidden by"] = labels.name_corruption
    if len(tidy.distinct(groups, "stage")) > 1:
        columns["step"] = lambda row: labels.name_stage(row["stage"])
    return columns


def _name_place(cell: tidy.Record) -> str:
    part = "" if cell["part"] == "resid" else f"{labels.name_part(cell['part'])}, "
    return f"{part}{labels.ROLES[cell['role']]}, layer {name_layer(cell)}"


def _find_placebo(cell: tidy.Record) -> Any:
    """The highest placebo that was measured beside a cell."""
    placebos = map(tidy.to_interval, cell["placebos"].values())
    return max(placebos, key=lambda placebo: placebo.mean, default=None)


def _describe_cell(words: Words) -> Columns:
    return {
        Column(words.effect, is_short=True): tidy.to_interval,
        Column("of lost, %", digits=0, is_percent=True): "share",
        Column("highest placebo", is_short=True): _find_placebo,
    }


def _lose(metric: str) -> Columns:
    lost = Column(f"lost, {labels.name_metric(metric)}", is_short=True)
    return {lost: lambda group: tidy.to_interval(group["total"])}


def tabulate_groups(result: Result, groups: Rows, metric: str, words: Words) -> Table:
    """What is lost, and what the subject's best state gives back, or costs."""
    shown: Columns = {"best at the subject": _name_place} | _describe_cell(words)

    def of_best(get: tidy.Get) -> tidy.Get:
        return lambda group: None if group["best"] is None else tidy.get_value(group["best"], get)

    return tidy.tabulate(
        "groups",
        f"What hiding the subject takes, and {words.most}",
        groups,
        _name_groups(groups)
        | {"facts": lambda group: group["total"]["facts"]}
        | _lose(metric)
        | {head: of_best(get) for head, get in shown.items()},
        result.mark(lambda group: name_cell(group["best"]) if group["best"] else ""),
    )


def tabulate_steps(groups: Rows, metric: str) -> Table:
    """What is asked and lost at each step, and where p comes from."""

    def count_asked(group: tidy.Record) -> float | None:
        return None if group["asked"] is None else group["asked"]["mean"]

    def give(source: str) -> tidy.Get:
        return lambda group: None if group[source] is None else tidy.to_interval(group[source])

    columns = _name_groups(groups) | {"facts": lambda group: group["total"]["facts"]}
    columns |= {Column("tokens asked", digits=1): count_asked} | _lose(metric)
    if metric == "logp":  # of the metrics that add up over tokens
        columns[Column("per token", is_short=True)] = lambda group: (
            group["total"]["mean"] / count_asked(group) if group["asked"] else None
        )
    if any(group["committed"] for group in groups):
        columns[Column("p from the subject", is_short=True)] = give("subject")
        columns[Column("p from written tokens", is_short=True)] = give("committed")
    return tidy.tabulate(
        "steps",
        "Step by step; a step asks for the tokens that are still masked, and early steps are those "
        "of facts that begin early: compare steps with as many facts",
        groups,
        columns,
    )


def fold_peaks(result: Result, groups: Rows, words: Words) -> Fold:
    """Every part and role at its best layer, the clear ones first."""
    mark = result.mark(name_cell)
    peaks = [cell for group in groups for cell in group["peaks"]]
    table = tidy.tabulate(
        "peaks",
        f"{words.done.capitalize()} states, or outputs where named; bold: above 0 and above every "
        "placebo",
        sorted(peaks, key=lambda cell: (mark(cell) == "plain", -cell["mean"])),
        _name_groups(groups)
        | {words.done: _name_place}
        | _describe_cell(words)
        | {"facts": "facts"},
        mark,
    )
    return Fold("Every part and role, at its best layer", [table])


def tabulate_counts(counts: Rows) -> Table:
    """Which facts were traced, and why others were not."""
    columns: Columns = {"model": "model", "asked": tidy.name_asked}
    columns |= {"subject hidden by": labels.name_corruption, "prompts": "prompts"}
    if any(row["considered"] is not None for row in counts):
        columns["recalled of considered"] = lambda row: (
            None if row["considered"] is None else f"{row['recalled']} of {row['considered']}"
        )
    columns["traced"] = "kept"
    if len(tidy.distinct(counts, "model")) > 1 and "shared" in counts[0]:
        columns["facts traced in every model"] = "shared"
    columns |= {"left out": lambda row: row["left_out"] or None}
    columns[Column("p of the answer", is_short=True)] = "clean"
    splits = labels.order_splits(tidy.distinct(counts, "split"))
    rows = sorted(counts, key=lambda row: splits.index(row["split"]))
    return tidy.tabulate("facts", "Facts that were traced", rows, columns)


def fold_tests(result: Result, metric: str) -> Iterator[Fold]:
    """Differences between groups, the total effects and what passes its test first."""
    mark = result.mark(name_test)
    rows = [test for test in result.summary["tests"] if test["part"] != FLOW]
    if not rows:
        return

    def name_what(test: tidy.Record) -> str:
        part, role = test["part"], test["role"]
        where = f"{labels.name_part(part)}, {labels.ROLES.get(role, role)}"
        return "total effect" if part == TOTAL else where

    table = tidy.tabulate(
        "tests",
        "Differences between groups",
        sorted(rows, key=lambda test: (mark(test) == "plain", test["p_holm"])),
        {
            "one": lambda test: f"{test['model']}, {tidy.name_asked(test)}",
            "minus": lambda test: (
                f"{test['other_model']}, {labels.name_split(test['other_split'])}"
            ),
            "at": lambda test: (
                f"{labels.name_stage(test['stage'])}, {labels.name_corruption(test)}"
            ),
            "what": name_what,
            Column(f"difference, {labels.name_metric(metric)}", is_short=True): tidy.to_interval,
            Column("p (Holm)", digits=3): "p_holm",
            "facts": lambda test: f"{test['facts']} {'' if test['paired'] else 'un'}paired",
        },
        mark,
    )
    passed = sum(mark(row) == "strong" for row in rows)
    sentence = Text(
        "Mean effects over layers, one group minus the other; permutation tests by fact, corrected "
        f"within each pair of groups. {passed} of {len(rows)} pass."
    )
    yield Fold("Differences between models and ways of asking", [sentence, table])
