"""Tracing one fact: its clean run, the corruption, the grids of its steps, and their controls.

Controls are placebos, what a trace must not find, chosen for each fact from the others.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from unmask.base.errors import UserError
from unmask.base.seeds import python_stream
from unmask.data.facts import Fact, gather_prompts, place_subject, tokenize_fact
from unmask.data.tokenizer import Tokenizer
from unmask.data.words import put_space
from unmask.evaluation.questions import require_tokenizer
from unmask.net.model import Model
from unmask.tracing.clean_run import CleanRun, NotTracedError, generate
from unmask.tracing.corruption import (
    CORRUPTIONS,
    Corruption,
    NoReplacementError,
    get_corruption,
    measure_sigma,
)
from unmask.tracing.grid import TraceGrid
from unmask.tracing.metrics import NO_FOIL, get_metric, needs_foil
from unmask.tracing.question import Donor, name_joint
from unmask.tracing.record import Activations, average_states
from unmask.tracing.settings import WHOLE_ANSWER, Tracing
from unmask.tracing.steps import trace_steps
from unmask.tracing.table import ONE_TOKEN, OTHER_FACT, RANDOM, SHUFFLED, condense, tabulate_grid

if TYPE_CHECKING:
    import pyarrow

NOISES = ("gaussian", "uniform", "rome")
"""Corruptions whose strength is measured against the embeddings of all subjects."""

MOST_TEXTS = 64
"""Facts over whose texts means are taken."""


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
    # Compared with a list: an object of one's own need not be hashable.
    if settings.corruption not in list(CORRUPTIONS):
        get_corruption(settings.corruption)
    get_metric(settings.metric)


def choose_facts(facts: Sequence[Fact], number: int, phrasings: int) -> list[Fact]:
    """The first `number` facts of a split, each in `phrasings` phrasings.

    One fact after the other starts at the next phrasing, so that no phrasing stands for all facts.
    """
    return [
        same[(i + j) % len(same)]
        for i, same in enumerate(list(gather_prompts(facts).values())[:number])
        for j in range(min(phrasings, len(same)))
    ]


def make_fact(prompt: str, subject: str, answer: str) -> Fact:
    """A fact of one's own words."""
    if not subject or subject not in prompt:
        raise UserError(
            f"the subject {subject!r} is not in the prompt: write it as it stands in {prompt!r}."
        )
    answer = answer.strip()
    if not answer:
        raise UserError("the answer is empty: write what the model should say.")
    completion = answer if prompt.endswith(" ") else put_space(prompt, answer)
    return Fact(
        subject=subject,
        object=answer,
        prompt=prompt,
        completion=completion,
        subject_span=place_subject(prompt, subject, "the prompt"),
        object_span=(len(completion) - len(answer), len(completion)),
        fact_id="prompt",
    )


def make_corruption(settings: Tracing, model: Model, facts: Sequence[Fact]) -> Corruption:
    """The corruption that the settings name; noise is measured against all the facts' subjects."""
    tokenizer = require_tokenizer(model)
    encoded = (tokenize_fact(fact, tokenizer) for fact in facts)
    subjects = [tokens.ids[slice(*tokens.subject)] for tokens in encoded]
    sigma = measure_sigma(model, subjects) if settings.corruption in NOISES else None
    return get_corruption(
        settings.corruption, settings.samples, settings.seed, sigma=sigma, subjects=subjects
    )


def make_means(settings: Tracing, model: Model, facts: Sequence[Fact]) -> Activations | None:
    """What the mode "mean" puts in: means over all positions of the facts' texts."""
    if settings.mode != "mean":
        return None
    tokenizer = require_tokenizer(model)
    texts = {fact.text: None for fact in facts[:MOST_TEXTS]}
    return average_states(model, [tokenizer.encode(text).ids for text in texts])


