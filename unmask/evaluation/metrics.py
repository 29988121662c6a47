"""How good one generated answer is, and where the true one ranks: pure functions."""

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from unmask.data.sets_corpus import EMPTY

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU


def is_contained(generation: str, completion: str) -> bool:
    """The study's match: the completion stands in the generation; case and outer blanks aside."""
    return completion.strip().lower() in generation.lower()


def starts_with(generation: str, completion: str) -> bool:
    """Whether the generation begins with the completion, and may go on; as `is_contained`."""
    return generation.lstrip().lower().startswith(completion.strip().lower())


def is_strict(generation: str, completion: str) -> bool:
    """Whether the generation is the completion, nothing more; outer blanks and full stops aside.

    Descriptions are asked with a full stop and names without, but models end both with one.
    """
    return generation.strip(" .") == completion.strip(" .")


def token_accuracy(generated: Sequence[int], answer: Sequence[int]) -> float:
    """The share of the answer's tokens that stand in their positions right after the prompt."""
    assert answer
    return sum(a == b for a, b in zip(generated, answer, strict=False)) / len(answer)


def score_members(generation: str, completion: str) -> float:
    """F1 of the set of words that was written against the true one, as in the `sets` corpus.

    Order and repetitions do not count; the word "none" is no member, and two empty sets are equal.
    """
    written, true = (set(text.split()) - {EMPTY} for text in (generation, completion))
    if not written and not true:
        return 1.0
    return 2 * len(written & true) / (len(written) + len(true))


def rank_of(truth: float, rivals: Sequence[float]) -> int:
    """1 where no rival has a higher score; ties count for the truth."""
    return 1 + sum(rival > truth for rival in rivals)


@lru_cache(maxsize=65_536)
def bleu(generation: str, completion: str) -> float:
    """Sentence BLEU on words, 0 to 100, by sacrebleu; what was met before is not counted again.

    Short answers have no four-word runs, so only the orders that occur are averaged.
    """
    return float(_scorer().sentence_score(generation.strip(), [completion.strip()]).score)


def bleu_signature() -> str:
    """sacrebleu's record of how `bleu` is computed."""
    bleu("one two three four", "one two three four")  # it knows the references' number afterwards
    return str(_scorer().get_signature())


@lru_cache(maxsize=1)
def _scorer() -> "BLEU":
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(effective_order=True)
