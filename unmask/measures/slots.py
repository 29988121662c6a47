"""slots: are the two directions of a fact one entry or two, at the position that predicts the
answer?

The two measures of Coda-Forno et al. 2026 (arXiv 2604.04943), who concluded that reversal is stored
as a second entry. States are the inputs of each layer's MLP down projection, at the position that
predicts the answer's first token. Distances are cosine distances between those of one fact asked
forwards and in reverse, beside those of two facts asked so (unrelated), of one fact in two
phrasings, and of two facts in one direction and phrasing (same relation). p is that of the layer
where a fact's two states are nearest to each other, against facts paired at random, each layer in
units of its own null distribution. They are called nearer where it is at most 0.05 and the interval
of that layer's difference lies above 0.

Probes are logistic classifiers on the difference of two states: is it one fact's two directions, or
an unrelated pair (or one fact in two phrasings)? They are tested on facts that they were not fitted
on, and judged by the mean over all layers; guessing is right in half of the cases. Unrelated pairs
are the same states paired otherwise, so that the differences of both classes have the same mean and
no linear probe can tell them apart; one on squared differences can. Two states that are apart at
the slot show that the answers differ there, not that what these are read from is apart.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from unmask.base.config import option
from unmask.base.seeds import derive_seed
from unmask.blocks import labels, tidy
from unmask.blocks.blocks import ReportBlock
from unmask.evaluation.statistics import max_statistic_p
from unmask.measures.inputs import QUESTIONS, Member, ModelInputs, find_corpus
from unmask.measures.measure import Job, Measure, Rows, Summary, Tables
from unmask.measures.result import Result
from unmask.measures.settings import GroupSettings
from unmask.results.comparison import KIND, MODEL, Comparison, Factor, Quantity
from unmask.results.summaries import add_outcome

PAIRS = {
    "reversal": "one fact, both directions",
    "unrelated": "two facts, both directions",
    "phrasing": "one fact, two phrasings",
    "relation": "two facts, one direction and phrasing",
}
FEATURES = {"difference": "difference", "squared": "squared difference"}
GROUPS = (MODEL, KIND, Factor("group", "group", labels.GROUPS))
LAYER = Factor("layer", "layer")
DISTANCES = Comparison(
    metrics={"distance": Quantity("cosine distance", digits=3)},
    groups=GROUPS,
    variant=Factor("pair", "pair", PAIRS),
    against=[("unrelated", "reversal")],
    axis=LAYER,
    title="Distance between states at the answer slot",
    caption="Cosine distance between inputs of a layer's MLP down projection, at the position that "
    "predicts the answer's first token. Bands are 95 % intervals by fact.",
    names=("slots", "tests"),
    differences="At the layer where they differ most; above 0 a fact's two directions are nearer",
)
PROBES = Comparison(
    metrics={"right": Quantity("right", "%")},
    groups=(*GROUPS, Factor("feature", "probe on", FEATURES)),
    variant=Factor("contrast", "told from", PAIRS),
    chance={"right": 0.5},
    title="How often probes tell one fact's two directions from other pairs",
    caption="On facts held out; guessing: 50 %. Bands are 95 % intervals by fact.",
    names=("probes", ""),
    means="Probes, mean over all layers; on differences, those of two facts cannot be told",
)


@dataclass(frozen=True, kw_only=True)
class SlotSettings(GroupSettings):
    """Which facts are asked, in how many phrasings."""

    facts: int = option(30, "Facts of each group.", least=4)
    phrasings: int = option(3, "Phrasings of each fact and direction.", least=1)
    permutations: int = option(
        100_000, "Random pairings of facts in the test of distances.", least=19, most=10_000_000
    )
    seed: int = option(0, "Seed of the pairings.", least=0)


def _read(data: Any, settings: SlotSettings, families: Any) -> tuple[Any, str, Any]:
    from unmask.data.facts import gather_prompts
    from unmask.representation.extraction import find_groups

    corpus, groups = find_corpus(data, families), {}
    for group, splits in find_groups(corpus, settings.groups).items():
        facts = [fact for split in splits for fact in corpus[split]]
        people = list(dict.fromkeys(fact.fact_id for fact in facts))[: settings.facts]
        prompts = gather_prompts(facts).items()
        chosen = [same[: settings.phrasings] for (who, _), same in prompts if who in people]
        groups[group] = [fact for same in chosen for fact in same]
    return groups, corpus.source, groups.values()


def list_jobs(inputs: ModelInputs, settings: SlotSettings) -> Iterator[Job]:
    """One part for each checkpoint and group of facts."""

    def work(member: Member, group: str) -> Mapping[str, Rows]:
        from unmask.representation.slots import collect_slots, compare_slots, probe_differences

        facts, keys = inputs.data[group], member.columns | {"group": group}
        states = collect_slots(inputs.load(member), facts, settings.length)
        return {
            "slots": [keys | row for row in compare_slots(states, facts)],
            "differences": [keys | row for row in probe_differences(states, facts)],
        }

    for member in inputs.members():
        for group in inputs.data:
            yield Job(f"{member.key}-{group}", partial(work, member, group))


def summarise(tables: Tables, settings: SlotSettings) -> Summary:
    """Distances by kind of pair, tests over all layers, and how often probes are right."""
    rows, probes = tables["slots"].to_pylist(), tables["differences"].to_pylist()
    for row in rows:
        if row["pair"] == "across":
            row["pair"] = "reversal" if row["fact"] == row["other"] else "unrelated"
    means = PROBES.average(probes)
    for row in means:
        if (row["contrast"], row["feature"]) == ("unrelated", "difference"):
            del row["outcome"]  # blind by construction: both classes have the same mean
    groups = tidy.group_by(rows, *(factor.column for factor in GROUPS)).values()
    return {
        "distances": DISTANCES.average(rows, "layer"),
        "tests": [_test(own, settings) for own in groups],
        "probes": replace(PROBES, chance={}).average(probes, "layer"),
        "means": means,
    }


def _test(rows: Rows, settings: SlotSettings) -> dict[str, Any]:
    """Whether a fact's two states are nearer than others', at any layer."""
    across = [row for row in rows if row["pair"] in ("reversal", "unrelated")]
    people = sorted(tidy.distinct(across, "fact"))
    at = {fact: i for i, fact in enumerate(people)}
    orders = np.random.default_rng(derive_seed(settings.seed, "slots", len(people))).permuted(
        np.tile(np.arange(len(people), dtype=np.int16), (settings.permutations, 1)), axis=1
    )
    layers = tidy.group_by(across, "layer")
    observed, nulls = [], []
    for members in layers.values():
        nearness, seeds = np.zeros((len(people),) * 2), len(tidy.distinct(members, "seed"))
        for row in members:
            nearness[at[row["fact"]], at[row["other"]]] -= row["distance"] / seeds
        null = nearness[np.arange(len(people)), orders].mean(1)
        scale = null.std() or 1.0
        observed.append((nearness.diagonal().mean() - null.mean()) / scale)
        nulls.append((null - null.mean()) / scale)
    corrected = max_statistic_p(np.array(observed), np.stack(nulls, 1))
    best = int(np.argmax(observed))
    (gap,) = DISTANCES.subtract(list(layers.values())[best], "layer")
    return judge_nearness(gap | {"p_layers": float(corrected[best])})


def judge_nearness(row: tidy.Record) -> dict[str, Any]:
    """A test with its outcome: its layer is the best of all, so that the interval of the
    difference counts only if the corrected test passes."""
    tested = add_outcome(row, p=row["p_layers"])
    return add_outcome(row) if tested["outcome"] == "above" else tested


def describe(result: Result) -> Sequence[ReportBlock]:
    """A sentence for each model, distances and probes by layer, and the tables."""
    summary = result.summary
    return [
        *DISTANCES.state({"slots": summary["distances"], "tests": summary["tests"]}),
        DISTANCES.draw(summary["distances"]),
        PROBES.draw(summary["probes"], LAYER, limits=(0.0, 100.0)),
        DISTANCES.tabulate_differences(
            summary["tests"], **{"p over all layers": lambda row: f"{row['p_layers']:.5f}"}
        ),
        PROBES.tabulate(summary["means"]),
    ]


MEASURE = Measure(
    name="slots",
    title="States at the position that predicts the answer",
    help="Compare states at the position that predicts the answer, a fact asked forwards and in "
    "reverse.",
    settings=SlotSettings,
    tables={"slots": "slots/1", "differences": "differences/1"},
    inputs=replace(QUESTIONS, read_data=_read),
    jobs=list_jobs,
    summarise=summarise,
    describe=describe,
    method=__doc__,
)
