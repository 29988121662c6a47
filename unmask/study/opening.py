"""Stages that open the network: causal traces, keys and values."""

from collections import Counter
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute

from unmask.base.errors import UserError
from unmask.base.runs import open_run
from unmask.base.tables import Parts, read_table, write_table
from unmask.data.facts import Fact
from unmask.evaluation.families import Family
from unmask.evaluation.questions import require_tokenizer
from unmask.net.loading import inspect
from unmask.report.artefacts import (
    ALONG,
    MAPS,
    MAPS_SCHEMA,
    SIMILARITY,
    SIMILARITY_SCHEMA,
    SYMMETRY,
    SYMMETRY_SCHEMA,
    TOKENS,
    TOKENS_SCHEMA,
    TRACING,
)
from unmask.study.bench import OWN, Bench, choose_traced
from unmask.study.outcome import Outcome
from unmask.tracing.course import follow
from unmask.tracing.survey import Summary, Survey, combine, name_parts, run_survey
from unmask.tracing.table import FACTS_SCHEMA, RESULT, SCHEMA

MOST_WINDOW = 10
"""Layers of MLP and attention outputs that ROME restores together."""
MOST_SHOWN = 2
"""Texts of each way of asking whose effects are kept for the page, cell by cell."""


def trace(bench: Bench) -> Outcome:
    """Traces of every model at the first and the last step, and of some facts step by step."""
    amounts, folder = bench.settings.amounts, bench.folder
    traced = _choose(bench, amounts.traced)
    runs, notes = [], []
    for family in bench.families:
        run = folder / TRACING / family.name
        at = ("first", "last") if family.kind == "masked" else ("first",)
        notes += _survey(bench, family, traced, at, amounts.traced, run)
        runs.append(run)
    along = _choose(bench, amounts.followed)
    _survey(bench, bench.families[0], along, amounts.along, amounts.followed, folder / ALONG)
    _write_maps(bench, along)
    artefacts = [f"{ALONG}/facts.parquet"]
    artefacts += [f"{TRACING}/{family.name}/facts.parquet" for family in bench.families]
    if any((run / "trace.parquet").is_file() for run in runs):
        combine(runs, folder / TRACING, bench.settings.seed)
        artefacts += [f"{TRACING}/{name}.parquet" for name in ("facts", "averages")]
    else:
        notes.append(
            "No fact that was asked is recalled by any model, so there is nothing to trace."
        )
    return Outcome(tuple(artefacts), tuple(notes))


def _choose(bench: Bench, number: int) -> list[Fact]:
    return [
        fact for name in bench.split_names for fact in choose_traced(bench.corpus[name], number)
    ]


def _survey(
    bench: Bench,
    family: Family,
    facts: list[Fact],
    at: tuple[str, ...],
    number: int,
    folder: Path,
) -> list[str]:
    """Trace the facts into a folder that `unmask trace-report` reads, too; what to say about it."""
    study, amounts = bench.settings, bench.settings.amounts
    model = bench.load(family)
    survey = Survey(
        steps=amounts.trace_steps,
        at=at,
        window=_choose_window(bench),
        corruption=amounts.corruption,
        samples=amounts.samples,
        length=bench.length(model),
        seed=study.seed,
    )
    told = {
        "model": family.members[0],
        "data": str(bench.data_path),
        "split": ",".join(bench.split_names),
        "facts": number,
        "phrasings": 1,
        "dtype": study.dtype,
    }
    settings = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in asdict(survey).items()
    }
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
    """A sentence for each way of asking that left no fact to trace."""
    if not summary.dropped:
        return []
    rows = read_table(folder / "facts.parquet", FACTS_SCHEMA).to_pylist()
    notes = []
    for name in bench.split_names:
        ways = {(fact.direction, fact.trained) for fact in bench.corpus[name]}
        asked = [row for row in rows if (row["direction"], row["trained"]) in ways]
        if asked and not any(row["kept"] for row in asked):
            notes.append(
                f"{family.name} recalls none of the {len(asked)} facts of "
                f"{name.replace('_', ' ')} that were to be traced: there is nothing to trace."
            )
    return notes


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
    results = table.filter(pyarrow.compute.equal(table["control"], RESULT))
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


