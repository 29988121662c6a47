"""What edits did at each place that was tried: for the choice, and for the page."""

from collections.abc import Iterable
from typing import Any

from unmask.blocks.tidy import select, to_interval
from unmask.evaluation.statistics import Interval
from unmask.measures.result import Result


def list_tries(results: Iterable[Result]) -> list[dict[str, Any]]:
    """What each model did at each place that was tried."""
    tries = []
    for result in results:
        settings = result.records[0].settings
        layer, clamp = int(settings["layer"]), settings["clamp"]
        for score in result.summary["scores"]:
            means = take_means(result, score["model"], "edited")
            own = {"place": (layer, clamp), "layer": layer, "clamp": clamp}
            own |= {"said": means["said_after"].mean, "gain": means["gain"].mean}
            tries.append({**score, **own})
    return tries


def take_means(result: Result, model: str, role: str) -> dict[str, Interval]:
    """The means of a model's question, by metric."""
    rows = select(result.summary["means"], model=model, role=role)
    return {row["metric"]: to_interval(row) for row in rows}
