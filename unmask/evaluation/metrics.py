"""How good one generated answer is, and where the true one ranks: pure functions.

What an answer says, in whatever words around it, is `unmask.evaluation.contents`.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from unmask.base.errors import UserError
from unmask.base.plugins import Registry
from unmask.data.sets_corpus import EMPTY
from unmask.data.words import find_words, join_words

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU


def is_contained(generation: str, completion: str) -> bool:
    """The study's match: the completion stands in the generation; case and outer blanks aside.

    It is SMDM's rule and BICO's (`evaluate_completion` of its generate.py) as well; BICO applies it
    to names, and a BLEU of characters to descriptions.
    """
    return completion.strip().lower() in generation.lower()


def starts_with(generation: str, completion: str) -> bool:
    """Whether the generation begins with the completion, and may go on; as `is_contained`.

    It is the rule of Berglund et al. 2023 (`evaluate_completion` of their evaluators).
    """
    return generation.lstrip().lower().startswith(completion.strip().lower())


def is_strict(generation: str, completion: str) -> bool:
    """Whether the generation is the completion, nothing more; outer blanks and full stops aside.

    Descriptions are asked with a full stop and names without, but models end both with one.
    """
    return generation.strip(" .") == completion.strip(" .")


def is_contained_plainly(generation: str, completion: str) -> bool:
    """`is_contained` whatever the punctuation and blanks; an answer of these alone is nowhere."""
    answer = join_words(completion)
    return bool(answer) and answer in join_words(generation)


def has_surname(generation: str, name: str) -> bool:
    """Whether the last word of the name stands in the generation, as a word of its own."""
    return _has_words(generation, name.split()[-1:])


def has_first_name(generation: str, name: str) -> bool:
    """Whether the first word of the name stands in the generation, as a word of its own."""
    return _has_words(generation, name.split()[:1])


RULES = Registry[Callable[[str, str], float]](
    "rule",
    {
        "hit": is_contained,
        "plain": is_contained_plainly,
        "starts": starts_with,
        "strict": is_strict,
        "surname": has_surname,
        "first_name": has_first_name,
    },
    callable,
    "a function of a generated text and the true answer to true, false or a share",
)
"""When a text counts as the answer, by the names that tables of recall have."""


def judge_by(rule: str, generation: str, completion: str) -> float:
    """What a rule says of a text, which may be another package's, as a share."""
    value = RULES.find(rule)(generation, completion)
    try:
        share = float(value)
    except (TypeError, ValueError):
        share = -1.0
    if not 0 <= share <= 1:
        raise UserError(
            f"the rule {rule!r} returned {value!r:.60}: expected true, false or a share of 1."
        )
    return share


def _has_words(generation: str, words: Sequence[str]) -> bool:
    return bool(find_words(join_words(generation), join_words(" ".join(words))))


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


@lru_cache(maxsize=65_536)
def bleu_of_characters(generation: str, completion: str) -> float:
    """BLEU over runs of one to four characters, 0 to 100; 0 where a length has no run in common.

    BICO's number for descriptions (`compute_bleu` of its generate.py, arXiv 2311.07468), and
    SMDM's: nltk's `sentence_bleu` was given texts where it wants lists of words, so that its words
    are characters, outer blanks among them. A BLEU of words is `bleu`.
    """
    logs = []
    for length in range(1, 5):
        ours, theirs = (_count_runs(text, length) for text in (generation, completion))
        common = (ours & theirs).total()
        if not common:
            return 0.0
        logs.append(math.log(common / ours.total()))
    brevity = min(0.0, 1 - len(completion) / len(generation))
    return 100 * math.exp(brevity + sum(logs) / len(logs))


def _count_runs(text: str, length: int) -> Counter[str]:
    return Counter(text[i : i + length] for i in range(len(text) - length + 1))


NAMED: Mapping[tuple[str, str], Callable[[str, str], float]] = {
    ("Berglund", "name"): starts_with,
    ("Berglund", "description"): starts_with,
    ("BICO", "name"): is_contained,
    ("BICO", "description"): bleu_of_characters,
    ("SMDM", "name"): is_contained,
    ("SMDM", "description"): bleu_of_characters,
    ("study", "name"): is_contained,
    ("study", "description"): is_contained,
}
"""What each paper counts, by what is asked for: to make its table again from any texts."""


def bleu_signature() -> str:
    """sacrebleu's record of how `bleu` is computed."""
    bleu("one two three four", "one two three four")  # it knows the references' number afterwards
    return str(_scorer().get_signature())


@lru_cache(maxsize=1)
def _scorer() -> "BLEU":
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(effective_order=True)
