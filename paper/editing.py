"""Edits of a diffusion model and its causal twin: does the reverse follow, and if not, why?

    python paper/editing.py mdm=FOLDER ar=FOLDER --data DIR --out OUT --page docs/results/editing.md
    python paper/editing.py reversal-mdm reversal-ar --out OUT --page PAGE      the shipped pair
    python paper/editing.py … --tiny                             a short search, to try the command

1. The layer is chosen on the last facts, with other objects. 2. Facts that a model recalls are
edited at that layer, with fresh objects, beside all controls and the statement learned. 3. The same
with swapped objects, ridges, reveals and other moments. Runs that are done are not done again.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from unmask.blocks import labels
from unmask.blocks.blocks import Column, ReportBlock, Section, Table, Text
from unmask.blocks.tidy import distinct, say, select, tabulate, to_interval
from unmask.evaluation.statistics import Interval
from unmask.measures.edit import MEASURE
from unmask.measures.result import Result
from unmask.net.families import parse_families
from unmask.net.loading import inspect
from unmask.report.document import Document
from unmask.report.page import write_document

CONTROLS = ("layer", "key", "delta", "tuned", "tuned-layer")
TINY: dict[str, Any] = {
    "paraphrases": 1,
    "neighbours": 1,
    "search_steps": 3,
    "prefixes": 1,
    "tune_updates": 3,
}
TINY |= {"shrink": 0.1, "moment_tokens": 2000, "steps": 2, "text_rows": 2}
CHANGES = {
    "edit": "fresh objects, ridge 0",
    "swap": "swapped objects",
    "ridge-low": "ridge of a tenth of the key's width",
    "ridge-high": "ridge of the key's width",
    "cycle": "step modulo length tokens shown",
    "random": "a random number of tokens shown",
    "clean": "moments of clean text",
    "identity": "moments: the identity",
    "spread": "spread over three layers",
}
DIFFUSION_ONLY = ("cycle", "random", "clean")
"""Changes that are nothing for a causal model."""


class Runs:
    """The runs of a page, in folders of their own."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.families = parse_families(options.models)
        place = self.families[0].members[0]
        assert isinstance(place, str)
        self.config = inspect(place)[0].config

    def run(
        self, name: str, facts: int, changes: Mapping[str, Any], is_diffusion: bool = False
    ) -> Result:
        """One run of `unmask edit`."""
        options = self.options
        pairs = zip(options.models, self.families, strict=True)
        models = [
            spec for spec, family in pairs if not (is_diffusion and labels.is_causal(family.kind))
        ]
        settings: dict[str, Any] = {"facts": facts, "recalled": not options.tiny}
        settings |= {"text_rows": 16, "tune_updates": 200}
        settings |= {"moment_text": options.moment_text, "other_text": options.other_text}
        settings |= {"tune_lr": options.tune_lr, **(TINY if options.tiny else {})}
        print(f"{name}: {', '.join(models)}", flush=True)
        settings |= changes
        return MEASURE(*models, data=options.data, out=options.out / name, **settings)

    def choose_place(self) -> tuple[int, float, Table]:
        """The layer and the clamp that do best over both models, on other facts and objects.

        Best: the harmonic mean by likelihood plus the share of new objects that is said; where
        that is equal, the larger gain.
        """
        options = self.options
        layers = options.layers or sorted({self.config.layers * i // 6 for i in range(5)})
        tries = []
        for layer, clamp in product(layers, options.clamps):
            place = {"layer": str(layer), "clamp": clamp}
            other = {"skip": options.facts, "seed": 1, "recalled": False, "text_rows": 0}
            result = self.run(f"layer-{layer}-{clamp:g}", options.few, place | other)
            for score in result.summary["scores"]:
                means = _take(result, score["model"], "edited")
                own = {"place": (layer, clamp), "layer": layer, "clamp": clamp}
                own |= {"said": means["said_after"].mean, "gain": means["gain"].mean}
                tries.append({**score, **own})

        def rate(place: tuple[int, float]) -> tuple[float, float]:
            own = select(tries, place=place)
            best = sum((row["score"] or 0.0) + row["said"] for row in own)
            return best, sum(row["gain"] for row in own)

        layer, clamp = max(distinct(tries, "place"), key=rate)
        columns: dict[str | Column, str] = {"layer": "layer", "clamp": "clamp", "model": "model"}
        names = {"efficacy": "edited", "paraphrase": "paraphrase", "said": "said"}
        names |= {"neighbourhood": "neighbour", "harmonic mean": "score"}
        for name, column in names.items():
            columns[Column(f"{name}, %", 1, is_percent=True)] = column
        columns[Column("gain, nats per token", 2)] = "gain"
        title = (
            f"Layer {layer} and a clamp of {clamp:g}, chosen on the last facts of each way of "
            "training, with other objects"
        )
        return layer, clamp, tabulate("layers", title, tries, columns, most=len(tries))

    def list_changes(self, layer: int, clamp: float) -> Iterator[tuple[str, Result]]:
        """The main run, and those that differ from it in one thing."""
        options, width = self.options, self.config.mlp_width
        near = [i for i in range(layer - 2, layer + 1) if i >= 0]
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
            yield (
                "controls",
                self.run("controls", options.few, {**place, **settings["edit"]}),
            )
            settings["edit"] = {}
        for name, changes in settings.items():
            facts = options.facts if name == "edit" or not options.few_controls else options.few
            yield name, self.run(name, facts, {**place, **changes}, name in DIFFUSION_ONLY)


def answer(result: Result, controls: Result) -> Iterator[ReportBlock]:
    """What the edits say, in plain words, model by model."""
    for row in result.summary["differences"]:
        model, kind = row["model"], labels.KINDS[row["kind"]]
        back = _take(result, model, "reverse new")
        forth = _take(result, model, "edited")
        yield Text(
            f"{model} ({kind}): {_conclude(forth, back)}. Asked as edited it says "
            f"{say(forth['said_after'], '%')} of the new objects, and prefers "
            f"{say(forth['success_after'], '%')} of them to the old ones. Given the new "
            f"object it names {say(back['said_after'], '%')} of the edited subjects (without "
            f"the edit {say(back['said_before'], '%')}); their log-probability changes by "
            f"{say(back['gain'], 'nats per token', has_sign=True)}. Of the edit "
            f"{say(back['share'], '%')} acts at the end of the given object."
        )
        for variant in ("tuned", "tuned-layer"):
            yield Text(_explain(controls, model, variant))


def _conclude(forth: Mapping[str, Interval], back: Mapping[str, Interval]) -> str:
    """Whether the reverse follows an edit that took."""
    if forth["success_after"].low <= 0.5:
        return "most edits cannot be said to have taken, so that the reverse has nothing to follow"
    if back["said_after"].low > back["said_before"].high:
        return "the reverse follows"
    if back["gain"].low > 0:
        return "the reverse becomes likelier, but is not clearly said more often"
    return "the reverse is not seen to follow"


def _explain(result: Result, model: str, variant: str) -> str:
    """What the learned statement says about the reason."""
    where = {"model": model, "variant": variant}
    (reached,) = select(result.summary["changes"], metric="reached", **where)
    place = "the whole network" if variant == "tuned" else "the edited projections alone"
    learned = (
        f"Learned in {place} by the model's own objective, {say(to_interval(reached), '%')} of the "
        "statements became as likely as under the edit"
    )
    rows = {row["metric"]: row for row in select(result.summary["baseline"], **where)}
    if not rows:
        return f"{learned}: too few to be held against it."
    gain, said = to_interval(rows["gain"]), to_interval(rows["said_after"])
    own = _take(result, model, "reverse new", variant)
    if said.low > 0:
        reason = "learning reaches the reverse where the edit does not"
    elif gain.low > 0:
        reason = "likelier than under the edit, but not clearly said more often"
    elif gain.high < 0:
        reason = "learning by the own objective does worse than the write"
    else:
        reason = "no clear difference between the two"
    return (
        f"{learned} ({rows['gain']['facts']} facts). In reverse they name "
        f"{say(own['said_after'], '%')} of the subjects, {say(said, 'points')} more than the edit, "
        f"and gain {say(gain, 'nats per token', has_sign=True)} beside it: {reason}."
    )


def _take(result: Result, model: str, role: str, variant: str | None = None) -> dict[str, Interval]:
    """The means of a model's question, by metric."""
    rows = select(result.summary["means"], model=model, role=role)
    if variant is not None:
        rows = select(result.summary["controls"], model=model, role=role, variant=variant)
    return {row["metric"]: to_interval(row) for row in rows}


def compare(runs: Mapping[str, Result], facts: int) -> Table:
    """A row for each change and model, all of the same facts."""
    rows = []
    for name, label in CHANGES.items():
        for score in runs[name].summary["scores"] if name in runs else ():
            own = {"change": label, "model": score["model"], "score": score["score"]}
            for role, short in (("edited", "forth"), ("reverse new", "back")):
                values = _take(runs[name], score["model"], role)
                own |= {f"{short}_{metric}": value for metric, value in values.items()}
            texts = select(runs[name].summary["changes"], model=score["model"], variant="edit")
            own |= {row["metric"]: to_interval(row) for row in texts}
            rows.append(own)
    columns = {
        "change": "change",
        "model": "model",
        Column("efficacy, %", 1, is_percent=True): "forth_success_after",
        Column("harmonic mean, %", 1, is_percent=True): "score",
        Column("said, %", 1, is_percent=True): "forth_said_after",
        Column("subject said in reverse, %", 1, is_percent=True): "back_said_after",
        Column("gain in reverse, nats per token", 2): "back_gain",
        Column("norm", 2): "magnitude",
        Column("KL of other text, nats per token", 4): lambda row: row.get("text_kl"),
    }
    title = (
        "The edit, and what changes where one thing differs, "
        f"{labels.count(facts, 'fact')} of each way of training"
    )
    return tabulate("variants", title, rows, columns, most=len(rows))


def describe(result: Result, name: str, title: str) -> Section:
    """A run's own section under another name."""
    section = result.section
    return Section(name, title, section.blocks)


def write_page(options: argparse.Namespace) -> None:
    runs = Runs(options)
    layer, clamp, chosen = runs.choose_place()
    results = dict(runs.list_changes(layer, clamp))
    main, controls = results["edit"], results.get("controls", results["edit"])
    facts = options.few if "controls" in results else options.facts
    changes = compare({**results, "edit": controls}, facts)
    sections: Sequence[Section] = [
        Section("answer", "The answer", list(answer(main, controls))),
        Section("changes", "One thing at a time", [changes, chosen]),
        describe(main, "edits", "All edits with fresh objects"),
    ]
    if "controls" in results:
        sections = [*sections, describe(controls, "controls", "Controls, on fewer facts")]
    names = " and ".join(family.name for family in runs.families)
    lead = (
        f"{names}: new objects written into the down projection of layer {layer}, one fact at a "
        f"time, {options.facts} facts of each way of training (name first, description first, "
        "both), half of them edited name → description and half the other way; only facts that the "
        "model says before, asked as they were trained. Fresh objects stand in no training text. "
        "Intervals are 95 %, by fact."
    )
    title = "Edits, and whether the reverse follows"
    write_document(Document(title, lead, [], sections, is_single=False), options.page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("models", nargs="+", help="a diffusion model and its twin")
    parser.add_argument("--data", help="a corpus folder; by default that of a shipped model")
    parser.add_argument("--moment-text", help="a file of text for the moments of keys")
    parser.add_argument("--other-text", help="a file of text that no training showed")
    parser.add_argument("--out", type=Path, required=True, help="the folder of runs")
    parser.add_argument("--page", type=Path, required=True, help="the Markdown page to write")
    parser.add_argument("--facts", type=int, default=20, help="of each way of training")
    parser.add_argument("--few", type=int, default=8, help="facts of each to choose the layer on")
    parser.add_argument("--few-controls", action="store_true", help="controls of so few, too")
    parser.add_argument("--layers", nargs="+", type=int, help="to choose from")
    parser.add_argument("--lengths", nargs="+", type=int, default=(), help="further canvases")
    parser.add_argument("--clamps", nargs="+", type=float, default=(4.0, 10.0), help="of values")
    parser.add_argument("--tune-lr", type=float, default=1e-4, help="of learned statements")
    parser.add_argument("--tiny", action="store_true", help="a short search, any facts")
    options = parser.parse_args()
    options.lengths = tuple(options.lengths)
    write_page(options)


if __name__ == "__main__":
    main()
