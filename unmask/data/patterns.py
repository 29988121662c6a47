"""Tokenizer files of others: their patterns are known, or tried on hostile texts before use.

A pattern that backtracks can run for hours on a short text. Those of GPT-2, Llama 3 and Qwen2 are
known not to; any other is first tried in a process of its own, with a limit on its time.
"""

import json
import re
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers

from unmask.base.errors import UserError
from unmask.base.reading import parse_json, read_text

_CONTRACTIONS = "'s|'t|'re|'ve|'m|'ll|'d"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2_WORDS = rf"{_CONTRACTIONS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+"
LLAMA3_WORDS = (
    rf"(?i:{_CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
QWEN2_WORDS = LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")
"""How each of them cuts a text into words before merging: contractions, letters, digits, others."""
KNOWN_PATTERNS = frozenset((GPT2_WORDS, LLAMA3_WORDS, QWEN2_WORDS, r"\p{N}", r"\p{N}{1,3}", r"\d"))

MOST_SECONDS = 2
"""Seconds of processor time that all trials of one pattern may take."""
MOST_PATTERN_CHARACTERS = 10_000

_TRIAL = """
import json, sys
seconds, pattern, texts = json.load(sys.stdin)
try:
    import resource
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
except (ImportError, ValueError):
    pass
from tokenizers import Regex, pre_tokenizers
split = pre_tokenizers.Split(Regex(pattern), "isolated")
for text in texts:
    split.pre_tokenize_str(text)
"""


def open_tokenizer(file: Path) -> tokenizers.Tokenizer:
    """The tokenizer of a `tokenizer.json`, once its patterns have been found harmless."""
    text = read_text(file)
    parts = parse_json(text, str(file))
    for pattern in _find_patterns(parts if isinstance(parts, dict) else {}):
        if pattern not in KNOWN_PATTERNS and (problem := _try_pattern(pattern)):
            raise UserError(
                f"{file} cuts texts by the pattern {pattern[:80]!r}, which fails on some texts "
                f"({problem}): use another tokenizer."
            )
    try:
        with explain_panics(str(file)):
            return tokenizers.Tokenizer.from_str(text)
    except UserError:
        raise
    except Exception as error:  # the library raises plain Exception for a malformed file
        raise UserError(f"{file} is not a tokenizer file of `tokenizers`: {error}.") from None


@contextmanager
def explain_panics(source: str) -> Generator[None]:
    """Turn a panic of the tokenizer library, which is not an `Exception`, into a sentence."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        reason = str(error).splitlines()[0] if str(error) else "no reason was given"
        raise UserError(f"{source} makes the tokenizer library fail ({reason}).") from None


def _find_patterns(parts: dict[str, Any]) -> Iterator[str]:
    """Every regular expression of a tokenizer; the vocabulary has none."""
    inside = [parts.get(name) for name in ("normalizer", "pre_tokenizer", "decoder")]
    while inside:
        part = inside.pop()
        if isinstance(part, dict):
            if isinstance(pattern := part.get("Regex"), str):
                yield pattern
            inside += part.values()
        elif isinstance(part, list):
            inside += part


@cache
def _try_pattern(pattern: str) -> str | None:
    """Why a pattern must not be used; None where it cut all the hostile texts in time."""
    if len(pattern) > MOST_PATTERN_CHARACTERS:
        return f"it has more than {MOST_PATTERN_CHARACTERS:,} characters"
    given = json.dumps([MOST_SECONDS, pattern, list(_make_hostile_texts(pattern))])
    command = [sys.executable, "-P", "-c", _TRIAL]
    try:
        trial = subprocess.run(
            command, input=given, capture_output=True, text=True, timeout=30 * MOST_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"it took more than {30 * MOST_SECONDS} seconds"
    if trial.returncode < 0:
        return f"it took more than {MOST_SECONDS} seconds of processor time"
    return trial.stderr.strip().splitlines()[-1] if trial.returncode else None


def _make_hostile_texts(pattern: str) -> Iterator[str]:
    """Long repetitions of all that the pattern names, with and without an end that does not fit."""
    words = re.findall(r"\w{2,}", pattern)
    units = dict.fromkeys([*"aA1 \n\t!_é中", "a ", "a1", " \n", *pattern, *words])
    for unit in units:
        for number in (40, 2000):
            for end in ("", "!", "\0", "b"):
                yield unit * number + end
