"""Facts that one reading of a network learns, asked in the other: their corpora, and the page.

    python paper/two_readings.py corpora OUT
    python paper/two_readings.py page TABLES --page docs/results/two-readings.md

OUT gets recipe.yaml, a mixture of two folders: `known`, pairs of unique tokens with questions of
both forms, which both readings learn; and `new`, statements alone of the other pairs, whose reading
a training names (data.sources.new.reading). OUT/asked has the questions about new pairs, and
OUT/swapped also their statements as questions, for states that are exchanged. TABLES is the folder
of the stage `readings`; models are not needed for the page.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from unmask.blocks.blocks import Column, Row, Section, Table, Text
from unmask.blocks.tidy import group_by, say, select, to_interval
from unmask.data.corpus import Corpus, save_corpus
from unmask.data.retrieval_corpus import make_retrieval_corpus
from unmask.data.tokenizer import Tokenizer
from unmask.evaluation.statistics import Interval
from unmask.measures.runner import read_result
from unmask.report.document import Document
from unmask.report.page import write_document
from unmask.results.summaries import estimate_means, subtract_paired
from unmask.training.recipes_io import read_recipe, write_recipe

SAME, BACK = "p2d_same", "p2d_reverse"
DIRECTIONS = {SAME: "forward", BACK: "backward"}
READINGS = {"": "diffusion", ":causal": "causal"}
"""By what the name of a model ends on."""
ALONE = {"diffusion": "mdm", "causal": "ar"}
"""Networks of one objective, by the reading that they have."""
CONTROLS = (
    ("mdm-twice", "its own objective, as many passes: twice the steps", "diffusion"),
    ("mdm:causal", "the masked loss alone", "causal"),
)
LEARNED = {"both": "both readings", "causal": "the causal one", "diffusion": "the diffusion one"}
SWAPS = {"within": "another pair's", "own": "its own, of another phrasing (placebo)"}
METRICS = {"strict": "said", "first": "ranked first"}
CELLS = [(split, metric) for metric in METRICS for split in DIRECTIONS]
LOW = 0.5
"""A ceiling that is clearly below says nothing."""
PAIRS, KNOWN = 100, 0.7
"""Pairs, and the share of them that questions are trained of."""
CHANGES = (
    "network.changes={rotary_base: 1.0e7}", "batch.rows=64", "budget.steps=600",
    "optimiser.rate=4e-3", "optimiser.decay=0.1", "cadence.log=100", "cadence.evaluate=0",
    "cadence.facts=0", "cadence.samples=0",
)  # fmt: skip
"""What the recipe retrieval-joint has otherwise."""


def make_corpora(out: Path) -> None:
    """The folders and the recipe of a mixture of known and new pairs."""
    corpus = make_retrieval_corpus(PAIRS, queried=KNOWN)
    tokenizer = Tokenizer.of_words(corpus.training_texts())
    known = {fact.fact_id for fact in corpus["train"] if fact.phrasing}
    parts = {
        "known": [fact for fact in corpus["train"] if fact.fact_id in known],
        "new": [fact for fact in corpus["train"] if fact.fact_id not in known],
    }
    for name, lines in parts.items():
        save_corpus(Corpus(corpus.source, {"train": lines}, ()), out / name, tokenizer)
    asked = {split: corpus[split] for split in DIRECTIONS}
    save_corpus(Corpus(corpus.source, asked, (SAME, BACK)), out / "asked", tokenizer)
    tested = {fact.fact_id for fact in corpus[SAME]}
    stated = [replace(fact, trained="same") for fact in parts["new"] if fact.fact_id in tested]
    swapped = asked | {SAME: [*stated, *corpus[SAME]]}
    save_corpus(Corpus(corpus.source, swapped, (SAME, BACK)), out / "swapped", tokenizer)
    sources = ", ".join(
        f"{name}: {{source: facts, path: {out / name}, share: {len(lines)}}}"
        for name, lines in parts.items()
    )
    mixture = f"data={{source: mixture, context: 10, sources: {{{sources}}}}}"
    write_recipe(read_recipe("retrieval-joint", [mixture, *CHANGES]), out / "recipe.yaml")


def describe_readings(rows: Sequence[Mapping[str, Any]]) -> Section:
    """Each reading of jointly trained networks, beside networks of one objective."""
    means, table, gaps = _average(rows), list[Row](), list[Row]()
    for ending, reading in READINGS.items():
        model, alone = f"both{ending}", ALONE[reading]
        table.append(Row(["both objectives", reading, *_list_cells(means, model)]))
        own = ["its own objective", reading, *_list_cells(means, alone)]
        table.append(Row(own, "control"))
        differences = (_subtract(rows, model, alone, *cell) for cell in CELLS)
        gaps.append(Row(["both minus its own", reading, *differences]))
    for model, label, reading in CONTROLS:
        table.append(Row([label, reading, *_list_cells(means, model)], "control"))
    heads = [Column("trained by"), Column("asked by")]
    caption = (
        "About new pairs, by which of both objectives trained the network; all have the same steps "
        "and rows, the masked loss the weight 0.3 beside the next token's 1"
    )
    return Section(
        "readings",
        "Two readings of one network, and two networks",
        [
            Table("readings", caption, [*heads, *_list_columns()], table),
            Table("differences", "Differences in points", [*heads, *_list_columns(True)], gaps),
        ],
    )


def describe_transfer(rows: Sequence[Mapping[str, Any]]) -> Section:
    """Facts by the reading that learned them, and the one that is asked."""
    means = _average(rows)
    table = [
        Row([label, reading, *_list_cells(means, model + ending)])
        for model, label in LEARNED.items()
        for ending, reading in READINGS.items()
    ]
    columns = [Column("new pairs learned by"), Column("asked by"), *_list_columns()]
    caption = "About new pairs, beside known pairs that both readings learn"
    shown = []
    for learned, ending in (("causal", ""), ("diffusion", ":causal")):
        cells = [say(cell, "%") for cell in _list_cells(means, learned + ending)]
        shown.append(
            Text(
                f"What {LEARNED[learned]} alone learned, the {READINGS[ending]} one says in "
                f"{cells[0]} forwards and {cells[1]} backwards, and ranks first among the new "
                f"pairs' in {cells[2]} and {cells[3]}."
            )
        )
    about = (
        "Every token of a pair occurs in no other: a reading that never learned a pair has learned "
        "that its tokens do not occur, and says others. The rank among answers that all share this "
        "leaves that out."
    )
    return Section(
        "transfer",
        "Learned in one reading, asked in the other",
        [*shown, Table("transfer", caption, columns, table), Text(about)],
    )


def _list_columns(are_differences: bool = False) -> list[Column]:
    """A column for each metric and direction."""
    return [
        Column(f"{METRICS[metric]}, {DIRECTIONS[split]}, %", 0, True, are_differences)
        for split, metric in CELLS
    ]


def _list_cells(means: Sequence[Mapping[str, Any]], model: str) -> list[Interval]:
    """A model's mean of each metric and direction."""
    found = [select(means, model=model, split=split, metric=metric) for split, metric in CELLS]
    return [to_interval(row) for (row,) in found]


