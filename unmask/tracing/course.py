"""Courses: a model's own way to an answer, and the states along it that can be traced.

The state of step s is the one that step s starts from. t1 is the step that commits the first token
of the answer, t2 the last; after t2 nothing of the answer is left to ask for.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.data.facts import Fact, FactTokens, Span, tokenize_fact
from unmask.evaluation.questions import STUDY_LENGTH
from unmask.net.model import Model
from unmask.sampling.texts import sample
from unmask.tracing.corruption import Corrupted

At = str | int
"""A step by its number, or by name: first, t1, last (t2), or all from t1 to t2."""


class NotTracedError(UserError):
    """A fact that cannot be traced; `reason` is short, for counting."""

    def __init__(self, reason: str, message: str):
        self.reason = reason
        super().__init__(message)


@dataclass(frozen=True)
class Course:
    """A clean generation, and where in it the answer stands."""

    model: Model
    states: Int[Tensor, "states L"]
    committed_at: Int[Tensor, "L"]
    prompt_length: int
    subject: Span
    answer: dict[int, int]
    """Positions and tokens, in the order in which they were committed."""
    text: str
    """What the model said."""
    forced: bool = False
    """True where the model did not say the answer, and it was placed after the prompt."""

    @property
    def t1(self) -> int:
        return min(self._steps())

    @property
    def t2(self) -> int:
        return max(self._steps())

    def _steps(self) -> list[int]:
        return [int(self.committed_at[position]) for position in self.answer]

    def open_at(self, step: int) -> dict[int, int]:
        """The answer's positions that are still to be committed at a step."""
        return {
            position: token
            for position, token in self.answer.items()
            if int(self.committed_at[position]) >= step
        }

    def committed_at_step(self, step: int) -> tuple[int, ...]:
        """The answer's positions that are committed before a step."""
        return tuple(sorted(set(self.answer) - set(self.open_at(step))))

    def state_at(self, step: int) -> Int[Tensor, "L"]:
        """The tokens that a step starts from.

        A causal model's are its text up to the answer's last token: the answer is read token by
        token, the earlier ones given.
        """
        if not self.model.paradigm.has_steps:
            return self.states[-1][: max(self.answer)]
        return self.states[step - 1]

    def find_steps(self, at: Sequence[At]) -> list[tuple[str, int]]:
        """(label, step) of the steps asked for; those after t2 are left out."""
        # What a causal model says before the answer is given anyway: its first step is t1.
        first = 1 if self.model.paradigm.has_steps else self.t1
        named = {"first": [first], "t1": [self.t1], "last": [self.t2], "t2": [self.t2]}
        named["all"] = list(range(self.t1, self.t2 + 1))
        labelled: list[tuple[str, int]] = []
        for one in at:
            if isinstance(one, str) and one in named:
                labelled += [(one if one != "all" else str(step), step) for step in named[one]]
            elif str(one).isdecimal() and int(one) >= 1:
                labelled.append((str(one), max(int(one), first)))
            else:
                raise UserError(
                    f"step {one!r} is unknown: expected first, t1, last, t2, all, or a number "
                    "from 1."
                )
        return [(label, step) for label, step in dict.fromkeys(labelled) if step <= self.t2]


