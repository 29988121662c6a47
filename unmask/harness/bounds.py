"""What windows of a text cost under noise other than masks: the bound of `unmask perplexity`.

Tokens that are given stay clean at all times and are not counted. The bound then holds for the
model that writes the others around them, so that windows have the context that other models get.
Answers to a prompt are not scored for these kinds (`unmask.net.paradigm.Paradigm.is_scored`).
"""

from collections.abc import Iterator, Sequence

import torch

from unmask.base.errors import UserError
from unmask.base.progress import track
from unmask.harness.scoring import LikelihoodRequest
from unmask.harness.settings import HarnessSettings
from unmask.net.model import Model
from unmask.objectives.bounds import score_bound
from unmask.objectives.likelihood import Estimate
from unmask.sampling.guidance import guidance_schedule


class WindowScorer:
    """Scores windows under a diffusion model of any kind, one window at a time."""

    def __init__(self, model: Model, settings: HarnessSettings):
        if any(guidance_schedule(settings.guidance, settings.steps)):
            raise UserError(
                f"guidance is {settings.guidance!r}, and {model.name} is a {model.kind} model, "
                "whose texts are scored without: use guidance 0."
            )
        self.model, self.longest = model, model.net.config.context
        self._score = score_bound(model, self.longest, settings.strata, settings.repeats)

    def score_windows(self, windows: Sequence[LikelihoodRequest]) -> Iterator[tuple[int, Estimate]]:
        """The number of each window and the bound of its tokens."""
        for i, each in enumerate(track(windows, "windows", len(windows))):
            x0 = torch.tensor([*each.context, *each.tokens], device=self.model.device)
            given = torch.arange(len(x0), device=x0.device) < len(each.context)
            yield i, self._score(x0, given, each.seed)
