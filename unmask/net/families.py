"""Model families: one name for a model, or for the same model trained with several seeds."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from unmask.base.errors import UserError
from unmask.base.files import path_exists
from unmask.base.identity import digest_file, digest_values
from unmask.base.reading import parse_yaml, read_json_object, read_text
from unmask.base.runs import DIGESTS, RECORD
from unmask.data.tokenizer import TOKENIZER_FILES
from unmask.net.hub import RECIPE, find_model, shipped_models
from unmask.net.loading import inspect
from unmask.net.model import Model
from unmask.net.paradigm import Kind, Paradigm, get_paradigm
from unmask.net.readings import split_reading
from unmask.net.sources import SETTINGS, open_checkpoint
from unmask.net.weights import INDEX

ModelPlace = str | Path | Model
"""A name, folder, file or hub id; or a model that is loaded already."""
NamedModels = Mapping[str, ModelPlace | list[ModelPlace] | tuple[ModelPlace, ...]]
"""Names of models; several models of a name differ by their training seed."""


@dataclass(frozen=True)
class Family:
    """Checkpoints that differ by their training seed alone; most often a single one."""

    name: str
    members: tuple[str | Model, ...]
    """Names, folders, files or hub ids; or models that are loaded already."""
    kind: Kind

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

    @cached_property
    def digests(self) -> dict[str, dict[str, str]]:
        """Digests of each member's contents, so that a run is not resumed with others."""
        names = [f"{self.name}, seed {i}" for i in range(len(self.members))]
        if len(names) == 1:
            names = [self.name]
        return dict(zip(names, map(digest_model, self.members), strict=True))

    @cached_property
    def openings(self) -> list[int]:
        """Which opening each member was trained from, numbered as they are met.

        Members are of one opening if they started from the same weights, as the records of their
        training say; all are 0 where one has no record.
        """
        starts = [_find_start(member) for member in self.members]
        if None in starts:
            return [0] * len(starts)
        return [list(dict.fromkeys(starts)).index(start) for start in starts]

    def read_shipped_recipe(self) -> dict[str, Any] | None:
        """How the corpus of a shipped model was made; None for any other model."""
        first = self.members[0]
        recipe = find_shipped_recipe(first.name if isinstance(first, Model) else first)
        return None if recipe is None else recipe["data"]


def find_shipped_recipe(name: str) -> dict[str, Any] | None:
    """The recipe that a model of this name was trained by; None for one that is not shipped."""
    folder = shipped_models().get(split_reading(name)[0])
    return None if folder is None else parse_yaml(read_text(folder / RECIPE), f"{folder}/{RECIPE}")


def _find_start(member: str | Model) -> tuple[str, ...] | None:
    """Digests of the weights that a training run started from; None where nothing says so."""
    inputs = {} if isinstance(member, Model) else read_training(member).get("inputs")
    digests = inputs.get(DIGESTS) if isinstance(inputs, dict) else None
    start = digests.get("the start model") if isinstance(digests, dict) else None
    return pick_weights(start) if isinstance(start, dict) else None


def read_training(place: str) -> dict[str, Any]:
    """The record of the run that trained a model, as `run.json` holds it; empty without one."""
    path = Path(split_reading(place)[0])
    folder = path.parent if path.name == "model" else path
    record = read_json_object(folder / RECORD) if path_exists(folder / RECORD) else {}
    return record if record.get("verb") == "train" else {}


def pick_weights(digests: Mapping[str, Any]) -> tuple[str, ...]:
    """The digests of a model's weights among all of its own; their order does not tell."""
    return tuple(sorted(str(each) for part, each in digests.items() if part.startswith("weights")))


def parse_families(given: Sequence[ModelPlace | NamedModels]) -> list[Family]:
    """Families from words of the form MODEL, NAME=MODEL or NAME=MODEL,MODEL,…; from loaded models;
    or from mappings of a name to either, or to several that differ by their training seed.

    Without a name, the last part of the model's path is used, of a training run its folder's. A
    path with * or ? stands for all paths that fit it.
    """
    if not given:
        raise UserError("no model was given: expected [NAME=]MODEL[,MODEL…].")
    families = [family for each in given for family in _read(each)]
    names = [family.name for family in families]
    if twice := {name for name in names if names.count(name) > 1}:
        raise UserError(
            f"several models are called {', '.join(sorted(twice))}: tell them apart by NAME=MODEL, "
            'in Python by {"NAME": model}.'
        )
    return families


