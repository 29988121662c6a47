"""Rotary positions (Su et al. 2021, arXiv 2104.09864) on split halves of a head."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.net.config import NetConfig
from unmask.net.fused import fuses


class RotaryTables:
    """Cosines and signed sines of a network's positions, made once per device and dtype.

    Not a module: `net.to(bfloat16)` followed by `net.float()` must not leave rounded tables.
    """

    def __init__(self, config: NetConfig):
        self.config = config
        self._made: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}
        self._outgrown: list[tuple[Tensor, Tensor]] = []

    def get(
        self, length: int, device: torch.device, dtype: torch.dtype
    ) -> tuple[Float[Tensor, "N r"], Float[Tensor, "N r"]]:
        """Cosines and signed sines of N >= `length` positions."""
        made = self._made.get((device, dtype))
        if made is None or len(made[0]) < length:
            if made is not None:
                # Recorded CUDA graphs go on reading them where they lie.
                self._outgrown.append(made)
            # Room to grow, so that a text that lengthens token by token does not remake them.
            room, context = max(64, 2 * length), self.config.context
            room = min(room, context) if length <= context else room
            made = self._made[device, dtype] = self._make(room, device, dtype)
        return made

    def look_up(
        self, x: Tensor, where: Int[Tensor, "*B L"], past: int, longest: int
    ) -> tuple[Float[Tensor, "*B L 1 r"] | None, Float[Tensor, "*B L 1 r"] | None]:
        """Cosines and sines of positions `where` of a stream `x`; none where positions are learned.

        Without rows of their own they follow each other from `past` on.
        """
        if self.config.positions == "learned":
            return None, None
        device = x.device.type
        autocast = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if autocast else x.dtype
        cos, sin = self.get(longest, x.device, dtype)
        if where.ndim == 1:
            here = slice(past, past + x.shape[1])
            return cos[here, None], sin[here, None]
        return cos[where].unsqueeze(2), sin[where].unsqueeze(2)

    # Tables made under inference mode could not be used in a later backward pass.
    @torch.inference_mode(False)
    def _make(self, length: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        # In this order of operations, as the peers do it: a last-digit difference here can flip
        # the rounding of a bfloat16 table.
        width = self.config.rotary_dim
        exponents = torch.arange(0, width, 2, device=device) / width
        frequencies = stretch(1.0 / self.config.rotary_base**exponents, self.config)
        angles = torch.outer(torch.arange(length, device=device).float(), frequencies)
        cos, sin = angles.cos().repeat(1, 2), torch.cat((-angles.sin(), angles.sin()), -1)
        if self.config.rotary_gain != 1.0:
            cos, sin = cos * self.config.rotary_gain, sin * self.config.rotary_gain
        if self.config.rotary_tables == "bfloat16":
            cos, sin = cos.bfloat16(), sin.bfloat16()
        return cos.to(dtype), sin.to(dtype)


def stretch(frequencies: Float[Tensor, "half"], config: NetConfig) -> Float[Tensor, "half"]:
    """The frequencies of a network whose positions were stretched to a longer context.

    `linear` (Chen et al. 2023, arXiv 2306.15595) slows all of them down by the factor. The others
    do so with pairs that turn at most `rotary_slow` times within the old context, leave those that
    turn `rotary_fast` times as they are, and blend in between: `llama3` (Dubey et al. 2024, arXiv
    2407.21783) by the number of turns, `yarn` (Peng et al. 2023, arXiv 2309.00071) by the place
    among the pairs.
    """
    if config.rotary_scaling == "none":
        return frequencies
    slowed = frequencies / config.rotary_factor
    if config.rotary_scaling == "linear":
        return slowed
    context, slow, fast = config.rotary_context, config.rotary_slow, config.rotary_fast
    assert context is not None
    if config.rotary_scaling == "llama3":
        turns = context * frequencies / (2 * math.pi)
        kept = ((turns - slow) / (fast - slow)).clamp(0, 1)
    else:
        width, pairs = config.rotary_dim, torch.arange(len(frequencies), device=frequencies.device)
        # Which pair, as a fraction of their numbers, turns so often in the old context.
        first, last = (
            width * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(config.rotary_base))
            for turns in (fast, slow)
        )
        low, high = max(math.floor(first), 0), min(math.ceil(last), width - 1)
        kept = 1 - ((pairs - low) / (high - low or 0.001)).clamp(0, 1)
    return slowed * (1 - kept) + frequencies * kept


def rotate(
    x: Float[Tensor, "*B L H d"], cos: Float[Tensor, "*b L 1 r"], sin: Float[Tensor, "*b L 1 r"]
) -> Float[Tensor, "*B L H d"]:
    """`x` turned by its position's angles: x * cos + (x with its halves swapped) * signed sin.

    Where the tables are narrower than a head (r < d), only its first r numbers are turned.
    """
    if cos.shape[-1] < x.shape[-1]:
        first, rest = x.split((cos.shape[-1], x.shape[-1] - cos.shape[-1]), dim=-1)
        return torch.cat((rotate(first, cos, sin), rest), dim=-1)
    if fuses(x, cos, sin) and _is_flat(x):
        from unmask.net import kernels

        return kernels.fused_rotate(x, cos, sin)
    turned, half = x * cos, x.shape[-1] // 2
    if torch.is_grad_enabled():
        # Rolling by half a head swaps the halves at one pass.
        return torch.addcmul(turned, x.roll(half, -1), sin)
    # The same sums without the rolled copy; gradients would pay for writing in place.
    turned[..., :half].addcmul_(x[..., half:], sin[..., :half])
    turned[..., half:].addcmul_(x[..., :half], sin[..., half:])
    return turned


def _is_flat(x: Tensor) -> bool:
    """Whether one stride leads from token to token, as in a part of a whole product."""
    strides, shape = x.stride()[:-2], x.shape[:-2]
    even = all(strides[i] == strides[i + 1] * shape[i + 1] for i in range(len(shape) - 1))
    return even and x.stride(-1) == 1