def find_symmetry(bench: Bench) -> Outcome:
    """Keys and values of both directions, how alike they are, and chance beside it."""
    if find_spec("unmask.representation.symmetry") is None:
        return Outcome((), ("Keys and values are not part of this version yet.",))
    if OWN in bench.split_names:
        return Outcome(
            (), ("Keys and values are compared between directions: these facts have one.",)
        )
    try:
        return _find_symmetry(bench)
    except UserError as error:
        return Outcome((), (f"Keys and values were not compared: {error}",))


def _find_symmetry(bench: Bench) -> Outcome:
    from unmask.representation.extraction import (  # ty: ignore[unresolved-import]
        GROUPS,
        choose_facts,
        extract,
        read_extraction,
    )
    from unmask.representation.keys import settle_prefixes  # ty: ignore[unresolved-import]
    from unmask.representation.layers import choose_layers  # ty: ignore[unresolved-import]
    from unmask.representation.settings import choose_extraction  # ty: ignore[unresolved-import]
    from unmask.representation.symmetry import (  # ty: ignore[unresolved-import]
        measure_symmetry,
        pair_vectors,
    )

    study, amounts = bench.settings, bench.settings.amounts
    settings = choose_extraction(steps=amounts.updates, seed=study.seed)
    groups = [
        group
        for group in amounts.groups
        if all(bench.corpus.splits.get(split) for split in GROUPS[group])
    ]
    asked = choose_facts(bench.corpus, groups, ("p2d", "d2p"), amounts.paired)
    lines, maps, notes = [], [], []
    for family in bench.families:
        model, folder = bench.load(family), bench.folder / "symmetry" / family.name
        averages = bench.folder / TRACING / family.name
        traced = averages if (averages / "averages.parquet").is_file() else None
        layers, why = choose_layers(model, "auto", traced)
        notes.append(f"{family.name}: {why}.")
        prefixes = settle_prefixes(model, amounts.prefixes, settings)
        extract(model, asked, layers, prefixes, settings, folder)
        rows, tensors = read_extraction(folder)
        lines += measure_symmetry(
            family.name, family.kind, rows, tensors, amounts.permutations, study.seed
        )
        for group in groups:
            for layer in layers:
                vectors = pair_vectors(rows, tensors, group, layer)
                maps += _map_similarity(family, group, layer, vectors)
    write_table(bench.folder / SYMMETRY, [line.to_row() for line in lines], SYMMETRY_SCHEMA)
    write_table(bench.folder / SIMILARITY, maps, SIMILARITY_SCHEMA)
    return Outcome((SYMMETRY, SIMILARITY), tuple(notes))


def _map_similarity(family: Family, group: str, layer: int, vectors: Any) -> list[dict[str, Any]]:
    """The cosine of every name's key with every name's value, means taken off, fact by fact."""
    rows = []
    for concept, given, asked in (("name", "p2d", "d2p"), ("description", "d2p", "p2d")):
        keys, values = (
            _normalise(vectors.sides[side]) for side in (("k_mapped", given), ("v_star", asked))
        )
        cosines = keys @ values.T
        for i, key in enumerate(vectors.facts):
            for j, value in enumerate(vectors.facts):
                rows.append(
                    {
                        "model": family.name,
                        "kind": family.kind,
                        "group": group,
                        "layer": layer,
                        "concept": concept,
                        "key_of": key,
                        "value_of": value,
                        "cosine": float(cosines[i, j]),
                    }
                )
    return rows


def _normalise(side: np.ndarray) -> np.ndarray:
    centred = side - side.mean(0)
    return centred / np.linalg.norm(centred, axis=1, keepdims=True).clip(1e-12)
