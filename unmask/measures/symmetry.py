"""symmetry: does the key of a concept in one direction resemble its value in the other?

The key of a name is read where it is given, its value where it is asked for; so for a description.
Every comparison stands beside the same with v0, the MLP's own output before any search, and with
delta, what the search added: what the key shares with v0 is no finding about values. Cosine,
retrieval and the map take the key through the layer's down projection; the others take it as it
is. All vectors are centred over the facts. Facts whose search diverged are left out. v*, delta and
the v0 beside them are compared on the facts whose value restores the answer; where these are too
few, they are compared on all facts, and nothing is concluded about values.

Retrieval (reciprocal rank and first hit) is tested: the largest value over all layers, against that
of pairs shuffled alike in all layers, corrected (Holm) for the two concepts of a question. The
other measures describe: their p is the share of shuffled pairings at least as alike, corrected
(Holm) for the measures of one comparison at one layer, not for layers or comparisons. Of several
layers the one where values find their keys best is shown. A likeness says that pairs can be told
apart, not that the network uses it. On the canvas the subject of a diffusion model sees the
answer's masks, which can carry what is predicted there; keys and v0 are also compared without.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from unmask.base.config import CheckedSettings, option
from unmask.base.errors import NotMeasuredError, UserError
from unmask.blocks.blocks import ReportBlock
from unmask.blocks.tidy import distinct, group_by, select, to_interval
from unmask.evaluation.statistics import Clusters
from unmask.measures import symmetry_section as section
from unmask.measures.inputs import RunFolders, RunInputs
from unmask.measures.measure import Job, Measure, Rows, Stage
from unmask.measures.represent import stack_vectors
from unmask.measures.stored import read_csv_rows
from unmask.representation.likeness import LIKENESSES, NEEDED_FACTS, OVERLAP
from unmask.results.summaries import Summary, Tables, add_outcome, name_outcome, subtract_clusters

if TYPE_CHECKING:
    import pyarrow

    from unmask.representation.comparisons import Pairs, Vectors


PER_FACT = ("fact_ids", "per_fact")


@dataclass(frozen=True, kw_only=True)
class SymmetrySettings(CheckedSettings):
    """How finely chance is sampled."""

    permutations: int = option(999, "Shuffled pairings of each null.", least=19, most=10_000_000)
    tests: int = option(100_000, "Shuffled pairings over all layers.", least=19, most=10_000_000)
    restored: float = option(
        0.5, "Least share of the answer's cost that a value takes away to be one.", least=0, most=1
    )
    seed: int = option(0, "Seed of the nulls.", least=0)


@dataclass(frozen=True)
class Place:
    """One group of facts at one layer of one checkpoint."""

    columns: dict[str, Any]
    pairs: "Pairs"
    names: dict[str, str]
    """The name in each fact."""
    table: "pyarrow.Table"
    """The vectors of the whole run; pairs say which rows."""

    def read_vectors(self) -> "Vectors":
        """The vectors of the place, facts in the order of its pairs."""
        vectors = {}
        for way in ("p2d", "d2p"):
            tensors = stack_vectors(self.table.take([at[way] for at in self.pairs.rows.values()]))
            tensors["v_star"] = tensors["v0"] + tensors["delta"]
            vectors |= {(name, way): tensor.astype(np.float64) for name, tensor in tensors.items()}
        return vectors


def list_jobs(inputs: RunInputs, settings: SymmetrySettings) -> Iterator[Job]:
    """One part for each group of facts of each checkpoint, all its layers together."""
    groups = dict(_find_places(inputs, settings.restored))
    counts = [place.columns for places in groups.values() for place in places]
    best = max(counts, key=lambda row: row["facts"])
    if not any(row["facts"] + row["diverged"] for row in counts):
        raise NotMeasuredError("one direction")
    if best["facts"] < NEEDED_FACTS:
        raise NotMeasuredError("few pairs", **section.read_counts(best))
    for key, places in groups.items():
        yield Job(key, partial(_work, places, settings))


def _find_places(inputs: RunInputs, least: float) -> Iterator[tuple[str, list[Place]]]:
    """The layers of each group of every run; models of one name are told apart by their runs."""
    from unmask.representation.comparisons import pair_facts

    names = [model for _, result in inputs for model in result.kinds]
    needed = ["model", "kind", "seed", "group", "layer", "fact", "direction", "subject", "diverged"]
    needed += ["nll", "nll_before"]
    for number, (run, result) in enumerate(inputs):
        if not result.is_complete:
            raise UserError(f"{result.folder} was cut short: run `unmask represent` to its end.")
        rows = result.tables["represent"].select(needed).to_pylist()
        rows = [row | {"number": i} for i, row in enumerate(rows)]
        groups = group_by(rows, "model", "kind", "seed", "group")
        for (model, kind, seed, group), own in groups.items():
            name = f"{run}: {model}" if names.count(model) > 1 else model
            name += f"-{seed}" if len(distinct(select(rows, model=model), "seed")) > 1 else ""
            places = []
            for layer, members in sorted(group_by(own, "layer").items()):
                pairs = pair_facts({row["number"]: row for row in members}, least)
                columns = {"model": name, "kind": kind, "group": group, "layer": layer}
                columns |= {"facts": len(pairs.rows), "diverged": pairs.diverged}
                people = {row["fact"]: row["subject"] for row in select(members, direction="p2d")}
                places.append(Place(columns, pairs, people, result.tables["vectors"]))
            yield f"{number}-{model}-{seed}-{group}", places


def _work(places: Sequence[Place], settings: SymmetrySettings) -> Mapping[str, Rows]:
    """The comparisons and the cosines at all layers; only counts where facts are too few."""
    from unmask.representation import comparisons

    counts = [place.columns for place in places]
    places = [place for place in places if place.columns["facts"] >= NEEDED_FACTS]
    if not places:
        return {"places": counts}
    vectors = [place.read_vectors() for place in places]
    pairs = zip(vectors, places, strict=True)
    layers = [list(comparisons.list_compared(x, place.pairs)) for x, place in pairs]
    corrected = comparisons.assess_families(layers, settings.tests, settings.seed)
    lines, similarity = [], []
    for i, place in enumerate(places):
        for each in layers[i]:
            for row in comparisons.assess_compared(each, settings.permutations, settings.seed):
                p = corrected.get((row["comparison"], row["measure"], i), (None, None))
                lines.append(place.columns | row | {"p_layers": p[0], "p_family": p[1]})
        where = {name: place.columns[name] for name in ("model", "kind", "group", "layer")}
        facts, names = list(place.pairs.rows), place.names
        for concept in comparisons.CONCEPTS:
            cosines = comparisons.map_similarity(vectors[i], concept)
            for (a, b), cosine in np.ndenumerate(cosines):
                row = where | {"concept": concept, "key_of": facts[a], "value_of": facts[b]}
                row |= {"key_name": names[facts[a]], "value_name": names[facts[b]]}
                similarity.append(row | {"cosine": float(cosine)})
    return {"symmetry": lines, "similarity": similarity, "places": counts}


def summarise(tables: Tables, settings: SymmetrySettings) -> Summary:
    """Every measure, differences between models, and cosines at the layer that is shown."""
    rows = tables["symmetry"].drop_columns(["null"]).to_pylist()
    shown, lines = set(_choose_shown(rows)), []
    for row in rows:
        line = {name: value for name, value in row.items() if name not in PER_FACT}
        if row["measure"] != OVERLAP:  # which knows no pairs
            value = None if section.lacks_values(row) else to_interval(row, section.VALUE)
            p = row["p_holm"] if row["p_family"] is None else row["p_family"]
            line["outcome"] = name_outcome(value, row["facts"], p=p)
        lines.append(line | {"is_shown": (row["model"], row["group"], row["layer"]) in shown})
    return {
        "lines": lines,
        "differences": list(_compare_models(rows)),
        "places": tables["places"].to_pylist(),
        "similarity": [
            row
            for row in tables["similarity"].to_pylist()
            if (row["model"], row["group"], row["layer"]) in shown
        ],
    }


def _choose_shown(lines: Rows) -> Iterator[tuple[str, str, int]]:
    """For each model and group, the layer at which values find their keys best."""
    ranks = [row for row in lines if row["comparison"] in section.ASKED]
    for at, rows in group_by(select(ranks, measure="retrieval"), "model", "group").items():
        sums = {
            layer: sum(np.nan_to_num(row["value"]) for row in own)
            for layer, own in group_by(rows, "layer").items()
        }
        yield *at, max(sums, key=sums.__getitem__)


def _compare_models(rows: Rows) -> Iterator[dict[str, Any]]:
    """Pairs of models on the facts both have, where they were looked into at the same layers.

    Models looked into at one layer each are compared there, whichever layers those are.
    """
    layers = [distinct(select(rows, model=model), "layer") for model in distinct(rows, "model")]
    is_single = all(len(each) == 1 for each in layers)
    same = ("group", lambda row: None if is_single else row["layer"], "comparison", "measure")
    for (group, _, comparison, measure), cell in group_by(rows, *same).items():
        is_share = measure != OVERLAP and LIKENESSES[measure].is_share
        for pair in combinations(cell, 2):
            one, other = pair
            values = [dict(zip(*(row[name] for name in PER_FACT), strict=True)) for row in pair]
            shared = [fact for fact in values[0] if fact in values[1]]
            if len(shared) < NEEDED_FACTS or np.isnan([one["value"], other["value"]]).any():
                continue
            sides = [np.array([[value[fact] for fact in shared]]) for value in values]
            clusters = (Clusters(side, np.ones_like(side)) for side in sides)
            row = {"one": one["model"], "other": other["model"], "group": group}
            row |= {"layer_one": one["layer"], "layer_other": other["layer"]}
            row |= {"comparison": comparison, "measure": measure}
            row |= subtract_clusters(*clusters, is_share=is_share)
            yield row if measure == OVERLAP else add_outcome(row)


def _draw_stored(file: str) -> list[ReportBlock]:
    """Every measure, at the layer where a model's values find their keys best."""
    numbers = ("value", "low", "high", "null_mean", "null_low", "null_high", "p", "p_holm")
    rows = read_csv_rows(file, ("layer",), numbers)
    return [section.draw_measures([row | {"is_shown": True} for row in rows])]


MEASURE = Measure(
    name="symmetry",
    title="Do keys and values mirror each other?",
    help="Compare keys and values of the same concepts in both directions, chance beside them.",
    settings=SymmetrySettings,
    tables={"symmetry": "symmetry/3", "similarity": "similarity/2", "places": "places/1"},
    inputs=RunFolders("represent"),
    jobs=list_jobs,
    summarise=summarise,
    describe=section.describe,
    method=__doc__,
    draw_stored=_draw_stored,
    stages=[Stage(sizes={"quick": {"permutations": 199, "tests": 9999}})],
)
