"""Weights of a program: variables become directions, heads and rules matrices that read them.

Each value of each variable is a direction of the stream, of length 1. A further direction, which
every token has in much greater length, keeps the norms nearly constant: a normalised stream is the
stream itself, to a thousandth. What a head or a neuron decides it decides by margins far above
that, so the network does what the program does.
"""

from collections.abc import Mapping, Sequence
from math import sqrt

import torch
from torch import Tensor

from unmask.base.seeds import torch_stream
from unmask.compiled.program import BEGIN, OUT, POSITION, Find, Layer, Mover, Program
from unmask.net.config import NetConfig
from unmask.net.transformer import Transformer

BALLAST = 40.0
"""Length of the direction that all tokens share; of others a handful of length 1 stand at once."""
MARGIN = 30.0
"""By how much a head's score of what it finds exceeds that of the beginning, in nats."""
SHARPNESS = 60.0
"""Change of a neuron's input by one value."""
LOGIT = 20.0
"""Logit of the token that is predicted; others have 0."""


class Directions:
    """The directions of a program's values: rows of unit length, orthogonal or nearly so."""

    def __init__(self, program: Program, crowding: float, is_rotated: bool, seed: int):
        """`crowding`: values for each coordinate; above 1 they share room (superposition)."""
        count = sum(program.sizes.values()) + 1
        self.width = -(-int(count / crowding) // 8) * 8
        size = max(count, self.width)
        drawn = torch.randn(size, size, generator=torch_stream(seed, "directions"))
        is_drawn = is_rotated or count > self.width
        square = torch.linalg.qr(drawn.double()).Q if is_drawn else torch.eye(size).double()
        # Rows of a rotation that lose their last coordinates stay as far apart as so many can.
        rows = square[:, : self.width]
        rows = rows / rows.norm(dim=1, keepdim=True)
        # The ballast is orthogonal to all: its length would drown what they share with it.
        self.ballast = rows[0]
        rows = rows[1:] - (rows[1:] @ self.ballast)[:, None] * self.ballast
        rows = rows / rows.norm(dim=1, keepdim=True)
        self._rows, at = dict[str, Tensor](), 0
        for name, size in program.sizes.items():
            self._rows[name] = rows[at : at + size]
            at += size

    def __getitem__(self, name: str) -> Tensor:
        """The directions [n, D] of a variable's values."""
        return self._rows[name]

    def add(self, values: Mapping[str, int]) -> Tensor:
        """The sum [D] of the directions of some values."""
        total = torch.zeros(self.width, dtype=torch.float64)
        for name, value in values.items():
            total += self[name][value]
        return total


def compile_program(
    program: Program, context: int, crowding: float, is_rotated: bool, seed: int
) -> Transformer:
    """A network that computes the program."""
    at = Directions(program, crowding, is_rotated, seed)
    heads = [head for layer in program.layers for head in layer.heads]
    widest = max(
        len(each) for head in heads for each in (_list_moved(head, at), *_list_met(head, at))
    )
    config = NetConfig(
        vocab_size=len(program.tokens),
        width=at.width,
        layers=len(program.layers),
        heads=max(1, *(len(layer.heads) for layer in program.layers)),
        head_width=widest + 1,  # the last coordinate is the beginning's
        mlp_width=2 * max(len(layer.rules) for layer in program.layers),
        context=context,
        causal=program.is_causal,
        positions="learned",
        mlp="gelu",
        mlp_bias=True,
    )
    net = Transformer(config, seed=None)
    weights = {name: torch.zeros_like(each) for name, each in net.state_dict().items()}
    for token, values in enumerate(program.tokens):
        weights["embedding.weight"][token] = at.add(values) + BALLAST * at.ballast
    weights["position.weight"][:] = at[POSITION][:context]
    for number, layer in enumerate(program.layers):
        parts = _compile_layer(layer, at, config)
        weights |= {f"layers.{number}.{name}": each.float() for name, each in parts.items()}
    for name in weights:
        if name.endswith("norm.weight"):  # undoes the division by the root mean square
            weights[name] = torch.full((at.width,), BALLAST / sqrt(at.width))
    weights["head.weight"] = LOGIT * at[OUT].float()
    net.load_state_dict(weights)
    return net.eval().requires_grad_(False)


def _compile_layer(layer: Layer, at: Directions, config: NetConfig) -> dict[str, Tensor]:
    d, heads = config.head_dim, config.heads
    q, k, v = (torch.zeros(heads, d, at.width, dtype=torch.float64) for _ in range(3))
    out = torch.zeros(at.width, heads, d, dtype=torch.float64)
    for number, head in enumerate(layer.heads):
        # 1. Scores: query and key meet in a coordinate for each value. The last coordinate is
        #    the beginning's, at half of that: who finds nothing reads there, where nothing is.
        query, key = _list_met(head, at)
        strength = sqrt(2 * MARGIN * sqrt(d))
        q[number, : len(query)], k[number, : len(key)] = strength * query, strength * key
        q[number, -1] = strength * at.ballast / BALLAST
        k[number, -1] = strength / 2 * at[BEGIN][0]
        # 2. Held: what is read in a coordinate for each value, and written as the other name.
        moved = _list_moved(head, at)
        for row, (read, write) in enumerate(moved):
            v[number, row], out[:, number, row] = read, write
    up = torch.zeros(config.mlp_width, at.width, dtype=torch.float64)
    bias = torch.zeros(config.mlp_width, dtype=torch.float64)
    down = torch.zeros(at.width, config.mlp_width, dtype=torch.float64)
    for row, rule in enumerate(layer.rules):
        # 3. A pair of neurons for each rule makes a step: from half a value below what is needed
        #    the first one rises, from a quarter below the second one takes away what comes on top.
        #    So what is written has length 1, however much more than enough stood there.
        pair = slice(2 * row, 2 * row + 2)
        for name, value in rule.values:
            up[pair] += SHARPNESS * at[name][value]
        for name in rule.unless:
            up[pair] -= SHARPNESS * len(rule.values) * at[name].sum(0)
        bias[pair] = -SHARPNESS * (rule.needed - torch.tensor([0.5, 0.25]))
        written = at.add(rule.writes) / (SHARPNESS / 4)
        down[:, 2 * row], down[:, 2 * row + 1] = written, -written
    return {
        "attn.qkv.weight": torch.cat([each.flatten(0, 1) for each in (q, k, v)]),
        "attn.out.weight": out.flatten(1),
        "mlp.up.weight": up,
        "mlp.up.bias": bias,
        "mlp.down.weight": down,
    }


def _list_met(head: Mover, at: Directions) -> tuple[Tensor, Tensor]:
    """Directions [n, D] that a head's queries and keys read, value by value."""
    if isinstance(head, Find):
        return at[head.query], at[head.key]
    places = at[POSITION]
    query = torch.zeros_like(places)
    for place in range(len(places)):  # a position's query is the key of the one it looks at
        if 0 <= place + head.distance < len(places):
            query[place + head.distance] = places[place]
    return query, places


def _list_moved(head: Mover, at: Directions) -> Sequence[tuple[Tensor, Tensor]]:
    """What a head reads and what it writes, a pair of directions for each value."""
    pairs = [zip(at[of], at[to], strict=True) for of, to in head.moves.items()]
    return [pair for each in pairs for pair in each]
