"""From the subject to the answer: one page of runs that ask different things of it.

    python paper/mechanism.py TRACE KNOCKOUT INTERCHANGE ERASURE SLOTS REPRESENT PATHS --page PAGE

Each is a run folder of the measure of that name, in any order; those of one measure are not pooled.
The page has every measure in one table, the path (which roles and layers carry a fact at which
step), what brings another's answer, what is needed for an answer, by which way it reaches it, what
is left without what tells facts apart, what states share, and what is not known. Every number is
one of the runs' own summaries; nothing is computed here but shares of the total effect.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mechanism_path import find_leads, path_of_fact

from unmask.base.errors import UserError
from unmask.blocks import blocks, labels, tidy
from unmask.measures import interchange
from unmask.measures.erasure import ERASERS, SOURCES
from unmask.measures.knockout import BY_ANSWER, BY_OTHERS, COMPARED, HIDDEN, WHOLE
from unmask.measures.result import Result
from unmask.measures.runner import read_result
from unmask.report.document import Document
from unmask.report.page import write_document
from unmask.report.provenance import describe_runs

DONORS = {
    "none": ("none", "no state is replaced"),
    "own": ("own", "the recipient's own state from another phrasing (the floor)"),
    "untrained": ("new", "a donor that training never named, asked in the other direction"),
    "across": ("other", "a donor asked in the other direction"),
    "within": ("same", "a donor asked in the same direction (the ceiling)"),
}
"""Whose state is put in, from the floor to the ceiling: the name in the figure, and what it is."""
STRANGERS = "donor, never trained"
FEW_LEFT = 0.25
"""Answers right under random subspaces, below which little is left for an eraser to take."""
NEEDED = ("trace", "knockout", "interchange", "erasure")
LIMITS = (
    "Restored states show what is enough, cut edges what is needed, at a place and under one way "
    "of hiding the subject. Neither says in which form a fact lies there.",
    "What donors bring may be copied from a state's own words where the answer is said of what is "
    "given; only a relation that is stated of names alone (the splits `city`) or donors that "
    "training never named tell. These were also no answer in training, and training makes what is "
    "no answer unlikely: that a trained name is brought as an answer, whatever is known of its "
    "bearer, they do not exclude.",
    "An eraser is linear: where it takes nothing, what is read may still be shared in another "
    "form. From layer 0 up, the first attention has read the subject already.",
    "States at the answer slot differ where answers do. That they are apart does not say that what "
    "they are read from is.",
)


def tabulate_all(runs: dict[str, Result]) -> list[blocks.ReportBlock]:
    """A row for each model and way of asking, with what each measure says of it."""
    cuts, donors, gaps = _list_cuts(runs), _list_donors(runs), _list_gaps(runs)
    leads = [{"model": m, "split": s, "lead": at} for (m, s), at in find_leads(runs["trace"])]
    nats, points, layer = "nats per token", "points", "layer"
    cells: dict[str, tuple[list[tidy.Record], str]] = {
        "answer leads from": (leads, layer),
        "hiding the subject takes": (tidy.select(cuts, edge=HIDDEN), nats),
        "unread by the answer": (tidy.select(cuts, edge=BY_ANSWER), nats),
        "unread by all others": (tidy.select(cuts, edge=BY_OTHERS), nats),
        "answer's own part": (_list_reading(runs), "%"),
        "donor, other direction": (tidy.select(donors, swap="across"), "%"),
        "donor, same direction": (tidy.select(donors, swap="within"), "%"),
        STRANGERS: (tidy.select(donors, swap="untrained"), "%"),
        "erased, own direction": (tidy.select(gaps, source="own"), points),
        "erased, other direction": (tidy.select(gaps, source="other"), points),
    }
    if not cells[STRANGERS][0]:  # the run had none
        del cells[STRANGERS]
    rows = [
        {"model": model, "split": split}
        | {
            name: row["lead"] if unit == layer else tidy.to_interval(row)
            for name, (found, unit) in cells.items()
            for row in tidy.select(found, model=model, split=split)
        }
        for model, split in tidy.distinct(donors, "model", "split")
    ]
    models = tidy.distinct(rows, "model")
    rows.sort(key=lambda row: (models.index(row["model"]), tidy.name_asked(row)))
    columns: dict[str | blocks.Column, tidy.Get] = {"model": "model", "asked": tidy.name_asked}
    for name, (_, unit) in cells.items():
        is_share = unit in ("%", points)
        column = blocks.Column(f"{name}, {unit}", 0 if is_share else 2, is_share, unit == points)
        columns[column] = lambda row, name=name: row.get(name)
    new = ""
    if STRANGERS in cells:
        new = (
            " Never trained: the donor is one whom training never named, asked in the other "
            "direction, so that the answer can only be copied; not every phrasing has such donors."
        )
    text = blocks.Text(
        "Answer leads: from this layer on clean states at the answer's positions give back more "
        "than those of the subject, at the first step traced. Hiding the subject: as the knock-out "
        "run does. Unread: what is lost where the answer's own positions, or all positions outside "
        "the subject, cannot attend to it in any layer; the answer's own part is the first as a "
        "share of the second. Donor: how often another person's answer follows when that person's "
        "states take the place of the subject's "
        f"({interchange.TOKENS[donors[0]['tokens']]}).{new} Erased: answers left without what "
        "tells facts apart, fitted to states of the own or of the other direction, minus those "
        "left by random subspaces of equal rank and variance."
    )
    return [text, tidy.tabulate("all", "Every measure", rows, columns, most=len(rows))]


def _list_cuts(runs: dict[str, Result]) -> list[tidy.Record]:
    """What is lost at the first step with an edge cut in all layers, or the subject hidden."""
    cuts = tidy.select(runs["knockout"].summary["effects"], metric=COMPARED, window=WHOLE)
    return tidy.select(cuts, stage=cuts[0]["stage"])


def _list_reading(runs: dict[str, Result]) -> list[tidy.Record]:
    """What is lost at the first step where the answer's positions cannot read the subject, of what
    is lost where no other position can."""
    rows = runs["knockout"].summary["reading"]
    return tidy.select(rows, stage=_list_cuts(runs)[0]["stage"])


def _list_donors(runs: dict[str, Result]) -> list[tidy.Record]:
    """How often donors' answers are given; with all subject tokens replaced, if they were."""
    means = tidy.select(runs["interchange"].summary["means"], metric="says_donor")
    return tidy.select(means, tokens=min(tidy.distinct(means, "tokens")))  # "all" before "last"


