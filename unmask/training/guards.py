"""Gradients that are not numbers, or far longer than usual, are skipped, counted, and not for ever.

Judged on the device without waiting for it. A spike of the loss shows in the gradient's length,
which is the same on all processes.
"""

import torch
from torch import Tensor

from unmask.training.recipe import GuardSettings

_MEMORY = 0.02
"""Weight of the newest length in what is usual."""


class Guard:
    """The usual length of a gradient, and how many were bad."""

    def __init__(self, settings: GuardSettings, device: torch.device, clip: float | None = None):
        """Gradients that are clipped anyway must be far longer than the clip to be bad.

        What is usual shrinks as a model learns its data by heart; without that floor one long
        gradient would be skipped, met again at the same weights, and skipped for ever. Where every
        gradient is long the weights themselves are in a bad place, and only steps lead out of it:
        one before patience ends, long gradients are taken as the clip leaves them.
        """
        self.settings, self.clip = settings, clip
        self.usual = torch.zeros((), device=device)
        self.seen, self.skipped, self.in_a_row, self.last, self.longest = (
            torch.zeros((), dtype=torch.long, device=device) for _ in range(5)
        )

    def judge(self, norm: Tensor, step: int | Tensor) -> Tensor:
        """Whether the step must be skipped (a tensor, True or False); it is counted either way."""
        bad = long = ~norm.isfinite()
        if self.settings.spike is not None:
            settled = self.seen >= self.settings.settle
            usual = self.usual.clamp(min=self.clip or 0.0)
            long = long | (settled & (norm > self.settings.spike * usual))
            has_patience = self.in_a_row < self.settings.patience - 1
            bad = bad | (long & has_patience) if self.clip else long
        weight = (1 / (self.seen + 1)).clamp(min=_MEMORY)
        self.usual.copy_(torch.where(long, self.usual, self.usual.lerp(norm.float(), weight)))
        self.seen += ~long
        self.skipped += bad
        self.in_a_row.copy_(torch.where(long, self.in_a_row + bad, 0))
        self.longest.copy_(torch.maximum(self.longest, self.in_a_row))
        self.last.copy_(torch.where(bad, step, self.last))
        return bad

    def read_longest(self) -> int:
        """The most bad steps in a row since this was last asked; waits for the device."""
        longest = int(self.longest)
        self.longest.copy_(self.in_a_row)
        return longest

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps; the longest streak is asked for before one is written."""
        names = ("usual", "seen", "skipped", "in_a_row", "last")
        return {name: getattr(self, name) for name in names}
