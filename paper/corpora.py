"""Corpora in which the published contrast is 0 against 100: every objective, three seeds.

    python paper/corpora.py --out DIR --page docs/results/corpora.md
    python paper/corpora.py --out DIR --page PAGE --tiny     a few steps, to try the command

Trains each row on each corpus, asks all tests, and writes the tables and the page. Rows that were
trained are not trained again.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import unmask
from unmask.base.files import replace_file
from unmask.base.tables import write_table
from unmask.blocks.blocks import Column, Row, Section, Table, Text
from unmask.blocks.labels import count
from unmask.blocks.tidy import select, to_interval
from unmask.data.sources import WORD_CORPORA
from unmask.evaluation.metrics import score_members
from unmask.report.document import Document
from unmask.report.render_markdown import render_markdown
from unmask.results.summaries import estimate_means
from unmask.training.recipes_io import read_recipe

SEEDS = (0, 1, 2)
STEPS = 8
"""Denoising steps of an answer; an autoregressive model has none."""
MOST_PROMPTS = 120
"""Of a test."""
QUIET = ("cadence.evaluate=0", "cadence.facts=0", "cadence.samples=0", "cadence.checkpoint=0")
TINY = ("budget.steps=10", "data.facts=20", "batch.rows=16", "network.changes.width=32")
METRICS = ("strict", "f1")


@dataclass(frozen=True)
class Learner:
    """A row of the tables: a recipe, changed."""

    label: str
    recipe: str
    changes: tuple[str, ...] = ()


LEARNERS = {
    "mdm": Learner("masked diffusion", "retrieval-mdm"),
    **{
        f"rate-{percent}": Learner(
            f"masked at a fixed rate of {percent} %",
            "retrieval-mdm",
            ("objective.name=fixed_rate", f"objective.rate={percent / 100}"),
        )
        for percent in (15, 40, 85)
    },
    "ar": Learner("autoregressive", "retrieval-ar"),
    "ar-reversed": Learner(
        "autoregressive, every line also with its entities reversed",
        "retrieval-ar",
        ("data.reverse_entities=true",),
    ),
}


@dataclass(frozen=True)
class Task:
    """A corpus: how its recipes differ, which split stands in which column, what was published."""

    title: str
    text: str
    metric: str
    columns: Mapping[str, str]
    changes: tuple[str, ...] = ()
    published: Mapping[str, Sequence[str]] | None = None


PUBLISHED = "Kitouni et al. 2024 (arXiv 2406.05183), networks of about 109 M parameters"
TASKS = {
    "retrieval": Task(
        "Retrieval",
        "Pairs of a key and a value, two unique tokens each; every pair is stated `key : value`. "
        "Exact match, in percent, on pairs that no question of either form was trained of.",
        "strict",
        {"p2d_same": "forward", "p2d_reverse": "backward"},
        published={
            "MLM-U (masked at rates drawn evenly)": ("100", "100"),
            "MLM at 15 %": ("21", "22"),
            "MLM at 40 %": ("17", "16"),
            "MLM at 85 %": ("27", "28"),
            "autoregressive": ("100", "0"),
            "autoregressive, tokens reversed": ("100", "0"),
        },
    ),
    "relationship": Task(
        "Relationship",
        "Chains A → B → C, stated as `A > B` and `B > C`; B is given. Exact match, in percent; the "
        "last two columns are answers with the neighbour on the other side.",
        "strict",
        {
            "p2d_same": "after B",
            "p2d_reverse": "before B",
            "p2d_same_false": "A given for after",
            "p2d_reverse_false": "C given for before",
        },
        ("data.source=relationship", "budget.steps=3000"),
        {
            "MLM-U (masked at rates drawn evenly)": ("100", "100", "0", ""),
            "MLM at 15 to 85 %": ("24 to 77", "19 to 35", "0 to 1", ""),
            "autoregressive, entities reversed": ("54", "53", "44", ""),
            "autoregressive, entities reversed and delimited": ("100", "100", "0", ""),
        },
    ),
    "sets": Task(
        "Sets",
        "Intersections and unions of sets of people. F1 of the members that were written, in "
        "percent, for pairs that were not trained and for three sets, of which none were.",
        "f1",
        {"unseen_pairs": "unseen pairs", "triples": "triples"},
        ("data.source=sets", "data.facts=20", "data.context=26", "budget.steps=4000"),
    ),
}


def list_changes(task: str, options: argparse.Namespace) -> list[str]:
    """What a task changes in every recipe."""
    return [*TASKS[task].changes, *QUIET, *(TINY if options.tiny else ())]


def train_all(task: str, options: argparse.Namespace) -> list[str]:
    """Every row's models with all seeds, as `unmask.recall` takes them."""
    models, shared = [], list_changes(task, options)
    for name, learner in LEARNERS.items():
        out = options.out / task / name
        places = [out / f"seed-{seed}" / "model" for seed in options.seeds]
        if not all(place.is_dir() for place in places):
            changes = (*learner.changes, *shared)
            unmask.train_seeds(learner.recipe, out, options.seeds, *changes)
        models.append(f"{name}={','.join(map(str, places))}")
        print(f"{task}: {learner.label}: trained", flush=True)
    return models


