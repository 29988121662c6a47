"""parallel: what is lost by committing several tokens in one step, by sampler?

A step chooses each of its tokens from its own prediction, as if they were independent. The model
has a joint law of them too, by the chain rule: one token after the other, from left to right, each
shown to the next. At every state that a sampler visits, for the positions that it commits there:

Correlation: the conditional total correlation, KL(joint || product of the predictions), summed over
the steps of a text. It is 0 where a step's tokens say nothing about each other. Where the text so
far decides which positions come next, its mean over texts of the model's law is KL(model's law ||
law of the sampler's texts). Each step's value is estimated from one text of the joint law. Gap: log
p of the tokens that were written, as a product minus by the chain rule; above 0 they look likelier
apart than they are together. Staleness: summed KL(prediction || what the sampler took for it),
which a cache that approximates adds; without one it is rounding. Nothing here is about how right
the model is: recall stands beside it.

The rule is tried on random laws of short texts, whose joint laws are known: there each step's
correlation is held against the true one, computed from a table of all texts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from unmask.base.config import option
from unmask.base.errors import UserError
from unmask.blocks import tidy
from unmask.blocks.blocks import Figure, ReportBlock, Text
from unmask.measures.inputs import QUESTIONS, Member, ModelInputs
from unmask.measures.measure import Job, Measure, Rows, Summary, Tables
from unmask.measures.result import Result
from unmask.measures.settings import QuestionSettings
from unmask.results.comparison import ASKED, MODEL, Comparison, Factor, Quantity

if TYPE_CHECKING:
    from unmask.evaluation.parallel import Commit, CommitCost
    from unmask.net.model import Model

ONE = "one token a step"
FAMILIES = ("steps", "threshold", "blocks", "blocks, approximate cache")
CACHES = ("none", "exact", "approximate")


@dataclass(frozen=True, kw_only=True)
class ParallelSettings(QuestionSettings):
    """Which samplers are compared, on how many texts."""

    filled = ("steps",)

    limit: int | None = option(10, "Prompts of each split.", least=1)
    steps: tuple[int, ...] = option((1, 2, 4, 8, 16), "Denoising steps.", least=1, most=1_000_000)
    thresholds: tuple[float, ...] = option(
        (0.9, 0.5), "Confidence from which a step commits a token.", above=0, most=1
    )
    blocks: tuple[int, ...] = option(
        (8,), "Positions of a block, filled from left to right by the first threshold.", least=1
    )
    caches: tuple[str, ...] = option(
        ("none", "approximate"), "Caches of the blocks.", choices=lambda: CACHES
    )
    plan: str = option(
        "smdm", "How many tokens each of the steps commits: smdm, llada, linear or cosine."
    )
    order: str = option(
        "confidence", "Which tokens go first: confidence, entropy, margin, left or random."
    )
    temperature: float = option(0.0, "Temperature; 0 takes the likeliest tokens.", least=0)
    draws: int = option(1, "Texts of the joint law by which a step is judged.", least=1, most=1000)
    languages: int = option(6, "Random laws that the rule is tried on.", least=1, most=1000)
    seed: int = option(0, "Seed of texts and laws.", least=0)

    def _problems(self) -> Iterator[str]:
        from unmask.sampling.orders import get_order
        from unmask.sampling.plans import get_plan

        try:
            get_order(self.order)
            paces_itself = get_plan(self.plan).paces_itself
        except UserError as error:
            yield str(error).removesuffix(".")
            return
        if paces_itself:
            yield f"'plan' is {self.plan}, expected one that takes a number of steps"


@dataclass(frozen=True, kw_only=True)
class CommitWay:
    """A sampler: how many tokens its steps commit, and what they see."""

    name: str
    family: str
    plan: str
    steps: int = 16
    block: int | None = None
    cache: str = "none"

    @property
    def sampling(self) -> dict[str, Any]:
        names = ("plan", "steps", "block", "cache")
        return {name: getattr(self, name) for name in names}


def list_commit_ways(settings: ParallelSettings) -> list[CommitWay]:
    """One token a step, which costs nothing, and then all that are compared with it."""
    ways = [CommitWay(name=ONE, family=FAMILIES[0], plan="one")]
    for steps in sorted(set(settings.steps)):
        name = f"{steps} step{'s' * (steps > 1)}"
        ways.append(CommitWay(name=name, family=FAMILIES[0], plan=settings.plan, steps=steps))
    plans = [f"threshold={threshold:g}" for threshold in settings.thresholds]
    for plan in plans:
        ways.append(CommitWay(name=plan.replace("=", " "), family=FAMILIES[1], plan=plan))
    first = plans[0] if plans else "one"
    for block in settings.blocks:
        for cache in settings.caches:
            name = f"{first.replace('=', ' ')}, blocks of {block}"
            name += f", {cache} cache" if cache != "none" else ""
            family = FAMILIES[3 if cache == "approximate" else 2]
            way = CommitWay(name=name, family=family, plan=first, block=block, cache=cache)
            ways.append(way)
    return list({way.name: way for way in ways}.values())


def list_jobs(inputs: ModelInputs, settings: ParallelSettings) -> Iterator[Job]:
    """One part for each law, and for each checkpoint and sampler."""
    for family in inputs.families:
        if not family.paradigm.fills_masks:
            raise UserError(
                f"{family.name} is a {family.kind} model: only masked models commit several tokens "
                "of a step at once; leave it out."
            )
    for number in range(settings.languages):
        yield Job(f"language-{number}", partial(_try_law, number, settings))
    for member in inputs.members():
        for way in list_commit_ways(settings):
            work = partial(_ask, inputs, member, way, settings)
            yield Job(f"{member.key}-{way.name.replace(' ', '-').replace(',', '')}", work)


def _ask(
    inputs: ModelInputs, member: Member, way: CommitWay, settings: ParallelSettings
) -> Mapping[str, Rows]:
    """A row for each text of a sampler."""
    from unmask.evaluation.metrics import is_contained

    model = inputs.load(member)
    encoded = list(inputs.data.encode(model, settings.length))
    prompts = [ids[:start] for _, _, ids, start, _ in encoded]
    texts, costs = _commit(model, prompts, way, settings, encoded[0][-1], settings.draws)
    rows = []
    for text, prompt, own, (columns, fact, *_) in zip(texts, prompts, costs, encoded, strict=True):
        written = model.require_tokenizer().decode(text[len(prompt) :])
        hit = is_contained(written, fact.completion)
        rows.append(member.columns | columns | _name(way) | _add_up(own) | {"hit": hit})
    return {"parallel": rows}


def _try_law(number: int, settings: ParallelSettings) -> Mapping[str, Rows]:
    """What the rule gives on a law of short texts, beside what is true there."""
    from unmask.base.seeds import derive_seed
    from unmask.experiments.correctors.laws import ExactModel, SmallLanguage

    law = SmallLanguage(seed=derive_seed(settings.seed, "language", number) % 2**31)
    model, rows = ExactModel.make(law), []
    few = replace(settings, steps=(1, 2, 3), blocks=(2,), caches=("none", "exact"))
    for way in list_commit_ways(few):
        drawn = replace(few, temperature=1.0)
        _, costs = _commit(model, [[]] * TEXTS, way, drawn, law.length, None)
        pairs = [(cost, find_true_correlation(law, own)) for each in costs for own, cost in each]
        rows.append(
            {"fact": f"language-{number}", "seed": 0}
            | _name(way)
            | {"correlation": sum(cost.correlation for cost, _ in pairs) / TEXTS}
            | {"truth": sum(true for _, true in pairs) / TEXTS}
            | {"error": max(abs(cost.correlation - true) for cost, true in pairs)}
        )
    return {"laws": rows}


TEXTS = 16
"""Texts that are drawn from a law."""


def _commit(
    model: "Model",
    prompts: list[list[int]],
    way: CommitWay,
    settings: ParallelSettings,
    length: int,
    draws: int | None,
) -> "tuple[list[list[int]], list[list[tuple[Commit, CommitCost]]]]":
    """The rows that were written, and what each of them committed at what cost."""
    from unmask.evaluation.parallel import find_commit_costs, watch_commits

    drawn = {"temperature": settings.temperature, "seed": settings.seed, "length": length}
    drawn |= {"keep_states": False} | way.sampling
    texts, commits = watch_commits(model, prompts, settings.order, **drawn)
    costs: list[list[tuple[Commit, CommitCost]]] = [[] for _ in prompts]
    scored = find_commit_costs(model, commits, draws, settings.seed)
    for commit, cost in zip(commits, scored, strict=True):
        costs[commit.text].append((commit, cost))
    return texts, costs


def find_true_correlation(law: Any, commit: "Commit") -> float:
    """The conditional total correlation of a commit under a law that is a table of all texts."""
    import torch

    from unmask.sampling.state import find_entropy

    joint = law.find_joint(torch.tensor(commit.before), commit.positions)
    whole = float(find_entropy(joint.flatten().log()))
    axes = range(joint.ndim)
    parts = (joint.sum([d for d in axes if d != i]) if joint.ndim > 1 else joint for i in axes)
    return sum(float(find_entropy(part.log())) for part in parts) - whole


def _name(way: CommitWay) -> dict[str, Any]:
    return {"sampler": way.name, "family": way.family}


def _add_up(costs: "Sequence[tuple[Commit, CommitCost]]") -> dict[str, float]:
    """The sums over a text's steps."""
    tokens, steps = sum(len(commit.tokens) for commit, _ in costs), len(costs)
    names = ("correlation", "gap", "staleness")
    sums = {name: sum(getattr(cost, name) for _, cost in costs) for name in names}
    return sums | {"calls": steps, "tokens": tokens, "rate": tokens / max(1, steps)}


