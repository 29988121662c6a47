"""Looking at a model while it trains: recall of validation facts, and a few texts."""

from collections.abc import Sequence

from unmask.data.corpus import Corpus
from unmask.data.facts import Fact
from unmask.evaluation.metrics import is_contained
from unmask.net.model import Model
from unmask.sampling.texts import sample
from unmask.training.data_settings import DataSettings
from unmask.training.loop import Evaluate, Sample
from unmask.training.recipe import Recipe

BATCH = 64


def make_recall(corpus: Corpus, recipe: Recipe, length: int) -> Evaluate:
    """A function that asks some facts of each validation split: the share of hits."""
    cadence = recipe.cadence
    splits = {name: facts for name, facts in corpus.splits.items() if name.endswith("_valid")}

    def measure(model: Model, step: int) -> dict[str, float]:
        return {
            f"recall/{name.removesuffix('_valid')}": recall(
                model, choose_evenly(facts, cadence.facts), cadence.sampling_steps, length
            )
            for name, facts in splits.items()
        }

    return measure


def recall(model: Model, facts: Sequence[Fact], steps: int, length: int) -> float:
    """The share of facts whose completion is contained in the greedy answer to the prompt."""
    hits = 0
    for first in range(0, len(facts), BATCH):
        some = facts[first : first + BATCH]
        prompts = [fact.prompt for fact in some]
        answers = sample(
            model, prompts, steps=steps, length=length, temperature=0.0, keep_states=False
        )
        for fact, text in zip(some, answers.texts or [], strict=True):
            hits += is_contained(text[len(fact.prompt) :], fact.completion)
    return hits / len(facts)


def make_sampler(recipe: Recipe, corpus: Corpus | None, data: DataSettings) -> Sample | None:
    """A function that draws a few texts: what comes after training prompts, or after nothing."""
    cadence = recipe.cadence
    if cadence.samples == 0:
        return None
    prompts: Sequence[str] = []
    if corpus is not None:
        chosen = choose_evenly(corpus[data.split], cadence.samples)
        prompts = [fact.prompt for fact in chosen]

    def draw(model: Model, step: int) -> list[str]:
        assert model.tokenizer is not None
        # Without a prompt or a beginning, a causal text starts after the end token of another.
        known = model.tokenizer
        first = known.opening if model.paradigm.predicts_next else known.beginning
        starts = prompts or [first] * cadence.samples
        trajectory = sample(
            model,
            starts,
            steps=cadence.sampling_steps,
            length=data.context,
            temperature=0.0 if prompts else 1.0,
            seed=step,
            keep_states=False,
        )
        if prompts:
            return trajectory.texts or []
        return [model.tokenizer.decode(row[len(first) :]) for row in trajectory.tokens.tolist()]

    return draw


def choose_evenly(facts: Sequence[Fact], number: int) -> list[Fact]:
    """At most `number` facts, spread over all of them."""
    count = min(number, len(facts))
    return [facts[i * len(facts) // count] for i in range(count)]
