"""The page of the factorial: shares with intervals by fact and seed, differences, costs.

    python paper/report_factorial.py ROW... --page docs/results/factorial.md

ROW is the folder of a row that is done; the page is of the rows that are given.
"""

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from factorial import ARMS, SCHEMA

from unmask.base.reading import read_json_object
from unmask.base.tables import read_table, write_table
from unmask.blocks.blocks import (
    CellValue,
    Column,
    Dot,
    DotPanel,
    Figure,
    ReportBlock,
    Row,
    Section,
    Table,
    Text,
    format_value,
)
from unmask.blocks.labels import name_split
from unmask.data.corpus import TESTS
from unmask.evaluation.statistics import (
    Clusters,
    Interval,
    cluster,
    estimate_difference,
    estimate_mean,
)
from unmask.report.document import Document
from unmask.report.page import write_document

SUMMARY_SCHEMA = "factorial-summary/1"
QUESTIONS = {
    "What is predicted from what, under the same attention": (
        ("B-any", "B-l2r", "attention both ways: any masks instead of from left to right"),
        ("C-any", "C-l2r", "causal attention: a masked copy read first"),
        ("C-perm", "C-l2r", "causal attention: random order instead of from left to right"),
        ("C-rev", "C-l2r", "causal attention: lines also in reverse"),
        ("C-same", "C-l2r", "causal attention: also lines that name one entity twice"),
    ),
    "The attention, under similar objectives": (
        ("B-l2r", "C-l2r", "from left to right: both ways instead of causal"),
        ("B-any", "C-any", "any masks: both ways instead of causal after a masked copy"),
        ("B-any", "C-perm", "any order: both ways instead of causal"),
    ),
    "What is masked and bears loss, with attention both ways": (
        ("S-shown", "S-usual", "the first entity never masked"),
        ("S-no-loss", "S-usual", "the first entity masked, without loss"),
        ("S-alone", "S-usual", "the first entity predicted only while the other is hidden"),
        ("S-hidden", "S-alone", "the first entity also masked beside the other, without loss"),
        ("S-not-both", "S-usual", "the entities never masked together"),
        ("B-whole", "B-any", "entities masked whole or not at all"),
        ("B-15", "B-any", "15 % masked instead of any share"),
        ("B-40", "B-any", "40 % masked instead of any share"),
        ("B-85", "B-any", "85 % masked instead of any share"),
    ),
    "Causal rows that answer in reverse": (
        ("C-any", "C-perm", "a masked copy instead of random order"),
        ("C-any", "C-rev", "a masked copy instead of lines also in reverse"),
    ),
}
"""By question: one row minus another, and what the one has that the other has not."""
POINTS = Column("", digits=0, is_percent=True, has_sign=True)
REVERSED = ("p2d_reverse", "d2p_reverse")
"""Names asked for, then descriptions: a split is called by the direction of training."""
LEAD = (
    "The same pretrained decoder learns the same facts in every row (S rows leave out those "
    "trained both ways): the same number of rows and steps, the rate of each row chosen from the "
    "same tries. Rows differ in what attention sees (B and S: both ways, C: earlier tokens) and in "
    "what is predicted. All are asked alike: from left to right, one token per step, without "
    "guidance. Intervals are for other facts and other seeds, and are not corrected for their "
    "number."
)
NOTES = (
    "B-any and the rows derived from it are masked diffusion; attention opens at once, and a state "
    "goes on predicting the next position (Dream's shift). B-l2r shows only masks from the "
    "predicted token on. Under causal attention C-l2r is next-token training; C-any reads a "
    "masked copy of the row, then the row itself, all of which bears loss, and at test time the "
    "prompt with masks after it, then the prompt; C-perm reads tokens in a random order, each "
    "after a mask at its position, and at test time in their own order.",
    "C-left masks its input but sees only earlier tokens: as in C-l2r, what stands first is never "
    "predicted from what stands after it, so that its reversed cells say nothing of masks. C-rev "
    "sees every line also with its words in reverse and its entities whole; in as many steps it "
    "sees each line half as often.",
    "B-l2r learns one token per row and step, the other rows many: tokens that bear loss are in "
    "the table of costs, with the end tokens that fill rows, and no row was given more steps for "
    "having fewer. Masks at a fixed rate are averaged over the masked positions, by their expected "
    "number; at 15 and 40 % they are fewer than a prompt with masks after it has.",
    "S rows, with half of the lines, see each of them twice as often as B rows. The "
    "first entity is the one that stands first in the trained line, which a reversed question asks "
    "for. Where it bears no loss, it is written in no line, so that its log p and rank do not tell "
    "whether the fact is known.",
    "Each way of asking has 300 prompts of 30 facts for each seed; other decoders and ranks have "
    "100 of them. Ranks are among the 30 answers of the same phrasing: by chance 3.3 % are first. "
    "Rates are tried with one seed and 1,000 steps, on 100 prompts of each validation cell: other "
    "phrasings of the same facts, reversed ones among them.",
)

