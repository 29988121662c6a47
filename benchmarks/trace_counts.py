"""Floating-point operations of a trace, by closed form: ours, and those of one cell at a time."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from unmask.net.config import NetConfig
from unmask.net.counts import count_flops, count_mlp_entries
from unmask.tracing.windows import PROJECTED, plan_part


@dataclass(frozen=True)
class _Costs:
    """Operations of one restored run of `length` tokens, read at `num_read` rows."""

    config: NetConfig
    length: int
    num_read: int

    def project(self, positions: int) -> int:
        """Queries, keys and values."""
        config = self.config
        heads = config.heads + 2 * config.kv
        return 2 * positions * config.width * heads * config.head_dim

    def out(self, positions: int) -> int:
        return 2 * positions * self.config.heads * self.config.head_dim * self.config.width

    def mlp(self, layer: int, positions: int) -> int:
        return 2 * positions * count_mlp_entries(self.config, layer)

    def attend(self, queries: int) -> int:
        return 4 * queries * self.length * self.config.heads * self.config.head_dim

    def layer(self, layer: int, changed: int, active: int) -> int:
        """A layer whose input changed at some positions and whose output is wanted at others."""
        attention = self.project(changed) + self.attend(self.length) + self.out(active)
        return attention + self.mlp(layer, active)

    def last(self, changed: int) -> int:
        read, last = self.num_read, self.config.layers - 1
        return self.project(changed) + self.attend(read) + self.out(read) + self.mlp(last, read)

    def logits(self) -> int:
        config = self.config
        rows = config.logit_rows + config.head_mlp * config.width
        return 2 * self.num_read * config.width * rows

    def finish(self, layer: int, active: int, fresh: bool) -> int:
        """From entering `layer` to the logits; `fresh`: only the patched position changed."""
        last = self.config.layers - 1
        total = self.logits()
        for between in range(layer, last):
            total += self.layer(between, 1 if fresh and between == layer else active, active)
        if layer <= last:
            total += self.last(1 if fresh and layer == last else active)
        return total


def count_trace_flops(
    config: NetConfig,
    length: int,
    samples: int,
    read_rows: Collection[int],
    parts: Sequence[str] = ("resid", "mlp", "attn"),
    window: int = 10,
    same_before: int = 0,
) -> int:
    """Operations of a trace of every token, the clean and corrupted runs included.

    `length` is that of the rows that are run (a causal network's end at the last row read), and
    `same_before` the first corrupted position of a causal network.
    """
    costs = _Costs(config, length, len(read_rows))
    layers = sum(costs.layer(layer, length, length) for layer in range(config.layers))
    total = (1 + samples) * (layers + costs.logits())
    for part in parts:
        for position in range(same_before if config.causal else 0, length):
            block = 1 if config.causal else config.block or length
            active = length - position // block * block
            is_read = position in read_rows
            total += samples * _count_position(costs, part, window, active, is_read)
    return total


def _count_position(costs: _Costs, part: str, window: int, active: int, is_read: bool) -> int:
    """Operations of one position of one part, in all layers, for one sample."""
    last, total = costs.config.layers - 1, 0
    for trunk in plan_part(costs.config, part, window).trunks:
        if part in PROJECTED:
            total += costs.project(1) + costs.finish(trunk.start, active, fresh=True)
            continue
        if trunk.start == last and not is_read:
            continue
        if part == "attn":
            total += costs.mlp(trunk.start, 1)
        inside = range(trunk.start + 1, min(trunk.end, last))
        for layer in inside:
            total += costs.layer(layer, 1 if layer == inside[0] else active, active)
            total += costs.mlp(layer, 1) if part == "attn" else 0
            if layer in trunk.stops:
                total += costs.finish(layer + 1, active, fresh=False)
        fresh = not inside
        if trunk.end <= last or trunk.start == last:
            total += costs.finish(trunk.end, active, fresh)
        else:
            ends = 2 if last in trunk.stops else 1
            total += ends * costs.finish(last, active, fresh)
    return total


def count_plain_flops(config: NetConfig, length: int, samples: int, num_parts: int) -> int:
    """Operations of one whole forward pass per cell, a clean row beside the samples, all logits."""
    cells = num_parts * config.layers * length
    return (cells + 1) * (samples + 1) * count_flops(config, length)
