"""The best recall of Berglund's facts in a few GPU minutes, by choices on validation alone.

    python paper/best_recall.py RECIPE --start MODEL --data FOLDER --out OUT [--minutes 10]
    python paper/best_recall.py berglund-smollm2-mdm --tiny --out OUT

A try is the best so far with one change more, and becomes the best where the mean of the four
validation cells is higher. A change of the recipe is trained on the split `choose`; one of the
sampler (`sampling.`) asks the best model again. OUT/tries.json is the log: what stands there is not
tried again. Last, the best is trained on all phrasings and asked the tests, once (OUT/recall,
OUT/final.json); after that nothing more is tried. A try that would leave the last training too
little of the minutes is left out.
"""

import argparse
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from factorial import make_tiny

import unmask
from unmask.base.files import write_json
from unmask.base.reading import parse_yaml, read_json
from unmask.blocks.tidy import select
from unmask.data.corpus import TESTS
from unmask.net.counts import count_parameters
from unmask.training.journal import read_journal
from unmask.training.recipe import Recipe
from unmask.training.recipes_io import read_recipe

SAMPLING = "sampling."
SAMPLER = {"steps": 32, "guidance": 0.0, "order": "confidence"}
"""How answers are drawn where no change says otherwise."""
TRIES = (
    "",
    "optimiser.rate=0.002",
    "optimiser.decay=1.0",
    "objective.subject=not_with_object",
    "network.dropout=0.1",
    "schedule.floor=0.0",
    "optimiser.name=muon",
    "budget.steps=3600",  # late, since what comes after it takes as long
    "sampling.order=left",
    "sampling.guidance=0.8",
    "sampling.guidance=0.4",
    "sampling.steps=64",
)
"""The changes; the first try is the recipe as it is."""
UNTRAINED = {"steps": None, "tokens": 0}