Rows = Sequence[Mapping[str, Any]]


def gather(rows: Rows, split: str, metric: str) -> Clusters:
    """A metric of one row's prompts of a split, by fact and seed."""
    column = "rank" if metric == "first" else metric
    own = [row for row in rows if row["split"] == split and row[column] is not None]
    values = [_read(row, metric) for row in own]
    return cluster(values, [row["fact"] for row in own], [row["seed"] for row in own])


def _read(row: Mapping[str, Any], metric: str) -> float:
    if metric == "first":
        return float(row["rank"] == 1)
    return float(row[metric])


def summarise(tables: Mapping[str, Rows]) -> list[dict[str, Any]]:
    """Every mean with its interval, by row, decoder, split and metric."""
    summary = []
    for name, rows in tables.items():
        for decoder in dict.fromkeys(row["decoder"] for row in rows):
            own = [row for row in rows if row["decoder"] == decoder]
            metrics = ["contained", "starts_with"]
            metrics += ["logp", "first"] if own[0]["logp"] is not None else []
            for split in TESTS:
                for metric in metrics:
                    clusters = gather(own, split, metric)
                    value = estimate_mean(clusters, is_share=metric != "logp")
                    key = {"row": name, "decoder": decoder, "split": split, "metric": metric}
                    counts = dict(zip(("seeds", "facts"), clusters.sums.shape, strict=True))
                    summary.append(key | vars(value) | counts)
    return summary


def write_page(page: Path, folders: Sequence[Path]) -> None:
    """The page of these rows, and their summary in the folder of its name."""
    records = [
        read_json_object(folder / "record.json") | read_json_object(folder / "tries.json")
        for folder in folders
    ]
    names = [record["row"] for record in records]
    tables = {
        name: read_table(folder / "prompts.parquet", SCHEMA).to_pylist()
        for name, folder in zip(names, folders, strict=True)
    }
    summary = summarise(tables)
    page.with_suffix("").mkdir(parents=True, exist_ok=True)
    write_table(page.with_suffix("") / "summary.parquet", summary, SUMMARY_SCHEMA)
    differences = find_differences(tables)
    sections = [
        Section("answer", "The answer", [
            _sum_up(summary, names), *_answer(differences), _draw_recall(summary, records)]),
        Section("differences", "What makes the difference", list(_show_differences(differences))),
        Section("recall", "Recall from left to right", _show_recall(summary, records)),
        Section("written", "What is written where a name is asked for", [_show_names(tables)]),
        Section("decoders", "Each row's own decoders", [_show_decoders(summary, names)]),
        Section("costs", "Rates and costs", list(_show_costs(records))),
        Section("method", "How to read the rows", [Text(note) for note in NOTES]),
    ]  # fmt: skip
    write_document(Document("Is it the attention or the objective?", LEAD, [], sections), page)


Differences = Mapping[tuple[str, str], Mapping[str, Interval]]


def find_differences(tables: Mapping[str, Rows]) -> Differences:
    """What one row has contained more than another, of each split, paired by fact and seed."""
    left = {
        name: [row for row in rows if row["decoder"] == "left"] for name, rows in tables.items()
    }
    return {
        (one, other): {
            split: estimate_difference(
                gather(left[one], split, "contained"),
                gather(left[other], split, "contained"),
                is_share=True,
            )
            for split in TESTS
        }
        for one, other, _ in (pair for pairs in QUESTIONS.values() for pair in pairs)
        if one in tables and other in tables
    }


