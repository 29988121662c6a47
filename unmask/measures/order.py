"""order: which tokens a diffusion model commits when, and texts that un-mask step by step.

Only tokens up to the first end of a text count. Times go from 0, the first step, to 1, the text's
last; intervals are 95 % intervals by fact, over all ways of asking and all training seeds. With the
plan smdm the filling after the answer is often committed first, so that all answers look late:
compare kinds with each other.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.base.config import option
from unmask.base.errors import UserError
from unmask.blocks.tidy import group_by, select
from unmask.evaluation.statistics import compare
from unmask.measures.inputs import Member, ModelInputs, ModelsAndData, read_questions
from unmask.measures.measure import Job, Measure, Rows, Stage, Summary, Tables
from unmask.measures.order_section import describe_order
from unmask.measures.settings import SamplingSettings
from unmask.measures.summaries import estimate_means

if TYPE_CHECKING:
    from unmask.data.facts import Fact
    from unmask.evaluation.commits import Band
    from unmask.net.model import Model

LINES = "prompts"
"""The one split of a text file with a prompt on every line."""
MOST_POSITIONS = 24
"""Positions of an answer that the order map shows."""


@dataclass(frozen=True, kw_only=True)
class OrderSettings(SamplingSettings):
    """How texts are drawn, and how many of them are kept token by token."""

    limit: int | None = option(40, "Prompts of each split, or of the file.", least=1)
    examples: int = option(2, "Texts of each split that are kept for the animation.", least=1)
    steps: int = option(16, "Denoising steps.", least=1)
    guidance: float = option(0.0, "Strength of guidance.")
    seed: int = option(0, "Seed of whatever is drawn.", least=0)


@dataclass(frozen=True)
class Prompt:
    """A text to be continued; a line of a file has no answer."""

    text: str
    fact: str
    completion: str | None = None


@dataclass(frozen=True)
class Prompts:
    """Prompts by split, those that are kept token by token, and what they come from."""

    by_split: dict[str, list[Prompt]]
    examples: dict[str, list[Prompt]]
    """Some of those."""
    facts: "list[Fact]"
    """All facts of the splits: the canvas holds each of them."""
    texts: list[str]
    """They say how frequent tokens are: the training texts where the data have them."""


def read_prompts(data: Any, settings: OrderSettings, families: Any) -> tuple[Prompts, str, str]:
    """The prompts of a corpus's splits, of facts, or of a text file's lines."""
    from unmask.evaluation.questions import digest, spread

    if isinstance(data, str | Path) and Path(data).suffix == ".txt":
        return _read_lines(Path(data), settings)
    questions, source, contents = read_questions(data, settings, families)
    splits = {split.name: questions.corpus[split.name] for split in questions.splits}

    def choose(limit: int | None) -> dict[str, list[Prompt]]:
        return {
            name: [
                Prompt(fact.prompt, fact.fact_id, fact.completion) for fact in spread(facts, limit)
            ]
            for name, facts in splits.items()
        }

    facts = [fact for each in splits.values() for fact in each]
    has_train = "train" in questions.corpus.splits
    texts = questions.corpus.training_texts() if has_train else [fact.text for fact in facts]
    # Fewer prompts are some of more: see `spread`.
    most = settings.limit or settings.examples
    prompts, examples = choose(settings.limit), choose(min(settings.examples, most))
    parts = [item for each in (prompts, examples) for item in each.items()]
    return Prompts(prompts, examples, facts, texts), source, digest([contents, *parts, *texts])


def _read_lines(path: Path, settings: OrderSettings) -> tuple[Prompts, str, str]:
    from unmask.evaluation.questions import digest

    if not path.is_file():
        raise UserError(f"{path} is not there: expected a text file with a prompt on every line.")
    lines = [line for line in path.read_text("utf-8").splitlines() if line.strip()]
    if not lines:
        raise UserError(f"{path} has no line of text: expected a prompt on every line.")
    prompts = [Prompt(line, f"line-{i}") for i, line in enumerate(lines[: settings.limit], start=1)]
    examples = {LINES: prompts[: settings.examples]}
    return Prompts({LINES: prompts}, examples, [], lines), str(path), digest(lines)


def list_jobs(inputs: ModelInputs, settings: OrderSettings) -> Iterator[Job]:
    """One part for each checkpoint and split; models that write from left to right have none."""
    settings.check_strategies()
    if not any(family.paradigm.has_steps for family in inputs.families):
        raise UserError(
            "an autoregressive model writes from left to right, so its order is not measured: "
            "expected at least one diffusion model."
        )
    prepared: dict[str, tuple[Model, int | None, Band]] = {}
    """The checkpoint worked on last, its canvas and how frequent its tokens are."""

    def work(member: Member, split: str) -> Mapping[str, Rows]:
        if member.key not in prepared:
            prepared.clear()
            prepared[member.key] = _prepare(inputs.load(member), inputs.data, settings)
        tables = watch_split(*prepared[member.key], inputs.data, split, settings)
        return {
            name: [member.columns | {"split": split} | row for row in rows]
            for name, rows in tables.items()
        }

    for member in inputs.members():
        if member.family.paradigm.has_steps:
            for split in inputs.data.by_split:
                yield Job(f"{member.key}-{split}", partial(work, member, split))


def _prepare(
    model: "Model", prompts: Prompts, settings: OrderSettings
) -> "tuple[Model, int | None, Band]":
    """The model, its canvas, and how frequent its tokens are."""
    from unmask.evaluation.commits import rank_frequencies
    from unmask.evaluation.questions import choose_length, encode_facts, require_tokenizer

    tokenizer, length = require_tokenizer(model), settings.length
    if prompts.facts:
        encoded = encode_facts(prompts.facts, tokenizer)
        length = choose_length(model, list(encoded.values()), length)
    return model, length, rank_frequencies(tokenizer, prompts.texts)


def watch_split(
    model: "Model",
    length: int | None,
    band: "Band",
    prompts: Prompts,
    split: str,
    settings: OrderSettings,
) -> dict[str, list[dict[str, Any]]]:
    """Rows of every written token, and of every token of the examples."""
    from unmask.evaluation.commits import list_commits, list_tokens
    from unmask.evaluation.metrics import is_contained
    from unmask.evaluation.questions import require_tokenizer
    from unmask.sampling.texts import sample

    own, tokenizer = prompts.by_split[split], require_tokenizer(model)
    drawn = sample(
        model,
        [prompt.text for prompt in own],
        steps=settings.steps,
        guidance=settings.guidance,
        length=length,
        plan=settings.plan,
        order=settings.order,
        seed=settings.seed,
        keep_states=False,
    )
    commits, texts = [], []
    for i, prompt in enumerate(own):
        named = {"fact": prompt.fact, "prompt": f"{split} {i}"}
        commits += [named | row for row in list_commits(tokenizer, drawn, i, band)]
        if prompt in prompts.examples[split]:
            is_given, answer = drawn.committed_at[i] == 0, prompt.completion
            text = tokenizer.decode(drawn.tokens[i, int(is_given.sum()) :].tolist())
            hit = None if answer is None else is_contained(text, answer)
            asks = {"fact": prompt.fact, "prompt": prompt.text, "completion": answer}
            outcome = {"hit": hit, "steps": settings.steps}
            texts += [asks | outcome | row for row in list_tokens(tokenizer, drawn, i)]
    return {"order": commits, "unmasking": texts}


def summarise(tables: Tables, settings: OrderSettings) -> Summary:
    """When kinds of tokens come, the order map, whether writing goes from left to right."""
    rows = tables["order"].to_pylist()
    return {
        "kinds": list(_estimate_kinds(rows)),
        "map": list(_count_steps(rows)),
        "differences": list(_compare_quarters(rows, settings.seed)),
    }


def _estimate_kinds(rows: Rows) -> Iterator[dict[str, Any]]:
    """When each kind of token is committed, and with what confidence.

    Training seeds are pooled: a kind that one seed wrote about a fact another may not have written.
    """
    from unmask.evaluation.commits import KINDS

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
    last = max(row["step"] for row in rows)
    placed = []
    for text in group_by(rows, "model", "seed", "prompt").values():
        start = min(row["position"] for row in text)
        placed += [{**row, "place": row["position"] - start + 1} for row in text]
    for (model, split), own in group_by(placed, "model", "split").items():
        for place, tokens in sorted(group_by(own, "place").items()):
            counts = Counter(row["step"] for row in tokens)
            for step in range(1, last + 1) if place <= MOST_POSITIONS else ():
                cell = {"model": model, "split": split, "place": place, "step": step}
                yield cell | {"share": counts[step] / len(tokens), "texts": len(tokens)}


def _compare_quarters(rows: Rows, seed: int) -> Iterator[dict[str, Any]]:
    """How much later the last quarter of an answer comes than its first, by fact."""
    for (model, kind), own in group_by(rows, "model", "kind").items():
        sides = []
        for place in ("last quarter", "first quarter"):
            facts = group_by(select(own, place=place), "fact").items()
            sides.append(
                {fact: sum(t["when"] for t in texts) / len(texts) for fact, texts in facts}
            )
        if difference := compare(*sides, seed=seed):
            yield {"model": model, "kind": kind} | vars(difference)


MEASURE = Measure(
    name="order",
    title="How answers un-mask",
    help="Which tokens a diffusion model commits when: by kind of word, position and frequency.",
    settings=OrderSettings,
    tables={"order": "order/2", "unmasking": "unmasking/1"},
    inputs=ModelsAndData(
        read_prompts,
        "A corpus folder (this project's or Berglund's), a file of facts, or a .txt file with a "
        "prompt on every line; by default the corpus that a shipped model was trained on.",
    ),
    jobs=list_jobs,
    summarise=summarise,
    describe=describe_order,
    method=__doc__,
    stages=[
        Stage(
            models="diffusion",
            sizes={
                "quick": {"limit": 2, "examples": 1, "steps": 4},
                "laptop": {"limit": 5, "examples": 2, "steps": 16},
                "full": {"limit": 30, "examples": 4, "steps": 16},
            },
        )
    ],
)