def trace_fact(
    model: Model,
    fact: Fact,
    pool: Sequence[Fact],
    settings: Tracing,
    corruption: Corruption,
    keys: Mapping[str, Any],
    memory: int | None = None,
    metrics: Sequence[str] = (),
    means: Activations | None = None,
    placebos: Sequence[str] = (OTHER_FACT,),
    is_condensed: bool = False,
) -> FactTrace:
    """A fact's rows, controls included, and what became of it; no rows if it is left out.

    Its placebos are chosen from the `pool`. `keys` are columns of all rows that say which model
    and split they are about; `memory` bounds the bytes used beside the weights. Further `metrics`
    are columns beside the value; `means` are what the mode "mean" puts in. `placebos` are put in at
    the subject and at the rows that the answer is read from. `is_condensed` keeps means over the
    tokens of a role and the samples, and not the text.
    """
    import pyarrow

    keys = {**keys, **fact.columns}
    texts = {name: getattr(fact, name) for name in ("subject", "object", "prompt", "completion")}
    record = {
        **keys,
        **texts,
        "corruption": corruption.name,
        "sigma": getattr(corruption, "sigma", None),
        "joint": name_joint(model, settings),
        "window": settings.window,
    }
    record |= {"said": "", "forced": False, "t1": 0, "t2": 0, "clean": 0.0, "kept": False}
    settings = replace(settings, corruption=corruption)
    try:
        clean = generate(model, fact, settings)
        record |= {"said": clean.text, "forced": clean.forced, "t1": clean.t1, "t2": clean.t2}
        grids, controls = _trace_with_placebos(clean, fact, pool, settings, memory, means, placebos)
    except NotTracedError as error:
        return FactTrace(record | {"reason": error.reason}, error)
    tables = []
    for stage, step in clean.find_steps(settings.at):
        if step not in grids:
            continue
        grid, at = grids[step], {**keys, "stage": stage}
        tables.append(tabulate_grid(grid, at, metrics=metrics))
        if settings.together and WHOLE_ANSWER in grid.together:
            tables.append(tabulate_grid(grid, at, ONE_TOKEN, metrics))
        # A logit difference has both answers in it already.
        if grid.corrupted_logp.shape[1] > 1 and not needs_foil(settings.metric):
            tables.append(tabulate_grid(grid, at, SHUFFLED, metrics))
        for control, own in controls.items():
            if step in own:
                tables.append(tabulate_grid(own[step], at, control, metrics))
    # Grids come in the order of their steps.
    p_clean = next(iter(grids.values())).clean_value("p")
    cells = pyarrow.concat_tables(tables)
    return FactTrace(
        record | {"clean": p_clean, "kept": True, "reason": ""},
        cells=condense(cells) if is_condensed else cells,
        tokens=[] if is_condensed else [{**keys, **token} for token in _list_tokens(clean)],
    )


GridsByStep = dict[int | None, TraceGrid]


def _trace_with_placebos(
    clean: CleanRun,
    fact: Fact,
    pool: Sequence[Fact],
    settings: Tracing,
    memory: int | None,
    means: Activations | None,
    placebos: Sequence[str],
) -> tuple[GridsByStep, dict[str, GridsByStep]]:
    """Grids by step, of the fact's own states and of placebos put in their place."""
    tokenizer = require_tokenizer(clean.model)
    other = choose_other(fact, pool, tokenizer, settings.seed)
    foil = make_foil(clean, other, tokenizer) if other is not None else None
    if needs_foil(settings.metric) and not foil:
        raise NotTracedError("no other answer", NO_FOIL)

    def trace(**more: Any) -> GridsByStep:
        more |= {"foil": foil or None, "memory": memory, "means": means}
        grids = trace_steps(clean.model, clean, settings, **more)
        return {grid.step: grid for grid in grids}

    try:
        grids = trace()
    except NoReplacementError as error:
        raise NotTracedError("no subject as long", str(error)) from None
    if not grids:
        raise NotTracedError(
            "no such step",
            f"none of the steps {', '.join(map(str, settings.at))} can be traced with the source "
            f"{settings.source!r}: the answer is written at steps {clean.t1} to {clean.t2}; "
            "name others.",
        )
    controls: dict[str, GridsByStep] = {}
    if settings.mode != "restore":
        return grids, controls
    subject, rows = (), ()
    if settings.cells == "tokens":
        subject = tuple(range(*clean.subject))
        rows = tuple(sorted({clean.model.row_of(position) for position in clean.answer}))
    # Of a foil that was named for the same prompt, the states are the fact's own.
    if OTHER_FACT in placebos and other is not None and other.prompt != fact.prompt:
        donor = make_donor(clean, other, tokenizer)
        places = (*subject, *(row for row in rows if row in donor.moved))
        controls[OTHER_FACT] = trace(donor=donor, places=places)
    if RANDOM in placebos:
        controls[RANDOM] = trace(donor="random", places=(*subject, *rows))
    return grids, controls


