"""`unmask.trace_steps`: tracing along the denoising steps of a model's own generation."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.data.facts import Fact
from unmask.net.model import Model
from unmask.tracing.corruption import (
    Apply,
    Corrupted,
    Corruption,
    check_corrupted,
    forget,
    get_corruption,
)
from unmask.tracing.course import At, Course, follow, follow_corrupted
from unmask.tracing.grid import Flow, TraceGrid
from unmask.tracing.metrics import Metric, get_metric, logit_difference
from unmask.tracing.question import Donor
from unmask.tracing.tokens import Joint, Mode, trace_tokens

Run = Literal["teacher_forced", "free_running"]
Source = Literal["subject", "committed", "both"]


def trace_steps(
    model: Model,
    fact: Fact | Course,
    steps: int = 16,
    at: Sequence[At] | At = ("first", "last"),
    *,
    corruption: str | Corruption | Apply | None = None,
    guidance: float = 0.0,
    length: int | None = None,
    joint: Joint = "mean_field",
    run: Run = "teacher_forced",
    source: Source = "subject",
    any_answer: bool = False,
    parts: Sequence[str] = ("resid", "mlp", "attn"),
    window: int | None = None,
    metric: str | Metric = "p",
    mode: Mode = "restore",
    severed: Literal["mlp", "attn"] | None = None,
    foil: Mapping[int, int] | None = None,
    places: Sequence[int | tuple[int, ...]] | None = None,
    donor: Donor | None = None,
    memory: int | None = None,
) -> list[TraceGrid]:
    """A grid for each step asked for, of states of the model's own clean generation.

    What is asked for is the model's own answer. Steps at which there is nothing to corrupt are left
    out, and so are those without a foil for a metric that needs one.

    Args:
        model: Masked or causal.
        fact: Prompt, subject and object, or a clean generation that was kept.
        steps: Denoising steps of the generation.
        at: Steps to trace: "first" (step 1), "t1", "last" (t2), "all" from t1 to t2, numbers.
        joint: "mean_field" asks for the answer tokens that are still masked at a step,
            "chain_rule" for the whole answer, re-masked and revealed as it was committed.
        run: "teacher_forced" corrupts the clean generation's state; "free_running" takes the state
            that the corrupted prompt's own generation has reached, the asked positions masked in
            both.
        source: What is corrupted: the "subject", the answer tokens already "committed", or "both".
        length: Positions of the canvas.
        any_answer: Trace an answer that does not contain the object, too.

    The other arguments are those of `unmask.trace_tokens`.

    >>> model = unmask.load("reversal-mdm", device="cpu")
    >>> fact = unmask.read_facts("facts.csv")[0]
    >>> grid, = unmask.trace_steps(model, fact, 2, "first", any_answer=True, parts=("resid",))
    >>> grid.step, grid.effects("resid").shape[1]
    (1, 6)
    """
    model.net.taps.require_none("tracing")
    if run not in ("teacher_forced", "free_running"):
        raise UserError(f"run {run!r} is unknown: expected teacher_forced or free_running.")
    if source not in ("subject", "committed", "both"):
        raise UserError(f"source {source!r} is unknown: expected subject, committed or both.")
    if run == "free_running" and source != "subject":
        raise UserError("a free-running trace corrupts the subject: use source 'subject'.")
    if not isinstance(fact, Fact | Course):
        raise UserError(
            f"a {type(fact).__name__} was given to trace: expected an unmask.Fact, such as one of "
            "unmask.read_facts(path)."
        )
    course = fact
    if isinstance(course, Fact):
        course = follow(model, course, steps, length, guidance, any_answer)
    corruption = get_corruption(corruption)
    wanted = [at] if isinstance(at, str | int) else at
    numbers = sorted({step for _, step in course.find_steps(wanted)})
    free = None
    if run == "free_running":
        prompt = _hide_subject(course, course.state_at(1), corruption)
        free = follow_corrupted(model, course, prompt, steps, guidance)
    settings: dict[str, Any] = {
        "parts": parts,
        "window": window,
        "metric": metric,
        "mode": mode,
        "severed": severed,
        "places": places,
        "donor": donor,
        "memory": memory,
    }
    grids = []
    for step in numbers:
        if source != "subject" and not course.committed_at_step(step):
            continue
        # Only what is still asked for has a foil.
        asked = course.answer if _asks_whole(model, joint) else course.open_at(step)
        foil_now = {
            position: token for position, token in (foil or {}).items() if position in asked
        }
        if foil and not foil_now and get_metric(metric) is logit_difference:
            continue
        settings["foil"] = foil_now or None
        grids.append(
            _trace_step(course, step, corruption, guidance, joint, run, source, free, settings)
        )
    return grids


def _asks_whole(model: Model, joint: Joint) -> bool:
    """Whether a step asks for the whole answer, and not for what is still open alone."""
    return joint == "chain_rule" and model.paradigm.sees_later


def _trace_step(
    course: Course,
    step: int,
    corruption: Corruption,
    guidance: float,
    joint: Joint,
    run: Run,
    source: Source,
    free: Int[Tensor, "states n M"] | None,
    settings: dict[str, Any],
) -> TraceGrid:
    model, committed = course.model, course.committed_at_step(step)
    state, asked = course.state_at(step), course.open_at(step)
    if _asks_whole(model, joint):
        assert model.mask_id is not None
        asked = course.answer
        state = _put(state, list(asked), model.mask_id)
        committed = ()
    if run == "free_running":
        assert free is not None
        corrupted = _corrupt_freely(course, step, state, asked, corruption, free)
    else:
        corrupted = _corrupt(course, state, committed, corruption, source)
    ask: dict[str, Any] = {"guidance": guidance, "prompt_length": course.prompt_length}
    grid = trace_tokens(
        model, state, course.subject, asked, corruption=corrupted, joint=joint, **ask, **settings
    )
    flow = None
    if committed and source == "subject" and run == "teacher_forced":
        flow = _split(course, state, asked, committed, corrupted, grid, ask)
    name = corruption.name if source == "subject" else f"{corruption.name} of {source}"
    return replace(
        grid, step=step, run=run, flow=flow, committed=committed, corruption=name, source=source
    )


def _hide_subject(course: Course, state: Int[Tensor, "L"], corruption: Corruption) -> Corrupted:
    corrupted = corruption.apply(course.model, state, range(*course.subject))
    return check_corrupted(corrupted, len(state))


def _corrupt(
    course: Course,
    state: Int[Tensor, "L"],
    committed: tuple[int, ...],
    corruption: Corruption,
    source: Source,
) -> Corrupted:
    """The state with the subject corrupted, committed answer tokens hidden, or both."""
    corrupted = Corrupted(state[None])
    if source != "committed":
        corrupted = _hide_subject(course, state, corruption)
    if source == "subject":
        return corrupted
    return forget(course.model, corrupted, committed)


def _corrupt_freely(
    course: Course,
    step: int,
    state: Int[Tensor, "L"],
    asked: dict[int, int],
    corruption: Corruption,
    free: Int[Tensor, "states n M"],
) -> Corrupted:
    """The corrupted generations' states at a step, with what is asked for as in the clean one."""
    model = course.model
    corrupted = _hide_subject(course, course.state_at(1), corruption)
    rows = state.expand(corrupted.samples, -1).clone()
    reached = free[min(step - 1, len(free) - 1)][:, : len(state)]
    if model.paradigm.has_steps:
        rows[:] = reached
        for position in asked:
            rows[:, position] = state[position]
    else:
        own = slice(course.prompt_length, course.prompt_length + step - 1)
        rows[:, own] = reached[:, own]
    begin, end = course.subject
    rows[:, begin:end] = corrupted.tokens[:, begin:end]
    return replace(corrupted, tokens=rows)


def _split(
    course: Course,
    state: Int[Tensor, "L"],
    asked: dict[int, int],
    committed: tuple[int, ...],
    corrupted: Corrupted,
    grid: TraceGrid,
    ask: dict[str, Any],
) -> Flow:
    """What the subject and the committed answer tokens each give to p, by hiding them."""
    model = course.model

    def measure(bad: Corrupted) -> float:
        return trace_tokens(
            model, state, course.subject, asked, ("resid",), corruption=bad, places=(), **ask
        ).corrupted

    return Flow(
        both=grid.clean_value("p"),
        no_subject=float(grid.corrupted_values("p").mean()),
        no_committed=measure(forget(model, Corrupted(state[None]), committed)),
        neither=measure(forget(model, corrupted, committed)),
    )


def _put(tokens: Int[Tensor, "L"], places: list[int], token: int) -> Int[Tensor, "L"]:
    return tokens.index_fill(0, torch.tensor(places, device=tokens.device), token)
