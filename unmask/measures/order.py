"""order: which tokens a diffusion model commits when, and texts that un-mask step by step.

Only tokens up to the first end of a text count. Times go from 0, the first step, to 1, the text's
last; intervals are 95 % intervals by fact, over all ways of asking and all training seeds. With the
plan smdm the filling after the answer is often committed first, so that all answers look late:
compare kinds with each other. Kinds of words are told by rule: a list of function words, digits,
capital letters inside a sentence (names), signs; the rest are other words.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.base.config import option
from unmask.base.errors import UserError
from unmask.blocks import tidy
from unmask.blocks.blocks import Verdict
from unmask.measures.inputs import Member, ModelInputs, ModelsAndData, read_questions
from unmask.measures.measure import (
    Job,
    Measure,
    Rows,
    Stage,
    Summary,
    Tables,
    judge_differences,
    judge_interval,
)
from unmask.measures.order_section import describe
from unmask.measures.settings import SamplingSettings
from unmask.results.summaries import compare_means, estimate_means

if TYPE_CHECKING:
    from unmask.data.facts import Fact
    from unmask.evaluation.order import Band, OrderPrompt
    from unmask.net.model import Model

LINES = "prompts"
"""The one split of a text file with a prompt on every line."""
RUNNING = "running_text"
"""The one split of a file of documents."""
MOST_DOCUMENTS = 2_000
"""Documents that say how frequent tokens are."""
MOST_POSITIONS = 24
"""Positions of an answer that the order map shows."""


@dataclass(frozen=True, kw_only=True)
class OrderSettings(SamplingSettings):
    """How texts are drawn, and how many of them are kept token by token."""

    limit: int | None = option(40, "Prompts of each split, or of the file.", least=1)
    examples: int = option(2, "Texts of each split that are kept for the animation.", least=1)
    steps: int = option(16, "Denoising steps.", least=1, most=1_000_000)
    guidance: float = option(0.0, "Strength of guidance.", least=0)
    seed: int = option(0, "Seed of whatever is drawn.", least=0)
    words: int = option(16, "Of running text, how many words of a document are given.", least=1)


@dataclass(frozen=True)
class Prompts:
    """Prompts by split, and what they come from."""

    by_split: "dict[str, list[OrderPrompt]]"
    facts: "list[Fact]"
    """All facts of the splits: the canvas holds each of them."""
    texts: list[str]
    """They say how frequent tokens are: the training texts where the data have them."""


def read_prompts(data: Any, settings: OrderSettings, families: Any) -> tuple[Prompts, str, str]:
    """The prompts of a corpus's splits, of facts, of a text file's lines or of running text."""
    from unmask.base.identity import digest_values
    from unmask.evaluation.order import OrderPrompt
    from unmask.evaluation.questions import spread

    if isinstance(data, str | Path) and Path(data).suffix == ".txt":
        return _read_lines(Path(data), settings)
    if isinstance(data, str | Path) and _holds_documents(Path(data)):
        return _read_running_text(Path(data), settings)
    questions, source, contents = read_questions(data, settings, families)
    prompts: dict[str, list[OrderPrompt]] = {}
    facts: list[Fact] = []
    for name in questions.names:
        own = questions.corpus[name]
        # Fewer prompts are some of more: see `spread`.
        examples = spread(own, min(settings.examples, settings.limit or settings.examples))
        prompts[name] = [
            OrderPrompt(fact.prompt, fact.fact_id, fact.completion, fact in examples)
            for fact in spread(own, settings.limit)
        ]
        facts += own
    has_train = "train" in questions.corpus.splits
    texts = questions.corpus.training_texts() if has_train else [fact.text for fact in facts]
    contents = digest_values([contents, *prompts.items(), *texts])
    return Prompts(prompts, facts, texts), source, contents


def _read_lines(path: Path, settings: OrderSettings) -> tuple[Prompts, str, str]:
    from unmask.base.identity import digest_values
    from unmask.evaluation.order import OrderPrompt

    if not path.is_file():
        raise UserError(f"{path} is not there: expected a text file with a prompt on every line.")
    lines = [line for line in path.read_text("utf-8").splitlines() if line.strip()]
    if not lines:
        raise UserError(f"{path} has no line of text: expected a prompt on every line.")
    prompts = [
        OrderPrompt(line, f"line-{i}", None, i <= settings.examples)
        for i, line in enumerate(lines[: settings.limit], start=1)
    ]
    return Prompts({LINES: prompts}, [], lines), str(path), digest_values(lines)


def _holds_documents(path: Path) -> bool:
    """Whether the file has a document on every line, which a file of facts has not."""
    from unmask.base.reading import read_json_lines
    from unmask.base.unpacking import strip_packing

    if not strip_packing(path.name).endswith(".jsonl") or not path.is_file():
        return False
    _, first = next(iter(read_json_lines(path)), (0, {}))
    return "text" in first and "subject" not in first


def _read_running_text(path: Path, settings: OrderSettings) -> tuple[Prompts, str, str]:
    """The beginnings of documents that go on for at least as long."""
    from unmask.base.identity import digest_values
    from unmask.data.text import read_documents
    from unmask.evaluation.order import OrderPrompt

    documents = list(islice(read_documents([path]), MOST_DOCUMENTS))
    split = [document.split() for document in documents]
    long = [words[: settings.words] for words in split if len(words) >= 2 * settings.words]
    if not long:
        raise UserError(
            f"{path} has no document of {2 * settings.words} words: give fewer by --words, or "
            "longer documents."
        )
    prompts = [
        OrderPrompt(" ".join(words), f"document-{i}", None, i <= settings.examples)
        for i, words in enumerate(long[: settings.limit], start=1)
    ]
    return Prompts({RUNNING: prompts}, [], documents), str(path), digest_values(documents)


def list_jobs(inputs: ModelInputs, settings: OrderSettings) -> Iterator[Job]:
    """One part for each checkpoint and split.

    Models that write from left to right have no order: only their examples are drawn, to stand
    beside those of the others.
    """
    from unmask.evaluation.order import watch_texts

    settings.check_strategies()
    if not any(family.paradigm.has_steps for family in inputs.families):
        raise UserError(
            "an autoregressive model writes from left to right, so its order is not measured: "
            "expected at least one diffusion model."
        )
    prepared: dict[str, tuple[int | None, Band]] = {}
    """The canvas of each checkpoint, and how frequent its tokens are."""

    def work(member: Member, split: str) -> Mapping[str, Rows]:
        model = inputs.load(member)
        if member.key not in prepared:
            prepared[member.key] = _prepare(model, inputs.data, settings.length)
        length, band = prepared[member.key]
        names = ("steps", "guidance", "plan", "order", "seed")
        chosen = {name: getattr(settings, name) for name in names} | {"length": length}
        prompts = inputs.data.by_split[split]
        if not member.family.paradigm.has_steps:
            prompts = [prompt for prompt in prompts if prompt.is_example]
            chosen |= {"guidance": 0.0}
        commits, texts = watch_texts(model, split, prompts, band, **chosen)
        tables = {
            "order": commits if member.family.paradigm.has_steps else [],
            "unmasking": texts,
        }
        return {name: [member.columns | row for row in rows] for name, rows in tables.items()}

    for member in inputs.members():
        for split in inputs.data.by_split:
            yield Job(f"{member.key}-{split}", partial(work, member, split))


def _prepare(model: "Model", prompts: Prompts, length: int | None) -> "tuple[int | None, Band]":
    """The canvas, and how frequent the model's tokens are."""
    from unmask.evaluation.order import rank_frequencies
    from unmask.evaluation.questions import choose_length, encode_facts, require_tokenizer

    tokenizer = require_tokenizer(model)
    if prompts.facts:
        length = choose_length(model, encode_facts(prompts.facts, tokenizer).values(), length)
    return length, rank_frequencies(tokenizer, prompts.texts)


