"""Faithfulness of circuits: how much of what a network does its strongest edges do alone.

CPR and CMD of the mechanistic interpretability benchmark (Mueller et al. 2025, arXiv 2504.13151).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from unmask.tracing.circuits import EdgeScores, Wiring

CIRCUIT_SIZES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Shares of all edges that circuits have (Mueller et al. 2025, arXiv 2504.13151)."""


@dataclass(frozen=True)
class Faithfulness:
    """How much of the metric circuits of each size have, by MIB's two readings of an order.

    Faithfulness is (circuit − other question) / (whole network − other question).
    """

    positive: tuple[float, ...]
    """With the edges of the highest scores."""
    strongest: tuple[float, ...]
    """With those of the highest magnitudes."""

    @property
    def cpr(self) -> float:
        """The area under faithfulness, edges by their scores: high is good."""
        return _area(self.positive)

    @property
    def cmd(self) -> float:
        """The area between faithfulness and 1, edges by their magnitudes: 0 is best."""
        return _area([abs(1 - each) for each in self.strongest])


def _area(values: Sequence[float]) -> float:
    return float(torch.trapezoid(torch.tensor(values), torch.tensor(CIRCUIT_SIZES)))


def measure_faithfulness(wiring: Wiring, scores: EdgeScores) -> Faithfulness:
    """The faithfulness of the circuits that an order of the edges gives; unscored edges are last.

    Args:
        wiring: The step that is asked.
        scores: Of edges, exact or estimated.
    """
    clean, other = wiring.ends()
    curves = list[tuple[float, ...]]()
    for order in (scores, scores.abs()):
        if curves and not bool((scores < 0).any()):
            curves.append(curves[0])  # the order is the same
            continue
        ranked = torch.where(wiring.edges, order.nan_to_num(-torch.inf), -torch.inf).flatten()
        places, total = ranked.argsort(descending=True, stable=True), int(wiring.edges.sum())
        kept = torch.zeros(len(CIRCUIT_SIZES) - 1, len(ranked), dtype=torch.bool)
        for row, share in zip(kept, CIRCUIT_SIZES, strict=False):
            row[places[: max(1, round(share * total))]] = True
        ends = wiring.run_circuits(kept.unflatten(1, wiring.edges.shape) & wiring.edges)
        # The circuit of all edges is the network.
        curves.append((*((ends.cpu() - other) / (clean - other)).tolist(), 1.0))
    return Faithfulness(*curves)