class Search:
    """The tries of one folder: their log, and while they go on the best one's run."""

    def __init__(self, options: argparse.Namespace):
        self.options, self.out = options, options.out
        self.path, self.runs = options.out / "tries.json", options.out / "runs"
        self.log: list[dict[str, Any]] = read_json(self.path) if self.path.is_file() else []

    @property
    def best(self) -> dict[str, Any]:
        """The first of the tries with the highest mean."""
        return max(self.log, key=lambda each: each["mean"])

    def run(self) -> None:
        """Everything that is left to do."""
        if (self.out / "final.json").is_file():
            print("the tests have been asked: nothing more is tried", flush=True)
            return
        done, left_out = {each["change"] for each in self.log}, []
        for change in self.options.tries:
            if change in done:
                continue
            if not self.fits(change):
                left_out.append(change)
                continue
            self.log.append(self.try_change(change))
            write_json(self.path, self.log)
            for run in self.runs.iterdir():
                if run.name != self.best["run"]:
                    shutil.rmtree(run)
            print(f"{change or 'as it is'}: {self.log[-1]['mean']:.1f} %", flush=True)
        write_json(self.out / "final.json", self.finish() | {"left_out": left_out})
        shutil.rmtree(self.runs)

    def fits(self, change: str) -> bool:
        """Whether the minutes allow for the try and, after it, the last training."""
        if not self.log:
            return True
        trained = [each for each in self.log if each["tokens"]]
        # Besides the steps: the least of all tries, since the first one compiled its kernels.
        besides = min(each["seconds"] - each["tokens"] / each["speed"] for each in trained)
        recipe = self.make_recipe(self.best["settings"] | parse_change(change), "train")
        last = besides + count_tokens(recipe) / self.best["speed"]
        used = sum(each["seconds"] for each in self.log)
        now = besides if change.startswith(SAMPLING) else last
        return used + now + last <= 60 * self.options.minutes

    def try_change(self, change: str) -> dict[str, Any]:
        """The line of the log: the validation cells and their mean in percent, and the cost.

        A training that its guards stop has no cells, and a mean of 0; the first one has to go well.
        """
        settings = (self.best["settings"] if self.log else {}) | parse_change(change)
        begun, cells = time.perf_counter(), {}
        try:
            if change.startswith(SAMPLING):
                run = {name: self.best[name] for name in ("run", "speed")} | UNTRAINED
            else:
                run = self.train(settings, "choose", f"try-{len(self.log)}")
        except unmask.UserError as error:
            if not self.log:
                raise
            print(f"{change}: {error}", flush=True)
            run = {"run": None, "speed": None} | UNTRAINED
        else:
            cells = self.ask(run["run"], self.runs / run["run"] / "asked", settings, "_valid")
        mean = sum(cells.values()) / len(TESTS)
        line = {"change": change, "settings": settings, "cells": cells, "mean": mean}
        return line | run | {"seconds": time.perf_counter() - begun}

    def finish(self) -> dict[str, Any]:
        """The best trained on all phrasings and asked the tests: with what, and at what cost."""
        settings, begun = self.best["settings"], time.perf_counter()
        steps = self.train(settings, "train", "final")["steps"]
        self.ask("final", self.out / "recall", settings)
        seconds = time.perf_counter() - begun
        model = unmask.load(self.runs / "final" / "model", device="cpu")
        parameters = count_parameters(model.net.config).total
        return {"settings": settings, "sampler": self.options.sampler | read_sampler(settings),
                "steps": steps, "parameters": parameters, "seconds": seconds}  # fmt: skip

    def train(self, settings: Mapping[str, str], split: str, name: str) -> dict[str, Any]:
        """A run of that name: its steps and tokens, and tokens a second at its end."""
        recipe = self.make_recipe(settings, split)
        outcome = unmask.train(recipe, self.runs / name, fresh=True)
        if outcome is None or outcome.ended != "done":
            raise KeyboardInterrupt  # a signal that training took for itself
        records = [each for each in read_journal(self.runs / name) if "tokens_per_second" in each]
        return {"run": name, "steps": recipe.budget.steps, "tokens": count_tokens(recipe),
                "speed": records[-1]["tokens_per_second"]}  # fmt: skip

    def make_recipe(self, settings: Mapping[str, str], split: str) -> Recipe:
        options = self.options
        given = {"start.model": options.start, "data.path": options.data, "data.split": split}
        given |= {"budget.steps": options.steps, "cadence.facts": 0, "cadence.samples": 0}
        given |= {"cadence.checkpoint": 0, "cadence.evaluate": 0} | options.given
        given |= {name: value for name, value in settings.items() if not name.startswith(SAMPLING)}
        return read_recipe(options.recipe, [f"{name}={value}" for name, value in given.items()])

    def ask(
        self, run: str, out: Path, settings: Mapping[str, str], ending: str = ""
    ) -> dict[str, float]:
        """Percent of the prompts of the four tests, or of their splits with that ending, that have
        their answer in the text."""
        sampler = self.options.sampler | read_sampler(settings)
        result = unmask.recall(
            f"best={self.runs / run / 'model'}",
            data=self.options.data,
            splits=tuple(f"{test}{ending}" for test in TESTS),
            limit=self.options.prompts,
            **sampler | {"steps": (sampler["steps"],)},
            out=out,
            fresh=True,
        )
        hits = {row["split"]: row["mean"] for row in select(result.summary["cells"], metric="hit")}
        return {test: 100 * hits[f"{test}{ending}"] for test in TESTS}


def parse_change(change: str) -> dict[str, str]:
    """The setting and its value; nothing for the recipe as it is."""
    name, _, value = change.partition("=")
    return {name: value} if change else {}


def read_sampler(settings: Mapping[str, str]) -> dict[str, Any]:
    """The changes of the sampler."""
    return {name.removeprefix(SAMPLING): parse_yaml(value, name)
            for name, value in settings.items() if name.startswith(SAMPLING)}  # fmt: skip


def count_tokens(recipe: Recipe) -> int:
    return recipe.batch.rows * recipe.input_length * (recipe.budget.steps or 0)


def parse_options(words: Sequence[str] | None) -> argparse.Namespace:
    """The options, as the module's first lines show them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("recipe", help="what all tries start from")
    parser.add_argument("--start", help="the model that training starts from")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tries", nargs="*", default=TRIES, help="one change each")
    parser.add_argument("--steps", type=int, default=1000, help="of a training; a try may differ")
    parser.add_argument("--minutes", type=float, default=10, help="for all tries and the tests")
    parser.add_argument("--tiny", action="store_true", help="random weights, a minute on a CPU")
    parser.set_defaults(prompts=None, given={}, sampler=SAMPLER)
    options = parser.parse_args(words)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.tiny:
        make_tiny(options)
        options.sampler = SAMPLER | {"steps": 2}
        options.given = {"batch.rows": 8, "schedule.warmup": 1, "cadence.log": 1}
        options.tries = [each for each in options.tries if not each.startswith("budget.")]
    elif options.start is None or options.data is None:
        parser.error("--start and --data are needed, or --tiny")
    return options


def main(words: Sequence[str] | None = None) -> None:
    Search(parse_options(words)).run()


if __name__ == "__main__":
    main()
