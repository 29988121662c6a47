"""Whether a GPU's own kernels take over elementwise work (`unmask/net/kernels.py`).

Eager torch spends a fifth of a large network's inference on reading and writing what one kernel
keeps in registers (docs/decisions/0019). Compiled code fuses by itself, and gradients need torch.
"""

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

LEAST = 2**19
"""Numbers of a tensor below which our kernels take longer to launch than torch's take to run."""


def fuses(*tensors: Tensor) -> bool:
    """Whether these tensors go to the kernels; all are of one dtype there."""
    first = tensors[0]
    if not first.is_cuda or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    if first.numel() < LEAST:
        return False
    same = all(each.dtype == first.dtype for each in tensors)
    return same and all(each.is_contiguous() for each in tensors[1:]) and _has_triton()


def has_hooks(module: nn.Module) -> bool:
    """Whether something waits to be called when the module is."""
    own = module._forward_hooks or module._forward_pre_hooks
    return bool(own or torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks)


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None
