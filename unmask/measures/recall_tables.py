"""Tables of recall, and what is folded away below them."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from unmask.blocks.blocks import Block, Column, Fold, Row, Table, Text
from unmask.blocks.labels import count, name_split
from unmask.measures.measure import Rows, Summary
from unmask.measures.summaries import distinct, keep_last, select, tabulate_means, to_interval

if TYPE_CHECKING:
    from unmask.measures.result import Result

CONTROL = "_shuffled"
"""What the id of a split's control ends in."""
OTHER_METRICS = {
    "strict": Column("strict match, %", 1, is_percent=True),
    "token_accuracy": Column("tokens in place, %", 1, is_percent=True),
    "bleu": Column("BLEU", 1),
    "rank": Column("rank", 1),
    "logp": Column("log p, nats", 1),
    "logp_mean_field": Column("log p, mean field", 1),
    "first_token_entropy": Column("entropy of token 1", 1),
    "beats_control": Column("likelier than shuffled, %", 1, is_percent=True),
}
PUBLISHED_SOURCE = (
    "Rai 2025, How is bidirectional information retrieved and generated in masked diffusion "
    "language models?, Table 3: SMDM-1028M fine-tuned on Berglund's set, guidance 0.8, context 52"
)
PUBLISHED: dict[str, dict[int, float]] = {
    "d2p_same": {1: 91.3, 2: 97.0, 4: 96.3, 8: 97.3, 16: 98.0, 32: 97.7},
    "d2p_reverse": {1: 0.0, 2: 0.7, 4: 17.0, 8: 27.3, 16: 31.0, 32: 29.7},
    "p2d_same": {1: 0.0, 2: 2.3, 4: 25.0, 8: 37.7, 16: 42.0, 32: 43.0},
    "p2d_reverse": {1: 40.3, 2: 79.0, 4: 87.7, 8: 87.3, 16: 88.3, 32: 90.0},
}
"""Contained match in per cent, by split and steps."""


def is_asked(split: str) -> bool:
    """Whether the split is asked; a control only judges its split's texts."""
    return not split.endswith(CONTROL)


def asks_berglund(result: "Result") -> bool:
    """Whether the data are Berglund's files, as the published numbers' are."""
    sources = [record.inputs.get("data", "") for record in result.records]
    return all(source.startswith("reversal-curse files") for source in sources)


def tabulate_hits(summary: Summary, splits: Sequence[str]) -> Table:
    """A row for each model and step count, the most steps first; causal models once."""
    hits = select(summary["cells"], metric="hit")
    kinds = dict(distinct(hits, "model", "kind"))
    counts = sorted({row["steps"] for row in hits if row["steps"] is not None}, reverse=True)
    rows: list[Row] = []

    def add(model: str, steps: int | None, suffix: str = "") -> None:
        cells = {row["split"]: to_interval(row) for row in select(hits, model=model, steps=steps)}
        values = [cells.get(split + suffix) for split in splits]
        if any(value is not None for value in values):
            name = f"{model}, shuffled" if suffix else model
            rows.append(Row([steps, name, *values], "control" if suffix else "plain"))

    for steps in counts or [None]:
        for model, kind in kinds.items():
            if kind != "causal":
                add(model, steps)
                if steps == counts[0]:
                    add(model, steps, CONTROL)
            elif not counts or steps == counts[0]:
                add(model, None)
                add(model, None, CONTROL)
        known = [PUBLISHED.get(split, {}).get(steps or 0) for split in splits]
        if any(value is not None for value in known):
            shares = [None if value is None else value / 100 for value in known]
            rows.append(Row([steps, "published", *shares], "published"))
    columns = [Column(name_split(split), 1, is_percent=True) for split in splits]
    return Table(
        "hits",
        "Answers recalled, % [95 % interval by fact]",
        [Column("steps"), Column("model"), *columns],
        rows,
        most=16,
    )


