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

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from unmask.base.config import option
from unmask.base.errors import UserError
from unmask.measures.inputs import QUESTIONS, Member, ModelInputs, find_corpus
from unmask.measures.measure import Job, Measure, Rows
from unmask.measures.settings import GroupSettings
from unmask.results.comparison import ASKED, KIND, MODEL, Comparison, Factor, Quantity
from unmask.results.summaries import Tables

if TYPE_CHECKING:
    from unmask.data.facts import Fact


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
    groups = choose_group_prompts(corpus, settings)
    contents = [
        facts
        for each in groups.values()
        for facts in (*each.fitted.values(), *each.questions.values())
    ]
    return groups, corpus.source, digest_values(contents)


def choose_group_prompts(corpus: Any, settings: ErasureSettings) -> dict[str, GroupPrompts]:
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


ERASERS = {
    "none": "nothing erased",
    "fact": "fact identity",
    "permuted": "permuted labels",
    "random": "random subspace",
}
SOURCES = {None: "–", "own": "own direction", "other": "other direction"}
COMPARISON = Comparison(
    metrics={
        "says": Quantity("answers right", "%"),
        "logp_token": Quantity("log p of the answer per token", "nats"),
    },
    groups=(
        MODEL,
        KIND,
        ASKED,
        Factor("direction"),
        Factor("source", "fitted to", SOURCES, is_told=True),
    ),
    variant=Factor("eraser", "erased", ERASERS),
    against=(("fact", "random"), ("fact", "permuted")),
    axis=Factor("start", "first layer erased"),
    beside={
        "rank": "rank",
        "changed": "mean squared change of a state",
        "states": "states fitted to",
    },
    controls=("permuted", "random"),
    title="Answers after erasing fact identity from the subject's states",
    caption="By the first layer that is erased (-1: embeddings); all layers above it are erased, "
    "too. Dotted: controls. Bands are 95 % intervals by fact.",
    means="Answers by what is erased and the direction it was fitted to",
    differences="Erasing fact identity minus each control; below 0: more is lost than under the "
    "control",
    most=40,
)


def prepare(tables: Tables, settings: ErasureSettings) -> Rows:
    """The rows, with log p per token and whether an eraser was fitted to the direction asked."""
    return [
        row
        | {"logp_token": row["logp"] / row["tokens"]}
        | {"source": row["fitted"] and ("own" if row["fitted"] == row["direction"] else "other")}
        for row in tables["erasure"].to_pylist()
    ]


MEASURE = Measure(
    name="erasure",
    title="Fact identity erased from the subject's states",
    help="Erase fact identity from subject states, by an eraser fitted to either direction, and "
    "ask again.",
    settings=ErasureSettings,
    tables={"erasure": "erasure/1"},
    inputs=replace(QUESTIONS, read_data=_read),
    jobs=list_jobs,
    prepare=prepare,
    comparison=COMPARISON,
    method=__doc__,
)