def measure(task: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A mean with its interval for each row, test and metric; also as a Parquet file."""
    models = train_all(task, options)
    data = read_recipe(LEARNERS["mdm"].recipe, list_changes(task, options)).data
    corpus = WORD_CORPORA[task](data.facts, data.seed)
    result = unmask.recall(
        *models,
        data=corpus,
        out=options.out / task / "recall",
        steps=(STEPS,),
        guidance=0.0,
        limit=MOST_PROMPTS,
        controls=False,
        dtype="float32",
    )
    rows = result.tables["recall"].to_pylist()
    for row in rows:
        row["f1"] = score_members(row["generation"], row["completion"])
    cells = estimate_means(rows, ("model", "split"), METRICS, METRICS)
    write_table(options.out / f"{task}.parquet", cells, f"{task}/1")
    return cells


def describe(name: str, cells: list[dict[str, Any]], options: argparse.Namespace) -> Section:
    """One task's section: what was asked, our rows, and the published ones below them."""
    task = TASKS[name]
    recipe = read_recipe(LEARNERS["mdm"].recipe, list_changes(name, options))
    columns = [Column("trained as"), *(Column(label, 0, True) for label in task.columns.values())]
    rows = []
    for model, learner in LEARNERS.items():
        found = [select(cells, model=model, split=split, metric=task.metric)
                 for split in task.columns]  # fmt: skip
        rows.append(Row([learner.label, *(to_interval(next(iter(each))) for each in found)]))
    for label, values in (task.published or {}).items():
        rows.append(Row([f"published: {label}", *values], "published"))
    facts = max(cell["facts"] for cell in cells if cell["split"] in task.columns)
    seeds, num_facts = count(len(options.seeds), "training seed"), count(facts, "fact")
    made = (
        f"{recipe.budget.steps:,} steps of {recipe.batch.rows} rows; {seeds}, {num_facts}; 95 % "
        "intervals by fact and training seed."
    )
    blocks = [Text(task.text), Table(name, made, columns, rows, most=len(rows))]
    if task.published:
        blocks.append(
            Text(f"Published: {PUBLISHED}; the corpus is made anew after their description.")
        )
    return Section(name, task.title, blocks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="the folder of runs and tables")
    parser.add_argument("--page", type=Path, required=True, help="the Markdown page to write")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--tiny", action="store_true", help="a few steps of tiny networks")
    options = parser.parse_args()
    sections = [describe(task, measure(task, options), options) for task in options.tasks]
    lead = (
        "Three small corpora of unique tokens (`unmask data make retrieval`, `relationship`, "
        "`sets`), on which one small network is trained with every objective. Guessing gives next "
        "to nothing, so that a model has a relation both ways, one way, or not at all."
    )
    text = render_markdown(
        Document("Corpora of unique tokens", lead, [], sections),
        lambda section, figure: [],
        lambda section, table: "",
    )
    with replace_file(options.page) as draft:
        draft.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