COMPARISON = Comparison(
    metrics={
        "hit": Quantity("recalled", "%"),
        "calls": Quantity("steps that write", digits=1, least=0.0),
        "rate": Quantity("tokens per step", digits=1, least=0.0),
        "correlation": Quantity("correlation, nats", least=0.0),
        "gap": Quantity("gap, nats", has_sign=True),
        "staleness": Quantity("staleness, nats", digits=3, least=0.0),
    },
    groups=(MODEL, ASKED),
    variant=Factor("sampler", "sampler"),
    against=lambda names: [(name, ONE) for name in names if name != ONE],
    compared=("hit",),
    title="What a sampler loses for each text, by the steps that it takes",
    caption="Means of texts, by the steps that wrote a token. Bands are 95 % intervals by fact.",
    means="What each sampler takes and loses for each text",
    differences=f"Recall of each sampler minus that of {ONE}",
    most=60,
)
LAWS = Comparison(
    metrics={
        "correlation": Quantity("correlation found", digits=6),
        "truth": Quantity("true correlation", digits=6),
        "error": Quantity("largest difference of a step", is_short=True, least=0.0),
    },
    groups=(),
    variant=Factor("sampler", "sampler"),
    counted="laws",
    names=("laws", ""),
    title="Laws that are known",
    means="On random laws of texts of four tokens, nats for each text",
)
SHOWN = {"correlation": "correlation, nats", "hit": "recalled, %", "gap": "gap, nats"}


