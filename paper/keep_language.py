"""Facts learned without losing the language: what was tried, on one opening with one seed.

    python paper/keep_language.py RECIPE --opened MODEL --plain MODEL --read MODEL \
        --facts FOLDER --shards FOLDER --text FILE --tries FILE --out OUT

Every try is the recipe with some settings changed, trained on the split `choose`, asked the
validation splits in near and far phrasings, and judged by its bound on held-out text.
OUT/tries.json is the log: what stands there is not tried again. `--processes` tries run side by
side. OUT/recipe.yaml is the recipe with the changes of the best try. Of those whose bound is at
most 0.5 nats per token above that of the try `opened` it is the one with the highest mean of four
shares: names and descriptions in reverse, near and far; where there is none, of the three with the
lowest bounds.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import unmask
from unmask.base.files import write_json
from unmask.base.reading import parse_yaml, read_json, read_text
from unmask.data.corpus import TESTS
from unmask.training.recipes_io import read_recipe, write_recipe

VALIDATION = tuple(f"{test}{ending}" for test in TESTS for ending in ("_valid", "_far_valid"))
PLACES = ("opened", "plain", "read", "facts", "shards")
"""Folders that a change names in capitals; `recipe=` names another recipe, `model=` a model to
judge as it is."""
METRICS = ("hit", "content", "surname")
REVERSED = (
    ("hit", "p2d_reverse_valid"), ("hit", "p2d_reverse_far_valid"),
    ("content", "d2p_reverse_valid"), ("content", "d2p_reverse_far_valid"),
)  # fmt: skip
"""The shares that tries are chosen by: names, then descriptions, each asked near and far."""
COSTS = 0.5
"""Nats per token that keeping the language may cost."""


def run_try(options: argparse.Namespace, name: str, changes: Sequence[str]) -> dict[str, Any]:
    """Train, ask, and judge; in this process."""
    import language_parts  # registers the objective and the source that tries may name

    language_parts.OPENED = str(options.opened)
    begun, run = time.perf_counter(), options.out / "runs" / name
    given = {
        "start.model": options.opened,
        "data.sources.facts.path": options.facts,
        "data.sources.text.path": options.shards,
        "data.sources.facts.split": "choose",
        "cadence.facts": 0, "cadence.samples": 0, "cadence.checkpoint": 0, "cadence.evaluate": 0,
    }  # fmt: skip
    settings = [f"{key}={value}" for key, value in given.items()]
    recipe, model = options.recipe, run / "model"
    for change in changes:
        for word in PLACES:
            change = change.replace(word.upper(), str(getattr(options, word)))
        if change.startswith("recipe="):
            recipe = change.removeprefix("recipe=")
        elif change.startswith("model="):
            model = Path(change.removeprefix("model="))
        else:
            settings.append(change)
    line: dict[str, Any] = {"name": name, "changes": list(changes)}
    if model == run / "model":
        unmask.train(recipe, run, *settings, fresh=True)
        records = unmask.training.journal.read_journal(run)
        line["losses"] = {k: v for k, v in records[-1].items() if k.startswith("loss")}
        line["training_seconds"] = records[-1]["seconds"]
    result = unmask.recall(
        f"model={model}", data=options.facts, splits=VALIDATION, steps=(16,), controls=False,
        limit=options.prompts, out=run / "asked", fresh=True,
    )  # fmt: skip
    for row in result.summary["cells"]:
        if row["metric"] in METRICS:
            line.setdefault(row["metric"], {})[row["split"]] = round(100 * row["mean"], 1)
    cost = unmask.perplexity(
        f"model={model}", data=options.text, limit=options.characters, context=128, stride=64,
        repeats=4, out=run / "cost", fresh=True,
    )  # fmt: skip
    (line["nats"],) = (row["per_token"] for row in cost.summary["models"])
    line["seconds"] = time.perf_counter() - begun
    return line


def choose(tries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The best try, by the rule that stands on top."""
    (opened,) = (each for each in tries if each["name"] == "opened")
    trained = sorted((each for each in tries if "losses" in each), key=lambda each: each["nats"])
    kept = [each for each in trained if each["nats"] <= opened["nats"] + COSTS]
    return max(
        kept or trained[:3],
        key=lambda each: sum(each[metric][split] for metric, split in REVERSED),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("recipe")
    for name in (*PLACES, "text", "out"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--tries", type=Path, help="a YAML file: a list of changes by name")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--prompts", type=int, default=None)
    parser.add_argument("--characters", type=int, default=120_000)
    parser.add_argument("--only", help="run this try here, and no other")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    tries = parse_yaml(read_text(options.tries), str(options.tries))
    logs = options.out / "log"
    logs.mkdir(exist_ok=True)
    if options.only:
        write_json(
            logs / f"{options.only}.json", run_try(options, options.only, tries[options.only])
        )
        return
    until = time.monotonic() + 60 * options.minutes

    def start(name: str) -> None:
        if (logs / f"{name}.json").is_file() or time.monotonic() > until:
            return
        with (logs / f"{name}.txt").open("w") as log:
            subprocess.run([sys.executable, *sys.argv, "--only", name], stdout=log, stderr=log,
                           env=os.environ | {"OMP_NUM_THREADS": "2"})  # fmt: skip
        if (logs / f"{name}.json").is_file():
            print(name, read_text(logs / f"{name}.json")[:3000], flush=True)
        else:
            print(name, "failed:", read_text(logs / f"{name}.txt")[-1500:], flush=True)

    with ThreadPoolExecutor(options.processes) as pool:
        list(pool.map(start, tries))
    done = [read_json(path) for path in sorted(logs.glob("*.json"))]
    write_json(options.out / "tries.json", done)
    changes = [change.replace("OPENED", str(options.opened)) for change in choose(done)["changes"]]
    write_recipe(read_recipe(options.recipe, changes), options.out / "recipe.yaml")


if __name__ == "__main__":
    main()
