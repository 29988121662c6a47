"""The stage of causal traces: where a state must be put back for a fact to be recalled again."""

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.compute

from unmask.base.runs import open_run
from unmask.base.tables import Parts, read_table, write_table
from unmask.data.facts import Fact
from unmask.evaluation.families import Family
from unmask.evaluation.questions import require_tokenizer
from unmask.net.loading import inspect
from unmask.report.artefacts import (
    ALONG,
    CONSIDERED,
    CONSIDERED_SCHEMA,
    MAPS,
    MAPS_SCHEMA,
    TOKENS,
    TOKENS_SCHEMA,
    TRACING,
)
from unmask.report.recall_section import name_asked
from unmask.study.bench import Bench
from unmask.study.outcome import Outcome
from unmask.tracing.course import find_recalled, follow
from unmask.tracing.survey import (
    Corrupting,
    Summary,
    Survey,
    choose_facts,
    name_parts,
    run_survey,
)
from unmask.tracing.table import FACTS_SCHEMA, RESULT, SCHEMA
from unmask.tracing.together import combine
from unmask.tracing.tokens import name_joint

MOST_WINDOW = 10
"""Layers of MLP and attention outputs that ROME restores together."""
MOST_SHOWN = 2
"""Texts of each way of asking whose effects are kept for the page, cell by cell."""


def trace(bench: Bench) -> Outcome:
    """Traces of every model at the first and the last step, and of some facts step by step."""
    amounts, folder = bench.settings.amounts, bench.folder
    ranked = _rank_facts(bench)
    traced, along = (
        [fact for facts in ranked.values() for fact in facts[:number]]
        for number in (amounts.traced, amounts.followed)
    )
    own, shared = amounts.corruption, amounts.shared_corruption
    diffusion, *twins = bench.families
    plan: list[tuple[Family, Corrupting, tuple[str, ...], str]] = [
        (diffusion, own, ("first", "last"), diffusion.name)
    ]
    plan += [(twin, shared, ("first",), twin.name) for twin in twins]
    if twins and own != shared:
        plan.append((diffusion, shared, ("first",), f"{diffusion.name}-{shared}"))
    runs, notes = [], []
    for family, corruption, at, name in plan:
        runs.append(folder / TRACING / name)
        survey = _plan_survey(bench, family, at, corruption, amounts.parts)
        told = _survey(bench, family, traced, survey, amounts.traced, runs[-1])
        notes += [note for note in told if note not in notes]
    survey = _plan_survey(bench, diffusion, amounts.along, own, amounts.along_parts)
    _survey(bench, diffusion, along, survey, amounts.followed, folder / ALONG)
    _write_maps(bench, along)
    if any((run / "trace.parquet").is_file() for run in runs):
        combine(runs, folder / TRACING, bench.settings.seed)
    else:
        notes.append(
            "No fact that was asked is recalled by any model, so there is nothing to trace."
        )
    # All that was written, so that what gets lost is made anew.
    places = (folder / TRACING, folder / ALONG, *runs)
    written = sorted(path for place in places for path in place.glob("*.parquet"))
    return Outcome(tuple(str(path.relative_to(folder)) for path in written), tuple(notes))


def _rank_facts(bench: Bench) -> dict[str, list[Fact]]:
    """The facts considered of each split, those that the diffusion model recalls first.

    Only recalled facts can be traced; a few taken as they come would often hold none.
    """
    amounts, model = bench.settings.amounts, bench.model
    ranked, counts = {}, []
    for name in bench.split_names:
        facts = choose_facts(bench.corpus[name], amounts.considered, phrasings=1)
        recalled = find_recalled(model, facts, amounts.trace_steps, bench.length(model))
        order = sorted(range(len(facts)), key=lambda i: not recalled[i])
        ranked[name] = [facts[i] for i in order]
        counts.append({"split": name, "considered": len(facts), "recalled": sum(recalled)})
    write_table(bench.folder / CONSIDERED, counts, CONSIDERED_SCHEMA)
    return ranked


def _plan_survey(
    bench: Bench,
    family: Family,
    at: tuple[str, ...],
    corruption: Corrupting,
    parts: tuple[str, ...],
) -> Survey:
    amounts = bench.settings.amounts
    return Survey(
        steps=amounts.trace_steps,
        at=at,
        parts=parts,
        window=_choose_window(bench),
        corruption=corruption,
        samples=amounts.samples,
        metric=bench.settings.metric,
        length=bench.length(bench.load(family)),
        seed=bench.settings.seed,
    )


