"""Edits of a diffusion model and its causal twin: does the reverse follow, and if not, why?

    python paper/editing.py mdm=FOLDER ar=FOLDER --data DIR --out OUT --page docs/results/editing.md
    python paper/editing.py reversal-mdm reversal-ar --out OUT --page PAGE      the shipped pair
    python paper/editing.py … --tiny                             a short search, to try the command

1. The layer is chosen on the last facts, with other objects. 2. Facts that a model recalls are
edited at that layer, with fresh objects, beside all controls and the statement learned. 3. The same
with swapped objects, ridges, reveals and other moments. Runs that are done are not done again;
`--processes` do several at once.
"""

import argparse
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch

from unmask.blocks import labels
from unmask.blocks.blocks import Column, ReportBlock, Section, Table, Text
from unmask.blocks.tidy import distinct, say, select, tabulate, to_interval
from unmask.data.corpus import Corpus
from unmask.data.facts import Direction
from unmask.editing.requests import OTHER
from unmask.evaluation.metrics import is_contained
from unmask.evaluation.statistics import Interval
from unmask.measures.edit import MEASURE
from unmask.measures.edit_section import OUTCOMES, SCORES, tabulate_outcomes
from unmask.measures.inputs import find_corpus
from unmask.measures.result import Result
from unmask.measures.summaries import estimate_means
from unmask.net.families import parse_families
from unmask.net.loading import inspect
from unmask.report.document import Document
from unmask.report.page import write_document
from unmask.representation.extraction import GROUPS, find_groups

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
WHEN = ("before", "after")
TRAINED = (
    "A masked objective also hides the subject and asks for it, so that learning trains a part of "
    "the reverse, which the edit does not: that the edit is low-rank is not shown to be the "
    "reason of a difference.",
    "This objective never asks for the subject given its object: learning does not train the "
    "reverse either.",
)
"""What learning a statement trains, of a diffusion and of a causal model."""
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
        self.families = parse_families(options.models)
        place = self.families[0].members[0]
        assert isinstance(place, str)
        self.config = inspect(place)[0].config

    def run(self, job: Job) -> Result:
        """Do a run, or read what is done."""
        options, is_diffusion = self.options, job.name in DIFFUSION_ONLY
        pairs = zip(options.models, self.families, strict=True)
        models = [
            spec for spec, family in pairs if not (is_diffusion and labels.is_causal(family.kind))
        ]
        settings: dict[str, Any] = {"facts": job.facts, "recalled": not options.tiny}
        settings |= {"text_rows": 16, "tune_updates": 200}
        settings |= {"moment_text": options.moment_text, "other_text": options.other_text}
        settings |= {"tune_lr": options.tune_lr, **(TINY if options.tiny else {})}
        print(f"{job.name}: {', '.join(models)}", flush=True)
        settings |= job.changes
        return MEASURE(*models, data=options.data, out=options.out / job.name, **settings)

    def run_all(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Result]]:
        """Every run with its result, in this process; where there are several, they do it first."""
        if self.options.processes > 1:
            # Left by an exception, a signal's among them, the pool ends its processes.
            share = get_memory_share() / self.options.processes
            context = multiprocessing.get_context("spawn")
            with context.Pool(self.options.processes, limit_memory, (share,)) as pool:
                pool.map(partial(do_job, self.options), jobs, chunksize=1)
        for job in jobs:
            yield job, self.run(job)

    def choose_place(self) -> tuple[int, float, Table]:
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
        tries = []
        for job, result in self.run_all(jobs):
            layer, clamp = int(job.changes["layer"]), job.changes["clamp"]
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
        columns |= SCORES | {Column("said, edited prompt, %", 1, is_percent=True): "said"}
        columns[Column("gain, nats per token", 2)] = "gain"
        title = (
            f"Layer {layer} and a clamp of {clamp:g}, chosen on the last facts of each way of "
            "training, with other objects"
        )
        return layer, clamp, tabulate("layers", title, tries, columns, most=len(tries))

    def list_changes(self, layer: int, clamp: float) -> Iterator[Job]:
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
            yield Job("controls", options.few, {**place, **settings["edit"]})
            settings["edit"] = {}
        for name, changes in settings.items():
            facts = options.facts if name == "edit" or not options.few_controls else options.few
            yield Job(name, facts, {**place, **changes})


