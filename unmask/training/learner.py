"""The network and its lesson as one module, which is compiled, recomputed and spread."""

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from unmask.net.blocks import Block
from unmask.net.sites import Tap
from unmask.net.transformer import Transformer
from unmask.net.view import View
from unmask.training.losses import Given, Lesson
from unmask.training.recipe import Machine


class Learner(nn.Module):
    """A batch in, its loss out: the whole forward pass of training, under one number format."""

    def __init__(self, net: Transformer, lesson: Lesson, dtype: torch.dtype):
        super().__init__()
        self.net, self.lesson, self.dtype = net, lesson, dtype

    def forward(self, given: Given) -> Float[Tensor, ""]:
        short = self.dtype != torch.float32
        with torch.autocast(given.batch.tokens.device.type, self.dtype, enabled=short):
            return self.lesson.loss(self.net, given)


class RecomputedBlock(Block):
    """A block that keeps its input alone, and runs again in the backward pass."""

    def forward(self, x: Float[Tensor, "B L D"], view: View, tap: Tap) -> Float[Tensor, "B L D"]:
        run = partial(Block.forward, self, view=view, tap=tap)
        return checkpoint(run, x, use_reentrant=False, preserve_rng_state=False)


def prepare_blocks(net: Transformer, machine: Machine, device: torch.device) -> bool:
    """Have the blocks recomputed and compiled as asked; whether they are compiled.

    All blocks share one compiled function, made for full rows; `run_plainly` is for others.
    """
    compiled = machine.compile == "on" or (machine.compile == "auto" and device.type == "cuda")
    for block in net.layers:
        if machine.recompute:
            block.__class__ = RecomputedBlock  # parameters keep their names
        if compiled:
            block.compile(dynamic=False)
    return compiled


@contextmanager
def run_plainly(plainly: bool = True) -> Generator[None]:
    """Inside the block compiled code is not used: for rare shapes, not worth compiling."""
    if not plainly:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def freeze_unreached(net: Transformer, kind: str) -> None:
    """Take out of training what the kind's lesson never reaches."""
    if kind == "gaussian" and not net.config.tied:
        net.embedding.weight.requires_grad_(False)