def describe_swaps(tables: Path) -> Section:
    """States of one reading's runs in the other's place, by layer."""
    table, ceilings = [], []
    for lender in READINGS.values():
        curves = read_result(tables / f"lent-{lender}").summary["curves"]
        curves = select(curves, metric="says_donor", split=SAME)
        for (model, swap), rows in group_by(curves, "model", "swap").items():
            if swap in SWAPS:
                asked = READINGS[model.removeprefix("both")]
                rows = sorted(rows, key=lambda row: row["layer"])
                table.append(
                    Row(
                        [asked, lender, SWAPS[swap], *map(to_interval, rows)],
                        "control" if swap == "own" else "plain",
                    )
                )
                if swap == "within" and asked == lender:
                    ceilings += [row for row in rows if row["layer"] >= 0]
    best = max(ceilings, key=lambda row: row["mean"])
    layers = len(table[0].values) - 3
    columns = [Column("asked by"), Column("states from"), Column("whose states"), Column("words")]
    columns += [Column(f"after layer {layer}") for layer in range(layers - 1)]
    columns = columns[:3] + [replace(each, digits=0, is_percent=True) for each in columns[3:]]
    caption = (
        "How often the other pair's answer is said, in %, with the states of both tokens of a key "
        "put into the run that is asked; words: before any layer"
    )
    shown = []
    if best["high"] < LOW:
        shown.append(
            Text(
                "States of its own reading bring another pair's answer after no layer in more than "
                f"{say(best, '%')}: the ceiling is low, so that a failure says nothing. Keys are "
                "read as words."
            )
        )
    return Section(
        "swaps",
        "States of one reading put into the other",
        [*shown, Table("swaps", caption, columns, table, most=len(table))],
    )


def _average(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return estimate_means(rows, ("model", "split"), tuple(METRICS), tuple(METRICS))


def _subtract(
    rows: Sequence[Mapping[str, Any]], model: str, alone: str, split: str, metric: str
) -> Interval | None:
    ours, theirs = (list(select(rows, model=name, split=split)) for name in (model, alone))
    difference = subtract_paired(ours, theirs, metric, is_share=True)
    return None if difference is None else to_interval(difference)


def write_page(tables: Path, page: Path) -> None:
    """The page from the kept tables."""
    result = read_result(tables / "recall")
    rows = result.tables["recall"].to_pylist()
    for row in rows:
        row["first"] = float(row["rank_chain"] == 1)
    seeds, facts = (len({row[name] for row in rows}) for name in ("seed", "fact"))
    lead = (
        "A network that is trained by both objectives is autoregressive under a causal mask and a "
        "diffusion model without it, with the same weights. Pairs of unique tokens; "
        f"{seeds} training seeds, {facts} new pairs, of which {100 / facts:.0f} % are ranked first "
        "by chance; 95 % intervals by pair and training seed."
    )
    sections = [describe_readings(rows), describe_transfer(rows), describe_swaps(tables)]
    write_document(Document("One network, two readings", lead, [], sections), page)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=("corpora", "page"))
    parser.add_argument("folder", type=Path, help="where corpora go, or the kept tables")
    parser.add_argument("--page", type=Path, help="the .md file to write")
    options: Any = parser.parse_args(words)
    if options.what == "corpora":
        make_corpora(options.folder)
    else:
        write_page(options.folder, options.page)


if __name__ == "__main__":
    main()
