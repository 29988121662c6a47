"""Tensors in safetensors files, known by their headers and read one at a time."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.files import write_json
from unmask.base.reading import read_json_object

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARD_BYTES = 5_000_000_000
_MAPPED_BYTES = 16_000_000
_ITEM_BYTES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I64": 8, "I32": 4, "U8": 1, "BOOL": 1}


class WeightFiles:
    """The tensors of some safetensors files: names, shapes and dtypes, no data yet."""

    def __init__(self, files: Iterable[Path], home: Mapping[str, Path] | None = None):
        """All tensors of the files; with `home`, its tensors only, each from the file it names."""
        self.files = list(files)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, str] = {}
        self._home: dict[str, Path] = {}
        self._opened: tuple[Path, safe_open] | None = None
        self._room = 0
        """Bytes to read before the file that is open is opened anew."""
        for path in self.files:
            with _open(path) as handle:
                for name in handle.keys():  # noqa: SIM118 (a handle is not a mapping)
                    if home is not None and home.get(name) != path:
                        continue
                    view = handle.get_slice(name)
                    self._home[name] = path
                    self.shapes[name] = tuple(view.get_shape())
                    self.dtypes[name] = view.get_dtype()

    @classmethod
    def of_index(cls, index: Path) -> "WeightFiles":
        """The tensors that an index names, each from the shard that it names, in its folder."""
        named = read_json_object(index).get("weight_map")
        is_map = isinstance(named, dict) and all(isinstance(name, str) for name in named.values())
        if not named or not is_map:
            raise UserError(f"{index} has no 'weight_map' of files: expected an index of shards.")
        for name in set(named.values()):
            if name in (".", "..") or set(name) & set("/\\\0"):
                raise UserError(
                    f"{index} names the shard {name!r}: expected a file in the same folder; fetch "
                    "the model again."
                )
        home = {tensor: index.parent / name for tensor, name in named.items()}
        shards = sorted(set(home.values()))
        if missing := [path.name for path in shards if not path.is_file()]:
            raise UserError(
                f"{index} names {', '.join(missing)}, not there: fetch the model again."
            )
        weights = cls(shards, home)
        if absent := next((name for name in named if name not in weights), None):
            raise UserError(
                f"{index} says that {absent} is in {named[absent]}, which does not hold it: fetch "
                "the model again."
            )
        return weights

    def __contains__(self, name: str) -> bool:
        return name in self.shapes

    def read(self, name: str) -> Tensor:
        """One tensor, mapped from its file; the mapping ends when the tensor is dropped.

        A file is opened anew once a few tensors were read: one lasting mapping would count every
        page it touched as memory of this process, and opening it for each of the thousands of
        tensors of a mixture of experts would take longer than reading them.
        """
        path, size = self._home[name], self._count_bytes(name)
        if self._opened is None or self._opened[0] != path or self._room < size:
            self._opened, self._room = (path, _open(path)), _MAPPED_BYTES
        self._room -= size
        return self._opened[1].get_tensor(name)

    def _count_bytes(self, name: str) -> int:
        return math.prod(self.shapes[name]) * _ITEM_BYTES.get(self.dtypes[name], 8)

    def read_blocks(self, name: str, most_bytes: int) -> Iterator[tuple[slice, Tensor]]:
        """A tensor a few rows at a time, none larger than `most_bytes` if it can be."""
        rows = self.shapes[name][0] if self.shapes[name] else 1
        step = max(1, rows * most_bytes // max(self._count_bytes(name), 1))
        if step >= rows:
            yield slice(None), self.read(name)
            return
        self._opened = None
        for start in range(0, rows, step):
            with _open(self._home[name]) as handle:
                yield slice(start, start + step), handle.get_slice(name)[start : start + step]

    def equals(self, name: str, tensor: Tensor, most_bytes: int = 8_000_000) -> bool:
        """Whether a tensor, rounded to the other's dtype, is that other one."""
        return self.shapes[name] == tuple(tensor.shape) and all(
            bool((block.to(tensor) == tensor[rows]).all())
            for rows, block in self.read_blocks(name, most_bytes)
        )


def write_weights(weights: Mapping[str, Tensor], folder: Path, shard_bytes: int) -> None:
    """Write tensors as one file, or as shards of at most `shard_bytes` with an index."""
    from huggingface_hub import split_torch_state_dict_into_shards

    plan = split_torch_state_dict_into_shards(dict(weights), max_shard_size=shard_bytes)
    for file, names in plan.filename_to_tensors.items():
        save_file({name: weights[name] for name in names}, folder / file, {"format": "pt"})
    if plan.is_sharded:
        index = {"metadata": plan.metadata, "weight_map": plan.tensor_to_filename}
        write_json(folder / INDEX, index)


def _open(path: Path) -> safe_open:
    try:
        return safe_open(path, "pt")
    except (SafetensorError, json.JSONDecodeError, OSError) as error:
        raise UserError(
            f"{path} is not a whole safetensors file ({error}): it was cut short or is something "
            "else; fetch or convert it again."
        ) from None
