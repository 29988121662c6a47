"""What the page sends with each call, checked: a mistake is a sentence that names every problem."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from unmask.base.config import CheckedSettings, build, option, option_of
from unmask.base.errors import UserError
from unmask.dictionaries.steering import StepSchedule
from unmask.editing.settings import Editing
from unmask.tracing.settings import PartName, Tracing

MOST_CHARACTERS = 20_000
"""The longest prompt; what a model's context cannot hold is refused later, by its tokens."""
MOST_STEPS = 1000
"""Every step is an event that the page keeps."""
MOST_SAMPLES = 100
"""Noise samples of a trace: all of a position are run before the trace can be stopped."""

Body = TypeVar("Body", bound=CheckedSettings)


def _check_length(what: str, text: str) -> Iterator[str]:
    if len(text) > MOST_CHARACTERS:
        yield (
            f"the {what} has {len(text):,} characters, expected at most {MOST_CHARACTERS:,}: "
            "shorten it"
        )


@dataclass(frozen=True, kw_only=True)
class CanvasRequest(CheckedSettings):
    """A prompt, which may hold `[MASK]`, or tokens with masks among them."""

    prompt: str | None = option(None, "A text; masks in it are filled.")
    length: int | None = option(None, "Positions of the row, prompt included.", least=1)
    tokens: tuple[int, ...] | None = option(None, "Token ids instead of a prompt.", least=0)
    fixed: tuple[bool, ...] | None = option(None, "Which of them were given: guidance hides them.")

    def _problems(self) -> Iterator[str]:
        if (self.prompt is None) == (self.tokens is None):
            yield "the canvas has a prompt and tokens, or neither, expected one of them"
        yield from _check_length("prompt", self.prompt or "")
        if self.fixed is not None and len(self.fixed) != len(self.tokens or ()):
            yield f"'fixed' has {len(self.fixed)} entries, expected one for each token"


@dataclass(frozen=True, kw_only=True)
class WriteSettings(CheckedSettings):
    """How a text is written: the settings of `unmask.sample` that the page offers."""

    steps: int = option(16, "Denoising steps.", least=1, most=MOST_STEPS)
    order: str = option("confidence", "Which masks are committed first.")
    guidance: float = option(0.0, "Strength of guidance.", least=0)
    temperature: float | None = option(None, "0 is the likeliest token.", least=0)
    remasking: str = option("none", "Which tokens become masks again.")
    length: int | None = option(None, "Positions of the row, prompt included.", least=1)
    seed: int = option(0, "Seed of whatever is drawn.", least=0)


@dataclass(frozen=True, kw_only=True)
class TokenizeRequest(CheckedSettings):
    """A text to be cut into tokens."""

    model: str
    text: str

    def _problems(self) -> Iterator[str]:
        yield from _check_length("text", self.text)


@dataclass(frozen=True, kw_only=True)
class SteeringRequest(CheckedSettings):
    """A feature of the open dictionary that is added while a text is written."""

    feature: int | None = option(None, "Its number; nothing is added by default.", least=0)
    strength: float = option(
        2.0, "How many times its direction is added; below 0 it is taken.", least=-1e6, most=1e6
    )
    schedule: StepSchedule = option("all", "In which steps.")


@dataclass(frozen=True, kw_only=True)
class WriteRequest(CheckedSettings):
    """A canvas to be written, and how many guesses to send along."""

    model: str
    canvas: CanvasRequest
    settings: WriteSettings = WriteSettings()
    top: int = option(5, "Guesses at each open position.", least=1, most=50)
    steering: SteeringRequest = SteeringRequest()


@dataclass(frozen=True, kw_only=True)
class PositionRequest(CheckedSettings):
    """A position of a canvas of tokens, at a step."""

    model: str
    canvas: CanvasRequest
    position: int = option(0, "The position.", least=0)
    step: int = option(1, "The step that starts from the canvas.", least=0)
    steps: int = option(16, "Steps of the run.", least=1, most=MOST_STEPS)
    guidance: float = option(0.0, "Strength of guidance.", least=0)


@dataclass(frozen=True, kw_only=True)
class StatesRequest(CheckedSettings):
    """The states of a written canvas, which are equally long."""

    model: str
    states: tuple[tuple[int, ...], ...] = option((), "Token ids of each.", least=0)

    def _problems(self) -> Iterator[str]:
        lengths = sorted({len(state) for state in self.states})
        if not 1 <= len(self.states) <= MOST_STEPS + 1 or len(lengths) != 1 or lengths[0] == 0:
            yield (
                f"'states' has {len(self.states)} states of {lengths} tokens: expected 1 to "
                f"{MOST_STEPS + 1}, equally long"
            )


@dataclass(frozen=True, kw_only=True)
class FeaturesRequest(StatesRequest):
    """A position of the states, whose features are wanted."""

    position: int = option(0, "The position.", least=0)
    top: int = option(10, "How many features.", least=1, most=100)

    def _problems(self) -> Iterator[str]:
        problems = list(super()._problems())
        yield from problems
        if not problems and self.position >= len(self.states[0]):
            yield f"'position' is {self.position}, of {len(self.states[0])} positions"


