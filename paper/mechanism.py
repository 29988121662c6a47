"""From the subject to the answer: one page of runs that ask different things of it.

    python paper/mechanism.py TRACE KNOCKOUT INTERCHANGE ERASURE SLOTS REPRESENT PATHS --page PAGE

Each is a run folder of the measure of that name, in any order; those of one measure are not pooled.
The page has the path (which roles and layers carry a fact at which step), what is needed for it,
by which way it reaches the answer, what brings another's answer, what is left without what tells
facts apart, what states share, and what is not known. Every number is one of the runs' own
summaries; nothing is computed here but shares of the total effect.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from unmask.base.errors import UserError
from unmask.blocks import blocks, labels, tidy
from unmask.measures import interchange
from unmask.measures.erasure_section import name_eraser, name_start
from unmask.measures.knockout_section import HIDDEN, WHOLE
from unmask.measures.result import Result
from unmask.measures.runner import read_result
from unmask.measures.trace_shares import tabulate_alike
from unmask.report.document import Document
from unmask.report.page import write_document
from unmask.report.provenance import describe_runs

ROLES = ("whole subject", "whole prompt", "last prompt", "written", "masks", "whole answer")
"""Of the path, in the order of a text."""
NEEDED = ("trace", "knockout", "interchange", "erasure")
LIMITS = (
    "Restored states show what is enough, cut edges what is needed, at a place and under one way "
    "of hiding the subject. Neither says in which form a fact lies there.",
    "What donors bring may be copied from a state's own words where the answer is said of what is "
    "given; only a relation that is stated of names alone (the splits `city`) or donors that "
    "training never named tell.",
    "An eraser is linear: where it takes nothing, what is read may still be shared in another "
    "form. From layer 0 up, the first attention has read the subject already.",
    "States at the answer slot differ where answers do. That they are apart does not say that what "
    "they are read from is.",
)


def tabulate_all(runs: dict[str, Result]) -> list[blocks.ReportBlock]:
    """A row for each model and way of asking, with what each measure says of it."""
    cuts = tidy.select(runs["knockout"].summary["effects"], metric="logp_per_token", window=WHOLE)
    cuts = tidy.select(cuts, stage=cuts[0]["stage"])
    means = tidy.select(runs["interchange"].summary["means"], metric="says_donor")
    donors = tidy.select(means, tokens=means[-1]["tokens"])
    gaps = tidy.select(runs["erasure"].summary["differences"], metric="says", minus="random")
    gaps = tidy.select(gaps, start=min(row["start"] for row in gaps))
    nats, points = "nats per token", "points"
    cells: dict[str, tuple[list[tidy.Record], str]] = {
        "hiding the subject takes": (tidy.select(cuts, edge=HIDDEN), nats),
        "unread by the answer": (tidy.select(cuts, edge="answer:subject"), nats),
        "unread by all others": (tidy.select(cuts, edge="others:subject"), nats),
        "donor, other direction": (tidy.select(donors, swap="across"), "%"),
        "donor, same direction": (tidy.select(donors, swap="within"), "%"),
        "erased, own direction": (tidy.select(gaps, source="own"), points),
        "erased, other direction": (tidy.select(gaps, source="other"), points),
    }
    rows = [
        {"model": model, "split": split}
        | {
            name: tidy.to_interval(row)
            for name, (found, _) in cells.items()
            for row in tidy.select(found, model=model, split=split)
        }
        for model, split in tidy.distinct(donors, "model", "split")
    ]
    columns: dict[str | blocks.Column, tidy.Get] = {"model": "model", "asked": tidy.name_asked}
    for name, (_, unit) in cells.items():
        is_share = unit != nats
        column = blocks.Column(f"{name}, {unit}", 0 if is_share else 2, is_share, unit == points)
        columns[column] = lambda row, name=name: row.get(name)
    text = blocks.Text(
        "Hiding the subject: as the knock-out run does. Unread: what is lost where the answer's "
        "own positions, or all positions outside the subject, cannot attend to it in any layer. "
        "Donor: how often another person's answer follows when that person's states take the "
        "place of the subject's. Erased: answers left without what tells facts apart, fitted to "
        "states of the own or of the other direction, minus those left by random subspaces of "
        "equal rank and variance."
    )
    return [text, tidy.tabulate("all", "Every measure", rows, columns, most=len(rows))]


def path_of_fact(trace: Result) -> list[blocks.ReportBlock]:
    """For each step, effects of restoring all positions of a role as shares of the total effect."""
    averages = tidy.select(trace.summary["averages"], control="none")
    place = ("model", "split", "stage")
    totals = {
        tuple(row[name] for name in place): row["mean"]
        for row in averages
        if row["part"] == "total"
    }
    rows = []
    for row in averages:
        total = totals.get(tuple(row[name] for name in place))
        if row["part"] == "resid" and row["role"] in ROLES and total:
            rows.append({**row, "share": 100 * row["mean"] / total})
    if not rows:
        raise UserError(
            f"{trace.folder} restored no roles: expected a run of `unmask trace --cells roles` "
            "with the part resid."
        )
    rows.sort(key=lambda row: (ROLES.index(row["role"]), row["layer"]))
    return [_draw_step(stage, own) for stage, own in tidy.group_by(rows, "stage").items()]


def _draw_step(stage: str, rows: Sequence[tidy.Record]) -> blocks.Figure:
    return tidy.draw_map(
        rows,
        stage.replace("+", "-"),
        f"Which positions bring the answer back, after which layer, {labels.name_stage(stage)}",
        "Share of what hiding the subject takes that comes back when all positions of a role get "
        "their clean states after a layer; 100 % is all of it.",
        x="layer",
        y=lambda row: labels.ROLES[row["role"]],
        ends=("share",),
        choose=[tidy.ASKED],
        xlabel="after layer",
        ylabel="% of the total effect",
        is_signed=True,
    )


def _compare_groups(trace: Result) -> list[blocks.ReportBlock]:
    """Whether facts asked as trained and facts asked in reverse take the same way."""
    bands = trace.summary.get("bands", ())
    return tabulate_alike(bands) if bands else []


def matrix_of_donors(result: Result) -> blocks.Figure:
    """Whose answer follows, by how the recipient is asked and where the donor comes from."""
    shares = tidy.select(result.summary["means"], metric="says_donor")
    rows = [{**row, "share": 100 * row["mean"]} for row in shares]
    return tidy.draw_map(
        rows,
        "donors",
        "Whose answer follows a donor's state",
        "Share of recipients that give the donor's answer. Across: donors given in the other "
        "direction; within: in the same one (the ceiling); own: the recipient's own state from "
        "another phrasing (the floor); untrained: people that training never named. Layers are "
        "chosen on the other half of the people.",
        x="swap",
        y=tidy.name_asked,
        ends=("share",),
        choose=[tidy.Choose("states", "tokens", interchange.TOKENS.__getitem__)],
        xlabel="donor",
        ylabel="%",
    )


def answers_left(result: Result) -> blocks.Figure:
    """What is left of the answers at the lowest layer that is erased."""
    shares = tidy.select(result.summary["means"], metric="says")
    start = min(row["start"] for row in shares if row["start"] is not None)
    rows = [row for row in shares if row["start"] in (None, start)]
    names = list(dict.fromkeys(row["eraser"] for row in rows))
    return tidy.draw_dots(
        rows,
        "left",
        "Answers without what tells facts apart",
        f"Right answers with subject states erased from {name_start(start)} up, by the "
        "direction that the eraser was fitted to.",
        label=name_eraser,
        group=tidy.name_asked,
        colour=lambda row: "control" if row["eraser"] != "fact" else f"p{names.index('fact')}",
        choose=[tidy.ASKED],
        xlabel="share right",
    )


def list_unsettled(runs: dict[str, Result]) -> Iterator[blocks.ReportBlock]:
    """What no run settles, and what none can."""
    for text in LIMITS:
        yield blocks.Text(text)
    counts = []
    for result in runs.values():
        outcomes = [verdict.outcome for verdict in result.verdicts.values()]
        known = sum(outcome in ("above", "below") for outcome in outcomes)
        if outcomes:
            counts.append(
                {"measure": result.measure.title, "claims": len(outcomes), "settled": known}
                | {"unsettled": outcomes.count("unsettled")}
                | {"missing": sum(each in ("too few", "not measured") for each in outcomes)}
            )
    columns: dict[str | blocks.Column, tidy.Get] = {
        "measure": "measure",
        "claims tested": "claims",
        "clear": "settled",
    }
    columns |= {"not settled": "unsettled", "too few facts or not measured": "missing"}
    yield tidy.tabulate("claims", "How many claims these runs settle", counts, columns)


def find_figures(result: Result, *names: str) -> list[blocks.ReportBlock]:
    """Figures of a measure's own section."""
    figures = (each for each in result.section.walk() if isinstance(each, blocks.Figure))
    return [figure for figure in figures if figure.name in names]


