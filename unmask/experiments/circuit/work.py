"""A step's circuit in rows, and how exact edges and screens do on networks of known mechanism."""

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unmask.base.seeds import torch_stream
from unmask.compiled.paths import list_needed_paths
from unmask.evaluation.detection import find_area
from unmask.experiments.bench.networks import KnownNetwork
from unmask.experiments.bench.rewrite import choose_others
from unmask.experiments.bench.task import Localisation, count_positions, list_localisations
from unmask.measures.measure import Rows
from unmask.tracing.circuits import Contrast, Wiring
from unmask.tracing.faithfulness import measure_faithfulness
from unmask.tracing.screens import SCREENS, ScreenScores, measure_neurons, screen

if TYPE_CHECKING:
    from unmask.experiments.circuit.measure import CircuitSettings

RANDOM = "random"
GROUPED = (1, 16)
"""Neurons of a layer that are exchanged together: the strongest alone, and the strongest."""
KNOWN_ASKED = 4
"""Questions that a known network is asked at each step."""


def map_step(contrast: Contrast, settings: "CircuitSettings") -> Mapping[str, Rows]:
    """Rows of nodes, edges, neurons, and of the step as a whole."""
    begin = time.process_time()
    with count_positions(contrast.model) as cost:
        wiring = Wiring(contrast)
        nodes = wiring.measure_nodes()
        screens = {name: screen(wiring, name, settings.points) for name in SCREENS}
        drawn, chosen = choose_edges(wiring, screens, settings)
        edges = wiring.measure_edges(chosen)
        neurons = list(_list_neurons(wiring, screens, settings))
    seconds = time.process_time() - begin
    clean, other = wiring.ends()
    orders = {name: each.edges for name, each in screens.items()}
    if bool(chosen[wiring.edges].all()):
        orders["exact"] = edges
    stream = torch_stream(settings.seed, "order of edges", *contrast.clean.tolist())
    orders[RANDOM] = torch.rand(edges.shape, generator=stream)
    whole = contrast.model.net.config.layers * len(contrast.clean)
    step = {"clean": clean, "other": other, "edges": int(wiring.edges.sum()),
            "measured": int(chosen.sum()), "passes": cost.positions / whole,
            "seconds": seconds}  # fmt: skip
    rows = []
    for name, order in orders.items():
        areas = measure_faithfulness(wiring, order)
        rows.append({"screen": name, "cpr": areas.cpr, "cmd": areas.cmd, **step})
    return {
        "circuit": list(_list_nodes(wiring, nodes, screens)),
        "edges": list(_list_edges(wiring, edges, drawn, screens)),
        "neurons": neurons,
        "steps": rows,
    }


def choose_edges(
    wiring: Wiring, screens: Mapping[str, ScreenScores], settings: "CircuitSettings"
) -> tuple[Tensor, Tensor]:
    """The edges drawn at random, and all that are exact: those, and each screen's strongest."""
    stream = torch_stream(settings.seed, "edges", *wiring.contrast.clean.tolist())
    drawn = wiring.edges & (torch.rand(wiring.edges.shape, generator=stream) < settings.edges)
    chosen, most = drawn.clone(), max(1, round(settings.strongest * int(wiring.edges.sum())))
    for each in screens.values():
        order = each.edges.abs().nan_to_num(-1.0).flatten()
        chosen.view(-1)[order.topk(most).indices] = True
    return drawn, chosen


def locate_node(wiring: Wiring, number: int, role: int) -> dict[str, Any]:
    component = wiring.components[number]
    return {
        "layer": component.layer,
        "part": component.part,
        "head": component.head,
        "role": wiring.names[role],
    }


def _list_nodes(
    wiring: Wiring, nodes: Tensor, screens: Mapping[str, ScreenScores]
) -> Iterator[dict[str, Any]]:
    for number in range(wiring.count):
        for role in range(len(wiring.names)):
            estimates = {name: float(each.nodes[number, role]) for name, each in screens.items()}
            effect = float(nodes[number, role])
            yield {**locate_node(wiring, number, role), "effect": effect, **estimates}


