"""Berglund's reversal-curse files (arXiv 2309.12288, experiment 1) as a corpus.

The files hold prompts and completions only. A name is what the tests answer a description with;
its plain description is the completion that its own tests ask for most often. A span is the whole
name or the whole description: where a phrasing inflects it ("composing the first opera"), all that
stands in the place where other people's lines have their plain one. All this takes seconds, so what
was derived is kept in the user's cache folder.

Two of the files hold the reversed tests with shuffled answers. They were shuffled over all
phrasings, so that most answers have another grammatical form than their prompt wants: they are the
splits `…_file_shuffled`. The controls `…_shuffled` have answers of the prompt's own phrasing.

The test of facts trained both ways asks for a name and the words after it, the other tests for the
name alone. Here all of them do.
"""

import re
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from unmask.base.errors import UserError
from unmask.base.identity import digest_file, digest_values, find_cache_folder
from unmask.base.reading import read_json_lines, require_text
from unmask.data import facts as facts_module
from unmask.data import reversal_corpus
from unmask.data.corpus import TESTS, Corpus, read_corpus, save_corpus
from unmask.data.facts import (
    OTHER_WAY,
    Direction,
    Fact,
    Span,
    Trained,
    find_shared_run,
    find_words,
    list_sides,
)
from unmask.data.far_questions import make_far_splits

_TRAIN = ("d2p_prompts_train", "p2d_prompts_train", "both_prompts_train")
_TEST: dict[str, tuple[str, Trained]] = {
    "d2p_same": ("d2p_prompts_test", "same"),
    "d2p_reverse": ("d2p_reverse_prompts_test", "reverse"),
    "d2p_reverse_file_shuffled": ("d2p_reverse_prompts_test_randomized", "reverse"),
    "p2d_same": ("p2d_prompts_test", "same"),
    "p2d_reverse": ("p2d_reverse_prompts_test", "reverse"),
    "p2d_reverse_file_shuffled": ("p2d_reverse_prompts_test_randomized", "reverse"),
    "both": ("both_prompts_test", "same"),
}
_NAME = re.compile(r"\s*([A-Z][\w'-]+ [A-Z][\w'-]+)")
_PIECE = re.compile(r"\w+|[^\w\s]")
_MARKS = ".?!'\""
_HELD_OUT = frozenset((5, 9, 12, 15, 24))
"""Training phrasings, by number, that the validation splits use: they ask as the tests do."""
_NUM_TRAIN = 30
"""Test phrasings are numbered behind the training ones, so that a number means one phrasing."""
_CACHED = "reversal-"
"""How the names of cached corpora begin; the rest is a digest of what they were derived from."""
_MOST_CACHED = 4


@dataclass(frozen=True)
class _FileLine:
    prompt: str
    completion: str
    where: str


def has_reversal_files(folder: str | Path) -> bool:
    """Whether the folder looks like Berglund's."""
    return (Path(folder) / "d2p_prompts_test.jsonl").is_file()


def read_reversal_files(folder: str | Path) -> Corpus:
    """All splits of Berglund's folder, with spans and fact ids derived."""
    folder = Path(folder)
    names = (*_TRAIN, *(file for file, _ in _TEST.values()))
    missing = [f"{name}.jsonl" for name in names if not (folder / f"{name}.jsonl").is_file()]
    if missing:
        raise UserError(f"{folder} lacks {', '.join(missing)}: expected Berglund's set of files.")
    # What is derived depends on the files and on the code that derives it.
    code = [Path(each) for each in (__file__, facts_module.__file__, reversal_corpus.__file__)]
    files = (folder / f"{name}.jsonl" for name in names)
    cached = f"{_CACHED}{digest_values(map(digest_file, (*files, *code)))}"
    corpus = _read_cached(cached)
    if corpus is None:
        corpus = _derive(folder, names)
        _keep(corpus, cached)
    splits = corpus.splits | make_far_splits(corpus.splits)
    return replace(corpus, source=f"reversal-curse files in {folder}", splits=splits)


def _read_cached(name: str) -> Corpus | None:
    """What was derived before; None where it is missing, damaged or not to be read."""
    with suppress(OSError, UserError, RuntimeError):  # RuntimeError: there is no home
        return read_corpus(find_cache_folder() / name)
    return None


def _keep(corpus: Corpus, name: str) -> None:
    """Store what was derived, and drop the oldest of many; a cache that cannot be written is none.

    Of two processes that write at once one may fail, which changes nothing.
    """
    with suppress(OSError, UserError, RuntimeError):
        folder = find_cache_folder() / name
        shutil.rmtree(folder, ignore_errors=True)  # one that is damaged
        save_corpus(corpus, folder, tokenizer=None)
        kept = sorted(folder.parent.glob(f"{_CACHED}*"), key=lambda path: path.stat().st_mtime)
        for old in kept[:-_MOST_CACHED]:
            shutil.rmtree(old, ignore_errors=True)


