"""A rule of recall: half a point for every half of the answer's letters, whatever their order."""

from collections import Counter


def same_letters(generation: str, completion: str) -> float:
    """What a text is worth as the answer, 0 to 1."""
    written, true = (
        Counter(filter(str.isalpha, text.lower())) for text in (generation, completion)
    )
    return (written & true).total() / max(1, true.total())
