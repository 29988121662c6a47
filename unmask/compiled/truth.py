"""What carries an answer in a network whose mechanism is known, read from its program alone.

A site of a question is put in place of the same site of another question, which is asked in the
same words about another person. It *brings* a word of the answer where the word becomes the other
question's, *breaks* it where it becomes a third one, and *stops* it where there is none.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from unmask.compiled.mechanisms import IDS, Compiled
from unmask.compiled.program import OUT, AmbiguousError, Edge, Program, Standing, find_edges, run

SITES = ("resid_in", "attn_out", "mlp_out", "resid_out")
Site = tuple[int, str, int]
"""A layer, one of `SITES`, and a position."""
Recorded = dict[tuple[int, str], Standing]
"""What stands at each position, by layer and part."""


@dataclass(frozen=True)
class AnswerStep:
    """A question at a denoising step: earlier words of its answer stand, the others are masks."""

    tokens: tuple[int, ...]
    answer: tuple[int, ...]
    start: int
    """Where the answer begins."""
    step: int
    """From 1: how many of the answer's words are known, and one."""
    is_causal: bool

    @property
    def readers(self) -> dict[int, int]:
        """The positions whose rows predict the answer's open words, by the words' numbers."""
        if self.is_causal:
            return {self.step - 1: self.start + self.step - 2}
        return {word: self.start + word for word in range(self.step - 1, len(self.answer))}


@dataclass(frozen=True)
class Carrier:
    """What a site does to a word of the answer at a step."""

    site: Site
    step: int
    word: int
    brings: float
    """Share of pairs of questions, of those whose words differ, for which it brings the other's."""
    breaks: float
    stops: float

    @property
    def matters(self) -> bool:
        """Whether the word is another one, or none, after some exchange."""
        return self.brings + self.breaks + self.stops > 0


def list_steps(compiled: Compiled, verb: int = 0, phrasing: int = 0) -> list[list[AnswerStep]]:
    """Every question of a verb and a phrasing, each at all steps of its answer, left to right."""
    tokenizer, is_causal = compiled.model.tokenizer, compiled.program.is_causal
    assert tokenizer is not None
    questions = []
    for fact in compiled.facts:
        if (fact.direction, fact.phrasing) != (("p2d", "d2p")[verb], phrasing):
            continue
        prompt = tuple(tokenizer.encode(fact.prompt).ids)
        answer = tuple(IDS[word] for word in fact.completion.split())
        steps = []
        for known in range(len(answer)):
            masks = 0 if is_causal else len(answer) - known
            tokens = (*prompt, *answer[:known], *[IDS["[MASK]"]] * masks)
            steps.append(AnswerStep(tokens, answer, len(prompt), known + 1, is_causal))
        questions.append(steps)
    return questions


def list_carriers(compiled: Compiled, verb: int = 0, phrasing: int = 0) -> list[Carrier]:
    """What every site does to every open word at each step, over questions and their neighbours."""
    program, carriers = compiled.program, list[Carrier]()
    for alike in zip(*list_steps(compiled, verb, phrasing), strict=True):
        runs = [record(program, step.tokens) for step in alike]
        donors = [*runs[1:], runs[0]]
        for site in product(range(len(program.layers)), SITES, range(len(alike[0].tokens))):
            exchanged = [
                exchange(program, step, clean, donor, site)
                for step, clean, donor in zip(alike, runs, donors, strict=True)
            ]
            for word in alike[0].readers:
                outcomes = [each[word] for each in exchanged if word in each]
                shares = (
                    outcomes.count(each) / max(1, len(outcomes))
                    for each in ("brings", "breaks", "stops")
                )
                carriers.append(Carrier(site, alike[0].step, word, *shares))
    return carriers


def record(program: Program, tokens: Sequence[int]) -> Recorded:
    """What stands at every site of a row, and at the end, under the number of layers."""
    recorded: Recorded = {}

    def keep(layer: int, part: str, states: Standing) -> None:
        recorded[layer, part] = [dict(state) for state in states]

    recorded[len(program.layers), "end"] = run(program, tokens, keep)
    return recorded


