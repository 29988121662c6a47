"""The table of recall in numbers: means with intervals, differences between models, controls."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

from unmask.evaluation.metrics import bleu_signature
from unmask.evaluation.questions import CONTROL, gather_answers, plain_answer
from unmask.evaluation.statistics import (
    Clusters,
    Interval,
    cluster,
    estimate_difference,
    estimate_mean,
)

if TYPE_CHECKING:
    import pyarrow

METRICS = (
    "hit",
    "strict",
    "token_accuracy",
    "bleu",
    "rank",
    "logp",
    "logp_mean_field",
    "first_token_entropy",
)
BEATS = "beats_control"
"""The share of prompts whose true answer is likelier (`logp`) than the shuffled one, of those that
have a control."""

SHARES = ("hit", "strict", BEATS)
"""Metrics that are true or false of a prompt."""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Cell:
    """One metric of one model on one split at one step count (None: a causal model's)."""

    model: str
    kind: str
    split: str
    steps: int | None
    metric: str
    value: Interval
    prompts: int
    facts: int
    seeds: int


@dataclass(frozen=True)
class Pair:
    """How much more often one model hits than another on the same facts."""

    one: str
    other: str
    split: str
    steps: int | None
    """None where both models are causal."""
    difference: Interval


@dataclass(frozen=True)
class Summary:
    """All cells and all pairs, and how BLEU was computed."""

    cells: list[Cell]
    pairs: list[Pair]
    bleu: str

    def find(self, model: str, split: str, steps: int | None, metric: str = "hit") -> Cell | None:
        """The cell of a model; a causal model's is the same at every step count."""
        wanted = (model, split, metric)
        for cell in self.cells:
            named = (cell.model, cell.split, cell.metric)
            if named == wanted and cell.steps in (None, steps):
                return cell
        return None

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(cell.model for cell in self.cells))

    @property
    def splits(self) -> list[str]:
        """Without the controls."""
        found = dict.fromkeys(cell.split for cell in self.cells)
        return [split for split in found if not split.endswith(CONTROL)]

    @property
    def steps(self) -> list[int | None]:
        """In order; a single None where all models are causal."""
        found = sorted({cell.steps for cell in self.cells if cell.steps is not None})
        return [*found] or [None]

    def count_uncontrolled(self) -> dict[str, int]:
        """Prompts without a control, by split: their shuffled answer is their own fact's.

        Splits where all or none have one are left out.
        """
        hits = {cell.split: cell.prompts for cell in self.cells if cell.metric == "hit"}
        left = {split: hits[split] - hits.get(split + CONTROL, hits[split]) for split in hits}
        return {split: count for split, count in left.items() if count}

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Summary":
        """The summary that `to_json` gave."""

        def restore(one: Mapping[str, Any], key: str) -> dict[str, Any]:
            return {**one, key: Interval(**one[key])}

        cells = [Cell(**restore(each, "value")) for each in found["cells"]]
        pairs = [Pair(**restore(each, "difference")) for each in found["pairs"]]
        return cls(cells, pairs, found["bleu"])


def summarise(table: "pyarrow.Table") -> Summary:
    """Cells and pairs of a table of recall."""
    groups = _group(_drop_false_controls(table.to_pylist()))
    cells = list(_find_cells(groups))
    return Summary(cells, list(_find_pairs(groups)), bleu_signature())


_Key = tuple[str, str, int | None]
"""Model, split, steps."""


def _drop_false_controls(rows: Sequence[Row]) -> list[Row]:
    """Without the controls whose answer is one of the fact's own, which shuffling may leave."""
    own = {
        split: gather_answers(
            (row["fact"], row["completion"]) for row in rows if row["split"] == split
        )
        for split in {row["split"] for row in rows}
    }
    return [
        row
        for row in rows
        if not row["split"].endswith(CONTROL)
        or plain_answer(row["completion"])
        not in own.get(row["split"].removesuffix(CONTROL), {}).get(row["fact"], ())
    ]


def _group(rows: Sequence[Row]) -> dict[_Key, list[Row]]:
    groups: dict[_Key, list[Row]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["split"], row["steps"]), []).append(row)
    return groups


def _cluster(rows: Sequence[Row], values: Sequence[float]) -> Clusters:
    return cluster(values, [row["fact"] for row in rows], [row["seed"] for row in rows])


def _find_cells(groups: Mapping[_Key, list[Row]]) -> Iterator[Cell]:
    for (model, split, steps), rows in groups.items():
        measured = {metric: (rows, [row[metric] for row in rows]) for metric in METRICS}
        measured[BEATS] = _compare_to_controls(
            rows, groups.get((model, split + CONTROL, steps), ())
        )
        for metric, (kept, found) in measured.items():
            if not kept or None in found:  # no controls; mean field of causal models
                continue
            clusters = _cluster(kept, found)
            num_seeds, num_facts = clusters.sums.shape
            yield Cell(
                model=model,
                kind=rows[0]["kind"],
                split=split,
                steps=steps,
                metric=metric,
                value=estimate_mean(clusters, metric in SHARES),
                prompts=len(kept) // num_seeds,
                facts=num_facts,
                seeds=num_seeds,
            )


def _compare_to_controls(
    rows: Sequence[Row], controls: Sequence[Row]
) -> tuple[list[Row], list[float]]:
    """The rows that have a control, and whether each one's answer is likelier than it."""
    likelihoods = {(row["seed"], row["prompt"]): row["logp"] for row in controls}
    kept = [row for row in rows if (row["seed"], row["prompt"]) in likelihoods]
    return kept, [float(row["logp"] > likelihoods[row["seed"], row["prompt"]]) for row in kept]


def _find_pairs(groups: Mapping[_Key, list[Row]]) -> Iterator[Pair]:
    models, splits, counts = (list(dict.fromkeys(found)) for found in zip(*groups, strict=True))
    all_steps = [steps for steps in counts if steps is not None] or [None]
    for one, other in combinations(models, 2):
        for split in (split for split in splits if not split.endswith(CONTROL)):
            for steps in all_steps:
                sides = [
                    groups.get((model, split, steps)) or groups[model, split, None]
                    for model in (one, other)
                ]
                ours, theirs = (_cluster(rows, [row["hit"] for row in rows]) for rows in sides)
                found = estimate_difference(ours, theirs, is_share=True)
                yield Pair(one, other, split, steps, found)
