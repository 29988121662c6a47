"""Models by name: shipped with the package, on disk, or on the Hugging Face hub."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from shlex import quote

from unmask.base.errors import UserError, suggest
from unmask.base.files import path_exists
from unmask.net.known import KNOWN, KnownModel
from unmask.net.readings import split_reading
from unmask.net.sources import UNPICKLE

HUB = "hub:"
"""Begins the name of a repository on the hub, or of one file in it, whatever lies on this disk."""
_MOST_CHARACTERS = 4000
"""The longest name; systems know no longer paths."""
RECIPE, RUN_MODEL, CHECKPOINT = "recipe.yaml", "model", "checkpoint.json"
"""What a training run holds: its recipe, its model once it is finished; and of each checkpoint."""
# No pickled weights and no code are fetched.
_WANTED = ["*.json", "*.safetensors", "merges.txt"]


@dataclass(frozen=True)
class ModelLocation:
    """Where a model is on this machine."""

    path: Path
    known: KnownModel | None = None
    """What is known of a model by its name."""
    reading: str | None = None
    """How its network is read, where the name says so."""

    def find_tokenizer(self, fetch: bool = True) -> Path | None:
        """The folder of a tokenizer of another repository; fetched only when needed."""
        repo = None if self.known is None else self.known.tokenizer
        return None if repo is None else _fetch(repo, ["*.json"], fetch)


def shipped_models() -> dict[str, Path]:
    """The models that came with the package."""
    folder = Path(str(files("unmask.assets")))
    return {path.parent.name: path.parent for path in sorted(folder.glob("*/config.json"))}


def cached_models() -> dict[str, dict[str, int]]:
    """Hub repositories on this machine that hold safetensors: their weight files and bytes."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        return {}
    models = {
        repo.repo_id: {
            file.file_name: file.size_on_disk
            for revision in repo.revisions
            for file in revision.files
            if file.file_name.endswith(".safetensors")
        }
        for repo in sorted(repos, key=lambda repo: repo.repo_id)
        if repo.repo_type == "model"
    }
    return {name: files for name, files in models.items() if files}


def find_model(
    name: str, fetch: bool = True, also_known: Iterable[str] = (), revision: str | None = None
) -> ModelLocation:
    """Where the model of that name lies; a hub model is fetched unless it is cached or not to be.

    The name may end on a reading, such as ":causal". `also_known` are further names to suggest
    where this one is not found.
    """
    place, reading = split_reading(name)
    return replace(_locate(place, fetch, also_known, revision), reading=reading)


def _locate(
    name: str, fetch: bool, also_known: Iterable[str], revision: str | None
) -> ModelLocation:
    is_on_hub = name.startswith(HUB)
    is_here = (
        not is_on_hub
        and len(name) <= _MOST_CHARACTERS
        and (name in shipped_models() or path_exists(name))
    )
    if revision is not None and is_here:
        raise UserError(
            f"the revision {revision!r} of {name} was asked for: expected a hub id or a known "
            "name, whose repository has revisions."
        )
    if len(name) > _MOST_CHARACTERS:
        raise UserError(
            f"a model's name of {len(name):,} characters was given: expected a name, a path or a "
            "hub id."
        )
    if name in shipped_models():
        return ModelLocation(shipped_models()[name])
    if is_here:
        return ModelLocation(_enter_run(Path(name)))
    if Path(name).name == RUN_MODEL and path_exists(Path(name).parent):
        _enter_run(Path(name).parent)  # an unfinished run has none yet
    if not is_on_hub and (name.startswith(("/", ".", "~")) or name.endswith(".safetensors")):
        raise UserError(
            f"{name} is not there: expected a model's folder or file at this path, or "
            f"{HUB}OWNER/NAME/PATH for a file in a repository of the hub."
        )
    known = _know_on_hub(name) if is_on_hub else KNOWN.get(name)
    if known is None and name.count("/") != 1:
        names = [*shipped_models(), *KNOWN, *also_known]
        raise UserError(
            f"no model {name!r}: it is not a file or folder, a hub id (owner/name) or a known "
            f"name; {suggest(name, names)}"
        )
    known = known or next((each for each in KNOWN.values() if each.repo == name), KnownModel(name))
    patterns = _WANTED
    if known.file:
        patterns = [known.file, str(Path(known.file).with_name("*.json"))]
    folder = _fetch(known.repo, patterns, fetch, revision or known.revision)
    path = folder / known.file if known.file else folder
    if not path.exists() or (path.is_dir() and not list(path.glob("*.safetensors"))):
        raise UserError(
            f"{known.repo!r} has no {known.file or 'safetensors weights'} here: connect to fetch "
            "it; weights that are only there as pickles must be converted first."
        )
    return ModelLocation(path, known)


