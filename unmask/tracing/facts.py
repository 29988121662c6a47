"""Tracing one fact: its clean run, the corruption, the grids of its steps, and their controls."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from unmask.base.errors import UserError
from unmask.data.facts import Fact, tokenize_fact
from unmask.evaluation.questions import STUDY_LENGTH, require_tokenizer
from unmask.net.model import Model
from unmask.tracing.controls import choose_other, make_donor, make_foil
from unmask.tracing.corruption import (
    CORRUPTIONS,
    Corruption,
    NoReplacementError,
    get_corruption,
    measure_sigma,
)
from unmask.tracing.course import Course, NotTracedError, find_recalled, follow
from unmask.tracing.grid import TraceGrid
from unmask.tracing.metrics import get_metric, logit_difference
from unmask.tracing.settings import Tracing
from unmask.tracing.steps import trace_steps
from unmask.tracing.table import OTHER_FACT, SHUFFLED, tabulate
from unmask.tracing.tokens import name_joint

if TYPE_CHECKING:
    import pyarrow

NOISES = ("gaussian", "uniform", "rome")
"""Corruptions whose strength is measured against the embeddings of all subjects."""


@dataclass(frozen=True)
class FactTrace:
    """What tracing a fact gave: rows of cells and of tokens, and what became of the fact."""

    record: dict[str, Any]
    error: NotTracedError | None = None
    """Why it was not traced."""
    cells: "pyarrow.Table | None" = None
    tokens: list[dict[str, Any]] = field(default_factory=list)


def check_choices(settings: Tracing) -> None:
    """Raise for a corruption or a metric that is unknown, before anything is run."""
    is_own = not isinstance(settings.corruption, str)
    if is_own or settings.corruption not in CORRUPTIONS:
        get_corruption(settings.corruption)
    get_metric(settings.metric)


def choose_facts(facts: Sequence[Fact], number: int, phrasings: int) -> list[Fact]:
    """The first `number` facts of a split, each in `phrasings` phrasings.

    One fact after the other starts at the next phrasing, so that no phrasing stands for all facts.
    """
    prompts: dict[tuple[str, str], list[Fact]] = {}
    for fact in facts:
        prompts.setdefault((fact.fact_id, fact.direction), []).append(fact)
    return [
        same[(i + j) % len(same)]
        for i, same in enumerate(list(prompts.values())[:number])
        for j in range(min(phrasings, len(same)))
    ]


def rank_facts(model: Model, facts: Sequence[Fact], settings: Tracing) -> tuple[list[Fact], int]:
    """The facts, those that the model recalls first, and how many it recalls."""
    tokenizer, context = require_tokenizer(model), model.net.config.context
    ends = [tokenize_fact(fact, tokenizer).object[1] for fact in facts]
    length = settings.length or min(max(STUDY_LENGTH, *ends), context)
    fitting = [fact for fact, end in zip(facts, ends, strict=True) if end <= length]
    is_recalled = find_recalled(model, fitting, settings.steps, length) if fitting else []
    recalled = {fact for fact, is_hit in zip(fitting, is_recalled, strict=True) if is_hit}
    return sorted(facts, key=lambda fact: fact not in recalled), len(recalled)


def make_fact(prompt: str, subject: str, answer: str) -> Fact:
    """A fact of one's own words."""
    begin = prompt.find(subject)
    if begin < 0 or not subject:
        raise UserError(
            f"the subject {subject!r} is not in the prompt: write it as it stands in {prompt!r}."
        )
    answer = answer.strip()
    if not answer:
        raise UserError("the answer is empty: write what the model should say.")
    space = "" if prompt.endswith(" ") else " "
    return Fact(
        subject=subject,
        object=answer,
        prompt=prompt,
        completion=space + answer,
        subject_span=(begin, begin + len(subject)),
        object_span=(len(space), len(space + answer)),
        fact_id="prompt",
    )


def make_corruption(settings: Tracing, model: Model, facts: Sequence[Fact]) -> Corruption:
    """The corruption that the settings name; noise is measured against all the facts' subjects."""
    tokenizer = require_tokenizer(model)
    encoded = (tokenize_fact(fact, tokenizer) for fact in facts)
    subjects = [tokens.ids[slice(*tokens.subject)] for tokens in encoded]
    is_noise = isinstance(settings.corruption, str) and settings.corruption in NOISES
    sigma = measure_sigma(model, subjects) if is_noise else None
    return get_corruption(
        settings.corruption,
        sigma=sigma,
        samples=settings.samples,
        seed=settings.seed,
        subjects=subjects,
    )


