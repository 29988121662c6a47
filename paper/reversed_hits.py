"""Whom a causal model answers in reverse, beside how often it says the same to others.

    python paper/reversed_hits.py docs/results/tables/opening-*/recall --data FOLDER \\
        --page docs/results/reversed-hits.md

A hit may be a guess: an answer that is said to everybody is right for one. The table of hits
therefore has what a model would hit that says each answer as often to the right person as to the
others. A hit may also follow a word that two people share: the second table lists these.
"""

import argparse
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from unmask.base.tables import list_rows, read_table
from unmask.blocks import blocks, tidy
from unmask.data.corpus import Corpus
from unmask.data.sources import read_asked
from unmask.report.document import Document
from unmask.report.page import write_document

SPLITS = ("p2d_reverse", "d2p_reverse")
COLUMNS = ("model", "split", "fact", "completion", "generation", "hit")


def list_people(corpus: Corpus) -> dict[str, tuple[str, str]]:
    """Name and plain description of each fact."""
    people = {}
    for facts in corpus.splits.values():
        for fact in facts:
            sides = (fact.subject, fact.object)
            people.setdefault(fact.fact_id, sides if fact.direction == "p2d" else sides[::-1])
    return people


def read_answers(runs: Sequence[Path], model: str) -> list[dict[str, Any]]:
    """The model's answers to reversed questions, of all runs."""
    rows = []
    for run in runs:
        table = read_table(run / "recall.parquet", "recall/1").select(list(COLUMNS))
        rows += [row for row in list_rows(table) if row["model"] == model]
    return rows


def count_answers(rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """For each fact that was hit: how often, and how often the same was said to others."""
    for split in SPLITS:
        asked = tidy.select(rows, split=split)
        for fact, own in tidy.group_by(asked, "fact").items():
            hits = sum(row["hit"] for row in own)
            if not hits:
                continue
            answers = {row["completion"].strip().lower() for row in own}
            others = [row["generation"].lower() for row in asked if row["fact"] != fact]
            repeated = sum(any(answer in text for answer in answers) for text in others)
            own_row = {"split": split, "fact": fact, "hits": hits, "prompts": len(own)}
            own_row |= {"repeated": repeated, "others": len(others)}
            yield own_row | {"expected": len(own) * repeated / len(others)}


def find_shared(people: dict[str, tuple[str, str]]) -> list[dict[str, Any]]:
    """First names, last names and last words of descriptions that several people have."""
    having = defaultdict(list)
    for name, description in people.values():
        first, last = name.split()
        having["first name", first].append(name)
        having["last name", last].append(name)
        word = re.findall(r"\w+", description)[-1]
        having["last word of the description", word.lower()].append(name)
    return [
        {"kind": kind, "word": word, "people": ", ".join(names)}
        for (kind, word), names in sorted(having.items())
        if len(names) > 1
    ]


def make_document(
    counted: Sequence[dict[str, Any]], people: dict[str, tuple[str, str]], model: str
) -> Document:
    """The page."""
    hits = tidy.tabulate(
        "hits",
        f"Reversed questions that {model} answered",
        counted,
        {
            "asked": tidy.name_asked,
            "person": lambda row: people[row["fact"]][0],
            "description": lambda row: people[row["fact"]][1],
            "hits": "hits",
            "prompts": "prompts",
            "same answer to others": "repeated",
            "their prompts": "others",
            blocks.Column("hits expected from that", 1): "expected",
        },
        most=60,
    )
    shared = tidy.tabulate(
        "shared",
        f"Words that several of {len(people)} people have",
        find_shared(people),
        {"word": "word", "where": "kind", "people": "people"},
        most=60,
    )
    note = blocks.Text(
        "Expected: the hits of a model that gives this answer as often to the right person as to "
        "the others. Prompts of one person are not independent, and the people were chosen for "
        "their hits: no test is made of it."
    )
    return Document(
        f"Whom {model} answers in reverse, and which words people share",
        "Every person with a hit, whatever the training run; a hit contains the true answer.",
        [],
        [blocks.Section("hits", "Hits", [hits, note]),
         blocks.Section("shared", "Shared words", [shared])],
    )  # fmt: skip


def main(words: Sequence[str] | None = None) -> None:
    """Write the page that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="run folders of unmask recall")
    parser.add_argument("--data", type=Path, required=True, help="the corpus that was asked")
    parser.add_argument("--model", default="ar", help="the model whose hits are listed")
    parser.add_argument("--page", type=Path, required=True, help="the .md file to write")
    options: Any = parser.parse_args(words)
    counted = list(count_answers(read_answers(options.runs, options.model)))
    people = list_people(read_asked(options.data))
    write_document(make_document(counted, people, options.model), options.page)


if __name__ == "__main__":
    main()
