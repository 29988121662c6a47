"""Do names and descriptions meet in the embeddings? Networks trained with head and embedding apart,
or left as they were.

    python paper/embeddings.py NAME=MODEL,MODEL… --start MODEL --data FOLDER --out moves.json

Each NAME is a way of training, with a model for each seed. For each group of facts the rows of a
fact's name are compared with those of its description, trained minus start, over tokens that belong
to one side of one fact alone (`embeddings_moved.py`): do they move alike? Shuffled
pairs are chance. `paper/report_embeddings.py` draws the page.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from embeddings_moved import compare_moved_rows

from unmask.base.files import write_json
from unmask.blocks import tidy
from unmask.data.corpus import Corpus
from unmask.data.facts import Fact
from unmask.data.sources import read_asked
from unmask.evaluation.statistics import holm
from unmask.net.families import Family, parse_families
from unmask.net.loading import load
from unmask.net.model import Model
from unmask.representation.extraction import GROUPS, find_groups


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


def correct(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every row with its p corrected for all rows of its way of training, as `p_holm`."""
    corrected: list[dict[str, Any]] = []
    for own in tidy.group_by(rows, "model").values():
        adjusted = holm([row["p"] for row in own])
        corrected += [{**row, "p_holm": p} for row, p in zip(own, adjusted, strict=True)]
    return corrected


def main(words: Sequence[str] | None = None) -> None:
    """Write the rows that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("models", nargs="+", help="NAME=MODEL,MODEL… for each way of training")
    parser.add_argument("--start", required=True, help="the model that training started from")
    parser.add_argument("--data", type=Path, required=True, help="the corpus they were trained on")
    parser.add_argument(
        "--permutations", type=int, default=9999, help="shuffled pairs of each null"
    )
    parser.add_argument("--out", type=Path, required=True, help="the .json file to write")
    options: Any = parser.parse_args(words)
    start, corpus = load(options.start, device="cpu", dtype="float32"), read_asked(options.data)
    rows = [
        row
        for family in parse_families(options.models)
        for row in measure_moves(start, family, corpus, options.permutations)
    ]
    write_json(options.out, correct(rows))


if __name__ == "__main__":
    main()
