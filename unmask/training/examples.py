"""Rows to learn from, by number, whatever they come from."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from pkgutil import resolve_name

import numpy as np
import torch

from unmask.base.errors import UserError, suggest
from unmask.base.identity import digest_file, digest_values
from unmask.base.plugins import Registry
from unmask.base.seeds import derive_seed
from unmask.data.batches import encode_rows, repeat_entities, reverse_entities
from unmask.data.corpus import Corpus
from unmask.data.facts import Fact
from unmask.data.pairs import encode_pairs, read_pairs, read_preferences
from unmask.data.shards import Shards, Windows
from unmask.data.sources import WORD_CORPORA, choose_trained, read_own_tokenizer, read_source
from unmask.data.tokenizer import Tokenizer
from unmask.data.unknown import describe_unknown
from unmask.net.model import Model
from unmask.objectives.batch import Batch
from unmask.training.data_settings import PAIRS, PREFERENCES, DataSettings

_ROWS_AT_ONCE = 1024
_MADE = {
    "reversal": "unmask.data.reversal_corpus:make_reversal_corpus",
    "sealed": "unmask.experiments.planted.corpus:make_sealed_corpus",
}
"""Corpora made in place, whose tokenizer is learned from their lines, and what makes each."""
_READ = ("facts", "text", PAIRS, PREFERENCES)
_FOREIGN = 8
"""Other lines whose answers a line may be contaminated with."""


@dataclass(frozen=True)
class Examples:
    """All rows of a data set; any of them make a batch on the CPU."""

    label: str
    num_rows: int
    tokenizer: Tokenizer
    take: Callable[[Sequence[int]], Batch]
    corpus: Corpus | None = None
    """Where the rows are questions: for recall during training."""
    files: tuple[Path, ...] = ()
    """Where the rows lie, if they are too many to be held in memory."""
    unknown: str = ""
    """What the tokenizer lacks of the texts, as a sentence."""

    def digest(self) -> dict[str, str]:
        """Digests of everything that a run takes from its data, by what they are of."""
        digests = {"tokenizer": digest_values(self.tokenizer.list_contents())}
        if self.corpus is not None:
            digests["questions"] = digest_values(self.corpus.splits.items())
        if self.files:
            return digests | {f"tokens in {path.name}": digest_file(path) for path in self.files}
        return digests | {"rows": digest_values(self._list_rows())}

    def _list_rows(self) -> Iterator[object]:
        for first in range(0, self.num_rows, _ROWS_AT_ONCE):
            batch = self.take(range(first, min(first + _ROWS_AT_ONCE, self.num_rows)))
            others = [] if batch.rejected is None else [batch.rejected.tokens]
            for tensor in (batch.tokens, batch.prompt_length, batch.length, *others):
                yield None if tensor is None else memoryview(tensor.contiguous().numpy()).cast("B")


def keep_beginnings(examples: Examples, model: Model) -> Examples:
    """The examples with those beginnings of texts marked that the model's noise leaves alone."""

    def take(numbers: Sequence[int]) -> Batch:
        batch = examples.take(numbers)
        kept = model.find_kept(batch.tokens)
        return replace(batch, kept=batch.is_kept() | kept if kept is not None else batch.kept)

    return replace(examples, take=take)


ExampleSource = Callable[[DataSettings], Examples | Corpus | tuple[Corpus, Tokenizer]]
"""What reads or makes data: rows, or facts in splits, which are laid out as rows; a corpus may come
with a tokenizer of its own, else one is learned from its training lines."""
SOURCES = Registry[ExampleSource](
    "source",
    {
        **dict.fromkeys((*_MADE, *WORD_CORPORA, *_READ), "unmask.training.examples:read_examples"),
        "toy": "unmask.toy.examples:make_examples",
    },
    callable,
    "a function of the recipe's data settings that returns a Corpus or Examples",
)


