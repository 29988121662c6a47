"""order: which tokens a diffusion model commits when, and texts that un-mask step by step.

Only tokens up to the first end of a text count. Times go from 0, the first step, to 1, the text's
last; intervals are 95 % intervals by fact, over all ways of asking and all training seeds. With the
plan smdm the filling after the answer is often committed first, so that all answers look late:
compare kinds with each other. Kinds of words are told by rule: a list of function words, digits,
capital letters inside a sentence (names), signs; the rest are other words.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.base.config import option
from unmask.base.errors import UserError
from unmask.blocks import blocks, labels, tidy
from unmask.measures.inputs import Member, ModelInputs, ModelsAndData, read_questions
from unmask.measures.measure import Described, Job, Measure, Rows, Stage
from unmask.measures.result import Result
from unmask.measures.settings import SamplingSettings
from unmask.results.comparison import MODEL, Comparison, Factor, Quantity
from unmask.results.summaries import Summary, Tables, add_outcome, compare_means

if TYPE_CHECKING:
    from unmask.evaluation.order import Band

MOST_POSITIONS = 24
"""Positions of an answer that the order map shows."""
GROUPS = {"word": "kind of word", "place": "position in the answer", "frequency": "frequency"}
THIRDS = ("first_third", "second_third", "last_third")
COMPARISON = Comparison(
    metrics={
        "when": Quantity("committed at, of all steps", "%", digits=0),
        **{name: Quantity(name.replace("_", " "), "%", digits=0) for name in THIRDS},
        "confidence": Quantity("confidence", "%", digits=0),
    },
    groups=(MODEL, Factor("by", "by", GROUPS)),
    variant=Factor("token_kind", "kind of token"),
    title="When each kind of token is committed",
    names=("kinds", "classes"),
    means="When kinds of tokens are committed",
)
WORDS = replace(
    COMPARISON,
    groups=(MODEL,),
    variant=Factor("word", "words"),
    compared=("when",),
    differences="When words are committed, compared with other words; + is later",
)


@dataclass(frozen=True, kw_only=True)
class OrderSettings(SamplingSettings):
    """How texts are drawn, and how many of them are kept token by token."""

    limit: int | None = option(40, "Prompts of each split, or of the file.", least=1)
    examples: int = option(2, "Texts of each split that are kept for the animation.", least=1)
    steps: int = option(16, "Denoising steps.", least=1, most=1_000_000)
    guidance: float = option(0.0, "Strength of guidance.", least=0)
    seed: int = option(0, "Seed of whatever is drawn.", least=0)
    words: int = option(16, "Of running text, how many words of a document are given.", least=1)


def read_prompts(data: Any, settings: OrderSettings, families: Any) -> tuple[Any, str, Any]:
    """The prompts of a corpus's splits, of facts, of a text file's lines or of running text."""
    from unmask.evaluation import order

    if isinstance(data, str | Path) and order.holds_texts(Path(data)):
        prompts = order.read_texts(Path(data), settings.words, settings.limit, settings.examples)
        return prompts, str(data), prompts.texts
    questions, source, contents = read_questions(data, settings, families)
    prompts = order.choose_order_prompts(questions.corpus, questions.splits, settings.examples)
    return prompts, source, [*contents, *prompts.by_split.items(), *prompts.texts]


def list_jobs(inputs: ModelInputs, settings: OrderSettings) -> Iterator[Job]:
    """One part for each checkpoint and split.

    Models that write from left to right have no order: only their examples are drawn, to stand
    beside those of the others.
    """
    from unmask.evaluation.order import rank_frequencies, watch_texts
    from unmask.evaluation.questions import choose_length, encode_facts, require_tokenizer

    settings.check_strategies()
    if not any(family.paradigm.has_steps for family in inputs.families):
        raise UserError(
            "an autoregressive model writes from left to right, so its order is not measured: "
            "expected at least one diffusion model."
        )
    prompts = inputs.data
    prepared: dict[str, tuple[int | None, Band]] = {}

    def work(member: Member, split: str) -> Mapping[str, Rows]:
        model, has_steps = inputs.load(member), member.family.paradigm.has_steps
        if member.key not in prepared:  # the canvas, and how frequent tokens are
            tokenizer, length = require_tokenizer(model), settings.length
            if prompts.facts:
                encoded = encode_facts(prompts.facts, tokenizer).values()
                length = choose_length(model, encoded, length)
            prepared[member.key] = length, rank_frequencies(tokenizer, prompts.texts)
        own = [each for each in prompts.by_split[split] if has_steps or each.is_example]
        names = ("steps", "plan", "order", "seed", *(["guidance"] if has_steps else []))
        chosen = {name: getattr(settings, name) for name in names}
        length, band = prepared[member.key]
        commits, texts = watch_texts(model, split, own, band, length=length, **chosen)
        tables = {"order": commits if has_steps else [], "unmasking": texts}
        return {name: [member.columns | row for row in rows] for name, rows in tables.items()}

    for member in inputs.members():
        for split in prompts.by_split:
            yield Job(f"{member.key}-{split}", partial(work, member, split))


def summarise(tables: Tables, settings: OrderSettings) -> Summary:
    """When kinds of tokens come, the order map, whether writing goes from left to right."""
    from unmask.evaluation.order import FUNCTION, NAME, NUMBER, OTHER, PLACES

    rows, seed = tables["order"].to_pylist(), settings.seed
    return {
        "kinds": [row | {"tokens": row["prompts"]} for row in COMPARISON.average([*_time(rows)])],
        "map": list(_count_steps(rows)),
        "differences": list(_compare(rows, "place", PLACES[-1], PLACES[0], seed)),
        "classes": [
            row | {"word": word, "minus": OTHER, "metric": "when"}
            for word in (FUNCTION, NAME, NUMBER)
            for row in _compare(rows, "word", word, OTHER, seed)
        ],
    }


def _time(rows: Rows) -> Iterator[dict[str, Any]]:
    """The tokens by each way of telling their kinds, with the third of the steps they come in.

    Training seeds are pooled: a kind that one seed wrote about a fact another may not have written.
    """
    from unmask.evaluation.order import KINDS

    for own, (by, kinds) in product(tidy.group_by(rows, "model").values(), KINDS.items()):
        for row in sorted(own, key=lambda row: kinds.index(row[by])):
            third = THIRDS[bisect_right((1 / 3, 2 / 3), row["when"])]
            thirds = {name: name == third for name in THIRDS}
            yield {**row, **thirds, "seed": 0, "by": by, "token_kind": row[by]}


def _count_steps(rows: Rows) -> Iterator[dict[str, Any]]:
    """The share of texts that commit a position of the answer at a step."""
    placed = []
    for text in tidy.group_by(rows, "model", "seed", "prompt").values():
        start = min(row["position"] for row in text)
        placed += [{**row, "place": row["position"] - start + 1} for row in text]
    for split, same in tidy.group_by(placed, "split").items():
        last = max(row["step"] for row in same)
        for (model, place), tokens in tidy.group_by(same, "model", "place").items():
            counts = Counter(row["step"] for row in tokens)
            for step in range(1, last + 1) if place <= MOST_POSITIONS else ():
                cell = {"model": model, "split": split, "place": place, "step": step}
                yield cell | {"share": counts[step] / len(tokens), "texts": len(tokens)}


def _compare(rows: Rows, column: str, one: str, other: str, seed: int) -> Iterator[dict[str, Any]]:
    """How much later some tokens of each model come than others, by fact."""
    for (model, kind), own in tidy.group_by(rows, "model", "kind").items():
        sides = (tidy.select(own, **{column: each}) for each in (one, other))
        if difference := compare_means(*sides, "when", seed, is_share=True):
            yield {"model": model, "kind": kind} | add_outcome(vars(difference))


def describe(result: Result) -> Sequence[Described]:
    """Texts for the first screen; a sentence for each model, the map, and kinds of tokens."""
    summary = result.summary
    return [
        blocks.FirstScreen(_animate(result.rows("unmasking"))),
        *map(_say_difference, summary["differences"]),
        tidy.draw_map(
            sorted(summary["map"], key=lambda row: row["place"]),
            "order-map",
            "Order map",
            "Writing from left to right would be a diagonal.",
            x="step",
            y=lambda row: f"token {row['place']}",
            ends=("share",),
            note=lambda row: labels.count(row["texts"], "text"),
            choose=[tidy.ASKED],
            xlabel="denoising step",
            ylabel="share of texts",
        ),
        replace(COMPARISON.draw(summary["kinds"], limits=(0, 100)), name="order"),
        COMPARISON.tabulate(summary["kinds"], tokens="tokens"),
        *([WORDS.tabulate_differences(summary["classes"])] if summary["classes"] else []),
    ]


def _say_difference(row: tidy.Record) -> blocks.Finding:
    gap = tidy.say_difference(row, "of the steps", "later", "earlier")
    text = f"{row['model']} commits the last quarter of an answer {gap} than its first"
    return blocks.Finding(f"{text} ({labels.count(row['facts'], 'fact')}).", row["outcome"])


def _animate(rows: Rows) -> blocks.Figure:
    """Texts of a fact asked both ways, a panel for each model.

    Those facts come first that show most: recalled by diffusion models both ways, and not by
    autoregressive ones.
    """
    texts = tidy.group_by(tidy.select(rows, seed=rows[0]["seed"]), "split", "fact", "model")
    by_split = tidy.group_by(rows, "split").items()
    facts = {split: tidy.distinct(own, "fact") for split, own in by_split}
    shown: Counter[str] = Counter()
    for (_, fact, _), (first, *_) in texts.items():
        shown[fact] += bool(first["hit"]) * (-1 if labels.is_causal(first["kind"]) else 2)
    splits, numbers = labels.order_splits(list(facts)), range(max(map(len, facts.values())))

    def fill(split: str, number: int) -> list[blocks.TextPanel]:
        chosen = sorted(facts[split], key=lambda fact: -shown[fact])[number : number + 1]
        return [
            _show_text(model, tokens)
            for way in (split, labels.turn_split(split))
            for (on, fact, model), tokens in texts.items()
            if on == way and fact in chosen
        ]

    return blocks.Figure(
        name="unmasking",
        title="One fact, asked both ways",
        caption="A diffusion model guesses all masks at each step and keeps the guesses it is "
        "surest of; an autoregressive one writes from left to right. Point at a token, or go to it "
        "by arrow keys, for what else it could be.",
        chart="unmasking",
        views=blocks.make_views([splits, numbers], fill),
        controls=[
            blocks.Control("asked", [labels.name_split(split) for split in splits]),
            blocks.Control("fact", [str(number + 1) for number in numbers]),
        ],
    )


def _show_text(model: str, tokens: Rows) -> blocks.TextPanel:
    """A text token by token, with what else stood to be written in each place."""
    first, tokens = tokens[0], sorted(tokens, key=lambda row: row["position"])
    guesses = [zip(row["guesses"] or (), row["guesses_p"] or (), strict=True) for row in tokens]
    return blocks.TextPanel(
        title=f"{model} ({labels.name_kind(first['kind'])})",
        pieces=["⏎" if row["is_end"] else row["piece"] for row in tokens],
        steps=[row["step"] for row in tokens],
        confidence=[row["confidence"] for row in tokens],
        expected=(first["completion"] or "").strip(),
        is_hit=bool(first["hit"]),
        way=labels.name_split(first["split"]),
        guesses=[[list(zip(*each, strict=True)) for each in steps] for steps in guesses],
        is_causal=labels.is_causal(first["kind"]),
    )


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
    describe=describe,
    method=__doc__,
    stages=[
        Stage(
            sizes={
                "quick": {"limit": 2, "steps": 4},
                "laptop": {"limit": 5, "examples": 5},
                "full": {"limit": 30, "examples": 4},
            },
        )
    ],
)
