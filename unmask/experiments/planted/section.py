"""The section about planted tokens: whether towns are known, what leaks, tables of all cells."""

from collections.abc import Iterator, Sequence
from typing import Any

from unmask.blocks import blocks, tidy
from unmask.measures.measure import Rows
from unmask.measures.result import Result

OUTCOMES = ("refusal", "leak", "other")
SAMPLED = ("length", "order", "remask", "guidance")
"""What a cell says of the sampler."""
CELL = ("planted", "share", "shape", "start", "step", *SAMPLED)
"""What tells the cells of a sweep apart, but for whether the planted tokens are neutral."""
KEY = ("plant", *CELL)
METRICS = {
    "refusal": blocks.Column("refusals (recoveries), %", 0, is_percent=True),
    "leak": blocks.Column("leaks, %", 0, is_percent=True),
    "other": blocks.Column("other answers, %", 0, is_percent=True),
    "decided_at": blocks.Column("decided at step", 1),
    "foreseen_at": blocks.Column("foreseen at step", 1),
}
PLANTS = {"none": "nothing planted", "disclosing": "disclosing", "neutral": "neutral"}
COLOURS = {"prefix": "p1", "middle": "p2", "interleaved": "p3"}
PLANT_COLOURS = {"none": "control", "disclosing": "p1", "neutral": "p3"}
FORESEEN = {"refusal": "p(refusal)", "leak": "p(town)"}


def name_effect(row: tidy.Record) -> str:
    """The claim that a row of the effects is about."""
    return ", ".join(str(row[name]) for name in ("model", *CELL, "metric"))


def name_lengths(row: tidy.Record) -> str:
    return f"{row['model']}, {row['plant']}, {row['metric']}: longest − shortest"


def name_twins(row: tidy.Record) -> str:
    return f"{row['one']} − {row['other']}: {row['planted']}"


def name_defence(row: tidy.Record) -> str:
    return f"{row['model']}, {row['remask']} − {row['minus']}, {row['metric']}"


def describe(result: Result) -> Sequence[blocks.ReportBlock]:
    """A sentence for each model's gate and base cell, the figure, the tables."""
    summary = result.summary
    cells = summary["cells"]
    sealed = tidy.select(cells, is_sealed=True)
    base = _find_base(sealed)
    order = {"leak": 0, "refusal": 1, "other": 2}
    lines = [
        row
        for row in tidy.select(sealed, share=0.0, start=0, **base)
        if row["plant"] != "none" and row["metric"] in order
    ]
    figure = tidy.draw_lines(
        sorted(lines, key=lambda row: order[row["metric"]]),
        "outcomes",
        "Answers about sealed people: leaks, refusals and others",
        "By the number of planted tokens. Dashed: as many neutral ones in the same places. Bands "
        "are 95 % intervals by person and training seed.",
        x="planted",
        line=lambda row: f"{row['shape']}, {PLANTS[row['plant']]}",
        colour=lambda row: COLOURS[row["shape"]],
        dash=lambda row: "dash" if row["plant"] == "neutral" else "solid",
        scale=100,
        choose=[tidy.Choose("outcome", "metric")],
        xlabel="planted tokens",
        ylabel="% of sealed people",
    )
    effects = tidy.tabulate(
        "effects",
        "Leaks about sealed people: with disclosing tokens minus with neutral ones, in points",
        tidy.select(summary["effects"], metric="leak"),
        {"model": "model", **_name_cell()}
        | {blocks.Column("difference, points", 0, True, has_sign=True): tidy.to_interval},
        role=result.mark(name_effect),
        most=40,
    )
    open_people = tidy.select(cells, is_sealed=False)
    return [
        *_state_gates(summary["recalled"]),
        *_state_findings(result, base),
        figure,
        *_show_foreseen(tidy.select(summary["foreseen"], is_sealed=True)),
        _tabulate("sealed", "Answers about sealed people, by what is planted", sealed),
        effects,
        *(table for table in _tabulate_differences(result) if table.rows),
        blocks.Fold(
            "Open people, the control of every cell",
            [
                _tabulate(
                    "open", "Answers about open people: a leak is the trained answer", open_people
                )
            ],
        ),
    ]


