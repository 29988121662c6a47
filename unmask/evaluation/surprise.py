"""What each token of a name and of a description costs a model, by the chain rule.

The study supposes that descriptions are harder to recall than names because their text is harder to
predict. Each answer is scored given its prompt, and alone: at the start of an otherwise masked
canvas, or behind an end token where the model is causal.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from unmask.evaluation.answers import Asked, score_answers
from unmask.evaluation.chain import Chain, score_behind, score_chains
from unmask.evaluation.groups import Group, estimate_groups
from unmask.evaluation.questions import Split, choose_length, encode_facts, require_tokenizer
from unmask.net.model import Model

SCHEMA = "nll/1"
ASKED = {"d2p": "name", "p2d": "description"}
"""What is asked for, by what is given."""


def measure_surprise(
    model: Model, splits: Sequence[Split], length: int | None
) -> Iterator[dict[str, Any]]:
    """A row for each answer: nats of each of its tokens, given the prompt and alone."""
    tokenizer = require_tokenizer(model)
    facts = [(split.name, fact) for split in splits for fact in split.facts]
    encoded = encode_facts([fact for _, fact in facts], tokenizer)
    canvas = choose_length(model, list(encoded.values()), length)
    cut = [(encoded[fact].ids, encoded[fact].prompt_length) for _, fact in facts]
    asked = [Asked(ids[:at], [ids[at:]], []) for ids, at in cut]
    given = [scored[0].terms for scored in score_answers(model, asked, canvas)]
    unique = {tuple(ids[at:]): i for i, (ids, at) in enumerate(cut)}
    alone = dict(zip(unique, _score_alone(model, list(map(list, unique)), canvas), strict=True))
    for (split, fact), (ids, at), terms in zip(facts, cut, given, strict=True):
        costs, costs_alone = ([-term for term in each] for each in (terms, alone[tuple(ids[at:])]))
        yield {
            "split": split,
            "asked": ASKED[fact.direction],
            "trained": fact.trained,
            "fact": fact.fact_id,
            "phrasing": fact.phrasing,
            "prompt": fact.prompt,
            "completion": fact.completion,
            "tokens": [tokenizer.decode([token]) for token in ids[at:]],
            "nll": costs,
            "nll_alone": costs_alone,
            "nll_total": sum(costs),
            "nll_per_token": sum(costs) / len(costs),
            "nll_first": costs[0],
            "nll_later": sum(costs[1:]) / (len(costs) - 1) if len(costs) > 1 else None,
            "alone_per_token": sum(costs_alone) / len(costs),
        }


def estimate_places(rows: Sequence[Mapping[str, Any]], most: int = 24) -> list[Group]:
    """Mean cost of each token by its place in the answer, from 1; only where every fact has one.

    `given` is the way of asking (same, reverse), or alone.
    """
    spread = [
        {name: row[name] for name in ("model", "asked", "fact", "seed")}
        | {"given": given, "place": place, "nll": cost}
        for row in rows
        for given, costs in ((row["trained"], row["nll"]), ("alone", row["nll_alone"]))
        for place, cost in enumerate(costs[:most], start=1)
    ]
    groups = estimate_groups(spread, ("model", "asked", "given", "place"), ("nll",))
    first = {_line(group): group.facts for group in groups if group.key["place"] == 1}
    return [group for group in groups if group.facts == first[_line(group)]]


def _line(group: Group) -> tuple[str, str, str]:
    return group.key["model"], group.key["asked"], group.key["given"]


def _score_alone(model: Model, answers: list[list[int]], length: int) -> list[list[float]]:
    if model.kind == "causal":
        start = [require_tokenizer(model).end_id]
        found = score_behind(model, [start] * len(answers), [[answer] for answer in answers])
        return [behind.terms[0] for behind in found]
    chains = [Chain(answer, list(range(len(answer)))) for answer in answers]
    return score_chains(model, chains, length)
