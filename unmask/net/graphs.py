"""A small network as CUDA graphs: one launch in place of hundreds.

Launching a kernel costs the CPU some microseconds, and a small network's kernels cost the GPU no
more than that: it waits. Passes of the same shape run the same kernels on the same memory, so that
their launches can be recorded once and replayed.

A replay calls nobody: with anything attached to a site, hooks, blocks of another kind or gradients
the network is run as ever (`can_replay`). It computes what it computed when it was recorded, on the
weights' memory: weights may change in place, and where they moved it is recorded anew.
"""

from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.modules import module as torch_module

from unmask.net.blocks import Block, ParallelBlock

if TYPE_CHECKING:
    from unmask.net.transformer import Transformer

MOST_FLOPS = 5e11
"""Operations of a layer above which launching it takes no longer than running it."""
MOST_KEPT = 4
"""Shapes that are kept recorded; each has memory for its activations."""
MOST_SEEN = 64
"""Shapes that are remembered to have been run."""


def can_replay(net: "Transformer", x: Tensor) -> bool:
    """Whether passes over so many positions may and should be replayed; `x` is tokens or stream."""
    if not x.is_cuda or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    if net.taps.attached or torch.cuda.is_current_stream_capturing():
        return False
    tokens = x.numel() // (x.shape[-1] if x.is_floating_point() else 1)
    weights = sum(weight.numel() for weight in net.layers[0].parameters())
    if not 0 < 2 * tokens * weights <= MOST_FLOPS:
        return False
    known = all(type(block) in (Block, ParallelBlock) for block in net.layers)
    return known and not _has_hooks(net)


def _has_hooks(net: "Transformer") -> bool:
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
        return True
    return any(each._forward_hooks or each._forward_pre_hooks for each in net.modules())


class Graphs:
    """What is recorded of one network; copies of the network begin with nothing."""

    def __init__(self) -> None:
        self.replays = 0
        self._lock = Lock()
        self._seen: dict[tuple, None] = {}
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

        The first pass of a shape is run: kernels are compiled and tables made there, which cannot
        be recorded. The next one is recorded.
        """
        key = (tuple(tokens.shape), _locate_weights(net))
        with self._lock:
            if key not in self._seen:
                _forget_oldest(self._seen, MOST_SEEN)
                self._seen[key] = None
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
    ) -> "LayerGraphs":
        """The graphs of layers run by `run`, which must be the same function for the same key."""
        key = (*key, tuple(like.shape), _locate_weights(net))
        with self._lock:
            found = self._layers.pop(key, None)
            if found is None:
                _forget_oldest(self._layers)
                found = LayerGraphs(like, run)
            self._layers[key] = found
            return found


def _locate_weights(net: "Transformer") -> tuple:
    """Where the weights lie: a recorded pass reads them there."""
    weights = [weight.data_ptr() for weight in net.parameters()]
    return (net.embedding.weight.dtype, hash(tuple(weights)))


def _forget_oldest(kept: dict, most: int = MOST_KEPT) -> None:
    if len(kept) >= most:
        del kept[next(iter(kept))]


class _RecordedPass:
    """All layers on one shape of tokens."""

    def __init__(self, net: "Transformer", tokens: Tensor):
        with torch.inference_mode(False), torch.no_grad():
            self.tokens = tokens.clone()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                self.stream = net.run_layers(net.embed(self.tokens))

    def replay(self, tokens: Tensor) -> Tensor:
        self.tokens.copy_(tokens)
        self.graph.replay()
        return self.stream.clone()  # the next replay writes over it


RunLayer = Callable[[int, Tensor], tuple[Tensor, Tensor]]
"""(layer, the stream that enters it [N, D]) to what attention adds and the stream that leaves."""


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
            attn, after = self.run(layer, self.x)
            self.x.copy_(after)
            return attn, self.x
        recorded = self._recorded[layer]
        if recorded is None:
            graph = torch.cuda.CUDAGraph()
            with (
                torch.inference_mode(False),
                torch.no_grad(),
                torch.cuda.graph(graph, self._pool, capture_error_mode="thread_local"),
            ):
                attn, after = self.run(layer, self.x)
                self.x.copy_(after)
            recorded = self._recorded[layer] = graph, attn
        recorded[0].replay()
        return recorded[1], self.x