def follow(
    model: Model,
    fact: Fact,
    steps: int = 16,
    length: int | None = None,
    guidance: float = 0.0,
    any_answer: bool = False,
) -> Course:
    """The course of a fact: the model's own clean generation, the answer found in it.

    A fact that is not recalled, or whose answer is not a run of tokens there, is not traced, unless
    `any_answer` places the true answer right after the prompt.
    """
    if model.tokenizer is None:
        raise UserError(f"the model {model.name} has no tokenizer: facts need one.")
    tokens = tokenize_fact(fact, model.tokenizer)
    prompt, wanted = tokens.ids[: tokens.prompt_length], tokens.ids[slice(*tokens.object)]
    room = length or min(max(STUDY_LENGTH, tokens.object[1]), model.net.config.context)
    if tokens.object[1] > room:
        raise NotTracedError(
            "too long",
            f"prompt and answer have {tokens.object[1]} tokens, more than the length {room}.",
        )
    trajectory = sample(model, [prompt], steps=steps, guidance=guidance, length=room)
    assert trajectory.states is not None
    said = trajectory.tokens[0].tolist()
    begin = _find_run(said, wanted, len(prompt))
    text = model.tokenizer.decode(said[len(prompt) :])
    forced = begin is None
    if begin is None:
        if not any_answer:
            heard = fact.object.strip().lower() in text.lower()
            reason = "not aligned" if heard else "not recalled"
            raise NotTracedError(
                reason,
                f"the answer {fact.object!r} is {reason} in what the model said: {text.strip()!r}.",
            )
        begin = tokens.object[0]
    states, committed_at = trajectory.states[:, 0], trajectory.committed_at[0]
    answer = {begin + i: token for i, token in enumerate(wanted)}
    if forced:
        states, committed_at = _force(model, states, committed_at, tokens, answer)
    order = sorted(answer, key=lambda position: (int(committed_at[position]), position))
    return Course(
        model=model,
        states=states,
        committed_at=committed_at,
        prompt_length=tokens.prompt_length,
        subject=tokens.subject,
        answer={position: answer[position] for position in order},
        text=text,
        forced=forced,
    )


def follow_corrupted(
    model: Model,
    course: Course,
    corrupted: Corrupted,
    steps: int,
    guidance: float,
) -> Int[Tensor, "states n L"]:
    """States of the corrupted prompts' own generations, in as many rows as there are samples."""
    prompts = corrupted.tokens[:, : course.prompt_length].tolist()
    length = course.states.shape[1]
    with model.net.patch({"embed": corrupted.embed}):
        trajectory = sample(model, prompts, steps=steps, guidance=guidance, length=length)
    assert trajectory.states is not None
    return trajectory.states


def find_recalled(model: Model, facts: Sequence[Fact], steps: int, length: int) -> list[bool]:
    """Whether the model's own clean generation holds each fact's answer, as `follow` would find."""
    if model.tokenizer is None:
        raise UserError(f"the model {model.name} has no tokenizer: facts need one.")
    asked = [tokenize_fact(fact, model.tokenizer) for fact in facts]
    prompts = [tokens.ids[: tokens.prompt_length] for tokens in asked]
    trajectory = sample(model, prompts, steps=steps, length=length, keep_states=False)
    return [
        _find_run(said, tokens.ids[slice(*tokens.object)], tokens.prompt_length) is not None
        for said, tokens in zip(trajectory.tokens.tolist(), asked, strict=True)
    ]


def _find_run(said: list[int], wanted: list[int], start: int) -> int | None:
    """Where the wanted tokens stand in what was said, after the prompt."""
    ends = range(start, len(said) - len(wanted) + 1)
    return next((i for i in ends if said[i : i + len(wanted)] == wanted), None)


def _force(
    model: Model,
    states: Int[Tensor, "states L"],
    committed_at: Int[Tensor, "L"],
    tokens: FactTokens,
    answer: dict[int, int],
) -> tuple[Int[Tensor, "states L"], Int[Tensor, "L"]]:
    """The same course with the true completion in its place, committed when that place was."""
    states, committed_at = states.clone(), committed_at.clone()
    written = {**dict(enumerate(tokens.ids[: tokens.object[1]])), **answer}
    for position, token in written.items():
        if position < tokens.prompt_length:
            continue
        if model.paradigm.has_steps:
            filled = torch.arange(len(states), device=states.device) >= committed_at[position]
            states[filled, position] = token
        else:
            states[:, position] = token
            committed_at[position] = position - tokens.prompt_length + 1
    return states, committed_at
