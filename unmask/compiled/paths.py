"""Which edges between heads, MLPs and logits an answer depends on, read from a program alone.

A component reads, at one position, what another one wrote at the same or another position. In place
of that it is given what the other component wrote in another question. The edge *matters* where the
next word changes for some question. Components are numbered as in `unmask.tracing.circuits`: the
tokens, then each layer's heads and its MLP, and the logits at the end.
"""

from collections.abc import Iterator, Sequence

from unmask.compiled.mechanisms import Compiled
from unmask.compiled.program import OUT, AmbiguousError, Program, Standing, embed, find_edges
from unmask.compiled.truth import AnswerStep, list_steps

Path = tuple[int, int, int, int]
"""The component that reads and its position, the one that is read and its position."""
PartStates = list[Standing]
"""What each component wrote at each position; of the last one, the logits, what they read."""


def list_needed_paths(compiled: Compiled, verb: int = 0) -> dict[int, set[Path]]:
    """By step, the edges whose exchange for another question's changes the next word."""
    program, heads = compiled.program, compiled.model.net.config.heads
    needed = dict[int, set[Path]]()
    for alike in zip(*list_steps(compiled, verb), strict=True):
        runs = [run_parts(program, heads, step) for step in alike]
        words = [_read_word(step, run) for step, run in zip(alike, runs, strict=True)]
        at_step = needed.setdefault(alike[0].step, set())
        for number, step in enumerate(alike):
            later = [*range(number + 1, len(alike)), *range(number)]
            other = next((i for i in later if words[i] != words[number]), None)
            if other is not None:
                at_step |= {*_find_needed(program, heads, step, runs[number], runs[other])}
    return needed


def run_parts(program: Program, heads: int, step: AnswerStep) -> PartStates:
    """A question, component by component."""
    return _go_on(program, heads, [embed(program, step.tokens)])


def exchange_path(
    program: Program, heads: int, own: PartStates, other: PartStates, path: Path
) -> PartStates | None:
    """A question in which one reader alone reads another question's values; None where that
    changes nothing that it writes."""
    reader, at, read, place = path
    exchanged = [*own[:read], [*own[read]], *own[read + 1 : reader]]
    exchanged[read][place] = other[read][place]
    made = [*own[reader]]
    made[at] = _make_part(program, heads, reader, exchanged)[at]
    if made[at] == own[reader][at]:
        return None
    return _go_on(program, heads, [*own[:reader], made])


def _go_on(program: Program, heads: int, parts: PartStates) -> PartStates:
    """All parts, those that follow from what stands so far included."""
    for number in range(len(parts), len(program.layers) * (heads + 1) + 2):
        parts.append(_make_part(program, heads, number, parts))
    return parts


def _make_part(program: Program, heads: int, number: int, parts: Sequence[Standing]) -> Standing:
    """What a component makes of what those before it wrote."""
    layer, head = divmod(number - 1, heads + 1)
    if layer == len(program.layers):
        return _merge(parts)
    if head == heads:
        return [program.layers[layer].write(state) for state in _merge(parts)]
    brought: Standing = [{} for _ in parts[0]]
    if head < len(program.layers[layer].heads):
        # Heads read the stream that enters the layer, without what others of the layer wrote.
        mover, states = program.layers[layer].heads[head], _merge(parts[: number - head])
        for at, place in find_edges(program, mover, states):
            held = states[place]
            brought[at] |= {to: held[of] for of, to in mover.moves.items() if of in held}
    return brought


def _find_needed(
    program: Program, heads: int, step: AnswerStep, own: PartStates, other: PartStates
) -> Iterator[Path]:
    """The edges that carry something else in the other question, and change the word."""
    at, length, last = step.readers[step.step - 1], len(step.tokens), len(own) - 1
    for reader in range(1, last + 1):
        is_head = reader < last and (reader - 1) % (heads + 1) < heads
        upto = reader - (reader - 1) % (heads + 1) if is_head else reader
        for read in range(upto):
            for place in range(length):
                if own[read][place] == other[read][place] or (reader == last and place != at):
                    continue
                for to in range(length) if is_head else [place]:
                    path = (reader, to, read, place)
                    try:
                        changed = exchange_path(program, heads, own, other, path)
                    except AmbiguousError:
                        yield path  # it finds two names where there is one, and stops
                        continue
                    if changed is not None and _read_word(step, changed) != _read_word(step, own):
                        yield path


def _read_word(step: AnswerStep, parts: PartStates) -> int | None:
    """The next word of the answer."""
    return parts[-1][step.readers[step.step - 1]].get(OUT)


def _merge(parts: Sequence[Standing]) -> Standing:
    """What stands at each position: what all components wrote there."""
    merged: Standing = [{} for _ in parts[0]]
    for part in parts:
        for state, written in zip(merged, part, strict=True):
            state |= written
    return merged
