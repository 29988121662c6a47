"""Clean runs: a model's own generation of an answer, and the states of it that can be traced.

The state of step s is the one that step s starts from. t1 is the step that commits the first token
of the answer, t2 the last; after t2 nothing of the answer is left to ask for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from unmask.base.config import check_arguments
from unmask.base.errors import UserError
from unmask.data.facts import Fact, FactTexts, FactTokens, Span, as_fact, tokenize_fact
from unmask.evaluation.questions import STUDY_LENGTH, require_tokenizer
from unmask.net.model import Model
from unmask.sampling.texts import sample
from unmask.sampling.trajectory import Trajectory
from unmask.tracing.corruption import Corrupted
from unmask.tracing.settings import STEPS, Tracing


class NotTracedError(UserError):
    """A fact that cannot be traced; `reason` is short, for counting."""

    def __init__(self, reason: str, message: str):
        self.reason = reason
        super().__init__(message)


@dataclass(frozen=True)
class CleanRun:
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
        """The first step that writes a token of the answer, whether or not it is masked again."""
        if not self._has_masks:
            return min(self._steps())
        positions, tokens = (list(each) for each in (self.answer, self.answer.values()))
        is_there = self.states[:, positions] == torch.tensor(tokens, device=self.states.device)
        return int(is_there.any(1).nonzero()[0, 0])

    @property
    def t2(self) -> int:
        return max(self._steps())

    @property
    def _has_masks(self) -> bool:
        """Whether the states say by their masks what is still open."""
        return self.model.paradigm.fills_masks

    def _steps(self) -> list[int]:
        return [int(self.committed_at[position]) for position in self.answer]

    def open_at(self, step: int) -> dict[int, int]:
        """The answer's positions that are still to be committed at a step: those that are masks."""
        is_open = self.committed_at >= step
        if self._has_masks:
            state = self.states[min(step, len(self.states)) - 1]
            is_open = state.eq(self.model.require_mask())
        return {position: token for position, token in self.answer.items() if is_open[position]}

    def committed_before(self, step: int) -> tuple[int, ...]:
        """The answer's positions that hold their tokens before a step."""
        rest = set(self.answer) - set(self.open_at(step))
        if self._has_masks:
            state = self.states[min(step, len(self.states)) - 1]
            rest = {position for position in rest if int(state[position]) == self.answer[position]}
        return tuple(sorted(rest))

    def state_at(self, step: int) -> Int[Tensor, "L"]:
        """The tokens that a step starts from.

        A causal model's are its text up to the answer's last token: the answer is read token by
        token, the earlier ones given.
        """
        if not self.model.paradigm.has_steps:
            return self.states[-1][: max(self.answer)]
        return self.states[step - 1]

    def find_step(self, step: str | int) -> int:
        """The one step that a name or a number stands for."""
        steps = self.find_steps((step,))
        if len(steps) != 1:
            raise UserError(
                f"the step {step!r} is not one step up to t2 = {self.t2}, at which the answer is "
                "complete: name first, t1, t2 or an earlier number."
            )
        return steps[0][1]

    def find_steps(self, at: Sequence[str | int]) -> list[tuple[str, int]]:
        """(label, step) of steps by name or number; those after t2 are left out."""
        # What a causal model says before the answer is given anyway: its first step is t1.
        first = 1 if self.model.paradigm.has_steps else self.t1
        named = {"first": first, "t1": self.t1, "last": self.t2, "t2": self.t2}
        labelled: list[tuple[str, int]] = []
        for each in at:
            if each == "all":
                labelled += [(str(step), step) for step in range(self.t1, self.t2 + 1)]
            elif each == "t1..t2":
                steps = range(self.t1, self.t2 + 1)
                labelled += [(f"t1+{step - self.t1}", step) for step in steps]
            elif each in named:
                labelled.append((str(each), named[str(each)]))
            elif str(each).isdecimal() and int(each) >= 1:
                labelled.append((str(each), max(int(each), first)))
            else:
                raise UserError(
                    f"step {each!r} is unknown: expected {', '.join(STEPS)}, or a number from 1."
                )
        # With masks that come back, a step may have nothing to ask for.
        return [
            (label, step)
            for label, step in dict.fromkeys(labelled)
            if step <= self.t2 and (not self._has_masks or self.open_at(step))
        ]


