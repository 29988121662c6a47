"""The page on networks with head and embedding apart: is reversed recall in the embeddings?

    python paper/report_embeddings.py MOVES.json --runs RECALL REPRESENT --page PAGE

MOVES.json is what `paper/embeddings.py` wrote; the runs are recall and probes of the same models,
each way of training a model with its seeds, the first the one that the others are compared with.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from unmask.base.reading import read_json
from unmask.blocks import blocks, labels, tidy
from unmask.measures.result import Result
from unmask.measures.runner import read_result
from unmask.report.document import Document, read_document
from unmask.report.page import write_document

MEASURES = {"cosine": "cosine, own minus other pairs", "retrieval": "reciprocal rank"}
LEAD = (
    "Networks with head and embedding trained apart, or as one. Where the embeddings, or both "
    "matrices, are left as they were before training, what ties a name to its description has to "
    "be in the layers."
)


def describe_moves(rows: Sequence[dict[str, Any]]) -> blocks.Section:
    """Every likeness beside chance; p is corrected for all rows of a way of training."""
    table = tidy.tabulate(
        "moves",
        "How alike the rows of a fact's name and of its description moved in training",
        rows,
        {
            "trained": "model",
            "seed": "seed",
            "facts": lambda row: labels.GROUPS[row["group"]],
            "rows of the": "table",
            "likeness": lambda row: MEASURES[row["measure"]],
            "pairs": "facts",
            blocks.Column("value", 3): tidy.to_interval,
            blocks.Column("shuffled", 3): "chance",
            blocks.Column("corrected p", 4): "p_holm",
        },
        role=lambda row: "strong" if row["p_holm"] <= 0.05 else "plain",
    )
    note = blocks.Text(
        "Trained minus start, over tokens that belong to one side of one fact alone. Where head "
        "and embedding are one matrix, its rows move for both reasons at once; a part that was "
        "left as it was has no rows here."
    )
    texts = [note, *map(blocks.Text, state_moves(rows))]
    return blocks.Section("moves", "Do names and descriptions move alike?", [*texts, table])


def state_moves(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The range of cosines over seeds and groups, for each way of training and matrix."""
    own = tidy.select(rows, measure="cosine")
    for (model, table), members in tidy.group_by(own, "model", "table").items():
        values = [row["mean"] for row in members]
        clear = sum(row["p_holm"] <= 0.05 for row in members)
        yield (
            f"{model}, {table}: rows of a fact's two sides are more alike than those of two facts "
            f"by {min(values):.2f} to {max(values):.2f} (seeds and groups of facts; corrected p at "
            f"most .05 in {clear} of {len(members)})."
        )


def answer(recall: Result, represent: Result) -> Iterator[str]:
    """Recall in reverse of each way of training, and probes at the embeddings."""
    cells = tidy.select(recall.summary["cells"], metric="hit")
    first, *others = tidy.distinct(cells, "model")
    probes = [row for row in represent.summary["probes"] if row["fitted"] != row["tested"]]
    for model in (first, *others):
        parts = []
        for split in filter(labels.is_reversed, tidy.distinct(cells, "split")):
            (cell,) = tidy.select(cells, model=model, split=split)
            part = f"{tidy.say(tidy.to_interval(cell), '%')} ({labels.name_split(split)})"
            which = {"one": first, "other": model, "split": split, "metric": "hit"}
            pairs = tidy.select(recall.summary["pairs"], **which)
            for pair in pairs:
                less = tidy.say(tidy.to_interval(pair), "points")
                part += f", {first} minus {model} {less}"
            parts.append(part)
        low = [row["mean"] for row in probes if (row["model"], row["layer"]) == (model, -1)]
        best = [row["mean"] for row in probes if row["model"] == model]
        yield (
            f"{model} recalls {'; '.join(parts)}. Probes across directions are right for "
            f"{100 * min(low):.0f} to {100 * max(low):.0f} % of the facts at the embeddings, and "
            f"for up to {100 * max(best):.0f} % at the best layer (chance "
            f"{100 * probes[0]['null_mean']:.0f} %)."
        )


def main(words: Sequence[str] | None = None) -> None:
    """Write the page that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("moves", type=Path, help="rows of paper/embeddings.py")
    parser.add_argument("--runs", nargs=2, type=Path, help="recall and probes of the same models")
    parser.add_argument("--page", type=Path, required=True, help="the .md or .html file to write")
    options: Any = parser.parse_args(words)
    section, title = describe_moves(read_json(options.moves)), "Is the reverse in the embeddings?"
    document = Document(title, LEAD, [], [section])
    if options.runs:
        recall, represent = map(read_result, options.runs)
        texts = [blocks.Text(text) for text in answer(recall, represent)]
        document = read_document(options.runs)
        answers = blocks.Section("answer", "The answer", texts)
        sections = [answers, section, *document.sections]
        document = replace(document, title=title, lead=LEAD, sections=sections)
    write_document(document, options.page)


if __name__ == "__main__":
    main()
