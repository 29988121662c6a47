"""Recall: every prompt of a corpus's splits continued by every model, at every step count.

The answers' likelihoods are computed once a prompt, the texts once a step count. A part of the
table is written as soon as a split is done, so that an interrupted run goes on where it stopped.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.base.errors import UserError
from unmask.base.progress import track
from unmask.base.tables import Parts, write_table
from unmask.data.facts import Fact, FactTokens
from unmask.evaluation.answers import Asked, Scored, score_answers
from unmask.evaluation.batches import count_row_bytes, fit_rows, map_batches
from unmask.evaluation.families import Family
from unmask.evaluation.metrics import bleu, is_contained, is_strict, token_accuracy
from unmask.evaluation.questions import (
    CONTROL,
    SCORED,
    Split,
    check_scored,
    choose_length,
    encode_facts,
    require_tokenizer,
)
from unmask.net.loading import load
from unmask.net.model import Model
from unmask.sampling.texts import sample

if TYPE_CHECKING:
    import pyarrow

SCHEMA = "recall/1"


@dataclass(frozen=True)
class RecallSettings:
    """How texts are drawn; the study's are the defaults."""

    steps: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    guidance: float = 0.8
    length: int | None = None
    """Of the canvas; None: 52, or what the longest text needs."""
    plan: str = "smdm"
    order: str = "confidence"
    device: str = "auto"
    dtype: str = "auto"

    def steps_for(self, kind: str) -> tuple[int | None, ...]:
        """A causal model writes a token a step and is measured once, without a step count."""
        return (None,) if kind == "causal" else self.steps


def measure_recall(
    families: Sequence[Family], splits: Sequence[Split], settings: RecallSettings, folder: Path
) -> "pyarrow.Table":
    """The table of recall, a row for each prompt, step count, model and training seed.

    `folder` keeps the finished parts; the whole table is written there as recall.parquet.
    """
    for family in families:
        if family.kind not in SCORED:
            raise UserError(
                f"{family.name} is a {family.kind} model: recall is measured for "
                f"{' and '.join(SCORED)} models."
            )
    parts = Parts(folder / "parts", SCHEMA)
    keys = []
    for family in families:
        for seed in range(len(family.members)):
            member = Member(family, seed, splits, settings, parts)
            member.load_and_measure()
            keys += member.keys()
    table = parts.gather(keys)
    write_table(folder / "recall.parquet", table, SCHEMA)
    return table


class Member:
    """One checkpoint and its parts of the table."""

    def __init__(
        self,
        family: Family,
        seed: int,
        splits: Sequence[Split],
        settings: RecallSettings,
        parts: Parts,
    ):
        self.family, self.seed, self.splits = family, seed, splits
        self.settings, self.parts = settings, parts
        self.steps = settings.steps_for(family.kind)

    def keys(self) -> list[str]:
        return [self._key(split, steps) for split in self.splits for steps in self.steps]

    def count_missing(self) -> int:
        """Sampling steps of all prompts that are still to be done."""
        return sum(len(split.facts) * (steps or 1) for split, steps in self._missing())

    def load_and_measure(self) -> None:
        """Write the missing parts; without any, the checkpoint is not even loaded."""
        if missing := self.count_missing():
            place, settings = self.family.members[self.seed], self.settings
            model = load(place, settings.device, settings.dtype, quiet=True)
            check_scored(model)
            for _ in track(self.measure(model), f"recall of {place}", missing):
                pass

    def measure(self, model: Model) -> Iterator[None]:
        """Write the missing parts; each sampling step of a prompt is one item."""
        todo, settings = self._missing(), self.settings
        tokenizer = require_tokenizer(model)
        everything = [
            fact
            for split in self.splits
            for fact in [*split.facts, *(split.controls or ())]
            if fact is not None
        ]
        encoded = encode_facts(everything, tokenizer)
        length = choose_length(model, list(encoded.values()), settings.length)
        rivals = [fact for split in self.splits for group in split.rivals for fact in group]
        encoded |= encode_facts(rivals, tokenizer)
        for split, group in groupby(todo, key=lambda missing: missing[0]):
            scores = _score(model, split, encoded, length)
            prompts = [encoded[fact].ids[: encoded[fact].prompt_length] for fact in split.facts]
            for _, steps in group:
                texts: dict[int, _Text] = {}
                for found in _write(model, prompts, length, steps, settings):
                    texts |= found
                    for _ in range(len(found) * (steps or 1)):
                        yield
                in_order = [texts[i] for i in range(len(prompts))]
                rows = list(self._rows(split, steps, in_order, scores, encoded, length))
                self.parts.write(self._key(split, steps), rows)

    def _missing(self) -> list[tuple[Split, int | None]]:
        return [
            (split, steps)
            for split in self.splits
            for steps in self.steps
            if not self.parts.has(self._key(split, steps))
        ]

    def _key(self, split: Split, steps: int | None) -> str:
        return f"{self.family.name}-{self.seed}-{split.name}-{steps or 'any'}"

    def _rows(
        self,
        split: Split,
        steps: int | None,
        texts: list["_Text"],
        scores: list[list[Scored]],
        encoded: dict[Fact, FactTokens],
        length: int,
    ) -> Iterator[dict[str, Any]]:
        """The rows of the split, and behind them those of its control: the same texts, judged by
        other answers."""
        asked: list[Sequence[Fact | None]] = [split.facts]
        if split.controls is not None:
            asked.append(split.controls)
        for i, facts in enumerate(asked):
            name = split.name + (CONTROL if i else "")
            for fact, text, scored in zip(facts, texts, scores, strict=True):
                if fact is None:
                    continue
                yield {
                    "model": self.family.name,
                    "kind": self.family.kind,
                    "seed": self.seed,
                    "split": name,
                    "steps": steps,
                    "guidance": None if steps is None else self.settings.guidance,
                    "length": length,
                    "fact": fact.fact_id,
                    "direction": fact.direction,
                    "trained": fact.trained,
                    "phrasing": fact.phrasing,
                    "prompt": fact.prompt,
                    "completion": fact.completion,
                    "generation": text.text,
                    **_judge(text, fact, encoded[fact]),
                    "rank": scored[i].rank,
                    "rivals": scored[i].num_rivals,
                    "logp": scored[i].logp,
                    "logp_mean_field": scored[i].logp_mean_field,
                    "first_token_entropy": scored[i].first_token_entropy,
                    "tokens": len(scored[i].terms),
                    "seconds": text.seconds,
                }


