"""Corpora, networks and shards as tables in the terminal."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from unmask.base.units import format_bytes, format_number
from unmask.data.corpus import Corpus
from unmask.data.facts import Fact, tokenize_fact
from unmask.data.pairs import Pair
from unmask.data.shards import Shards, ShardsInfo
from unmask.data.sources import split_own
from unmask.data.tokenizer import Tokenizer
from unmask.net.config import NetConfig
from unmask.net.counts import (
    count_cache_bytes,
    count_flops,
    count_parameters,
    count_training_bytes,
    count_weight_bytes,
)
from unmask.net.sites import PARTS
from unmask.report.render_terminal import BRIEF_ROWS

SUBJECT, OBJECT = "bold cyan", "bold magenta"


def show_source(
    console: Console,
    path: Path,
    source: Corpus | Shards | list[Fact],
    tokenizer: Tokenizer | None,
    number: int,
    is_full: bool = False,
) -> None:
    """Any data set, with `number` examples; every split of a corpus where `is_full`."""
    if isinstance(source, Corpus):
        show_corpus(console, source, tokenizer, number, is_full)
    elif isinstance(source, Shards):
        excerpt = tokenizer.decode(source.maps[0][:40].tolist()) if tokenizer else ""
        show_shards(console, str(path), source.info, excerpt)
    else:
        corpus = split_own(str(path), source)
        if len(corpus.splits) > 1:
            _show_splits(console, corpus, is_full)
        else:
            facts, lines = len({fact.fact_id for fact in source}), len(source)
            more = f" in {lines} lines" if lines != facts else ""
            console.print(f"{path}: {facts} facts{more}", markup=False)
        show_facts(console, [(fact.fact_id, fact) for fact in source[:number]], tokenizer)


def show_corpus(
    console: Console,
    corpus: Corpus,
    tokenizer: Tokenizer | None = None,
    number: int = 4,
    is_full: bool = False,
) -> None:
    """The splits with their sizes, and one example of each of the first `number` tests."""
    _show_splits(console, corpus, is_full)
    tests = [split for split in corpus.tests if corpus.splits.get(split)]
    examples = [(split, corpus.splits[split][0]) for split in tests[:number]]
    show_facts(console, examples, tokenizer)


def _show_splits(console: Console, corpus: Corpus, is_full: bool) -> None:
    table = Table("split", "given", "trained", "facts", "phrasings", "lines", title=corpus.source)
    splits = list(corpus.splits.items())
    for split, facts in splits if is_full else splits[:BRIEF_ROWS]:
        ways = "/".join(sorted({fact.direction for fact in facts}))
        trained = "/".join(sorted({fact.trained for fact in facts}))
        num_facts = len({fact.fact_id for fact in facts})
        phrasings = len({(fact.direction, fact.phrasing) for fact in facts})
        table.add_row(split, ways, trained, str(num_facts), str(phrasings), str(len(facts)))
    console.print(table)
    if not is_full and len(splits) > BRIEF_ROWS:
        console.print(f"and {len(splits) - BRIEF_ROWS} more splits, which --all shows")


def show_facts(
    console: Console, facts: Sequence[tuple[str, Fact]], tokenizer: Tokenizer | None = None
) -> None:
    """Facts, one on a line after its label, subject and object coloured."""
    note = f"label, then the text with its [{SUBJECT}]subject[/] and [{OBJECT}]object[/]"
    if console.color_system is None:
        note = "label, then the text"
    if tokenizer is not None:
        note += ", then the token spans of subject and object"
    console.print(note)
    width = max(12, *(len(label) for label, _ in facts), 0)
    for label, fact in facts:
        line = Text(f"{label:>{width}}  ", style="dim")
        start = len(line)
        line.append(fact.text, style="not dim")
        line.stylize(SUBJECT, *(start + i for i in fact.subject_span))
        line.stylize(OBJECT, *(start + len(fact.prompt) + i for i in fact.object_span))
        if tokenizer is not None:
            tokens = tokenize_fact(fact, tokenizer)
            spans = (f"[{span[0]}:{span[1]}]" for span in (tokens.subject, tokens.object))
            line.append("  " + " → ".join(spans), style="dim")
        console.print(line)


def show_responses(console: Console, path: Path, pairs: Sequence[Pair], number: int) -> None:
    """How many prompts with responses there are, and the first ones, responses coloured."""
    console.print(f"{path}: {len(pairs)} prompts with their responses", markup=False)
    for pair in pairs[:number]:
        line = Text(pair.prompt, style="not dim")
        line.append(pair.response.rstrip(), style=OBJECT)
        console.print(line)


def show_network(
    console: Console, name: str, config: NetConfig, more: Mapping[str, str] | None = None
) -> None:
    """Shapes, counts and memory of a network, the sites it offers, and `more` on top."""
    parameters = count_parameters(config)
    flops = count_flops(config, config.context) / config.context
    attention = "causal" if config.causal else "bidirectional"
    rows = {
        **(more or {}),
        **describe_shapes(config),
        "  of them in the layers": f"{parameters.layers:,}",
        "  embedding and head": f"{parameters.embedding:,} and {parameters.head:,}",
        "forward, per token": f"{format_number(flops)}FLOP",
        "weights": f"{format_bytes(count_weight_bytes(config, 4))} float32, "
        f"{format_bytes(count_weight_bytes(config, 2))} bfloat16",
        "training state": f"{format_bytes(count_training_bytes(config))} (AdamW, float32)",
    }
    if config.causal:
        size = count_cache_bytes(config, 1, config.context, 2)
        rows["key-value cache, per row"] = f"{format_bytes(size)} bfloat16"
    rows["sites"] = f"embed, layers.0–{config.layers - 1}.( {' | '.join(PARTS)} ), final, logits"
    open_block = f"causal transformer with an open block of {config.block}"
    kind = open_block if config.open_block else f"{attention} transformer"
    show_pairs(console, f"{name}: {kind}", rows)


def show_pairs(console: Console, title: str, rows: Mapping[str, str]) -> None:
    """Names and values side by side."""
    table = Table(show_header=False, title=Text(title))
    for label, value in rows.items():
        table.add_row(label, Text(value))
    console.print(table)


def describe_shapes(config: NetConfig) -> dict[str, str]:
    """The shapes and the size of a network in words."""
    return {
        "block": describe_block(config),
        "layers × width × mlp": f"{config.layers} × {config.width} × {config.mlp_width}",
        "heads (keys/values) × width": f"{config.heads} ({config.kv}) × {config.head_dim}",
        "vocabulary, logits": f"{config.vocab_size:,}, {config.logit_rows:,}",
        "context": f"{config.context:,} tokens",
        "parameters": f"{count_parameters(config).total:,}",
    }


def describe_block(config: NetConfig) -> str:
    """What a network's block is made of, such as "sequential: RMS norm, rotary positions, …"."""
    norm = {"rms": "RMS norm", "layer": "layer norm"}[config.norm]
    mlp = {"swiglu": "SwiGLU", "gelu": "GELU"}[config.mlp]
    share = f" ({config.rotary_share:.0%} of a head)" if config.rotary_share < 1 else ""
    return f"{config.residual}: {norm}, {config.positions} positions{share}, {mlp}"


def show_shards(console: Console, source: str, info: ShardsInfo, excerpt: str) -> None:
    """The size of a folder of token shards, and how its text begins."""
    rows = {
        "documents": f"{info.documents:,}",
        "tokens": f"{sum(info.tokens):,} in {len(info.tokens)} shard(s), {info.dtype}",
        "vocabulary": f"{info.vocab_size:,}",
        "begins": excerpt,
    }
    show_pairs(console, f"token shards in {source}", rows)


def show_problems(console: Console, source: str, problems: Sequence[str], most: int = 20) -> None:
    """The problems of a data set, or that there are none."""
    if not problems:
        console.print(f"[green]{escape(source)}: no problem found[/]")
        return
    console.print(f"[red]{escape(source)}: {len(problems)} problem(s)[/]")
    for problem in problems[:most]:
        console.print(f"  {problem}", markup=False)
    if len(problems) > most:
        console.print(f"  … and {len(problems) - most} more")
