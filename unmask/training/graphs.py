"""Training steps as CUDA graphs: one launch for all the kernels of a step.

A small network's kernels take less time than launching them. Steps whose inputs have the same
shapes run the same kernels on the same memory, so the launches can be recorded once and replayed.
The number of targets differs from step to step: on CUDA it is rounded up (`pad_inputs`), which
leaves a handful of shapes.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unmask.training.losses import LossInputs

SHAPES = 8
"""How many numbers of targets a batch may have, at most."""

MOST_FLOPS = 4e13
"""Operations of a step above which launching its kernels is no hindrance."""


@dataclass(frozen=True)
class StepPart:
    """What one pass of a step learns from."""

    inputs: LossInputs
    share: float
    """The part of the step's loss that it is."""
    source: int = 0
    """The number of the source that its rows come from."""


Learn = Callable[[Sequence[StepPart]], None]


def pad_inputs(inputs: LossInputs) -> LossInputs:
    """The inputs with their number of targets rounded up to one of a few."""
    if inputs.targets is None:
        return inputs
    multiple = max(1, -(-inputs.batch.tokens.numel() // SHAPES))
    return replace(inputs, targets=inputs.targets.pad(multiple))


class StepGraphs:
    """The captured steps of one trainer, by the shapes of their inputs.

    All of a trainer's steps run on `stream`, so that trainers side by side share the device.
    """

    def __init__(self, device: torch.device, learn: Learn):
        self.device, self.learn = device, learn
        self.stream = torch.cuda.Stream(device)
        self.replays = 0
        self._captured: dict[tuple[object, ...], _CapturedStep | None] = {}

    @contextmanager
    def in_stream(self) -> Generator[None]:
        """Inside the block work goes to the trainer's stream, after all that was asked before."""
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            yield

    def settle(self) -> None:
        """Let what is asked of the device from now on come after the steps; nobody waits."""
        torch.cuda.current_stream(self.device).wait_stream(self.stream)

    def run(self, parts: Sequence[StepPart]) -> None:
        """Learn from inputs that stand on the CPU, in a replay where their shapes are known.

        The first step of a shape runs as it is: its kernels are compiled and loaded there, which
        cannot be captured. Shares of the loss are numbers of the recording, and part of the shape.
        """
        tensors = _tensors_of(parts)
        assert tensors is not None, "can_replay was not asked"
        sizes = tuple(size for x in tensors for size in x.shape)
        shapes = (*sizes, *((part.source, part.share) for part in parts))
        if shapes not in self._captured:
            self._captured[shapes] = None
            self.learn(parts)
            return
        step = self._captured[shapes]
        if step is None:
            pools = [other.graph.pool() for other in self._captured.values() if other is not None]
            there = [replace(part, inputs=part.inputs.to(self.device)) for part in parts]
            step = _CapturedStep(there, self.learn, self.stream, pools[:1])
            self._captured[shapes] = step
        step.replay(tensors)
        self.replays += 1


class _CapturedStep:
    """The kernels of one step, and the memory that they read their inputs from."""

    def __init__(
        self, parts: Sequence[StepPart], learn: Learn, stream: torch.cuda.Stream, pools: list
    ):
        tensors = _tensors_of(parts)
        assert tensors is not None
        self.inputs, self.graph = tensors, torch.cuda.CUDAGraph()
        pool = pools[0] if pools else None  # steps take turns, so that they can share memory
        with torch.cuda.graph(self.graph, pool, stream, capture_error_mode="thread_local"):
            learn(parts)

    def replay(self, tensors: list[Tensor]) -> None:
        for kept, given in zip(self.inputs, tensors, strict=True):
            kept.copy_(given.pin_memory(), non_blocking=True)
        self.graph.replay()


def can_replay_step(parts: Sequence[StepPart]) -> bool:
    """Whether a step's inputs are all in tensors that a replay can be given."""
    return _tensors_of(parts) is not None


def _tensors_of(parts: Sequence[StepPart]) -> list[Tensor] | None:
    """What a loss reads; None where it draws, sees less than all, or has nothing to predict."""
    tensors: list[Tensor] = []
    for inputs in (part.inputs for part in parts):
        targets = inputs.targets
        if targets is None or inputs.sees is not None or not len(targets.at):
            return None
        tensors += [inputs.batch.tokens, inputs.t, targets.at, targets.tokens, targets.weights]
        tensors += [] if inputs.positions is None else [inputs.positions]
    return tensors
