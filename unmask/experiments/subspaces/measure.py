"""subspaces: is there a subspace of a site's states that carries the fact, or the direction, across
phrasings, directions and denoising steps?

A base run is given the state of a source run in a subspace, at its subject's tokens (ends aligned)
or where it predicts. The subspace is an orthonormal basis, trained so that the base then says what
follows from the source's value of a variable (distributed alignment search; Geiger et al. 2024,
arXiv 2303.02536): of *fact*, the source's fact asked as the base asks; of *direction*, the base's
fact asked as the source asks; of *answer*, the source's own answer. Read is the first token at
which that and the base's own answer differ, those before it given. Sources ask in the base's
direction (within), in the other one (across), or stand at their last denoising step while the base
stands at its own (the basis is then the one found within). Across, exchanges are left out in which
another variable asks for the same token.

Half of the facts are searched on, in some phrasings. Results are of the held-out facts, in other
phrasings: each half of these at the layer and rank at which the aligned subspace exceeds its best
control furthest on the other half. One search serves all ranks (nested dropout).

Controls, all of the same rank: a search for permuted labels, scored by these; the same search in an
untrained network of the same shape, scored there; a random subspace; and noise as long as what the
aligned subspace moves. The ceiling is plain interchange of the whole state. On hand-written
networks (`known`) one store has a subspace of the fact and one of the direction across directions,
two stores have neither. Intervals are 95 % intervals by fact; differences are paired by fact.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product

from unmask.base.config import option
from unmask.base.errors import UserError
from unmask.experiments.subspaces.exchanges import ROLES, VARIABLES, WAYS, Condition
from unmask.experiments.subspaces.section import describe, summarise
from unmask.measures.inputs import ALL_TESTS, Member, ModelInputs
from unmask.measures.measure import Job, Measure, Rows
from unmask.measures.settings import StateSettings


@dataclass(frozen=True, kw_only=True)
class SubspaceSettings(StateSettings):
    """What is looked for and where, and how long."""

    filled = distinct = ("variables", "ways", "roles", "ranks")

    splits: tuple[str, ...] = option((), "Splits of the bases; all tests by default.")
    variables: tuple[str, ...] = option(
        tuple(VARIABLES),
        "What is carried: fact, direction or the answer's first token.",
        choices=lambda: tuple(VARIABLES),
    )
    ways: tuple[str, ...] = option(
        tuple(WAYS),
        "Where sources stand: within (the base's direction), across (the other one), steps (their "
        "last step).",
        choices=lambda: tuple(WAYS),
    )
    roles: tuple[str, ...] = option(
        tuple(ROLES),
        "Whose states: all subject tokens, or the position that predicts the answer.",
        choices=lambda: tuple(ROLES),
    )
    layers: tuple[int, ...] = option(
        (), "Layers after which states are exchanged (-1: embeddings); the middle one by default.",
        least=-1,
    )  # fmt: skip
    facts: int = option(30, "Facts of each split, half of them held out.", least=6)
    phrasings: int = option(
        2, "Phrasings of each fact that are searched on; as many others are asked.", least=1
    )
    sources: int = option(3, "Sources of each base.", least=1)
    ranks: tuple[int, ...] = option((1, 2, 4, 8, 16, 32, 64), "Ranks of the subspace.", least=1)
    updates: int = option(100, "Updates of a search.", least=1)
    rows: int = option(16, "Exchanges of an update.", least=1)
    rate: float = option(0.02, "Adam's learning rate.", above=0.0)
    known: int = option(
        1, "Networks of one store and of two stores on which the search is tried; 0: none.",
        least=0, most=20,
    )  # fmt: skip
    seed: int = option(0, "Seed of searches, sources and controls.", least=0)


def list_jobs(inputs: ModelInputs, settings: SubspaceSettings) -> Iterator[Job]:
    """One part for each known network, then one for each model, split, condition and layer."""
    from unmask.experiments.subspaces.work import search_known

    for mechanism, number in product(("one store", "two stores"), range(settings.known)):
        name = f"known-{mechanism.replace(' ', '-')}-{number}"
        yield Job(name, partial(search_known, mechanism, number, settings))
    # Sources at their last step lend to what was found within: one search serves both.
    conditions = dict.fromkeys(
        each.searched
        for names in product(settings.variables, settings.ways, settings.roles)
        if (each := Condition(*names)).is_asked
    )
    if not conditions:
        raise UserError(
            "direction and answer are carried across directions, where the answer is predicted: "
            "name the way across and the role answer, or the variable fact."
        )
    for member, split, condition in product(inputs.members(), inputs.data.splits, conditions):
        for layer in settings.layers or (member.config.layers // 2 - 1,):
            key = f"{condition.variable}-{condition.way}-{condition.role}-{layer}"
            work = partial(ask_condition, inputs, settings, member, split.name, condition, layer)
            yield Job(f"{member.key}-{split.name}-{key}", work)


def ask_condition(
    inputs: ModelInputs,
    settings: SubspaceSettings,
    member: Member,
    split: str,
    condition: Condition,
    layer: int,
) -> Mapping[str, Rows]:
    """The rows of one search with its controls."""
    from unmask.data.sources import OWN
    from unmask.experiments.subspaces.exchanges import split_facts
    from unmask.experiments.subspaces.work import search_condition
    from unmask.representation.extraction import GROUPS

    corpus = inputs.data.corpus
    facts = next(own.facts for own in inputs.data.splits if own.name == split)
    names = (*sum(GROUPS.values(), ()), OWN)
    tests = [fact for name in names for fact in corpus.splits.get(name, [])]
    halves = split_facts(
        inputs.load(member), facts, tests, settings.facts, settings.phrasings, settings.length
    )
    first = facts[0]
    keys = {"split": split, "direction": first.direction, "trained": first.trained}
    made = search_condition(halves, condition, layer, settings)
    return {name: [member.columns | keys | row for row in rows] for name, rows in made.items()}


TABLES = {
    "subspaces": "subspaces/1", "searches": "subspaces-searches/1", "known": "subspaces-known/1",
}  # fmt: skip

MEASURE = Measure(
    name="subspaces",
    title="Subspaces that carry a fact, a direction or an answer",
    help="Find subspaces that carry a fact, a direction or an answer across runs (DAS).",
    settings=SubspaceSettings,
    tables=TABLES,
    inputs=ALL_TESTS,
    jobs=list_jobs,
    summarise=summarise,
    describe=describe,
    method=__doc__,
)