def _sum_up(summary: Rows, names: Sequence[str]) -> Text:
    """The four rows that cross attention and objective, by their mean over the reversed cells."""
    cells = _find_cells(summary, "contained", "left")
    means = {name: np.mean([cells[name, split].mean for split in REVERSED]) for name in names}
    crossed = [name for name in ("B-any", "B-l2r", "C-any", "C-l2r") if name in means]
    listed = ", ".join(f"{name} {100 * means[name]:.1f} %" for name in crossed or names)
    done = "" if len(names) == len(ARMS) else f"{len(names)} of {len(ARMS)} rows are done. "
    return Text(f"{done}Reversed questions, the mean of both kinds: {listed}.")


def _answer(differences: Differences) -> list[Text]:
    """One sentence for each question: how many changes do what to reversed answers."""
    sentences = []
    for question, pairs in QUESTIONS.items():
        known = [differences[one, other] for one, other, _ in pairs if (one, other) in differences]
        said = Counter(_judge(*(each[split] for split in REVERSED)) for each in known)
        counts = [f"{verdict} in {number}" for verdict, number in said.most_common()]
        ends = [end for each in known for split in REVERSED for end in vars(each[split]).values()]
        if known:
            sentences.append(
                f"{question}: {_join(counts)} of {len(known)} comparisons (intervals between "
                f"{format_value(min(ends), POINTS)} and {format_value(max(ends), POINTS)} points)."
            )
    return [Text(sentence) for sentence in sentences]


