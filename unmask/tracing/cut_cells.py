"""Runs with edges of attention cut: many at once, and of each what is its own and what is read."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.net.blocks import Block
from unmask.net.taps import untouched
from unmask.net.view import View
from unmask.tracing.question import Question
from unmask.tracing.windows import Window

CutCell = tuple[int, Window]
"""The number of an edge, and the layers in which it is cut."""


def run_cells(
    question: Question,
    cells: Sequence[CutCell],
    cuts: Bool[Tensor, "E L L"],
    sees: Sequence[Bool[Tensor, "L L"]],
    streams: Sequence[Float[Tensor, "1 L D"]],
    read: Int[Tensor, "A"],
) -> Float[Tensor, "B A D"]:
    """The stream that leaves the last layer in each cell, at the rows that are read.

    It begins as the clean run, whose streams enter the layers. Cells of one edge whose windows
    begin together are one run until the first of them ends. In the layer where a run begins only
    the rows that its cut changes are run, and of the last layer those that are read, unless a patch
    may look at the others.
    """
    net, last = question.model.net, len(sees) - 1
    x, whole, runs = streams[0][:0], net.view(streams[0]), list[tuple[int, int, int]]()
    for layer in range(min(start for _, (start, _) in cells), last + 1):
        # 1. Runs [B, L, D] by edge, start, and the end of their cuts so far; each goes on from the
        #    one that was it before this layer, or from the clean run: these stand last.
        before, parents = {run: i for i, run in enumerate(runs)}, dict[tuple[int, int, int], int]()
        for edge, (start, stop) in cells:
            if start <= layer:
                parent = before.get((edge, start, min(stop, layer)), len(runs))
                parents[edge, start, min(stop, layer + 1)] = parent
        runs = sorted(parents, key=lambda run: run[1] == layer)
        x = torch.cat((x, streams[layer]))[[parents[run] for run in runs]]
        # 2. What each can read: less by its cut, unless its window has ended.
        is_cut = torch.tensor([stop > layer for *_, stop in runs], device=x.device)
        cut = cuts[[edge for edge, *_ in runs]] & is_cut[:, None, None]
        mask = (sees[layer] & ~cut)[:, None]
        view, block = replace(whole.of(layer), mask=mask, is_causal=False), net.block(layer)
        if net.taps.attached:
            tokens = question.tokens[0].expand(len(x), -1)
            with net.taps.on_tokens(tokens), net.taps.in_rows((0,)):
                x = block.run(x, view, net.taps.at(f"layers.{layer}."))
            x = x[:, read] if layer == last else x
        elif layer == last:
            queries, keys, values = block.read(x, view.cos, view.sin)
            z = block.attend(queries[:, read], keys, values, mask[:, :, read])
            x = block.finish(x[:, read], block.attn_out(z))[0]
        else:
            old = sum(start < layer for _, start, _ in runs)
            is_changed = (sees[layer] & cut[old:]).any(-1)
            new = _begin(
                block, replace(view, mask=mask[old:]), *streams[layer : layer + 2], is_changed
            )
            x = block.run(x[:old], replace(view, mask=mask[:old]), untouched) if old else x[:0]
            x = torch.cat((x, new))
    if net.taps.attached and not net.taps.changed:  # what no patch changed is as without any
        with net.taps.silenced():
            return run_cells(question, cells, cuts, sees, streams, read)
    at = {run: i for i, run in enumerate(runs)}
    return x[[at[edge, start, min(stop, last + 1)] for edge, (start, stop) in cells]]


def _begin(
    block: Block,
    view: View,
    entering: Float[Tensor, "1 L D"],
    leaving: Float[Tensor, "1 L D"],
    is_changed: Bool[Tensor, "B L"],
) -> Float[Tensor, "B L D"]:
    """The streams that leave a layer in which cuts begin: the clean one's but for some rows."""
    # 1. What is read is the clean run's [1, L, H, d]; what is made of it differs by the masks.
    number, (run, row) = len(is_changed), is_changed.nonzero(as_tuple=True)
    queries, keys, values = (
        each.expand(number, -1, -1, -1) for each in block.read(entering, view.cos, view.sin)
    )
    z = block.attend(queries, keys, values, view.mask)[run, row]
    # 2. The rest of the layer at the N changed rows alone [N, D], put over the clean stream.
    streams = leaving.expand(number, -1, -1).clone()
    streams[run, row] = block.finish(entering[0, row], block.attn_out(z))[0]
    return streams