def get_memory_share() -> float:
    """The part of the GPU's memory that this process may use."""
    return torch.cuda.get_per_process_memory_fraction() if torch.cuda.is_available() else 1.0


def limit_memory(share: float) -> None:
    """Let this process use a part of the GPU's memory, so that others find theirs."""
    if torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(share)


def do_job(options: argparse.Namespace, job: Job) -> None:
    """Do a run in a process of its own; its folder has the result."""
    Runs(options).run(job)


def answer(
    result: Result, controls: Result, swap: Result, owners: Mapping[str, str]
) -> Iterator[ReportBlock]:
    """What the edits say, in plain words, model by model, and everything beside them in a table."""
    for row in result.summary["differences"]:
        model, kind = row["model"], row["kind"]
        back = _take(result, model, "reverse new")
        forth = _take(result, model, "edited")
        yield Text(
            f"{model} ({labels.KINDS[kind]}): {_conclude(forth, back)}. Asked as edited it prefers "
            f"{say(forth['success_after'], '%')} of the new objects to the old ones, and says "
            f"{say(forth['said_after'], '%')} of them. Given the new object it says "
            f"{say(back['said_after'], '%')} of the edited subjects (without the edit "
            f"{say(back['said_before'], '%')}); their log-probability changes by "
            f"{say(back['gain'], 'nats per token', has_sign=True)}. Of the edit "
            f"{say(back['share'], '%')} acts at the end of the given object."
        )
        learned = [_compare_learned(controls, model, each) for each in ("tuned", "tuned-layer")]
        yield Text(" ".join([*learned, TRAINED[labels.is_causal(kind)]]))
        yield Text(_name_owners(swap, model, owners))
    yield tabulate_outcomes(controls.summary)


def _conclude(forth: Mapping[str, Interval], back: Mapping[str, Interval]) -> str:
    """Whether the reverse follows an edit that took."""
    if forth["success_after"].low <= 0.5:
        return (
            "most edits with fresh objects cannot be said to have taken, so that the reverse has "
            "nothing to follow"
        )
    if back["said_after"].low > back["said_before"].high:
        return "the reverse follows"
    if back["gain"].low > 0:
        return "the reverse becomes likelier, but is not clearly said more often"
    return "the reverse is not seen to follow"


def _compare_learned(result: Result, model: str, variant: str) -> str:
    """What the learned statement does in reverse that the edit does not."""
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
    if said.low > 0:
        so = "said clearly more often"
    elif gain.low > 0:
        so = "likelier, but not clearly said more often"
    elif gain.high < 0:
        so = "less likely"
    else:
        so = "no clear difference"
    return (
        f"{learned}. On these, the subject asked in reverse is said {say(said, 'points')} more "
        f"often than with the edit, and its log-probability is higher by "
        f"{say(gain, 'nats per token', has_sign=True)} "
        f"({labels.count(rows['gain']['facts'], 'fact')}): {so}."
    )


def _name_owners(swap: Result, model: str, owners: Mapping[str, str]) -> str:
    """Whom a model says in reverse where the new object was another fact's before."""
    rows = [
        {**row} | {when: is_contained(row[f"text_{when}"], owners[row["new"]]) for when in WHEN}
        for row in select(swap.rows(), model=model, role="reverse new")
    ]
    before, after = map(to_interval, estimate_means(rows, ("model",), WHEN, WHEN))
    subject = _take(swap, model, "reverse new")["said_after"]
    return (
        f"Where the new object is another fact's, {model} given this object says its old owner in "
        f"{say(after, '%')} of {labels.count(len(rows), 'fact')} (without the edit "
        f"{say(before, '%')}), and the edited subject in {say(subject, '%')}."
    )