def _survey(
    bench: Bench, family: Family, facts: list[Fact], survey: Survey, number: int, folder: Path
) -> list[str]:
    """Trace the facts into a folder that `unmask trace-report` reads, too; what to say about it."""
    model = bench.load(family)
    told = {
        "model": family.members[0],
        "data": str(bench.data_path),
        "split": ",".join(bench.split_names),
        "facts": number,
        "phrasings": 1,
        "dtype": bench.settings.dtype,
    }
    settings = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in asdict(survey).items()
    }
    settings["joint"] = name_joint(model.kind, survey.joint)
    open_run(folder, "trace", told | settings)
    pool = [fact for name in bench.split_names for fact in bench.corpus[name]]
    summary = run_survey(model, facts, survey, folder, pool=pool)
    assert summary is not None
    return _tell_unrecalled(bench, family, folder, summary)


def _choose_window(bench: Bench) -> int:
    """Half of the shallower network, at most ROME's ten, so that twins can be compared."""
    layers = [inspect(family.members[0])[0].config.layers for family in bench.families]
    return min(MOST_WINDOW, max(1, min(layers) // 2))


def _tell_unrecalled(bench: Bench, family: Family, folder: Path, summary: Summary) -> list[str]:
    """A sentence about the ways of asking that left no fact to trace, if there are any."""
    if not summary.dropped:
        return []
    rows = read_table(folder / "facts.parquet", FACTS_SCHEMA).to_pylist()
    kept = {(row["direction"], row["trained"]) for row in rows if row["kept"]}
    silent = [
        name_asked(name)
        for name in bench.split_names
        if not {(fact.direction, fact.trained) for fact in bench.corpus[name]} & kept
    ]
    if not silent:
        return []
    return [
        f"{family.name} recalls none of the facts that were to be traced with "
        f"{'; '.join(silent)}: there is nothing to trace, and nothing is drawn."
    ]


def _write_maps(bench: Bench, facts: list[Fact]) -> None:
    """The effects in the first few texts that were traced along their steps, and their tokens."""
    folder = bench.folder / ALONG
    parts = Parts(folder / "parts", SCHEMA)
    shown: Counter[tuple[str, str]] = Counter()
    effects: list[dict[str, Any]] = []
    tokens: list[dict[str, Any]] = []
    for key, fact in zip(name_parts(facts), facts, strict=True):
        way = (fact.direction, fact.trained)
        if parts.has(key) and shown[way] < MOST_SHOWN:
            shown[way] += 1
            whose = {
                "fact": fact.fact_id,
                "direction": fact.direction,
                "trained": fact.trained,
                "prompt": fact.prompt,
                "object": fact.object,
            }
            effects += [whose | row for row in _find_effects(parts.gather([key]))]
            tokens += [whose | row for row in _spell(bench, fact)]
    if effects:
        write_table(bench.folder / MAPS, effects, MAPS_SCHEMA)
        write_table(bench.folder / TOKENS, tokens, TOKENS_SCHEMA)


def _find_effects(table: pyarrow.Table) -> list[dict[str, Any]]:
    """What restoring each cell gives back, mean over noise samples."""
    cell = ("stage", "step", "part", "layer", "token", "role")
    results = table.filter(pyarrow.compute.field("control") == RESULT)
    rows = results.group_by(list(cell), use_threads=False).aggregate([("value", "mean")])
    found = rows.to_pylist()
    ends = {
        (row["stage"], row["part"]): row["value_mean"]
        for row in found
        if row["part"] in ("clean", "corrupted")
    }
    return [
        {name: row[name] for name in cell}
        | {
            "effect": row["value_mean"] - ends[row["stage"], "corrupted"],
            "clean": ends[row["stage"], "clean"],
            "corrupted": ends[row["stage"], "corrupted"],
        }
        for row in found
        if row["token"] >= 0
    ]


def _spell(bench: Bench, fact: Fact) -> list[dict[str, Any]]:
    """The model's own text, token by token, with the step that wrote each."""
    model = bench.model
    tokenizer = require_tokenizer(model)
    course = follow(model, fact, bench.settings.amounts.trace_steps, bench.length(model))
    steps = course.committed_at.tolist()
    return [
        {
            "position": position,
            "piece": "⏎" if token == tokenizer.end_id else tokenizer.piece(token),
            "written": steps[position],
            "in_subject": course.subject[0] <= position < course.subject[1],
            "in_answer": position in course.answer,
        }
        for position, token in enumerate(course.states[-1].tolist())
    ]
