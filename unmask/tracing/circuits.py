"""Circuits of a denoising step: what each head and MLP gives the answer, and along which edges.

A node is a head, an MLP or the embeddings, at the positions of one role. Within a step a node's
value is added to the stream, which every later head and MLP reads, and the logits at the end: each
reading is an edge. An edge's exact effect is what the answer loses where this reader alone reads
the value of another question's run (path patching, Goldowsky-Dill et al. 2023, arXiv 2304.05969);
whatever follows from what the reader then writes is run on. A circuit is a set of edges: all others
carry the other question's values.

A step begins with tokens and ends with tokens: between steps there is no edge but those of the
embeddings of tokens that an earlier step committed.

`unmask.tracing.screens` estimates all of this by gradients.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.net.blocks import ParallelBlock
from unmask.net.model import Model
from unmask.tracing.paths import check_blocks
from unmask.tracing.record import record_run

ROWS_AT_ONCE = 256
"""Rows of a batch that is run on."""
ROLES = ("before", "first", "middle", "last", "further", "committed", "answer", "masks", "written")
"""Prompt before the subject, the subject's tokens, the rest of the prompt, tokens of the answer
that stand already, the positions that predict, other masks and other tokens that are written."""
EdgeScores = Float[Tensor, "V R C R"]
"""By the reading component (the last one: the logits) and its role, and the component that is read
and its role; NaN where there is no edge, or none was asked for."""


@dataclass(frozen=True)
class Contrast:
    """A question at a denoising step beside another one, which differs in its tokens alone."""

    model: Model
    clean: Int[Tensor, "L"]
    other: Int[Tensor, "L"]
    reads: tuple[int, ...]
    """The positions whose logits are read."""
    words: tuple[int, ...]
    """The own answer's token at each."""
    foils: tuple[int, ...]
    """The other question's."""
    roles: tuple[str, ...]
    """What each position is to the question."""

    def __post_init__(self) -> None:
        if len(self.clean) != len(self.other):
            raise UserError(
                f"the question has {len(self.clean)} tokens, and the other one {len(self.other)}: "
                "expected two of the same length, whose positions stand for the same."
            )

    def read(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B"]:
        """The logit of the own answer's tokens minus that of the other's, mean over tokens."""
        at, words, foils = (
            torch.tensor(each, device=x.device) for each in (self.reads, self.words, self.foils)
        )
        logits = self.model.net.unembed(x, at).double()  # [B, A, V]
        rows = torch.arange(len(at), device=x.device)
        return (logits[:, rows, words] - logits[:, rows, foils]).mean(-1)


@dataclass(frozen=True)
class Component:
    """The embeddings, a head or an MLP."""

    layer: int
    part: str
    """embed, head, mlp, or logits for what reads at the end."""
    head: int | None = None


class Wiring:
    """The nodes and edges of one step, with the two runs between which they are exchanged."""

    def __init__(self, contrast: Contrast):
        model, self.contrast = contrast.model, contrast
        net, self.net = model.net, model.net
        check_blocks(model)
        net.taps.require_none("a circuit", why="reads each head's stream by itself")
        with torch.inference_mode():
            tokens = torch.stack([contrast.clean, contrast.other])
            self.record = record_run(net, net.embed(tokens), tokens)
        self.layers, self.heads = net.config.layers, net.config.heads
        self.names = tuple(role for role in dict.fromkeys(contrast.roles))
        numbers = [self.names.index(role) for role in contrast.roles]
        self.role_at = torch.tensor(numbers, device=tokens.device)
        self.view = net.view(self.record.entering[0])

    @cached_property
    def components(self) -> list[Component]:
        """Every component in the order of the stream, and what reads at the end."""
        own = [Component(-1, "embed")]
        for layer in range(self.layers):
            own += [Component(layer, "head", head) for head in range(self.heads)]
            own.append(Component(layer, "mlp"))
        return [*own, Component(self.layers, "logits")]

    @property
    def count(self) -> int:
        """Components that write."""
        return len(self.components) - 1

    def first_of(self, layer: int) -> int:
        """The number of a layer's first head."""
        return 1 + layer * (self.heads + 1)

    def readable(self, number: int) -> int:
        """How many components stand in the stream that one of them reads."""
        component = self.components[number]
        is_parallel = component.part == "mlp" and self._is_parallel(component.layer)
        if component.part == "head" or is_parallel:
            return self.first_of(component.layer)
        return number

    def _is_parallel(self, layer: int) -> bool:
        return isinstance(self.net.block(layer), ParallelBlock)

    @cached_property
    def in_role(self) -> Bool[Tensor, "R L"]:
        """Which positions have each role."""
        return self.role_at == torch.arange(len(self.names), device=self.role_at.device)[:, None]

    @cached_property
    def edges(self) -> Bool[Tensor, "V R C R"]:
        """Which edges there are.

        Heads read every role that they see; MLPs and logits their own position alone.
        """
        roles, count = len(self.names), self.count
        is_edge = torch.zeros(count + 1, roles, count, roles, dtype=torch.bool)
        own = torch.eye(roles, dtype=torch.bool)
        seen = torch.ones_like(own)
        if not self.contrast.model.paradigm.sees_later:
            places = [each.nonzero()[:, 0] for each in self.in_role]
            seen = torch.tensor([[bool(s.min() <= q.max()) for s in places] for q in places])
        is_read = self.in_role[:, list(self.contrast.reads)].any(1).cpu()
        for number, component in enumerate(self.components[1:], start=1):
            sees = {"head": seen, "mlp": own, "logits": own & is_read}[component.part]
            is_edge[number, :, : self.readable(number)] = sees[:, None]
        return is_edge

    @cached_property
    def changes(self) -> Float[Tensor, "C L D"]:
        """What each component adds to the stream here minus in the other question."""
        entering, changes = self.record.entering, list[Tensor]()
        changes.append(entering[0][0] - entering[0][1])
        for layer in range(self.layers):
            z = self.record.attn_z[layer]
            each = self.split_heads(layer, z)  # [2, H, L, D]
            changes += [*(each[0] - each[1]), self.record.mlp[layer][0] - self.record.mlp[layer][1]]
        return torch.stack(changes)

    def split_heads(self, layer: int, z: Float[Tensor, "B L H d"]) -> Float[Tensor, "B H L D"]:
        """What each head adds to the stream by itself; attention's bias stands in all of them."""
        alone = torch.eye(self.heads, dtype=z.dtype, device=z.device)[:, None, :, None]
        return self.net.block(layer).attn_out(z[:, None] * alone)

    @torch.inference_mode()
    def ends(self) -> tuple[float, float]:
        """The metric here, and with every token of the other question."""
        clean, other = self.contrast.read(self.record.entering[-1]).tolist()
        return clean, other

    @torch.inference_mode()
    def measure_nodes(self) -> Float[Tensor, "C R"]:
        """What the answer loses where everything reads a node's value of the other question."""
        lost = torch.zeros(self.count, len(self.names), dtype=torch.float64)
        for number, component in enumerate(self.components[:-1]):
            change = -self.changes[number] * self.in_role[..., None].to(self.changes)  # [R, L, D]
            layer = component.layer
            if component.part == "head":
                ends = self._run_on(layer, self.record.attn[layer][:1] + change)
            else:
                ends = self.run_from(layer + 1, self.record.entering[layer + 1][:1] + change)
            lost[number] = self.ends()[0] - ends.cpu()
        return lost

    @torch.inference_mode()
    def measure_edges(self, chosen: Bool[Tensor, "V R C R"] | None = None) -> EdgeScores:
        """What the answer loses where one reader reads a node's value of the other question."""
        chosen = self.edges if chosen is None else chosen & self.edges
        lost = torch.full(chosen.shape, torch.nan, dtype=torch.float64)
        for places, ends in self._run_edges(chosen):
            lost[places.unbind(1)] = self.ends()[0] - ends.cpu()
        return lost

    def _run_edges(self, chosen: Bool[Tensor, "V R C R"]) -> Iterator[tuple[Tensor, Tensor]]:
        """The places [E, 4] of edges that are exchanged, each alone, and the metric then [E]."""
        record, clean = self.record, self.ends()[0]
        for layer in range(self.layers):
            block, first = self.net.block(layer), self.first_of(layer)
            # 1. Heads: what each node's exchange makes of every head's mixture [n, L, H, d]; an
            #    edge changes one head at the rows of one role.
            here = chosen[first : first + self.heads]
            senders = here.any(1).any(0).nonzero()  # [n, 2]
            for part in senders.split(ROWS_AT_ONCE):
                z = self.attend(layer, record.entering[layer][:1] - self._carry(part))
                moved = z - record.attn_z[layer][:1]
                own = here[:, :, part[:, 0], part[:, 1]].nonzero()  # [E, (h, q, n)]
                for edges in own.split(ROWS_AT_ONCE):
                    heads, roles, rows = edges.unbind(1)
                    kept = (
                        self.in_role[roles][:, :, None, None]
                        & torch.eye(self.heads, dtype=torch.bool, device=z.device)[heads][
                            :, None, :, None
                        ]
                    )
                    change = moved[rows] * kept
                    ends = torch.full((len(edges),), clean, dtype=torch.float64, device=z.device)
                    is_moved = change.flatten(1).any(1)
                    if is_moved.any():
                        attn = block.attn_out(record.attn_z[layer][:1] + change[is_moved])
                        ends[is_moved] = self._run_on(layer, attn)
                    yield torch.column_stack((first + heads, roles, part[rows])), ends
            # 2. The MLP, position by position; then what the logits read.
            yield from self._run_own(first + self.heads, chosen)
        yield from self._run_own(self.count, chosen)

    def _run_own(
        self, number: int, chosen: Bool[Tensor, "V R C R"]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Edges of a component that reads its own position: the role read is the reader's."""
        component, record = self.components[number], self.record
        for part in chosen[number].any(0).nonzero().split(ROWS_AT_ONCE):
            change = self._carry(part)
            if component.part == "mlp":
                layer, block = component.layer, self.net.block(component.layer)
                x, attn = record.entering[layer][:1], record.attn[layer][:1]
                reads, stream = block.after_attention(x, attn)
                mlp = block.through_mlp(reads - change)
                # Elsewhere it reads what it read, and so writes what it wrote.
                mlp = torch.where(self.in_role[part[:, 1]][..., None], mlp, record.mlp[layer][:1])
                ends = self.run_from(layer + 1, block.after_mlp(stream.expand_as(mlp), mlp))
            else:
                ends = self.contrast.read(record.entering[-1][:1] - change)
            rows = torch.full((len(part), 1), number)
            yield torch.cat((rows, part[:, 1:], part), 1), ends

    def _carry(self, nodes: Int[Tensor, "n 2"]) -> Float[Tensor, "n L D"]:
        """The changes of nodes: a component's, at the positions of a role."""
        return self.changes[nodes[:, 0]] * self.in_role[nodes[:, 1]][..., None].to(self.changes)

    def attend(self, layer: int, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L H d"]:
        """Each head's mixture of values of a stream."""
        block, view = self.net.block(layer), self.view.of(layer)
        return block.attend(*block.read(x, view.cos, view.sin), view.mask, view.is_causal)

    def _run_on(self, layer: int, attn: Float[Tensor, "B L D"]) -> Float[Tensor, "B"]:
        """The metric where a layer's attention adds something else."""
        block, x = self.net.block(layer), self.record.entering[layer][:1]
        mlp, stream = block.run_mlp(x.expand_as(attn).contiguous(), attn.contiguous())
        return self.run_from(layer + 1, block.after_mlp(stream, mlp))

    def run_from(self, layer: int, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B"]:
        """The metric where something else enters a layer."""
        parts = x.contiguous().split(ROWS_AT_ONCE)
        return torch.cat([self.contrast.read(self.net.run_layers(part, layer)) for part in parts])

    @torch.inference_mode()
    def run_circuits(self, kept: Bool[Tensor, "N V R C R"]) -> Float[Tensor, "N"]:
        """The metric of circuits: edges that are not kept carry the other question's values."""
        return torch.stack([self._run_circuit(each.to(self.role_at.device)) for each in kept])

    def _run_circuit(self, kept: Bool[Tensor, "V R C R"]) -> Float[Tensor, ""]:
        record, role_at = self.record, self.role_at
        other, length = [x[1] for x in record.entering], len(role_at)
        positions = torch.arange(length, device=role_at.device)
        # 1. What nodes add here minus in the other question's run, as far as they are known.
        changes = torch.zeros_like(self.changes)
        changes[0] = self.changes[0]
        weights = kept.to(changes)

        def read_own(number: int, stream: Float[Tensor, "L D"]) -> Float[Tensor, "L D"]:
            each = weights[number][role_at, :, role_at]  # [L, C]
            return stream + torch.einsum("lc,cld->ld", each, changes)

        for layer in range(self.layers):
            block, first = self.net.block(layer), self.first_of(layer)
            # 2. Each head reads, for the rows of each role, a stream of its own [n, L, D]; where
            #    none of its edges is kept, what it reads in the other question.
            each = weights[first : first + self.heads][..., role_at]  # [H, R, C, L]
            heads, roles = each.any(-1).any(-1).nonzero(as_tuple=True)
            streams = other[layer] + torch.einsum("ncl,cld->nld", each[heads, roles], changes)
            z = record.attn_z[layer][1].repeat(self.heads, len(self.names), 1, 1, 1)
            if len(heads):
                z[heads, roles] = self.attend(layer, streams)
            # 3. Of each head's mixtures its own at the rows of the role they were made for.
            z = torch.stack([z[head, role_at, positions, head] for head in range(self.heads)], 1)
            both = self.split_heads(layer, torch.stack((z, record.attn_z[layer][1])))
            changes[first : first + self.heads] = both[0] - both[1]
            # 4. The MLP reads its own positions.
            number = first + self.heads
            reads, _ = block.after_attention(other[layer], record.attn[layer][1])
            mlp = block.through_mlp(read_own(number, reads)[None])[0]
            changes[number] = mlp - record.mlp[layer][1]
        return self.contrast.read(read_own(self.count, other[-1])[None])[0]
