"""The page on families: what the sweep measured, and the bound of one network under each schedule.

    python paper/families.py DIR --page docs/results/families.md

DIR is the folder of a sweep (paper/sweeps/families.yaml). Bounds by schedule are estimated once,
and kept in DIR/schedules.json.
"""

import argparse
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

from unmask.base.files import write_json
from unmask.base.reading import read_json_object
from unmask.blocks import tidy
from unmask.blocks.blocks import Column, Section, Text
from unmask.data.text import read_documents
from unmask.evaluation.perplexity import cut_documents, score_documents
from unmask.evaluation.statistics import Interval
from unmask.net.hub import RUN_MODEL
from unmask.net.loading import load
from unmask.noise.masked import Masked
from unmask.noise.schedules import Schedule, make_schedule
from unmask.objectives.likelihood import Estimate
from unmask.report.document import Document
from unmask.report.page import write_document
from unmask.sweep.compare import describe_sweep
from unmask.sweep.run import SweepOutcome, list_sweep_points, read_outcome
from unmask.sweep.summary import compare_sweep

KEPT, BOUND, EXACT_K = "schedules.json", "bound", "exact k"
SCHEDULES: dict[str, Schedule] = {
    "linear": make_schedule("linear"),
    "cosine": make_schedule("cosine"),
    "cubic": make_schedule("polynomial", power=3),
}
METHOD = (
    "Masked diffusion's bound depends on the network alone: a schedule says how often each number "
    "of masks is drawn, and the weights undo that. Each row is one trained network. `exact k` "
    "draws the number of masks without a schedule; the others draw times, and masks at the "
    "schedule's probability, and differ from it by the noise of the two estimates (95 % "
    "intervals, texts and network held fixed; rows share their draws, so that they err alike). "
    "What training makes of a schedule is another matter: the noise of its gradients differs, and "
    "so do the networks of the first table."
)


def measure_schedules(outcome: SweepOutcome) -> dict[str, Any]:
    """The bound of every masked network by exact k and under each schedule: nats, error, tokens."""
    entry, bounds = outcome.sweep.measures[BOUND], {}
    settings = entry.settings
    documents = cut_documents(list(read_documents([entry.data])), settings["limit"])
    for point in list_sweep_points(outcome.sweep, outcome.folder):
        if point.cell.recipe.kind != "masked" or point.cell.name not in outcome.done:
            continue
        model = load(point.folder / "train" / RUN_MODEL)
        own = {name: settings[name] for name in ("context", "stride", "repeats")}
        noise = model.make_process()
        assert isinstance(noise, Masked)
        processes = {name: replace(noise, schedule=each) for name, each in SCHEDULES.items()}
        costs = {
            name: score_documents(model, documents, **own, process=process)
            for name, process in {EXACT_K: None, **processes}.items()
        }
        totals = {name: reduce(add, each) for name, each in costs.items()}
        bounds[point.cell.name] = {name: vars(total) for name, total in totals.items()}
    return bounds


def describe_schedules(outcome: SweepOutcome, bounds: Mapping[str, Any]) -> Section:
    """Each network's bound, and how far every schedule's estimate of it lies from exact k's."""
    cells = {cell.name: cell for cell in outcome.sweep.cells}
    records = [{"cell": cells[name], **own} for name, own in bounds.items()]

    def compare(schedule: str) -> tidy.Get:
        def subtract(row: Mapping[str, Any]) -> Interval:
            one, other = Estimate(**row[schedule]), Estimate(**row[EXACT_K])
            difference = (one.nll - other.nll) / other.tokens
            reach = 1.96 * math.hypot(one.error, other.error) / other.tokens
            return Interval(difference, difference - reach, difference + reach)

        return subtract

    columns: dict[str | Column, tidy.Get] = {
        "trained as": lambda row: row["cell"].labels["family"],
        "seed": lambda row: row["cell"].labels["seed"],
        Column(EXACT_K, 4): lambda row: row[EXACT_K]["nll"] / row[EXACT_K]["tokens"],
    }
    columns |= {
        Column(f"{name} minus exact k", 4, has_sign=True): compare(name) for name in SCHEDULES
    }
    caption = "Nats per token: one network's bound under several schedules"
    table = tidy.tabulate("schedules", caption, records, columns)
    return Section("schedules", "The bound does not depend on the schedule", [Text(METHOD), table])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("sweep", type=Path, metavar="DIR", help="the folder of the sweep")
    parser.add_argument("--page", type=Path, required=True, help="the Markdown page to write")
    options = parser.parse_args()
    outcome = read_outcome(options.sweep)
    kept = options.sweep / KEPT
    if not kept.is_file():
        write_json(kept, measure_schedules(outcome))
    sections = [
        describe_sweep(outcome, compare_sweep(outcome.sweep, outcome.folder)),
        describe_schedules(outcome, read_json_object(kept)),
    ]
    write_document(Document(outcome.sweep.file.title, "", [], sections), options.page)


if __name__ == "__main__":
    main()