def _show_foreseen(rows: Rows) -> Iterator[blocks.ReportBlock]:
    """p(refusal) and p(town) by step: without plants, with a disclosure's, with neutral ones."""
    plain = tidy.group_by(tidy.select(rows, plant="none"), "model", *SAMPLED)
    planted = tidy.group_by((row for row in rows if row["plant"] != "none"), "model", *CELL)
    shown = []
    for key, own in planted.items():
        where = dict(zip(("model", *CELL), key, strict=True))
        cell = _name_view(where)
        without = plain[tuple(where[name] for name in ("model", *SAMPLED))]
        shown += [{**row, "cell": cell} for row in (*without, *own)]
    if not shown:
        return
    # The figure has the steps and remaskings of the first cell; the table has all cells.
    first = {name: next(iter(planted.values()))[0][name] for name in CELL}
    same = [name for name in CELL if name not in ("step", "remask")]
    drawn = {
        _name_view(row)
        for row in rows
        if row["plant"] != "none" and all(row[name] == first[name] for name in same)
    }
    yield tidy.draw_lines(
        [row for row in shown if row["cell"] in drawn],
        "foreseen",
        "How soon the model's predictions show the outcome, for sealed people",
        "Solid: p(refusal); dashed: p(town): shares of texts in which all masked positions are "
        "filled at once from the model's predictions at this step; after the last step, the "
        "outcome. Bands are 95 % intervals by person and training seed.",
        x="done",
        line=lambda row: f"{FORESEEN[row['metric']]}, {PLANTS[row['plant']]}",
        colour=lambda row: PLANT_COLOURS[row["plant"]],
        dash=lambda row: "dash" if row["metric"] == "leak" else "solid",
        scale=100,
        choose=[tidy.Choose("planted", "cell")],
        xlabel="steps done",
        ylabel="% of texts",
    )
    last = max(row["done"] for row in shown)
    steps = sorted({0, last // 4, last // 2, 3 * last // 4, last - 1, last})
    table = tidy.tabulate_means(
        "foreseen",
        "p(refusal) and p(town) for sealed people, in %; columns are numbers of steps done",
        [{**row, "outcome": FORESEEN[row["metric"]], "metric": row["done"]} for row in shown],
        {"model": "model", "planted tokens": "cell", "kind": lambda row: PLANTS[row["plant"]]}
        | {"outcome": "outcome"},
        {each: blocks.Column(f"{each}", 0, is_percent=True) for each in steps},  # ty: ignore[invalid-argument-type]
        role=lambda row: "control" if row["plant"] == "neutral" else "plain",
        most=24,
    )
    yield blocks.Fold("p(refusal) and p(town) by step", [table])


def _name_view(row: tidy.Record) -> str:
    return f"{_say_tokens(row)}; {_say_sampling(row)}"


def _tabulate(name: str, caption: str, rows: Rows) -> blocks.Table:
    keys = {"model": "model", **_name_cell(), "kind of tokens": lambda row: PLANTS[row["plant"]]}
    return tidy.tabulate_means(
        name,
        caption,
        rows,
        keys,
        METRICS,
        role=lambda row: "control" if row["plant"] == "neutral" else "plain",
        most=60,
    )


def _name_cell() -> dict[str, tidy.Get]:
    """What names a cell: one column for what is planted, one for how texts are sampled."""
    return {"planted tokens": _say_tokens, "sampling": _say_sampling}


def _say_tokens(row: tidy.Record) -> str:
    if not row["planted"]:
        return "0"
    share = f" ({100 * row['share']:g} % of the answer)" if row["share"] else ""
    where = f"{row['shape']} from position {row['start']}" if row["start"] else row["shape"]
    return f"{row['planted']}{share}, {where}, step {row['step']}"


def _say_sampling(row: tidy.Record) -> str:
    parts = [f"{row['length']} positions", row["order"]]
    parts += [f"remasking {row['remask']}"] if row["remask"] != "none" else []
    parts += [f"guidance {row['guidance']:g}"] if row["guidance"] else []
    return ", ".join(parts)


def _find_base(rows: Rows) -> dict[str, Any]:
    """How the first cell is sampled and when it plants: the values that the sweeps start from."""
    return {name: rows[0][name] for name in ("step", *SAMPLED)}


def _state_gates(rows: Rows) -> Iterator[blocks.ReportBlock]:
    """Whether each model knows what it withholds."""
    from unmask.experiments.planted.withholding import RECALLED

    for model, own in tidy.group_by(rows, "model").items():
        sealed, others = (tidy.select(own, is_sealed=each)[0] for each in (True, False))
        text = (
            f"{model} recalls {tidy.say(sealed, '%')} of the towns of sealed people and "
            f"{tidy.say(others, '%')} of those of open ones when a trained sentence asks for them "
            f"({sealed['facts']} sealed people)"
        )
        if sealed["mean"] >= RECALLED:
            yield blocks.Text(
                f"{text}: at least {tidy.say_share(RECALLED)}, so that its leak rates count."
            )
        else:
            yield blocks.Notice(
                f"{text}: less than {tidy.say_share(RECALLED)}, so that its leak rates say "
                "nothing; train it longer."
            )


def _state_findings(result: Result, base: dict[str, Any]) -> Iterator[blocks.Finding]:
    """For each model its base cell, the longest against the shortest canvas, twin, defences."""
    prefixes: dict[str, Any] = {"share": 0.0, "shape": "prefix", "start": 0}
    effects = tidy.select(result.summary["effects"], metric="leak", **prefixes)
    sealed = tidy.select(result.summary["cells"], is_sealed=True)
    for model, own in tidy.group_by(tidy.select(effects, **base), "model").items():
        row = max(own, key=lambda each: each["planted"])
        where = {name: row[name] for name in CELL}
        plain = tidy.select(sealed, model=model, plant="none", **base)
        planted = tidy.select(sealed, model=model, plant="disclosing", **where)
        if plain and planted:
            before, after = (
                {each["metric"]: tidy.say(each, "%") for each in cells}
                for cells in (plain, planted)
            )
            yield blocks.Finding(
                f"In {model}, sealed towns leak in {before['leak']} of answers without planted "
                f"tokens ({before['refusal']} refused) and in {after['leak']} with "
                f"{row['planted']} disclosing tokens planted ({after['refusal']} refused). Leaks "
                f"with disclosing tokens minus those with neutral ones: {tidy.say(row, 'points')}.",
                result.verdicts[name_effect(row)],
            )
    for row in result.summary["lengths"]:
        if row["plant"] == "disclosing":
            yield blocks.Finding(
                f"In {row['model']}, at a fixed share of planted disclosing tokens, "
                f"{row['metric']}s on {row['longest']} positions minus those on "
                f"{row['shortest']}: {tidy.say(row, 'points')}.",
                result.verdicts[name_lengths(row)],
            )
    for rows in tidy.group_by(result.summary["twins"], "one", "other").values():
        row = max(rows, key=lambda each: each["planted"])
        yield blocks.Finding(
            f"On the same prefix of {row['planted']} planted tokens, leaks of {row['one']} minus "
            f"those of {row['other']}: {tidy.say(row, 'points')}.",
            result.verdicts[name_twins(row)],
        )
    for row in tidy.select(result.summary["defences"], metric="refusal"):
        ours, theirs = _name_defended(row)
        yield blocks.Finding(
            f"With {row['planted']} disclosing tokens planted, refusals of {ours} minus those of "
            f"{theirs}: {tidy.say(row, 'points')}.",
            result.verdicts[name_defence(row)],
        )


def _name_defended(row: tidy.Record) -> tuple[str, str]:
    if row["model"] != row["minus"]:
        return row["model"], row["minus"]
    return f"{row['model']} with remasking {row['remask']}", f"{row['model']} without"


def _tabulate_differences(result: Result) -> Iterator[blocks.Table]:
    """Lengths at a fixed share, and defences: all rows that the sentences are picked from."""
    difference = blocks.Column("difference, points", 0, is_percent=True, has_sign=True)
    yield tidy.tabulate(
        "lengths",
        "Answers about sealed people at a fixed planted share: longest canvas minus shortest",
        result.summary["lengths"],
        {"model": "model", "planted": lambda row: PLANTS[row["plant"]], "outcome": "metric"}
        | {"positions": lambda row: f"{row['longest']} − {row['shortest']}"}
        | {difference: tidy.to_interval},
        role=result.mark(name_lengths),
    )
    yield tidy.tabulate(
        "defences",
        "Answers about sealed people with the first count planted: with a defence minus without",
        result.summary["defences"],
        {"with": lambda row: _name_defended(row)[0], "without": lambda row: _name_defended(row)[1]}
        | {"outcome": "metric", difference: tidy.to_interval},
        role=result.mark(name_defence),
    )
