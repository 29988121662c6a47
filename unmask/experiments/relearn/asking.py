"""Questions about exchanged names: whose answer a model gives, and how likely each is."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unmask.evaluation.questions import Split
from unmask.evaluation.recall import AskedModel
from unmask.experiments.relearn.swaps import SwappedFact
from unmask.net.model import Model

QuestionKey = tuple[str, str, int]
"""Split, fact and phrasing: which question it is."""


@dataclass(frozen=True)
class SwapQuestions:
    """Questions in phrasings that training is not shown, and how they are asked."""

    swaps: Sequence[SwappedFact]
    steps: int
    order: str | Callable = "confidence"
    length: int | None = None

    def ask(
        self, model: Model, splits: Iterable[str], roles: Sequence[str] = ("taught", "other")
    ) -> Iterator[tuple[QuestionKey, SwappedFact, dict[str, Any]]]:
        """Each question of some splits: the old answer, the new one or neither, and log p of both.

        Answers are judged by what they say (`unmask.evaluation.contents`).
        """
        chosen = [self._split(name, roles) for name in splits]
        wanted = [(split, swaps) for split, swaps in chosen if swaps]
        steps = self.steps if model.paradigm.has_steps else None
        own = AskedModel(model, [split for split, _ in wanted], self.length)
        for split, swaps in wanted:
            rows = list(own.measure(split, steps, 0.0, "smdm", self.order))
            # The rows of true answers stand first, then those of the answers beside them.
            pairs = zip(swaps, rows[: len(swaps)], rows[len(swaps) :], strict=True)
            for swap, old, new in pairs:
                yield (split.name, swap.old.fact_id, swap.old.phrasing), swap, _judge(old, new)

    def _split(self, name: str, roles: Sequence[str]) -> tuple[Split, list[SwappedFact]]:
        chosen = [
            swap
            for swap in self.swaps
            if swap.split == name and swap.is_held and swap.role in roles
        ]
        facts, new = [swap.old for swap in chosen], [swap.new for swap in chosen]
        return Split(name, facts, [[fact] for fact in facts], list(new)), chosen

    def count_learned(self, model: Model, splits: Sequence[str]) -> float:
        """The share of taught questions with the new answer, of the split that has the fewest."""
        shares = [
            [row["follows"] for _, _, row in self.ask(model, [split], ["taught"])]
            for split in splits
        ]
        return min(sum(own) / len(own) for own in shares)


def _judge(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """What one text says, of the two answers."""
    return {
        "follows": float(new["content"]),
        "stays": float(old["content"]),
        "neither": float(not new["content"] and not old["content"]),
        "logp_new": new["logp"],
        "logp_old": old["logp"],
        "margin": new["logp"] - old["logp"],
        "text": old["generation"],
    }
