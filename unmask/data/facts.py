"""Facts: a subject given in a prompt, an object asked for in its completion, and where they stand.

One's own facts come as CSV (with a header) or JSON lines with `subject`, `object` and `prompt`,
where `{}` in the prompt stands for the subject (or the prompt holds the subject itself, once and as
a word of its own):

    subject,object,prompt
    Zorvia,Lumen Bay,The capital of {} is

The same subject and object, in either order, are one fact unless `fact_id` says otherwise.
ROME's known facts are read as they come: a JSON list of `subject`, `attribute` and `prompt`.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from difflib import SequenceMatcher
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

from unmask.base.config import check_arguments
from unmask.base.errors import UserError
from unmask.base.files import replace_file
from unmask.base.reading import read_csv, read_json, read_json_lines, refuse_unknown, require_text
from unmask.base.unpacking import strip_packing
from unmask.data.tokenizer import Encoded, Tokenizer
from unmask.data.words import Span, find_words, put_space

Direction = Literal["p2d", "d2p"]
"""What is given: p2d a name (a person; a description is asked), d2p a description."""
Trained = Literal["same", "reverse"]
"""Whether training showed the fact in this direction, or only in the other one."""
OTHER_WAY: dict[str, Direction] = {"d2p": "p2d", "p2d": "d2p"}
_PIECE = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One question about a fact; spans are characters of the prompt and of the completion."""

    subject: str
    """What is given, in its plain form; the prompt may inflect it."""
    object: str
    """What is asked for, in its plain form."""
    prompt: str
    completion: str
    subject_span: Span
    object_span: Span
    direction: Direction = "p2d"
    trained: Trained = "same"
    fact_id: str
    """The fact's name, shared by all its phrasings in both directions."""
    phrasing: int = 0

    @property
    def text(self) -> str:
        return self.prompt + self.completion

    @property
    def columns(self) -> dict[str, Any]:
        """Which question a row of a table is about."""
        named: dict[str, Any] = {"fact": self.fact_id, "phrasing": self.phrasing}
        return named | {"direction": self.direction, "trained": self.trained}

    @classmethod
    def of(
        cls,
        subject: str,
        object: str,
        prompt: str,
        *,
        completion: str | None = None,
        direction: Direction = "p2d",
        trained: Trained = "same",
        fact_id: str | None = None,
        phrasing: int = 0,
    ) -> "Fact":
        """A fact of three texts.

        Args:
            subject: What is given.
            object: What is asked for.
            prompt: A text that ends before the object, `{}` standing for the subject (or with the
                subject itself, once and as a word of its own).
            completion: What follows the prompt; by default the object after a space, or after none
                where the script of either has none (Chinese, Japanese, Thai).
            direction: What is given: "p2d" a name, "d2p" a description.
            trained: Whether training showed the fact in this direction or in the "reverse" one.
            fact_id: The same for all phrasings of a fact; by default made of subject and object.
            phrasing: The number of its phrasing.

        >>> fact = unmask.Fact.of("Zorvia", "Lumen Bay", "The capital of {} is")
        >>> fact.prompt, fact.completion
        ('The capital of Zorvia is', ' Lumen Bay')
        """
        record: dict[str, Any] = {"subject": subject, "object": object, "prompt": prompt}
        record |= {"completion": completion, "phrasing": phrasing}
        record |= {"direction": direction, "trained": trained}
        for key in ("subject", "object", "prompt"):
            require_text(record, key, "the fact")
        # The completion brings its own space.
        record["prompt"] = prompt.rstrip()
        length = len(record["prompt"])
        if any(end == length for _, end in find_words(record["prompt"], object)):
            raise UserError(
                f"the prompt {prompt!r} of the fact ends with its object {object!r}, which is what "
                "is asked for: end the prompt before it."
            )
        record["fact_id"] = fact_id
        return _to_fact(record, "the fact")


def list_sides(fact: Fact) -> tuple[tuple[str, Span, str], tuple[str, Span, str]]:
    """A fact's description and its name: the text it stands in, where, and its plain form."""
    given = fact.prompt, fact.subject_span, fact.subject
    answer = fact.completion, fact.object_span, fact.object
    return (given, answer) if fact.direction == "d2p" else (answer, given)


FactTexts = tuple[str, str, str]
"""What `Fact.of` makes a fact of: subject, object, prompt."""


def as_fact(given: object) -> Fact:
    """The fact that was given, or the one of its three texts; anything else is a mistake."""
    if isinstance(given, tuple) and len(given) == 3:
        return Fact.of(*given)
    if not isinstance(given, Fact):
        raise UserError(
            f"a {type(given).__name__} was given: expected an unmask.Fact (one of "
            "unmask.read_facts(path), say), or its subject, object and prompt as a tuple."
        )
    return given


@dataclass(frozen=True)
class FactTokens:
    """A fact as tokens: prompt and completion in one row, with the spans counted in tokens."""

    ids: list[int]
    prompt_length: int
    subject: Span
    object: Span


def tokenize_fact(fact: Fact, tokenizer: Tokenizer) -> FactTokens:
    """The fact's tokens; the first token of the completion must start where the prompt ends."""
    return next(tokenize_facts([fact], tokenizer))


