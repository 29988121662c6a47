"""Recall of one model: prompts continued at a step count, and the answers' likelihoods.

Likelihoods do not depend on the steps: they are computed once for each split, and kept for the
step counts that follow.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from unmask.base.progress import track_inside
from unmask.data.facts import Fact, FactTokens, tokenize_facts
from unmask.evaluation.answers import Asked, Scored, score_answers
from unmask.evaluation.contents import gather_contents, judge_contents
from unmask.evaluation.metrics import (
    bleu,
    has_first_name,
    has_surname,
    is_contained,
    is_contained_plainly,
    is_strict,
    judge_by,
    starts_with,
    token_accuracy,
)
from unmask.evaluation.questions import (
    CONTROL,
    FILE_CONTROL,
    Split,
    check_scored,
    choose_length,
    encode_facts,
    require_tokenizer,
)
from unmask.evaluation.signals import GUESSES, count_kept_rows, find_signals
from unmask.net.batches import count_row_bytes, fit_rows, map_batches
from unmask.net.model import Model
from unmask.sampling.texts import infill, sample


@dataclass(frozen=True)
class Continuation:
    """What a model wrote after a prompt, up to its end."""

    tokens: list[int]
    text: str
    seconds: float
    """Its share of its batch's time."""
    signals: dict[str, float | None] = field(default_factory=dict)
    """What the steps of writing say of the answer (`unmask.evaluation.signals`), if asked for."""