def _list_tokens(clean: CleanRun) -> Iterator[dict[str, Any]]:
    """The clean run's text, token by token, with the step that wrote each (0: given)."""
    tokenizer = require_tokenizer(clean.model)
    steps = clean.committed_at.tolist()
    for position, token in enumerate(clean.states[-1].tolist()):
        yield {
            "position": position,
            "piece": "⏎" if token == tokenizer.end_id else tokenizer.piece(token),
            "written": steps[position],
            "in_subject": clean.subject[0] <= position < clean.subject[1],
            "in_answer": position in clean.answer,
        }


def choose_other(
    fact: Fact, facts: Sequence[Fact], tokenizer: Tokenizer, seed: int = 0
) -> Fact | None:
    """Another fact asked the same way, in the same phrasing and as long to answer if there is one.

    A shorter answer would be likelier for its length alone.
    """
    others = [
        each
        for each in facts
        if each.fact_id != fact.fact_id
        and (each.direction, each.trained) == (fact.direction, fact.trained)
        and each.object != fact.object
    ]
    alike = [each for each in others if each.phrasing == fact.phrasing] or others
    if not alike:
        return None
    lengths = [_count_answer(each, tokenizer) for each in alike]
    wanted = _count_answer(fact, tokenizer)
    enough = [each for each, length in zip(alike, lengths, strict=True) if length >= wanted]
    return python_stream(seed, "other", fact.fact_id, fact.phrasing).choice(enough or alike)


def make_donor(clean: CleanRun, other: Fact, tokenizer: Tokenizer) -> Donor:
    """The other fact's prompt, its subject aligned with ours from the end, and the rows that the
    answer is read from as far after its end as ours are."""
    tokens = tokenize_fact(other, tokenizer)
    begin, end = tokens.subject
    moved = {
        ours: max(begin, end - 1 - back)
        for back, ours in enumerate(reversed(range(*clean.subject)))
    }
    further, model = tokens.prompt_length - clean.prompt_length, clean.model
    length = model.net.config.context
    if model.paradigm.sees_later:  # the canvas stays as long as it is
        length = clean.states.shape[1]
    for row in sorted({model.row_of(position) for position in clean.answer}):
        if clean.prompt_length - 1 <= row and row + further < length:
            moved[row] = row + further
    return Donor(tuple(tokens.ids[: tokens.prompt_length]), moved)


def make_foil(clean: CleanRun, other: Fact, tokenizer: Tokenizer) -> dict[int, int]:
    """The other fact's answer at the answer's positions, where both reach and differ."""
    tokens = tokenize_fact(other, tokenizer)
    wanted = tokens.ids[slice(*tokens.object)]
    pairs = zip(sorted(clean.answer), wanted, strict=False)
    return {at: token for at, token in pairs if token != clean.answer[at]}


def _count_answer(fact: Fact, tokenizer: Tokenizer) -> int:
    begin, end = tokenize_fact(fact, tokenizer).object
    return end - begin