def tokenize_facts(facts: Iterable[Fact], tokenizer: Tokenizer) -> Iterator[FactTokens]:
    """The tokens of many facts, a thousand at a time."""
    rest = iter(facts)
    while some := list(islice(rest, 1000)):
        texts = tokenizer.encode_batch([fact.text for fact in some])
        prompts = tokenizer.encode_batch([fact.prompt for fact in some])
        for fact, whole, alone in zip(some, texts, prompts, strict=True):
            has_space = put_space(fact.prompt, fact.completion) != fact.completion
            if not has_space and whole.ids[: len(alone.ids)] != alone.ids:
                # No space keeps the two apart, and models are given the prompt's own tokens.
                whole = _append(alone, tokenizer.encode(fact.completion, added="nothing"), fact)
            yield _join_tokens(fact, whole, alone)


def _append(alone: Encoded, after: Encoded, fact: Fact) -> Encoded:
    """The tokens of a prompt, and of its completion after them."""
    start = len(fact.prompt)
    offsets = [(begin + start, end + start) for begin, end in after.offsets]
    return Encoded([*alone.ids, *after.ids], [*alone.offsets, *offsets])


def _join_tokens(fact: Fact, whole: Encoded, alone: Encoded) -> FactTokens:
    prompt = alone.ids
    if whole.ids[: len(prompt)] != prompt:
        raise UserError(
            f"the prompt {fact.prompt!r} and its completion {fact.completion!r} share a token: "
            "expected the completion to start a token of its own, usually by a space."
        )
    start = len(fact.prompt)
    object_span = (fact.object_span[0] + start, fact.object_span[1] + start)
    return FactTokens(
        whole.ids,
        len(prompt),
        find_tokens(whole.offsets, fact.subject_span),
        find_tokens(whole.offsets, object_span),
    )


def find_tokens(offsets: list[Span], span: Span) -> Span:
    """The tokens that hold any character of the span."""
    held = [i for i, (b, e) in enumerate(offsets) if b < span[1] and e > span[0]]
    assert held, (offsets, span)
    return held[0], held[-1] + 1


def place_subject(prompt: str, subject: str, where: str) -> Span:
    """The one place where a prompt names its subject; none and several are errors."""
    spans = find_words(prompt, subject)
    if len(spans) == 1:
        return spans[0]
    if spans:
        raise UserError(
            f"{where}: the prompt {prompt!r} names its subject {subject!r} {len(spans)} times, and "
            "one place is corrupted and read: write {} in the place that is meant, or give "
            "'subject_span'; better, reword the prompt."
        )
    inside = ", but as a part of another word" if subject and subject in prompt else ""
    raise UserError(
        f"{where}: the subject {subject!r} is not in its prompt {prompt!r}{inside}: write {{}} "
        "where the subject belongs."
    )


def gather_prompts(facts: Iterable[Fact]) -> dict[tuple[str, str], list[Fact]]:
    """By fact and direction, all phrasings that ask for it."""
    prompts: dict[tuple[str, str], list[Fact]] = {}
    for fact in facts:
        prompts.setdefault((fact.fact_id, fact.direction), []).append(fact)
    return prompts


def find_repeated_subjects(facts: Iterable[Fact]) -> Iterator[str]:
    """A sentence for every prompt that names its subject in further places than the chosen one."""
    for fact in facts:
        subject = fact.prompt[slice(*fact.subject_span)]
        if (count := len(find_words(fact.prompt, subject))) > 1:
            yield (
                f"fact {fact.fact_id}, phrasing {fact.phrasing}: the prompt {fact.prompt!r} names "
                f"{subject!r} {count} times, and only characters {fact.subject_span[0]} to "
                f"{fact.subject_span[1]} are corrupted and read as the subject: reword it"
            )


def find_shared_run(text: str, plain: str) -> Span | None:
    """Where `text` holds the longest run of words of `plain`, without trailing punctuation.

    This is how the subject is found in a prompt that inflects it: "composing the first opera"
    shares "the first opera" with "the composer of the first opera".
    """
    pieces = [(m.start(), m.end()) for m in _PIECE.finditer(text)]
    words, wanted = [text[b:e] for b, e in pieces], _PIECE.findall(plain)
    first, _, length = SequenceMatcher(None, words, wanted, autojunk=False).find_longest_match()
    run = range(first, first + length)
    while run and not words[run[-1]][-1].isalnum():
        run = run[:-1]
    return (pieces[run[0]][0], pieces[run[-1]][1]) if run else None


@check_arguments()
def read_facts(path: str | Path) -> list[Fact]:
    """All facts of a CSV or JSON-lines file; the first wrong line is reported by its number.

    Args:
        path: A file with `subject`, `object` and `prompt` of each fact, `{}` in the prompt standing
            for the subject; or one that `unmask data` wrote; or ROME's known facts (.json).

    >>> fact = unmask.read_facts("facts.csv")[0]
    >>> fact.prompt, fact.object
    ('Renzo Calverinth is', 'the kindly well digger')
    """
    path = Path(path)
    facts, before = [], Counter[tuple[str, str]]()
    for number, record in read_records(path):
        fact = _to_fact(record, f"{path}, line {number}")
        if record.get("phrasing") is None:
            # Lines that ask for one fact are its phrasings, numbered in the order of the file.
            way = (fact.fact_id, fact.direction)
            fact = replace(fact, phrasing=before[way]) if before[way] else fact
            before[way] += 1
        facts.append(fact)
    return facts


