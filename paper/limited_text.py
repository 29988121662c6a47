"""Little text with planted facts: one or two million tokens of articles, and one-way facts in them.

    python paper/limited_text.py FILE… --out DIR [--tokens 1000000 2000000] [--facts 30]

DIR has a folder of shards for each number of tokens, `corpus` with the questions, asked both ways,
and one tokenizer for all. The smaller text is the beginning of the larger one; the facts stand in
both, each in a few phrasings, a document each, spread evenly.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from unmask.base.seeds import derive_seed
from unmask.base.streams import RowStreams
from unmask.data.corpus import save_corpus
from unmask.data.reversal_corpus import make_reversal_corpus
from unmask.data.shards import write_shards
from unmask.data.text import read_documents
from unmask.data.tokenizer import Tokenizer

PHRASINGS = 8
"""Lines of each fact."""
LEARNED_FROM = 8_000
"""Articles that the tokenizer is learned from."""
GROUPS = ("d2p", "p2d")


def list_lines(facts: int, seed: int) -> list[str]:
    """Some training lines of every one-way fact, spread over its phrasings."""
    by_fact = defaultdict(list)
    for fact in make_reversal_corpus(facts, seed)["train"]:
        if fact.fact_id.startswith(GROUPS):
            by_fact[fact.fact_id].append(fact.text)
    return [
        texts[number * len(texts) // PHRASINGS]
        for texts in by_fact.values()
        for number in range(min(PHRASINGS, len(texts)))
    ]


def plant(articles: Sequence[str], lines: Sequence[str], seed: int) -> list[str]:
    """The articles with the lines between them, in an order drawn once."""
    order = RowStreams.make(derive_seed(seed, "order"), 1).uniform(len(lines))[0].argsort().tolist()
    places = RowStreams.make(derive_seed(seed, "places"), 1).below(len(articles) + 1, len(lines))
    planted = defaultdict(list)
    for place, number in zip(places[0].tolist(), order, strict=True):
        planted[place].append(lines[number])
    documents = []
    for place in range(len(articles) + 1):
        documents += planted[place]
        documents += articles[place : place + 1]
    return documents


def take_tokens(articles: Iterator[str], tokenizer: Tokenizer, number: int) -> list[str]:
    """The first articles that have so many tokens together; the last one is cut."""
    taken, left = [], number
    for article in articles:
        ids = tokenizer.encode_documents([article])[0]
        taken.append(article if len(ids) < left else tokenizer.decode(ids[:left]))
        left -= len(ids) + 1
        if left <= 0:
            break
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("files", nargs="+", type=Path, help="articles: .jsonl, also .xz")
    parser.add_argument("--out", type=Path, required=True, help="the folder to make")
    parser.add_argument("--tokens", nargs="+", type=int, default=[1_000_000, 2_000_000])
    parser.add_argument("--facts", type=int, default=30, help="facts of each of the two groups")
    parser.add_argument("--vocab", type=int, default=8192, help="tokens of the tokenizer")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    lines = list_lines(options.facts, options.seed)
    articles = islice(read_documents(options.files), LEARNED_FROM)
    tokenizer = Tokenizer.train([*articles, *lines], options.vocab)
    room = sum(len(ids) + 1 for ids in tokenizer.encode_documents(lines))
    for number in options.tokens:
        own = take_tokens(read_documents(options.files), tokenizer, number - room)
        write_shards(plant(own, lines, options.seed), tokenizer, options.out / f"text-{number}")
    save_corpus(make_reversal_corpus(options.facts, options.seed), options.out / "corpus", None)
    print(f"{len(lines)} lines of {2 * options.facts} facts, {room} tokens, in {options.out}")


if __name__ == "__main__":
    main()
