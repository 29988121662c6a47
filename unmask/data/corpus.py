"""A reversal corpus: facts in named splits, with one meaning of the names for all sources.

`d2p_same` holds facts trained description -> person, asked that way with unseen phrasings;
`d2p_reverse` the same facts asked the other way, name given, which training never showed.
`p2d_same` and `p2d_reverse` likewise for facts trained person -> description. Each has a control
with answers of other facts in the same phrasing (`…_shuffled`; `…_file_shuffled` where the data
came with shuffled answers of their own) and a validation split (`…_valid`) that uses training
phrasings only, so that settings are chosen without a look at the tests. `both_d2p` and `both_p2d`
hold facts trained both ways. `…_far` asks the same in phrasings that end as no training prompt
does, where the corpus has such. `train` is the training set; `choose` is `train` without the
phrasings of the validation splits, to train on while settings are being chosen.

A corpus may lack some of them, and name other tests of its own. Answers in `…_false` are those of
an inference that the training set does not support: a good model does not give them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from unmask.base.config import build
from unmask.base.errors import UserError, suggest
from unmask.base.files import create_folder, write_json
from unmask.base.reading import read_json_object
from unmask.data.facts import (
    Fact,
    find_mixed_ids,
    find_repeated_subjects,
    read_facts,
    tokenize_fact,
    write_facts,
)
from unmask.data.leaks import find_stated
from unmask.data.tokenizer import Tokenizer
from unmask.data.unknown import describe_unknown

TESTS = ("d2p_same", "d2p_reverse", "p2d_same", "p2d_reverse")
FAR = "_far"
"""How the splits end whose prompts end as no training prompt does."""
CORPUS_FORMAT = 1
UNTRUE = ("_shuffled", "_false")
"""How splits end whose answers are not the true ones."""
TRAINING = ("train", "choose")
_WAYS = ("d2p", "p2d")


@dataclass(frozen=True)
class CorpusRecord:
    """What `corpus.json` says: how many lines each split must have."""

    format: int
    source: str
    splits: dict
    tests: list = field(default_factory=list)
    """None named: the four tests of a reversal corpus."""


@dataclass(frozen=True)
class Corpus:
    """Facts by split; `source` says where they came from."""

    source: str
    splits: dict[str, list[Fact]]
    tests: tuple[str, ...] = TESTS
    """The splits that are asked unless others are named."""

    def __getitem__(self, split: str) -> list[Fact]:
        if split not in self.splits:
            raise UserError(f"{self.source} has no split {split!r}: {suggest(split, self.splits)}")
        return self.splits[split]

    def training_texts(self) -> list[str]:
        """Prompt and completion of every training line."""
        return [fact.text for fact in self["train"]]


def list_near(splits: Iterable[str]) -> tuple[str, ...]:
    """The splits in near phrasings."""
    return tuple(split for split in splits if not split.endswith(FAR))


def save_corpus(corpus: Corpus, folder: str | Path, tokenizer: Tokenizer | None) -> None:
    """Write the corpus and its tokenizer as a new folder, whole or not at all."""
    with create_folder(folder) as draft:
        for split, facts in corpus.splits.items():
            write_facts(draft / f"{split}.jsonl", facts)
        if tokenizer is not None:
            tokenizer.save(draft)
        counts = {split: len(facts) for split, facts in corpus.splits.items()}
        record = CorpusRecord(CORPUS_FORMAT, corpus.source, counts, list(corpus.tests))
        write_json(draft / "corpus.json", asdict(record))


def read_corpus(folder: str | Path) -> Corpus:
    """The corpus that `save_corpus` wrote; a missing split or line is an error."""
    folder = Path(folder)
    record = build(CorpusRecord, read_json_object(folder / "corpus.json"), f"{folder}/corpus.json")
    if record.format != CORPUS_FORMAT:
        raise UserError(
            f"{folder} has corpus format {record.format}, expected {CORPUS_FORMAT}: "
            "make the corpus anew with this version."
        )
    splits = {}
    for split, count in record.splits.items():
        if not split.isidentifier():
            raise UserError(f"{folder}/corpus.json names a split {split!r}: expected a plain name.")
        splits[split] = read_facts(folder / f"{split}.jsonl")
        if len(splits[split]) != count:
            raise UserError(
                f"{folder / split}.jsonl has {len(splits[split])} lines, expected {count}: "
                "the file was changed; make the corpus anew."
            )
    if unknown := [test for test in record.tests if test not in list(splits)]:
        raise UserError(
            f"{folder}/corpus.json names the tests {unknown}, which are no splits of it: expected "
            f"some of {', '.join(splits)}; make the corpus anew."
        )
    return Corpus(record.source, splits, tuple(record.tests) or TESTS)


def find_corpus_problems(corpus: Corpus, tokenizer: Tokenizer | None = None) -> Iterator[str]:
    """What is wrong with a corpus, a sentence each; none for a sound one."""
    for split in ("train", *corpus.tests):
        if not corpus.splits.get(split):
            yield f"the split {split} is missing or empty"
    train = corpus.splits.get("train", [])
    trained_prompts = {fact.prompt for fact in train}
    trained_ways = {(fact.fact_id, fact.direction) for fact in train}
    test_prompts = {fact.prompt for test in corpus.tests for fact in corpus.splits.get(test, [])}
    true = list_true_facts(corpus)
    questions = (facts for split, facts in corpus.splits.items() if split not in TRAINING)
    yield from find_mixed_ids(true)
    yield from find_repeated_subjects(fact for facts in questions for fact in facts)
    yield from (sentence for _, sentence in find_leaks(corpus))
    if tokenizer is not None:
        texts = dict.fromkeys(fact.text for facts in corpus.splits.values() for fact in facts)
        if unknown := describe_unknown(tokenizer, texts):
            yield unknown
    answers = {(fact.fact_id, fact.direction): fact.object for fact in true}
    for split, facts in corpus.splits.items():
        is_test = split in corpus.tests or split.startswith("both_")
        has_way = split in TRAINING or any(way in split for way in _WAYS)
        for fact in facts:
            name = f"{split}, fact {fact.fact_id}, phrasing {fact.phrasing}"
            way = (fact.fact_id, fact.direction)
            if is_test and fact.prompt in trained_prompts:
                yield f"{name}: a test prompt stands in the training set: {fact.prompt!r}"
            if split.endswith("_valid") and fact.prompt in test_prompts:
                yield f"{name}: a validation prompt is also a test prompt: {fact.prompt!r}"
            if has_way and (fact.trained == "same") != (way in trained_ways):
                yield f"{name}: marked {fact.trained!r}, but the training set says otherwise"
            if split.endswith(UNTRUE) and fact.object == answers.get(way):
                yield f"{name}: a {split.rpartition('_')[2]} control that holds the true answer"
            if tokenizer is not None:
                try:
                    tokenize_fact(fact, tokenizer)
                except UserError as error:
                    yield f"{name}: {error}"


def find_leaks(corpus: Corpus) -> Iterator[tuple[str, str]]:
    """Training lines that state a reversed fact the way it is asked: its id, and a sentence."""
    yield from find_stated(list_trained_texts(corpus), list_true_facts(corpus))


def list_trained_texts(corpus: Corpus) -> list[str]:
    """Every line that training may show, once where it stands in several splits."""
    texts = (fact.text for split in TRAINING for fact in corpus.splits.get(split, ()))
    return list(dict.fromkeys(texts))


def list_true_facts(corpus: Corpus) -> list[Fact]:
    """The facts of all splits whose answers are the true ones."""
    splits = corpus.splits.items()
    return [fact for name, own in splits if not name.endswith(UNTRUE) for fact in own]