def _list_edges(
    wiring: Wiring, edges: Tensor, drawn: Tensor, screens: Mapping[str, ScreenScores]
) -> Iterator[dict[str, Any]]:
    for place in (~edges.isnan()).nonzero().tolist():
        at = tuple(place)
        read = {f"read_{key}": x for key, x in locate_node(wiring, *place[2:]).items()}
        estimates = {name: float(each.edges[at]) for name, each in screens.items()}
        exact = {"is_drawn": bool(drawn[at]), "effect": float(edges[at])}
        yield {**locate_node(wiring, *place[:2]), **read, **exact, **estimates}


def _list_neurons(
    wiring: Wiring, screens: Mapping[str, ScreenScores], settings: "CircuitSettings"
) -> Iterator[dict[str, Any]]:
    """The strongest neurons by integrated gradients, alone; and the strongest of each layer
    together at the role where they are strongest, beside as many at random."""
    scores = screens["integrated"].neurons  # [layers, F, R]
    groups: list[tuple[str, tuple[int, list[int], int]]] = []
    for place in scores.abs().flatten().topk(min(settings.neurons, scores.numel())).indices:
        layer, neuron, role = (int(x) for x in torch.unravel_index(place, scores.shape))
        groups.append(("alone", (layer, [neuron], role)))
    stream = torch_stream(settings.seed, "neurons", *wiring.contrast.clean.tolist())
    size = min(GROUPED[1], scores.shape[1])
    for layer in range(wiring.layers if settings.neurons else 0):
        by_role = scores[layer].abs().topk(size, dim=0)
        role = int(by_role.values.sum(0).argmax())
        groups.append(("strongest", (layer, by_role.indices[:, role].tolist(), role)))
        others = torch.randperm(scores.shape[1], generator=stream)[:size].tolist()
        groups.append((RANDOM, (layer, others, role)))
    effects = measure_neurons(wiring, [group for _, group in groups]).tolist()
    for (group, (layer, neurons, role)), effect in zip(groups, effects, strict=True):
        estimate = float(scores[layer, neurons, role].sum())
        yield {
            "group": group, "layer": layer, "neuron": neurons[0] if group == "alone" else None,
            "number": len(neurons), "role": wiring.names[role], "effect": effect,
            "integrated": estimate,
        }  # fmt: skip


def judge_known(network: KnownNetwork, points: int) -> Mapping[str, Rows]:
    """How well exact edges and each screen find the edges that matter in the program."""
    compiled = network.compiled
    needed, truth = list_needed_paths(compiled), list[Tensor]()
    scores: dict[str, list[Tensor]] = {name: [] for name in ("exact", *SCREENS, RANDOM)}
    for task in list_localisations(compiled):
        own: dict[str, Any] = dict.fromkeys(("exact", *SCREENS), 0.0)
        for contrast in list_contrasts(task, KNOWN_ASKED):
            wiring = Wiring(contrast)
            own["exact"] = own["exact"] + wiring.measure_edges().abs()
            for name in SCREENS:
                own[name] = own[name] + screen(wiring, name, points).edges.abs()
        own[RANDOM] = torch.rand(wiring.edges.shape, generator=torch_stream(0, network.name))
        is_needed = torch.zeros_like(wiring.edges)
        for path in needed[task.step]:
            is_needed[path] = True
        assert not (is_needed & ~wiring.edges).any()
        truth.append(is_needed[wiring.edges])
        for name, each in own.items():
            scores[name].append(each[wiring.edges])
    is_true, known = torch.cat(truth).numpy(), network.columns
    columns = {"fact": network.name, "seed": 0, "edges": len(is_true), "needed": is_true.sum()}
    columns |= {name: known[name] for name in ("mechanism", "reads")}
    areas = {
        name: find_area(torch.cat(each).double().numpy(), is_true) for name, each in scores.items()
    }
    return {"known": [{**columns, "screen": name, "auroc": x} for name, x in areas.items()]}


def list_contrasts(task: Localisation, number: int) -> Iterator[Contrast]:
    """The first questions of a task, each beside the next one with another word, by position."""
    others, roles = choose_others(task).tolist(), tuple(map(str, range(task.tokens.shape[1])))
    words = task.words.tolist()
    for own, other in list(enumerate(others))[:number]:
        yield Contrast(
            task.model, task.tokens[own], task.tokens[other], (task.reads,), (words[own],),
            (words[other],), roles,
        )  # fmt: skip
