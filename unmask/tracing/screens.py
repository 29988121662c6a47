"""Estimates of a circuit's effects by gradients, all nodes, edges and neurons at once.

Attribution (Syed et al. 2023, arXiv 2310.10348): what a node's exchange does to first order, its
change times the slope of the metric at what reads it. Integrated gradients (Hanna et al. 2024,
arXiv 2403.17806) take the mean of slopes on the way from the question's embeddings to the other's.
`unmask.tracing.circuits` has the exact effects that they are judged by.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.tracing.circuits import EdgeScores, Wiring

SCREENS = ("attribution", "integrated")
POINTS = 5
"""Points on the way between two questions at which gradients are taken."""


@dataclass(frozen=True)
class ScreenScores:
    """Estimated losses of the metric, each as if exchanged alone."""

    nodes: Float[Tensor, "C R"]
    edges: EdgeScores
    neurons: Float[Tensor, "layers F R"]


def screen(wiring: Wiring, method: str, points: int = POINTS) -> ScreenScores:
    """Every effect estimated by a method, one of `SCREENS`.

    Args:
        wiring: The step that is asked.
        method: attribution, or integrated.
        points: Of integrated gradients, evenly spread over the way.
    """
    assert method in SCREENS, method
    # Midpoints of equal pieces of the way; attribution takes the slope where it begins.
    places = [(i + 0.5) / points for i in range(points)] if method == "integrated" else [0.0]
    each = [_screen_at(wiring, place) for place in places]
    return ScreenScores(
        *(torch.stack(own).mean(0) for own in zip(*map(_list_fields, each), strict=True))
    )


def _list_fields(one: ScreenScores) -> tuple[Tensor, ...]:
    return one.nodes, one.edges, one.neurons


def _screen_at(wiring: Wiring, place: float) -> ScreenScores:
    """The estimates by the slopes at one point between the embeddings of both questions."""
    layers, heads = wiring.layers, wiring.heads
    changes = wiring.changes.clone()
    slopes = find_slopes(wiring, place)
    in_role = wiring.in_role.to(changes)
    # 1. Nodes: change · slope where the component writes, summed over a role's positions.
    writes = [slopes["embed"]]
    for layer in range(layers):
        writes += [slopes[f"layers.{layer}.attn_out"]] * heads
        writes.append(slopes[f"layers.{layer}.mlp_out"])
    gains = (changes * torch.stack(writes)).sum(-1)  # [C, L]
    # 2. Edges: change · slope of what this reader alone reads, by reader and role.
    shape = wiring.edges.shape
    edges = torch.zeros(shape, dtype=torch.float64)
    own = torch.arange(len(wiring.names))
    for layer in range(layers):
        first, number = wiring.first_of(layer), wiring.first_of(layer) + heads
        read = _slope_heads(wiring, layer, slopes)  # [H, R, L, D]
        products = torch.einsum("cld,hqld->hqcl", changes[:first], read)
        edges[first:number, :, :first] = torch.einsum("hqcl,sl->hqcs", products, in_role).double()
        upto = wiring.readable(number)
        read = _slope_mlp(wiring, layer, slopes)  # [L, D]
        by_role = torch.einsum("cld,ld,sl->sc", changes[:upto], read, in_role).double()
        edges[number, own, :upto, own] = by_role
    by_role = torch.einsum("cld,ld,sl->sc", changes, slopes["end"], in_role).double()
    edges[wiring.count, own, :, own] = by_role
    # 3. Neurons: the change of a key · the slope there.
    with torch.no_grad():
        moved = [_list_keys(wiring, layer) for layer in range(layers)]
    keys = torch.stack([(keys[0] - keys[1]) * slopes[f"layers.{layer}.mlp_key"]
                        for layer, keys in enumerate(moved)])  # fmt: skip
    neurons = torch.einsum("nlf,rl->nfr", keys, in_role)
    return ScreenScores(
        torch.einsum("cl,rl->cr", gains, in_role).cpu(),
        edges.masked_fill(~wiring.edges, torch.nan),
        neurons.cpu(),
    )


def find_slopes(wiring: Wiring, place: float) -> Mapping[str, Float[Tensor, "L _"]]:
    """Slopes of the metric at every site between both questions, and what stood there.

    Slopes stand under the names of sites, `embed` and `end` those of the stream; streams that
    attention and MLP read stand under `reads.` and `x.`, with the layer.
    """
    net, contrast = wiring.net, wiring.contrast
    parts = ("resid_in", "attn_z", "attn_out", "mlp_key", "mlp_out")
    sites = [f"layers.{layer}.{part}" for layer in range(wiring.layers) for part in parts]
    ends = wiring.record.entering[0].clone()  # outside of inference mode
    start = (ends[:1] + place * (ends[1:] - ends[:1])).requires_grad_()
    with torch.enable_grad(), net.capture(*sites) as taken:
        end = net.run_layers(start)
        metric = contrast.read(end).sum()
        wanted = [start, end, *(taken[site] for site in sites)]
        slopes = torch.autograd.grad(metric, wanted, allow_unused=True)
    named = dict(zip(("embed", "end", *sites), zip(wanted, slopes, strict=True), strict=True))
    by_site = {
        name: (torch.zeros_like(x) if slope is None else slope)[0].detach()
        for name, (x, slope) in named.items()
    }
    for layer in range(wiring.layers):
        x, attn = (taken[f"layers.{layer}.{part}"].detach() for part in ("resid_in", "attn_out"))
        by_site[f"x.{layer}"] = x[0]
        by_site[f"reads.{layer}"] = net.block(layer).after_attention(x, attn)[0][0]
    return by_site


def _slope_heads(
    wiring: Wiring, layer: int, slopes: Mapping[str, Tensor]
) -> Float[Tensor, "H R L D"]:
    """The slope of the metric at the stream as each head reads it for the rows of each role."""
    heads, roles = wiring.heads, len(wiring.names)
    # 1. The stream once for each head and role, and of each copy's mixtures what counts of it.
    x = slopes[f"x.{layer}"].expand(heads * roles, -1, -1).clone().requires_grad_()
    alone = torch.eye(heads, device=x.device)[:, None, None, :, None]
    weights = slopes[f"layers.{layer}.attn_z"] * alone  # [H, 1, L, H, d]
    weights = weights * wiring.in_role[:, :, None, None].to(weights)
    with torch.enable_grad():
        mixed = (wiring.attend(layer, x) * weights.flatten(0, 1)).sum()
    return torch.autograd.grad(mixed, x)[0].unflatten(0, (heads, roles))


def _slope_mlp(wiring: Wiring, layer: int, slopes: Mapping[str, Tensor]) -> Float[Tensor, "L D"]:
    """The slope of the metric at the stream as the MLP reads it."""
    x = slopes[f"reads.{layer}"].clone().requires_grad_()
    with torch.enable_grad():
        written = wiring.net.block(layer).through_mlp(x[None])[0]
        total = (written * slopes[f"layers.{layer}.mlp_out"]).sum()
    return torch.autograd.grad(total, x)[0]


def _list_keys(wiring: Wiring, layer: int) -> Float[Tensor, "2 L F"]:
    """The MLP's inner activations in both questions."""
    block, record = wiring.net.block(layer), wiring.record
    reads, _ = block.after_attention(record.entering[layer], record.attn[layer])
    return block.mlp_key(reads)


