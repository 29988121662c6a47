"""Edits of a diffusion model and its causal twin: does the reverse follow, and if not, why?

    python paper/editing.py mdm=FOLDER ar=FOLDER --data DIR --out OUT
    python paper/editing.py reversal-mdm reversal-ar --out OUT   the shipped pair
    python paper/editing.py … --tiny                             a short search, to try the command

1. The layer is chosen on the last facts, with other objects. 2. Facts that a model recalls are
edited at that layer, with fresh objects, beside all controls and the statement learned. 3. The same
with swapped objects, ridges, reveals and other moments. Runs that are done are not done again;
`--on` says where they are worked on. report_editing.py draws the page of them.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from editing_tries import list_tries

from unmask.base.config import build
from unmask.base.engines import ON, find_engine
from unmask.blocks import labels
from unmask.blocks.tidy import distinct, select
from unmask.measures.contract import Inputs
from unmask.measures.edit import MEASURE, EditSettings
from unmask.measures.runner import read_result, run_measure, settle
from unmask.net.families import parse_families
from unmask.net.loading import inspect

CONTROLS = ("layer", "key", "delta", "tuned", "tuned-layer")
TINY: dict[str, Any] = {
    "paraphrases": 1,
    "neighbours": 1,
    "search_steps": 3,
    "prefixes": 1,
    "tune_updates": 3,
}
TINY |= {"shrink": 0.1, "moment_tokens": 2000, "steps": 2, "text_rows": 2}
DIFFUSION_ONLY = ("cycle", "random", "clean")
"""Changes that are nothing for a causal model."""


class Job(NamedTuple):
    """One run of `unmask edit`: its name, facts of each way of training, and what is special."""

    name: str
    facts: int
    changes: Mapping[str, Any]


class Runs:
    """The runs of a page, in folders of their own."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.engine = find_engine(options.on)
        self.families = parse_families(options.models)
        place = self.families[0].members[0]
        assert isinstance(place, str)
        self.config = inspect(place)[0].config

    def read(self, job: Job) -> tuple[Inputs, EditSettings]:
        """What a run is made from and with."""
        options = self.options
        changes: dict[str, Any] = {"facts": job.facts, "recalled": not options.tiny}
        changes |= {"text_rows": 16, "tune_updates": 200}
        changes |= {"moment_text": options.moment_text, "other_text": options.other_text}
        changes |= {"search_steps": options.search_steps, "lr": options.lr}
        changes |= {"tune_lr": options.tune_lr, **(TINY if options.tiny else {}), **job.changes}
        settings = settle(build(MEASURE.settings, changes, f"unmask.{MEASURE.name}"))
        assert isinstance(settings, EditSettings)
        return MEASURE.inputs.read(self.list_given(job), settings), settings

    def list_given(self, job: Job) -> dict[str, Any]:
        """What a run is made from: a causal model has no part in changes of diffusion alone."""
        pairs = zip(self.options.models, self.families, strict=True)
        is_diffusion = job.name in DIFFUSION_ONLY
        models = [
            spec for spec, family in pairs if not (is_diffusion and labels.is_causal(family.kind))
        ]
        return {"models": models, "data": self.options.data}

    def run(self, job: Job) -> None:
        """Do what is missing of a run, in this process or by several."""
        print(job.name, flush=True)
        (inputs, settings), given = self.read(job), self.list_given(job)
        run_measure(
            MEASURE, inputs, settings, self.options.out / job.name, False, self.engine, given
        )

    def choose_place(self) -> tuple[int, float]:
        """The layer and the clamp that do best over both models, on other facts and objects.

        Best: the harmonic mean by likelihood plus the share of new objects that is said; where
        that is equal, the larger gain.
        """
        options = self.options
        layers = options.layers or sorted({self.config.layers * i // 6 for i in range(5)})
        other = {"skip": options.facts, "seed": 1, "recalled": False, "text_rows": 0}
        jobs = [
            Job(f"layer-{i}-{clamp:g}", options.few, {"layer": str(i), "clamp": clamp, **other})
            for i, clamp in product(layers, options.clamps)
        ]
        for job in jobs:
            self.run(job)
        tries = list_tries(read_result(options.out / job.name) for job in jobs)

        def rate(place: tuple[int, float]) -> tuple[float, float]:
            own = select(tries, place=place)
            best = sum((row["score"] or 0.0) + row["said"] for row in own)
            return best, sum(row["gain"] for row in own)

        return max(distinct(tries, "place"), key=rate)

    def list_changes(self, layer: int, clamp: float) -> Iterator[Job]:
        """The main run, and those that differ from it in one thing."""
        options, width = self.options, self.config.mlp_width
        top = max(layer, min(2, self.config.layers - 2))  # the last layer is not edited
        near = range(max(0, top - 2), top + 1)
        place = {"layer": str(layer), "clamp": clamp}
        settings: dict[str, dict[str, Any]] = {
            "edit": {"controls": CONTROLS, "step_counts": (1, 32), "lengths": options.lengths},
            "swap": {"objects": "swap"},
            "ridge-low": {"ridge": width / 10},
            "ridge-high": {"ridge": float(width)},
            "cycle": {"reveal": "cycle"},
            "random": {"reveal": "random"},
            "clean": {"moments": "clean"},
            "identity": {"moments": "identity"},
            "spread": {"layer": ",".join(map(str, near))},
        }
        if options.few_controls:
            # Learned statements take most of the time: controls are of fewer facts than the edits.
            yield Job("controls", options.few, {**place, **settings["edit"]})
            settings["edit"] = {}
        for name, changes in settings.items():
            facts = options.facts if name == "edit" or not options.few_controls else options.few
            yield Job(name, facts, {**place, **changes})


def parse_options(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("models", nargs="+", help="a diffusion model and its twin")
    parser.add_argument("--data", help="a corpus folder; by default that of a shipped model")
    parser.add_argument("--moment-text", help="a file of text for the moments of keys")
    parser.add_argument("--other-text", help="a file of text that no training showed")
    parser.add_argument("--out", type=Path, required=True, help="the folder of runs")
    parser.add_argument("--facts", type=int, default=20, help="of each way of training")
    parser.add_argument("--few", type=int, default=8, help="facts of each to choose the layer on")
    parser.add_argument("--few-controls", action="store_true", help="controls of so few, too")
    parser.add_argument("--layers", nargs="+", type=int, help="to choose from")
    parser.add_argument("--lengths", nargs="+", type=int, default=(), help="further canvases")
    parser.add_argument("--clamps", nargs="+", type=float, default=(4.0, 10.0), help="of values")
    parser.add_argument("--search-steps", type=int, default=20, help="of the search for values")
    parser.add_argument("--lr", type=float, default=0.5, help="of the search for values")
    parser.add_argument("--tune-lr", type=float, default=1e-4, help="of learned statements")
    parser.add_argument("--on", help=ON)
    parser.add_argument("--tiny", action="store_true", help="a short search, any facts")
    options = parser.parse_args(words)
    options.lengths = tuple(options.lengths)
    return options


def main() -> None:
    runs = Runs(parse_options())
    layer, clamp = runs.choose_place()
    print(f"layer {layer} and a clamp of {clamp:g} are chosen", flush=True)
    for job in runs.list_changes(layer, clamp):
        runs.run(job)


if __name__ == "__main__":
    main()
