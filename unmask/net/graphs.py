"""A small network as CUDA graphs: one launch in place of hundreds.

Launching a kernel costs the CPU some microseconds, and a small network's kernels cost the GPU no
more than that: it waits. Passes of the same shape run the same kernels on the same memory, so that
their launches can be recorded once and replayed.

A replay calls nobody: with anything attached to a site, hooks, blocks of another kind or gradients
the network is run as ever. It computes what it computed when it was recorded, on the
weights' memory: weights may change in place, and where they moved it is recorded anew.
"""

import gc
from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.modules import module as torch_module

from unmask.net.blocks import Block, ParallelBlock
from unmask.net.pieces import is_cut

if TYPE_CHECKING:
    from unmask.net.transformer import Transformer

MOST_FLOPS = 5e11
"""Operations of a layer above which launching it takes no longer than running it."""
MOST_KEPT = 4
"""Shapes that are kept recorded; each has memory for its activations."""
MOST_SEEN = 64
"""Shapes that are remembered to have been run."""
RUNS = 2
"""Passes of a shape before it is recorded."""


def can_replay(net: "Transformer", x: Tensor) -> bool:
    """Whether passes over so many positions may and should be replayed; `x` is tokens or stream."""
    if not x.is_cuda or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    # How many rows an expert gets differs from pass to pass, and a graph is of one device.
    if net.config.experts is not None or is_cut(net):
        return False
    if net.taps.attached or torch.cuda.is_current_stream_capturing():
        return False
    tokens = x.numel() // (x.shape[-1] if x.is_floating_point() else 1)
    weights = sum(weight.numel() for weight in net.layers[0].parameters())
    if not 0 < 2 * tokens * weights <= MOST_FLOPS:
        return False
    return all(type(block) in (Block, ParallelBlock) for block in net.layers)


def locate_weights(net: "Transformer") -> tuple[int, ...] | None:
    """Where the weights lie, since a recorded pass reads them there; None where hooks wait."""
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
        return None
    places: list[int] = []
    modules: list[torch.nn.Module | None] = [net]
    while modules:  # `net.modules()` takes four times as long, and this runs in every pass
        module = modules.pop()
        if module is None:
            continue
        if module._forward_hooks or module._forward_pre_hooks:
            return None
        places += [each.data_ptr() for each in module._parameters.values() if each is not None]
        modules += module._modules.values()
    return tuple(places)


class Graphs:
    """What is recorded of one network; copies of the network begin with nothing."""

    def __init__(self) -> None:
        self.replays = 0
        self._lock = Lock()
        self._seen: dict[tuple, int] = {}
        self._passes: dict[tuple, _RecordedPass] = {}
        self._layers: dict[tuple, LayerGraphs] = {}

    def __deepcopy__(self, memo: dict) -> "Graphs":
        return Graphs()

    def __reduce__(self) -> tuple:
        return Graphs, ()

    def run_pass(
        self, net: "Transformer", tokens: Int[Tensor, "B L"]
    ) -> Float[Tensor, "B L D"] | None:
        """The stream that leaves the last layer; None where the pass has to be run.

        The first passes of a shape are run: kernels are compiled and tables made there, which
        cannot be recorded, and a shape that does not come back is not worth it.
        """
        places = locate_weights(net)
        if places is None:
            return None
        key = (tuple(tokens.shape), net.embedding.weight.dtype, places)
        with self._lock:
            if self._seen.get(key, 0) < RUNS:
                _forget_oldest(self._seen, MOST_SEEN)
                self._seen[key] = self._seen.pop(key, 0) + 1
                return None
            recorded = self._passes.pop(key, None)
            if recorded is None:
                _forget_oldest(self._passes)
                recorded = _RecordedPass(net, tokens)
            self._passes[key] = recorded  # the newest is last
            self.replays += 1
            return recorded.replay(tokens)

    def find_layers(
        self, net: "Transformer", like: Float[Tensor, "N D"], key: tuple, run: "RunLayer"
    ) -> "LayerGraphs | None":
        """The graphs of layers run by `run`, which must be the same function for the same key."""
        places = locate_weights(net)
        if places is None:
            return None
        key = (*key, tuple(like.shape), like.dtype, places)
        with self._lock:
            layers = self._layers.pop(key, None)
            if layers is None:
                _forget_oldest(self._layers)
                layers = LayerGraphs(like, run)
            self._layers[key] = layers
            return layers


def _forget_oldest(kept: dict, most: int = MOST_KEPT) -> None:
    if len(kept) >= most:
        del kept[next(iter(kept))]


@contextmanager
def _recording(pool: Any = None) -> Generator[torch.cuda.CUDAGraph]:
    """Inside the block launches are recorded, not run."""
    graph, collects = torch.cuda.CUDAGraph(), gc.isenabled()
    gc.disable()  # a graph that is given up while another is recorded would spoil that
    try:
        with (
            torch.inference_mode(False),
            torch.no_grad(),
            torch.cuda.graph(graph, pool, capture_error_mode="thread_local"),
        ):
            yield graph
    finally:
        if collects:
            gc.enable()


class _RecordedPass:
    """All layers on one shape of tokens."""

    def __init__(self, net: "Transformer", tokens: Tensor):
        with torch.inference_mode(False):
            self.tokens = tokens.clone()
        with _recording() as self.graph:
            self.stream = net.run_layers(net.embed(self.tokens))

    def replay(self, tokens: Tensor) -> Tensor:
        self.tokens.copy_(tokens)
        self.graph.replay()
        return self.stream.clone()  # the next replay writes over it


RunLayer = Callable[[int, Tensor], Tensor]
"""(layer, the stream that enters it [N, D]) to what attention adds; the stream that leaves is
written over the one that entered."""


class LayerGraphs:
    """Layers one by one, each recorded when it is run for the second time.

    They share one stream [N, D], which a layer reads and writes.
    """

    def __init__(self, like: Float[Tensor, "N D"], run: RunLayer):
        with torch.inference_mode(False):
            self.x = torch.empty_like(like)
        self.run = run
        self._recorded: dict[int, tuple[torch.cuda.CUDAGraph, Tensor] | None] = {}
        self._pool = torch.cuda.graph_pool_handle()  # layers take turns, and share memory

    def advance(
        self, layer: int, x: Float[Tensor, "N D"]
    ) -> tuple[Float[Tensor, "N D"], Float[Tensor, "N D"]]:
        """What attention adds, and the stream that leaves; the next layer writes over both."""
        if x is not self.x:
            self.x.copy_(x)
        if layer not in self._recorded:
            self._recorded[layer] = None
            return self.run(layer, self.x), self.x
        recorded = self._recorded[layer]
        if recorded is None:
            with _recording(self._pool) as graph:
                attn = self.run(layer, self.x)
            recorded = self._recorded[layer] = graph, attn
        recorded[0].replay()
        return recorded[1], self.x