def read_examples(
    data: DataSettings, known: Tokenizer | None = None, has_foreign: bool = False
) -> Examples:
    """The rows that a recipe names; `known` is the tokenizer of the model to start from.

    With `has_foreign`, rows of facts come with answers of other lines.
    """
    if data.source not in SOURCES:
        raise UserError(f"data.source {data.source!r} is unknown: {suggest(data.source, SOURCES)}")
    source = SOURCES[data.source]
    if source is not read_examples:
        return _take_made(source(data), data, known, has_foreign)
    if data.tokenizer is not None:
        known = Tokenizer.load(data.tokenizer, mask="if any")
    if data.source in _MADE:
        corpus = resolve_name(_MADE[data.source])(data.facts, data.seed)
        return lay_out_rows(corpus, corpus[data.split], data, known, has_foreign)
    if data.source in WORD_CORPORA:
        corpus = WORD_CORPORA[data.source](data.facts, data.seed)
        known = known or Tokenizer.of_words(corpus.training_texts())
        return lay_out_rows(corpus, corpus[data.split], data, known, has_foreign)
    if data.path is None:
        raise UserError(f"data.source {data.source} needs data.path: the folder or file to read.")
    if data.source in (PAIRS, PREFERENCES):
        return _answer(data, known)
    read = read_source(data.path)
    if isinstance(read, Shards) != (data.source == "text"):
        what = "token shards" if isinstance(read, Shards) else "facts"
        right = "text" if isinstance(read, Shards) else "facts"
        raise UserError(f"{data.path} holds {what}: use data.source={right}, or another path.")
    if isinstance(read, Shards):
        return _cut(read, data, known)
    known = known or read_own_tokenizer(data.path)
    corpus = read if isinstance(read, Corpus) else None
    facts = read[data.split] if isinstance(read, Corpus) else choose_trained(data.path, read)
    return lay_out_rows(corpus, facts, data, known, has_foreign)


def _take_made(
    made: object, data: DataSettings, known: Tokenizer | None, has_foreign: bool
) -> Examples:
    """What a source returned, as rows."""
    if isinstance(made, Examples):
        return made
    corpus, own = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(corpus, Corpus) or not isinstance(own, Tokenizer | None):
        raise UserError(
            f"data.source {data.source} returned {type(made).__name__}: expected Examples, a "
            "Corpus, or a Corpus and its Tokenizer."
        )
    if data.tokenizer is not None:
        own = Tokenizer.load(data.tokenizer, mask="if any")
    return lay_out_rows(corpus, corpus[data.split], data, known or own, has_foreign)


def find_prompt(examples: Examples, split: str, needed: bool) -> str:
    """A prompt to try a model with: a fact's, or where one is needed the beginning of a row."""
    if examples.corpus is not None:
        return examples.corpus[split][0].prompt
    if not needed:
        return ""
    first, known = examples.take([0]), examples.tokenizer
    ids = [x for x in first.tokens[0].tolist() if x not in (known.end_id, known.pad_id)]
    least = 1 if first.prompt_length is None else max(1, int(first.prompt_length[0]))
    texts = (known.decode(ids[:count]).strip() for count in range(least, len(ids) + 1))
    # A single token may be a space, or part of a character.
    return next((x for x in texts if any(map(str.isalnum, x)) and "\ufffd" not in x), "")


def lay_out_rows(
    corpus: Corpus | None,
    facts: Sequence[Fact],
    data: DataSettings,
    known: Tokenizer | None,
    has_foreign: bool = False,
) -> Examples:
    """Facts as rows; the end token after a text closes it and belongs to it."""
    learned_from = corpus.training_texts() if corpus else [fact.text for fact in facts]
    tokenizer = known or Tokenizer.train(learned_from, data.vocab)
    facts = _choose_facts(facts, data)
    rows = encode_rows(facts, tokenizer, data.context)
    length = (rows.length + 1).clamp(max=data.context)
    generator = np.random.default_rng(derive_seed(data.seed, "foreign"))
    others = torch.from_numpy(generator.integers(len(facts), size=(len(facts), _FOREIGN)))

    def take(numbers: Sequence[int]) -> Batch:
        chosen = torch.tensor(numbers)
        start = rows.prompt_length[chosen]
        foreign = None
        if has_foreign:
            # Another line's answer begins where the row's own does.
            lines = others[chosen]  # [B, K]
            shift = (rows.prompt_length[lines] - start[:, None])[..., None]
            at = (torch.arange(data.context) + shift).clamp(0, data.context - 1)
            foreign = rows.tokens[lines].gather(-1, at)
        more = (start, length[chosen], rows.entities[chosen], foreign)
        return Batch(rows.tokens[chosen], *more)

    label = corpus.source if corpus else str(data.path)
    unknown = describe_unknown(tokenizer, (fact.text for fact in facts))
    return Examples(label, len(facts), tokenizer, take, corpus, unknown=unknown)


