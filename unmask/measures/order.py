"""order: which tokens a diffusion model commits when, and texts that un-mask step by step.

Only tokens up to the first end of a text count. Times go from 0, the first step, to 1, the text's
last; intervals are 95 % intervals by fact, over all ways of asking and all training seeds. With the
plan smdm the filling after the answer is often committed first, so that all answers look late:
compare kinds with each other. Kinds of words are told by rule: a list of function words, digits,
capital letters inside a sentence (names), signs; the rest are other words.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
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
    from unmask.data.facts import Fact
    from unmask.evaluation.order import Band, OrderPrompt

MOST_DOCUMENTS = 2_000
"""Documents that say how frequent tokens are."""
MOST_POSITIONS = 24
"""Positions of an answer that the order map shows."""
GROUPS = {"word": "kind of word", "place": "position in the answer", "frequency": "frequency"}
THIRDS = {"first_third": (0, 1 / 3), "second_third": (1 / 3, 2 / 3), "last_third": (2 / 3, 2)}
COMPARISON = Comparison(
    metrics={
        "when": Quantity("committed at, of all steps", "%", digits=0),
        "first_third": Quantity("first third of steps", "%", digits=0),
        "second_third": Quantity("second third", "%", digits=0),
        "last_third": Quantity("last third", "%", digits=0),
        "confidence": Quantity("confidence", "%", digits=0),
    },
    groups=(MODEL, Factor("by", "by", GROUPS)),
    variant=Factor("token_kind", "kind of token"),
    title="When each kind of token is committed",
    caption="0 % is the first step, 100 % the last. Bars are 95 % intervals by fact.",
    means="When kinds of tokens are committed",
)
WORDS = replace(
    COMPARISON,
    groups=(MODEL,),
    variant=Factor("word", "words"),
    compared=("when",),
    differences="When words are committed, compared with other words (neither function words nor "
    "names); + is later",
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

    if isinstance(data, str | Path) and _holds_texts(Path(data)):
        return _read_texts(Path(data), settings)
    questions, source, contents = read_questions(data, settings, families)
    corpus, facts = (
        questions.corpus,
        [fact for name in questions.names for fact in questions.corpus[name]],
    )
    prompts: dict[str, list[OrderPrompt]] = {}
    for name in questions.names:
        # Fewer prompts are some of more: see `spread`.
        examples = spread(corpus[name], min(settings.examples, settings.limit or settings.examples))
        prompts[name] = [
            OrderPrompt(fact.prompt, fact.fact_id, fact.completion, fact in examples)
            for fact in spread(corpus[name], settings.limit)
        ]
    has_train = "train" in corpus.splits
    texts = corpus.training_texts() if has_train else [fact.text for fact in facts]
    contents = digest_values([contents, *prompts.items(), *texts])
    return Prompts(prompts, facts, texts), source, contents


def _holds_texts(path: Path) -> bool:
    """Whether a file has a prompt or a document on every line, which a file of facts has not."""
    from unmask.base.reading import read_json_lines
    from unmask.base.unpacking import strip_packing

    if not strip_packing(path.name).endswith(".jsonl") or not path.is_file():
        return path.suffix == ".txt"
    _, first = next(iter(read_json_lines(path)), (0, {}))
    return "text" in first and "subject" not in first


def _read_texts(path: Path, settings: OrderSettings) -> tuple[Prompts, str, str]:
    """Lines as prompts, or the beginnings of documents that go on for at least as long."""
    from unmask.base.identity import digest_values
    from unmask.base.reading import read_text
    from unmask.data.text import read_documents
    from unmask.evaluation.order import OrderPrompt

    if path.suffix == ".txt":
        texts = starts = [line for line in read_text(path).splitlines() if line.strip()]
        split, noun, wanted = "prompts", "line", "line of text: expected a prompt on every line"
    else:
        texts = list(islice(read_documents([path]), MOST_DOCUMENTS))
        words, least = [text.split() for text in texts], 2 * settings.words
        starts = [" ".join(each[: settings.words]) for each in words if len(each) >= least]
        split, noun = "running_text", "document"
        wanted = f"document of {least} words: give fewer by --words, or longer documents"
    if not starts:
        raise UserError(f"{path} has no {wanted}.")
    prompts = [
        OrderPrompt(start, f"{noun}-{i}", None, i <= settings.examples)
        for i, start in enumerate(starts[: settings.limit], start=1)
    ]
    return Prompts({split: prompts}, [], texts), str(path), digest_values(texts)


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
    prompts: Prompts = inputs.data
    names = ("steps", "guidance", "plan", "order", "seed")
    chosen = {name: getattr(settings, name) for name in names}
    prepared: dict[str, tuple[int | None, Band]] = {}
    """The canvas of each checkpoint, and how frequent its tokens are."""

    def work(member: Member, split: str) -> Mapping[str, Rows]:
        model, own, how = inputs.load(member), prompts.by_split[split], dict(chosen)
        if member.key not in prepared:
            tokenizer, length = require_tokenizer(model), settings.length
            if prompts.facts:
                encoded = encode_facts(prompts.facts, tokenizer).values()
                length = choose_length(model, encoded, length)
            prepared[member.key] = length, rank_frequencies(tokenizer, prompts.texts)
        if not member.family.paradigm.has_steps:
            own, how = [prompt for prompt in own if prompt.is_example], how | {"guidance": 0.0}
        length, band = prepared[member.key]
        commits, texts = watch_texts(model, split, own, band, length=length, **how)
        tables = {"order": commits if member.family.paradigm.has_steps else [], "unmasking": texts}
        return {name: [member.columns | row for row in rows] for name, rows in tables.items()}

    for member in inputs.members():
        for split in prompts.by_split:
            yield Job(f"{member.key}-{split}", partial(work, member, split))


def summarise(tables: Tables, settings: OrderSettings) -> Summary:
    """When kinds of tokens come, the order map, whether writing goes from left to right."""
    from unmask.evaluation.order import FUNCTION, NAME, NUMBER, OTHER

    rows, seed = tables["order"].to_pylist(), settings.seed
    quarters = {"place": "last quarter"}, {"place": "first quarter"}
    return {
        "kinds": [
            row | {"tokens": row["prompts"]} for row in COMPARISON.average(list(_time(rows)))
        ],
        "map": list(_count_steps(rows)),
        "differences": list(_compare(rows, *quarters, seed)),
        "classes": [
            row | {"word": word, "minus": OTHER, "metric": "when"}
            for word in (FUNCTION, NAME, NUMBER)
            for row in _compare(rows, {"word": word}, {"word": OTHER}, seed)
        ],
    }


def _time(rows: Rows) -> Iterator[dict[str, Any]]:
    """The tokens by each way of telling their kinds, with the third of the steps they come in.

    Training seeds are pooled: a kind that one seed wrote about a fact another may not have written.
    """
    from unmask.evaluation.order import KINDS

    for own in tidy.group_by(rows, "model").values():
        for by, kinds in KINDS.items():
            for row in sorted(own, key=lambda row: kinds.index(row[by])):
                thirds = {name: low <= row["when"] < high for name, (low, high) in THIRDS.items()}
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


def _compare(
    rows: Rows, which: Mapping[str, str], others: Mapping[str, str], seed: int
) -> Iterator[dict[str, Any]]:
    """How much later some tokens of each model come than others, by fact."""
    for (model, kind), own in tidy.group_by(rows, "model", "kind").items():
        sides = (tidy.select(own, **values) for values in (which, others))
        if difference := compare_means(*sides, "when", seed):
            yield {"model": model, "kind": kind} | add_outcome(vars(difference))


def describe(result: Result) -> Sequence[Described]:
    """Texts for the first screen; a sentence for each model, the map, and kinds of tokens."""
    summary = result.summary
    return [
        blocks.FirstScreen(_animate(result.rows("unmasking"))),
        *(
            blocks.Finding(
                f"{row['model']} ({labels.KINDS[row['kind']]}) commits the last quarter of an "
                f"answer {tidy.say_difference(row, 'of the steps', 'later', 'earlier')} than its "
                f"first ({labels.count(row['facts'], 'fact')}).",
                row["outcome"],
            )
            for row in summary["differences"]
        ),
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
        replace(COMPARISON.tabulate(summary["kinds"], tokens="tokens"), name="kinds"),
        *([WORDS.tabulate_differences(summary["classes"])] if summary["classes"] else []),
    ]


def _animate(rows: Rows) -> blocks.Figure:
    """Texts of a fact asked both ways, a panel for each model; a long answer in reverse is first.

    Of each way of asking those facts come first that show most: recalled by diffusion models both
    ways, and not by autoregressive ones.
    """
    texts = tidy.group_by(tidy.select(rows, seed=rows[0]["seed"]), "split", "fact", "model")
    facts = {split: tidy.distinct(own, "fact") for split, own in
             tidy.group_by(rows, "split").items()}  # fmt: skip
    longest = {split: len(tokens[0]["completion"] or "") for (split, *_), tokens in texts.items()}
    splits = labels.order_splits(list(facts))
    splits.sort(key=lambda split: (not labels.is_reversed(split), -longest[split]))
    shown = dict.fromkeys((fact for own in facts.values() for fact in own), 0)
    for (_, fact, _), (first, *_) in texts.items():
        shown[fact] += bool(first["hit"]) * (-1 if labels.is_causal(first["kind"]) else 2)
    for own in facts.values():
        own.sort(key=lambda fact: -shown[fact])
    numbers = range(max(map(len, facts.values())))

    def fill(split: str, number: int) -> list[blocks.TextPanel]:
        chosen = facts[split][number : number + 1]
        ways = [split, labels.turn_split(split)]
        panels = [
            _show_text(model, tokens)
            for way in ways
            for (on, fact, model), tokens in texts.items()
            if on == way and fact in chosen
        ]
        is_both = len({panel.way for panel in panels}) > 1
        return panels if is_both else [replace(panel, way="") for panel in panels]

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
    first, tokens = tokens[0], sorted(tokens, key=lambda row: row["position"])
    return blocks.TextPanel(
        title=f"{model} ({labels.KINDS[first['kind']]})",
        pieces=["⏎" if row["is_end"] else row["piece"] for row in tokens],
        steps=[row["step"] for row in tokens],
        confidence=[row["confidence"] for row in tokens],
        expected=(first["completion"] or "").strip(),
        is_hit=bool(first["hit"]),
        way=labels.name_split(first["split"]),
        guesses=[_pair_guesses(row) for row in tokens],
        is_causal=labels.is_causal(first["kind"]),
    )


def _pair_guesses(row: Mapping[str, Any]) -> list[list[tuple[str, float]]]:
    """What stood to be written in a token's place, step by step."""
    steps = zip(row["guesses"] or (), row["guesses_p"] or (), strict=True)
    return [list(zip(pieces, p, strict=True)) for pieces, p in steps]


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
                "quick": {"limit": 2, "examples": 2, "steps": 4},
                "laptop": {"limit": 5, "examples": 5, "steps": 16},
                "full": {"limit": 30, "examples": 4, "steps": 16},
            },
        )
    ],
)
