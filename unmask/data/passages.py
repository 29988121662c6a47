"""One's own passages with the triples they state, as a corpus asked forwards and backwards.

A file of JSON lines. A line with a `passage` lists the triples that it states; a line with a
`relation` says how that relation is asked for, forwards (the head given, the tail asked for) and
backwards; `{}` stands for what is given, and what is asked for follows:

    {"relation": "birthPlace", "forward": "{} was born in", "backward": "In {} was born"}
    {"passage": "Ada Orrin, born in Wrenmouth, …", "triples":
        [{"head": "Ada Orrin", "relation": "birthPlace", "tail": "Wrenmouth"}]}

The rules are those of WikiReversal (Kitouni et al. 2024, arXiv 2406.05183): a triple is
asked for if its passages name the head first, and if no other triple has its head and relation or
its relation and tail. All passages are trained. Of most triples both questions are trained, of the
others neither: those are the tests. Triples of the same two entities are on the same side, so that
no reverse question of a test fact is trained under another relation.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.base.config import check_arguments
from unmask.base.errors import UserError
from unmask.base.reading import read_json_lines, refuse_unknown, require_text
from unmask.base.seeds import python_stream
from unmask.data.corpus import Corpus, find_leaks, save_corpus
from unmask.data.facts import Fact, Span, find_words
from unmask.data.tokenizer import Tokenizer

LISTED_LEAKS = 5
FORMS = ("forward", "backward")


@dataclass(frozen=True)
class Triple:
    """A head, a relation and a tail, stated by a passage or by several."""

    head: str
    relation: str
    tail: str

    @property
    def fact_id(self) -> str:
        return f"{self.head} | {self.relation} | {self.tail}"


@dataclass(frozen=True)
class Passages:
    """Passages with the triples that each of them states, and two templates for each relation."""

    source: str
    texts: list[tuple[str, list[Triple]]]
    templates: dict[str, dict[str, str]]

    def list_asked(self) -> tuple[list[Triple], Counter[str]]:
        """The triples that can be asked for, and how many others there are, by reason."""
        stated = [(text, triple) for text, triples in self.texts for triple in triples]
        triples = list(dict.fromkeys(triple for _, triple in stated))
        tails = Counter((triple.head, triple.relation) for triple in triples)
        heads = Counter((triple.relation, triple.tail) for triple in triples)
        tail_first = {triple for text, triple in stated if _place(text, triple) is None}
        kept, reasons = [], Counter[str]()
        for triple in triples:
            if triple in tail_first:
                reasons["a passage names the tail first, or not both"] += 1
            elif tails[triple.head, triple.relation] > 1:
                reasons["the head has several tails in this relation"] += 1
            elif heads[triple.relation, triple.tail] > 1:
                reasons["the tail has several heads in this relation"] += 1
            else:
                kept.append(triple)
        return kept, reasons


def read_passages(path: str | Path) -> Passages:
    """The passages and templates of a file; the first wrong line is reported by its number."""
    texts: list[tuple[str, list[Triple]]] = []
    templates: dict[str, dict[str, str]] = {}
    used: dict[str, str] = {}
    for number, record in read_json_lines(path):
        where = f"{path}, line {number}"
        if "passage" in record:
            stated = list(_read_triples(record, where))
            used |= {triple.relation: where for triple in stated if triple.relation not in used}
            texts.append((require_text(record, "passage", where), stated))
        else:
            refuse_unknown(record, ("relation", *FORMS), where)
            relation = require_text(record, "relation", where)
            if relation in templates:
                raise UserError(f"{where}: the relation {relation!r} has templates already.")
            templates[relation] = {form: _read_template(record, form, where) for form in FORMS}
    for relation, where in used.items():
        if relation not in templates:
            raise UserError(
                f"{where}: the relation {relation!r} has no templates: add a line with 'relation', "
                "'forward' and 'backward'."
            )
    if not texts:
        raise UserError(f"{path} has no line with a 'passage': expected JSON lines with passages.")
    return Passages(Path(path).name, texts, templates)


def make_passages_corpus(
    passages: Passages, test_share: float = 0.2, seed: int = 0, drop_leaks: bool = False
) -> Corpus:
    """All passages and most questions to train on; questions of the other triples as tests.

    A training text that reads as a reverse question does is a leak: an error that lists some, or,
    with `drop_leaks`, a reason to leave the triple out of the tests.
    """
    triples, reasons = passages.list_asked()
    pairs = list(dict.fromkeys(frozenset((triple.head, triple.tail)) for triple in triples))
    python_stream(seed, "passages").shuffle(pairs)
    num_tests = round(test_share * len(pairs)) if 0 < test_share < 1 else 0
    num_valid = num_tests // 4
    if num_tests < 2:
        left_out = "".join(f"; {count} not asked for: {why}" for why, count in reasons.items())
        raise UserError(
            f"{passages.source}: {len(pairs)} pairs of entities can be asked for, and a share of "
            f"{test_share} for the tests was given: expected at least 2 for the tests{left_out}."
        )
    held_out = {pair: i < num_valid for i, pair in enumerate(pairs[:num_tests])}
    splits: dict[str, list[Fact]] = {"train": list(_list_statements(passages))}
    splits |= {"p2d_same": [], "p2d_reverse": [], "p2d_same_valid": [], "p2d_reverse_valid": []}
    for triple in triples:
        pair = frozenset((triple.head, triple.tail))
        same, reverse = _ask(triple, passages.templates, trained=pair not in held_out)
        if pair not in held_out:
            splits["train"] += [same, reverse]
        else:
            suffix = "_valid" if held_out[pair] else ""
            splits[f"p2d_same{suffix}"].append(same)
            splits[f"p2d_reverse{suffix}"].append(reverse)
    source = f"passages of {passages.source} ({len(triples)} triples, seed {seed})"
    corpus = Corpus(source, splits, ("p2d_same", "p2d_reverse"))
    return _without_leaks(corpus, drop_leaks)


@check_arguments()
def make_passages(
    file: str | Path,
    out: str | Path,
    test_share: float = 0.2,
    seed: int = 0,
    vocab: int = 8192,
    drop_leaks: bool = False,
) -> Counter[str]:
    """Write the corpus of a file of passages; how many triples are not asked for, by reason."""
    passages = read_passages(file)
    corpus = make_passages_corpus(passages, test_share, seed, drop_leaks)
    save_corpus(corpus, out, Tokenizer.train(corpus.training_texts(), vocab))
    return passages.list_asked()[1]


def _without_leaks(corpus: Corpus, drop: bool) -> Corpus:
    leaks = dict(find_leaks(corpus))
    if leaks and not drop:
        listed = "\n".join(f"- {leaks[fact_id]}" for fact_id in list(leaks)[:LISTED_LEAKS])
        more = f"\n- and {len(leaks) - LISTED_LEAKS} more" if len(leaks) > LISTED_LEAKS else ""
        raise UserError(
            f"{corpus.source}: training texts answer {len(leaks)} reverse questions of the tests: "
            f"change the passages, or leave these facts out with --drop-leaks.\n{listed}{more}"
        )
    splits = {
        split: [fact for fact in facts if split == "train" or fact.fact_id not in leaks]
        for split, facts in corpus.splits.items()
    }
    if not splits["p2d_reverse"]:
        raise UserError(f"{corpus.source}: every test fact leaks into training: change the file.")
    return Corpus(
        corpus.source, {name: some for name, some in splits.items() if some}, corpus.tests
    )


def _list_statements(passages: Passages) -> Iterator[Fact]:
    """Every passage, once for each triple that it states head first."""
    for number, (text, stated) in enumerate(passages.texts, 1):
        placed = [(triple, _place(text, triple)) for triple in stated]
        placed = [(triple, spans) for triple, spans in placed if spans is not None]
        if not placed:
            raise UserError(
                f"{passages.source}: passage {number} ({text[:50]!r}) names no triple's head "
                "before its tail, word for word: add such a triple, or leave the passage out."
            )
        for triple, (head, tail) in placed:
            end = len(text[: tail[0]].rstrip())  # the completion brings its own space
            yield Fact(
                subject=triple.head,
                object=triple.tail,
                prompt=text[:end],
                completion=text[end:],
                subject_span=head,
                object_span=(tail[0] - end, tail[1] - end),
                fact_id=triple.fact_id,
            )


def _place(text: str, triple: Triple) -> tuple[Span, Span] | None:
    """Where the passage first names head and tail; None unless the head comes first."""
    heads, tails = find_words(text, triple.head), find_words(text, triple.tail)
    return (heads[0], tails[0]) if heads and tails and heads[0][1] <= tails[0][0] else None


def _ask(triple: Triple, templates: Mapping[str, Mapping[str, str]], trained: bool) -> list[Fact]:
    """The forward and the backward question."""
    forward, backward = (templates[triple.relation][form] for form in FORMS)
    number, fact_id = 1 + list(templates).index(triple.relation), triple.fact_id
    return [
        Fact.of(triple.head, triple.tail, forward, fact_id=fact_id, phrasing=number),
        Fact.of(
            triple.tail,
            triple.head,
            backward,
            direction="d2p",
            trained="same" if trained else "reverse",
            fact_id=fact_id,
            phrasing=number,
        ),
    ]


def _read_triples(record: Mapping[str, Any], where: str) -> Iterator[Triple]:
    refuse_unknown(record, ("passage", "triples"), where)
    triples = record.get("triples")
    if not isinstance(triples, list) or not all(isinstance(each, dict) for each in triples):
        raise UserError(f"{where}: 'triples' is {triples!r:.80}: expected a list of objects.")
    for triple in triples:
        refuse_unknown(triple, ("head", "relation", "tail"), where)
        yield Triple(*(require_text(triple, key, where) for key in ("head", "relation", "tail")))


def _read_template(record: dict[str, Any], form: str, where: str) -> str:
    template = require_text(record, form, where)
    if template.count("{}") != 1:
        raise UserError(f"{where}: {form!r} is {template!r}: expected one {{}} for what is given.")
    return template
