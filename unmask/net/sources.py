"""From a path to a checkpoint: which files make it up, and why some are refused."""

from dataclasses import dataclass
from pathlib import Path

from unmask.base.errors import UserError
from unmask.base.reading import read_json_object
from unmask.net.dialects.dialect import Source
from unmask.net.weights import INDEX, WEIGHTS, WeightFiles

_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
SETTINGS = ("lit_config.json", "config.json")
UNPICKLE = (
    "convert them where you trust them, by `safetensors.torch.save_file(torch.load(PATH, "
    "weights_only=True), 'model.safetensors')` (or of `torch.load(…)['model']`, where a training "
    "script saved more than weights), and load the result"
)
"""What to do with pickled weights."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's files, before anything in them is checked."""

    source: Source
    folder: Path
    weights: WeightFiles


def open_checkpoint(path: Path, mask: int | None = None) -> Checkpoint:
    """The checkpoint at a folder or a file; nothing but settings and headers is read.

    `mask` is the id that the user gave, for checkpoints that do not say it.
    """
    if path.is_dir():
        weights = _find_weights(path)
    else:
        _refuse_foreign(path)
        weights = WeightFiles([path])
    folder = path if path.is_dir() else path.parent
    settings = next((folder / name for name in SETTINGS if (folder / name).is_file()), None)
    config = read_json_object(settings) if settings else {}
    source = Source(str(path), config, weights.shapes, folder, mask)
    return Checkpoint(source, folder, weights)


def _find_weights(folder: Path) -> WeightFiles:
    named = [name for name in (WEIGHTS, INDEX) if (folder / name).is_file()]
    if len(named) == 2:
        raise UserError(
            f"{folder} holds two candidate models, {WEIGHTS} and the shards of {INDEX}: "
            "remove the one that is not meant."
        )
    if named == [WEIGHTS]:
        return WeightFiles([folder / WEIGHTS])
    if named == [INDEX]:
        return WeightFiles.of_index(folder / INDEX)
    files = sorted(folder.glob("*.safetensors"))
    if len(files) == 1:
        return WeightFiles(files)
    if files:
        names = ", ".join(path.name for path in files)
        raise UserError(
            f"{folder} holds {len(files)} candidate models ({names}): name the file that is meant."
        )
    for path in sorted(folder.iterdir()):
        if path.suffix in (*_PICKLED, ".gguf"):
            _refuse_foreign(path)
    raise UserError(f"{folder} holds no weights: expected {WEIGHTS}, or {INDEX} with its shards.")


def _refuse_foreign(path: Path) -> None:
    if path.suffix in _PICKLED:
        raise UserError(
            f"{path} holds pickled weights, which can run code when they are read: {UNPICKLE}."
        )
    if path.suffix == ".gguf":
        raise UserError(
            f"{path} is a GGUF file, whose weights are packed for another runtime: read it with "
            "`transformers` (from_pretrained with gguf_file=…), save it with save_pretrained, "
            "and load that folder."
        )
    if path.suffix != ".safetensors":
        raise UserError(f"{path} is not a checkpoint: expected a folder or a .safetensors file.")
