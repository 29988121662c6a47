"""Reading the answer: log-probabilities of chosen tokens at chosen rows of the last stream."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.net.model import Model
from unmask.noise.guidance import mix

_MOST_LOGITS = 2**24
"""Logits held at once: 67 megabytes in float32."""


@dataclass(frozen=True)
class Reading:
    """Where the network is read, for which tokens, and against what it is guided."""

    model: Model
    rows: Int[Tensor, "A"]
    targets: Int[Tensor, "K A"]
    """The answer, and after it other tokens to read at the same rows (a foil, a placebo)."""
    guidance: float = 0.0
    without: Float[Tensor, "S A V"] | None = None
    """Logits of the pass that sees no prompt, computed once."""

    def take(self, rows: slice) -> "Reading":
        """The same for some of the rows that the pass without the prompt was run for."""
        if self.without is None or len(self.without) == 1:
            return self
        return replace(self, without=self.without[rows])

    def read_stream(self, x: Float[Tensor, "S L D"]) -> Float[Tensor, "S K A"]:
        """log p of each target in every sample of a stream that leaves the last layer."""
        return self.read(x[:, self.rows], torch.arange(len(x), device=x.device))

    def read(self, x: Float[Tensor, "B A D"], sample: Int[Tensor, "B"]) -> Float[Tensor, "B K A"]:
        """log p of each target; the mask is not an answer and has no probability.

        `sample` is the noise sample of each row, for the logits of the pass without the prompt.
        """
        each = max(1, _MOST_LOGITS // (x.shape[1] * self.model.net.config.logit_rows))
        chunks = []
        for start in range(0, len(x), each):
            rows = slice(start, start + each)
            logits = self.model.net.unembed(x[rows]).float()
            if self.without is not None:
                without = self.without if len(self.without) == 1 else self.without[sample[rows]]
                logits = mix(logits, without, self.guidance)
            mask_id = self.model.mask_id
            if mask_id is not None and mask_id < logits.shape[-1]:
                logits[..., mask_id] = -torch.inf
            wanted = self.targets.T.expand(len(logits), -1, -1)
            logp = logits.gather(-1, wanted) - logits.logsumexp(-1, keepdim=True)
            chunks.append(logp.transpose(1, 2))
        return torch.cat(chunks)