def generate(model: Model, fact: Fact, settings: Tracing) -> CleanRun:
    """The clean run of a fact: the model's own generation, the answer located in it.

    A fact that is not recalled, or whose answer is not a run of tokens there, is not traced, unless
    `any_answer` places the true answer right after the prompt.
    """
    tokens = tokenize_fact(fact, require_tokenizer(model))
    prompt = tokens.ids[: tokens.prompt_length]
    length = choose_canvas_length(model, [tokens], settings)
    if tokens.object[1] > length:
        raise NotTracedError(
            "too long",
            f"prompt and answer have {tokens.object[1]} tokens, more than the length {length}.",
        )
    trajectory = sample(model, [prompt], length=length, **_choose_sampling(model, settings))
    return find_clean_run(model, fact, trajectory, any_answer=settings.any_answer)


@check_arguments(leave_out=("fact",))
def find_clean_run(
    model: Model, fact: Fact | FactTexts, drawn: Trajectory, row: int = 0, any_answer: bool = False
) -> CleanRun:
    """A row of a trajectory as the clean run of a fact: `unmask.trace_steps` traces its states.

    Args:
        model: The model that drew it, here or in another engine (`unmask.read_trajectories`).
        fact: A fact or its (subject, object, prompt); the row begins with its prompt.
        drawn: With its states.
        row: Of the trajectory, counted from 0.
        any_answer: Where the row does not hold the answer, place it after the prompt.

    >>> model = unmask.load("reversal-mdm", device="cpu")
    >>> fact = unmask.read_facts("facts.csv")[0]
    >>> drawn = unmask.sample(model, fact.prompt, steps=4, length=24)
    >>> clean = unmask.find_clean_run(model, fact, drawn, any_answer=True)
    >>> grids = unmask.trace_steps(model, clean, at="first", parts=("resid",), samples=1)
    """
    fact, tokenizer = as_fact(fact), require_tokenizer(model)
    tokens = tokenize_fact(fact, tokenizer)
    prompt, wanted = tokens.ids[: tokens.prompt_length], tokens.ids[slice(*tokens.object)]
    if drawn.states is None:
        raise UserError("this trajectory keeps no states: sample it with keep_states=True.")
    if not 0 <= row < len(drawn.tokens):
        raise UserError(f"row {row} was asked for: the trajectory has {len(drawn.tokens)} rows.")
    length = int(drawn.lengths[row])
    states, committed_at = drawn.states[:, row, :length], drawn.committed_at[row, :length]
    generated = drawn.tokens[row, :length].tolist()
    if generated[: len(prompt)] != prompt or length < tokens.object[1]:
        raise UserError(
            f"row {row} of the trajectory has {length} tokens and begins with "
            f"{tokenizer.decode(generated[: len(prompt)])!r:.80}: expected the prompt "
            f"{fact.prompt!r:.80}, and room for its answer."
        )
    text = tokenizer.decode(generated[len(prompt) :])
    begin = _find_run(generated, wanted, len(prompt))
    forced = begin is None
    if forced and not any_answer:
        is_in_words = fact.object.strip().lower() in text.lower()
        reason = "not aligned" if is_in_words else "not recalled"
        raise NotTracedError(
            reason,
            f"the answer {fact.object!r} is {reason} in what the model said: {text.strip()!r}.",
        )
    begin = tokens.object[0] if begin is None else begin
    answer = {begin + i: token for i, token in enumerate(wanted)}
    if forced:
        states, committed_at = _force(model, states, committed_at, tokens)
    order = sorted(answer, key=lambda position: (int(committed_at[position]), position))
    return CleanRun(
        model=model,
        states=states,
        committed_at=committed_at,
        prompt_length=tokens.prompt_length,
        subject=tokens.subject,
        answer={position: answer[position] for position in order},
        text=text,
        forced=forced,
    )


