"""Writes what the study's page shows of full runs, unmask/assets/results, from docs/results.

    python tools/store_results.py

Of recall and of keys and values the numbers that a page prints, the latter at the layer where
names' values find their keys best; of traces the averages of the residual stream, the facts and the
tests.
"""

import csv
import shutil
from collections.abc import Mapping
from pathlib import Path

from pyarrow.compute import field

from unmask.base.runs import write_record
from unmask.base.tables import write_table
from unmask.blocks import labels, tidy
from unmask.measures.recall_summary import widen
from unmask.measures.result import Result
from unmask.measures.runner import SUMMARY, pool_results, read_result, summary_schema
from unmask.measures.trainings import join_openings

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
STORED = ROOT / "unmask" / "assets" / "results"
SPLITS = ("d2p_same", "d2p_reverse", "p2d_same", "p2d_reverse")
DIFFUSION, CAUSAL = "mdm, guidance 0", "ar"
PARTS = ("resid", "clean", "corrupted", "asked")
"""Of a trace, what is shown: restored states, and the scores that they are compared with."""


def store_recall() -> None:
    """The study's pair at every number of steps, by the rule that each way of asking is told by."""
    openings = [read_result(RESULTS / "tables" / f"opening-{i}" / "recall") for i in range(3)]
    cells = tidy.select(join_openings(openings).summary["cells"], is_headline=True)
    lines = ["model,kind,split,steps,percent,low,high"]
    for model, label in ((DIFFUSION, "mdm,masked"), (CAUSAL, "ar,causal")):
        own = [widen(row) for row in cells if row["model"] == model and row["split"] in SPLITS]
        for row in sorted(own, key=lambda row: (row["steps"] or 0, SPLITS.index(row["split"]))):
            values = (f"{100 * row[end]:.1f}" for end in tidy.ENDS)
            lines.append(",".join([label, row["split"], str(row["steps"] or ""), *values]))
    (STORED / "recall-berglund.csv").write_text("\n".join(lines) + "\n", "utf-8")


def store_likenesses(page: str, file: str, models: Mapping[str, str]) -> None:
    """Every measure of the models, at one layer each; what is read without masks is left out."""
    names = [{label: name for name, label in each.items()}
             for each in (labels.GROUPS, labels.COMPARED, labels.LIKENESSES)]  # fmt: skip
    with (RESULTS / page / "symmetry-measures.csv").open(encoding="utf-8") as source:
        rows = [row for row in csv.DictReader(source) if row["model"] in models]
    sides = ("likeness", "shuffled")
    columns = "model,kind,group,layer,comparison,measure,value,low,high"
    lines = [f"{columns},null_mean,null_low,null_high,p,p_holm"]
    for model, label in models.items():
        found = [row for row in rows if row["model"] == model]
        first_hits = [row for row in found if row["measure"] == labels.LIKENESSES["top-1"]
                      and row["compared"] == labels.COMPARED["name: key and value"]]  # fmt: skip
        best = max(first_hits, key=lambda row: float(row["likeness"]))["layer"]
        for row in (row for row in found if row["layer"] == best):
            keys = [own[row[column]] for own, column in
                    zip(names, ("facts", "compared", "measure"), strict=True)]  # fmt: skip
            if keys[1].endswith("no masks"):
                continue
            ends = [float(row[side + end]) for side in sides for end in ("", ", low", ", high")]
            p = [float(row[column]) for column in ("p", "corrected p")]
            values = (f"{value:.3f}" for value in (*ends, *p))
            lines.append(",".join([label, keys[0], best, *keys[1:], *values]))
    (STORED / file).write_text("\n".join(lines) + "\n", "utf-8")


def store_traces(result: Result, name: str) -> None:
    """Averages, facts and tests; single effects are in docs/results/tables."""
    folder = STORED / name
    shutil.rmtree(folder, ignore_errors=True)
    (folder / SUMMARY).mkdir(parents=True)
    measure, effects = result.measure, result.tables["trace"]
    shown = effects.filter(field("part").isin(PARTS))
    tables = {**result.tables, "trace": shown}
    summary = measure.make_summary(tables, result.settings)
    write_record(folder, result.records[0])
    for table, schema in measure.tables.items():
        rows = tables[table] if table == "facts" else tables[table].slice(0, 0)
        write_table(folder / f"{table}.parquet", rows, schema)
    for table, rows in summary.items():
        write_table(folder / SUMMARY / f"{table}.parquet", rows, summary_schema(measure, table))


def main() -> None:
    store_recall()
    store_likenesses(
        "symmetry", "symmetry.csv", {"reversal-mdm": "mdm,masked", "reversal-ar": "ar,causal"}
    )
    store_likenesses(
        "symmetry-berglund", "symmetry-berglund.csv", {"mdm": "mdm,masked", "ar": "ar,causal"}
    )
    tables = RESULTS / "tables"
    store_traces(read_result(tables / "shared-shipped" / "trace"), "tracing")
    trained = [
        join_openings([read_result(tables / "traces-2" / f"{name}{end}") for name in ("mdm", "ar")])
        for end in ("", "-swapped")
    ]
    store_traces(pool_results(trained), "tracing-berglund")


if __name__ == "__main__":
    main()
