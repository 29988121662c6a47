"""The network and its objective as one module, which is compiled, recomputed and spread."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from unmask.base.errors import UserError
from unmask.net.paradigm import Paradigm
from unmask.net.transformer import Transformer
from unmask.training.losses import LossInputs, Objective
from unmask.training.recipe import ComputeSettings


class Learner(nn.Module):
    """A batch in, its loss out: the whole forward pass of training, in one dtype."""

    def __init__(self, net: Transformer, objective: Objective, dtype: torch.dtype):
        super().__init__()
        self.net, self.objective, self.dtype = net, objective, dtype

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        short = self.dtype != torch.float32
        with torch.autocast(inputs.batch.tokens.device.type, self.dtype, enabled=short):
            return self.objective.loss(self.net, inputs)


def prepare_blocks(
    net: Transformer, machine: ComputeSettings, device: torch.device, dropout: float = 0.0
) -> bool:
    """Have the blocks drop, be recomputed and compiled as asked; whether they are compiled.

    All blocks share one compiled function, made for full rows; `run_plainly` is for others.
    """

    def drop(block: nn.Module, given: tuple[Any, ...], stream: Tensor) -> Tensor:
        if not block.training:
            return stream
        return given[0] + F.dropout(stream - given[0], dropout)

    compiled = machine.compile == "on" or (machine.compile == "auto" and device.type == "cuda")
    for layer in range(net.config.layers):
        block = net.block(layer)
        block.recompute = machine.recompute
        if dropout:
            block.register_forward_hook(drop)
        if compiled:
            block.compile(dynamic=False)
    if compiled:
        _keep_compilers()
    return compiled


def _keep_compilers() -> None:
    """Have torch's compiling processes stay; by default they end after a minute without work.

    A later training of the same process starts them again, and was seen to wait for them without
    end (torch 2.11; pytorch's pull request 183884 is about such restarts).
    """
    from torch._inductor import config

    config.quiesce_async_compile_pool = False


@contextmanager
def run_plainly(plainly: bool = True) -> Generator[None]:
    """Inside the block compiled code is not used: for rare shapes, not worth compiling."""
    if not plainly:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def freeze_unreached(net: Transformer, paradigm: Paradigm) -> None:
    """Take out of training what no objective of such models reaches."""
    if paradigm.noises_vectors and not net.config.tied:
        net.embedding.weight.requires_grad_(False)


def freeze_named(net: Transformer, names: Sequence[str]) -> None:
    """Take the embedding, the head or both out of training."""
    if net.config.tied and len(set(names)) == 1:
        raise UserError(
            f"optimiser.frozen names the {names[0]}, and the head is the embedding: freeze both, "
            "or give the head weights of its own by start.untie or network.changes.tied."
        )
    for name in names:
        for weight in getattr(net, name).parameters():
            weight.requires_grad_(False)
