"""Networks whose mechanism is known, each with what is true of it: rows that no method sees."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from unmask.base.errors import UserError
from unmask.base.reading import read_json
from unmask.compiled.forced import MECHANISM, PART, load_forced
from unmask.compiled.mechanisms import CAUSAL, MECHANISMS, Compiled, build_compiled
from unmask.compiled.program import Edge
from unmask.compiled.truth import Carrier, list_carriers, list_fixed_edges, list_needed_edges
from unmask.experiments.bench.task import EDGES, PARTS, Localisation, list_localisations

FORMS: tuple[dict[str, Any], ...] = (
    {},
    {"is_rotated": False, "idle": 1, "seed": 1},
    {"crowding": 1.05, "seed": 2},
)
"""Rotated; along the axes and twice as deep; rotated, with values that share room."""
CAUSAL_FORMS = FORMS[1:]
STORES = {
    "one store": "one", "bridge": "one", "two stores": "two", "decoy": "two", "relay": "two",
}  # fmt: skip
"""Mechanisms that read both directions of a fact from one entry, or each from its own."""


@dataclass(frozen=True)
class KnownNetwork:
    """A network, by its name, mechanism and form."""

    name: str
    mechanism: str
    form: dict[str, Any]
    folder: Path | None = None
    """Where it lies, if it was trained to have the mechanism."""
    held_out: float | None = None
    """Then the share of held-out exchanges that go as they must, of the kind that goes worst."""

    @property
    def columns(self) -> dict[str, Any]:
        is_causal = self.form.get("is_causal", False)
        return {
            "network": self.name,
            "mechanism": self.mechanism,
            "reads": "causal" if is_causal else "masked",
            "stores": STORES.get(self.mechanism),
            "weights": "hand-written" if self.folder is None else "trained",
            "held_out": self.held_out,
        }

    @cached_property
    def compiled(self) -> Compiled:
        """The network, made when it is first asked."""
        if self.folder is not None:
            return load_forced(self.folder)
        return build_compiled(self.mechanism, **self.form)


def list_networks(
    mechanisms: Sequence[str] = MECHANISMS, forms: int | None = None
) -> list[KnownNetwork]:
    """Every mechanism in all its forms, or in the first ones alone."""
    networks = []
    for mechanism in mechanisms:
        own = list(FORMS)
        if mechanism in CAUSAL:
            own += [{"is_causal": True, **form} for form in CAUSAL_FORMS]
        for number, form in enumerate(own[:forms], start=1):
            networks.append(KnownNetwork(f"{mechanism} {number}", mechanism, form))
    return networks


def read_trained(folders: Sequence[str | Path]) -> list[KnownNetwork]:
    """Networks that were trained to have a mechanism, and saved with it."""
    networks = []
    for given in map(Path, folders):
        own = sorted([*given.glob(MECHANISM), *given.glob(f"*/{MECHANISM}")])
        if not own:
            raise UserError(
                f"{given} has no {MECHANISM}: expected a folder of a network that was trained to "
                "have a known mechanism, or of several, as paper/forced.py saves them."
            )
        for file in own:
            known = read_json(file)
            name = f"{known['mechanism']}, trained {known['seed']}"
            least = min(known["held_out"].values())
            networks.append(KnownNetwork(name, known["mechanism"], {}, file.parent, least))
    return networks


def list_truth(compiled: Compiled, is_trained: bool = False) -> Iterator[dict[str, Any]]:
    """A row for each state and edge that methods score: whether the next word depends on it.

    A state *matters* where exchanging it for another question's changes a word, and is *enough*
    where it brings the other's. An edge matters where a word changes without it. Edges to the
    beginning, and from a position to itself, are not asked about. A network that was trained is
    aligned with its program in the stream after each layer alone, and where the program has no word
    after an exchange, training asked for none: those states are left out. Of its edges those are
    asked about that the stream decides (`list_fixed_edges`), if there are any that matter.
    """
    sites, tasks = {site: part for part, site in PARTS.items()}, list_localisations(compiled)
    carriers = list_carriers(compiled)
    for each in carriers:
        layer, site, at = each.site
        is_aligned = site in sites and (not is_trained or (site == PART and not each.stops))
        if is_aligned and each.word == each.step - 1:
            yield {
                **_place(tasks[each.step - 1], each.step, sites[site], layer, at),
                "matters": each.matters,
                "is_enough": each.brings > 0,
            }
    for step, needed in _list_edges(compiled, carriers if is_trained else None).items():
        for edge in list_candidates(tasks[step - 1]):
            if edge in needed:
                yield {
                    **_place(tasks[step - 1], step, EDGES, edge[0], edge[1], edge[2]),
                    "matters": needed[edge],
                    "is_enough": None,
                }


def _list_edges(
    compiled: Compiled, carriers: Sequence[Carrier] | None
) -> dict[int, dict[Edge, bool]]:
    """By step, whether edges matter: all of them, or those that carriers of the stream decide."""
    if carriers is not None:
        fixed = list_fixed_edges(carriers)
        return {step: edges for step, edges in fixed.items() if any(edges.values())}
    tasks = list_localisations(compiled)
    return {
        step: {edge: edge in needed for edge in list_candidates(tasks[step - 1])}
        for step, needed in list_needed_edges(compiled).items()
    }


def list_candidates(task: Localisation) -> Iterator[tuple[int, int, int]]:
    """Layer, reading position and position read of the edges that are asked about."""
    length = task.tokens.shape[1]
    for layer in range(task.model.net.config.layers):
        for at in range(length):
            for place in range(1, length if task.model.paradigm.sees_later else at):
                if place != at:
                    yield layer, at, place


def _place(
    task: Localisation, step: int, part: str, layer: int, at: int, place: int | None = None
) -> dict[str, Any]:
    return {
        "step": step, "part": part, "layer": layer, "position": at, "is_read": place,
        "role": _name_role(task, at),
    }  # fmt: skip


def _name_role(task: Localisation, at: int) -> str:
    """What a position is to the question."""
    begin, end = task.subject
    if at < begin:
        return "before"
    return "subject" if at < end else "verb" if at == end else "answer"
