"""Words: where a text holds them, what it is without case and punctuation, where spaces belong."""

import re
import unicodedata
from functools import lru_cache

Span = tuple[int, int]
"""A half-open range [b, e)."""
_ASCII_WORD = re.compile("[a-z0-9]+")
_UNSPACED = ("CJK", "IDEOGRAPHIC", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")
"""How characters' names begin whose scripts put no spaces between words."""


def find_words(text: str, words: str) -> list[Span]:
    """Where `text` holds `words` on their own: "Ann" is in "Ann's annex", not in "Annex"."""
    spans: list[Span] = []
    begin = text.find(words)
    while begin >= 0 and words:
        end = begin + len(words)
        if not _joins(text, begin) and not _joins(text, end):
            spans.append((begin, end))
        begin = text.find(words, begin + 1)
    return spans


def _joins(text: str, at: int) -> bool:
    """Whether the characters on both sides of a place belong to one word."""
    return 0 < at < len(text) and _is_of_word(text[at - 1]) and _is_of_word(text[at])


def is_unspaced(character: str) -> bool:
    """Whether its script puts no spaces between words, so that no ends of words are seen."""
    return unicodedata.name(character, "").startswith(_UNSPACED)


def _is_of_word(character: str) -> bool:
    if is_unspaced(character):
        return False
    is_mark = unicodedata.category(character).startswith("M")
    return character.isalnum() or character == "_" or is_mark


def put_space(before: str, words: str) -> str:
    """Words as they follow a text: after a space, unless the script of either end has none."""
    has_space = not any(map(is_unspaced, before[-1:] + words[:1]))
    return f" {words}" if has_space else words


def join_words(text: str) -> str:
    """A text without case and punctuation."""
    return " ".join(split_words(text))


def split_words(text: str) -> list[str]:
    """The words of a text without case and punctuation, each letter one where none are spaced."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    if folded.isascii():
        return _ASCII_WORD.findall(folded)
    return "".join(map(_space, folded.replace("i\u0307", "i"))).split()  # a Turkish capital


@lru_cache(maxsize=65_536)
def _space(character: str) -> str:
    """A character as it is split from others: a blank where it belongs to no word."""
    if unicodedata.category(character) == "Cf":  # such as a soft hyphen: nobody sees it
        return ""
    if not character.isalnum() and not unicodedata.category(character).startswith("M"):
        return " "
    return f" {character} " if is_unspaced(character) else character