def fold_details(result: "Result", splits: Sequence[str]) -> Iterator[Fold]:
    """Other metrics, differences, the published numbers beside Berglund's data, and the method."""
    summary = result.summary
    cells = [row for row in summary["cells"] if is_asked(row["split"])]
    last = sorted(keep_last(cells, "model", "split"), key=lambda row: splits.index(row["split"]))
    labels = {"split": {split: name_split(split) for split in splits}}
    others = tabulate_means(
        "metrics",
        "Other metrics, at the most steps",
        last,
        {"split": Column("asked"), "model": Column("model")},
        OTHER_METRICS,
        labels,
    )
    yield Fold("Other metrics", [others, Text(_explain_metrics(summary["method"][0]["bleu"]))])
    if summary["pairs"]:
        pairs = keep_last(summary["pairs"], "one", "other", "split")
        rows = [
            Row([f"{row['one']} − {row['other']}", name_split(row["split"]), to_interval(row)])
            for row in sorted(pairs, key=lambda row: splits.index(row["split"]))
        ]
        columns = [Column("models"), Column("asked"), Column("points", 1, True, has_sign=True)]
        caption = "Differences in points at the most steps, paired by fact"
        yield Fold("Differences between models", [Table("pairs", caption, columns, rows)])
    if asks_berglund(result):
        yield Fold("Beside the published numbers", list(_compare_published(cells)))
    yield Fold("Method", [Text(text) for text in _explain_method(cells, summary)])


def _compare_published(cells: Rows) -> Iterator[Block]:
    """The best step count of each side, for Berglund's data alone."""
    hits = [row for row in select(cells, metric="hit") if row["kind"] != "causal"]
    rows = []
    for model, split in distinct(hits, "model", "split"):
        if split in PUBLISHED:
            best = max(select(hits, model=model, split=split), key=lambda row: row["mean"])
            at, value = max(PUBLISHED[split].items(), key=lambda item: item[1])
            asked, gap = name_split(split), best["mean"] - value / 100
            values = [model, asked, to_interval(best), best["steps"], value / 100, at, gap]
            rows.append(Row(values))
    here, there, gap = (Column(each, 1, True) for each in ("best here, %", "published, %", "gap"))
    columns = [Column("model"), Column("asked"), here, Column("steps"), there, Column("steps"), gap]
    yield Text(
        "Each side's best step count, chosen on these very prompts, point estimate against point "
        "estimate: no test. The published model differs in size, pretraining, tokenizer and "
        "training budget, so the gap says nothing about the method."
    )
    yield Table("published", "Best cells beside the published ones", columns, rows)


def _explain_metrics(bleu: str) -> str:
    return (
        "Strict match: the text is the true answer and nothing else; near 0 where training texts "
        "go on after the answer. Log p: of the true answer by the chain rule from left to right, "
        "without guidance. Rank: of the true answer among the answers of all facts of the split in "
        "the same phrasing, by log p for causal models and by the mean field (the whole answer "
        "masked) for masked ones, so ranks of the two kinds are not the same quantity. Likelier "
        "than shuffled: by log p, for the same prompt. A shuffled answer may have another "
        "grammatical form than its prompt wants, as many of Berglund's have, which makes the true "
        f"one likelier without any recall: read it beside the rank. BLEU: `{bleu}`."
    )


def _explain_method(cells: Rows, summary: Summary) -> Iterator[str]:
    hits = select(cells, metric="hit")
    sizes = distinct(hits, "prompts", "facts")
    asked = " or ".join(f"{count(p, 'prompt')} about {count(f, 'fact')}" for p, f in sizes)
    and_seeds = " and by training seed" if max(row["seeds"] for row in hits) > 1 else ""
    yield (
        f"Each way of asking has {asked}. A hit is a text that contains the true answer; case and "
        f"outer blanks do not count. Intervals are 95 % t intervals by fact{and_seeds}; a share's "
        "are exact binomial ones (Clopper and Pearson) of as many trials as the facts are worth. "
        "Differences are paired by fact."
    )
    prompts = dict(distinct(select(summary["cells"], metric="hit"), "split", "prompts"))
    missing = {split: n - prompts.get(split + CONTROL, n) for split, n in prompts.items()}
    if any(missing.values()):
        counts = ", ".join(f"{n} of {name_split(split)}" for split, n in missing.items() if n)
        yield (
            "The shuffling left some prompts an answer of their own fact, which is no control "
            f"({counts}): they are left out of all that is said about shuffled answers."
        )