@torch.inference_mode()
def measure_neurons(
    wiring: Wiring, groups: Sequence[tuple[int, Sequence[int], int]]
) -> Float[Tensor, "G"]:
    """What the answer loses where neurons take the values they have in the other question.

    Args:
        wiring: The step that is asked.
        groups: (layer, neurons, number of the role) each; neurons of a group are exchanged
            together.
    """
    lost = torch.zeros(len(groups), dtype=torch.float64)
    for layer in sorted({layer for layer, _, _ in groups}):
        keys, block = _list_keys(wiring, layer), wiring.net.block(layer)
        here = [number for number, group in enumerate(groups) if group[0] == layer]
        for start in range(0, len(here), 64):
            numbers = here[start : start + 64]
            changed = keys[:1].repeat(len(numbers), 1, 1)
            for row, number in enumerate(numbers):
                _, neurons, role = groups[number]
                at = wiring.in_role[role].nonzero()
                changed[row, at, list(neurons)] = keys[1, at, list(neurons)]
            # What is added to the stream is linear in the key.
            moved = block.mlp_out(changed) - block.mlp_out(keys[:1])
            ends = wiring.run_from(layer + 1, wiring.record.entering[layer + 1][:1] + moved)
            lost[numbers] = wiring.ends()[0] - ends.cpu()
    return lost
