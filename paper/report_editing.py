"""The page of the edits: whether the reverse follows, beside controls and what is learned.

    python paper/report_editing.py RUNS --data DIR --page docs/results/editing.md
    python paper/report_editing.py RUNS --page PAGE      of the shipped pair

RUNS is the folder that paper/editing.py wrote. DIR is the corpus that it edited facts of: the page
says whose a swapped object was before. Models are not needed.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from editing_tries import list_tries, take_means

from unmask.base.errors import UserError
from unmask.base.runs import RunRecord, find_folder
from unmask.blocks import labels
from unmask.blocks.blocks import Column, ReportBlock, Section, Table, Text
from unmask.blocks.tidy import distinct, say, select, tabulate, to_interval
from unmask.cli.exits import explain_errors
from unmask.data.corpus import Corpus
from unmask.data.facts import Direction
from unmask.editing.requests import OTHER
from unmask.evaluation.metrics import is_contained
from unmask.evaluation.statistics import Interval
from unmask.measures.edit import MEASURE
from unmask.measures.edit_results import MEANS, OUTCOMES, SCORES
from unmask.measures.inputs import find_corpus
from unmask.measures.result import Result
from unmask.measures.runner import read_result
from unmask.net.families import parse_families
from unmask.net.hub import shipped_models
from unmask.report.document import Document
from unmask.report.page import write_document
from unmask.representation.extraction import GROUPS, find_groups
from unmask.results.summaries import estimate_means

CHANGES = {
    "edit": "fresh objects, ridge 0",
    "swap": "swapped objects",
    "ridge-low": "ridge of a tenth of the key's width",
    "ridge-high": "ridge of the key's width",
    "cycle": "step modulo length tokens shown",
    "random": "a random number of tokens shown",
    "clean": "moments of clean text",
    "identity": "moments: the identity",
    "spread": "spread over",
}
WHEN = ("before", "after")
LEARNED = ("tuned", "tuned-layer")
TRAINED = (
    "A masked objective also hides the subject and asks for it, so that learning trains a part of "
    "the reverse, which the edit does not: that the edit is low-rank is not shown to be the "
    "reason of a difference.",
    "This objective never asks for the subject given its object: learning does not train the "
    "reverse either.",
)
"""What learning a statement trains, of a diffusion and of a causal model."""


def read_runs(folder: Path, without_controls: bool = False) -> dict[str, Result]:
    """All runs by their names; one that is missing or unfinished is refused."""
    tried = [path.name for path in sorted(find_folder(folder).glob("layer-*"))]
    if not tried:
        raise _refuse(folder, "no run `layer-…` that the layer was chosen by")
    runs = {name: _read_run(folder, name) for name in (*tried, *CHANGES)}
    if (folder / "controls").is_dir():
        runs["controls"] = _read_run(folder, "controls")
    elif not (runs["edit"].records[0].settings["controls"] or without_controls):
        raise _refuse(
            folder,
            "no run `controls`, and no controls in its run `edit`",
            ", --without-controls draws the page without them",
        )
    return runs


def _read_run(folder: Path, name: str) -> Result:
    place = folder / name
    if not place.is_dir():
        raise _refuse(folder, f"no run `{name}`")
    if not all((place / f"{table}.parquet").is_file() for table in MEASURE.tables):
        raise _refuse(folder, f"an unfinished run `{name}`")
    return read_result(place)


def _refuse(folder: Path, problem: str, besides: str = "") -> UserError:
    return UserError(
        f"{folder} has {problem}: expected every run of paper/editing.py, finished; its command "
        f"does what is missing{besides}."
    )


def read_corpus(data: str | None, record: RunRecord) -> Corpus:
    """The corpus that was edited: of a folder, or of the shipped model that a run names."""
    if data is not None:
        return find_corpus(data, [])
    name, places = next(iter(record.inputs["models"].items()))
    if places[0] not in shipped_models():
        raise UserError(
            f"no corpus was given, and {name} ({places[0]}) did not come with this package: name "
            "the corpus of its facts by --data."
        )
    return find_corpus(None, parse_families(places))


def answer(
    result: Result, controls: Result, swap: Result, owners: Mapping[str, str]
) -> Iterator[ReportBlock]:
    """What the edits say, in plain words, model by model, and everything beside them in a table."""
    made = controls.records[0].settings["controls"]
    for row in result.summary["differences"]:
        model, kind = row["model"], row["kind"]
        back = take_means(result, model, "reverse new")
        forth = take_means(result, model, "edited")
        yield Text(
            f"{model} ({labels.KINDS[kind]}): {_conclude(forth, back)}. Asked as edited it prefers "
            f"{say(forth['success_after'], '%')} of the new objects to the old ones, and says "
            f"{say(forth['said_after'], '%')} of them. Given the new object it says "
            f"{say(back['said_after'], '%')} of the edited subjects (without the edit "
            f"{say(back['said_before'], '%')}); their log-probability changes by "
            f"{say(back['gain'], 'nats per token', has_sign=True)}. Of the edit "
            f"{say(back['share'], '%')} acts at the end of the given object."
        )
        learned = [_compare_learned(controls, model, each) for each in LEARNED if each in made]
        if learned:
            yield Text(" ".join([*learned, TRAINED[labels.is_causal(kind)]]))
        yield Text(_name_owners(swap, model, owners))
    if not made:
        yield Text("The edits were made without controls, and no statement was learned.")
    yield MEANS["outcomes"].tabulate(controls.summary["outcomes"], facts="facts")


def _conclude(forth: Mapping[str, Interval], back: Mapping[str, Interval]) -> str:
    """Whether the reverse follows an edit that took."""
    if forth["success_after"].low <= 0.5:
        is_sure = forth["success_after"].high < 0.5
        verb = "did not take" if is_sure else "cannot be said to have taken"
        return f"most edits with fresh objects {verb}, so that the reverse has nothing to follow"
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
    forth, back = (take_means(swap, model, role) for role in ("edited", "reverse new"))
    return (
        f"Where the new object is another fact's, {model} asked as edited prefers "
        f"{say(forth['success_after'], '%')} of the new objects and says "
        f"{say(forth['said_after'], '%')} ({labels.count(len(rows), 'fact')}). Given this object "
        f"it says its old owner in {say(after, '%')} (without the edit {say(before, '%')}), and "
        f"the edited subject in {say(back['said_after'], '%')}."
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


def compare(runs: Mapping[str, Result], facts: int) -> Table:
    """A row for each change and model, of so many facts; where a run has others, it is said."""
    rows = []
    for name, label in CHANGES.items():
        settings = runs[name].records[0].settings
        if name == "spread":
            label += f" {labels.count(len(settings['layer'].split(',')), 'layer')}"
        if settings["facts"] != facts:
            label += f" ({labels.count(settings['facts'], 'fact')})"
        for score in runs[name].summary["scores"]:
            own = {"change": label, "model": score["model"], "score": score["score"]}
            own["gain"] = take_means(runs[name], score["model"], "reverse new")["gain"]
            for table in ("outcomes", "changes"):
                found = select(runs[name].summary[table], model=score["model"], variant="edit")
                own |= {row["metric"]: to_interval(row) for row in found}
            rows.append(own)
    columns = {
        "change": "change",
        "model": "model",
        OUTCOMES["preferred"].head(): "preferred",
        OUTCOMES["said"].head(): "said",
        OUTCOMES["said_reverse"].head(): "said_reverse",
        Column("gain in reverse, nats per token", 2): "gain",
        OUTCOMES["judged"].head(): "judged",
        OUTCOMES["text_kl"].head(): lambda row: row.get("text_kl"),
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


def list_places(tries: Sequence[Mapping[str, Any]], layer: str, clamp: float) -> Table:
    """A row for each place that was tried, and model."""
    columns: dict[str | Column, Any] = {"layer": "layer"}
    columns |= {"clamp": lambda row: f"{row['clamp']:g}", "model": "model"}
    columns |= SCORES | {Column("said, edited prompt, %", 1, is_percent=True): "said"}
    columns[Column("gain, nats per token", 2)] = "gain"
    title = (
        f"Layer {layer} and a clamp of {clamp:g}, chosen on the last facts of each way of "
        "training, with other objects"
    )
    rows = sorted(tries, key=lambda row: row["place"])
    return tabulate("layers", title, rows, columns, most=len(rows))


def make_document(runs: Mapping[str, Result], corpus: Corpus) -> Document:
    """The page: the answer, one thing at a time, all edits, and the controls on fewer facts."""
    edits, swap, owners = runs["edit"], runs["swap"], list_owners(corpus)
    if unknown := [text for text in distinct(swap.rows(), "new") if text not in owners]:
        raise UserError(
            f"{corpus.source} has no object {unknown[0]!r}, which {swap.folder} has: expected the "
            "corpus that was edited; name it by --data."
        )
    controls = runs.get("controls", edits)
    settings, models = edits.records[0].settings, edits.records[0].inputs["models"]
    layer, facts = settings["layer"], settings["facts"]
    tries = list_tries(run for name, run in runs.items() if name.startswith("layer-"))
    changes = [
        compare({**runs, "edit": controls}, swap.records[0].settings["facts"]),
        list_places(tries, layer, settings["clamp"]),
    ]
    sections = [
        Section("answer", "The answer", list(answer(edits, controls, swap, owners))),
        Section("changes", "One thing at a time", changes),
        describe(edits, "edits", "All edits with fresh objects", edits is controls),
    ]
    if edits is not controls:
        sections.append(describe(controls, "controls", "Controls, on fewer facts", True))
    lead = (
        f"{' and '.join(models)}: new objects written into the down projection of layer {layer}, "
        f"one fact at a time, {facts} facts of each way of training (name first, description "
        "first, both), half of them edited name → description and half the other way, so that of "
        "facts trained one way half are edited against the direction of training; only facts that "
        "the model says before, asked as they were trained. Fresh objects stand in no training "
        "text. Intervals are 95 %, by fact."
    )
    return Document("Edits, and whether the reverse follows", lead, [], sections, is_single=False)


def main(words: Sequence[str] | None = None) -> None:
    """Write the page that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("runs", type=Path, help="the folder of runs that paper/editing.py wrote")
    parser.add_argument("--data", help="the corpus folder; by default that of a shipped model")
    parser.add_argument("--page", type=Path, required=True, help="the Markdown page to write")
    parser.add_argument("--without-controls", action="store_true", help="where they were not run")
    options = parser.parse_args(words)
    runs = read_runs(options.runs, options.without_controls)
    corpus = read_corpus(options.data, runs["edit"].records[0])
    write_document(make_document(runs, corpus), options.page)


if __name__ == "__main__":
    with explain_errors():
        main()
