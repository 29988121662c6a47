"""Run folders: where artefacts go, with what made them, so that a run resumes or is refused.

open_run     begins a run in a folder, or resumes the one that is there if it is the same
RunRecord    what a run was made with and from, as `run.json` says
"""

import logging
import platform
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from unmask import __version__
from unmask.base.config import SettingsError, build, check_values
from unmask.base.errors import UserError
from unmask.base.files import path_exists, remove_files, write_json
from unmask.base.locks import PATTERN as LOCKS
from unmask.base.locks import RunRefusedError, lock_run
from unmask.base.plugins import name_plugins
from unmask.base.reading import read_json_object

_log = logging.getLogger(__name__)

RUN_FORMAT = 2
RECORD, PAGE = "run.json", "page.html"
DIGESTS = "digests"
"""The entry of a run's inputs that holds digests of contents, by owner and part: for a model
`{"weights in model.safetensors": …}`, for the data `{"contents": …}`."""
DTYPES = "dtype"
"""The entry that holds what each model computes in."""
BEGIN_ANEW = "begin anew with --fresh (in Python fresh=True), or choose another folder with --out"

_FOREIGN = {
    "corpus.json": "a corpus",
    "shards.json": "token shards",
    "config.json": "a model",
    "recipe.yaml": "a training run",
}
"""By what a folder is known that is not for runs."""

Digests = Mapping[str, Mapping[str, str]]
_INPUTS = {
    "data": str,
    "models": Mapping[str, Sequence[str]] | Sequence[str],
    "runs": Mapping[str, str],
    DIGESTS: Digests,
}
"""What `run.json` says of inputs, as far as readers rely on it."""


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What `run.json` says."""

    format: int
    verb: str
    settings: dict
    inputs: dict = field(default_factory=dict)
    """What the run was made from: names and places, and digests of contents."""
    code: Digests = field(default_factory=dict)
    """Digests of the code that made it, by what it is of; empty in records of earlier versions."""
    plugins: Mapping[str, str] = field(default_factory=dict)
    """Where plug-ins that it needs come from, by kind and name (`unmask.base.plugins`)."""
    tables: dict = field(default_factory=dict)
    """The schema of each table."""
    versions: dict
    """Versions of the programs that started the run, and the machine."""


def make_record(
    verb: str,
    settings: Mapping[str, Any],
    inputs: Mapping[str, Any] | None = None,
    tables: Mapping[str, str] | None = None,
    device: str | None = None,
    code: Digests | None = None,
    plugins: Mapping[str, Mapping[str, str]] | None = None,
) -> RunRecord:
    """The record of a run that begins now; of a `device`, it says which chip that is.

    `plugins` are what `unmask.base.plugins.describe_plugins` says of those that take part: their
    code and the versions of their packages are recorded with the run's own.
    """
    from unmask.base.devices import describe_device

    machine = "" if device is None else describe_device(device)
    versions = {"unmask": __version__, "python": platform.python_version()}
    plugins = plugins or {}
    packages = {each["package"]: each["version"] for each in plugins.values() if each["version"]}
    theirs = {
        f"the {key.replace('.', ' ', 1)}": {"code": each["code"]} for key, each in plugins.items()
    }
    return RunRecord(
        format=RUN_FORMAT,
        verb=verb,
        settings=dict(settings),
        inputs=dict(inputs or {}),
        code={**(code or {}), **theirs},
        plugins=name_plugins(plugins),
        tables=dict(tables or {}),
        versions=versions | {"torch": version("torch"), "machine": machine, **packages},
    )


def write_record(folder: Path, record: RunRecord) -> None:
    write_json(folder / RECORD, asdict(record))


@contextmanager
def open_run(
    folder: str | Path,
    record: RunRecord,
    *,
    loose: frozenset[str] = frozenset(),
    files: Iterable[str] = (),
    fresh: bool = False,
    shared: bool = False,
) -> Generator[Path]:
    """The run folder, held inside the block, with a `run.json` that says how to repeat the run.

    A folder that holds a run of other settings or contents is refused: its artefacts would be
    mixed up. Settings named in `loose` may differ. With `fresh` the run that is there is removed:
    `files` are the patterns of all that such a run writes, and nothing else goes; a folder with
    files and no record of a run is refused. Several commands that go on with a `shared` run may be
    in the folder at once.
    """
    folder, files = Path(folder), tuple(files)
    _refuse_foreign(folder)
    with lock_run(folder, shared and not fresh):
        if not (folder / RECORD).is_file():
            _refuse_unknown(folder, ["*"] if fresh else files)
        elif fresh:
            _check_verb(folder, read_record(folder).verb, record.verb)
            remove_files(folder, [*files, PAGE, RECORD])  # the record last: it is true of the rest
        else:
            check_run(folder, record, loose)
        if not (folder / RECORD).is_file():
            write_record(folder, record)
        else:
            note_versions(folder, record)
        yield folder


def _refuse_foreign(folder: Path) -> None:
    """Refuse to begin among the files of a data set, a model or a training run."""
    for name, what in _FOREIGN.items():
        if path_exists(folder / name) and not (folder / RECORD).is_file():
            raise RunRefusedError(
                f"{folder} holds {what} ({name}), and a run would be written among its files: "
                "choose another folder with --out."
            )


def _refuse_unknown(folder: Path, patterns: Iterable[str]) -> None:
    """Refuse files where no record is: nobody knows whose they are, and what made them."""
    known = sorted(path for pattern in patterns for path in folder.glob(pattern))
    left = [path for path in known if not is_passing(path)]
    if left and not (folder / RECORD).is_file():  # of another command, which has just begun
        raise RunRefusedError(
            f"{folder} holds {left[0].relative_to(folder)} but no {RECORD} of a run that wrote it: "
            "choose another folder with --out, or remove what is there."
        )


def is_passing(path: Path) -> bool:
    """Whether a file is a lock or a draft, as a process at work has them and a kill leaves them."""
    return path.match(LOCKS) or path.match(".*.draft")


def _check_verb(folder: Path, before: str, now: str) -> None:
    if before != now:
        raise RunRefusedError(
            f"{folder} holds another run (it is a run of `unmask {before}`): choose another folder."
        )


def check_run(folder: str | Path, now: RunRecord, loose: frozenset[str] = frozenset()) -> None:
    """Refuse a folder that holds another run than `now`; settings named in `loose` may differ."""
    folder = Path(folder)
    if not path_exists(folder / RECORD):
        return
    before = read_record(folder)
    _check_verb(folder, before.verb, now.verb)
    changes = compare_values(before.settings, now.settings, loose)
    changes += compare_values(before.tables, now.tables, what="the schema of the table ")
    # What is taken from the data depends on settings.
    changes = changes or [*compare_code(before, now), *compare_inputs(before.inputs, now.inputs)]
    if changes:
        raise RunRefusedError(f"{folder} holds another run ({'; '.join(changes)}): {BEGIN_ANEW}.")


def compare_code(before: RunRecord, now: RunRecord) -> list[str]:
    """What differs between the code of two runs; nothing where it was not recorded."""
    if not before.code or not (changes := compare_digests(before.code, now.code)):
        return []
    old, new = ({"Python": each.versions.get("python")} for each in (before, now))
    return changes + compare_values(old, new)  # another one has other bytecode


def compare_values(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    loose: frozenset[str] = frozenset(),
    what: str = "",
) -> list[str]:
    """What differs between two mappings, a clause for each key."""
    return [
        f"{what}{key} was {before.get(key)!r} and is now {now.get(key)!r}"
        for key in sorted((before.keys() | now.keys()) - loose)
        if before.get(key) != now.get(key)
    ]


def compare_inputs(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between the inputs of two runs, a clause for each difference."""
    if not now.get(DIGESTS):
        return compare_values(before, now)
    # Where inputs lie does not matter: the same contents may have been moved. Names of models do:
    # they stand in the tables.
    models, models_now = ({"models": list(each.get("models", ()))} for each in (before, now))
    if changes := compare_values(models, models_now):
        return changes
    dtypes, dtypes_now = (each.get(DTYPES, {}) for each in (before, now))
    if changes := compare_values(dtypes, dtypes_now, what="the dtype of "):
        return changes
    changes = compare_digests(before.get(DIGESTS, {}), now[DIGESTS])
    if changes and before.get("data") != now.get("data"):
        changes.append(f"data was {before.get('data')!r} and is now {now.get('data')!r}")
    return changes


