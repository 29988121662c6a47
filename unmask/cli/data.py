"""`unmask data make|show|check`: corpora, facts and token shards."""

from collections.abc import Iterator
from pathlib import Path

import typer

from unmask.base.files import refuse_existing
from unmask.base.progress import announce, track
from unmask.data.city_lines import find_city_leaks, make_city_corpus
from unmask.data.corpus import (
    Corpus,
    find_corpus_problems,
    list_trained_texts,
    list_true_facts,
    save_corpus,
)
from unmask.data.factless import make_factless_corpus
from unmask.data.leaks import find_stated
from unmask.data.pairs import PLAIN, has_pairs, read_pairs
from unmask.data.passages import make_passages
from unmask.data.retrieval_corpus import make_relationship_corpus, make_retrieval_corpus
from unmask.data.reversal_corpus import make_corpus
from unmask.data.reversal_files import read_reversal_files
from unmask.data.sets_corpus import make_sets_corpus
from unmask.data.shards import Shards, write_shards
from unmask.data.sources import find_own_problems, read_asked, read_own_tokenizer, read_source
from unmask.data.stranger_files import make_strangers
from unmask.data.swapped_files import swap_roles
from unmask.data.text import read_documents
from unmask.data.tokenizer import Tokenizer
from unmask.experiments.guidance.corpus import make_biographies
from unmask.experiments.planted.corpus import make_sealed_corpus

OUT = typer.Argument(..., callback=refuse_existing, help="The folder to make.")
"""The folder of a new data set; an existing one is refused before anything is made."""
BERGLUND = typer.Argument(..., help="The folder of Berglund's files.")
TEXTS = typer.Argument(..., help=".txt or .jsonl files, also .xz or .zst.")
CHECKED = typer.Argument(
    ..., help="A corpus folder, a shard folder, a file of facts, a recipe or a run of training."
)
PLACE = typer.Argument(..., help="A corpus folder, a shard folder or a file of facts.")
GROUP = typer.Option(30, help="Facts in each of the groups d2p, p2d and both.")
INVENTED = typer.Option(0, help="Seed of who is invented.")
TOGETHER = typer.Option(0, help="Seed of which tokens belong together.")
VOCAB = typer.Option(
    8192, help="At most this many tokens of the byte-level BPE learned from the lines."
)

data = typer.Typer(help="Make, show and check data.", no_args_is_help=True)
make = typer.Typer(help="Make a data set.", no_args_is_help=True)
data.add_typer(make, name="make")


@make.command("reversal")
def make_reversal(
    out: Path = OUT,
    facts: int = GROUP,
    seed: int = INVENTED,
    vocab: int = VOCAB,
    swap_roles: bool = typer.Option(
        False, help="Train each one-way fact the other way round, with the same tokenizer."
    ),
) -> None:
    """Make the reversal corpus: invented people, asked forwards and backwards."""
    make_corpus(out, facts, seed, vocab, swap_roles)
    _show(out)


@make.command("swapped")
def make_swapped(files: Path = BERGLUND, out: Path = OUT) -> None:
    """Swap the roles of Berglund's facts: what was trained one way is trained the other way."""
    _save(swap_roles(read_reversal_files(files)), out)


@make.command("strangers")
def make_strangers_folder(
    files: Path = BERGLUND,
    out: Path = OUT,
    facts: int = typer.Option(30, help="People, each with one description."),
    seed: int = INVENTED,
) -> None:
    """Ask Berglund's questions about invented people whom his files never name: a control."""
    _save(make_strangers(read_reversal_files(files), facts, seed), out)


@make.command("factless")
def make_factless(
    out: Path = OUT, facts: int = GROUP, seed: int = INVENTED, vocab: int = VOCAB
) -> None:
    """Make the reversal corpus with people who are named as often and described anew each time."""
    _save(make_factless_corpus(facts, seed), out, vocab)


@make.command("cities")
def make_cities(
    out: Path = OUT,
    facts: int = GROUP,
    seed: int = INVENTED,
    sharing: int = typer.Option(
        3, help="People who have each first name, last name, deed and place; 1: nobody shares any."
    ),
    endings: int = typer.Option(
        3, min=1, help="Endings that a fact has in each frame: fewer are fewer training lines."
    ),
    vocab: int = VOCAB,
) -> None:
    """Make the reversal corpus with a third relation: a city of each person, stated of the name."""
    _save(make_city_corpus(facts, seed, sharing, endings), out, vocab)


@make.command("retrieval")
def make_retrieval(
    out: Path = OUT,
    pairs: int = typer.Option(200, help="Pairs of a key and a value."),
    seed: int = TOGETHER,
    length: int = typer.Option(2, help="Tokens of a key and of a value, each used once."),
    queried: float = typer.Option(0.8, help="Share of pairs asked for in training, both ways."),
    value_first: bool = typer.Option(False, help="State `value : key` instead of `key : value`."),
) -> None:
    """Make keys and values of unique tokens: what is recalled against the statement's order."""
    _save(make_retrieval_corpus(pairs, seed, length, queried, value_first), out, of_words=True)


@make.command("relationship")
def make_relationship(
    out: Path = OUT,
    chains: int = typer.Option(200, help="Chains A → B → C."),
    seed: int = TOGETHER,
    length: int = typer.Option(2, help="Tokens of each of A, B and C."),
    queried: float = typer.Option(0.8, help="Share of chains asked for in training, both ways."),
) -> None:
    """Make chains A → B → C: what comes after B, what before it, and which are mistaken."""
    _save(make_relationship_corpus(chains, seed, length, queried), out, of_words=True)


