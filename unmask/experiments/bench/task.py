"""What a method is asked, which is all that it sees: a model, questions, and the word they ask for.

Questions are alike: they ask in the same words about different subjects, at one denoising step.
Their mechanism stays with `unmask.compiled`.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.compiled.mechanisms import FILLING, Compiled
from unmask.compiled.truth import list_steps
from unmask.data.facts import Span, find_tokens
from unmask.net.model import Model

PARTS = {"resid": "resid_out", "attn": "attn_out", "mlp": "mlp_out"}
"""The parts whose states are scored, and their sites."""
EDGES = "edges"
PlaceScores = Mapping[str, Float[Tensor, "..."]]
"""By part how much an answer depends on each state [positions, layers]; under "edges" on who reads
whom in attention [layers, positions, positions]. Higher is more."""


@dataclass(frozen=True)
class Localisation:
    """Where does the next word of these answers come from?"""

    model: Model
    tokens: Int[Tensor, "Q L"]
    """A row for each question; where an answer's words are still open, masks."""
    subject: Span
    position: int
    """Where the word stands; in a causal model it may be the position after the last one."""
    words: Int[Tensor, "Q"]
    """The word that each question asks for."""
    step: int
    """The denoising step, from 1; at later ones earlier words of the answer stand."""
    others: tuple[Int[Tensor, "Q _"], ...] = field(default=(), repr=False)
    """The questions in other phrasings, which put words before: their last positions are ours."""

    @property
    def reads(self) -> int:
        """The position at which the word is predicted."""
        return self.model.row_of(self.position)

    @cached_property
    def clean(self) -> Float[Tensor, "Q"]:
        """What `predict` gives of the network as it is."""
        return self.predict()

    @torch.no_grad()
    def predict(self) -> Float[Tensor, "Q"]:
        """The probability of each question's word."""
        logits = self.model.net(self.tokens)[:, self.reads]
        return logits.softmax(-1).gather(-1, self.words[:, None])[:, 0]

    def capture(
        self, tokens: Int[Tensor, "Q M"] | None = None
    ) -> dict[str, Float[Tensor, "Q L D"]]:
        """The states at every site by its name; of another phrasing, at the last positions."""
        net = self.model.net
        names = [f"layers.*.{site}" for site in ("resid_in", *PARTS.values())]
        with torch.no_grad(), net.capture(*names) as taken:
            net(self.tokens if tokens is None else tokens)
        return {name: x[:, -self.tokens.shape[1] :] for name, x in taken.items()}

    def patch(self, site: str, at: int, states: Float[Tensor, "Q *D"]) -> Float[Tensor, "Q"]:
        """The words' probabilities with other states at a position."""

        def put(x: Tensor) -> Tensor:
            x = x.clone()
            x[:, at] = states
            return x

        with self.model.net.patch({site: put}):
            return self.predict()

    def list_sites(self, parts: Iterable[str] = PARTS) -> Iterator[tuple[str, int, str]]:
        """Part, layer and name of every site that is scored."""
        for part in parts:
            for layer in range(self.model.net.config.layers):
                yield part, layer, f"layers.{layer}.{PARTS[part]}"

    def blank(self) -> dict[str, Float[Tensor, "L layers"]]:
        """PlaceScores of zero for every state."""
        shape = self.tokens.shape[1], self.model.net.config.layers
        return {part: torch.zeros(shape) for part in PARTS}


def list_localisations(compiled: Compiled, verb: int = 0) -> list[Localisation]:
    """The questions of a verb without words before them, at each step."""
    ways = [list_steps(compiled, verb, phrasing) for phrasing in range(len(FILLING) + 1)]
    tokenizer = compiled.model.require_tokenizer()
    first = next(
        each
        for each in compiled.facts
        if (each.direction, each.phrasing) == (("p2d", "d2p")[verb], 0)
    )
    subject = find_tokens(tokenizer.encode(first.prompt).offsets, first.subject_span)
    model = replace(compiled.model, name="network")  # its own name says the mechanism
    tasks = []
    for step, alike in enumerate(zip(*ways[0], strict=True), start=1):
        rows, *others = (
            torch.tensor([question[step - 1].tokens for question in way]) for way in ways
        )
        words = torch.tensor([each.answer[step - 1] for each in alike])
        position = alike[0].start + step - 1
        tasks.append(Localisation(model, rows, subject, position, words, step, tuple(others)))
    return tasks


@dataclass
class Cost:
    """What a method cost."""

    positions: int = 0
    """Positions times layers that went through an MLP."""


@contextmanager
def count_positions(model: Model) -> Generator[Cost]:
    """Counts inside the block what runs through the network, whichever part of it is run."""
    cost, config = Cost(), model.net.config

    def count(_module: object, given: tuple[Tensor, ...]) -> None:
        cost.positions += given[0].numel() // config.width

    blocks = map(model.net.block, range(config.layers))
    hooks = [block.mlp.register_forward_pre_hook(count) for block in blocks]
    try:
        yield cost
    finally:
        for hook in hooks:
            hook.remove()
