"""The stage of keys and values: what the MLPs look up and answer, in both directions."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from unmask.base.errors import UserError
from unmask.base.runs import open_run
from unmask.base.tables import write_table
from unmask.data.sources import OWN
from unmask.evaluation.families import Family
from unmask.report.artefacts import (
    SIMILARITY,
    SIMILARITY_SCHEMA,
    SYMMETRY,
    SYMMETRY_SCHEMA,
    TRACING,
)
from unmask.study.bench import Bench
from unmask.study.outcome import Outcome


def find_symmetry(bench: Bench) -> Outcome:
    """Keys and values of both directions, how alike they are, and chance beside it."""
    if OWN in bench.split_names:
        return Outcome(
            (), ("Keys and values are compared between directions: these facts have one.",)
        )
    try:
        return _find_symmetry(bench)
    except UserError as error:
        return Outcome((), (f"Keys and values were not compared: {error}",))


def _find_symmetry(bench: Bench) -> Outcome:
    from unmask.representation.extraction import (
        GROUPS,
        choose_facts,
        digest_facts,
        extract,
        read_extraction,
    )
    from unmask.representation.keys import settle_prefixes
    from unmask.representation.layers import choose_layers
    from unmask.representation.settings import choose_extraction
    from unmask.representation.symmetry import (
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
        # A trace of states alone does not say where MLPs matter.
        says = "mlp" in amounts.parts and (averages / "averages.parquet").is_file()
        traced = averages if says else None
        layers, why = choose_layers(model, "auto", traced)
        notes.append(f"{family.name}: {why}.")
        prefixes = settle_prefixes(model, amounts.prefixes, settings)
        _open(bench, family, folder, digest_facts(asked), layers, settings)
        extract(model, asked, layers, prefixes, settings, folder)
        rows, tensors = read_extraction(folder)
        sound = []
        for group in groups:
            try:
                vectors = pair_vectors(rows, tensors, group, layers[0])
            except UserError as error:
                notes.append(f"{family.name}, not compared: {error}")
                continue
            sound.append(group)
            maps += _map_similarity(family, group, layers[0], vectors)
        kept = [i for i, row in enumerate(rows) if row["group"] in sound]
        lines += measure_symmetry(
            family.name,
            family.kind,
            [rows[i] for i in kept],
            {name: vectors[kept] for name, vectors in tensors.items()},
            amounts.permutations,
            study.seed,
        )
    if not lines:
        return Outcome((), tuple(notes))
    write_table(bench.folder / SYMMETRY, [line.to_row() for line in lines], SYMMETRY_SCHEMA)
    write_table(bench.folder / SIMILARITY, maps, SIMILARITY_SCHEMA)
    return Outcome((SYMMETRY, SIMILARITY), tuple(notes))


def _open(
    bench: Bench,
    family: Family,
    folder: Path,
    prompts: str,
    layers: tuple[int, ...],
    settings: Any,
) -> None:
    """The run folder of an extraction, so that `unmask symmetry` reads it, too."""
    told = asdict(settings) | {
        "model": family.members[0],
        "kind": family.kind,
        "weights": family.digests[0],
        "data": str(bench.data_path),
        "prompts": prompts,
        "layers": list(layers),
        "prefixes": bench.settings.amounts.prefixes,
        "dtype": bench.settings.dtype,
    }
    open_run(folder, "represent", told | {"revealed": list(settings.revealed)})


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