def _join(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _judge(names: Interval, descriptions: Interval) -> str:
    """What a difference of both kinds of reversed answers amounts to."""
    clear = {
        what: "more" if value.mean > 0 else "fewer"
        for what, value in (("names", names), ("descriptions", descriptions))
        if value.excludes()
    }
    if not clear:
        return "no difference detected"
    if len(set(clear.values())) == 1 and len(clear) == 2:
        return f"clearly {clear['names']} of both kinds"
    return ", ".join(f"clearly {how} {what}" for what, how in clear.items())


def _draw_recall(summary: Rows, records: Rows) -> Figure:
    """Every row's recall as trained and reversed, names beside descriptions."""
    cells = _find_cells(summary, "contained", "left")
    panels = {
        "names asked for": (("as trained", "d2p_same"), ("reversed", REVERSED[0])),
        "descriptions asked for": (("as trained", "p2d_same"), ("reversed", REVERSED[1])),
    }
    colours = {"as trained": "control", "reversed": "diffusion"}
    dots = [
        DotPanel(title, [
            Dot(f"{r['row']}, {r['attention']}", group, colours[group],
                cells[r["row"], split])
            for r in records
            for group, split in groups
        ])
        for title, groups in panels.items()
    ]  # fmt: skip
    return Figure(
        "recall",
        "Recall of every row, as trained and reversed",
        "Contained, with intervals for other facts and seeds.",
        "dots",
        {(): dots},
        xlabel="share of prompts",
        limits=(0, 1),
    )


def _show_recall(summary: Rows, records: Rows) -> list[Table]:
    shown = (
        ("contained", "The answer is contained in what was written, %", True),
        ("starts_with", "What was written starts with the answer, %", True),
        ("first", "The answer ranks first among its rivals by the chain rule, %", True),
        ("logp", "log p of the answer by the chain rule, nats", False),
    )
    blocks = []
    for metric, caption, is_percent in shown:
        cells = _find_cells(summary, metric, "left")
        rows = [
            Row([r["row"], r["attention"], r["objective"], *(cells[r["row"], s] for s in TESTS)])
            for r in records
        ]
        columns = [Column("row"), Column("attention"), Column("objective")]
        columns += [Column(name_split(split), digits=1, is_percent=is_percent) for split in TESTS]
        blocks.append(Table(metric, caption, columns, rows, most=len(rows)))
    return blocks


def _find_cells(summary: Rows, metric: str, decoder: str) -> dict[tuple[str, str], Interval]:
    return {
        (row["row"], row["split"]): Interval(row["mean"], row["low"], row["high"])
        for row in summary
        if row["metric"] == metric and row["decoder"] == decoder
    }


def _show_differences(differences: Differences) -> Iterator[Table]:
    """A table for each question: one row of the factorial minus another."""
    columns = [Column("what differs"), Column("rows"), Column("reversed answers")]
    columns += [Column(name_split(s), digits=1, is_percent=True, has_sign=True) for s in TESTS]
    for number, (question, pairs) in enumerate(QUESTIONS.items()):
        rows = []
        for one, other, what in pairs:
            if values := differences.get((one, other)):
                verdict = _judge(*(values[split] for split in REVERSED))
                cells = [what, f"{one} − {other}", verdict, *(values[s] for s in TESTS)]
                rows.append(Row(cells))
        caption = f"{question}: contained, percentage points"
        if rows:
            yield Table(f"differences-{number}", caption, columns, rows, most=len(rows))


def _show_names(tables: Mapping[str, Rows]) -> Table:
    """Whose names texts contain that are asked for a name in reverse."""
    asked = {"same": REVERSED[0], "other": "d2p_same"}
    people = {
        group: {row["completion"].strip() for rows in tables.values() for row in rows
                if row["split"] == split}
        for group, split in asked.items()
    }  # fmt: skip
    rows = []
    for name, prompts in tables.items():
        own = [r for r in prompts if r["split"] == REVERSED[0] and r["decoder"] == "left"]
        shares: list[CellValue] = []
        for group in asked:
            values = [
                any(
                    person in r["generation"]
                    for person in people[group] - {r["completion"].strip()}
                )
                for r in own
            ]
            clusters = cluster(values, [r["fact"] for r in own], [r["seed"] for r in own])
            shares.append(estimate_mean(clusters, is_share=True))
        right = estimate_mean(gather(own, REVERSED[0], "contained"), is_share=True)
        rows.append(Row([name, right, *shares]))
    heads = (
        "the person asked for",
        "another of those trained name first",
        "one of those trained description first",
    )
    columns = [Column("row"), *(Column(head, digits=1, is_percent=True) for head in heads)]
    caption = "Texts that contain the name of …, %, asked description → name, reversed"
    return Table("names", caption, columns, rows, most=len(rows))


def _show_decoders(summary: Rows, names: Sequence[str]) -> ReportBlock:
    labels = {
        "left": "left to right",
        "exact": "left to right, as many masks as the answer has tokens",
        "confidence=0": "by confidence, 32 steps",
        "confidence=0.8": "by confidence, 32 steps, guidance 0.8",
    }
    cells = {decoder: _find_cells(summary, "contained", decoder) for decoder in labels}
    rows = [
        Row([name, label, *(cells[decoder][name, split] for split in TESTS)])
        for name in names
        for decoder, label in labels.items()
        if (name, TESTS[0]) in cells[decoder]
    ]
    columns = [Column("row"), Column("decoder")]
    columns += [Column(name_split(split), digits=1, is_percent=True) for split in TESTS]
    caption = "Contained, %; causal rows have no other decoder"
    return Table("decoders", caption, columns, rows, most=len(rows))


def _show_costs(records: Rows) -> list[ReportBlock]:
    rows = [
        Row([r["row"], f"{r['rate']:g}", r["loss_tokens"] / 1e6, r["read_tokens"] / 1e6,
             r["flops"] / 1e15, float(np.mean(r["losses"])), r["trained_seconds"],
             r["asked_seconds"]])
        for r in records
    ]  # fmt: skip
    heads = ("rate", "tokens that bear loss, M", "tokens read, M", "operations, 10¹⁵", "last loss")
    columns = [Column("row"), *(Column(head, is_short=True) for head in heads)]
    columns += [Column("training, s", digits=0), Column("asking, s", digits=0)]
    caption = "Per seed; seconds are of all seeds together"
    costs = Table("costs", caption, columns, rows, most=len(rows))
    tried = [
        Row([r["row"], f"{each['rate']:g}", each["mean"], *(each[f"{s}_valid"] for s in TESTS)],
            "strong" if each["rate"] == r["rate"] else "plain")
        for r in records
        for each in r["tries"]
    ]  # fmt: skip
    columns = [Column("row"), Column("rate"), Column("mean", digits=1, is_percent=True)]
    columns += [Column(name_split(split), digits=1, is_percent=True) for split in TESTS]
    caption = "Rates tried on the split choose: validation cells contained, %; the chosen one bold"
    device = Text(f"Trained and asked on {records[0]['device']}.")
    return [device, costs, Table("tries", caption, columns, tried, most=len(tried))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("rows", nargs="+", type=Path, help="folders of rows that are done")
    parser.add_argument("--page", type=Path, required=True)
    options = parser.parse_args()
    write_page(options.page, options.rows)


if __name__ == "__main__":
    main()