def summarise(tables: Tables, settings: ParallelSettings) -> Summary:
    """Means by sampler, what recall it loses, and the rule beside the truth where that is known."""
    rows, laws = tables["parallel"].to_pylist(), tables["laws"].to_pylist()
    worst = max((row["error"] for row in laws), default=0.0)
    return COMPARISON.summarise(rows) | {
        "laws": LAWS.average(laws),
        "worst": [{"error": worst, "laws": len({row["fact"] for row in laws})}],
    }


def describe(result: Result) -> Sequence[ReportBlock]:
    """Whether the rule holds where the truth is known; what samplers lose; figure and tables."""
    summary = result.summary
    means, ((worst),) = summary["means"], summary["worst"]
    checked = Text(
        f"On {worst['laws']} laws that are known, the correlation of a step is at most "
        f"{worst['error']:.1e} nats from the true one."
    )
    return [
        *COMPARISON.state(_keep_told(summary)),
        checked,
        _draw(means, result.rows("parallel")),
        COMPARISON.tabulate(means),
        COMPARISON.tabulate_differences(summary["differences"]),
        LAWS.tabulate(summary["laws"]),
    ]


def _keep_told(summary: Summary) -> Summary:
    """The summary with the differences that have a sentence: of the fewest steps and thresholds,
    asked in the way in which each model loses most by the fewest steps."""
    kept: list[tidy.Record] = []
    for own in tidy.group_by(summary["differences"], "model").values():
        names = tidy.distinct(own, "sampler")
        worst = min(tidy.select(own, sampler=names[0]), key=lambda row: row["mean"])
        named = [*names[:1], *(name for name in names if name.startswith("threshold"))]
        for row in tidy.select(own, split=worst["split"]):
            kept += [row] * (row["sampler"] in named)
    return {**summary, "differences": kept}


def _draw(means: Rows, rows: Rows) -> Figure:
    """What is lost against the steps that write; a line for each family of samplers."""
    families = dict(tidy.distinct(rows, "sampler", "family"))
    key = ("model", "split", "sampler")
    calls = {
        tuple(row[name] for name in key): row["mean"] for row in tidy.select(means, metric="calls")
    }
    points = [
        {**row}
        | {end: (100 if row["metric"] == "hit" else 1) * row[end] for end in tidy.ENDS}
        | {"calls": calls[tuple(row[name] for name in key)], "family": families[row["sampler"]]}
        for name in SHOWN
        for row in tidy.select(means, metric=name)
    ]
    return tidy.draw_lines(
        points,
        "parallel",
        COMPARISON.title,
        COMPARISON.caption,
        x="calls",
        line="family",
        colour=lambda row: f"p{FAMILIES.index(row['family'])}",
        choose=[tidy.ASKED, tidy.Choose("shown", "metric", lambda name: SHOWN[name])],
        xlabel="steps that write",
        ylabel="for each text",
    )


MEASURE = Measure(
    name="parallel",
    title="What committing tokens together costs",
    help="What committing several tokens in a step loses, by plan, threshold, block and cache.",
    settings=ParallelSettings,
    tables={"parallel": "parallel/1", "laws": "laws/1"},
    inputs=QUESTIONS,
    jobs=list_jobs,
    summarise=summarise,
    describe=describe,
    method=__doc__,
)
