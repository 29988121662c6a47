"""Model families: one name for a model, or for the same model trained with several seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from unmask.base.errors import UserError
from unmask.base.reading import parse_yaml, read_text
from unmask.net.hub import find_model, shipped_models
from unmask.net.loading import inspect
from unmask.net.model import Model
from unmask.net.paradigm import Kind, Paradigm, get_paradigm
from unmask.net.sources import open_checkpoint

_SAMPLE_BYTES = 1 << 20


@dataclass(frozen=True)
class Family:
    """Checkpoints that differ by their training seed alone; most often a single one."""

    name: str
    members: tuple[str | Model, ...]
    """Names, folders, files or hub ids; or models that are loaded already."""
    kind: Kind
    digests: tuple[str, ...]
    """Of each member's weights, so that a run is not resumed with others."""

    @property
    def paradigm(self) -> Paradigm:
        """How the members are read, sampled and scored."""
        return get_paradigm(self.kind)

    @property
    def places(self) -> tuple[str, ...]:
        """Where the members are, for the record of a run."""
        return tuple(
            f"{member.name}, loaded" if isinstance(member, Model) else member
            for member in self.members
        )

    def read_shipped_recipe(self) -> dict[str, Any] | None:
        """How the corpus of a shipped model was made; None for any other model."""
        first = self.members[0]
        name = first.name if isinstance(first, Model) else first
        folder = shipped_models().get(name)
        if folder is None:
            return None
        recipe = folder / "recipe.yaml"
        return parse_yaml(read_text(recipe), str(recipe))["data"]


def parse_families(given: Sequence[str | Model]) -> list[Family]:
    """Families from loaded models, or words of the form MODEL, NAME=MODEL or NAME=MODEL,MODEL,…

    Without a name, the last part of the model's path is used, of a training run its folder's. A
    last part with * or ? stands for all paths that fit it.
    """
    if not given:
        raise UserError("no model was given: expected [NAME=]MODEL[,MODEL…].")
    families = [_hold(each) if isinstance(each, Model) else _parse(each) for each in given]
    names = [family.name for family in families]
    if twice := {name for name in names if names.count(name) > 1}:
        raise UserError(
            f"several models are called {', '.join(sorted(twice))}: tell them apart by NAME=MODEL."
        )
    return families


def _hold(model: Model) -> Family:
    return Family(_name_path(model.name), (model,), model.kind, (digest_parameters(model),))


def _parse(word: str) -> Family:
    if not isinstance(word, str):
        raise UserError(f"the model is a {type(word).__name__}: expected a name or a loaded model.")
    name, equals, listed = word.rpartition("=")
    parts = [part.strip() for part in listed.split(",")]
    if Path(word).exists():
        # A path may hold any of these signs itself.
        name, equals, parts = "", "", [word]
    if not all(parts) or (equals and not name):
        raise UserError(f"the model {word!r} cannot be read: expected [NAME=]MODEL[,MODEL…].")
    members = tuple(path for part in parts for path in _expand(part))
    name = name or _name_path(members[0])
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


def _name_path(place: str) -> str:
    """The last part of a path; training leaves its model in a folder `model` of the run."""
    path = Path(place)
    if path.name == "model" and path.resolve().parent.name:
        return path.resolve().parent.name
    return path.name or place


def _expand(part: str) -> list[str]:
    path = Path(part)
    if not set(path.name) & set("*?"):
        return [part]
    if not (matches := sorted(path.parent.glob(path.name))):
        raise UserError(f"no path fits the pattern {part!r}: expected at least one model.")
    return [str(each) for each in matches]


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


def digest_parameters(model: Model) -> str:
    """A short name for the weights of a loaded model."""
    import torch

    digest = blake2b(digest_size=8)
    for name, weight in model.net.state_dict().items():
        digest.update(name.encode())
        digest.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()
