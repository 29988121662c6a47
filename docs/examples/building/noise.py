"""Masked noise of one's own: capitals stay longer, p(masked at t) = t ** power for their tokens."""

from dataclasses import dataclass
from typing import ClassVar

import torch

import unmask


@dataclass(frozen=True)
class CapitalsLast(unmask.Masked):
    powers: torch.Tensor | None = None  # [V], one for each token
    settings: ClassVar = {"power": 2.0}  # what recipes may set: noise.settings.power=3

    @classmethod
    def from_config(cls, config, schedule, num_logits, mask_id, tokenizer=None):
        texts = (tokenizer.backend.id_to_token(i) or "" for i in range(num_logits))
        more = [float(config.settings["power"]) ** x.lstrip("Ġ ")[:1].isupper() for x in texts]
        return cls(num_logits - (mask_id < num_logits), mask_id, schedule, torch.tensor(more))

    def corrupt(self, x0, t, streams):
        hidden = streams.uniform(x0.shape[1]) < t.double() ** self.powers.to(x0.device)[x0]
        return torch.where(hidden, self.mask_id, x0)

    def nll(self, logits, x0, xt, t):  # MD4, section 6: a mask tells what stays for long
        logp, powers = self.predict(logits), self.powers.to(logits)
        own = powers[x0] * (1 + logp.gather(-1, x0[..., None])[..., 0])
        terms = ((powers * logp.exp()).sum(-1) - own) / t.clamp(min=1e-6)
        return torch.where(xt == self.mask_id, terms, 0.0)