def summarise(tables: Tables, settings: OrderSettings) -> Summary:
    """When kinds of tokens come, the order map, whether writing goes from left to right."""
    rows = tables["order"].to_pylist()
    return {
        "kinds": list(_estimate_kinds(rows)),
        "map": list(_count_steps(rows)),
        "differences": list(_compare_quarters(rows, settings.seed)),
        "classes": list(_compare_classes(rows, settings.seed)),
    }


def _estimate_kinds(rows: Rows) -> Iterator[dict[str, Any]]:
    """When each kind of token is committed, and with what confidence.

    Training seeds are pooled: a kind that one seed wrote about a fact another may not have written.
    """
    from unmask.evaluation.order import KINDS

    thirds = {"first_third": (0, 1 / 3), "second_third": (1 / 3, 2 / 3), "last_third": (2 / 3, 2)}
    timed = [
        {**row, "seed": 0}
        | {name: low <= row["when"] < high for name, (low, high) in thirds.items()}
        for row in rows
    ]
    metrics = ("when", *thirds, "confidence")
    for by, kinds in KINDS.items():
        means = estimate_means(timed, ("model", by), metrics, shares=metrics)
        for row in sorted(means, key=lambda row: kinds.index(row[by])):
            named = {"model": row["model"], "by": by, "token_kind": row[by]}
            values = {name: row[name] for name in ("metric", "mean", "low", "high", "facts")}
            yield named | {"tokens": row["prompts"]} | values