def exchange(
    program: Program, step: AnswerStep, clean: Recorded, donor: Recorded, site: Site
) -> dict[int, str]:
    """What becomes of a question's words with a site of another; words they share are left out."""
    end = (len(program.layers), "end")
    own, other = ([state.get(OUT) for state in each[end]] for each in (clean, donor))
    words = {word: at for word, at in step.readers.items() if own[at] != other[at]}
    changed = run_exchanged(program, step, donor, site)
    if changed is None:
        return dict.fromkeys(words, "stops")
    return {
        word: judge_word(own[at], other[at], changed[at].get(OUT)) for word, at in words.items()
    }


def run_exchanged(
    program: Program, step: AnswerStep, donor: Recorded, site: Site
) -> Standing | None:
    """What stands at the end of a question with a site of another.

    None where a head finds two names where the question has one.
    """
    layer, part, position = site

    def put(at: int, name: str, states: Standing) -> None:
        if (at, name) == (layer, part):
            states[position] = dict(donor[layer, part][position])

    try:
        return run(program, step.tokens, put)
    except AmbiguousError:
        return None


def judge_word(clean: int | None, donor: int | None, changed: int | None) -> str:
    """What an exchange did to a word: `brings`, `breaks`, `stops` or `neither`."""
    if changed is None:
        return "neither" if clean is None else "stops"
    return "neither" if changed == clean else "brings" if changed == donor else "breaks"


def list_edges(program: Program, tokens: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    """Layer, head, reading position and position read, of every head that brings something."""
    recorded = record(program, tokens)
    for layer, each in enumerate(program.layers):
        states = recorded[layer, "resid_in"]
        for number, head in enumerate(each.heads):
            for at, place in find_edges(program, head, states):
                if head.moves.keys() & states[place].keys():
                    yield layer, number, at, place


def list_needed_edges(compiled: Compiled, verb: int = 0, phrasing: int = 0) -> dict[int, set[Edge]]:
    """By step, the edges without which some question's next word becomes another one or none.

    Those of the beginning are left out: a head that finds nothing reads there, where nothing is.
    """
    program, needed = compiled.program, dict[int, set[Edge]]()
    for questions in list_steps(compiled, verb, phrasing):
        for step in questions:
            at, edges = step.readers[step.step - 1], needed.setdefault(step.step, set())
            clean = run(program, step.tokens)[at].get(OUT)
            for layer, _, reads, is_read in set(list_edges(program, step.tokens)):
                edge = (layer, reads, is_read)
                if is_read and run(program, step.tokens, cut=edge)[at].get(OUT) != clean:
                    edges.add(edge)
    return needed


def list_fixed_edges(carriers: Sequence[Carrier]) -> dict[int, dict[Edge, bool]]:
    """By step, edges of which the stream after each layer says whether the next word needs them.

    That stream is all that a network trained by exchanges shares with its program. Nothing is said
    of the first layer, which reads words, of edges of which one end leaves the program without a
    word, nor of those that are left over by the two rules at their lines.
    """
    # 1. Whether the word depends on the state after a layer at a position; None: nobody knows.
    depends: dict[tuple[int, int, int], bool | None] = {}
    for each in carriers:
        layer, part, at = each.site
        if part == "resid_out" and each.word == each.step - 1:
            depends[each.step, layer, at] = None if each.stops else each.matters
    fixed: dict[int, dict[Edge, bool]] = {}
    for (step, layer, at), reader in depends.items():
        after = [
            place
            for place in _list_places(depends, step)
            if depends[step, layer, place] is not False
        ]
        for place in _list_places(depends, step) if layer else ():
            source = depends[step, layer - 1, place]
            # 2. An edge brings what stands where it reads, to its reader and nowhere else: where
            #    either may be another question's and the word stays, the word does not need it.
            if source is False or reader is False:
                fixed.setdefault(step, {})[layer, at, place] = False
            # 3. Of the states before, the word depends on this one; of those after the layer on the
            #    reader's alone. From one position to another only the edge leads.
            elif source and after == [at] and at != place:
                fixed.setdefault(step, {})[layer, at, place] = True
    return fixed


def _list_places(sites: Iterable[tuple[int, int, int]], step: int) -> list[int]:
    """The positions of a step's rows."""
    return sorted({at for known, _, at in sites if known == step})
