"""Two devices on a machine that has one: tensors of the second are those of torch.device("cpu", 1).

torch itself knows one CPU only, takes its number for nothing and mixes such tensors freely. Inside
`TwoDevices` they are told apart by their memory, say where they are, and may not meet.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

HOME, AWAY = torch.device("cpu"), torch.device("cpu", 1)
_MAY_MEET = {Tensor.copy_, Tensor.to}
_READS_DEVICE = vars(torch._C.TensorBase)["device"].__get__


class TwoDevices(TorchFunctionMode):
    """A mode of torch in which memory belongs to one of two devices."""

    def __init__(self) -> None:
        super().__init__()
        self._away: dict[int, Tensor] = {}
        """By address; held, so that no address is used twice."""
        self.moves = 0

    def send(self, tensor: Tensor) -> None:
        """Count the memory of a tensor to the other device."""
        self._away[tensor.untyped_storage().data_ptr()] = tensor

    def find(self, tensor: Tensor) -> torch.device:
        return AWAY if tensor.untyped_storage().data_ptr() in self._away else HOME

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [each for each in _flatten((args, kwargs)) if isinstance(each, Tensor)]
        if func == _READS_DEVICE:
            return self.find(tensors[0])
        places = {self.find(each) for each in tensors if each.numel()}
        assert len(places) < 2 or func in _MAY_MEET, f"{func} met tensors of both devices"
        named = [each for each in _flatten((args, kwargs)) if isinstance(each, torch.device)]
        if func is Tensor.to and named:
            self.moves += self.find(tensors[0]) != named[0]
            if self.find(tensors[0]) == named[0]:
                return tensors[0]
            made = tensors[0].clone()
            target = named[0]
        else:
            made = func(*args, **kwargs)
            target = named[0] if named else places.pop() if places else HOME
        for each in _flatten(made):
            if target == AWAY and isinstance(each, Tensor) and each.numel():
                self.send(each)
        return made


def _flatten(given: Any) -> Iterator[Any]:
    if isinstance(given, dict):
        given = tuple(given.values())
    if isinstance(given, tuple | list):
        for each in given:
            yield from _flatten(each)
    else:
        yield given