def read_records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number (from 1) and record of each line."""
    if path.suffix == ".csv":
        return read_csv(path)
    if strip_packing(path.name).endswith(".jsonl"):
        return read_json_lines(path)
    if path.suffix == ".json":
        return _read_known_facts(path)
    raise UserError(f"{path}: facts are read from .csv or .jsonl files; rename or convert it.")


def _read_known_facts(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number (from 1) and record of each; what else a record says of its fact is not used."""
    records = read_json(path)
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise UserError(f"{path}: expected a JSON list of objects with subject, attribute, prompt.")
    for number, record in enumerate(records, start=1):
        own = {name: record.get(name) for name in ("subject", "prompt")}
        yield number, own | {"object": record.get("attribute"), "fact_id": f"known-{number}"}


def write_facts(path: str | Path, facts: Iterable[Fact]) -> None:
    """Write facts as JSON lines that `read_facts` reads back equal."""
    with replace_file(path) as draft, draft.open("w", encoding="utf-8") as file:
        for fact in facts:
            file.write(json.dumps(asdict(fact), ensure_ascii=False) + "\n")


def find_mixed_ids(facts: Iterable[Fact]) -> Iterator[str]:
    """A sentence for every id that stands for several facts; the two directions are one fact."""
    pairs: dict[str, dict[frozenset[str], Fact]] = {}
    for fact in facts:
        pairs.setdefault(fact.fact_id, {}).setdefault(frozenset((fact.subject, fact.object)), fact)
    for fact_id, same_id in pairs.items():
        if len(same_id) > 1:
            one, other, *_ = same_id.values()
            yield (
                f"fact {fact_id}: {len(same_id)} facts have this id, such as {one.subject!r} with "
                f"{one.object!r} and {other.subject!r} with {other.object!r}: expected one; give "
                "each a fact_id of its own"
            )


def _to_fact(record: Mapping[str, Any], where: str) -> Fact:
    refuse_unknown(record, Fact.__dataclass_fields__, where)
    # Nothing said and null mean the same.
    record = {key: value for key, value in record.items() if value is not None}
    subject, object_ = (require_text(record, key, where) for key in ("subject", "object"))
    prompt = require_text(record, "prompt", where)
    if "subject_span" in record:
        subject_span = _check_span(record["subject_span"], prompt, "subject_span", where)
    else:
        if prompt.count("{}") > 1:
            raise UserError(f"{where}: the prompt {prompt!r} has several {{}}: expected one.")
        at = prompt.find("{}")
        if at >= 0:
            prompt = prompt.replace("{}", subject)
            subject_span = (at, at + len(subject))
        else:
            subject_span = place_subject(prompt, subject, where)
    has_one = "completion" in record
    answer = put_space(prompt, object_)
    completion = require_text(record, "completion", where) if has_one else answer
    if "object_span" in record:
        object_span = _check_span(record["object_span"], completion, "object_span", where)
    else:
        if not (spans := find_words(completion, object_)):
            raise UserError(
                f"{where}: the object {object_!r} is not in its completion {completion!r}: "
                "leave 'completion' out, or write one that holds the object."
            )
        object_span = spans[0]
    # Both directions of a fact have one id.
    fact_id = str(record.get("fact_id", " / ".join(sorted((subject, object_)))))
    return Fact(
        subject=subject,
        object=object_,
        prompt=prompt,
        completion=completion,
        subject_span=subject_span,
        object_span=object_span,
        direction=_check_choice(record, "direction", Direction, where),
        trained=_check_choice(record, "trained", Trained, where),
        fact_id=fact_id,
        phrasing=_check_count(record.get("phrasing", 0), "phrasing", where),
    )


def _check_span(span: Any, text: str, name: str, where: str) -> Span:
    whole = isinstance(span, list) and len(span) == 2 and all(type(i) is int for i in span)
    if not whole or not 0 <= span[0] < span[1] <= len(text):
        raise UserError(f"{where}: {name} is {span!r}, expected [begin, end] within {text!r}.")
    return span[0], span[1]


def _check_count(value: Any, name: str, where: str) -> int:
    digits = str(value)
    if not digits.isdecimal() or len(digits) > 18:  # of 64 bits
        raise UserError(f"{where}: {name!r} is {digits[:40]!r}, expected a whole number from 0.")
    return int(value)


def _check_choice(record: Mapping[str, Any], key: str, kind: Any, where: str) -> Any:
    choices = get_args(kind)
    value = record.get(key, Fact.__dataclass_fields__[key].default)
    if value not in choices:
        raise UserError(f"{where}: {key!r} is {value!r}, expected {' or '.join(choices)}.")
    return value
