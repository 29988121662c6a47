"""Keys and values of many facts into a run folder: a part a fact and layer, so that it resumes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unmask.base.errors import UserError
from unmask.base.files import replace_file
from unmask.base.progress import track
from unmask.base.tables import Parts, read_table, write_table
from unmask.data.corpus import Corpus
from unmask.data.facts import Fact
from unmask.evaluation.digests import digest
from unmask.net.model import Model
from unmask.representation.keys import Key, find_keys
from unmask.representation.settings import Extraction
from unmask.representation.states import lay_out_case
from unmask.representation.values import Value, iterate_values

if TYPE_CHECKING:
    import pyarrow

SCHEMA = "represent/1"
PART_SCHEMA = "represent-part/1"
TABLE, VECTORS = "represent.parquet", "vectors.safetensors"
VECTOR_NAMES = ("k_star", "k_mapped", "v0", "delta")
GROUPS = {
    "p2d": ("p2d_same", "p2d_reverse"),
    "d2p": ("d2p_same", "d2p_reverse"),
    "both": ("both_p2d", "both_d2p"),
}
"""Facts by the direction they were trained in, and the splits that ask them both ways."""


@dataclass(frozen=True)
class Asked:
    """A fact that is looked into, and the group it belongs to."""

    group: str
    fact: Fact


def choose_facts(
    source: Corpus | list[Fact],
    groups: Sequence[str],
    directions: Sequence[str],
    number: int,
    phrasing: int = 0,
) -> list[Asked]:
    """The first `number` facts of each group, in one phrasing a direction, the same for all.

    What one phrasing adds to every vector is the same for all facts, and falls out with the mean.
    Facts of one's own are one group, `own`.
    """
    if number < 1:
        raise UserError(f"{number} facts were asked for: expected at least 1.")
    pools = {"own": source} if isinstance(source, list) else _find_groups(source, groups)
    chosen = []
    for group, facts in pools.items():
        phrasings: dict[tuple[str, str], list[Fact]] = {}
        for fact in facts:
            phrasings.setdefault((fact.fact_id, fact.direction), []).append(fact)
        names = list(dict.fromkeys(fact_id for fact_id, _ in phrasings))[:number]
        for (fact_id, direction), asked in phrasings.items():
            if fact_id in names and direction in directions:
                if not 0 <= phrasing < len(asked):
                    raise UserError(
                        f"phrasing {phrasing} was asked for, but {fact_id} has {len(asked)}: "
                        f"expected 0 to {len(asked) - 1}."
                    )
                chosen.append(Asked(group, asked[phrasing]))
    if not chosen:
        known = dict.fromkeys(fact.direction for facts in pools.values() for fact in facts)
        raise UserError(
            f"no fact is asked in the direction {' or '.join(directions)}: expected "
            f"{' or '.join(known)}, as the data have it."
        )
    return chosen


def _find_groups(corpus: Corpus, groups: Sequence[str]) -> dict[str, list[Fact]]:
    unknown = [group for group in groups if group not in GROUPS]
    if unknown or not groups:
        raise UserError(f"groups {', '.join(groups)!r}: expected some of {', '.join(GROUPS)}.")
    return {group: [fact for split in GROUPS[group] for fact in corpus[split]] for group in groups}


def digest_facts(asked: Sequence[Asked]) -> str:
    """A short name for exactly these facts, their spans and directions."""
    return digest(asked)


def extract(
    model: Model,
    asked: Sequence[Asked],
    layers: Sequence[int],
    prefixes: Sequence[str],
    settings: Extraction,
    folder: Path,
) -> "pyarrow.Table":
    """The table of all facts and layers, and beside it their vectors; what is there is kept."""
    parts = Parts(folder / "parts", PART_SCHEMA)
    cases = [lay_out_case(model, each.fact, prefixes, settings) for each in asked]
    # Deepest first: a last layer that cannot reach its object is refused before any search.
    for layer in sorted(layers, reverse=True):
        missing = [i for i in range(len(cases)) if not parts.has(_name(layer, i))]
        if not missing:
            continue
        left = [cases[i] for i in missing]
        keys = find_keys(model, left, layer, prefixes)
        found = iterate_values(model, left, layer, settings, prefixes)
        for number, value in track(found, f"layer {layer}", len(missing)):
            at = missing[number]
            parts.write(_name(layer, at), [_to_row(asked[at], keys[number], value)])
    names = [_name(layer, i) for layer in layers for i in range(len(cases))]
    table = parts.gather(names)
    _write_vectors(folder / VECTORS, table)
    table = table.drop_columns(list(VECTOR_NAMES))
    write_table(folder / TABLE, table, SCHEMA)
    return table


def _name(layer: int, number: int) -> str:
    return f"{layer:03d}-{number:05d}"


def _to_row(asked: Asked, key: Key, value: Value) -> dict[str, Any]:
    fact = asked.fact
    return {
        "group": asked.group,
        "fact": fact.fact_id,
        "direction": fact.direction,
        "trained": fact.trained,
        "phrasing": fact.phrasing,
        "subject": fact.subject,
        "object": fact.object,
        "prompt": fact.prompt,
        "layer": value.layer,
        "p_before": value.p_before,
        "p_after": value.p_after,
        "nll_before": value.nll_before,
        "nll": value.nll,
        "kl": value.kl,
        "distance": value.distance,
        "relative_distance": value.relative_distance,
        "updates": value.updates,
        "stopped": value.stopped,
        "diverged": value.diverged,
        "losses": list(value.losses),
        "k_star": key.k_star.tolist(),
        "k_mapped": key.mapped.tolist(),
        "v0": value.v0.tolist(),
        "delta": value.delta.tolist(),
    }


def _write_vectors(path: Path, table: "pyarrow.Table") -> None:
    """Row i of each tensor belongs to row i of the table."""
    from safetensors.numpy import save_file

    tensors = {name: np.array(table[name].to_pylist(), dtype=np.float32) for name in VECTOR_NAMES}
    with replace_file(path) as draft:
        save_file(tensors, draft)


def read_extraction(folder: Path) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """The rows of a finished run and its vectors, in the same order."""
    from safetensors.numpy import load_file

    rows = read_table(folder / TABLE, SCHEMA).to_pylist()
    if not (folder / VECTORS).is_file():
        raise UserError(f"{folder / VECTORS} is not there: run `unmask represent` to its end.")
    return rows, load_file(folder / VECTORS)


def gather_phrasings(source: Corpus | list[Fact], asked: Sequence[Asked]) -> dict[str, list[Fact]]:
    """By group, every phrasing of the facts asked, in the directions asked."""
    groups = list(dict.fromkeys(each.group for each in asked))
    pools = {"own": source} if isinstance(source, list) else _find_groups(source, groups)
    ways = {(each.fact.fact_id, each.fact.direction) for each in asked}
    return {
        group: [fact for fact in facts if (fact.fact_id, fact.direction) in ways]
        for group, facts in pools.items()
    }
