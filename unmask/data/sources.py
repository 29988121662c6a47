"""Any data set by its path: a corpus, Berglund's files, token shards, or a file of facts."""

from collections.abc import Callable, Iterator
from pathlib import Path

from unmask.base.errors import UserError
from unmask.base.files import path_exists
from unmask.data.corpus import Corpus, find_leaks, read_corpus
from unmask.data.facts import (
    OTHER_WAY,
    Fact,
    find_mixed_ids,
    find_repeated_subjects,
    read_facts,
    read_records,
)
from unmask.data.retrieval_corpus import make_relationship_corpus, make_retrieval_corpus
from unmask.data.reversal_files import has_reversal_files, read_reversal_files
from unmask.data.sets_corpus import make_sets_corpus
from unmask.data.shards import Shards
from unmask.data.tokenizer import Tokenizer

OWN = "own"
"""The one split of a file of one's own facts that are all asked in one way."""
WORD_CORPORA: dict[str, Callable[[int, int], Corpus]] = {
    "retrieval": make_retrieval_corpus,
    "relationship": make_relationship_corpus,
    "sets": make_sets_corpus,
}
"""Corpora made of a size and a seed, of which every word is a token."""


def read_source(path: str | Path) -> Corpus | Shards | list[Fact]:
    """The data set at `path`, recognised by what is there."""
    path = Path(path)
    if not path_exists(path):
        raise UserError(f"{path!s:.200} is not there: expected a corpus folder or a file of facts.")
    if not path.is_dir():
        return read_facts(path)
    if (path / "shards.json").is_file():
        return Shards(path)
    return read_corpus_folder(path)


def read_corpus_folder(folder: str | Path) -> Corpus:
    """The reversal corpus in a folder, this project's or Berglund's."""
    folder = Path(folder)
    if (folder / "corpus.json").is_file():
        return read_corpus(folder)
    if has_reversal_files(folder):
        return read_reversal_files(folder)
    raise UserError(
        f"{folder} holds no data set: expected a corpus.json, a shards.json or Berglund's "
        "d2p_prompts_test.jsonl; make one with `unmask data make`."
    )


def read_asked(path: str | Path) -> Corpus:
    """Facts in splits: a corpus, or a file of one's own facts, as `split_own` does it."""
    source = read_source(path)
    if isinstance(source, Shards):
        raise UserError(f"{path} holds token shards: expected a corpus or a file of facts.")
    if isinstance(source, Corpus):
        return source
    if mixed := next(find_mixed_ids(source), None):
        raise UserError(f"{path}: {mixed}.")
    return split_own(str(path), source)


def split_own(source: str, facts: list[Fact]) -> Corpus:
    """One's own facts as a corpus: the split `own`, or where they say several ways, one for each.

    The average over facts asked as training showed them and reversed would hide what is asked for.
    """
    ways = {(fact.direction, fact.trained) for fact in facts}
    if len(ways) < 2:
        return Corpus(source, {OWN: facts})
    shown = {(fact.fact_id, fact.direction) for fact in facts if fact.trained == "same"}
    splits: dict[str, list[Fact]] = {}
    for fact in facts:
        other = OTHER_WAY[fact.direction]
        if fact.trained == "reverse":
            name = f"{other}_reverse"  # splits are named by the direction of training
        elif (fact.fact_id, other) in shown:
            name = f"both_{fact.direction}"
        else:
            name = f"{fact.direction}_same"
        splits.setdefault(name, []).append(fact)
    return Corpus(source, splits, tuple(splits))


def choose_trained(path: str | Path, facts: list[Fact]) -> list[Fact]:
    """The lines of one's own file that training shows: what is asked in reverse is left out."""
    if untold := next(find_untold_directions(path), None):
        raise UserError(f"{path}: {untold}.")
    kept = [fact for fact in facts if fact.trained == "same"]
    if not kept:
        raise UserError(
            f"{path}: each of its {len(facts)} lines says trained=reverse, so none is left to "
            "learn: expected lines with trained=same, or without a word on it."
        )
    return kept


def find_untold_directions(path: str | Path) -> Iterator[str]:
    """A sentence for every fact that a file asks both ways without a word on which is trained."""
    labelled: set[str] = set()
    subjects: dict[str, list[str]] = {}
    for fact, (_, record) in zip(read_facts(path), read_records(Path(path)), strict=True):
        subjects.setdefault(fact.fact_id, []).append(fact.subject)
        if record.get("trained") is not None:
            labelled.add(fact.fact_id)
    for fact_id, names in subjects.items():
        if fact_id not in labelled and len(both := list(dict.fromkeys(names))) > 1:
            yield (
                f"fact {fact_id}: lines give {both[0]!r} and others {both[1]!r}, and none says "
                "which of them training shows: write 'trained' with each, same where it is "
                "learned, reverse where it is only asked"
            )


def find_own_problems(path: str | Path, facts: list[Fact]) -> Iterator[str]:
    """What is wrong with a file of one's own facts, a sentence each; none for a sound one."""
    yield from find_mixed_ids(facts)
    yield from find_untold_directions(path)
    shown = [fact for fact in facts if fact.trained == "same"]
    corpus = Corpus(str(path), {"train": shown, OWN: facts})
    yield from (sentence for _, sentence in find_leaks(corpus))
    yield from find_repeated_subjects(facts)
    by_prompt: dict[str, list[str]] = {}
    for fact in facts:
        by_prompt.setdefault(fact.prompt, []).append(fact.object)
    for prompt, objects in by_prompt.items():
        known = list(dict.fromkeys(objects))
        if len(known) > 1:
            yield (
                f"the prompt {prompt!r} has the objects {', '.join(map(repr, known))}: expected "
                "one, since a model's answer is right for one of them at most"
            )
        for one in known:
            if (count := objects.count(one)) > 1:
                yield (
                    f"the prompt {prompt!r} with the object {one!r} is there {count} times: "
                    "expected once; leave out the others"
                )


def name_tests(corpus: Corpus) -> tuple[str, ...]:
    """The splits that are asked unless others are named: the corpus's tests, or one's own facts."""
    return (OWN,) if OWN in corpus.splits else corpus.tests


def read_own_tokenizer(path: str | Path) -> Tokenizer | None:
    """The tokenizer that lies with a data set, if one does; it may have no mask."""
    path = Path(path)
    return Tokenizer.load(path, mask="if any") if (path / "tokenizer.json").is_file() else None