@dataclass(frozen=True, kw_only=True)
class QuestionRequest(CheckedSettings):
    """A prompt with its subject."""

    model: str
    prompt: str
    subject: tuple[int, ...] = option(
        (), "Characters of the prompt, first and one after the last.", least=0
    )

    def _problems(self) -> Iterator[str]:
        yield from _check_length("prompt", self.prompt)
        subject = self.subject
        is_within = len(subject) == 2 and 0 <= subject[0] < subject[1] <= len(self.prompt)
        if not is_within or subject[0] >= len(self.prompt.rstrip()):
            yield (
                f"the subject is {list(subject)}, expected its first character in the prompt "
                "and the one after its last: select it again"
            )


@dataclass(frozen=True, kw_only=True)
class TraceRequest(QuestionRequest):
    """A fact to be traced: a prompt with its subject, and the answer."""

    answer: str
    parts: tuple[PartName, ...] = option(("resid", "mlp", "attn"), "What is restored.")
    corruption: str = option_of(Tracing, "corruption")
    samples: int = option(Tracing().samples, "Noise samples.", least=1, most=MOST_SAMPLES)
    step: str | int = option("first", "The denoising step: first, last or a number.", least=1)
    steps: int = option(16, "Denoising steps of the clean run.", least=1, most=MOST_STEPS)
    seed: int = option(0, "Seed of the noise.", least=0)

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if not self.answer.strip():
            yield "the answer is empty, expected what the model should say"
        if "attn_z" in self.parts:
            yield "'parts' has attn_z, expected parts without heads: resid, mlp, attn or embed"


@dataclass(frozen=True, kw_only=True)
class CircuitRequest(QuestionRequest):
    """A fact whose circuit is wanted, and what stands beside it."""

    answer: str
    other_subject: str = option("", "Another subject; by default one of the shipped corpus.")
    other_answer: str = option("", "The answer to the same question about it.")
    steps: int = option(16, "Denoising steps of the clean run.", least=1, most=MOST_STEPS)
    edges: int = option(40, "Edges of a step that are measured.", least=0, most=1000)

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if not self.answer.strip():
            yield "the answer is empty, expected what the model should say"
        for text in (self.answer, self.other_subject, self.other_answer):
            yield from _check_length("text", text)


@dataclass(frozen=True, kw_only=True)
class RestoreRequest(TraceRequest):
    """A cell of a trace, whose restored generation is wanted."""

    part: PartName = option("resid", "The part of the cell.")
    layer: int = option(0, "Its layer.", least=0)
    position: int = option(0, "Its position.", least=0)


@dataclass(frozen=True, kw_only=True)
class PlaceRequest(CheckedSettings):
    """A state of the residual stream: a canvas at a step, a layer and a position."""

    canvas: CanvasRequest
    position: int = option(0, "The position.", least=0)
    layer: int = option(0, "The layer after which the stream is read or replaced.", least=0)
    step: int = option(1, "Of a prompt, the step of its own run whose state is meant.", least=1)
    steps: int = option(16, "Denoising steps of that run.", least=1, most=MOST_STEPS)


@dataclass(frozen=True, kw_only=True)
class MoveRequest(CheckedSettings):
    """A state of one prompt or step, and the place in another run that it is put into."""

    model: str
    source: PlaceRequest
    target: PlaceRequest
    settings: WriteSettings = WriteSettings()


@dataclass(frozen=True, kw_only=True)
class EditFactRequest(QuestionRequest):
    """A fact that is to get a new object, and the question that asks for its subject in reverse."""

    old: str
    new: str
    reverse: str = option("", "A question in reverse; {} stands for the object. Empty: none.")
    layer: int | None = option(
        None, "The layer that is written; the middle one by default.", least=0
    )
    search_steps: int = option(
        Editing().search_steps, "Evaluations of the search for the value.", least=0, most=200
    )
    reveal: Literal["none", "cycle", "random"] = option_of(Editing, "reveal")
    clamp: float = option_of(Editing, "clamp")
    steps: int = option(8, "Denoising steps of an answer.", least=1, most=MOST_STEPS)
    length: int | None = option(None, "Positions of the canvas.", least=2)
    seed: int = option(0, "Seed of the search.", least=0)

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        for name, text in (("old", self.old), ("new", self.new)):
            if not text.strip() or len(text) > MOST_CHARACTERS:
                yield f"the {name} object is {text!r:.60}, expected a few words"
        if self.reverse and self.reverse.count("{}") != 1:
            yield (
                f"the question in reverse is {self.reverse!r:.60}, expected one {{}} where the "
                "object stands"
            )


@dataclass(frozen=True, kw_only=True)
class UndoRequest(CheckedSettings):
    """The model whose edit is taken off."""

    model: str


@dataclass(frozen=True, kw_only=True)
class EditsRequest(CheckedSettings):
    """Which edits hold, once the calls before this one have ended."""


@dataclass(frozen=True, kw_only=True)
class PythonRequest(CheckedSettings):
    """A call that is wanted as Python: its name and its body."""

    view: str
    request: dict


def parse_body(body: bytes) -> dict[str, Any]:
    """The JSON object that a body holds."""
    try:
        values = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        raise UserError("the request is not JSON: send a JSON object.") from None
    if not isinstance(values, dict):
        raise UserError(f"the request is a {type(values).__name__}: send a JSON object.")
    return values


def read_request(kind: type[Body], values: dict[str, Any], call: str) -> Body:
    """The request of a call; `from` and `to` become source and target."""
    renamed = {"from": "source", "to": "target"} if kind is MoveRequest else {}
    return build(kind, {renamed.get(name, name): value for name, value in values.items()}, call)