def _list_gaps(runs: dict[str, Result]) -> list[tidy.Record]:
    """Answers left beside random subspaces, at the lowest layer that is erased."""
    gaps = tidy.select(runs["erasure"].summary["differences"], metric="says", minus="random")
    return tidy.select(gaps, start=min(row["start"] for row in gaps))


def matrix_of_donors(result: Result) -> blocks.Figure:
    """Whose answer follows, by how the recipient is asked and where the donor comes from."""
    shares = tidy.select(result.summary["means"], metric="says_donor")
    places, ways = list(DONORS), labels.order_splits(tidy.distinct(shares, "split"))
    rows = [{**row, "share": 100 * row["mean"]} for row in shares]
    rows.sort(key=lambda row: (ways.index(row["split"]), places.index(row["swap"])))
    swaps = tidy.distinct(rows, "swap")
    meant = [f"{name}: {note}" for key, (name, note) in DONORS.items() if key in swaps]
    return tidy.draw_map(
        rows,
        "donors",
        "Whose answer follows a donor's state",
        "Share of recipients that give the donor's answer, by whose state takes the place of their "
        f"subject's. {'; '.join(meant).capitalize()}. Ends are aligned; where the recipient's "
        "subject is longer, the donor's first state is repeated. Layers are chosen on the other "
        "half of the people. Embeddings are not chosen: there words take the place of words. "
        "Where the ceiling is low, nothing follows from a low share of the other direction.",
        x=lambda row: DONORS[row["swap"]][0],
        y=tidy.name_asked,
        ends=("share",),
        choose=[tidy.Choose("states", "tokens", interchange.TOKENS.__getitem__, sorted)],
        xlabel="donor (other, same: direction)",
        ylabel="% donor's answer",
        limits=(0.0, 100.0),
    )


def say_donors(runs: dict[str, Result]) -> blocks.Text:
    """What donors of the other direction bring where those of the same one bring their answer."""
    groups = tidy.group_by(_list_donors(runs), "model", "split")
    by_swap = [{row["swap"]: row for row in rows} for rows in groups.values()]
    able = [own["across"] for own in by_swap if own["within"]["high"] >= interchange.LOW]
    where = (
        "States of another person asked in the same direction bring that person's answer in half "
        f"of the cases or more, or not clearly fewer, in {len(able)} of "
        f"{labels.count(len(groups), 'group')} (a model, asked one way)"
    )
    if not able:
        return blocks.Text(f"{where}, so that nothing follows from states of the other direction.")
    gaps = tidy.select(runs["interchange"].summary["differences"], tokens=able[0]["tokens"])
    held = [
        {gap["minus"]: gap["outcome"] for gap in tidy.select(gaps, model=model, split=split)}
        for model, split in tidy.distinct(able, "model", "split")
    ]
    # Without strangers the floor alone decides.
    clear = sum(each.get("own") == each.get("untrained", "above") == "above" for each in held)
    than = "than the recipient's own state from another phrasing"
    if any("untrained" in each for each in held):
        than += " and than donors that training never named"
    return blocks.Text(
        f"{where}. There, states of the other direction bring it in {_span(able, 'mean')}, with "
        f"upper ends of intervals of {_span(able, 'high')}, and clearly more often {than} in "
        f"{clear} of them. Elsewhere a failure says nothing."
    )


