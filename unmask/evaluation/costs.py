"""What answers cost a model token by token, and sentences in two orders of writing."""

from collections.abc import Iterator, Sequence
from typing import Any

from unmask.data.facts import Fact
from unmask.evaluation.answers import Asked, score_answers
from unmask.evaluation.chain import Chain, score_alone
from unmask.evaluation.questions import require_tokenizer
from unmask.net.model import Model

AskedFact = tuple[dict[str, Any], Fact, list[int], int, int]
"""A fact with its columns, its tokens, where its answer begins, and the canvas of all."""


def score_names(model: Model, facts: Sequence[AskedFact]) -> Iterator[dict[str, Any]]:
    """A row for each answer: nats of each of its tokens, given the prompt and alone."""
    tokenizer, canvas = require_tokenizer(model), facts[0][-1]
    prompts = [Asked(ids[:at], [ids[at:]], []) for _, _, ids, at, _ in facts]
    given = [scored[0].terms for scored in score_answers(model, prompts, canvas)]
    # Phrasings share answers: each is scored alone once.
    answers = list(dict.fromkeys(tuple(ids[at:]) for _, _, ids, at, _ in facts))
    before = tokenizer.beginning
    chains = [
        Chain([*before, *answer], list(range(len(before), len(before) + len(answer))))
        for answer in answers
    ]
    alone = dict(zip(answers, score_alone(model, chains, canvas), strict=True))
    for (columns, fact, ids, at, _), terms in zip(facts, given, strict=True):
        costs, costs_alone = ([-term for term in each] for each in (terms, alone[tuple(ids[at:])]))
        yield columns | {
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


def score_orders(model: Model, facts: Sequence[AskedFact]) -> Iterator[dict[str, Any]]:
    """A row for each sentence: its parts' log-probabilities in both orders, in nats."""
    first = model.count_beginning(facts[0][2])  # stands before every text, whatever is written
    forward = [Chain(ids, list(range(first, len(ids)))) for _, _, ids, _, _ in facts]
    backward = [Chain(ids, [*range(at, len(ids)), *range(first, at)]) for _, _, ids, at, _ in facts]
    terms = score_alone(model, forward + backward, facts[0][-1])
    halves = terms[: len(facts)], terms[len(facts) :]
    for (columns, fact, ids, at, _), a_first, b_first in zip(facts, *halves, strict=True):
        num_a, num_b = at - first, len(ids) - at
        a, b_given_a = sum(a_first[:num_a]), sum(a_first[num_a:])
        b, a_given_b = sum(b_first[:num_b]), sum(b_first[num_b:])
        yield columns | {
            "text": fact.text,
            "tokens": num_a + num_b,
            "logp_a": a,
            "logp_b_given_a": b_given_a,
            "logp_b": b,
            "logp_a_given_b": a_given_b,
            "joint_forward": (a + b_given_a) / (num_a + num_b),
            "joint_backward": (b + a_given_b) / (num_a + num_b),
            "gap": abs(a + b_given_a - b - a_given_b) / (num_a + num_b),
            "information_forward": b_given_a - b,
            "information_backward": a_given_b - a,
        }
