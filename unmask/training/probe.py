"""Looking at a model while it trains: recall of validation facts, and a few texts."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from unmask.base.streams import RowStreams
from unmask.data.corpus import Corpus
from unmask.data.facts import Fact
from unmask.net.model import Model
from unmask.noise.gaussian import Gaussian
from unmask.objectives.vectors import predict
from unmask.sampling.ancestral import sample_ancestral, sample_gaussian
from unmask.sampling.canvas import encode_prompt
from unmask.sampling.loop import sample
from unmask.training.losses import GaussianLesson, make_lesson, make_process
from unmask.training.recipe import Recipe


def make_recall(
    corpus: Corpus, number: int, steps: int, length: int
) -> Callable[[Model, int], dict[str, float]]:
    """A function that asks `number` facts of each validation split: the share of hits.

    A hit: the completion, stripped and in lower case, is contained in what the model wrote.
    """
    splits = {name: facts for name, facts in corpus.splits.items() if name.endswith("_valid")}

    def measure(model: Model, step: int) -> dict[str, float]:
        return {
            f"recall/{name.removesuffix('_valid')}": recall(
                model, choose_evenly(facts, number), steps, length
            )
            for name, facts in splits.items()
        }

    return measure


def recall(model: Model, facts: Sequence[Fact], steps: int, length: int) -> float:
    """The share of facts whose completion is in the greedy answer to the prompt."""
    hits = 0
    for some in _group_by_length(model, facts):
        prompts = [fact.prompt for fact in some]
        found = sample(model, prompts, steps, length=length, keep_states=False)
        for fact, text in zip(some, found.texts or [], strict=True):
            hits += fact.completion.strip().lower() in text[len(fact.prompt) :].lower()
    return hits / len(facts)


def _group_by_length(model: Model, facts: Sequence[Fact]) -> list[list[Fact]]:
    """Batches of prompts of one length each: no row waits for another, or pads the context away."""
    groups: dict[int, list[Fact]] = {}
    for fact in facts:
        groups.setdefault(len(encode_prompt(model, fact.prompt)), []).append(fact)
    return list(groups.values())


def choose_evenly(facts: Sequence[Fact], number: int) -> list[Fact]:
    """At most `number` facts, spread over all of them."""
    count = min(number, len(facts))
    return [facts[i * len(facts) // count] for i in range(count)]


def make_sampler(recipe: Recipe, corpus: Corpus | None) -> Callable[[Model, int], list[str]] | None:
    """A function that draws a few texts; masked and causal models continue prompts."""
    number, steps, length = (
        recipe.cadence.samples,
        recipe.cadence.sampling_steps,
        recipe.data.context,
    )
    if number == 0:
        return None
    prompts = []
    if corpus is not None:
        prompts = [fact.prompt for fact in choose_evenly(corpus[recipe.data.split], number)]

    def draw(model: Model, step: int) -> list[str]:
        if recipe.kind in ("masked", "causal"):
            starts: Sequence[str | list[int]] = prompts or [_first_token(model)] * number
            warm = 0.0 if prompts else 1.0
            settings: dict[str, Any] = {"length": length, "temperature": warm, "seed": step}
            found = [
                sample(model, [start], steps, keep_states=False, **settings) for start in starts
            ]
            if prompts:
                return [text for one in found for text in one.texts or []]
            return [_decode(model, one.tokens[0, 1:].tolist()) for one in found]
        streams = RowStreams.make(step, number, model.device)
        lesson = make_lesson(recipe, model.blueprint)
        if isinstance(lesson, GaussianLesson):
            process = Gaussian(model.net.latents.table().detach(), lesson.schedule)
            tokens = sample_gaussian(partial(predict, model.net), process, length, steps, streams)
        else:
            denoise = partial(_denoise, model)
            process = make_process(recipe, model.blueprint)
            tokens = sample_ancestral(denoise, process, length, steps, streams)
        return [_decode(model, row) for row in tokens.tolist()]

    return draw


def _denoise(model: Model, xt: Tensor, t: Tensor) -> Tensor:
    return model.net(xt, t=t)


def _decode(model: Model, row: list[int]) -> str:
    return model.tokenizer.decode(row) if model.tokenizer is not None else str(row)


def _first_token(model: Model) -> list[int]:
    """What a text without a prompt starts from: the end of the one before it."""
    return [model.tokenizer.end_id] if model.tokenizer is not None else [0]