def say_needed(runs: dict[str, Result]) -> blocks.Text:
    """Of each model, what the answer reads by itself, and what hiding does beyond taking away."""
    parts, beyond = [], []
    for model, rows in tidy.group_by(_list_cuts(runs), "model").items():
        losing = [row["split"] for row in tidy.select(rows, edge=HIDDEN) if row["low"] > 0]
        others = [row for row in tidy.select(rows, edge=BY_OTHERS) if row["split"] in losing]
        reading = tidy.select(_list_reading(runs), model=model)
        if reading and others:
            parts.append(f"in {model} {_span(reading, 'mean')}")
            beyond.append(f"in {model} {_span(others, 'share')}")
    if not parts:
        return blocks.Text("What an answer reads by itself is not clear.")
    return blocks.Text(
        "Where no position outside the subject can read it in any layer, the answer does not "
        "depend on it: all that reading it gives is lost. Of that, so much is lost where only the "
        f"answer's own positions cannot read it, over the ways of asking: {'; '.join(parts)}. And "
        "all that reading gives is so much of what hiding the subject takes: "
        f"{'; '.join(beyond)}. Where that is far below 100 %, what stands in the subject's place "
        "does not only take the fact away but misleads."
    )


def say_erased(runs: dict[str, Result]) -> blocks.Text:
    """How often either direction's eraser takes more answers than random subspaces, and where
    those beside the other direction's leave few to take."""
    gaps = _list_gaps(runs)
    takes = {(row["model"], row["split"], row["source"]): row["high"] < 0 for row in gaps}
    groups = tidy.distinct(gaps, "model", "split")
    able = [group for group in groups if takes[*group, "own"]]
    left = tidy.select(
        runs["erasure"].summary["means"],
        metric="says",
        eraser="random",
        source="other",
        start=gaps[0]["start"],
    )
    few = [row for row in left if (row["model"], row["split"]) in able and row["mean"] < FEW_LEFT]
    return blocks.Text(
        "The eraser fitted to the own direction takes clearly more answers than random subspaces "
        f"in {len(able)} of {labels.count(len(groups), 'group')} (a model, asked one way); of "
        "these, the one fitted to the other direction does in "
        f"{sum(takes[*group, 'other'] for group in able)}. In {len(few)} of these, random "
        f"subspaces of its rank and variance leave fewer than {tidy.say_share(FEW_LEFT)} of the "
        "answers right themselves, so that little more could be taken."
    )


def say_slots(result: Result) -> blocks.Text:
    """Of each model, in how many groups of facts one fact's two states are nearer than others."""
    parts = []
    for model, rows in tidy.group_by(result.summary["tests"], "model").items():
        nearer = [row["outcome"] == "above" for row in rows]
        parts.append(f"in {model} in {sum(nearer)} of {labels.count(len(rows), 'group')} of facts")
    return blocks.Text(
        "At the position that predicts the answer, states of one fact's two directions are clearly "
        f"nearer to each other than those of two facts: {'; '.join(parts)}."
    )


def _span(rows: Sequence[tidy.Record], column: str) -> str:
    """The least and the largest of some shares: "0 to 12 %"."""
    ends = dict.fromkeys(f"{100 * each(row[column] for row in rows):.0f}" for each in (min, max))
    return f"{' to '.join(ends)} %"


def answers_left(result: Result) -> blocks.Figure:
    """What is left of the answers at the lowest layer that is erased."""
    shares = tidy.select(result.summary["means"], metric="says")
    start = min(row["start"] for row in shares if row["start"] is not None)
    where = "the embeddings" if start < 0 else f"layer {start}"
    rows = [row for row in shares if row["start"] in (None, start)]
    sources, erasers = list(SOURCES), list(ERASERS)
    rows.sort(key=lambda row: (sources.index(row["source"]), erasers.index(row["eraser"])))
    return tidy.draw_dots(
        rows,
        "left",
        "Answers without what tells facts apart",
        f"Right answers with subject states erased from {where} up, by the direction that the "
        "eraser was fitted to. Grey: controls.",
        label=lambda row: SOURCES[row["source"]] if row["source"] else ERASERS["none"],
        group=lambda row: ERASERS[row["eraser"]],
        colour=lambda row: "p1" if row["eraser"] == "fact" else "control",
        choose=[tidy.ASKED],
        xlabel="share right",
    )