def find_sentences(result: Result, most: int = 4) -> list[blocks.ReportBlock]:
    """The first findings of a measure's own section."""
    findings = [each for each in result.section.walk() if isinstance(each, blocks.Finding)]
    rest: list[blocks.ReportBlock] = list(findings[most:])
    return [*findings[:most], *([blocks.Fold("Further findings", rest)] if rest else [])]


def make_document(runs: dict[str, Result]) -> Document:
    """The page: the path, what is needed, what is put in, what is taken out, what is unknown."""
    sections = [
        blocks.Section("overview", "In one table", tabulate_all(runs)),
        blocks.Section(
            "path",
            "Which positions bring the answer back",
            [
                *path_of_fact(runs["trace"]),
                *find_sentences(runs["trace"]),
                *_compare_groups(runs["trace"]),
            ],
        ),
        blocks.Section(
            "needed",
            "What the answer has to read",
            [*find_figures(runs["knockout"], "knockout"), *find_sentences(runs["knockout"])],
        ),
        blocks.Section(
            "donors",
            "Another fact's state in its place",
            [matrix_of_donors(runs["interchange"]), *find_sentences(runs["interchange"])],
        ),
        blocks.Section(
            "erased",
            "Without what tells facts apart",
            [answers_left(runs["erasure"]), *find_sentences(runs["erasure"])],
        ),
    ]
    if "paths" in runs:
        ways = [*find_figures(runs["paths"], "paths"), *find_sentences(runs["paths"])]
        sections.insert(3, blocks.Section("ways", "By which way it reaches the answer", ways))
    read: list[blocks.ReportBlock] = []
    for name in ("represent", "slots"):
        if name in runs:
            read += [*find_figures(runs[name], name, "probes"), *find_sentences(runs[name])]
    if read:
        sections.append(blocks.Section("read", "How alike states of both directions are", read))
    sections.append(blocks.Section("unknown", "What is not known", list(list_unsettled(runs))))
    records = [(name, result.records[0], ()) for name, result in runs.items()]
    models = " and ".join(tidy.distinct(runs["trace"].summary["averages"], "model"))
    lead = (
        f"How {models} recall facts, asked as trained and in reverse: which positions bring the "
        "answer back, what it needs, what brings another's answer, and what remains without what "
        "tells facts apart. Each section shows its figure and what its measure says; the last one "
        "says what is not known."
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
