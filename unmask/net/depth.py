"""Serial depth: how many operations of a network must wait for each other.

By the rules of Brown-Cohen et al. 2026 (arXiv 2603.09786) and their calculator: inputs and weights
have depth 0, moving numbers adds nothing, an operation number by number adds 1, a reduction of N
numbers adds log2 N, rounded up, and a product of matrices 1 and the sum over its inner dimension.
Their example, a network of 1, 8, 8 and 1 units with two ReLUs, has depth 11. Depth is counted while
a network runs, on whatever operations it takes, so that it holds for any block.
"""

from collections.abc import Iterator
from math import ceil, log2, prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from unmask.net.config import NetConfig
from unmask.net.counts import make_shapes

_MOVES = """
_unsafe_view alias arange as_strided cat chunk clone constant_pad_nd contiguous copy_ detach
embedding empty empty_like expand fill_ flatten flip full full_like gather index index_put
index_put_ index_select lift_fresh new_empty new_full new_ones new_zeros nonzero ones ones_like
permute repeat reshape roll scalar_tensor scatter select select_scatter slice slice_scatter split
split_with_sizes squeeze stack t take_along_dim to _to_copy transpose tril triu unbind unfold
unsqueeze view zeros zeros_like"""
"""Operations that move numbers, or make constants."""
_SINGLE = """
abs add bitwise_and bitwise_not bitwise_or clamp clamp_max clamp_min cos div eq erf exp floor
floor_divide ge gelu gt le log log1p logical_and logical_not logical_or lt masked_fill maximum
minimum mul ne neg pow reciprocal relu remainder rsqrt rsub sigmoid silu sin softplus sqrt square
sub tanh where"""
"""Operations number by number."""
_REDUCING = "all amax amin any argmax argmin cumsum max mean min prod sum topk"
MOVES, SINGLE, REDUCING = (frozenset(each.split()) for each in (_MOVES, _SINGLE, _REDUCING))
ATTENTION = "_scaled_dot_product"
"""What the names of fused attention begin with."""


def count_sum(number: int) -> int:
    """The depth of a sum, or another reduction, of so many numbers."""
    return ceil(log2(number)) if number > 1 else 0


def count_softmax(number: int) -> int:
    """The depth of a softmax: the largest, its difference, exp, the sum, the division."""
    return 2 * count_sum(number) + 3


class DepthCounter(TorchDispatchMode):
    """Counts the depth of every tensor that is computed while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self._depths: dict[int, tuple[torch.UntypedStorage, int]] = {}

    def find(self, tensor: Tensor) -> int:
        """The depth of a tensor; 0 of one that was there before.

        Tensors that share their numbers share it: what is written into a part belongs to the whole.
        """
        return self._depths.get(tensor.untyped_storage()._cdata, (None, 0))[1]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        depth = max(map(self.find, given), default=0)
        depth += _count_operation(func.overloadpacket.__name__, args, given)
        for each in tree_leaves(out):
            if isinstance(each, Tensor):
                storage = each.untyped_storage()  # kept, so that no other one gets its place
                self._depths[storage._cdata] = storage, max(depth, self.find(each))
        return out


def _count_operation(name: str, args: Any, given: list[Tensor]) -> int:
    """What an operation adds to the depth of its inputs."""
    plain = name.rstrip("_")
    if name in MOVES or plain in MOVES:
        return 0
    if plain in SINGLE:
        return 1
    if plain in REDUCING:
        return count_sum(_count_reduced(args, given[0])) + (plain == "mean")
    if plain in ("addcmul", "addcdiv"):
        return 2
    if plain in ("mm", "bmm", "mv", "dot"):
        return 1 + count_sum(given[0].shape[-1])
    if plain in ("addmm", "baddbmm"):
        return 2 + count_sum(given[1].shape[-1])
    if plain in ("_softmax", "_safe_softmax", "_log_softmax"):
        dim = args[1] if len(args) > 1 else -1
        return count_softmax(given[0].shape[dim])
    if plain.startswith(ATTENTION):
        # Products of queries and keys, the scale, the pattern, the mixture of values.
        queries, keys = given[:2]
        return (
            3
            + count_sum(queries.shape[-1])
            + count_softmax(keys.shape[-2])
            + count_sum(keys.shape[-2])
        )
    if plain == "native_layer_norm":
        # The mean, what is left, its square, the mean of that, eps, the root, scale and shift.
        return 2 * (count_sum(args[1][-1]) + 1) + 7
    if plain == "_fused_rms_norm":
        return count_sum(args[1][-1]) + 6
    raise NotImplementedError(f"the serial depth of {name} is not known")


def _count_reduced(args: Any, given: Tensor) -> int:
    dims = args[1] if len(args) > 1 else None
    if dims is None or isinstance(dims, bool):
        return given.numel()
    return prod(given.shape[dim] for dim in ([dims] if isinstance(dims, int) else dims))


@torch.no_grad()
def count_depth(config: NetConfig, length: int) -> int:
    """The serial depth of one pass of a network, from tokens to logits; its weights play no part.

    >>> from unmask.net.presets import preset
    >>> count_depth(preset("tiny"), 16) > count_depth(preset("tiny", layers=1), 16)
    True
    """
    net = make_shapes(config)
    tokens = torch.zeros(1, length, dtype=torch.long, device="meta")
    with DepthCounter() as counter:
        return counter.find(net(tokens))


def list_opaque_depths(
    config: NetConfig, length: int, steps: int, sampler: str
) -> Iterator[dict[str, Any]]:
    """How deep computation goes between states that can be read, by what is carried between steps.

    Tokens can be read: what passes from step to step as tokens ends a path, and one pass is all
    that stays opaque, however many steps there are. Keys and values that a cache keeps enter the
    layer that they came from, so that they make no path longer. Vectors that are denoised cannot be
    read: their steps add up. The rows of the model's own sampler come first, then those of the same
    network if it were sampled otherwise.
    """
    depth = count_depth(config, length)
    ways = {
        "causal": [("token by token", length, 1)],
        "tokens": [("tokens", steps, 1), ("tokens, kept keys and values", steps, 1)],
        "vectors": [("vectors", steps, steps)],
    }
    own = sampler if sampler in ways else "tokens"
    for way in sorted(ways, key=lambda way: way != own):
        for carried, taken, passes in ways[way]:
            yield {
                "carried": carried, "steps": taken, "pass": depth,
                "opaque": passes * depth, "whole": taken * depth,
            }  # fmt: skip