def list_unsettled(runs: dict[str, Result]) -> Iterator[blocks.ReportBlock]:
    """What no run settles, and what none can."""
    for text in LIMITS:
        yield blocks.Text(text)
    counts = []
    for result in runs.values():
        if outcomes := result.outcomes:
            counts.append(
                {"measure": result.measure.title, "held": len(outcomes)}
                | {"settled": sum(map(blocks.is_clear, outcomes))}
                | {each: outcomes.count(each) for each in ("alike", "unsettled")}
                | {"missing": sum(each in ("too few", "not measured") for each in outcomes)}
            )
    columns: dict[str | blocks.Column, tidy.Get] = {"measure": "measure"}
    columns |= {"held against something": "held", "clear": "settled", "alike": "alike"}
    columns |= {"not settled": "unsettled", "too few facts or not measured": "missing"}
    yield tidy.tabulate("settled", "How much these runs settle", counts, columns)


def find_figures(result: Result, *names: str) -> list[blocks.ReportBlock]:
    """Figures of a measure's own section."""
    figures = (each for each in result.section.walk() if isinstance(each, blocks.Figure))
    return [figure for figure in figures if figure.name in names]


def find_sentences(result: Result, most: int = 0) -> list[blocks.ReportBlock]:
    """The findings of a measure's own section; all but the first ones folded away."""
    findings = [each for each in result.section.walk() if isinstance(each, blocks.Finding)]
    rest: list[blocks.ReportBlock] = list(findings[most:])
    return [*findings[:most], *([blocks.Fold("Finding by finding", rest)] if rest else [])]


def make_document(runs: dict[str, Result]) -> Document:
    """The page: the path, what is put in, what is needed, what is taken out, what is unknown."""

    def show(name: str, *shown: blocks.ReportBlock, most: int = 0) -> list[blocks.ReportBlock]:
        """What a section shows of a run, and its findings below, all but the first ones folded."""
        return [*shown, *find_sentences(runs[name], most)]

    path = show("trace", *path_of_fact(runs["trace"]))
    donors = show("interchange", say_donors(runs), matrix_of_donors(runs["interchange"]))
    needed = show("knockout", say_needed(runs), *find_figures(runs["knockout"], "knockout"))
    erased = show("erasure", say_erased(runs), answers_left(runs["erasure"]))
    sections = [
        blocks.Section("overview", "In one table", tabulate_all(runs)),
        blocks.Section("path", "Which positions bring the answer back", path),
        blocks.Section("donors", "Another fact's state in its place", donors),
        blocks.Section("needed", "What the answer has to read", needed),
        blocks.Section("erased", "Without what tells facts apart", erased),
    ]
    if "paths" in runs:
        ways = show("paths", *find_figures(runs["paths"], "paths"), most=4)
        sections.insert(4, blocks.Section("ways", "By which way it reaches the answer", ways))
    read: list[blocks.ReportBlock] = []
    if "represent" in runs:
        read += show("represent", *find_figures(runs["represent"], "probes"), most=4)
    if "slots" in runs:
        read += show("slots", say_slots(runs["slots"]), *find_figures(runs["slots"], "slots"))
    if read:
        sections.append(blocks.Section("read", "How alike states of both directions are", read))
    sections.append(blocks.Section("unknown", "What is not known", list(list_unsettled(runs))))
    records = [(name, result.records[0], ()) for name, result in runs.items()]
    models = " and ".join(tidy.distinct(runs["trace"].summary["averages"], "model"))
    lead = (
        f"How {models} recall facts, asked as trained and in reverse: which positions bring the "
        "answer back, what brings another's answer, what an answer has to read, what remains "
        "without what tells facts apart, and what is not known. Brackets hold 95 % intervals by "
        "fact. A finding is clear where the interval of its difference excludes 0, and of a trace "
        "also every placebo; else it is not settled."
    )
    return Document(
        "From the subject to the answer", lead, [], [*sections, describe_runs(records)], False
    )


def read_runs(folders: Sequence[str | Path]) -> dict[str, Result]:
    """The runs by their measures."""
    runs: dict[str, Result] = {}
    for folder in folders:
        result = read_result(folder)
        if result.measure.name in runs:
            raise UserError(
                f"two runs are of `unmask {result.measure.name}`: expected one of each."
            )
        runs[result.measure.name] = result
    if missing := [name for name in NEEDED if name not in runs]:
        raise UserError(
            f"no run is of `unmask {missing[0]}`: expected one of each of {', '.join(NEEDED)}, and "
            "of paths, slots and represent if there are."
        )
    return runs


def main(words: Sequence[str] | None = None) -> None:
    """Write the page that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="run folders, one of each measure")
    parser.add_argument("--page", type=Path, required=True, help="the .md or .html file to write")
    options: Any = parser.parse_args(words)
    write_document(make_document(read_runs(options.runs)), options.page)


if __name__ == "__main__":
    main()
