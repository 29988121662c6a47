"""erasure: is a question still answered when fact identity is erased from its subject's states, by
an eraser fitted to the same direction or to the other one?

An eraser is a linear map that removes what tells facts apart: least-squares concept erasure (LEACE;
Belrose et al. 2023, arXiv 2306.03819) of the label "which fact". It is fitted to subject states of
one direction, in phrasings and after prefixes that are not asked, with a shrunk covariance. It is
applied to all subject tokens of the questions, after every layer from a first one up; layer -1 is
the residual stream before layer 0. Own direction: fitted to the direction that is asked; this shows
whether erasing works at all. Other direction: fitted to the other one. Where the network reads a
fact from what both directions share, the other direction's eraser removes the answer, too.

Each eraser has two controls: one fitted to permuted labels, which has the same rank, and random
subspaces of the same rank that remove as much variance from the states they are applied to. An
answer is right where each token is the likeliest one, those before it given, so that greedy
decoding writes it. Shares and log p have 95 % intervals by fact and training seed; differences are
paired by fact. Where the own direction's eraser removes no more answers than a random subspace,
linear erasure does not reach what the network reads, and nothing follows from the other one's.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from unmask.base.config import option
from unmask.base.errors import UserError
from unmask.blocks import blocks, labels, tidy
from unmask.evaluation.statistics import estimate_difference
from unmask.measures.inputs import QUESTIONS, Member, ModelInputs, find_corpus
from unmask.measures.measure import Job, Measure, Rows, Summary, Tables, judge_interval
from unmask.measures.result import Result
from unmask.measures.settings import GroupSettings
from unmask.measures.summaries import cluster_rows, estimate_means

if TYPE_CHECKING:
    from unmask.data.facts import Fact

METRICS = {
    "says": blocks.Column("answers right, %", 1, is_percent=True),
    "logp_token": blocks.Column("log p of the answer per token, nats"),
}
SHARES = ("says",)
NOTHING = "none"
"""The eraser of rows in which nothing is erased."""
ERASERS = {
    NOTHING: "nothing erased",
    "fact": "fact identity",
    "permuted": "permuted labels",
    "random": "random subspace",
}
SOURCES = {"own": "own direction", "other": "other direction"}
GROUP = ("model", "kind", "split")


@dataclass(frozen=True, kw_only=True)
class ErasureSettings(GroupSettings):
    """Which facts are asked, what erasers are fitted to, and where they act."""

    facts: int = option(30, "Facts of each group.", least=2)
    phrasings: int = option(
        2, "Phrasings of each fact that are asked; erasers are fitted to all others.", least=1
    )
    states: int = option(
        2000,
        "Least number of states to fit to in each direction; prompts are repeated after "
        "different prefixes until there are as many.",
        least=4,
    )
    tokens: Literal["last", "all"] = option(
        "all", "Which states erasers are fitted to: the last subject token's, or all of them."
    )
    starts: tuple[int, ...] = option(
        (),
        "First layers to erase after, one at a time; all layers above are erased, too. -1 is the "
        "embeddings; by default -1, 0 and the middle layer.",
        least=-1,
    )
    shrinkage: float | None = option(
        None,
        "Shrinkage of the covariance towards a multiple of the identity, from 0 (none) to 1; by "
        "default Ledoit and Wolf's estimate.",
        least=0,
        most=1,
    )
    draws: int = option(3, "Draws of each control, labels and subspaces.", least=1, most=1000)
    seed: int = option(0, "Seed of prefixes and controls.", least=0)


@dataclass(frozen=True)
class GroupPrompts:
    """The prompts of one group by direction: those fitted to, and those asked with their split."""

    fitted: "dict[str, list[Fact]]"
    questions: "dict[str, list[Fact]]"
    splits: dict[str, str]


def _read(
    data: Any, settings: ErasureSettings, families: Any
) -> tuple[dict[str, GroupPrompts], str, str]:
    from unmask.base.identity import digest_values

    corpus = find_corpus(data, families)
    groups = choose_prompts(corpus, settings)
    contents = [
        facts
        for each in groups.values()
        for facts in (*each.fitted.values(), *each.questions.values())
    ]
    return groups, corpus.source, digest_values(contents)


def choose_prompts(corpus: Any, settings: ErasureSettings) -> dict[str, GroupPrompts]:
    """By group, the first phrasings of the tests as questions, and all others to fit to.

    Prompts of the training set are left out: they are of one direction. Validation splits are in.
    """
    from unmask.data.corpus import FAR
    from unmask.representation.extraction import find_groups
    from unmask.tracing.facts import choose_facts

    groups = {}
    for group, splits in find_groups(corpus, settings.groups).items():
        fitted: dict[str, list[Fact]] = {}
        questions: dict[str, list[Fact]] = {}
        named: dict[str, str] = {}
        for split in splits:
            more = [split + end for end in ("", FAR, "_valid", f"{FAR}_valid")]
            pool = [fact for name in more for fact in corpus.splits.get(name, [])]
            ways = list(dict.fromkeys(fact.direction for fact in corpus[split]))
            for way in ways:
                prompts = [fact for fact in corpus[split] if fact.direction == way]
                questions[way] = choose_facts(prompts, settings.facts, settings.phrasings)
                people = {fact.fact_id for fact in questions[way]}
                texts = {fact.prompt for fact in questions[way]}
                fitted[way] = [
                    fact
                    for fact in pool
                    if fact.direction == way and fact.fact_id in people and fact.prompt not in texts
                ]
                named[way] = split if len(ways) == 1 else f"{split}_{way}"
        few = [way for way, facts in fitted.items() if len({fact.fact_id for fact in facts}) < 2]
        if len(questions) < 2 or few:
            raise UserError(
                f"the facts {group} of {corpus.source} have no prompts left to fit to in "
                f"{' and '.join(few) or 'one direction'}: expected at least two facts, asked both "
                "ways in more phrasings than --phrasings; ask fewer of them, or give more."
            )
        groups[group] = GroupPrompts(fitted, questions, named)
    return groups


def list_jobs(inputs: ModelInputs, settings: ErasureSettings) -> Iterator[Job]:
    """One part for each checkpoint and group: its erasers are fitted once for both directions."""

    def work(member: Member, group: str) -> Mapping[str, Rows]:
        from unmask.representation.erasure import compare_erasers
        from unmask.representation.prompts import make_prefixes

        model, prompts = inputs.load(member), inputs.data[group]
        fewest = min(map(len, prompts.fitted.values()))
        prefixes = make_prefixes(model, -(-settings.states // fewest), settings.seed)
        middle = model.net.config.layers // 2
        rows = compare_erasers(
            model,
            prompts.fitted,
            prompts.questions,
            prefixes,
            settings.starts or tuple(dict.fromkeys((-1, 0, middle))),
            settings.tokens,
            settings.shrinkage,
            settings.length,
            settings.seed,
            settings.draws,
        )
        trained = {way: facts[0].trained for way, facts in prompts.questions.items()}
        keys = member.columns | {"group": group}
        return {
            "erasure": [
                keys
                | {"split": prompts.splits[row["direction"]], "trained": trained[row["direction"]]}
                | row
                for row in rows
            ]
        }

    for member in inputs.members():
        for group in inputs.data:
            yield Job(f"{member.key}-{group}", partial(work, member, group))


def summarise(tables: Tables, settings: ErasureSettings) -> Summary:
    """Means by eraser, and what each eraser takes beyond its controls."""
    rows = [
        row
        | {"logp_token": row["logp"] / row["tokens"]}
        | {"source": row["fitted"] and ("own" if row["fitted"] == row["direction"] else "other")}
        for row in tables["erasure"].to_pylist()
    ]
    by = (*GROUP, "direction", "source", "eraser", "start")
    means = []
    for members in tidy.group_by(rows, *by).values():
        average = {
            name: sum(row[name] for row in members) / len(members)
            for name in ("rank", "changed", "states")
        }
        means += [row | average for row in estimate_means(members, by, list(METRICS), SHARES)]
    differences = []
    erased = [row for row in rows if row["eraser"] != NOTHING]
    cell = (*GROUP, "direction", "source", "start")
    for key, members in tidy.group_by(erased, *cell).items():
        own = tidy.group_by(members, "eraser")
        for minus in ("random", "permuted"):
            for metric in METRICS:
                sides = [cluster_rows(own[name], metric) for name in ("fact", minus)]
                gap = estimate_difference(*sides, is_share=metric in SHARES)
                which = dict(zip(cell, key, strict=True)) | {"minus": minus, "metric": metric}
                differences.append(which | vars(gap) | {"facts": sides[0].sums.shape[1]})
    return {"means": means, "differences": differences}


def judge(summary: Summary, settings: ErasureSettings) -> Iterable[blocks.Verdict]:
    """Whether an eraser of facts leaves fewer right answers, or a lower log p, than controls."""
    for row in summary["differences"]:
        yield judge_interval(_name(row), tidy.to_interval(row), row["facts"])


def _name(row: tidy.Record) -> str:
    names = ("model", "split", "direction", "source", "start", "minus", "metric")
    return ", ".join(str(row[name]) for name in names)


def describe(result: Result) -> Sequence[blocks.ReportBlock]:
    """A sentence for each model and way of asking, curves over layers, and the tables."""
    means, differences = result.summary["means"], result.summary["differences"]
    keys: dict[str, Any] = {"model": "model", "asked": tidy.name_asked}
    drawn = [
        {**row, **{end: 100 * row[end] for end in tidy.ENDS if row["metric"] in SHARES}}
        for row in means
        if row["start"] is not None
    ]
    colours = list(dict.fromkeys(map(name_eraser, drawn)))
    figure = tidy.draw_lines(
        drawn,
        "erasure",
        "Answers after erasing fact identity from the subject's states",
        "By the first layer that is erased (-1: embeddings); all layers above it are erased, too. "
        "Dashed: controls. Bands are 95 % intervals by fact.",
        x="start",
        line=name_eraser,
        colour=lambda row: f"p{1 + colours.index(name_eraser(row))}",
        dash=lambda row: "solid" if row["eraser"] == "fact" else "dash",
        choose=[
            tidy.ASKED,
            tidy.Choose("score", "metric", lambda metric: METRICS[metric].label),
        ],
        xlabel="first layer erased",
        ylabel="score",
    )
    table = tidy.tabulate_means(
        "means",
        "Answers by what is erased and the direction it was fitted to",
        means,
        keys
        | {
            "erased": name_eraser,
            "first layer erased": lambda row: "" if row["start"] is None else str(row["start"]),
            "rank": lambda row: round(row["rank"]),
            "mean squared change of a state": "changed",
            "states fitted to": lambda row: round(row["states"]),
        },
        METRICS,
        most=40,
    )
    gaps = tidy.tabulate_means(
        "differences",
        "Erasing fact identity minus each control; below 0: more is lost than under the control",
        differences,
        keys
        | {
            "fitted to": lambda row: SOURCES[row["source"]],
            "first layer erased": lambda row: str(row["start"]),
            "minus": lambda row: ERASERS[row["minus"]],
            "facts": "facts",
        },
        {name: replace(column, has_sign=True) for name, column in METRICS.items()},
        role=result.mark(_name),
        most=40,
    )
    return [*_state(result), figure, table, gaps]


def name_eraser(row: tidy.Record) -> str:
    """What is erased, in the words of the page."""
    if row["source"] is None:
        return ERASERS[NOTHING]
    return f"{ERASERS[row['eraser']]}, {SOURCES[row['source']]}"


def name_start(layer: int) -> str:
    """The first layer erased, in a sentence."""
    return "the embeddings" if layer < 0 else f"layer {layer}"


def _state(result: Result) -> Iterator[blocks.Finding]:
    """What is left of the answers at the lowest layer, below which nothing reads the subject."""
    shares = tidy.select(result.summary["means"], metric="says")
    for (model, split, direction), rows in tidy.group_by(
        shares, "model", "split", "direction"
    ).items():
        start = min(row["start"] for row in rows if row["start"] is not None)
        at = {(row["source"], row["eraser"]): row for row in rows if row["start"] in (None, start)}
        name = {"model": model, "split": split, "direction": direction, "start": start}
        claims = {
            source: _name(name | {"source": source, "minus": "random", "metric": "says"})
            for source in SOURCES
        }
        verdicts = {
            source: result.verdicts.get(claim) or blocks.Verdict(claim, "not measured")
            for source, claim in claims.items()
        }
        left, control = (
            {source: tidy.say(at[source, eraser], "%") for source in SOURCES}
            for eraser in ("fact", "random")
        )
        reached = verdicts["own"].outcome == "below"
        after = (
            " The own direction's eraser does not clearly remove more answers than random "
            "subspaces, so nothing follows from the other direction's."
        )
        yield blocks.Finding(
            f"In {model}, asked {labels.name_split(split)}, "
            f"{tidy.say(at[None, NOTHING], '%')} of answers are right. With fact identity "
            f"erased from {name_start(start)} up, {left['own']} are right under the own "
            f"direction's eraser (random subspaces: {control['own']}) and {left['other']} under "
            f"the other direction's (random subspaces: {control['other']})."
            f"{'' if reached else after}",
            verdicts["other" if reached else "own"],
        )


MEASURE = Measure(
    name="erasure",
    title="Fact identity erased from the subject's states",
    help="Erase fact identity from subject states, by an eraser fitted to either direction, and "
    "ask again.",
    settings=ErasureSettings,
    tables={"erasure": "erasure/1"},
    inputs=replace(QUESTIONS, read_data=_read),
    jobs=list_jobs,
    summarise=summarise,
    judge=judge,
    describe=describe,
    method=__doc__,
)
