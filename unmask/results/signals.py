"""How well signals of a text's drawing tell wrong answers: AUROC of each."""

from collections.abc import Iterator
from typing import Any

from unmask.results.summaries import Rows, name_outcome

NAMES = {
    "entropy": "entropy when written",
    "entropy_most": "highest entropy",
    "margin": "margin when written",
    "margin_least": "lowest margin",
    "changes": "changes of mind",
    "backwards": "order from right to left",
}
"""What `unmask.evaluation.signals` keeps: wrong answers should have more, of margins less."""
SIGNS = {"margin": -1, "margin_least": -1}
CHANCE = 0.5


def judge_signals(rows: Rows, rule: str) -> Iterator[dict[str, Any]]:
    """AUROC of each signal for wrong answers, with its interval by fact; none without both."""
    from unmask.evaluation.detection import estimate_area

    for name in NAMES if "entropy_most" in rows[0] else ():
        known = [row for row in rows if row[name] is not None]
        wrong, facts = [not row[rule] for row in known], [row["fact"] for row in known]
        values = [SIGNS.get(name, 1) * row[name] for row in known]
        if (area := estimate_area(values, wrong, facts)) is not None:
            # What one fact alone says settles nothing, on either side.
            fewer = min(
                len({fact for fact, is_wrong in zip(facts, wrong, strict=True) if is_wrong == side})
                for side in (True, False)
            )
            errors = sum(not row[rule] for row in rows)
            counts = {"facts": len(set(facts)), "wrong": errors, "prompts": len(rows)}
            outcome = name_outcome(area, fewer, CHANCE)
            yield {"metric": name} | vars(area) | counts | {"outcome": outcome}
