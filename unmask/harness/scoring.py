"""Log-likelihoods of many continuations at once, the same numbers as `unmask.likelihood`'s.

A request becomes rows: a causal model needs one, a masked model one for each token (chain rule) or
for each draw of masks (exact-k, Bernoulli). Rows of all requests are batched by length, and equal
rows run once: the draws of a short continuation repeat themselves, and choices of one question
share what they hide.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.progress import track
from unmask.evaluation.chain import log_softmax
from unmask.harness.rows import Reading, RowTable, group_lengths
from unmask.harness.settings import HarnessSettings
from unmask.net.batches import count_row_bytes, fit_rows, map_batches
from unmask.net.model import Model
from unmask.noise.guidance import mix
from unmask.noise.schedules import LinearSchedule
from unmask.objectives.likelihood import Estimate, combine_repeats, draw_masks
from unmask.sampling.guidance import guidance_schedule

_TOGETHER = 512
"""Requests whose rows are held at a time."""


@dataclass(frozen=True)
class LikelihoodRequest:
    """Tokens whose likelihood is asked, after others that are given; the seed is of the masks."""

    context: list[int]
    tokens: list[int]
    seed: int


@dataclass(frozen=True)
class Likelihood:
    """What a continuation costs, and whether greedy decoding would write it.

    Of a masked model greedy is: one token per step, the most confident first.
    """

    estimate: Estimate
    is_greedy: bool


class RequestScorer:
    """Scores continuations under one model, in batches that fit its device."""

    def __init__(self, model: Model, settings: HarnessSettings):
        model.paradigm.require_scored(model.name, "likelihoods are computed")
        self.model, self.settings = model, settings
        guidance = {float(each) for each in guidance_schedule(settings.guidance, settings.steps)}
        if len(guidance) > 1:
            raise UserError(
                f"guidance is {settings.guidance!r}: a likelihood has no steps and takes a number."
            )
        self.guidance = guidance.pop()
        if self.guidance and not model.paradigm.sees_later:
            raise UserError("an autoregressive model has no unconditional pass: use guidance 0.")

    @property
    def longest(self) -> int:
        """Tokens of a context and its continuation together.

        A causal network predicts one more token than it reads.
        """
        return self.model.net.config.context + self.model.paradigm.predicts_next

    def score(
        self, requests: Sequence[LikelihoodRequest], what: str, is_greedy_asked: bool = True
    ) -> Iterator[tuple[int, Likelihood]]:
        """The number of each request and its likelihood, the longest requests first."""
        score = self._score_masked if self.model.paradigm.sees_later else self._score_causal
        order = sorted(
            range(len(requests)),
            key=lambda i: (
                -len(requests[i].context) - len(requests[i].tokens),
                requests[i].context,
            ),
        )
        parts = [order[i : i + _TOGETHER] for i in range(0, len(order), _TOGETHER)]
        for part in track(parts, what, len(parts)):
            scored = score([requests[i] for i in part], is_greedy_asked)
            yield from zip(part, scored, strict=True)

    def score_windows(self, windows: Sequence[LikelihoodRequest]) -> Iterator[tuple[int, Estimate]]:
        """The number of each window of a text and what its tokens cost."""
        for number, scored in self.score(windows, "windows", is_greedy_asked=False):
            yield number, scored.estimate

    def _score_causal(
        self, requests: Sequence[LikelihoodRequest], is_greedy_asked: bool
    ) -> list[Likelihood]:
        rows = RowTable()
        numbers = []
        for each in requests:
            # Row i predicts position i + 1: the last token is not read.
            row = np.array(each.context + each.tokens[:-1])
            at = np.arange(len(each.context) - 1, len(row))
            numbers.append(rows.add(row, 0, at, np.array(each.tokens)))
        reading = self._read(rows)
        return [
            Likelihood(
                Estimate(-float(reading.sums[number]), 0.0, len(each.tokens)),
                bool((reading.look(number)[0] == each.tokens).all()),
            )
            for each, number in zip(requests, numbers, strict=True)
        ]

    def _score_masked(
        self, requests: Sequence[LikelihoodRequest], is_greedy_asked: bool
    ) -> list[Likelihood]:
        rows, drawn = RowTable(), []
        for each in requests:
            drawn.append(self._add_draws(rows, each))
        decoded = requests if is_greedy_asked else ()
        first = [self._add_masks(rows, each, range(len(each.tokens))) for each in decoded]
        reading = self._read(rows)
        is_greedy = self._decode(decoded, reading, first) or [False] * len(requests)
        return [
            Likelihood(self._combine(each, reading.sums[numbers], weight), greedy)
            for each, (numbers, weight), greedy in zip(requests, drawn, is_greedy, strict=True)
        ]

    def _add_draws(
        self, rows: RowTable, request: LikelihoodRequest
    ) -> tuple[np.ndarray, np.ndarray]:
        """A row for each different draw of masks; for each draw its sum and its weight."""
        start, n = len(request.context), len(request.tokens)
        x0 = np.array(request.context + request.tokens)
        if self.settings.likelihood == "chain":
            # Row i hides token i and all after it, and only token i is read.
            hidden, weight = np.triu(np.ones((n, n), dtype=bool)), np.ones(n)
            read, inverse = np.eye(n, dtype=bool), np.arange(n)
        else:
            chosen = (self.settings.likelihood, self.settings.strata, self.settings.repeats)
            draws, weight = _draw(*chosen, request.seed, start, n)
            hidden, inverse = np.unique(draws, axis=0, return_inverse=True)
            read = hidden
        numbers = []
        for hides, reads in zip(hidden, read, strict=True):
            row = x0.copy()
            row[start:][hides] = self.model.require_mask()
            at = np.flatnonzero(reads)
            numbers.append(rows.add(row, start, at + start, x0[at + start]))
        return np.array(numbers)[inverse], weight

    def _add_masks(self, rows: RowTable, request: LikelihoodRequest, masked: Sequence[int]) -> int:
        """A row in which these tokens of the continuation are masks, all of them read."""
        at = len(request.context) + np.array(masked)
        row = np.array(request.context + request.tokens)
        wanted = row[at]
        row[at] = self.model.require_mask()
        return rows.add(row, len(request.context), at, wanted)

    def _combine(
        self, request: LikelihoodRequest, logp: np.ndarray, weight: np.ndarray
    ) -> Estimate:
        tokens = len(request.tokens)
        if self.settings.likelihood == "chain":
            return Estimate(-float(logp.sum()), 0.0, tokens)
        costs = torch.from_numpy(-logp * weight)
        return combine_repeats(costs, self.settings.repeats, tokens)

    def _decode(
        self, requests: Sequence[LikelihoodRequest], reading: Reading, first: Sequence[int]
    ) -> list[bool]:
        """Whether each continuation is what greedy decoding writes; it stops at a wrong token."""
        is_greedy = [False] * len(requests)
        going = [(i, list(range(len(each.tokens)))) for i, each in enumerate(requests)]
        numbers = list(first)
        while going:
            still = []
            for (i, masked), number in zip(going, numbers, strict=True):
                likeliest, confidence = reading.look(number)
                best = int(confidence.argmax())
                if likeliest[best] != requests[i].tokens[masked[best]]:
                    continue
                left = [at for at in masked if at != masked[best]]
                is_greedy[i] = not left
                if left:
                    still.append((i, left))
            going, rows = still, RowTable()
            numbers = [self._add_masks(rows, requests[i], masked) for i, masked in going]
            if going:
                reading = self._read(rows)
        return is_greedy

    @torch.inference_mode()
    def _read(self, rows: RowTable) -> Reading:
        """Run the rows, as many at a time as fit, and read what is wanted of them."""
        # 1. Rows by length, so that little is padding; entries by row.
        order = sorted(range(len(rows.tokens)), key=lambda i: -len(rows.tokens[i]))
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        entries = np.concatenate(rows.entries)
        bounds = np.concatenate([[0], np.cumsum([len(each) for each in rows.entries])])
        by_row = np.argsort(place[entries[:, 0]], kind="stable")
        sorted_rows = place[entries[by_row, 0]]
        answers: list[tuple[np.ndarray, tuple[Tensor, Tensor, Tensor]]] = []

        def run(batch: Sequence[int]) -> Sequence[int]:
            # 2. The entries of the batch, and what the network says at their positions.
            low, high = np.searchsorted(sorted_rows, [batch[0], batch[-1] + 1])
            chosen = by_row[low:high]
            own = [order[i] for i in batch]
            values = self._run_batch(
                [rows.tokens[i] for i in own],
                [rows.starts[i] for i in own],
                sorted_rows[low:high] - batch[0],
                entries[chosen, 1],
                entries[chosen, 2],
            )
            answers.append((chosen, values))
            return batch

        counts = np.bincount(sorted_rows, minlength=len(order))
        lengths = [len(rows.tokens[i]) for i in order]
        for group in group_lengths(lengths):
            most_read, passes = int(counts[group.start : group.stop].max()), 1 + bool(self.guidance)
            size = count_row_bytes(self.model, lengths[group.start], most_read, passes)
            most = min(fit_rows(self.model, size), self.settings.rows or len(group))
            for _ in map_batches(group, most, run):
                pass
        # 3. What the device says is fetched at the end: it computes while batches are prepared.
        logp, likeliest = np.empty(len(entries)), np.empty(len(entries), dtype=np.int64)
        confidence = np.empty(len(entries))
        for chosen, values in answers:
            fetched = (each.cpu().numpy() for each in values)
            logp[chosen], likeliest[chosen], confidence[chosen] = fetched
        # 4. Sums over the entries that were added together.
        sums = np.bincount(entries[:, 3], weights=logp, minlength=rows.sums)
        return Reading(sums, likeliest, confidence, bounds)

    def _run_batch(
        self,
        rows: Sequence[np.ndarray],
        starts: Sequence[int],
        row: np.ndarray,
        position: np.ndarray,
        wanted: np.ndarray,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """log p of the wanted tokens, the likeliest tokens and their log p, at each entry."""
        model = self.model
        lengths = np.array([len(each) for each in rows])
        longest = int(lengths.max())
        padded = np.zeros((len(rows), longest), dtype=np.int64)
        for i, each in enumerate(rows):
            padded[i, : len(each)] = each
        at = np.zeros(padded.shape, dtype=bool)
        at[row, position] = True
        # Logits come position by position [n, V]: which of them each entry reads.
        index = self._send((at.ravel().cumsum() - 1)[row * longest + position])
        tokens, chosen = self._send(padded), self._send(at)
        # A causal row does not see the padding after it; None spares the network a mask.
        real = None
        if model.paradigm.sees_later and lengths.min() < longest:
            real = self._send(np.arange(longest) < lengths[:, None])
        number = int(at.sum())
        logits = self._run(tokens, real, chosen, number)
        if self.guidance:
            before = np.arange(longest) < np.array(starts)[:, None]
            hidden = tokens.masked_fill(self._send(before), model.require_mask())
            without = self._run(hidden, real, chosen, number)
            logits = mix(logits.double(), without.double(), self.guidance)
        logp = log_softmax(model, logits)
        confidence, likeliest = logp.max(-1)
        return logp[index, self._send(wanted)], likeliest[index], confidence[index]

    def _send(self, array: np.ndarray) -> Tensor:
        """The array on the model's device; nobody waits for it."""
        tensor, device = torch.from_numpy(array), self.model.device
        tensor = tensor.pin_memory() if device.type == "cuda" else tensor
        return tensor.to(device, non_blocking=True)

    def _run(self, tokens: Tensor, real: Tensor | None, at: Tensor, number: int) -> Tensor:
        """Logits [n, V]; a network that takes the time gets the one when as many are masked."""
        t = self.model.find_time(tokens, real)
        return self.model.logits(tokens, real, at, t, number=number)


@lru_cache(maxsize=64)  # requests of one context follow each other
def _draw(
    method: str, strata: int, repeats: int, seed: int, start: int, n: int
) -> tuple[np.ndarray, np.ndarray]:
    """Which of the n tokens after the first `start` each draw hides, and its weight."""
    assert method in ("exact_k", "bernoulli")
    unknown = torch.arange(start + n) >= start
    hidden, weight = draw_masks(method, unknown, strata, repeats, seed, LinearSchedule())
    return hidden[:, start:].numpy(), weight.double().numpy()
