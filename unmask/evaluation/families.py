"""Model families: one name for a model, or for the same model trained with several seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from unmask.base.errors import UserError
from unmask.net.hub import find_model
from unmask.net.loading import inspect
from unmask.net.model import Kind
from unmask.net.sources import open_checkpoint

_SAMPLE_BYTES = 1 << 20


@dataclass(frozen=True)
class Family:
    """Checkpoints that differ by their training seed alone; most often a single one."""

    name: str
    members: tuple[str, ...]
    kind: Kind
    digests: tuple[str, ...]
    """Of each member's weights, so that a run is not continued with others."""


def parse_families(words: Sequence[str]) -> list[Family]:
    """Families from words of the form MODEL, NAME=MODEL or NAME=MODEL,MODEL,…

    Without a name, the last part of the model's path is used. A last part with * or ? stands
    for all paths that fit it.
    """
    if not words:
        raise UserError("no model was given: expected [NAME=]MODEL[,MODEL…].")
    families = [_parse(word) for word in words]
    names = [family.name for family in families]
    if twice := {name for name in names if names.count(name) > 1}:
        raise UserError(
            f"several models are called {', '.join(sorted(twice))}: tell them apart by NAME=MODEL."
        )
    return families


def _parse(word: str) -> Family:
    name, found, listed = word.rpartition("=")
    parts = [part.strip() for part in listed.split(",")]
    if Path(word).exists():
        # A path may hold any of these signs itself.
        name, found, parts = "", "", [word]
    if not all(parts) or (found and not name):
        raise UserError(f"the model {word!r} cannot be read: expected [NAME=]MODEL[,MODEL…].")
    members = tuple(path for part in parts for path in _expand(part))
    name = name or Path(members[0]).name or members[0]
    if set(name) & set("/\\\0"):
        raise UserError(f"the model's name {name!r} holds a slash: choose another.")
    digests = tuple(digest_weights(member) for member in members)
    kinds = {inspect(member)[0].kind for member in members}
    if len(kinds) > 1:
        raise UserError(
            f"the models of {name} are of several kinds ({', '.join(sorted(kinds))}): give each "
            "kind a name of its own."
        )
    if len(set(digests)) < len(digests):
        raise UserError(
            f"the models of {name} hold the same weights twice: expected one model for each "
            "training seed."
        )
    return Family(name, members, kinds.pop(), digests)


def _expand(part: str) -> list[str]:
    path = Path(part)
    if not set(path.name) & set("*?"):
        return [part]
    if not (found := sorted(path.parent.glob(path.name))):
        raise UserError(f"no path fits the pattern {part!r}: expected at least one model.")
    return [str(each) for each in found]


def digest_weights(model: str) -> str:
    """A short name for a model's weights as they are on disk now, from both ends of each file."""
    digest = blake2b(digest_size=8)
    for path in open_checkpoint(find_model(model).path).weights.files:
        size = path.stat().st_size
        digest.update(str(size).encode())
        with path.open("rb") as file:
            digest.update(file.read(_SAMPLE_BYTES))
            file.seek(max(0, size - _SAMPLE_BYTES))
            digest.update(file.read())
    return digest.hexdigest()
