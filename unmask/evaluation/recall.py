"""Recall of one model: prompts continued at a step count, and the answers' likelihoods.

Likelihoods do not depend on the steps: they are computed once for each split, and kept for the
step counts that follow.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from unmask.data.facts import Fact
from unmask.evaluation.answers import Asked, Scored, score_answers
from unmask.evaluation.metrics import bleu, is_contained, is_strict, token_accuracy
from unmask.evaluation.questions import (
    CONTROL,
    Split,
    check_scored,
    choose_length,
    encode_facts,
    require_tokenizer,
)
from unmask.net.batches import count_row_bytes, fit_rows, map_batches
from unmask.net.model import Model
from unmask.sampling.texts import sample


@dataclass(frozen=True)
class Continuation:
    """What a model wrote after a prompt, up to its end."""

    tokens: list[int]
    text: str
    seconds: float
    """Its share of its batch's time."""


class AskedModel:
    """A model and the splits it is asked, in its tokens, all on one canvas."""

    def __init__(self, model: Model, splits: Sequence[Split], length: int | None):
        check_scored(model)
        self.model, self.tokenizer = model, require_tokenizer(model)
        facts = [fact for split in splits for fact in [*split.facts, *(split.controls or ())]]
        self.encoded = encode_facts([fact for fact in facts if fact is not None], self.tokenizer)
        self.length = choose_length(model, list(self.encoded.values()), length)
        # Rivals are scored only where the canvas holds them: they do not lengthen it.
        rivals = [fact for split in splits for group in split.rivals for fact in group]
        self.encoded |= encode_facts(rivals, self.tokenizer)
        self._scores: dict[str, list[list[Scored]]] = {}

    def measure(
        self,
        split: Split,
        steps: int | None,
        guidance: float,
        plan: str | Callable,
        order: str | Callable,
    ) -> Iterator[dict[str, Any]]:
        """A row for each prompt of the split, then for each of its controls.

        A control is the same text, judged by another fact's answer. `steps` is None for a causal
        model, which has neither steps nor guidance.
        """
        if split.name not in self._scores:
            self._scores[split.name] = self._score(split)
        sampling = {"steps": steps or 1, "guidance": 0.0 if steps is None else guidance}
        texts = self._write(split.facts, sampling | {"plan": plan, "order": order})
        groups: list[Sequence[Fact | None]] = [split.facts]
        if split.controls is not None:
            groups.append(split.controls)
        for i, facts in enumerate(groups):
            scored = [scores[i] if i < len(scores) else None for scores in self._scores[split.name]]
            for fact, text, score in zip(facts, texts, scored, strict=True):
                if fact is None or score is None:  # no control: see `Split.controls`
                    continue
                yield {
                    "split": split.name + (CONTROL if i else ""),
                    "steps": steps,
                    "guidance": None if steps is None else guidance,
                    "length": self.length,
                    "fact": fact.fact_id,
                    "direction": fact.direction,
                    "trained": fact.trained,
                    "phrasing": fact.phrasing,
                    "prompt": fact.prompt,
                    "completion": fact.completion,
                    "generation": text.text,
                    "hit": is_contained(text.text, fact.completion),
                    "strict": is_strict(text.text, fact.completion),
                    "token_accuracy": token_accuracy(text.tokens, self._answer(fact)),
                    "bleu": bleu(text.text, fact.completion),
                    "rank": score.rank,
                    "rivals": score.num_rivals,
                    "logp": score.logp,
                    "logp_mean_field": score.logp_mean_field,
                    "first_token_entropy": score.first_token_entropy,
                    "tokens": len(score.terms),
                    "seconds": text.seconds,
                }

    def _prompt(self, fact: Fact) -> list[int]:
        return self.encoded[fact].ids[: self.encoded[fact].prompt_length]

    def _answer(self, fact: Fact) -> list[int]:
        return self.encoded[fact].ids[self.encoded[fact].prompt_length :]

    def _score(self, split: Split) -> list[list[Scored]]:
        """For each prompt its true answer, and its control's where there is one."""
        questions = []
        controls = split.controls or [None] * len(split.facts)
        for fact, rivals, control in zip(split.facts, split.rivals, controls, strict=True):
            answers = [self._answer(each) for each in (fact, control) if each is not None]
            questions.append(Asked(self._prompt(fact), answers, list(map(self._answer, rivals))))
        return score_answers(self.model, questions, self.length)

    def _write(self, facts: Sequence[Fact], sampling: dict[str, Any]) -> list[Continuation]:
        """What the model writes after the facts' prompts."""
        model, length = self.model, self.length
        prompts = [self._prompt(fact) for fact in facts]

        def write(batch: Sequence[int]) -> list[Continuation]:
            start = time.perf_counter()
            given = [prompts[i] for i in batch]
            drawn = sample(
                model, given, length=length, keep_states=False, cache="exact", **sampling
            )
            rows = [
                row[len(prompt) :] for row, prompt in zip(drawn.tokens.tolist(), given, strict=True)
            ]
            seconds = (time.perf_counter() - start) / len(batch)
            return [Continuation(row, self.tokenizer.decode(row), seconds) for row in rows]

        # A masked model guesses all that is open, a causal one the next token.
        num_logits = length - min(map(len, prompts)) if model.paradigm.has_steps else 1
        passes = 2 if sampling["guidance"] else 1
        rows = fit_rows(model, count_row_bytes(model, length, num_logits, passes))
        texts: dict[int, Continuation] = {}
        for group in _group_alike(model, prompts, length):
            for batch, written in map_batches(group, rows, write):
                texts |= zip(batch, written, strict=True)
        return [texts[i] for i in range(len(prompts))]


def _group_alike(model: Model, prompts: Sequence[list[int]], length: int) -> list[list[int]]:
    """The prompts' numbers in groups that can be one batch.

    A causal model's rows end at the same column, so that a short prompt beside a long one reaches
    further than `length`: both must fit into the context.
    """
    if model.paradigm.has_steps:
        return [list(range(len(prompts)))]
    groups: list[list[int]] = []
    for i in sorted(range(len(prompts)), key=lambda i: len(prompts[i])):
        reach = len(prompts[i]) + length - (len(prompts[groups[-1][0]]) if groups else 0)
        if groups and reach <= model.net.config.context:
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups
