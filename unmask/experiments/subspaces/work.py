"""One search with its controls, and what each subspace brings of halves that it never saw."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from time import process_time
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.base.seeds import derive_seed
from unmask.compiled.mechanisms import build_compiled
from unmask.data.facts import Fact
from unmask.experiments.subspaces.exchanges import (
    Condition,
    FactHalves,
    Pool,
    make_exchanges,
    split_facts,
)
from unmask.representation.subspaces import (
    Exchange,
    LaidOut,
    Move,
    Search,
    clip_ranks,
    draw_basis,
    draw_network,
    lay_out_exchanges,
    move_anywhere,
    move_inside,
    move_whole,
    name_entry,
    say_targets,
    search_basis,
)

if TYPE_CHECKING:
    from unmask.experiments.subspaces.measure import SubspaceSettings

KNOWN = (Condition("fact", "across", "subject"), Condition("direction", "across", "answer"))
"""What is looked for in hand-written networks: what one store has, and two stores have not."""
KNOWN_SEARCH: dict[str, Any] = {
    "ranks": (8,),
    "updates": 80,
    "rows": 32,
    "rate": 0.05,
    "sources": 14,
}
KNOWN_LAYER, KNOWN_PHRASINGS = 1, 2
"""The layer of the store, and of three phrasings those that are searched on."""
FactPairs = list[tuple[Fact, Exchange]]


def search_condition(
    halves: FactHalves, condition: Condition, layer: int, settings: "SubspaceSettings"
) -> Mapping[str, list[dict[str, Any]]]:
    """What a condition's subspaces at a layer bring, and what the searches came to.

    Also of sources at their last step, where that is asked of what is found within.
    """
    model, site, seed = halves.model, name_entry(halves.model, layer), settings.seed
    search = Search(settings.ranks, settings.updates, settings.rows, settings.rate, seed)
    ranks = clip_ranks(settings.ranks, model.net.config.width)

    def pair(pool: Pool, where: Condition, is_permuted: bool = False) -> FactPairs:
        return list(make_exchanges(halves, pool, where, settings.sources, seed, is_permuted))

    # 1. Searches: for the variable, for permuted labels, in a network that learned nothing.
    drawn, bases, searches = draw_network(model, seed), dict[str, Tensor](), []
    for variant, network, is_permuted in (
        ("aligned", model, False), ("permuted", model, True), ("untrained", drawn, False),
    ):  # fmt: skip
        pairs, began = pair(halves.fitted, condition, is_permuted), process_time()
        if not pairs:
            return {}
        result = search_basis(lay_out_exchanges(network, _strip(pairs), site), search)
        bases[variant] = result.basis
        searches.append({
            "searched": variant, "exchanges": len(pairs), "loss": result.losses[-1],
            "loss_first": result.losses[0], "seconds": process_time() - began,
        })  # fmt: skip
    # 2. What each brings of other phrasings, of the people searched on and of those held out.
    rows = []
    ways = [
        each for way in settings.ways if (each := replace(condition, way=way)).searched == condition
    ]
    for to, (people, pool) in product(ways, halves.tests.items()):
        pairs, permuted = pair(pool, to), pair(pool, to, True)
        if not pairs or not permuted:
            continue
        own = lay_out_exchanges(model, _strip(pairs), site)
        others = {
            "permuted": (permuted, lay_out_exchanges(model, _strip(permuted), site)),
            "untrained": (pairs, lay_out_exchanges(drawn, _strip(pairs), site)),
        }
        for variant, rank, move in _list_moves(bases, ranks, own.width, seed):
            about, laid = others.get(variant, (pairs, own))
            for row in _average(about, laid, move):
                place = {"way": to.way, "people": people, "subspace": variant, "rank": rank}
                rows.append(place | row)
    where = {"variable": condition.variable, "role": condition.role, "layer": layer}
    return {
        "subspaces": [where | row for row in rows],
        "searches": [where | {"way": condition.way} | row for row in searches],
    }


def _strip(pairs: FactPairs) -> list[Exchange]:
    return [exchange for _, exchange in pairs]


def _list_moves(
    bases: Mapping[str, Float[Tensor, "D k"]], ranks: Sequence[int], width: int, seed: int
) -> Iterator[tuple[str, int, Move]]:
    """Every subspace of every rank, and the whole state, with its name."""
    random = draw_basis(width, ranks[-1], derive_seed(seed, "random subspace")).to(bases["aligned"])
    for rank in ranks:
        for variant, basis in (*bases.items(), ("random", random)):
            yield variant, rank, move_inside(basis, rank)
        yield "noise", rank, move_anywhere(bases["aligned"], rank, seed)
    yield "whole", width, move_whole


def _average(pairs: FactPairs, laid: LaidOut, move: Move) -> Iterator[dict[str, Any]]:
    """The shares of a base's exchanges that bring the target, and that keep its own answer."""
    hits: dict[Fact, list[tuple[bool, bool]]] = defaultdict(list)
    for (base, _), own in zip(pairs, say_targets(laid, move), strict=True):
        hits[base].append(own)
    for base, own in hits.items():
        brings, keeps = torch.tensor(own, dtype=torch.float64).mean(0).tolist()
        yield {"fact": base.fact_id, "phrasing": base.phrasing, "brings": brings, "keeps": keeps}


def search_known(mechanism: str, number: int, settings: "SubspaceSettings") -> Mapping[str, Any]:
    """What searches across directions bring in a hand-written network.

    There every fact is a direction of its own: nothing is to be result of one that was held out.
    """
    compiled = build_compiled(mechanism, seed=number)
    facts = compiled.facts
    halves = split_facts(
        compiled.model, facts, (), len(facts), KNOWN_PHRASINGS, None, is_split=False
    )
    settings = replace(settings, ways=("across",), **KNOWN_SEARCH)
    columns = {"mechanism": mechanism, "network": number, "seed": 0}
    rows = [
        columns | row | {"fact": f"{number} {row['fact']}"}
        for condition in KNOWN
        for row in search_condition(halves, condition, KNOWN_LAYER, settings)["subspaces"]
    ]
    return {"known": rows}
