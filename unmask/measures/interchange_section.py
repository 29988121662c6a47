"""The section of interchange: scores at cross-fitted layers beside controls, and the page."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from unmask.blocks import blocks, labels, tidy
from unmask.measures.measure import Rows, Summary, Tables, judge_interval
from unmask.measures.result import Result
from unmask.measures.summaries import estimate_means, subtract_shares

METRICS = {
    "says_donor": blocks.Column("gives the donor's answer, %", 1, is_percent=True),
    "says_recipient": blocks.Column("gives its own answer, %", 1, is_percent=True),
    "prefers_donor": blocks.Column("donor's answer is likelier, %", 1, is_percent=True),
    "logp_donor": blocks.Column("log p of the donor's answer, nats"),
    "logp_recipient": blocks.Column("log p of its own answer, nats"),
}
SHARES = ("says_donor", "says_recipient", "prefers_donor")
NOTHING = "none"
"""The swap of rows in which no state is replaced."""
SWAPS = {
    NOTHING: "no state replaced",
    "across": "donor, other direction",
    "within": "donor, same direction (ceiling)",
    "own": "own state, other phrasing (floor)",
    "untrained": "untrained donor, other direction",
}
TOKENS = {"last": "last subject token, the rest by its mean", "all": "all subject tokens"}
GROUP = ("model", "kind", "split", "tokens")
LOW = 0.5
"""A ceiling that is clearly below is low."""


def summarise(tables: Tables, settings: Any) -> Summary:
    """Scores at cross-fitted layers, what across has over its controls, and curves over layers."""
    rows = [
        row | {"prefers_donor": row["logp_donor"] > row["logp_recipient"]}
        for row in tables["interchange"].to_pylist()
    ]
    means, differences, curves = [], [], []
    for key, own in tidy.group_by(rows, *GROUP).items():
        group = dict(zip(GROUP, key, strict=True))
        at: dict[str, Rows] = {NOTHING: [{**row, "swap": NOTHING} for row in own
                        if row["layer"] is None and row["swap"] == "across"]}  # fmt: skip
        layers: dict[str, tuple[int, int]] = {}
        inner = [row for row in own if row["layer"] is None or row["layer"] >= 0]
        if all(row["layer"] is None for row in inner):  # embeddings alone were asked for
            inner = own
        for swap in tidy.distinct(own, "swap"):
            layers[swap], at[swap] = _choose_layer(inner, swap)
        for swap, chosen in at.items():
            first, second = layers.get(swap, (None, None))
            more = {"first_layer": first, "second_layer": second}
            by = (*GROUP, "swap")
            means += [row | more for row in estimate_means(chosen, by, list(METRICS), SHARES)]
        for control in ("own", "untrained", "within"):
            if control in at:
                gap = _subtract(at["across"], at[control])
                differences.append(group | {"minus": control} | gap)
        swapped = [row for row in own if row["layer"] is not None]
        by = (*GROUP, "swap", "layer")
        curves += estimate_means(swapped, by, ("says_donor", "prefers_donor"), SHARES)
    return {"means": means, "differences": differences, "curves": curves}


def _choose_layer(rows: Rows, swap: str) -> tuple[tuple[int, int], list[Mapping[str, Any]]]:
    """A swap's layers of both halves, and its rows there; controls take the layers of across."""
    from unmask.representation.interchange import cross_fit_source

    layers = cross_fit_source(rows, "within" if swap == "within" else "across", "logp_donor").layers
    own = [row for row in tidy.select(rows, swap=swap) if row["layer"] is not None]
    return layers, [row for row in own if row["layer"] == layers[row["half"]]]


def _subtract(ours: Rows, theirs: Rows) -> dict[str, Any]:
    """Success in our rows minus that in theirs, of the recipients and phrasings that both have."""
    keys = [{(row["fact"], row["phrasing"]) for row in rows} for rows in (ours, theirs)]
    shared = keys[0] & keys[1]
    sides = [
        [row for row in rows if (row["fact"], row["phrasing"]) in shared] for rows in (ours, theirs)
    ]
    return subtract_shares(sides[0], sides[1], "says_donor")


def judge(summary: Summary, settings: Any) -> Iterable[blocks.Verdict]:
    """Whether donors of the other direction succeed more often than each control."""
    for row in summary["differences"]:
        yield judge_interval(_name(row), tidy.to_interval(row), row["facts"])


