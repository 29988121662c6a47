"""Texts with an attribute that a rule tells: biography or not, of encyclopedia articles.

An article is a biography if its first lines say when someone was born or lived, in brackets. That
mark is taken out of the text, so that neither a guide nor a judge can read the rule itself. Texts
are cut short; every other article belongs to the judge, so that guide and judge share none.

As a corpus, `train` has every text of the guide's half twice: after its label, for guidance without
a classifier, and after "A text:". `judge` is the other half.
"""

import re
from collections.abc import Iterable

from unmask.base.errors import UserError
from unmask.data.corpus import Corpus
from unmask.data.facts import Fact

FIRST_LINES = 220
"""Characters in which the mark of a biography must stand."""
_BORN = re.compile(
    r"\s*\((?:[^()]*\b)?(?:born|b\.)\s[^()]*\)"
    r"|\s*\([^()]*\b\d{3,4}\b[^()]{0,20}[–—-][^()]{0,25}\b\d{3,4}\b[^()]*\)"
)
BIOGRAPHY, ARTICLE, ANY = "biography", "article", "text"
PROMPTS = {BIOGRAPHY: "A biography:", ARTICLE: "An article:", ANY: "A text:"}
FOR_JUDGE = "For the judge, "
"""Before the prompts of the judge's half, which no model is trained on."""
SHORTEST = 60
"""Characters; shorter texts are left out."""


def is_biography(text: str) -> bool:
    """Whether the first lines say when someone was born or lived."""
    return _BORN.search(text[:FIRST_LINES]) is not None


def cut_text(text: str, characters: int) -> str:
    """The beginning without the rule's own mark, up to a whole word, on one line."""
    plain = " ".join(_BORN.sub("", text[: characters + FIRST_LINES], count=1).split())
    if len(plain) <= characters:
        return plain
    return plain[: characters + 1].rpartition(" ")[0]


def is_usable(text: str) -> bool:
    """Whether a text is long enough, and mostly words in plain letters: such take few tokens."""
    foreign = sum(letter > "~" for letter in text)
    others = sum(not (letter.isalpha() or letter.isspace()) for letter in text)
    return len(text) >= SHORTEST and foreign <= len(text) // 20 and others <= len(text) // 8


def make_biographies(
    documents: Iterable[str], num_texts: int = 4000, characters: int = 160
) -> Corpus:
    """The first so many usable texts, the guide's half and the judge's in turn."""
    if num_texts < 8 or not SHORTEST <= characters <= 2000:
        raise UserError(
            f"{num_texts} texts of {characters} characters were asked for: expected at least 8 of "
            f"{SHORTEST} to 2000."
        )
    halves: list[list[Fact]] = [[], []]
    number = 0
    for document in documents:
        text = cut_text(document, characters)
        if not is_usable(text):
            continue
        label = BIOGRAPHY if is_biography(document) else ARTICLE
        half = halves[number % 2]
        before = FOR_JUDGE if number % 2 else ""
        half.append(_make_fact(label, text, f"{label}-{number:06d}", before))
        if not before:
            half.append(_make_fact(ANY, text, f"any-{number:06d}"))
        number += 1
        if number == num_texts:
            break
    counts = [sum(fact.subject == BIOGRAPHY for fact in half) for half in halves]
    if number < num_texts or min(counts) < 2:
        raise UserError(
            f"{number} usable texts were read, {sum(counts)} of them biographies: expected "
            f"{num_texts}, with two biographies in each half; give more files or ask for fewer."
        )
    source = f"biographies and other articles ({num_texts} texts)"
    return Corpus(source, {"train": halves[0], "judge": halves[1]}, ("judge",))


def list_labelled(corpus: Corpus, split: str) -> tuple[list[str], list[bool]]:
    """The texts of a half, and whether each is a biography."""
    facts = [fact for fact in corpus.splits.get(split, []) if fact.subject in (BIOGRAPHY, ARTICLE)]
    labels = [fact.subject == BIOGRAPHY for fact in facts]
    if len(set(labels)) < 2:
        raise UserError(
            f"{corpus.source} has no biographies and other texts in {split}: expected a corpus "
            "that `unmask data make biographies` made."
        )
    return [fact.object for fact in facts], labels


def _make_fact(label: str, text: str, fact_id: str, before: str = "") -> Fact:
    prompt = before + PROMPTS[label]
    begin = prompt.index(label)
    return Fact(
        subject=label,
        object=text,
        prompt=prompt,
        completion=f" {text}",
        subject_span=(begin, begin + len(label)),
        object_span=(1, 1 + len(text)),
        fact_id=fact_id,
    )