def _derive(folder: Path, names: Sequence[str]) -> Corpus:
    lines = {name: _read(folder / f"{name}.jsonl") for name in names}
    facts = _Facts(
        {
            "d2p": lines["d2p_prompts_test"] + lines["d2p_reverse_prompts_test"],
            "p2d": lines["p2d_prompts_test"] + lines["p2d_reverse_prompts_test"],
            "both": lines["both_prompts_test"],
        }
    )
    splits: dict[str, list[Fact]] = {"train": []}
    for file in _TRAIN:
        splits["train"] += facts.derive_all(lines[file], "same", first=0)
    for split, (file, trained) in _TEST.items():
        splits[split] = facts.derive_all(lines[file], trained, split.endswith("_shuffled"))
    true = (
        each for name, some in splits.items() if not name.endswith("_shuffled") for each in some
    )
    spans = find_whole_spans(true)
    splits = {name: [_widen(fact, spans) for fact in some] for name, some in splits.items()}
    for way in ("d2p", "p2d"):
        two_way = [fact for fact in splits["both"] if fact.direction == way]
        splits[f"both_{way}"] = [_ask_for_name_only(fact) for fact in two_way]
    del splits["both"]
    for split in (*TESTS, *reversal_corpus.TWO_WAY):
        splits[f"{split}_shuffled"] = reversal_corpus.shuffle_answers(splits[split], seed=0)
    splits |= _validate(splits["train"], facts)
    return Corpus("reversal-curse files", splits)


class _Facts:
    """The people of the tests, by group, and the way to place them in a line."""

    def __init__(self, tests: dict[str, list[_FileLine]]):
        self.ids: dict[str, str] = {}
        self.plain: dict[str, str] = {}
        for group, lines in tests.items():
            named = (match[1] for line in lines if (match := _NAME.match(line.completion)))
            # A person is asked for in one direction and given in the other.
            prompts = "\n".join(line.prompt for line in lines)
            people = [name for name in dict.fromkeys(named) if name in prompts]
            for i, name in enumerate(people):
                self.ids[name] = f"{group}-{i:03d}"
                completions = Counter(line.completion for line in lines if name in line.prompt)
                self.plain[name] = completions.most_common(1)[0][0].strip().rstrip(".?!")

    def derive_all(
        self,
        lines: list[_FileLine],
        trained: Trained,
        shuffled: bool = False,
        first: int = _NUM_TRAIN,
    ) -> list[Fact]:
        """The lines as facts; phrasings are numbered from `first` as a fact meets them."""
        met: Counter[tuple[str, str]] = Counter()
        derived = []
        for line in lines:
            fact = self._derive(line, trained, shuffled)
            way = (fact.fact_id, fact.direction)
            derived.append(replace(fact, phrasing=first + met[way]))
            met[way] += 1
        return derived

    def _derive(self, line: _FileLine, trained: Trained, shuffled: bool) -> Fact:
        given, answered = (_find_name(text, self.ids) for text in (line.prompt, line.completion))
        person = given or answered
        if person is None:
            raise UserError(f"{line.where}: neither prompt nor completion holds a known name.")
        # The answer of a shuffled control is another person's, but where the files' own shuffling
        # left a prompt its true one.
        if given is not None:
            direction: Direction = "p2d"
            described = self._find_described(line.completion) if shuffled else given
            subject, object_ = given, self.plain[described]
        else:
            direction = "d2p"
            described = self._find_described(line.prompt) if shuffled else person
            subject, object_ = self.plain[described], person
            person = described
        return Fact(
            subject=subject,
            object=object_,
            prompt=line.prompt,
            completion=line.completion,
            subject_span=_place(line.prompt, subject, line.where),
            object_span=_place(line.completion, object_, line.where),
            direction=direction,
            trained=trained,
            fact_id=self.ids[person],
        )

    def _find_described(self, text: str) -> str:
        """The person whose description shares the longest run of words with the text."""

        def shared(name: str) -> int:
            begin, end = find_shared_run(text, self.plain[name]) or (0, 0)
            return end - begin

        return max(self.plain, key=shared)


