"""slots: are the two directions of a fact one entry or two, at the position that predicts the
answer?

The two measures of Coda-Forno et al. 2026 (arXiv 2604.04943), who concluded that reversal is stored
as a second entry. The answer slot is the position that predicts the answer's first token; its
states are the inputs of each layer's MLP down projection. Distances are cosine distances between
the states of one fact asked forwards and in reverse. Beside them stand those of two facts asked so
(unrelated), of one fact in two phrasings, and of two facts in one direction and phrasing (same
relation). Probes are logistic classifiers on the difference of two states: is it one fact's two
directions, or an unrelated pair (or one fact in two phrasings)? They are tested on facts that they
were not fitted on; guessing is right in half of the cases. Unrelated pairs are the same states
paired otherwise, so that the differences of both classes have the same mean and no linear probe can
tell them apart; a probe on squared differences can, and is shown as well.

p of distances is that of the layer where a fact's two states are nearest to each other, against
the same with facts paired at random, each layer in units of its own null distribution. They are
called nearer where it is at most 0.05 and the interval of that layer's difference lies above 0.
Probes are judged by the mean over all layers, so that no layer is chosen. Two states that are apart
at the slot show that the answers differ there, which they do; they do not show that what the
answers are read from is apart.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from unmask.base.config import option
from unmask.base.seeds import derive_seed
from unmask.blocks import blocks, labels, tidy
from unmask.evaluation.statistics import Interval, estimate_difference, max_statistic_p
from unmask.measures.inputs import QUESTIONS, Member, ModelInputs, find_corpus
from unmask.measures.measure import (
    Job,
    Measure,
    Rows,
    Summary,
    Tables,
    judge_interval,
    judge_p,
)
from unmask.measures.result import Result
from unmask.measures.settings import GroupSettings
from unmask.results.summaries import cluster_rows, estimate_means

if TYPE_CHECKING:
    from unmask.data.facts import Fact

PAIRS = {
    "reversal": "one fact, both directions",
    "unrelated": "two facts, both directions",
    "phrasing": "one fact, two phrasings",
    "relation": "two facts, one direction and phrasing",
}
GROUP = ("model", "kind", "group")
PROBE = (*GROUP, "contrast", "feature")
FEATURES = {"difference": "difference", "squared": "squared difference"}
COLOURS = {pair: f"p{i}" for i, pair in enumerate(PAIRS)}
FACTS = tidy.Choose("facts", "group", labels.GROUPS.__getitem__)
KEYS: Mapping[str, tidy.Get] = {"model": "model", "facts": lambda row: labels.GROUPS[row["group"]]}
"""What the rows of both tables are about."""


@dataclass(frozen=True, kw_only=True)
class SlotSettings(GroupSettings):
    """Which facts are asked, in how many phrasings."""

    facts: int = option(30, "Facts of each group.", least=4)
    phrasings: int = option(3, "Phrasings of each fact and direction.", least=1)
    permutations: int = option(
        100_000, "Random pairings of facts in the test of distances.", least=19, most=10_000_000
    )
    seed: int = option(0, "Seed of the pairings.", least=0)


def _read(
    data: Any, settings: SlotSettings, families: Any
) -> "tuple[dict[str, list[Fact]], str, str]":
    from unmask.base.identity import digest_values
    from unmask.representation.extraction import find_groups

    corpus = find_corpus(data, families)
    groups = {}
    for group, splits in find_groups(corpus, settings.groups).items():
        prompts: dict[tuple[str, str], list[Fact]] = {}
        for fact in (fact for split in splits for fact in corpus[split]):
            prompts.setdefault((fact.fact_id, fact.direction), []).append(fact)
        people = list(dict.fromkeys(fact_id for fact_id, _ in prompts))[: settings.facts]
        groups[group] = [
            fact
            for (fact_id, _), same in prompts.items()
            if fact_id in people
            for fact in same[: settings.phrasings]
        ]
    return groups, corpus.source, digest_values(list(groups.values()))


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
    rows = [
        row
        | {"pair": ("reversal" if row["fact"] == row["other"] else "unrelated")
           if row["pair"] == "across" else row["pair"]}
        for row in tables["slots"].to_pylist()
    ]  # fmt: skip
    probes = tables["differences"].to_pylist()
    tests = []
    for key, own in tidy.group_by(rows, *GROUP).items():
        tests.append(dict(zip(GROUP, key, strict=True)) | _test(own, settings))
    return {
        "distances": estimate_means(rows, (*GROUP, "layer", "pair"), ("distance",)),
        "tests": tests,
        "probes": estimate_means(probes, (*PROBE, "layer"), ("right",), ("right",)),
        "means": estimate_means(probes, PROBE, ("right",), ("right",)),
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
    layer, members = list(layers.items())[best]
    apart, near = (cluster_rows(tidy.select(members, pair=pair), "distance")
                   for pair in ("unrelated", "reversal"))  # fmt: skip
    gap = estimate_difference(apart, near)
    value = {"layer": layer, "facts": len(people), "p_layers": float(corrected[best])}
    return value | vars(gap)


def judge(summary: Summary, settings: SlotSettings) -> Iterable[blocks.Verdict]:
    """Whether a fact's two states are nearer than others', and whether probes know such pairs."""
    for row in summary["tests"]:
        value = tidy.to_interval(row)
        tested = judge_p(name_slot_claim(row), value, row["p_layers"], row["facts"])
        # The layer is the best of all, so that its interval counts only if the test passes.
        yield judge_interval(tested.claim, value, row["facts"]) if tested.is_clear else tested
    for row in summary["means"]:
        if not _is_blind(row):
            value = tidy.to_interval(row)
            above_half = Interval(*(end - 0.5 for end in vars(value).values()))
            yield judge_interval(_name_probe(row), above_half, row["facts"])


def _is_blind(row: tidy.Record) -> bool:
    """Whether a probe can only guess: both of its classes have the same mean."""
    return (row["contrast"], row["feature"]) == ("unrelated", "difference")


def name_slot_claim(row: tidy.Record) -> str:
    """The claim that a row of the tests is judged by."""
    return f"{row['model']}: {row['group']}"


def _name_probe(row: tidy.Record) -> str:
    return f"{name_slot_claim(row)}: {row['contrast']}: {row['feature']}"


def describe(result: Result) -> Sequence[blocks.ReportBlock]:
    """A sentence for each model and group, distances and probes by layer, and the tables."""
    return [
        *_state(result),
        _draw_distances(result.summary["distances"]),
        _draw_probes(result.summary["probes"]),
        _tabulate_tests(result),
        _tabulate_probes(result),
    ]


def _draw_distances(rows: Rows) -> blocks.Figure:
    return tidy.draw_lines(
        rows,
        "slots",
        "Distance between states at the answer slot",
        "Cosine distance between inputs of a layer's MLP down projection, at the position that "
        "predicts the answer's first token. Bands are 95 % intervals by fact.",
        x="layer",
        line=lambda row: PAIRS[row["pair"]],
        colour=lambda row: COLOURS[row["pair"]],
        choose=[FACTS],
        xlabel="layer",
        ylabel="cosine distance",
    )


def _draw_probes(rows: Rows) -> blocks.Figure:
    return tidy.draw_lines(
        rows,
        "differences",
        "How often probes tell one fact's two directions by the difference of their states",
        "Share of pairs that a logistic probe is right about, on facts held out; guessing: 0.5. "
        "Bands are 95 % intervals by fact.",
        x="layer",
        line=lambda row: f"from {PAIRS[row['contrast']]}, {FEATURES[row['feature']]}",
        colour=lambda row: COLOURS[row["contrast"]],
        dash=lambda row: "dash" if row["feature"] == "difference" else "solid",
        choose=[FACTS],
        xlabel="layer",
        ylabel="share right",
        limits=(0.0, 1.0),
    )


def _tabulate_tests(result: Result) -> blocks.Table:
    columns: dict[str | blocks.Column, tidy.Get] = {
        **KEYS,
        "layer": "layer",
        "number of facts": "facts",
        blocks.Column("difference of distances", 3, has_sign=True): tidy.to_interval,
        blocks.Column("p over all layers", 5): "p_layers",
        "one fact's two directions are": lambda row: _say_nearer(
            result.verdicts[name_slot_claim(row)]
        ),
    }
    return tidy.tabulate(
        "tests",
        "Cosine distance of unrelated pairs minus that of one fact's two directions, at the layer "
        "where they differ most",
        result.summary["tests"],
        columns,
        role=result.mark(name_slot_claim),
    )


def _tabulate_probes(result: Result) -> blocks.Table:
    def say_better(row: tidy.Record) -> str:
        if _is_blind(row):
            return "blind by construction"
        return _say_outcome(result.verdicts[_name_probe(row)], "better", "worse")

    columns: dict[str | blocks.Column, tidy.Get] = {
        **KEYS,
        "told from": lambda row: PAIRS[row["contrast"]],
        "probe on": lambda row: FEATURES[row["feature"]],
        blocks.Column("right, %", 1, is_percent=True): tidy.to_interval,
        "than guessing (50 %)": say_better,
    }
    rows = result.summary["means"]
    return tidy.tabulate(
        "probed",
        "Probes that tell one fact's two directions from other pairs, mean over all layers",
        rows,
        columns,
        role=result.mark(_name_probe),
        most=len(rows),
    )


def _say_outcome(verdict: blocks.Verdict, above: str, below: str) -> str:
    """What a claim shows in words: neither, where its interval includes no difference."""
    return {"above": above, "below": below}.get(verdict.outcome, f"not clearly {above}")


def _say_nearer(verdict: blocks.Verdict) -> str:
    return _say_outcome(verdict, "nearer", "farther apart")


def _state(result: Result) -> Iterator[blocks.Finding]:
    means = {_name_probe(row): row for row in result.summary["means"]}
    for row in result.summary["tests"]:
        name = name_slot_claim(row)
        yield blocks.Finding(
            f"In {row['model']} ({labels.GROUPS[row['group']]}), states of one fact's two "
            f"directions at the answer slot are {_say_nearer(result.verdicts[name])} than those of "
            f"two facts: cosine distances differ by {tidy.say(row, digits=3)} at layer "
            f"{row['layer']}, where they differ most. By squared differences, probes tell them "
            f"from those of two facts in {tidy.say(means[f'{name}: unrelated: squared'], '%')} of "
            "the cases (guessing: 50 %; mean over layers).",
            result.verdicts[name],
        )


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
    judge=judge,
    describe=describe,
    method=__doc__,
)
