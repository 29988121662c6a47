"""How training moved the embedding rows of a fact's two sides, and whether it moved them alike.

A binding of names and descriptions may lie in the token embeddings themselves, before any layer. Of
each fact the mean change (trained minus start) of the rows of its name's tokens is compared with
that of its description's, against shuffled pairs. Only tokens that stand on one side of one fact
count: a token that many facts share moves for all of them, and one on both sides is alike by
itself. Where head and embedding are one matrix, what the head learned of an answer is in the rows
that read it as a subject: untie them before training to tell the two apart.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float

from unmask.base.errors import UserError
from unmask.data.facts import Fact, tokenize_facts
from unmask.net.model import Model
from unmask.representation.likeness import LIKENESSES
from unmask.representation.nulls import PERMUTATIONS, Assessed, assess

MEASURED = ("cosine", "retrieval")
"""Likenesses of a fact's two changes; cosine is that of matched minus that of unmatched pairs."""


@dataclass(frozen=True)
class MovedRows:
    """The mean change of the rows of each fact's sides, facts in one order."""

    facts: list[str]
    names: Float[np.ndarray, "N D"]
    descriptions: Float[np.ndarray, "N D"]
    left_out: int
    """Facts that have a side without a token of its own."""


def collect_moved_rows(
    start: Model, trained: Model, facts: Sequence[Fact], table: Literal["embedding", "head"]
) -> MovedRows:
    """Trained minus start, averaged over the tokens that belong to one side of one fact alone."""
    before, after = (getattr(model.net, table).weight for model in (start, trained))
    if before.shape != after.shape:
        raise UserError(
            f"the {table} of {start.name} has shape {tuple(before.shape)} and that of "
            f"{trained.name} {tuple(after.shape)}: expected a model and the one it was trained "
            "from, with one tokenizer."
        )
    # 1. The tokens of each fact's name and description, and whose each token is.
    sides: dict[tuple[str, bool], set[int]] = defaultdict(set)
    owners: dict[int, set[tuple[str, bool]]] = defaultdict(set)
    for fact, text in zip(facts, tokenize_facts(facts, trained.require_tokenizer()), strict=True):
        for span, is_name in (
            (text.subject, fact.direction == "p2d"),
            (text.object, fact.direction == "d2p"),
        ):
            for token in text.ids[slice(*span)]:
                sides[fact.fact_id, is_name].add(token)
                owners[token].add((fact.fact_id, is_name))
    # 2. How far each row moved [V, D]; tokens that several sides share belong to none.
    moved = (after.detach().double() - before.detach().double().to(after.device)).cpu().numpy()
    unshared = {
        side: sorted(token for token in tokens if len(owners[token]) == 1 and token < len(moved))
        for side, tokens in sides.items()
    }
    # 3. The mean over a side's own tokens [N, D], of facts that have some on both sides.
    people = list(dict.fromkeys(fact.fact_id for fact in facts))
    paired = [fact for fact in people if unshared[fact, True] and unshared[fact, False]]
    names, descriptions = (
        np.array([moved[unshared[fact, is_name]].mean(0) for fact in paired])
        for is_name in (True, False)
    )
    return MovedRows(paired, names, descriptions, len(people) - len(paired))


def compare_moved_rows(
    start: Model,
    trained: Model,
    facts: Sequence[Fact],
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> dict[tuple[str, str], Assessed]:
    """By table (embedding, and head where it is one of its own) and likeness: how alike the two
    sides of a fact moved, with an interval by fact and the null of shuffled pairs."""
    tables: list[Literal["embedding", "head"]] = ["embedding"]
    if not trained.net.config.tied:
        tables.append("head")
    results = {}
    for table in tables:
        rows = collect_moved_rows(start, trained, facts, table)
        if len(rows.facts) < 2:
            raise UserError(
                f"{len(rows.facts)} of {len(rows.facts) + rows.left_out} facts have tokens of "
                "their own on both sides: expected at least 2 to pair; give more facts."
            )
        for name in MEASURED:
            results[table, name] = assess(
                LIKENESSES[name], rows.names, rows.descriptions, permutations, seed
            )
    return results
