"""The metrics of recall, and what its page folds away: differences, budgets, published numbers."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from unmask.blocks import blocks, labels, tidy
from unmask.blocks.blocks import Column
from unmask.measures.measure import Rows, Summary

if TYPE_CHECKING:
    from unmask.measures.result import Result

CONTROL = "_shuffled"
"""What the id of a split's control ends in."""
FILE_CONTROL = "_file_shuffled"
"""The ending of controls whose shuffled answers came with the data, as Berglund's do."""
MATCHES = {
    "hit": Column("contained, %", 1, is_percent=True),
    "starts": Column("starts with, %", 1, is_percent=True),
    "strict": Column("exact, %", 1, is_percent=True),
}
"""When a text counts as the answer."""
OTHER_METRICS = {
    "token_accuracy": Column("tokens in place, %", 1, is_percent=True),
    "bleu": Column("BLEU", 1),
    "rank": Column("rank", 1),
    "rank_chain": Column("rank, chain rule", 1),
    "logp": Column("log p, nats", 1),
    "logp_mean_field": Column("log p, mean field", 1),
    "first_token_entropy": Column("entropy of token 1", 1),
    "beats_control": Column("likelier than shuffled, %", 1, is_percent=True),
    "beats_file": Column("likelier than in Berglund's shuffled file, %", 1, is_percent=True),
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


def choose_published(result: "Result", splits: Sequence[str]) -> dict[str, dict[int, float]]:
    """The published numbers of these splits; of Berglund's facts alone."""
    sources = [record.inputs.get("data", "") for record in result.records]
    is_berglund = all(source.startswith("reversal-curse files") for source in sources)
    return {split: PUBLISHED[split] for split in splits if is_berglund and split in PUBLISHED}


def keep_last(rows: Rows, *by: str) -> Rows:
    """The rows with the most steps of their group; a causal model has no steps."""
    groups = tidy.group_by(rows, *by).values()
    most = [max(row["steps"] or 0 for row in group) for group in groups]
    pairs = zip(groups, most, strict=True)
    return [row for group, last in pairs for row in group if (row["steps"] or 0) == last]


def arrange_last(rows: Rows, splits: Sequence[str], *by: str) -> Rows:
    """The rows with the most steps, by way of asking."""
    last = [row for row in keep_last(rows, *by) if is_asked(row["split"])]
    return sorted(last, key=lambda row: splits.index(row["split"]))


def fold_details(
    result: "Result", hits: Rows, splits: Sequence[str]
) -> Iterator[blocks.ReportBlock]:
    """Where the published numbers come from, other metrics, differences, missing controls."""
    summary, has_published = result.summary, bool(choose_published(result, splits))
    if has_published:
        yield blocks.Text(
            f"Published: {PUBLISHED_SOURCE}. Another model, with another tokenizer and training "
            "budget; point estimates without intervals."
        )
    measured = set(tidy.distinct(summary["cells"], "metric"))
    bleu = blocks.Text(f"BLEU: `{summary['method'][0]['bleu']}`.")
    others = tidy.tabulate_means(
        "metrics",
        "Other metrics, at the most steps",
        arrange_last(summary["cells"], splits, "model", "split"),
        {"asked": tidy.name_asked, "model": "model"},
        {name: column for name, column in OTHER_METRICS.items() if name in measured},
    )
    yield blocks.Fold("Other metrics", [others, *_count_uncontrolled(summary), bleu])
    if summary["pairs"]:
        points = Column("points", 1, is_percent=True, has_sign=True)
        pairs = tidy.tabulate(
            "pairs",
            "Differences at the most steps, paired by fact",
            arrange_last(summary["pairs"], splits, "one", "other", "split"),
            {
                "models": lambda row: f"{row['one']} − {row['other']}",
                "asked": tidy.name_asked,
                points: tidy.to_interval,
            },
        )
        yield blocks.Fold("Differences between models", [pairs])
    if runs := summary.get("runs"):
        yield blocks.Fold("Each training run by itself", [_show_runs(runs, splits)])
    if budgets := summary["budgets"]:
        yield blocks.Fold("Steps per token of the answer", list(_show_budgets(budgets, splits)))
    if has_published:
        yield blocks.Fold("Beside the published numbers", list(_compare_published(hits)))


def _show_runs(runs: Rows, splits: Sequence[str]) -> blocks.Table:
    """A row for each run at the most steps, a column for each way of asking."""
    rows = []
    last = [{"opening": None} | dict(row) for row in keep_last(runs, "model")]
    for model, own in tidy.group_by(last, "model").items():
        openings = tidy.distinct(own, "opening")
        for (opening, seed), cells in tidy.group_by(own, "opening", "seed").items():
            row = {"model": model, "opening": openings.index(opening), "seed": seed}
            shares = {cell["split"]: cell["mean"] for cell in cells}
            rows.append(row | dict.fromkeys(splits) | shares)
    has_openings = len(tidy.distinct(rows, "opening")) > 1
    columns: dict[str | Column, tidy.Get] = {"model": "model"}
    columns |= {"adaptation": "opening", "run": "seed"} if has_openings else {"run": "seed"}
    columns |= {Column(labels.name_split(split), 1, is_percent=True): split for split in splits}
    return tidy.tabulate("runs", "Answers recalled, %, at the most steps", rows, columns, most=32)


def _show_budgets(budgets: Rows, splits: Sequence[str]) -> Iterator[blocks.ReportBlock]:
    """How many steps there are for each token of an answer; models of one tokenizer are one row."""
    counts = sorted({row["steps"] for row in budgets} - {None})
    every = tidy.distinct(budgets, "model")
    rows = []
    for (split, tokens), alike in tidy.group_by(budgets, "split", "tokens").items():
        models = tidy.distinct(alike, "model")
        names = "all" if models == every else ", ".join(models)
        steps = {f"{count}": count / tokens for count in counts}
        rows.append({"split": split, "models": names, "tokens": tokens} | steps)
    rows.sort(key=lambda row: splits.index(row["split"]))
    columns: dict[str | Column, tidy.Get] = {"asked": tidy.name_asked, "models": "models"}
    columns[Column("tokens of the answer", 1)] = "tokens"
    columns |= {Column(labels.count(count, "step"), 2): f"{count}" for count in counts}
    yield tidy.tabulate("budgets", "Steps per token of the answer, on average", rows, columns)
    yield blocks.Text(
        "All positions after the prompt are open at the start, so that steps are also spent on "
        "what follows the answer. An autoregressive model takes one step per token."
    )


def _count_uncontrolled(summary: Summary) -> Iterator[blocks.Text]:
    """Prompts whose shuffled answer is their own fact's."""
    prompts = dict(tidy.distinct(tidy.select(summary["cells"], metric="hit"), "split", "prompts"))
    for ending, of in ((CONTROL, ""), (FILE_CONTROL, " of Berglund's file")):
        missing = {split: n - prompts.get(split + ending, n) for split, n in prompts.items()}
        counts = [f"{n} of {labels.name_split(split)}" for split, n in missing.items() if n]
        if not counts:
            continue
        yield blocks.Text(
            f"The shuffling{of} left some prompts an answer of their own fact, which is no control "
            f"({', '.join(counts)}): they are left out of all that is said about shuffled answers."
        )


def _compare_published(hits: Rows) -> Iterator[blocks.ReportBlock]:
    """The best step count of each side."""
    rows = []
    for (_, split), cells in tidy.group_by(hits, "model", "split").items():
        if not labels.is_causal(cells[0]["kind"]) and split in PUBLISHED:
            best = max(cells, key=lambda cell: cell["mean"])
            at, percent = max(PUBLISHED[split].items(), key=lambda item: item[1])
            rows.append({**best, "published": percent / 100, "at": at})
    yield blocks.Text(
        "Each side's best step count, chosen on these very prompts, point estimate against point "
        "estimate: no test. The published model differs in size, pretraining, tokenizer and "
        "training budget, so the gap says nothing about the method."
    )
    yield tidy.tabulate(
        "published",
        "Best cells beside the published ones",
        rows,
        {
            "model": "model",
            "asked": tidy.name_asked,
            Column("best here, %", 1, is_percent=True): tidy.to_interval,
            "steps": "steps",
            Column("published, %", 1, is_percent=True): "published",
            "its steps": "at",
            Column("gap, points", 1, is_percent=True, has_sign=True): (
                lambda row: row["mean"] - row["published"]
            ),
        },
    )