def compare_digests(before: Digests, now: Digests) -> list[str]:
    """What differs between digests, a clause for each."""
    old, new, changes = _flatten(before), _flatten(now), list[str]()
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            verb = "appeared" if key not in old else "disappeared" if key not in new else "changed"
            changes.append(f"the {key[1]} of {key[0]} {verb}")
    return changes


def _flatten(digests: Digests) -> dict[tuple[str, str], str]:
    return {
        (owner, part): digest for owner, each in digests.items() for part, digest in each.items()
    }


def note_versions(folder: Path, now: RunRecord) -> None:
    """Record that other versions of packages resume a run than those that began it, and log it."""
    before = read_record(folder)
    versions = dict(before.versions)
    for name in sorted(now.versions.keys() - {"python", "torch", "machine"}):
        known, own = versions.get(f"resumed by {name}", versions.get(name)), now.versions[name]
        if known not in (None, own):
            versions[f"resumed by {name}"] = own
            _log.warning("%s is a run of %s %s, resumed by %s.", folder, name, known, own)
    if now.code and not before.code:
        _log.warning("%s does not say what code made it: it cannot be compared.", folder)
    if versions != before.versions:
        write_record(folder, replace(before, versions=versions))


def find_folder(folder: str | Path) -> Path:
    """The path of a run; one that is not there is refused."""
    if not path_exists(folder) or not Path(folder).is_dir():
        raise UserError(f"there is no folder {str(folder)!r:.200}: expected the folder of a run.")
    return Path(folder)


def read_record(folder: str | Path) -> RunRecord:
    """What a folder's `run.json` says; a folder without one, or of another version, is refused."""
    folder = find_folder(folder)
    if not (folder / RECORD).is_file():
        raise UserError(f"{folder} has no {RECORD}: expected the folder of a run.")
    record = build(RunRecord, read_json_object(folder / RECORD), str(folder / RECORD))
    if record.format != RUN_FORMAT:
        made_by = record.versions.get("unmask", "another version")
        raise UserError(
            f"{folder} was written by unmask {made_by} in run format {record.format}, expected "
            f"{RUN_FORMAT}: make the run anew with this version."
        )
    if problems := check_values(record.inputs, _INPUTS):
        raise SettingsError(str(folder / RECORD), problems)
    return record
