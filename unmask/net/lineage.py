"""Where a model comes from: the weights and the texts of the trainings before it, as records tell.

Training runs record digests of the weights that they started from and of the rows they read
(`unmask/training/folder.py`), and shipped models their recipe: lineages are followed from start to
start as far as these reach.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from unmask.base.files import path_exists
from unmask.base.runs import DIGESTS
from unmask.net.families import digest_model, find_shipped_recipe, pick_weights, read_training
from unmask.net.hub import shipped_models
from unmask.net.readings import split_reading


@dataclass(frozen=True)
class Lineage:
    """What records say of where a model comes from."""

    weights: tuple[tuple[str, ...], ...]
    """Digests of its weights, then of those that it was trained from, step by step."""
    texts: frozenset[str]
    """What a model and those before it were trained on: digests of rows, and names of data sets."""
    is_known: bool
    """Whether records reach back to fresh weights."""


def find_lineage(place: str, digests: Mapping[str, str]) -> Lineage:
    """The lineage of the model at a place, whose contents have these digests."""
    weights, texts = [pick_weights(digests)], set[str]()
    while (training := _read_training(place)) is not None:
        recipe, inputs = training
        texts |= set(_name_texts(recipe.get("data") or {}, inputs.get("the data") or {}))
        start = (recipe.get("start") or {}).get("model")
        if start is None:
            return Lineage(tuple(weights), frozenset(texts), is_known=True)
        start_weights = pick_weights(inputs.get("the start model") or {})
        if not start_weights or start_weights in weights:
            break
        weights.append(start_weights)
        # What lies there now is not what it was trained from, unless it has the same weights.
        named, _ = split_reading(start)
        is_here = named in shipped_models() or path_exists(named)
        if not is_here or pick_weights(digest_model(start)) != start_weights:
            break
        place = start
    return Lineage(tuple(weights), frozenset(texts), is_known=False)


def _read_training(place: str) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The recipe of a model and the digests of what it was trained from; None without records."""
    if (recipe := find_shipped_recipe(place)) is not None:
        return recipe, {}
    record = read_training(place)
    return (record["settings"], record["inputs"].get(DIGESTS, {})) if record else None


def _name_texts(data: Mapping[str, Any], digests: Mapping[str, str]) -> Iterator[str]:
    """What tells that two trainings read the same: bytes of rows, or where these came from."""
    yield from (each for part, each in digests.items() if part.startswith(("rows", "tokens in")))
    if data.get("path") is not None:
        yield str(data["path"])
    elif data:
        yield f"{data.get('source')}, {data.get('facts')} facts, seed {data.get('seed')}"
