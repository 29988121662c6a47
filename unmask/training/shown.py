"""What training shows a model: the texts of a recipe's data, and whether they state what is asked.

Of a trained model, where the record of its run and the data of that run are still there.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, groupby

from unmask.base.config import build
from unmask.base.errors import UserError
from unmask.base.runs import DIGESTS, RunRecord
from unmask.data.corpus import Corpus, list_true_facts
from unmask.data.facts import Fact
from unmask.data.leaks import find_stated
from unmask.data.sources import read_asked
from unmask.data.tokenizer import Tokenizer
from unmask.net.families import read_training
from unmask.net.hub import find_model
from unmask.net.loading import inspect_tokenizer
from unmask.training.data_settings import DataSettings
from unmask.training.examples import Examples, read_examples
from unmask.training.mixture import read_mixture
from unmask.training.recipe import Recipe

MOST_TOKENS = 2**23
"""Data of a model with more are not read: that would take longer than a minute."""
_ROWS_AT_ONCE = 1024


def find_recipe_leaks(recipe: Recipe, others: Iterable[Fact] = ()) -> Iterator[str]:
    """A sentence for every row of a recipe's sources that states a reversed fact as it is asked.

    The facts are those that any of its sources asks, and `others`.
    """
    known = None
    if recipe.start.model is not None:
        with suppress(UserError):  # data that bring a tokenizer of their own can be read without it
            known = inspect_tokenizer(recipe.start.model)
    mixture = read_mixture(recipe.data, known)
    facts = [*others]
    for name, part in mixture.parts.items():
        if (corpus := _find_corpus(part, mixture.settings[name])) is not None:
            facts += list_true_facts(corpus)
    texts = chain.from_iterable(map(_list_texts, mixture.parts.values()))
    yield from (sentence for _, sentence in find_stated(texts, facts))


def describe_leaks(name: str, places: Iterable[str], facts: Sequence[Fact]) -> str:
    """What to say of a model whose training stated reversed facts the way they are asked, or was
    too long to be searched for that; empty for others. `places` are its checkpoints'."""
    unread: list[str] = []
    texts = (text for place in places for text in read_shown_texts(place, unread))
    sentences = []
    if stated := dict(find_stated(texts, facts)):
        reversed_ids = {fact.fact_id for fact in facts if fact.trained == "reverse"}
        sentences.append(
            f"{name} was trained on lines that state {len(stated)} of the {len(reversed_ids)} "
            "facts that are asked in reverse: for these, a right answer is repetition, no "
            f"reversal. Such as: {next(iter(stated.values()))}."
        )
    if unread:
        sentences.append(
            f"{name} was trained on more than is searched here for statements of what is asked in "
            f"reverse: {', '.join(dict.fromkeys(unread))}; `unmask data check RUN --questions "
            "DATA` searches all."
        )
    return " ".join(sentences)


def read_shown_texts(place: str, unread: list[str]) -> Iterator[str]:
    """Every text of the data that a model was trained on, and those of the one it started from.

    Data are left out that have changed since, that are not where they were, or that are long; the
    latter are named in `unread`.
    """
    seen: set[str] = set()
    start: str | None = place
    while start is not None and start not in seen and (training := read_training(start)):
        seen.add(start)
        try:
            record = build(RunRecord, training, start)
            recipe = build(Recipe, record.settings, start)
        except UserError:
            return  # a later version's, say
        for name, settings in recipe.parts.items():
            examples = _read_same(start, record, name, settings)
            if examples is None:
                continue
            if (tokens := examples.num_rows * settings.context) > MOST_TOKENS:
                unread.append(f"{examples.label} ({tokens:,} tokens)")
            else:
                yield from _list_texts(examples)
        start = recipe.start.model


def _read_same(place: str, record: RunRecord, name: str, settings: DataSettings) -> Examples | None:
    """A source of a run; None where it cannot be read, or is not what it was."""
    try:
        tokenizer = Tokenizer.load(find_model(place).path, mask="if any")
        examples = read_examples(settings, tokenizer)
    except UserError:
        return None
    if examples.num_rows * settings.context > MOST_TOKENS:
        return examples  # which digests of all of it would take long to tell
    before = record.inputs.get(DIGESTS)
    before = before.get("the data") if isinstance(before, Mapping) else None
    # The model's own tokenizer may have a mask more than that of its data.
    now = {
        f"{name}: {what}" if name else what: digest
        for what, digest in examples.digest().items()
        if what != "tokenizer"
    }
    return examples if isinstance(before, Mapping) and now.items() <= before.items() else None


def _find_corpus(examples: Examples, settings: DataSettings) -> Corpus | None:
    """What a source asks; a file of one's own facts may ask what it does not train."""
    if settings.source == "facts" and settings.path is not None:
        return read_asked(settings.path)
    return examples.corpus


def _list_texts(examples: Examples) -> Iterator[str]:
    """The texts of all rows, cut at end tokens."""
    known = examples.tokenizer
    for first in range(0, examples.num_rows, _ROWS_AT_ONCE):
        rows = examples.take(range(first, min(first + _ROWS_AT_ONCE, examples.num_rows)))
        for row in rows.tokens.tolist():
            for is_end, text in groupby(row, lambda token: token == known.end_id):
                if not is_end:
                    yield known.decode(text)
