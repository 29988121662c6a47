"""Checkpoints: everything a resumed run needs, whole or not there, the last few kept.

Tensors go through `torch.distributed.checkpoint` as safetensors: every process writes its own
parts, and a run may be resumed by another number of processes. What is not a tensor stands in
`checkpoint.json`, with the size of every file, by which a damaged checkpoint is recognised.
"""

import logging
import re
import shlex
import shutil
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from unmask.base.config import build
from unmask.base.errors import UserError
from unmask.base.files import replace_folder, write_json
from unmask.base.reading import read_json_object
from unmask.net.hub import CHECKPOINT, RUN_MODEL
from unmask.training.parallel import World

_log = logging.getLogger(__name__)

FORMAT = 2
FILE_BYTES = 1 << 30
"""A file is put together in memory before it is written: no more than this, but for one tensor."""
_NAME = re.compile(r"step-(\d{8})")


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a run is; with the tensors, all that the next step depends on."""

    step: int = 0
    """Steps taken."""
    tokens: int = 0
    total: int | None = None
    """Steps to take; None while a budget of minutes has not been turned into steps."""
    seconds: float = 0.0
    """Spent training, before and after every resume."""
    losses: float = 0.0
    """The sum of the losses that are in no record yet, over all processes."""
    by_source: list = field(default_factory=list)
    """Each source's part of that sum, and its share of these steps' losses."""
    counted: int = 0
    """How many steps' losses these are."""


@dataclass(frozen=True, kw_only=True)
class _CheckpointRecord:
    format: int
    progress: dict
    files: dict


def save_checkpoint(
    folder: Path, tensors: Mapping[str, Tensor], progress: Progress, keep: int, world: World
) -> Path:
    """Write a checkpoint under `folder` and remove all but the last `keep`."""
    target = folder / f"step-{progress.step:08d}"
    with replace_folder(target) if world.leads else nullcontext(Path()) as draft:
        shared = Path(str(world.share(str(draft))))
        try:
            with _unwarned():
                writer = dcp.HuggingFaceStorageWriter(
                    str(shared), _assign_files(tensors, world.size), save_distributed=True
                )
                dcp.save(dict(tensors), storage_writer=writer, no_dist=not world.joined)
        except CheckpointException as error:
            raise _explain(error, target, world.leads) from None
        if world.leads:
            sizes = {file.name: file.stat().st_size for file in sorted(shared.iterdir())}
            record = _CheckpointRecord(format=FORMAT, progress=asdict(progress), files=sizes)
            write_json(shared / CHECKPOINT, asdict(record))
    if world.leads:
        # Later ones are damaged, else the run would have resumed from them: they do not count.
        written = [path for path in list_checkpoints(folder) if path.name <= target.name]
        for old in written[:-keep]:
            shutil.rmtree(old, ignore_errors=True)
    world.wait()
    return target


def list_checkpoints(folder: Path) -> list[Path]:
    """All checkpoints of a run, oldest first; drafts that a kill left over are not listed."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name))


def find_newest(folder: Path) -> Path | None:
    """The newest checkpoint that is whole; a damaged one is passed over with a warning."""
    for path in reversed(list_checkpoints(folder)):
        if problem := _find_damage(path):
            _log.warning("passing over %s: %s", path, problem)
        else:
            return path
    return None


def check_checkpoint(path: Path) -> None:
    """Raise for a checkpoint that is damaged."""
    if problem := _find_damage(path):
        raise UserError(f"{path} is not a whole checkpoint: {problem}; use another one.")


def clear_leftovers(folder: Path, newest: Path | None) -> None:
    """Remove the drafts that a kill left, and the damaged checkpoints after the newest whole one.

    Where none is whole, all stay: somebody may want to save what can be saved. Drafts of the run's
    model lie above the folder of checkpoints.
    """
    for draft in (*folder.glob(".step-*.draft"), *folder.parent.glob(f".{RUN_MODEL}.*.draft")):
        shutil.rmtree(draft, ignore_errors=True)
    for path in list_checkpoints(folder):
        if newest is not None and path.name > newest.name:
            shutil.rmtree(path, ignore_errors=True)


def load_checkpoint(path: Path, tensors: Mapping[str, Tensor], world: World) -> Progress:
    """Load a checkpoint into the tensors, in place; how far its run was."""
    record, reader = _read_record(path), dcp.HuggingFaceStorageReader(str(path))
    try:
        with _unwarned():
            dcp.load(dict(tensors), storage_reader=reader, no_dist=not world.joined)
    except CheckpointException as error:
        reason = str(_find_cause(error)).splitlines()[0]
        raise UserError(
            f"{path} does not fit this run ({reason}): its recipe may be another one; start "
            "anew in another folder."
        ) from None
    return build(Progress, record.progress, str(path / CHECKPOINT))


def _assign_files(tensors: Mapping[str, Tensor], processes: int) -> dict[str, int]:
    """Which file of its process each tensor goes into, numbered from 1."""
    files: dict[str, int] = {}
    number, size = 1, 0
    for name, tensor in tensors.items():
        size += tensor.nbytes // processes
        if size > FILE_BYTES and number in files.values():
            number, size = number + 1, tensor.nbytes // processes
        files[name] = number
    return files


def _read_record(path: Path) -> _CheckpointRecord:
    return build(_CheckpointRecord, read_json_object(path / CHECKPOINT), str(path / CHECKPOINT))


def _find_damage(path: Path) -> str | None:
    """Why a checkpoint is not whole; None where it is. Another format is refused."""
    try:
        record = _read_record(path)
    except UserError as error:
        return str(error)
    if record.format != FORMAT:
        raise UserError(
            f"{path} has checkpoint format {record.format}, expected {FORMAT} (format 1 is a "
            "pickle, which can run code and is not read): begin anew with --fresh."
        )
    for name, size in record.files.items():
        size_now = (path / name).stat().st_size if (path / name).is_file() else 0
        if size_now != size:
            return f"{name} has {size_now} bytes, expected {size}"
    return None


@contextmanager
def _unwarned() -> Generator[None]:
    """Without the notice that one process saves alone, as most runs do."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable")
        yield


def _explain(error: CheckpointException, target: Path, leads: bool) -> BaseException:
    """The error to raise for a checkpoint that could not be written."""
    cause = _find_cause(error)
    # The leader's folder turns the system's error into a sentence; the others have no folder.
    if isinstance(cause, OSError) and not leads:
        return UserError(
            f"cannot write {target} ({cause}): free some room, then continue with "
            f"`unmask train --resume {shlex.quote(str(target.parent.parent))}`."
        )
    return cause


def _find_cause(error: CheckpointException) -> BaseException:
    """What went wrong on the first process that failed: the system's error where there is one."""
    first = next(iter(error.failures.values()))[0]
    chain = [first]
    while (before := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(before)
    if system := [cause for cause in chain if isinstance(cause, OSError)]:
        return system[0]
    while first.__cause__ is not None:
        first = first.__cause__
    return first