@dataclass(frozen=True)
class _Text:
    """What a model wrote behind a prompt, up to its end."""

    tokens: list[int]
    text: str
    seconds: float
    """Its share of its batch's time."""


def _score(
    model: Model, split: Split, encoded: dict[Fact, FactTokens], length: int
) -> list[list[Scored]]:
    """For each prompt its true answer, and its control's where there is one."""

    def answer(fact: Fact) -> list[int]:
        return encoded[fact].ids[encoded[fact].prompt_length :]

    asked = []
    controls = split.controls or [None] * len(split.facts)
    for fact, rivals, control in zip(split.facts, split.rivals, controls, strict=True):
        prompt = encoded[fact].ids[: encoded[fact].prompt_length]
        answers = [answer(fact)] + ([] if control is None else [answer(control)])
        asked.append(Asked(prompt, answers, [answer(rival) for rival in rivals]))
    return score_answers(model, asked, length)


def _write(
    model: Model,
    prompts: Sequence[list[int]],
    length: int,
    steps: int | None,
    settings: RecallSettings,
) -> Iterator[dict[int, _Text]]:
    """The texts behind the prompts by the prompts' numbers, batch by batch."""
    tokenizer = require_tokenizer(model)
    guidance = 0.0 if steps is None else settings.guidance

    def write(batch: Sequence[int]) -> list[_Text]:
        start = time.perf_counter()
        given = [prompts[i] for i in batch]
        found = sample(
            model,
            given,
            steps=steps or 1,
            guidance=guidance,
            length=length,
            plan=settings.plan,
            order=settings.order,
            keep_states=False,
            cache="exact",
        )
        rows = found.tokens.tolist()
        seconds = (time.perf_counter() - start) / len(batch)
        behind = [row[len(prompt) :] for row, prompt in zip(rows, given, strict=True)]
        return [_Text(row, tokenizer.decode(row), seconds) for row in behind]

    room = length - min(map(len, prompts))
    each = count_row_bytes(model, length, room if steps else 1, 2 if guidance else 1)
    for group in _group_alike(model, prompts, length):
        for batch, texts in map_batches(group, fit_rows(model, each), write):
            yield dict(zip(batch, texts, strict=True))


def _group_alike(model: Model, prompts: Sequence[list[int]], length: int) -> list[list[int]]:
    """The prompts' numbers in groups that can be one batch.

    A causal model's rows end at the same column, so that a short prompt beside a long one reaches
    further than `length`: both must fit into the context.
    """
    if model.kind != "causal":
        return [list(range(len(prompts)))]
    groups: list[list[int]] = []
    for i in sorted(range(len(prompts)), key=lambda i: len(prompts[i])):
        reach = len(prompts[i]) + length - (len(prompts[groups[-1][0]]) if groups else 0)
        if groups and reach <= model.net.config.context:
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


def _judge(text: _Text, fact: Fact, tokens: FactTokens) -> dict[str, Any]:
    return {
        "hit": is_contained(text.text, fact.completion),
        "strict": is_strict(text.text, fact.completion),
        "token_accuracy": token_accuracy(text.tokens, tokens.ids[tokens.prompt_length :]),
        "bleu": bleu(text.text, fact.completion),
    }
