"""The page on the best recall in a few GPU minutes: the goal, the tests, and the log of tries.

    python paper/recall_goal.py OUT --page docs/results/best-recall.md

OUT is the folder that paper/best_recall.py has finished.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unmask.base.reading import read_json
from unmask.blocks.blocks import Column, Row, Section, Table, Text
from unmask.blocks.labels import name_split
from unmask.blocks.tidy import select, to_interval
from unmask.evaluation.statistics import Interval
from unmask.measures.runner import read_result
from unmask.report.document import Document
from unmask.report.page import write_document

GOAL = {"d2p_same": 0.99, "d2p_reverse": 0.60, "p2d_same": 0.70, "p2d_reverse": 0.98}
"""For at most 135M parameters, 12 tries and 10 GPU minutes, the tests included."""
CELLS = [Column(name_split(test), 1, is_percent=True) for test in GOAL]
METHOD = (
    "A try is the best so far with one change more. Changes of the recipe were trained on the "
    "phrasings that validation does not ask, changes of the sampler asked the best model again. "
    "What raised the mean of the four validation cells was kept (bold). One seed each: between "
    "tries a few points are noise, and the highest of several means is above what it would be with "
    "another seed."
)


def describe_tests(cells: Mapping[str, Interval], final: Mapping[str, Any]) -> Section:
    """Each cell of the tests beside the goal, and the setting that was asked."""
    beyond = {test: cells[test].mean - goal for test, goal in GOAL.items()}
    judged = [
        f"{name_split(test)}: "
        + ("reached" if more >= 0 else f"missed by {-100 * more:.1f} points")
        for test, more in beyond.items()
    ]
    rows = [Row(["tests", *(cells[test] for test in GOAL)]),
            Row(["goal", *GOAL.values()], "published")]  # fmt: skip
    caption = "Answers recalled, % [95 % interval by fact]; one training run"
    table = Table("tests", caption, [Column(""), *CELLS], rows)
    changes = [f"`{name}={value}`" for name, value in final["settings"].items()]
    setting = (
        f"Chosen: {', '.join(changes) or 'the recipe as it is'}. So answers are written in "
        "{steps} steps, order {order}, guidance {guidance:g}. ".format(**final["sampler"])
        + f"The network has {final['parameters'] / 1e6:.1f}M parameters; it was trained on all "
        f"phrasings for {final['steps']:,} steps and asked the tests once."
    )
    sentence = f"By the means, {'; '.join(judged)}."
    return Section("tests", "The tests", [Text(sentence), table, Text(setting)])


def describe_tries(log: Sequence[Mapping[str, Any]], final: Mapping[str, Any]) -> Section:
    """Every try with its validation cells, in the order they were made."""
    rows, highest = [], -1.0
    for number, each in enumerate(log, 1):
        shares = [each["cells"].get(test, 0.0) / 100 for test in GOAL]
        values = [number, each["change"] or "the recipe as it is", each["steps"], *shares]
        values += [each["mean"] / 100, each["seconds"] / 60]
        rows.append(Row(values, "strong" if each["mean"] > highest else "plain"))
        highest = max(highest, each["mean"])
    columns = [
        Column("try"),
        Column("change"),
        Column("training steps"),
        *CELLS,
        Column("mean", 1, is_percent=True),
    ]
    table = Table("tries", "Validation, %", [*columns, Column("minutes", 1)], rows)
    tries, last = sum(each["seconds"] for each in log) / 60, final["seconds"] / 60
    cost = (
        f"{len(log)} tries took {tries:.1f} minutes, the last training with the tests {last:.1f}: "
        f"{tries + last:.1f} in all, compiling and asking included."
    )
    if final["left_out"]:
        cost += f" Left out for want of time: {', '.join(final['left_out'])}."
    return Section("tries", "The tries", [Text(METHOD), table, Text(cost)])


def read_cells(run: Path) -> dict[str, Interval]:
    """Recall of each test, with its interval by fact."""
    rows = select(read_result(run).summary["cells"], metric="hit")
    return {row["split"]: to_interval(row) for row in rows}


def make_document(
    cells: Mapping[str, Interval], log: Sequence[Mapping[str, Any]], final: Mapping[str, Any]
) -> Document:
    """The page."""
    lead = (
        "How much of Berglund's facts a network of at most 135M parameters recalls after at most "
        "12 tries within 10 GPU minutes, each judged on validation alone."
    )
    sections = [describe_tests(cells, final), describe_tries(log, final)]
    return Document("The best recall in ten GPU minutes, beside a goal", lead, [], sections)


def main(words: Sequence[str] | None = None) -> None:
    """Write the page that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path, help="the folder of the tries")
    parser.add_argument("--page", type=Path, required=True, help="the .md file to write")
    options: Any = parser.parse_args(words)
    log, final = (read_json(options.out / f"{name}.json") for name in ("tries", "final"))
    write_document(make_document(read_cells(options.out / "recall"), log, final), options.page)


if __name__ == "__main__":
    main()