def _choose_facts(facts: Sequence[Fact], data: DataSettings) -> list[Fact]:
    """The facts that are learned from: some left out, others in reverse or of one entity added."""
    kept = list(facts)
    if data.without is not None:
        kept = [fact for fact in facts if not fact.fact_id.startswith(data.without)]
        if len(kept) in (0, len(facts)):
            raise UserError(
                f"data.without={data.without} keeps {len(kept)} of {len(facts)} lines: expected "
                f"how the ids of some facts begin, such as {facts[-1].fact_id}."
            )
    reversed_ = [reverse_entities(fact) for fact in kept] if data.reverse_entities else []
    named = [line for fact in kept for line in repeat_entities(fact)] if data.identities else []
    return kept + reversed_ + named


def _answer(data: DataSettings, known: Tokenizer | None) -> Examples:
    """Prompts with their responses as rows; those longer than the context are left out.

    Of preferences, rows of chosen responses come with those of the rejected ones.
    """
    path, together = str(data.path), 1
    if data.source == PREFERENCES:
        together = 2
        pairs = [x for both in read_preferences(path) for x in (both.chosen, both.rejected)]
    else:
        pairs = list(read_pairs(path, known.chat if known else None))
    texts = [pair.prompt + pair.response for pair in pairs]
    tokenizer = known or Tokenizer.train(texts, data.vocab)
    rows = encode_pairs(pairs, tokenizer, data.context, together)

    def take(numbers: Sequence[int]) -> Batch:
        sides = [together * torch.tensor(numbers) + side for side in range(together)]
        made = [Batch(rows.tokens[x], rows.prompt_length[x], rows.length[x]) for x in sides]
        return made[0] if together == 1 else replace(made[0], rejected=made[1])

    left_out, number = rows.left_out // together, len(rows.tokens) // together
    longer = f" without {left_out} longer than {data.context} tokens" if left_out else ""
    unknown = describe_unknown(tokenizer, texts)
    return Examples(f"{path}{longer}", number, tokenizer, take, unknown=unknown)


def _cut(shards: Shards, data: DataSettings, known: Tokenizer | None) -> Examples:
    """Running text as windows of the context's length."""
    tokenizer = known or read_own_tokenizer(shards.folder)
    if tokenizer is None:
        raise UserError(f"{shards.folder} has no tokenizer: name one by data.tokenizer.")
    # A mask after the vocabulary is the model's, not the text's.
    bare = tokenizer.vocab_size - (tokenizer.mask_id == tokenizer.vocab_size - 1)
    if shards.info.vocab_size not in (bare, tokenizer.vocab_size):
        raise UserError(
            f"the shards in {shards.folder} were made with a vocabulary of "
            f"{shards.info.vocab_size}, but the tokenizer has {tokenizer.vocab_size}: they do not "
            "belong together; make the shards anew with this tokenizer, or name the right one."
        )
    windows = Windows(shards, data.context)

    def take(numbers: Sequence[int]) -> Batch:
        chosen = np.stack([windows[number] for number in numbers])
        return Batch(torch.from_numpy(chosen.astype(np.int64)))

    return Examples(
        str(Path(shards.folder)),
        len(windows),
        tokenizer,
        take,
        files=shards.files,
        unknown=shards.info.unknown,
    )