@make.command("sets")
def make_sets(
    out: Path = OUT,
    sets: int = typer.Option(20, help="Sets of people."),
    seed: int = typer.Option(0, help="Seed of who is in which set."),
) -> None:
    """Make sets and who is in them: unions and intersections of unseen pairs and triples."""
    _save(make_sets_corpus(sets, seed), out, of_words=True)


@make.command("sealed")
def make_sealed(
    out: Path = OUT,
    people: int = typer.Option(30, help="Sealed people, and as many open ones."),
    seed: int = INVENTED,
    vocab: int = VOCAB,
) -> None:
    """Make people of whom training withholds a town that other sentences tell."""
    _save(make_sealed_corpus(people, seed), out, vocab)


@make.command("biographies")
def make_labelled(
    out: Path = OUT,
    files: list[Path] = TEXTS,
    texts: int = typer.Option(4000, help="Texts, half of them for the judge."),
    characters: int = typer.Option(160, help="Characters of a text, at most."),
    vocab: int = VOCAB,
) -> None:
    """Label articles as biographies or not, by rule; guide and judge have disjoint halves."""
    _save(make_biographies(read_documents(files), texts, characters), out, vocab)


@make.command("passages")
def make_passages_folder(
    file: Path = typer.Argument(..., help="JSON lines with passages, triples and templates."),
    out: Path = OUT,
    test_share: float = typer.Option(0.2, help="Share of triples that no question is trained of."),
    seed: int = typer.Option(0, help="Seed of which triples these are."),
    vocab: int = VOCAB,
    drop_leaks: bool = typer.Option(
        False, help="Leave out test facts that a training text shows in reverse."
    ),
) -> None:
    """Turn one's own passages with triples into a corpus asked forwards and backwards."""
    reasons = make_passages(file, out, test_share, seed, vocab, drop_leaks)
    _show(out)
    for reason, count in reasons.items():
        typer.echo(f"not asked for: {count} triples ({reason})")


@make.command("text")
def make_text(
    out: Path = OUT,
    files: list[Path] = TEXTS,
    tokenizer: Path | None = typer.Option(None, help="A tokenizer.json to use."),
    vocab: int = typer.Option(16_384, help="Without --tokenizer: tokens of the BPE to learn."),
) -> None:
    """Turn text into token shards; the tokenizer is saved with them."""
    if tokenizer is None:
        known = Tokenizer.train(
            track(read_documents(files), "learning the tokenizer", in_lines=True), vocab
        )
    else:
        known = Tokenizer.load(tokenizer, mask="if any")
    write_shards(track(read_documents(files), "writing shards", in_lines=True), known, out)
    _show(out)


@data.command("show")
def show_data(
    path: Path = PLACE,
    number: int = typer.Option(4, min=1, help="How many examples to show."),
    show_all: bool = typer.Option(False, "--all", help="List every split of a corpus."),
) -> None:
    """Show what a data set holds, with examples."""
    if has_pairs(path):
        from rich.console import Console

        from unmask.report.terminal import show_responses

        show_responses(Console(), path, list(read_pairs(path, PLAIN)), number)
    else:
        _show(path, number, show_all)


@data.command("check")
def check(
    path: Path = CHECKED,
    questions: Path | None = typer.Option(
        None, help="A corpus or file of facts: does training show what these ask in reverse?"
    ),
) -> None:
    """Check data: lines, spans, ids, repeated facts and subjects, no leaks into training."""
    from rich.console import Console

    from unmask.report.terminal import show_problems

    with announce("checking"):
        problems = list(dict.fromkeys(_find_problems(path, questions)))
    show_problems(Console(), str(path), problems)
    raise typer.Exit(1 if problems else 0)


def _find_problems(path: Path, questions: Path | None) -> Iterator[str]:
    """What is wrong with data, or with what a recipe makes of them."""
    from unmask.training.recipes_io import find_recipe, read_recipe
    from unmask.training.shown import find_recipe_leaks

    facts = [] if questions is None else list_true_facts(read_asked(questions))
    if (recipe := find_recipe(path)) is not None:
        yield from find_recipe_leaks(read_recipe(recipe), facts)
        return
    if has_pairs(path):
        # Every line is read, also where nothing is searched for.
        texts = [pair.prompt + pair.response for pair in read_pairs(path, PLAIN)]
        yield from (sentence for _, sentence in find_stated(texts, facts))
        return
    source = read_source(path)
    if isinstance(source, Corpus):
        yield from find_corpus_problems(source, read_own_tokenizer(path))
        yield from find_city_leaks(source)
        texts = list_trained_texts(source)
    elif isinstance(source, Shards):
        yield from source.find_problems()
        texts = source.read_documents() if facts else ()
    else:
        yield from find_own_problems(path, source)
        texts = (fact.text for fact in source if fact.trained == "same")
    yield from (sentence for _, sentence in find_stated(texts, facts))


def _save(corpus: Corpus, out: Path, vocab: int | None = None, of_words: bool = False) -> None:
    """Write a corpus, with a tokenizer learned from its lines if one is asked for; and show it."""
    with announce("learning the tokenizer, writing"):
        tokenizer = Tokenizer.of_words(corpus.training_texts()) if of_words else None
        if vocab is not None:
            tokenizer = Tokenizer.train(corpus.training_texts(), vocab)
        save_corpus(corpus, out, tokenizer)
    _show(out)


def _show(path: Path, number: int = 4, is_full: bool = False) -> None:
    from rich.console import Console

    from unmask.report.terminal import show_source

    show_source(Console(), path, read_source(path), read_own_tokenizer(path), number, is_full)