def _know_on_hub(name: str) -> KnownModel:
    """What is known of a name that begins with `hub:`; a file is as the others of its repository.

    Nothing but safetensors is fetched: a pickle is refused by its name.
    """
    parts = name.removeprefix(HUB).split("/")
    repo, file = "/".join(parts[:2]), "/".join(parts[2:])
    if len(parts) < 2 or {"", ".", ".."} & set(parts) or set("*?[") & set(name):
        raise UserError(
            f"{name!r} is nothing on the hub: expected {HUB}OWNER/NAME for a repository, or "
            f"{HUB}OWNER/NAME/PATH for one file in it."
        )
    if file and not file.endswith(".safetensors"):
        raise UserError(
            f"{name} is not a .safetensors file, and no other weights are fetched, since pickles "
            f"can run code when they are read: look for one beside it, or {UNPICKLE}."
        )
    kin = next((each for each in KNOWN.values() if each.repo == repo), KnownModel(repo))
    return replace(kin, file=file) if file else kin if kin.file is None else KnownModel(repo)


def _enter_run(path: Path) -> Path:
    """The model of a training run's folder; any other path as it is."""
    if (path / CHECKPOINT).is_file():
        raise UserError(
            f"{path} is a checkpoint of a training run: make a model of it by "
            f"`unmask convert {quote(str(path))} OUT`, and give that."
        )
    # A shipped model has the recipe that it was trained by beside it.
    if not (path / RECIPE).is_file() or (path / "config.json").is_file():
        return path
    if path_exists(path / RUN_MODEL):
        return path / RUN_MODEL
    raise UserError(
        f"{path} is an unfinished training run, which has no model yet: finish it by "
        f"`unmask train --resume {quote(str(path))}`, or make a model of one of its checkpoints by "
        f"`unmask convert {quote(str(path))}/checkpoints/step-N OUT`."
    )


def _fetch(repo: str, patterns: list[str], fetch: bool = True, revision: str | None = None) -> Path:
    """A local copy of a repository; what is cached is not fetched again, a broken fetch resumes."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        return Path(
            snapshot_download(
                repo, allow_patterns=patterns, local_files_only=not fetch, revision=revision
            )
        )
    except GatedRepoError:
        raise UserError(
            f"{repo!r} is gated: ask for access on its page and log in with `hf auth login`."
        ) from None
    except RevisionNotFoundError:
        raise UserError(
            f"{repo!r} has no revision {revision!r}: name a branch or commit."
        ) from None
    except RepositoryNotFoundError:
        raise UserError(
            f"the hub has no model {repo!r} (or it is private): check the name.{_hint(repo)}"
        ) from None
    except HFValidationError:
        raise UserError(
            f"{repo!r} is not a path here and cannot be a hub id (owner/name)."
        ) from None
    except (LocalEntryNotFoundError, HfHubHTTPError) as error:
        why = "and the hub cannot be reached" if fetch else "and this command fetches nothing"
        raise UserError(
            f"{repo!r} is neither a path nor in the local cache, {why} "
            f"({type(error).__name__}): load it once while connected, or give the path of a copy."
            f"{_hint(repo)}"
        ) from None


def _hint(repo: str) -> str:
    """What stands beside a mistyped path that reads like a hub id."""
    folder = Path(repo).parent
    if folder == Path() or not folder.is_dir():
        return ""
    names = sorted(each.name for each in folder.iterdir())
    return f" In the folder {folder} there is: {', '.join(names[:8])}."