def trace_fact(
    model: Model,
    fact: Fact,
    pool: Sequence[Fact],
    settings: Tracing,
    corruption: Corruption,
    keys: Mapping[str, Any],
    memory: int | None = None,
) -> FactTrace:
    """A fact's rows, controls included, and what became of it; no rows if it is left out.

    Its placebos are chosen from the `pool`. `keys` are columns of all rows that say which model
    and split they are about; `memory` bounds the bytes used beside the weights.
    """
    import pyarrow

    keys = {
        **keys,
        "fact": fact.fact_id,
        "phrasing": fact.phrasing,
        "direction": fact.direction,
        "trained": fact.trained,
    }
    record = {
        **keys,
        "subject": fact.subject,
        "object": fact.object,
        "prompt": fact.prompt,
        "completion": fact.completion,
        "corruption": corruption.name,
        "sigma": getattr(corruption, "sigma", None),
        "joint": name_joint(model, settings.joint),
        "window": settings.window,
    }
    record |= {"said": "", "forced": False, "t1": 0, "t2": 0, "clean": 0.0, "kept": False}
    try:
        course = follow(
            model, fact, settings.steps, settings.length, settings.guidance, settings.any_answer
        )
        record |= {"said": course.text, "forced": course.forced, "t1": course.t1, "t2": course.t2}
        grids, placebos = _trace_with_placebo(
            model, course, fact, pool, settings, corruption, memory
        )
    except NotTracedError as error:
        return FactTrace(record | {"reason": error.reason}, error)
    tables = []
    for stage, step in course.find_steps(settings.at):
        if step not in grids:
            continue
        grid, at = grids[step], {**keys, "stage": stage}
        tables.append(tabulate(grid, at))
        # A logit difference has both answers in it already.
        has_foil = grid.corrupted_logp.shape[1] > 1
        if has_foil and get_metric(settings.metric) is not logit_difference:
            tables.append(tabulate(grid, at, SHUFFLED))
        if step in placebos:
            tables.append(tabulate(placebos[step], at, OTHER_FACT))
    # Grids come in the order of their steps.
    clean = next(iter(grids.values())).clean_value("p")
    return FactTrace(
        record | {"clean": clean, "kept": True, "reason": ""},
        cells=pyarrow.concat_tables(tables),
        tokens=[{**keys, **token} for token in _list_tokens(course)],
    )


Grids = dict[int | None, TraceGrid]


def _trace_with_placebo(
    model: Model,
    course: Course,
    fact: Fact,
    pool: Sequence[Fact],
    settings: Tracing,
    corruption: Corruption,
    memory: int | None,
) -> tuple[Grids, Grids]:
    """Grids by step, of the fact's own states and of another fact's put in their place."""
    tokenizer = require_tokenizer(model)
    other = choose_other(fact, pool, tokenizer, settings.seed)
    foil = make_foil(course, other, tokenizer) if other is not None else None
    if get_metric(settings.metric) is logit_difference and not foil:
        raise NotTracedError(
            "no other answer",
            "the logit difference compares the answer with another one, and none was given: name "
            "a --foil, give more facts, or use another metric.",
        )
    more: dict[str, Any] = {"foil": foil or None, "memory": memory}
    try:
        grids = _trace(model, course, settings, corruption, **more)
    except NoReplacementError as error:
        raise NotTracedError("no subject as long", str(error)) from None
    if not grids:
        raise NotTracedError(
            "no such step",
            f"none of the steps {', '.join(map(str, settings.at))} can be traced with the source "
            f"{settings.source!r}: the answer is written at steps {course.t1} to {course.t2}; "
            "name others.",
        )
    placebos: Grids = {}
    # Of a foil that was named for the same prompt, the states are the fact's own.
    if other is not None and other.prompt != fact.prompt and settings.mode == "restore":
        more |= {
            "donor": make_donor(course, other, tokenizer),
            "places": tuple(range(*course.subject)),
        }
        placebos = _trace(model, course, settings, corruption, **more)
    return grids, placebos


def _trace(
    model: Model, course: Course, settings: Tracing, corruption: Corruption, **more: Any
) -> Grids:
    grids = trace_steps(
        model,
        course,
        settings.steps,
        settings.at,
        corruption=corruption,
        guidance=settings.guidance,
        joint=settings.joint,
        run=settings.run,
        source=settings.source,
        parts=settings.parts,
        window=settings.window,
        metric=settings.metric,
        mode=settings.mode,
        severed=settings.severed,
        **more,
    )
    return {grid.step: grid for grid in grids}


def _list_tokens(course: Course) -> Iterator[dict[str, Any]]:
    """The clean run's text, token by token, with the step that wrote each (0: given)."""
    tokenizer = require_tokenizer(course.model)
    steps = course.committed_at.tolist()
    for position, token in enumerate(course.states[-1].tolist()):
        yield {
            "position": position,
            "piece": "⏎" if token == tokenizer.end_id else tokenizer.piece(token),
            "written": steps[position],
            "in_subject": course.subject[0] <= position < course.subject[1],
            "in_answer": position in course.answer,
        }
