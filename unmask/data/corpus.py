"""A reversal corpus: facts in named splits, with one meaning of the names for all sources.

`d2p_same` holds facts trained description -> person, asked that way with unseen phrasings;
`d2p_reverse` the same facts asked the other way, name given, which training never showed.
`p2d_same` and `p2d_reverse` likewise for facts trained person -> description. Each has a control
with shuffled answers (`…_shuffled`) and a validation split (`…_valid`) that uses training
phrasings only, so that settings are chosen without a look at the tests. `both_d2p` and `both_p2d`
hold facts trained both ways. `train` is the training set; `choose` is `train` without the
phrasings of the validation splits, to train on while settings are being chosen.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
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
from unmask.data.tokenizer import Tokenizer

TESTS = ("d2p_same", "d2p_reverse", "p2d_same", "p2d_reverse")
CORPUS_FORMAT = 1


@dataclass(frozen=True)
class CorpusRecord:
    """What `corpus.json` says: how many lines each split must have."""

    format: int
    source: str
    splits: dict


@dataclass(frozen=True)
class Corpus:
    """Facts by split; `source` says where they came from."""

    source: str
    splits: dict[str, list[Fact]]

    def __getitem__(self, split: str) -> list[Fact]:
        if split not in self.splits:
            raise UserError(f"{self.source} has no split {split!r}: {suggest(split, self.splits)}")
        return self.splits[split]

    def training_texts(self) -> list[str]:
        """Prompt and completion of every training line."""
        return [fact.text for fact in self["train"]]


def save_corpus(corpus: Corpus, folder: str | Path, tokenizer: Tokenizer | None) -> None:
    """Write the corpus and its tokenizer as a new folder, whole or not at all."""
    with create_folder(folder) as draft:
        for split, facts in corpus.splits.items():
            write_facts(draft / f"{split}.jsonl", facts)
        if tokenizer is not None:
            tokenizer.save(draft)
        counts = {split: len(facts) for split, facts in corpus.splits.items()}
        record = CorpusRecord(CORPUS_FORMAT, corpus.source, counts)
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
    return Corpus(record.source, splits)


def find_problems(corpus: Corpus, tokenizer: Tokenizer | None = None) -> Iterator[str]:
    """What is wrong with a corpus, a sentence each; none for a sound one."""
    for split in ("train", *TESTS):
        if not corpus.splits.get(split):
            yield f"the split {split} is missing or empty"
    train = corpus.splits.get("train", [])
    trained_prompts = {fact.prompt for fact in train}
    trained_ways = {(fact.fact_id, fact.direction) for fact in train}
    test_prompts = {fact.prompt for test in TESTS for fact in corpus.splits.get(test, [])}
    true = [
        fact
        for split, facts in corpus.splits.items()
        if not split.endswith("_shuffled")
        for fact in facts
    ]
    yield from find_mixed_ids(true)
    yield from find_repeated_subjects(true)
    answers = {(fact.fact_id, fact.direction): fact.object for fact in true}
    for split, facts in corpus.splits.items():
        is_test = split in TESTS or split.startswith("both_")
        for fact in facts:
            name = f"{split}, fact {fact.fact_id}, phrasing {fact.phrasing}"
            way = (fact.fact_id, fact.direction)
            if is_test and fact.prompt in trained_prompts:
                yield f"{name}: a test prompt stands in the training set: {fact.prompt!r}"
            if split.endswith("_valid") and fact.prompt in test_prompts:
                yield f"{name}: a validation prompt is also a test prompt: {fact.prompt!r}"
            if (fact.trained == "same") != (way in trained_ways):
                yield f"{name}: marked {fact.trained!r}, but the training set says otherwise"
            if split.endswith("_shuffled") and fact.object == answers.get(way):
                yield f"{name}: a shuffled control that holds the true answer"
            if tokenizer is not None:
                try:
                    tokenize_fact(fact, tokenizer)
                except UserError as error:
                    yield f"{name}: {error}"
