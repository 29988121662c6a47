"""The section of `correctors`: how many comparisons they win, distances by calls, and tables."""

from collections.abc import Iterator, Sequence

from unmask.blocks import blocks, tidy
from unmask.evaluation.statistics import ENOUGH
from unmask.measures.measure import Rows
from unmask.measures.result import Result

MANY = 64
"""Corrections after which nothing changes any more."""
TOYS = {"language": "small languages", "chain": "Markov chain"}
COLOURS = {"uniform": "p0", "margin": "p1", "gumbel": "p2", "accepted": "p3"}
"""Colours of correctors by their choice; all other samplers are controls."""


def name_corrector_claim(row: tidy.Record) -> str:
    """The claim that a row of the differences is about."""
    return ", ".join(str(row[name]) for name in ("toy", "sampler", "steps", "minus"))


def describe(result: Result) -> Sequence[blocks.ReportBlock]:
    """How many comparisons correctors win, the figure, and the tables."""
    summary = result.summary
    return [
        *_state(result),
        _tabulate_bias(summary["bias"]),
        _draw_samplers(tidy.select(summary["samplers"], metric="tv")),
        blocks.Fold("All samplers", [_tabulate_samplers(summary["samplers"])]),
        blocks.Fold("Differences", [_tabulate_differences(result)]),
    ]


def _name_law(row: tidy.Record) -> str:
    return TOYS[row["toy"]]


def _tabulate_bias(rows: Rows) -> blocks.Table:
    return tidy.tabulate_means(
        "bias",
        "Bias: total variation distance to the exact law after its texts are corrected; 0 is exact",
        [{**row, "metric": (row["corrections"], row["masked"])} for row in rows],
        {"corrector": "corrector"},
        {
            (1, 0.0): blocks.Column("after one correction", 3),
            (MANY, 0.0): blocks.Column(f"after {MANY} corrections", 3),
            (1, 0.5): blocks.Column("after one correction, half of the text masked", 3),
        },  # ty: ignore[invalid-argument-type]
    )


def _draw_samplers(rows: Rows) -> blocks.Figure:
    return tidy.draw_lines(
        [row for row in rows if row["family"] != "exact"],
        "samplers",
        "Distance from the law, by network calls",
        "Total variation distance; 0 is exact. Bands are 95 % intervals by language or draw.",
        x="calls",
        line="sampler",
        colour=lambda row: COLOURS.get(row["sampler"].partition("=")[0], "control"),
        dash=lambda row: {"corrector": "solid", "predictor": "dash"}.get(row["family"], "dot"),
        panel=_name_law,
        xlabel="network calls",
        ylabel="total variation distance",
        is_log2=True,
    )


def _tabulate_samplers(rows: Rows) -> blocks.Table:
    return tidy.tabulate_means(
        "samplers",
        "Distance of each sampler from the law, and slips (token pairs that the chain hardly has)",
        rows,
        {"law": _name_law, "network calls": "calls", "sampler": "sampler", "steps": "steps"},
        {
            "tv": blocks.Column("total variation distance", 3),
            "slips": blocks.Column("slips, % of pairs", 2, is_percent=True),
        },
        role=lambda row: "control" if row["family"] in ("exact", "predictor") else "plain",
        most=130,
    )


def _tabulate_differences(result: Result) -> blocks.Table:
    return tidy.tabulate(
        "differences",
        "Total variation distance of correctors minus that of other samplers at as many calls; "
        "below 0: the corrector is nearer to the law",
        result.summary["differences"],
        {
            "law": _name_law,
            "network calls": "calls",
            "corrector": "sampler",
            "steps": "steps",
            "minus": "minus",
            blocks.Column("difference", 3, has_sign=True): tidy.to_interval,
        },
        role=result.mark(name_corrector_claim),
        most=130,
    )


def _state(result: Result) -> Iterator[blocks.ReportBlock]:
    """For each law and kind of corrector, how often it is nearer to the law than a remasking."""
    rows = [row for row in result.summary["differences"] if row["minus"] != "no corrector"]
    for (toy, name), own in tidy.group_by(rows, "toy", "sampler").items():
        outcomes = [result.verdicts[name_corrector_claim(row)].outcome for row in own]
        texts = []
        for outcome, words in (("below", "nearer to the law"), ("above", "further from the law")):
            if outcomes.count(outcome):
                texts.append(f"clearly {words} in {outcomes.count(outcome)}")
        settled = " and ".join(texts) or "clearly nearer to or further from the law in none"
        where = "On small languages" if toy == "language" else "On the Markov chain"
        yield blocks.Text(
            f"{where}, `{name}` is {settled} of {len(own)} comparisons with remaskings and plain "
            "ancestral steps at as many network calls."
        )
    if any(row["facts"] < ENOUGH for row in rows):
        yield blocks.Notice(
            f"There are fewer than {ENOUGH} languages or draws, too few to call a difference clear."
        )
