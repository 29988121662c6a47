"""The factorization check: does a model give a sentence the same probability in both orders?

A sentence is a prompt A and its completion B, so that log p(A) + log p(B|A) and log p(B) +
log p(A|B) are the same number for a consistent model (Kitouni et al. 2024, arXiv 2406.05183). A
masked model keeps the sentence as it stands and changes the order of writing. A causal model reads
in one order only, so for the second sum the parts change places; both stand behind an end token.

Where A and B belong together, B tells as much about A as A about B: log p(B|A) - log p(B) and
log p(A|B) - log p(A) are both the pointwise mutual information.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from unmask.evaluation.chain import Chain, score_behind, score_chains
from unmask.evaluation.questions import Split, choose_length, encode_facts, require_tokenizer
from unmask.net.model import Model

SCHEMA = "factorization/1"


def measure_factorization(
    model: Model, splits: Sequence[Split], length: int | None
) -> Iterator[dict[str, Any]]:
    """A row for each sentence: its parts' log-probabilities in both orders, in nats."""
    facts = [(split.name, fact) for split in splits for fact in split.facts]
    encoded = encode_facts([fact for _, fact in facts], require_tokenizer(model))
    canvas = choose_length(model, list(encoded.values()), length)
    cut = [(encoded[fact].ids, encoded[fact].prompt_length) for _, fact in facts]
    forward, backward = (_score_causal if model.kind == "causal" else _score_masked)(
        model, cut, canvas
    )
    for (split, fact), (ids, at), there, back in zip(facts, cut, forward, backward, strict=True):
        num_b = len(ids) - at
        a, b_given_a = sum(there[:at]), sum(there[at:])
        b, a_given_b = sum(back[:num_b]), sum(back[num_b:])
        yield {
            "split": split,
            "direction": fact.direction,
            "trained": fact.trained,
            "fact": fact.fact_id,
            "phrasing": fact.phrasing,
            "text": fact.text,
            "tokens": len(ids),
            "logp_a": a,
            "logp_b_given_a": b_given_a,
            "logp_b": b,
            "logp_a_given_b": a_given_b,
            "joint_forward": (a + b_given_a) / len(ids),
            "joint_backward": (b + a_given_b) / len(ids),
            "gap": abs(a + b_given_a - b - a_given_b) / len(ids),
            "information_forward": b_given_a - b,
            "information_backward": a_given_b - a,
        }


_Cut = Sequence[tuple[list[int], int]]
"""Sentences, and where their second parts begin."""
_Terms = list[list[float]]


def _score_masked(model: Model, cut: _Cut, length: int) -> tuple[_Terms, _Terms]:
    """log p of each token in the order of writing: A then B, and B then A."""
    orders = [(list(range(at)), list(range(at, len(ids)))) for ids, at in cut]
    there = [Chain(ids, a + b) for (ids, _), (a, b) in zip(cut, orders, strict=True)]
    back = [Chain(ids, b + a) for (ids, _), (a, b) in zip(cut, orders, strict=True)]
    found = score_chains(model, there + back, length)
    return found[: len(cut)], found[len(cut) :]


def _score_causal(model: Model, cut: _Cut, length: int) -> tuple[_Terms, _Terms]:
    start = [require_tokenizer(model).end_id]
    both = [[ids, ids[at:] + ids[:at]] for ids, at in cut]
    found = score_behind(model, [start] * len(cut), both)
    return [behind.terms[0] for behind in found], [behind.terms[1] for behind in found]