def _name(row: tidy.Record) -> str:
    return ", ".join(row[name] for name in ("model", "split", "tokens", "minus"))


def describe(result: Result) -> Sequence[blocks.ReportBlock]:
    """A sentence for each model and way of asking, the tables, and curves over layers."""
    keys = {"model": "model", "asked": tidy.name_asked, "states": lambda row: TOKENS[row["tokens"]]}
    names = list(SWAPS)
    figure = tidy.draw_lines(
        [{**row, "label": SWAPS[row["swap"]]} for row in result.summary["curves"]],
        "interchange",
        "How often the donor's answer is given",
        "Share of recipients that give the donor's answer, or find it likelier than their own, by "
        "the layer after which the donor's state replaces theirs (-1: embeddings). Bands are 95 % "
        "intervals by fact.",
        x="layer",
        line="label",
        colour=lambda row: f"p{1 + names.index(row['swap'])}",
        scale=100,
        choose=[
            tidy.ASKED,
            tidy.Choose("states", "tokens", lambda tokens: TOKENS[tokens]),
            tidy.Choose("score", "metric", lambda metric: METRICS[metric].label),
        ],
        xlabel="layer",
        ylabel="% of recipients",
    )
    means = tidy.tabulate_means(
        "means",
        "Whose answer is given, each half of the people at the layer chosen on the other half",
        result.summary["means"],
        keys | {"replaced by": lambda row: SWAPS[row["swap"]], "layers": _say_layers},
        METRICS,
        most=30,
    )
    differences = tidy.tabulate(
        "differences",
        "Share of donor's answers: donors of the other direction minus each control, in points",
        result.summary["differences"],
        keys
        | {
            "minus": lambda row: SWAPS[row["minus"]],
            "facts": "facts",
            blocks.Column("difference, points", 1, True, has_sign=True): tidy.to_interval,
        },
        role=result.mark(_name),
        most=30,
    )
    return [*_state(result), figure, means, differences]


def _say_layers(row: tidy.Record) -> str:
    if row["first_layer"] is None:
        return ""
    return f"{row['first_layer']} and {row['second_layer']}"


def _state(result: Result) -> Iterator[blocks.Finding]:
    shares = tidy.select(result.summary["means"], metric="says_donor")
    for (model, _, split, tokens), rows in tidy.group_by(shares, *GROUP).items():
        own = {row["swap"]: row for row in rows}
        across = own.pop("across")
        others = [f"{SWAPS[swap]}: {tidy.say(row, '%')}" for swap, row in own.items()]
        verdicts = find_verdicts(result, across)
        verdict, so = decide(verdicts, own["within"]["high"] < LOW)
        yield blocks.Finding(
            f"In {model}, asked {labels.name_split(split)}, a donor's states of the other "
            f"direction ({TOKENS[tokens]}; layers {_say_layers(across)}) bring the donor's answer "
            f"in {tidy.say(across, '%')} of the cases ({labels.count(across['facts'], 'fact')}). "
            f"For comparison: {'; '.join(others)}.{so}",
            verdict,
        )


def find_verdicts(result: Result, row: tidy.Record) -> dict[str, blocks.Verdict | None]:
    """What is known of success across directions in a row's group, by what it is held against."""
    return {
        minus: result.verdicts.get(_name({**row, "minus": minus}))
        for minus in ("own", "untrained", "within")
    }


def decide(
    verdicts: Mapping[str, blocks.Verdict | None], is_low: bool
) -> tuple[blocks.Verdict, str]:
    """The verdict that a finding rests on, above where it is a success, and what follows."""
    floor, copied = verdicts["own"] or blocks.Verdict("own", "not measured"), verdicts["untrained"]
    ceiling, is_above = verdicts["within"], floor.outcome == "above"
    verdict, so = floor, ""
    if is_low:
        so = " The ceiling is low, so that a failure says nothing."
    elif not is_above and ceiling is not None and ceiling.outcome == "below":
        verdict, so = ceiling, " Not clearly above the floor, and clearly below the ceiling."
    if is_above and copied is not None and copied.outcome != "above":
        level = "clearly below" if copied.outcome == "below" else "not clearly above"
        verdict, so = copied, f"{so} It is {level} untrained donors: answers may be copied."
    return verdict, so
