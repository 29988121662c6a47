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
from unmask.blocks.labels import name_split
from unmask.measures.result import Result
from unmask.measures.runner import SUMMARY, pool_results, read_result, summary_schema
from unmask.measures.trainings import join_openings

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
STORED = ROOT / "unmask" / "assets" / "results"
SPLITS = ("d2p_same", "d2p_reverse", "p2d_same", "p2d_reverse")
DIFFUSION, CAUSAL = "mdm, guidance 0.8", "ar"
PARTS = ("resid", "clean", "corrupted", "asked")
"""Of a trace, what is shown: restored states, and the scores that they are compared with."""


def store_recall() -> None:
    """A diffusion model at every number of steps, and its twin, which has none."""
    with (RESULTS / "recall" / "recall-steps.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    lines = ["model,kind,split,steps,percent,low,high"]
    for model, label in ((DIFFUSION, "mdm,masked"), (CAUSAL, "ar,causal")):
        own = [row for row in rows if row["model"] == model]
        for row in sorted(own, key=lambda row: int(row["steps"] or 0)):
            for split in SPLITS:
                way = name_split(split)
                ends = (f"{100 * float(row[way + end]):.1f}" for end in ("", ", low", ", high"))
                lines.append(",".join([label, split, row["steps"], *ends]))
    (STORED / "recall-berglund.csv").write_text("\n".join(lines) + "\n", "utf-8")


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
    store_recall()
    tables = RESULTS / "tables"
    store_traces(read_result(tables / "shared-shipped" / "trace"), "tracing")
    trained = [
        join_openings([read_result(tables / "traces-2" / f"{name}{end}") for name in ("mdm", "ar")])
        for end in ("", "-swapped")
    ]
    store_traces(pool_results(trained), "tracing-berglund")


if __name__ == "__main__":
    main()
