"""Whether a judge of texts is outside the lineage of the models it judges, as records tell.

A network finds likely what its own kin writes. Training runs record digests of the weights that
they started from and of the rows they read (`unmask/training/folder.py`), and shipped models their
recipe: lineages are followed from start to start as far as these reach.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from unmask.base.errors import UserError
from unmask.base.files import path_exists
from unmask.base.reading import parse_yaml, read_text
from unmask.base.runs import DIGESTS
from unmask.measures.inputs import ModelInputs
from unmask.measures.measure import Rows


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
    from unmask.net.families import digest_model, pick_weights
    from unmask.net.hub import shipped_models

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
        is_here = start in shipped_models() or path_exists(start)
        if not is_here or pick_weights(digest_model(start)) != start_weights:
            break
        place = start
    return Lineage(tuple(weights), frozenset(texts), is_known=False)


def _read_training(place: str) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The recipe of a model and the digests of what it was trained from; None without records."""
    from unmask.net.families import read_training
    from unmask.net.hub import RECIPE, shipped_models

    if (folder := shipped_models().get(place)) is not None:
        return parse_yaml(read_text(folder / RECIPE), str(folder / RECIPE)), {}
    record = read_training(place)
    return (record["settings"], record["inputs"].get(DIGESTS, {})) if record else None


def _name_texts(data: Mapping[str, Any], digests: Mapping[str, str]) -> Iterator[str]:
    """What tells that two trainings read the same: bytes of rows, or where these came from."""
    yield from (each for part, each in digests.items() if part.startswith(("rows", "tokens in")))
    if data.get("path") is not None:
        yield str(data["path"])
    elif data:
        yield f"{data.get('source')}, {data.get('facts')} facts, seed {data.get('seed')}"


def judge_kinship(
    inputs: ModelInputs, judge: str, digests: Mapping[str, str]
) -> dict[str, dict[str, bool]]:
    """Whether the judge is known to be no kin of each member, by its key, and read the same text.

    A judge that shares weights with a model anywhere in both lineages is refused.
    """
    from unmask.net.model import Model

    ours, columns = find_lineage(judge, digests), {}
    for member in inputs.members():
        place = member.family.members[member.seed]
        own = list(member.family.digests.values())[member.seed]
        # A loaded model is known by its tensors, not by files: nothing tells where it comes from.
        is_loaded = isinstance(place, Model)
        theirs = Lineage((), frozenset(), False) if is_loaded else find_lineage(place, own)
        if set(ours.weights) & set(theirs.weights):
            raise UserError(
                f"the judge {judge} and {member.family.places[member.seed]} are one model, or were "
                "trained from the other or from the same one, and a network finds its own kind of "
                "text likely: name another judge."
            )
        columns[member.key] = {
            "is_apart": ours.is_known and theirs.is_known,
            "shares_text": bool(ours.texts & theirs.texts),
        }
    return columns


def say_kinship(rows: Rows, judge: str) -> str:
    """Sentences on whose kin the judge is, of rows with a `model` and what records say of it."""
    text = "Records of their trainings show that no model stems from it."
    if unknown := ", ".join(row["model"] for row in rows if not row["is_apart"]):
        text = (
            f"No record tells whether {judge} is kin to {unknown}: if it is, it finds these texts "
            "more likely than others would."
        )
    if shared := ", ".join(row["model"] for row in rows if row["shares_text"]):
        text += (
            f" {judge} was trained on the same text as {shared}: what they repeat costs it little."
        )
    return text
