"""Prefixes: short texts put in front of a prompt, so that what is found does not hang on one text.

The first is always empty. The others are seeded, sampled from the model or cut out of texts, and
are saved with what they were used for.
"""

from collections.abc import Sequence
from dataclasses import replace

from unmask.base.errors import UserError
from unmask.base.seeds import derive_seed, python_stream
from unmask.data.facts import Fact
from unmask.evaluation.questions import require_tokenizer
from unmask.net.model import Model
from unmask.sampling.texts import sample

PREFIX_TOKENS = 5
JOINT = ". "
_FIRST_WORDS = ("The", "In", "When", "After", "One", "There", "As", "Many")
_MOST_TRIES = 20


def make_prefixes(
    model: Model,
    count: int,
    seed: int = 0,
    texts: Sequence[str] | None = None,
    tokens: int = PREFIX_TOKENS,
) -> tuple[str, ...]:
    """`count` different prefixes of about that many tokens, the first one empty.

    Without `texts` the model writes them, from a seeded first word on at a temperature of 1.
    """
    if count < 1:
        raise UserError(f"{count} prefixes were asked for: expected at least 1, the empty one.")
    tokenizer = require_tokenizer(model)
    if texts is not None and not any(text.strip() for text in texts):
        raise UserError("the text to cut prefixes from is empty: give one with words in it.")
    found = [""]
    for number in range(_MOST_TRIES * count):
        if len(found) == count:
            break
        stream = python_stream(seed, "prefix", number)
        if texts is None:
            first = tokenizer.encode(stream.choice(_FIRST_WORDS)).ids
            drawn = sample(
                model,
                [first],
                steps=tokens,
                length=min(len(first) + tokens, model.net.config.context),
                temperature=1.0,
                seed=derive_seed(seed, "prefix", number),
                keep_states=False,
            )
            assert drawn.texts is not None
            text = drawn.texts[0]
        else:
            words = stream.choice(texts).split() or [""]
            words = words[stream.randrange(len(words)) :]
            # Whole words, as many as fit.
            while len(words) > 1 and len(tokenizer.encode(" ".join(words)).ids) > tokens:
                words.pop()
            text = " ".join(words)
        text = _clean(text)
        if text and text not in found:
            found.append(text)
    if len(found) < count:
        raise UserError(
            f"only {len(found)} different prefixes were found of the {count} asked for: ask for "
            "fewer, or give a longer text to cut them from."
        )
    return tuple(found)


def put_before(prefix: str, fact: Fact) -> Fact:
    """The fact with a prefix in front of its prompt."""
    if not prefix:
        return fact
    front = prefix + JOINT
    begin, end = fact.subject_span
    return replace(
        fact,
        prompt=front + fact.prompt,
        subject_span=(begin + len(front), end + len(front)),
    )


def _clean(text: str) -> str:
    """On one line, without halves of characters and without punctuation at its end."""
    return " ".join(text.replace("\ufffd", " ").split()).rstrip(" .,;:!?-")