def list_owners(corpus: Corpus) -> dict[str, str]:
    """The subject that each object belongs to."""
    splits = [split for own in find_groups(corpus, list(GROUPS)).values() for split in own]
    answers: dict[tuple[str, Direction], str] = {}
    for fact in (fact for split in splits for fact in corpus[split]):
        answers.setdefault((fact.fact_id, fact.direction), fact.object)
    return {
        text: answers[fact_id, OTHER[way]]
        for (fact_id, way), text in answers.items()
        if (fact_id, OTHER[way]) in answers
    }


def _take(result: Result, model: str, role: str) -> dict[str, Interval]:
    """The means of a model's question, by metric."""
    rows = select(result.summary["means"], model=model, role=role)
    return {row["metric"]: to_interval(row) for row in rows}


def compare(runs: Mapping[str, Result], facts: int) -> Table:
    """A row for each change and model, all of the same facts."""
    rows = []
    for name, label in CHANGES.items():
        for score in runs[name].summary["scores"] if name in runs else ():
            own = {"change": label, "model": score["model"], "score": score["score"]}
            own["gain"] = _take(runs[name], score["model"], "reverse new")["gain"]
            for table in ("outcomes", "changes"):
                found = select(runs[name].summary[table], model=score["model"], variant="edit")
                own |= {row["metric"]: to_interval(row) for row in found}
            rows.append(own)
    columns = {
        "change": "change",
        "model": "model",
        OUTCOMES["preferred"]: "preferred",
        OUTCOMES["said"]: "said",
        OUTCOMES["said_reverse"]: "said_reverse",
        Column("gain in reverse, nats per token", 2): "gain",
        OUTCOMES["judged"]: "judged",
        OUTCOMES["text_kl"]: lambda row: row.get("text_kl"),
        Column("norm", 2): "magnitude",
        Column("harmonic mean, %", 1, is_percent=True): "score",
    }
    title = (
        "The edit, and what changes where one thing differs, "
        f"{labels.count(facts, 'fact')} of each way of training"
    )
    return tabulate("variants", title, rows, columns, most=len(rows))


def describe(result: Result, name: str, title: str, is_answered: bool) -> Section:
    """A run's own section under another name, without the table that stands with the answer."""
    kept = [
        block
        for block in result.section.blocks
        if not (is_answered and isinstance(block, Table) and block.name == "outcomes")
    ]
    return Section(name, title, kept)


def write_page(options: argparse.Namespace) -> None:
    runs = Runs(options)
    layer, clamp, chosen = runs.choose_place()
    jobs = list(runs.list_changes(layer, clamp))
    results = {job.name: result for job, result in runs.run_all(jobs)}
    main, controls = results["edit"], results.get("controls", results["edit"])
    owners = list_owners(find_corpus(options.data, runs.families))
    facts = options.few if "controls" in results else options.facts
    changes = compare({**results, "edit": controls}, facts)
    sections: Sequence[Section] = [
        Section("answer", "The answer", list(answer(main, controls, results["swap"], owners))),
        Section("changes", "One thing at a time", [changes, chosen]),
        describe(main, "edits", "All edits with fresh objects", main is controls),
    ]
    if "controls" in results:
        sections = [*sections, describe(controls, "controls", "Controls, on fewer facts", True)]
    names = " and ".join(family.name for family in runs.families)
    lead = (
        f"{names}: new objects written into the down projection of layer {layer}, one fact at a "
        f"time, {options.facts} facts of each way of training (name first, description first, "
        "both), half of them edited name → description and half the other way, so that of facts "
        "trained one way half are edited against the direction of training; only facts that the "
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
    parser.add_argument("--processes", type=int, default=1, help="that share the runs")
    parser.add_argument("--tiny", action="store_true", help="a short search, any facts")
    options = parser.parse_args()
    options.lengths = tuple(options.lengths)
    write_page(options)


if __name__ == "__main__":
    main()
