"""erasure: is a question still answered when fact identity is erased from its subject's states, by
an eraser fitted to the same direction or to the other one?

An eraser is a linear map that removes what tells facts apart: least-squares concept erasure (LEACE;
Belrose et al. 2023, arXiv 2306.03819) of the label "which fact". It is fitted to subject states of
one direction, in phrasings and after prefixes that are not asked, with a shrunk covariance, and
applied to all subject tokens of the questions, after every layer from a first one up (-1: the
stream before layer 0). Where the network reads what both directions share, the other direction's
eraser removes the answer, too. Where the own direction's removes no more answers than a random
subspace, linear erasure does not reach what is read, and nothing follows from the other one's.

Controls: an eraser fitted to permuted labels, of the same rank, and random subspaces of this rank
that remove as much variance from the states they are applied to. An answer is right where greedy
decoding writes it. Intervals are by fact and training seed; differences are paired by fact.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from unmask.base.config import option
from unmask.base.errors import UserError
from unmask.measures.inputs import QUESTIONS, Member, ModelInputs, find_corpus
from unmask.measures.measure import Job, Measure, Rows, Tables
from unmask.measures.settings import GroupSettings
from unmask.results.comparison import ASKED, KIND, MODEL, Comparison, Factor, Quantity

if TYPE_CHECKING:
    from unmask.data.facts import Fact

FITTING = ("tokens", "shrinkage", "length", "seed", "draws")


@dataclass(frozen=True, kw_only=True)
class ErasureSettings(GroupSettings):
    """Which facts are asked, what erasers are fitted to, and where they act."""

    facts: int = option(30, "Facts of each group.", least=2)
    phrasings: int = option(
        2, "Phrasings of each fact that are asked; erasers are fitted to all others.", least=1
    )
    states: int = option(
        2000,
        "Least states to fit to in each direction; prompts are repeated after prefixes.",
        least=4,
    )
    tokens: Literal["last", "all"] = option(
        "all", "Which states erasers are fitted to: the last subject token's, or all of them."
    )
    starts: tuple[int, ...] = option(
        (),
        "First layers to erase, each with all above; by default -1 (embeddings), 0 and the middle.",
        least=-1,
    )
    shrinkage: float | None = option(
        None, "Shrinkage of the covariance; by default Ledoit and Wolf's estimate.", least=0, most=1
    )
    draws: int = option(3, "Draws of each control, labels and subspaces.", least=1, most=1000)
    seed: int = option(0, "Seed of prefixes and controls.", least=0)


@dataclass(frozen=True)
class GroupPrompts:
    """By direction, the prompts of a group: those fitted to, and those asked with their columns."""

    fitted: "dict[str, list[Fact]]" = field(default_factory=dict)
    questions: "dict[str, list[Fact]]" = field(default_factory=dict)
    columns: dict[str, dict[str, str]] = field(default_factory=dict)


def _read(data: Any, settings: ErasureSettings, families: Any) -> tuple[Any, str, Any]:
    corpus = find_corpus(data, families)
    groups = choose_group_prompts(corpus, settings)
    prompts = [(*each.fitted.values(), *each.questions.values()) for each in groups.values()]
    return groups, corpus.source, sum(prompts, ())


def choose_group_prompts(corpus: Any, settings: ErasureSettings) -> dict[str, GroupPrompts]:
    """By group, the first phrasings of the tests as questions, and all others to fit to.

    Prompts of the training set are left out: they are of one direction. Validation splits are in.
    """
    from unmask.data.corpus import FAR
    from unmask.representation.extraction import find_groups
    from unmask.tracing.facts import choose_facts

    groups = {}
    for group, splits in find_groups(corpus, settings.groups).items():
        chosen = groups[group] = GroupPrompts()
        for split in splits:
            names = [split + end for end in ("", FAR, "_valid", f"{FAR}_valid")]
            pool = [fact for name in names for fact in corpus.splits.get(name, [])]
            ways = dict.fromkeys(fact.direction for fact in corpus[split])
            for way in ways:
                prompts = [fact for fact in corpus[split] if fact.direction == way]
                questions = choose_facts(prompts, settings.facts, settings.phrasings)
                people, texts = ({f.fact_id for f in questions}, {f.prompt for f in questions})
                same = [fact for fact in pool if fact.direction == way and fact.fact_id in people]
                chosen.questions[way] = questions
                chosen.fitted[way] = [fact for fact in same if fact.prompt not in texts]
                first, name = questions[0], split if len(ways) == 1 else f"{split}_{way}"
                chosen.columns[way] = {"group": group, "split": name, "trained": first.trained}
        few = [way for way, own in chosen.fitted.items() if len({f.fact_id for f in own}) < 2]
        if len(chosen.questions) < 2 or few:
            raise UserError(
                f"the facts {group} of {corpus.source} have no prompts left to fit to in "
                f"{' and '.join(few) or 'one direction'}: expected at least two facts, asked both "
                "ways in more phrasings than --phrasings; ask fewer of them, or give more."
            )
    return groups


def list_jobs(inputs: ModelInputs, settings: ErasureSettings) -> Iterator[Job]:
    """One part for each checkpoint and group: its erasers are fitted once for both directions."""

    def work(member: Member, group: str) -> Mapping[str, Rows]:
        from unmask.representation.erasure import compare_erasers
        from unmask.representation.prompts import make_prefixes

        model, prompts = inputs.load(member), inputs.data[group]
        fewest = min(map(len, prompts.fitted.values()))
        rows = compare_erasers(
            model,
            prompts.fitted,
            prompts.questions,
            make_prefixes(model, -(-settings.states // fewest), settings.seed),
            settings.starts or tuple(dict.fromkeys((-1, 0, model.net.config.layers // 2))),
            **{name: getattr(settings, name) for name in FITTING},
        )
        which = prompts.columns
        return {"erasure": [member.columns | which[row["direction"]] | row for row in rows]}

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
SOURCE = Factor("source", "fitted to", SOURCES, is_told=True)
COMPARISON = Comparison(
    metrics={
        "says": Quantity("answers right", "%"),
        "logp_token": Quantity("log p of the answer per token", "nats"),
    },
    groups=(MODEL, KIND, ASKED, Factor("direction"), SOURCE),
    variant=Factor("eraser", "erased", ERASERS),
    against=(("fact", "random"), ("fact", "permuted")),
    axis=Factor("start", "first layer erased"),
    beside={"rank": "rank", "changed": "mean squared change", "states": "states fitted to"},
    controls=("permuted", "random"),
    title="Answers after erasing fact identity from the subject's states",
    caption="By the first layer that is erased (-1: embeddings); all layers above it are erased, "
    "too. Dotted: controls. Bands are 95 % intervals by fact.",
    means="Answers by what is erased and the direction it was fitted to",
    differences="Erasing fact identity minus each control; below 0: more is lost than under it",
    most=40,
)


def prepare(tables: Tables, settings: ErasureSettings) -> Rows:
    """The rows, with log p per token and whether an eraser was fitted to the direction asked."""
    rows = tables["erasure"].to_pylist()
    for row in rows:
        row["logp_token"] = row["logp"] / row["tokens"]
        row["source"] = row["fitted"] and ("other", "own")[row["fitted"] == row["direction"]]
    return rows


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
