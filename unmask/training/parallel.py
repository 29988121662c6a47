"""Several processes as one: who is who, what is shared, how the network is spread.

The only file that knows of more than one device. Started by torchrun; without it everything here
is a formality.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from unmask.base.devices import read_ranks, resolve_device
from unmask.base.errors import UserError
from unmask.training.learner import Learner


@dataclass(frozen=True)
class World:
    """This process among all."""

    device: torch.device
    rank: int = 0
    size: int = 1
    joined: bool = False
    """Whether torchrun started us, be it alone."""

    @property
    def leads(self) -> bool:
        """Whether this process is the one that writes and speaks."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.joined:
            tensor = tensor.clone()
            dist.all_reduce(tensor)
        return tensor

    def agree(self, code: int) -> int:
        """The highest number that any process says."""
        if not self.joined:
            return code
        highest = torch.tensor(code)
        dist.all_reduce(highest, dist.ReduceOp.MAX)
        return int(highest)

    def share(self, value: float | int | str) -> float | int | str:
        """The leader's value."""
        if not self.joined:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def wait(self) -> None:
        """Until all processes are here."""
        if self.joined:
            dist.barrier()


@contextmanager
def join(device: str) -> Generator[World]:
    """The processes that torchrun started, or this one alone."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        yield World(resolve_device(device))
        return
    rank, size, local = read_ranks()
    own = resolve_device(device)
    if own.type == "cuda":
        own = resolve_device(f"cuda:{local}")
        torch.cuda.set_device(own)
    elif own.type == "mps":
        raise UserError("several processes cannot share an mps device: use device cpu.")
    # Small agreements are made on the CPU, where nobody waits for the accelerator.
    backend = "cpu:gloo,cuda:nccl" if own.type == "cuda" else "gloo"
    try:
        dist.init_process_group(backend)
    except (ValueError, RuntimeError) as error:
        raise UserError(
            f"process {rank} of {size} cannot join the others ({error!s:.300}): start the command "
            "with torchrun, or unset RANK and WORLD_SIZE to work alone."
        ) from error
    try:
        yield World(own, rank, size, joined=True)
    finally:
        dist.destroy_process_group()


def spread_learner(learner: Learner, world: World, method: str) -> nn.Module:
    """The learner as it is to be called, its gradients averaged over all processes.

    `ddp` keeps a whole network on each device. `fsdp` shards every tensor: a block's
    shards are gathered while it runs.
    """
    if not world.joined:
        return learner
    if method == "ddp":
        return DistributedDataParallel(learner)
    mesh = dist.init_device_mesh(world.device.type, (world.size,))
    for block in learner.net.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(learner, mesh=mesh)
    return learner


@contextmanager
def hold_gradients(learner: nn.Module, hold: bool) -> Generator[None]:
    """Inside the block gradients stay on this process: more of the step is to come."""
    if isinstance(learner, FSDPModule):
        learner.set_requires_gradient_sync(not hold)
    waits = hold and isinstance(learner, DistributedDataParallel)
    with learner.no_sync() if waits else nullcontext():
        yield


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is sharded over several devices."""
    return isinstance(tensor, DTensor)


def local_shard(tensor: Tensor) -> Tensor:
    """This process's shard of a tensor, or all of it."""
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def full_tensor(tensor: Tensor) -> Tensor:
    """The whole tensor, on every process."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
