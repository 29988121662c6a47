"""Writes what the study's page shows of full runs, unmask/assets/results, from docs/results.

    python tools/store_results.py

Of recall the numbers that a page prints; of traces the averages of the residual stream, the facts
and the tests. What version 0.1 made of keys and values (`symmetry*.csv`) stays as it is.
"""

import csv
import shutil
from pathlib import Path

from pyarrow.compute import field

from unmask.base.runs import write_record
from unmask.base.tables import write_table
from unmask.measures.result import Result
from unmask.measures.runner import SUMMARY, pool_results, read_result, summary_schema
from unmask.measures.trainings import join_openings

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
STORED = ROOT / "unmask" / "assets" / "results"
WAYS = {
    "d2p_same": "description → name, as trained",
    "d2p_reverse": "name → description, reversed",
    "p2d_same": "name → description, as trained",
    "p2d_reverse": "description → name, reversed",
}
DIFFUSION, CAUSAL = "mdm, guidance 0.8", "ar"
PARTS = ("resid", "clean", "corrupted", "asked")
"""Of a trace, what is shown: restored states, and the scores that they are compared with."""


def store_recall(page: str, name: str) -> None:
    """A diffusion model at every number of steps, and its twin, which has none."""
    with (RESULTS / page / "recall-steps.csv").open(encoding="utf-8") as file:
        rows = {(row["model"], row["steps"]): row for row in csv.DictReader(file)}
    lines = ["model,kind,split,steps,percent,low,high"]
    for (model, steps), row in sorted(rows.items(), key=lambda item: int(item[0][1] or 64)):
        if model in (DIFFUSION, CAUSAL):
            label = "mdm,masked" if model == DIFFUSION else "ar,causal"
            for split, way in WAYS.items():
                ends = (f"{100 * float(row[way + end]):.1f}" for end in ("", ", low", ", high"))
                lines.append(",".join([label, split, steps, *ends]))
    (STORED / name).write_text("\n".join(lines) + "\n", "utf-8")


def store_traces(result: Result, name: str) -> None:
    """Averages, facts and tests; single effects are in docs/results/tables."""
    folder = STORED / name
    shutil.rmtree(folder, ignore_errors=True)
    (folder / SUMMARY).mkdir(parents=True)
    measure, effects = result.measure, result.tables["trace"]
    shown = effects.filter(field("part").isin(PARTS))
    tables = {**result.tables, "trace": shown}
    summary = measure.summarise(tables, result.settings)
    write_record(folder, result.records[0])
    for table, schema in measure.tables.items():
        rows = tables[table] if table == "facts" else tables[table].slice(0, 0)
        write_table(folder / f"{table}.parquet", rows, schema)
    for table, rows in summary.items():
        write_table(folder / SUMMARY / f"{table}.parquet", rows, summary_schema(measure, table))


def main() -> None:
    store_recall("recall", "recall-berglund.csv")
    tables = RESULTS / "tables"
    store_traces(read_result(tables / "shared-shipped" / "trace"), "tracing")
    trained = [
        join_openings([read_result(tables / "traces-2" / f"{name}{end}") for name in ("mdm", "ar")])
        for end in ("", "-swapped")
    ]
    store_traces(pool_results(trained), "tracing-berglund")


if __name__ == "__main__":
    main()
