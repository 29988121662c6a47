"""Do names and descriptions meet in the embeddings? Networks trained with head and embedding apart,
or left as they were.

    python paper/embeddings.py NAME=MODEL,MODEL… --start MODEL --data FOLDER \\
        [--runs RECALL REPRESENT] --page PAGE

Each NAME is a way of training, with a model for each seed. For each group of facts the rows of a
fact's name are compared with those of its description, trained minus start, over tokens that belong
to one side of one fact alone (`unmask.representation.embeddings`): do they move alike? Shuffled
pairs are chance. The sections of further runs, such as recall and probes of the same models, come
after.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from unmask.blocks import blocks, labels, tidy
from unmask.data.corpus import Corpus
from unmask.data.facts import Fact
from unmask.data.sources import read_asked
from unmask.evaluation.statistics import holm
from unmask.net.families import Family, parse_families
from unmask.net.loading import load
from unmask.net.model import Model
from unmask.report.document import Document, read_document
from unmask.report.page import write_document
from unmask.representation.embeddings import compare_moved_rows
from unmask.representation.extraction import GROUPS, find_groups

TABLES = {"embedding": "embedding", "head": "head"}
MEASURES = {"cosine": "cosine, own minus other pairs", "retrieval": "reciprocal rank"}


def list_facts(corpus: Corpus) -> dict[str, list[Fact]]:
    """One prompt of each fact by group: it names both sides."""
    groups = {}
    for group, splits in find_groups(corpus, tuple(GROUPS)).items():
        first = {
            fact.fact_id: fact for split in reversed(splits) for fact in reversed(corpus[split])
        }
        groups[group] = list(first.values())
    return groups


def measure_moves(
    start: Model, family: Family, corpus: Corpus, permutations: int
) -> Iterator[dict[str, Any]]:
    """A row for each seed, group, table and likeness; what stayed as it was has no rows."""
    for seed, place in enumerate(family.places):
        trained = load(str(place), device="cpu", dtype="float32")
        for group, facts in list_facts(corpus).items():
            assessed = compare_moved_rows(start, trained, facts, permutations)
            for (table, measure), each in assessed.items():
                if each.is_measured:
                    yield {"model": family.name, "seed": seed, "group": group, "table": table,
                           "measure": measure, "facts": len(each.per_fact), "p": each.p,
                           "chance": float(each.null.mean()), **vars(each.value)}  # fmt: skip


def describe_moves(rows: Sequence[dict[str, Any]]) -> blocks.Section:
    """Every likeness beside chance; p is corrected for all rows of a way of training."""
    corrected: list[dict[str, Any]] = []
    for own in tidy.group_by(rows, "model").values():
        adjusted = holm([row["p"] for row in own])
        corrected += [{**row, "p_holm": p} for row, p in zip(own, adjusted, strict=True)]
    table = tidy.tabulate(
        "moves",
        "How alike the rows of a fact's name and of its description moved in training",
        corrected,
        {
            "trained": "model",
            "seed": "seed",
            "facts": lambda row: labels.GROUPS[row["group"]],
            "rows of the": lambda row: TABLES[row["table"]],
            "likeness": lambda row: MEASURES[row["measure"]],
            "pairs": "facts",
            blocks.Column("value", 3): tidy.to_interval,
            blocks.Column("shuffled", 3): "chance",
            blocks.Column("corrected p", 4): "p_holm",
        },
        role=lambda row: "strong" if row["p_holm"] <= 0.05 else "plain",
        most=60,
    )
    note = blocks.Text(
        "Trained minus start, over tokens that belong to one side of one fact alone. Where head "
        "and embedding are one matrix, its rows move for both reasons at once; a part that was "
        "left as it was has no rows here."
    )
    return blocks.Section("moves", "Do names and descriptions move alike?", [note, table])


def make_document(rows: Sequence[dict[str, Any]], runs: Sequence[Path]) -> Document:
    """The page; the runs' own sections follow."""
    section, lead = (
        describe_moves(rows),
        "Networks with head and embedding trained apart, or as one.",
    )
    if not runs:
        return Document("Embeddings", lead, [], [section])
    document = read_document(runs)
    return replace(document, title="Embeddings", lead=lead, sections=[section, *document.sections])


def main(words: Sequence[str] | None = None) -> None:
    """Write the page that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", help="NAME=MODEL,MODEL… for each way of training")
    parser.add_argument("--start", required=True, help="the model that training started from")
    parser.add_argument("--data", type=Path, required=True, help="the corpus they were trained on")
    parser.add_argument("--runs", nargs="*", type=Path, default=[], help="runs to show below")
    parser.add_argument(
        "--permutations", type=int, default=9999, help="shuffled pairs of each null"
    )
    parser.add_argument("--page", type=Path, required=True, help="the .md or .html file to write")
    options: Any = parser.parse_args(words)
    start, corpus = load(options.start, device="cpu", dtype="float32"), read_asked(options.data)
    rows = [
        row
        for family in parse_families(options.models)
        for row in measure_moves(start, family, corpus, options.permutations)
    ]
    write_document(make_document(rows, options.runs), options.page)


if __name__ == "__main__":
    main()
