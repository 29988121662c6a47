"""`unmask data make|show|check`: corpora, facts and token shards."""

from pathlib import Path

import typer

app = typer.Typer(help="Make, show and check data.", no_args_is_help=True)
make = typer.Typer(help="Make a data set.", no_args_is_help=True)
app.add_typer(make, name="make")


@make.command("reversal")
def make_reversal(
    out: Path = typer.Argument(..., help="The folder to make."),
    facts: int = typer.Option(30, help="Facts in each of the groups d2p, p2d and both."),
    seed: int = typer.Option(0, help="Seed of who is invented."),
    vocab: int = typer.Option(
        8192, help="At most this many tokens of the byte-level BPE learned from the lines."
    ),
) -> None:
    """Make the reversal corpus: invented people, asked forwards and backwards."""
    from unmask.data.reversal_corpus import make_corpus

    make_corpus(out, facts, seed, vocab)
    _show(out)


@make.command("text")
def make_text(
    out: Path = typer.Argument(..., help="The folder to make."),
    files: list[Path] = typer.Argument(..., help=".txt or .jsonl files, also .xz."),
    tokenizer: Path | None = typer.Option(None, help="A tokenizer.json to use."),
    vocab: int = typer.Option(16_384, help="Without --tokenizer: tokens of the BPE to learn."),
) -> None:
    """Turn text into token shards; the tokenizer is saved with them."""
    from unmask.base.progress import track
    from unmask.data.shards import write_shards
    from unmask.data.text import read_documents
    from unmask.data.tokenizer import Tokenizer

    if tokenizer is None:
        known = Tokenizer.train(track(read_documents(files), "learning the tokenizer"), vocab)
    else:
        known = Tokenizer.load(tokenizer, mask="if any")
    write_shards(track(read_documents(files), "writing shards"), known, out)
    _show(out)


@app.command("show")
def show(
    path: Path = typer.Argument(..., help="A corpus folder, a shard folder or a file of facts."),
    number: int = typer.Option(8, min=1, help="How many facts of a file to show."),
) -> None:
    """Show what a data set holds, with examples."""
    _show(path, number)


@app.command("check")
def check(
    path: Path = typer.Argument(..., help="A corpus folder, a shard folder or a file of facts."),
) -> None:
    """Check a data set: lines, spans, ids, subjects named twice, no test leaks into training."""
    from rich.console import Console

    from unmask.data.corpus import Corpus, find_problems
    from unmask.data.facts import find_mixed_ids, find_repeated_subjects
    from unmask.data.shards import Shards
    from unmask.data.sources import read_own_tokenizer, read_source
    from unmask.report.terminal import show_problems

    source = read_source(path)
    if isinstance(source, Corpus):
        problems = list(find_problems(source, read_own_tokenizer(path)))
    elif isinstance(source, Shards):
        problems = list(source.find_problems())
    else:
        problems = [*find_mixed_ids(source), *find_repeated_subjects(source)]
    show_problems(Console(), str(path), problems)
    raise typer.Exit(1 if problems else 0)


def _show(path: Path, number: int = 8) -> None:
    from rich.console import Console

    from unmask.data.sources import read_own_tokenizer, read_source
    from unmask.report.terminal import show_source

    show_source(Console(), path, read_source(path), read_own_tokenizer(path), number)