def _read(given: ModelPlace | NamedModels) -> Iterator[Family]:
    if isinstance(given, Mapping):
        for name, places in given.items():
            several = places if isinstance(places, list | tuple) else [places]
            yield _make_family(several, str(name))
    elif isinstance(given, str) and not path_exists(given):  # a path may hold any of these signs
        name, equals, listed = given.rpartition("=")
        parts = [part.strip() for part in listed.split(",")]
        if not all(parts) or (equals and not name):
            raise UserError(f"the model {given!r} cannot be read: expected [NAME=]MODEL[,MODEL…].")
        yield _make_family([path for part in parts for path in _expand(part)], name)
    else:
        yield _make_family([given])


def _make_family(places: Iterable[ModelPlace], name: str = "") -> Family:
    """A family of that name, else of its first member's; what is not on this machine is fetched."""
    members = tuple(str(each) if isinstance(each, Path) else each for each in places)
    for each in members:
        if not isinstance(each, str | Model):
            raise UserError(
                f"the model is of the type {type(each).__name__}: expected a name, a path or a "
                "loaded model."
            )
    if not members:
        raise UserError(f"{name} has no model: expected one, or one for each training seed.")
    first = members[0]
    name = name or name_path(first.name if isinstance(first, Model) else first)
    if set(name) & set("/\\\0"):
        raise UserError(f"the model's name {name!r} holds a slash: choose another.")
    for member in members:
        if isinstance(member, str):
            find_model(member)
    kinds = {each.kind if isinstance(each, Model) else inspect(each)[0].kind for each in members}
    if len(kinds) > 1:
        raise UserError(
            f"the models of {name} are of several kinds ({', '.join(sorted(kinds))}): give each "
            "kind a name of its own."
        )
    family = Family(name, members, kinds.pop())
    if len(members) > 1:
        _check_weights_differ(family)
    return family


def _check_weights_differ(family: Family) -> None:
    weights = {pick_weights(parts) for parts in family.digests.values()}
    if len(weights) < len(family.members):
        raise UserError(
            f"the models of {family.name} hold the same weights twice: expected one model for each "
            "training seed."
        )


def name_path(place: str) -> str:
    """The last part of a path; training leaves its model in a folder `model` of the run.

    A reading that is named stays.
    """
    named, reading = split_reading(place)
    path, ending = Path(named), "" if reading is None else f":{reading}"
    if path.name == "model" and path.resolve().parent.name:
        return path.resolve().parent.name + ending
    return path.name + ending if path.name else place


def _expand(part: str) -> list[str]:
    """The paths that fit a pattern, in their order; a word that is no pattern is itself."""
    place, reading = split_reading(part)
    if reading is not None:
        return [f"{path}:{reading}" for path in _expand(place)]
    names = Path(part).parts
    first = next((i for i, name in enumerate(names) if set(name) & set("*?")), None)
    if first is None:
        return [part]
    if not (matches := sorted(Path(*names[:first]).glob(str(Path(*names[first:]))))):
        raise UserError(f"no path fits the pattern {part!r}: expected at least one model.")
    return [str(each) for each in matches]


def digest_model(model: str | Model) -> dict[str, str]:
    """Digests of everything that a model computes from, by what they are of.

    On disk these are all bytes of its weights, its settings and its tokenizer; of a loaded model
    its tensors, whatever was done to them. Noise of another package is known by its code.
    """
    blueprint = model.blueprint if isinstance(model, Model) else inspect(model)[0]
    plugins = blueprint.describe_plugins()
    return _digest_parts(model) | {f"code of {key}": own["code"] for key, own in plugins.items()}


def _digest_parts(model: str | Model) -> dict[str, str]:
    if isinstance(model, Model):
        tokenizer = () if model.tokenizer is None else model.tokenizer.list_contents()
        return {
            "weights": digest_values(_list_tensors(model)),
            "settings": digest_values([model.blueprint]),
            "tokenizer": digest_values(tokenizer),
        }
    location = find_model(model)
    checkpoint = open_checkpoint(location.path)
    tokenizer_folder = location.find_tokenizer() or checkpoint.folder
    files = [("weights", path) for path in checkpoint.weights.files]
    files += [("settings", checkpoint.folder / name) for name in (*SETTINGS, INDEX)]
    files += [("tokenizer", tokenizer_folder / name) for name in TOKENIZER_FILES]
    digests = {
        f"{part} in {path.name}": digest_file(path) for part, path in files if path.is_file()
    }
    reading = {} if location.reading is None else {"reading": digest_values([location.reading])}
    return digests | reading


def _list_tensors(model: Model) -> Iterator[object]:
    import torch

    for name, tensor in model.net.state_dict().items():
        yield name, tensor.dtype, tuple(tensor.shape)
        yield memoryview(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