def _count_steps(rows: Rows) -> Iterator[dict[str, Any]]:
    """The share of texts that commit a position of the answer at a step."""
    last = {split: max(row["step"] for row in own)
            for split, own in tidy.group_by(rows, "split").items()}  # fmt: skip
    placed = []
    for text in tidy.group_by(rows, "model", "seed", "prompt").values():
        start = min(row["position"] for row in text)
        placed += [{**row, "place": row["position"] - start + 1} for row in text]
    for (model, split), own in tidy.group_by(placed, "model", "split").items():
        for place, tokens in sorted(tidy.group_by(own, "place").items()):
            counts = Counter(row["step"] for row in tokens)
            for step in range(1, last[split] + 1) if place <= MOST_POSITIONS else ():
                cell = {"model": model, "split": split, "place": place, "step": step}
                yield cell | {"share": counts[step] / len(tokens), "texts": len(tokens)}


def _compare_classes(rows: Rows, seed: int) -> Iterator[dict[str, Any]]:
    """How much later each class of words comes than the others that are not names, by fact."""
    from unmask.evaluation.order import FUNCTION, NAME, NUMBER, OTHER

    for (model, kind), own in tidy.group_by(rows, "model", "kind").items():
        others = tidy.select(own, word=OTHER)
        for word in (FUNCTION, NAME, NUMBER):
            if difference := compare_means(tidy.select(own, word=word), others, "when", seed):
                yield {"model": model, "kind": kind, "word": word} | vars(difference)


def judge(summary: Summary, settings: OrderSettings) -> Iterator[Verdict]:
    """Whether writing goes from left to right, and which classes of words come early or late."""
    yield from judge_differences(summary, settings)
    for row in summary["classes"]:
        claim = f"{row['model']}: {row['word']}"
        yield judge_interval(claim, tidy.to_interval(row), row["facts"])


def _compare_quarters(rows: Rows, seed: int) -> Iterator[dict[str, Any]]:
    """How much later the last quarter of an answer comes than its first, by fact."""
    for (model, kind), own in tidy.group_by(rows, "model", "kind").items():
        sides = (tidy.select(own, place=place) for place in ("last quarter", "first quarter"))
        if difference := compare_means(*sides, "when", seed):
            yield {"model": model, "kind": kind} | vars(difference)


MEASURE = Measure(
    name="order",
    title="How answers un-mask",
    help="Which tokens a diffusion model commits when: by kind of word, position and frequency.",
    settings=OrderSettings,
    tables={"order": "order/2", "unmasking": "unmasking/2"},
    inputs=ModelsAndData(
        read_prompts,
        "A corpus folder (this project's or Berglund's), a file of facts, a .txt file with a "
        "prompt on every line, or a .jsonl file (also .xz or .zst) with a document, its `text`, on "
        "every line; by default the corpus that a shipped model was trained on.",
    ),
    jobs=list_jobs,
    summarise=summarise,
    judge=judge,
    describe=describe,
    method=__doc__,
    stages=[
        Stage(
            sizes={
                "quick": {"limit": 2, "examples": 2, "steps": 4},
                "laptop": {"limit": 5, "examples": 5, "steps": 16},
                "full": {"limit": 30, "examples": 4, "steps": 16},
            },
        )
    ],
)