def find_state(
    clean: CleanRun, step: int, settings: Tracing
) -> tuple[Int[Tensor, "L"], dict[int, int]]:
    """The state of a step, and what is asked of it.

    That is what is still open; by the chain rule all of the answer, masked again.
    """
    state = clean.state_at(step)
    if not asks_whole(clean.model, settings):
        return state, clean.open_at(step)
    assert clean.model.mask_id is not None
    state = state.clone()
    state[list(clean.answer)] = clean.model.mask_id
    return state, clean.answer


def asks_whole(model: Model, settings: Tracing) -> bool:
    """Whether a step asks for the whole answer, and not for what is still open alone."""
    return settings.joint == "chain_rule" and model.paradigm.sees_later


def _choose_sampling(model: Model, settings: Tracing) -> dict[str, Any]:
    """How the clean run is drawn; a model that writes from left to right has no order."""
    chosen: dict[str, Any] = {"steps": settings.steps, "guidance": settings.guidance}
    if model.paradigm.fills_masks:
        chosen |= {"order": settings.order, "remask": settings.remask}
    return chosen


def choose_canvas_length(model: Model, facts: Sequence[FactTokens], settings: Tracing) -> int:
    """Positions of the canvas: the setting, or room for the facts and what a study gives them."""
    longest = max([STUDY_LENGTH, *(tokens.object[1] for tokens in facts)])
    return settings.length or min(longest, model.net.config.context)


def generate_corrupted(
    clean: CleanRun, corrupted: Corrupted, settings: Tracing
) -> Int[Tensor, "states n L"]:
    """States of the corrupted prompts' own generations, in as many rows as there are samples."""
    model, length = clean.model, clean.states.shape[1]
    prompts = corrupted.tokens[:, : clean.prompt_length].tolist()
    taps = model.net.taps
    with taps.in_rows((0,)), taps.attach({"embed": corrupted.embed}, first=True):
        trajectory = sample(model, prompts, length=length, **_choose_sampling(model, settings))
    assert trajectory.states is not None
    return trajectory.states


def rank_facts(model: Model, facts: Sequence[Fact], settings: Tracing) -> tuple[list[Fact], int]:
    """The facts, those that the model recalls first, and how many it recalls.

    Recalled is what `generate` would trace, but without guidance; a fact too long for the canvas is
    not.
    """
    tokenizer = require_tokenizer(model)
    tokens = [tokenize_fact(fact, tokenizer) for fact in facts]
    length = choose_canvas_length(model, tokens, settings)
    fitting = [i for i, each in enumerate(tokens) if each.object[1] <= length]
    recalled = set()
    if fitting:
        prompts = [tokens[i].ids[: tokens[i].prompt_length] for i in fitting]
        chosen: dict[str, Any] = _choose_sampling(model, settings) | {"guidance": 0.0}
        trajectory = sample(model, prompts, length=length, keep_states=False, **chosen)
        for i, generated in zip(fitting, trajectory.tokens.tolist(), strict=True):
            wanted = tokens[i].ids[slice(*tokens[i].object)]
            if _find_run(generated, wanted, tokens[i].prompt_length) is not None:
                recalled.add(facts[i])
    return sorted(facts, key=lambda fact: fact not in recalled), len(recalled)


def _find_run(generated: list[int], wanted: list[int], start: int) -> int | None:
    """Where the wanted tokens stand in what was generated, after the prompt."""
    begins = range(start, len(generated) - len(wanted) + 1)
    return next((i for i in begins if generated[i : i + len(wanted)] == wanted), None)


def _force(
    model: Model,
    states: Int[Tensor, "states L"],
    committed_at: Int[Tensor, "L"],
    tokens: FactTokens,
) -> tuple[Int[Tensor, "states L"], Int[Tensor, "L"]]:
    """The run with the true completion in its place, committed when that place was."""
    states, committed_at = states.clone(), committed_at.clone()
    for position in range(tokens.prompt_length, tokens.object[1]):
        token = tokens.ids[position]
        if model.paradigm.has_steps:
            filled = torch.arange(len(states), device=states.device) >= committed_at[position]
            states[filled, position] = token
        else:
            states[:, position] = token
            committed_at[position] = position - tokens.prompt_length + 1
    return states, committed_at