class AskedModel:
    """A model and the splits it is asked, in its tokens, all on one canvas.

    Only the tokens and scores of the part that is being measured are held.
    """

    def __init__(
        self,
        model: Model,
        splits: Sequence[Split],
        length: int | None,
        ranks_by_chain: bool = False,
        masks: str = "canvas",
    ):
        check_scored(model)
        self.model, self.tokenizer = model, require_tokenizer(model)
        self.ranks_by_chain = ranks_by_chain
        self.masks = masks
        """Where a row's masks end: with the canvas, with its true answer, or with a full stop after
        that, end tokens filling the canvas ("padded")."""
        # Rivals are scored only where the canvas holds them: they do not lengthen it.
        facts = (fact for split in splits for fact in _list_texts(split))
        self.length = choose_length(model, tokenize_facts(facts, self.tokenizer), length)
        self._contents = gather_contents(_list_answers(splits))
        self._part: Split | None = None
        self._encoded: dict[Fact, FactTokens] = {}
        self._scores: list[dict[str, Scored]] = []

    def measure(
        self,
        split: Split,
        steps: int | None,
        guidance: float,
        plan: str | Callable,
        order: str | Callable,
        rule: str | None = None,
        signals: bool = False,
    ) -> Iterator[dict[str, Any]]:
        """A row for each prompt of the split, or part of one, then for each of its controls.

        A control is the same text, judged by another fact's answer. `steps` is None for a causal
        model, which has neither steps nor guidance.
        """
        self._open(split)
        sampling: dict[str, Any] = {
            "steps": steps or 1,
            "guidance": 0.0 if steps is None else guidance,
        }
        sampling |= {"plan": plan, "order": order, "guesses": GUESSES if signals else 0}
        texts = self._write(split.facts, sampling)
        scored = list(zip(split.answers, texts, self._scores, strict=True))
        for ending in ("", CONTROL, FILE_CONTROL):
            # Some prompts have no control: see `Split.controls`.
            questions = [
                (answers[ending], text, scores[ending])
                for answers, text, scores in scored
                if ending in answers
            ]
            triples = [(fact.direction, fact.object, text.text) for fact, text, _ in questions]
            contents = judge_contents(self._contents, triples)
            for (fact, text, score), is_content in zip(questions, contents, strict=True):
                is_name = fact.direction == "d2p"
                yield {
                    **({rule: judge_by(rule, text.text, fact.completion)} if rule else {}),
                    "split": split.name + ending,
                    "steps": steps,
                    "guidance": None if steps is None else guidance,
                    "length": self.length,
                    **fact.columns,
                    "prompt": fact.prompt,
                    "completion": fact.completion,
                    "generation": text.text,
                    "hit": is_contained(text.text, fact.completion),
                    "starts": starts_with(text.text, fact.completion),
                    "strict": is_strict(text.text, fact.completion),
                    "plain": is_contained_plainly(text.text, fact.completion),
                    "content": is_content,
                    "surname": has_surname(text.text, fact.object) if is_name else None,
                    "first_name": has_first_name(text.text, fact.object) if is_name else None,
                    "token_accuracy": token_accuracy(text.tokens, self._answer(fact)),
                    "bleu": bleu(text.text, fact.completion),
                    "rank": score.rank,
                    "rank_chain": score.rank_chain,
                    "rivals": score.num_rivals,
                    "logp": score.logp,
                    "logp_mean_field": score.logp_mean_field,
                    "first_token_entropy": score.first_token_entropy,
                    "tokens": len(score.terms),
                    "seconds": text.seconds,
                    **text.signals,
                }

    def _open(self, split: Split) -> None:
        """Encode and score a part, unless it is the one that was measured last."""
        if split is self._part:
            return
        groups = {id(rivals): rivals for rivals in split.rivals}
        rivals = [fact for group in groups.values() for fact in group]
        self._encoded = encode_facts([*_list_texts(split), *rivals], self.tokenizer)
        self._scores = self._score(split)
        self._part = split

    def _prompt(self, fact: Fact) -> list[int]:
        return self._encoded[fact].ids[: self._encoded[fact].prompt_length]

    def _answer(self, fact: Fact) -> list[int]:
        return self._encoded[fact].ids[self._encoded[fact].prompt_length :]

    def _score(self, split: Split) -> list[dict[str, Scored]]:
        """For each prompt its true answer, and its controls where there are any."""
        questions = []
        groups = {id(rivals): rivals for rivals in split.rivals}
        shared = {key: list(map(self._answer, group)) for key, group in groups.items()}
        for fact, rivals, answers in zip(split.facts, split.rivals, split.answers, strict=True):
            tokens = list(map(self._answer, answers.values()))
            questions.append(Asked(self._prompt(fact), tokens, shared[id(rivals)]))
        scored = score_answers(self.model, questions, self.length, self.ranks_by_chain)
        pairs = zip(split.answers, scored, strict=True)
        return [dict(zip(answers, scores, strict=True)) for answers, scores in pairs]

    def _write(self, facts: Sequence[Fact], sampling: dict[str, Any]) -> list[Continuation]:
        """What the model writes after the facts' prompts."""
        model, length = self.model, self.length
        prompts = [self._prompt(fact) for fact in facts]
        ends = [length] * len(facts)
        if self.masks != "canvas":
            more = int(self.masks == "padded")
            ends = [min(len(self._encoded[fact].ids) + more, length) for fact in facts]

        def write(batch: Sequence[int]) -> list[Continuation]:
            start = time.perf_counter()
            given = [prompts[i] for i in batch]
            stops = [ends[i] for i in batch]
            if self.masks == "padded":
                drawn = infill(model, self._pad(given, stops), keep_states=False, **sampling)
            else:
                drawn = sample(
                    model, given, length=stops, keep_states=False, cache="exact", **sampling
                )
            tokens = zip(drawn.tokens.tolist(), given, stops, strict=True)
            rows = [row[len(prompt) : stop] for row, prompt, stop in tokens]
            seconds = (time.perf_counter() - start) / len(batch)
            signals = find_signals(drawn) if sampling["guesses"] else [{} for _ in rows]
            texts = map(self.tokenizer.decode, rows)
            return list(map(Continuation, rows, texts, [seconds] * len(rows), signals))

        # A masked model guesses all that is open, a causal one the next token.
        num_logits = length - min(map(len, prompts)) if model.paradigm.has_steps else 1
        passes = 2 if sampling["guidance"] else 1
        rows = fit_rows(model, count_row_bytes(model, length, num_logits, passes))
        if sampling["guesses"]:
            rows = min(rows, count_kept_rows(model, length, sampling["steps"]))
        texts: dict[int, Continuation] = {}
        for group in track_inside(_group_alike(model, prompts, length)):
            for batch, written in map_batches(group, rows, write):
                texts |= zip(batch, written, strict=True)
        return [texts[i] for i in range(len(prompts))]

    def _pad(self, prompts: Sequence[list[int]], stops: Sequence[int]) -> list[list[int]]:
        """Rows of one length: a prompt, masks up to its stop, and end tokens."""
        mask, end = self.model.require_mask(), self.tokenizer.end_id
        return [
            [*prompt, *[mask] * (stop - len(prompt)), *[end] * (self.length - stop)]
            for prompt, stop in zip(prompts, stops, strict=True)
        ]


def _list_answers(splits: Sequence[Split]) -> Iterator[tuple[str, str, str]]:
    """The answers of all facts of these splits, their rivals and controls, each with its fact."""
    for split in splits:
        groups = {id(rivals): rivals for rivals in split.rivals}
        facts = [fact for group in groups.values() for fact in group]
        for fact in dict.fromkeys([*facts, *_list_texts(split)]):
            yield fact.direction, fact.object, fact.completion


def _list_texts(split: Split) -> Iterator[Fact]:
    """The facts asked and their controls."""
    for answers in split.answers:
        yield from answers.values()


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