def find_whole_spans(facts: Iterable[Fact]) -> dict[str, Span]:
    """Where the whole description stands in each text that has one, inflected or not.

    A phrasing puts the same words before and after it in every person's line, but for a "being" or
    "is" that a plain description wants and an inflected one does not.
    """
    phrasings: dict[tuple[str, int], list[tuple[str, Span, bool]]] = {}
    for fact in facts:
        (text, span, plain), _ = list_sides(fact)
        if text.startswith(capital := plain[0].upper() + plain[1:]):
            span = _place(text, capital, "a line")
        is_plain = span[1] - span[0] >= len(plain.rstrip(_MARKS))
        phrasings.setdefault((fact.direction, fact.phrasing), []).append((text, span, is_plain))
    spans: dict[str, Span] = {}
    for lines in phrasings.values():
        around = [(text[:b], text[e:]) for text, (b, e), is_plain in lines if is_plain]
        # Where nobody's is plain, the words that all lines share.
        around = around or [(lines[0][0], lines[0][0])]
        sides = (Counter(side).most_common(1)[0][0] for side in zip(*around, strict=True))
        before, after = map(_PIECE.findall, sides)
        pieces = [list(_PIECE.finditer(text)) for text, *_ in lines]
        if not any(is_plain for *_, is_plain in lines):
            before = before[: min(_count_same(each, before) for each in pieces)]
            after = after[len(after) - min(_count_same(x[::-1], after[::-1]) for x in pieces) :]
        for words, (text, span, is_plain) in zip(pieces, lines, strict=True):
            spans[text] = span if is_plain else _cut_around(words, before, after) or span
    return spans


def _cut_around(
    words: Sequence[re.Match[str]], before: Sequence[str], after: Sequence[str]
) -> Span | None:
    """Where the words stand that a text does not begin or end with as others do."""
    begin = _count_same(words, before)
    end = len(words) - _count_same(words[::-1], after[::-1])
    while end > begin and not words[end - 1][0][-1].isalnum():
        end -= 1
    return (words[begin].start(), words[end - 1].end()) if begin < end else None


def _count_same(words: Sequence[re.Match[str]], others: Sequence[str]) -> int:
    """How many words are the same from the start on."""
    pairs = list(zip(words, others, strict=False))
    return next((i for i, (one, other) in enumerate(pairs) if one[0] != other), len(pairs))


def _widen(fact: Fact, spans: Mapping[str, Span]) -> Fact:
    """The fact with the span of its whole description."""
    if fact.direction == "d2p":
        return replace(fact, subject_span=spans[fact.prompt])
    return replace(fact, object_span=spans[fact.completion])


def _validate(train: list[Fact], facts: _Facts) -> dict[str, list[Fact]]:
    """Validation splits from training phrasings, and the training set without them."""
    splits: dict[str, list[Fact]] = {
        "choose": [fact for fact in train if fact.phrasing not in _HELD_OUT]
    }
    held_out = [fact for fact in train if fact.phrasing in _HELD_OUT]
    for group in ("d2p", "p2d"):
        own = [fact for fact in held_out if fact.fact_id.startswith(group)]
        splits[f"{group}_same_valid"] = [_ask_for_name_only(fact) for fact in own]
        people = [name for name, fact_id in facts.ids.items() if fact_id.startswith(group)]
        # Any fact trained the other way lends its lines as models.
        other = [fact for fact in held_out if fact.fact_id == f"{OTHER_WAY[group]}-000"]
        splits[f"{group}_reverse_valid"] = [
            fact
            for name in people
            for model in other
            if (fact := _ask_like(model, name, facts)) is not None
        ]
    return splits


def _ask_for_name_only(fact: Fact) -> Fact:
    """A line as a test: nothing after the name is asked for."""
    if fact.direction == "p2d":
        return fact
    return replace(fact, completion=f" {fact.object}", object_span=(1, 1 + len(fact.object)))


def _ask_like(model: Fact, name: str, facts: _Facts) -> Fact | None:
    """The person asked about in the words of another fact's line; None where it inflects."""
    plain = facts.plain[name]
    if model.direction == "p2d":
        prompt, subject, object_ = model.prompt.replace(model.subject, name), name, plain
        completion = f" {plain}."
    else:
        if model.subject not in model.prompt:
            return None
        prompt, subject, object_ = model.prompt.replace(model.subject, plain), plain, name
        completion = f" {name}"
    return replace(
        model,
        prompt=prompt,
        completion=completion,
        subject=subject,
        object=object_,
        subject_span=_place(prompt, subject, "validation"),
        object_span=_place(completion, object_, "validation"),
        trained="reverse",
        fact_id=facts.ids[name],
    )


def _read(path: Path) -> list[_FileLine]:
    lines = []
    for number, record in read_json_lines(path):
        where = f"{path}, line {number}"
        prompt, completion = (require_text(record, key, where) for key in ("prompt", "completion"))
        lines.append(_FileLine(prompt, completion, where))
    return lines


def _find_name(text: str, names: dict[str, str]) -> str | None:
    return next((name for name in names if find_words(text, name)), None)


def _place(text: str, plain: str, where: str) -> Span:
    spans = find_words(text, plain)
    span = spans[0] if spans else find_shared_run(text, plain)
    if span is None:
        raise UserError(f"{where}: {plain!r} is not in {text!r}, not even in part.")
    end = span[1]
    while end > span[0] and not text[end - 1].isalnum():
        end -= 1
    return span[0], end
