"""The page of tries to learn facts without losing the language.

    python paper/language_tries.py OUT --page docs/results/language-tries.md

OUT is the folder that paper/keep_language.py has finished; that of the last run is kept,
docs/results/tables/language-tries.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keep_language import COSTS, REVERSED, choose

from unmask.base.reading import read_json
from unmask.blocks.blocks import Column, Figure, Line, LinePanel, Row, Section, Table, Text
from unmask.report.document import Document
from unmask.report.page import write_document

HEADS = ("names, reversed", "names, far", "descriptions, reversed", "descriptions, far")
METHOD = (
    "Each try is one training on the phrasings that validation does not ask, with one seed, from "
    "one opened model. Names count where they are contained, descriptions by content; far "
    "phrasings end as no training prompt does. 16 steps, no guidance. Language: the bound on "
    "held-out Wikipedia in windows of 128 tokens, in nats per token. A few points of "
    "difference are noise."
)


def draw_tries(tries: Sequence[Mapping[str, Any]], start: float) -> Figure:
    """Recall against language lost: a line for each try, through its averages with the start."""
    names = [each["name"] for each in tries if "losses" in each and "share" not in each]
    lines = []
    for number, name in enumerate(names):
        line = [each for each in tries if each["name"].partition("@")[0] == name]
        line.sort(key=lambda each: each.get("share", 1))
        x, y = [each["nats"] - start for each in line], [average_recall(each) for each in line]
        lines.append(Line(name, f"p{number}", x, y))
    return Figure(
        "frontier",
        "Recall against language lost",
        "Mean of the four shares of the table. Along a line the weights go 60, 80 and 100 % of the "
        "way from the opened model's to the trained one's. Best is above and to the left.",
        "lines",
        {(): [LinePanel("", lines)]},
        xlabel="nats per token more than the opened model",
        ylabel="% in reverse",
    )


def average_recall(each: Mapping[str, Any]) -> float:
    return sum(each[metric][split] for metric, split in REVERSED) / len(REVERSED)


def describe_tries(tries: Sequence[Mapping[str, Any]]) -> Section:
    """Every try, the chosen one bold, those with the least language lost first."""
    (opened,) = (each for each in tries if each["name"] == "opened")
    best, rows = choose(list(map(dict, tries))), []
    for each in sorted(tries, key=lambda each: each["nats"]):
        shares = [each[metric][split] / 100 for metric, split in REVERSED]
        changes = ", ".join(each["changes"]) or "the recipe as it is"
        if "share" in each:
            changes += f", weights {each['share']:.0%} of the way from the opened model's"
        role = "strong" if each["name"] == best["name"] else "plain"
        lost = each["nats"] - opened["nats"]
        rows.append(Row([each["name"], changes, each["nats"], lost, *shares], role))
    columns = [Column("try"), Column("changes"), Column("nats per token", 2)]
    columns += [Column("more than opened", 2, has_sign=True)]
    columns += [Column(head, 1, is_percent=True) for head in HEADS]
    table = Table("tries", "Language and recall in reverse, %", columns, rows, most=40)
    within = best["nats"] - opened["nats"] <= COSTS
    sentence = (
        f"Chosen: {best['name']}, which costs {best['nats'] - opened['nats']:+.2f} nats per token "
        f"beside the opened model, {'within' if within else 'more than'} the {COSTS} aimed at."
    )
    return Section(
        "tries",
        "The tries",
        [Text(sentence), draw_tries(tries, opened["nats"]), table, Text(METHOD)],
    )


def main(words: Sequence[str] | None = None) -> None:
    """Write the page that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path, help="the folder of the tries")
    parser.add_argument("--page", type=Path, required=True, help="the .md file to write")
    options: Any = parser.parse_args(words)
    lead = "What helps a diffusion model to learn facts and keep its language, and what it costs."
    section = describe_tries(read_json(options.out / "tries.json"))
    title = "Facts learned without losing the language: the tries"
    write_document(Document(title, lead, [], [section]), options.page)


if __name__ == "__main__":
    main()
