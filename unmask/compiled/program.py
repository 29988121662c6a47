"""Programs: what a network computes, in variables with values, before there are any weights.

A position of a row holds values of named variables. A token gives it some; layers add more:

    Look   every position reads variables of the one at a distance
    Find   positions that hold one variable read from the position that holds another of equal value
    Rule  where some values stand together, further ones are written

`run` computes a program by these rules alone. `unmask.compiled.compiler` makes weights of it, which
must compute the same; what carries an answer is read from the program, never from the weights.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

Held = dict[str, int]
"""The values of the variables that a position holds."""
Standing = list[Held]
"""A row, position by position."""
POSITION, BEGIN, OUT = "position", "begin", "out"
"""Variables that every program has: where a position is, what begins a row, and the token that is
predicted."""


class AmbiguousError(ValueError):
    """A head finds what it seeks at several positions, whose values it would mix."""


@dataclass(frozen=True)
class Look:
    """A head that reads from the position at a distance, negative for earlier ones."""

    distance: int
    moves: Mapping[str, str]
    """Variables that are read there, and the names that they are written under here."""

    def find(self, states: Sequence[Held], at: int) -> int | None:
        place = at + self.distance
        return place if 0 <= place < len(states) else None


@dataclass(frozen=True)
class Find:
    """A head of the positions that hold `query`, which read where `key` has its value."""

    query: str
    key: str
    moves: Mapping[str, str]

    def find(self, states: Sequence[Held], at: int) -> int | None:
        if self.query not in states[at]:
            return None
        wanted = states[at][self.query]
        places = [i for i, state in enumerate(states) if state.get(self.key) == wanted]
        if len(places) > 1:
            raise AmbiguousError(f"{self.query} finds {self.key} at {places}, expected one place")
        return places[0] if places else None


Mover = Look | Find


@dataclass(frozen=True)
class Rule:
    """A neuron of an MLP: where at least `least` of its values stand, and none of the variables in
    `unless`, it writes others."""

    values: tuple[tuple[str, int], ...]
    writes: Mapping[str, int]
    unless: frozenset[str] = frozenset()
    least: int | None = None
    """None: all of them."""

    @property
    def needed(self) -> int:
        return len(self.values) if self.least is None else self.least

    def fires(self, state: Held) -> bool:
        count = sum(state.get(name) == value for name, value in self.values)
        return count >= self.needed and not self.unless & state.keys()


@dataclass(frozen=True)
class Layer:
    """Heads, which all read the stream before them, and then a table."""

    heads: tuple[Mover, ...] = ()
    rules: tuple[Rule, ...] = ()

    @cached_property
    def _rules_of(self) -> dict[tuple[str, int], list[int]]:
        """The numbers of the rules that ask for a value."""
        numbers: dict[tuple[str, int], list[int]] = {}
        for number, rule in enumerate(self.rules):
            for value in rule.values:
                numbers.setdefault(value, []).append(number)
        return numbers

    def write(self, state: Held) -> Held:
        """What the rules that fire write."""
        numbers = {number for value in state.items() for number in self._rules_of.get(value, ())}
        written: Held = {}
        for number in sorted(numbers):
            if self.rules[number].fires(state):
                written |= self.rules[number].writes
        return written


@dataclass(frozen=True)
class Program:
    """What a network computes of a row of tokens."""

    sizes: Mapping[str, int]
    """How many values each variable has."""
    tokens: Sequence[Mapping[str, int]]
    """What a token's vector holds, by its id."""
    layers: tuple[Layer, ...]
    is_causal: bool = False


Intervene = Callable[[int, str, Standing], None]
"""Called with the layer and the site, `resid_in`, `attn_out`, `mlp_out` or `resid_out`, and what
stands there at each position, which it may change."""


Edge = tuple[int, int, int]
"""A layer, a position that reads, and the one that it reads, by whichever head."""


def embed(program: Program, tokens: Sequence[int]) -> Standing:
    """The values that tokens and their positions give."""
    return [{**program.tokens[token], POSITION: at} for at, token in enumerate(tokens)]


def run(
    program: Program,
    tokens: Sequence[int],
    change: Intervene | None = None,
    cut: Edge | None = None,
) -> Standing:
    """The values after the last layer at each position of a row; heads bring nothing by a cut."""
    states = embed(program, tokens)
    for number, layer in enumerate(program.layers):
        _call(change, number, "resid_in", states)
        # 1. Attention: all heads read the stream as it is, and what they bring is added to it.
        brought: Standing = [{} for _ in states]
        for head in layer.heads:
            for at, place in find_edges(program, head, states):
                if (number, at, place) == cut:
                    continue
                pairs = head.moves.items()
                brought[at] |= {to: states[place][of] for of, to in pairs if of in states[place]}
        _call(change, number, "attn_out", brought)
        states = [state | more for state, more in zip(states, brought, strict=True)]
        # 2. The MLP: every rule that fires writes.
        written: Standing = [layer.write(state) for state in states]
        _call(change, number, "mlp_out", written)
        states = [state | more for state, more in zip(states, written, strict=True)]
        _call(change, number, "resid_out", states)
    return states


def find_edges(program: Program, head: Mover, states: Standing) -> list[tuple[int, int]]:
    """The positions at which a head reads, each with the one it reads from."""
    edges = []
    for at in range(len(states)):
        seen = states[: at + 1] if program.is_causal else states
        if (place := head.find(seen, at)) is not None:
            edges.append((at, place))
    return edges


def _call(change: Intervene | None, layer: int, site: str, states: Standing) -> None:
    if change is not None:
        change(layer, site, states)
