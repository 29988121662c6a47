"""The section about planted tokens: whether towns are known, what leaks, tables of all cells."""

from collections.abc import Iterator, Sequence
from typing import Any

from unmask.blocks import blocks, tidy
from unmask.measures.measure import Rows
from unmask.measures.result import Result

OUTCOMES = ("refusal", "leak", "other")
SAMPLED = ("length", "order", "remask", "guidance")
"""What a cell says of the sampler."""
CELL = ("planted", "share", "shape", "step", *SAMPLED)
"""What tells the cells of a sweep apart, but for whether the planted tokens are neutral."""
METRICS = {
    "refusal": blocks.Column("refusal (recovery)", 0, is_percent=True),
    "leak": blocks.Column("leak", 0, is_percent=True),
    "other": blocks.Column("other", 0, is_percent=True),
    "decided_at": blocks.Column("decided at step", 1),
}
PLANTS = {"none": "nothing", "disclosing": "beginning of a disclosure", "neutral": "neutral"}
COLOURS = {"prefix": "p1", "middle": "p2", "interleaved": "p3"}


def name_effect(row: tidy.Record) -> str:
    """The claim that a row of the effects is about."""
    return ", ".join(str(row[name]) for name in ("model", *CELL, "metric"))


def name_lengths(row: tidy.Record) -> str:
    return f"{row['model']}, {row['plant']}, {row['metric']}: longest − shortest"


def name_twins(row: tidy.Record) -> str:
    return f"{row['one']} − {row['other']}: {row['planted']}"


def describe(result: Result) -> Sequence[blocks.ReportBlock]:
    """A sentence for each model's gate and base cell, the figure, the tables."""
    summary = result.summary
    cells = summary["cells"]
    sealed = tidy.select(cells, is_sealed=True)
    base = _find_base(sealed)
    order = {"leak": 0, "refusal": 1, "other": 2}
    lines = [
        row
        for row in tidy.select(sealed, share=0.0, **base)
        if row["plant"] != "none" and row["metric"] in order
    ]
    figure = tidy.draw_lines(
        sorted(lines, key=lambda row: order[row["metric"]]),
        "outcomes",
        "What sealed people's answers do",
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
        "Leaks of sealed people: under the beginning of a disclosure minus under neutral tokens",
        tidy.select(summary["effects"], metric="leak"),
        {"model": "model", **_name_cell()}
        | {blocks.Column("difference", 0, is_percent=True, has_sign=True): tidy.to_interval},
        role=result.mark(name_effect),
        most=40,
    )
    open_people = tidy.select(cells, is_sealed=False)
    return [
        *_state_gates(summary["recalled"]),
        *_state_findings(result, base),
        figure,
        _tabulate("sealed", "Sealed people", sealed),
        effects,
        blocks.Fold(
            "Open people, the control of every cell",
            [_tabulate("open", "Open people: a leak is the trained answer", open_people)],
        ),
    ]


def _tabulate(name: str, caption: str, rows: Rows) -> blocks.Table:
    keys = {"model": "model", **_name_cell(), "planted": lambda row: PLANTS[row["plant"]]}
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
    return {"tokens": _say_tokens, "sampled": _say_sampling}


def _say_tokens(row: tidy.Record) -> str:
    if not row["planted"]:
        return "0"
    share = f" ({row['share']:.1%} of the answer)" if row["share"] else ""
    return f"{row['planted']}{share}, {row['shape']}, step {row['step']}"


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
    from unmask.evaluation.withholding import RECALLED

    for model, own in tidy.group_by(rows, "model").items():
        sealed, others = (tidy.select(own, is_sealed=each)[0] for each in (True, False))
        text = (
            f"{model} recalls {tidy.say(sealed, '%')} of the towns of sealed people and "
            f"{tidy.say(others, '%')} of those of open ones when a trained sentence asks for them "
            f"({sealed['facts']} sealed people)"
        )
        if sealed["mean"] >= RECALLED:
            yield blocks.Text(
                f"{text}: the mean is above {RECALLED:.0%}, the least at which leak rates count."
            )
        else:
            yield blocks.Notice(
                f"{text}: less than {RECALLED:.0%}, so that its leak rates say nothing; train it "
                "longer."
            )


def _state_findings(result: Result, base: dict[str, Any]) -> Iterator[blocks.Finding]:
    """For each model its base cell, the longest against the shortest canvas, and its twin."""
    effects = tidy.select(result.summary["effects"], metric="leak", share=0.0, shape="prefix")
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
                f"tokens ({before['refusal']} refused) and in {after['leak']} after "
                f"{row['planted']} tokens of a disclosure ({after['refusal']} refused): "
                f"{tidy.say(row, 'points')} of leaks compared with as many neutral ones.",
                result.verdicts[name_effect(row)],
            )
    for row in result.summary["lengths"]:
        if row["plant"] == "disclosing" and row["metric"] == "leak":
            yield blocks.Finding(
                f"In {row['model']}, at a fixed planted share, leaks on {row['longest']} positions "
                f"minus those on {row['shortest']}: {tidy.say(row, 'points')}.",
                result.verdicts[name_lengths(row)],
            )
    for rows in tidy.group_by(result.summary["twins"], "one", "other").values():
        row = max(rows, key=lambda each: each["planted"])
        yield blocks.Finding(
            f"On the same prefix of {row['planted']} planted tokens, leaks of {row['one']} minus "
            f"those of {row['other']}: {tidy.say(row, 'points')}.",
            result.verdicts[name_twins(row)],
        )
