"""Surveys: many facts traced one after the other into tables, with their controls; resumable."""

import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from unmask.base.errors import UserError
from unmask.base.progress import track
from unmask.base.tables import Parts, write_table
from unmask.data.facts import Fact, tokenize_fact
from unmask.net.model import Model
from unmask.tracing.averages import SCHEMA as AVERAGES_SCHEMA
from unmask.tracing.averages import TESTS_SCHEMA, average, compare_groups, find_effects
from unmask.tracing.controls import choose_other, make_donor, make_foil
from unmask.tracing.corruption import (
    Corruption,
    Mask,
    Mean,
    Noise,
    NoReplacementError,
    Replace,
    measure_sigma,
)
from unmask.tracing.course import Course, NotTracedError, follow
from unmask.tracing.grid import TraceGrid
from unmask.tracing.steps import trace_steps
from unmask.tracing.table import FACTS_SCHEMA, OTHER_FACT, SCHEMA, SHUFFLED, tabulate

if TYPE_CHECKING:
    import pyarrow

Corrupting = Literal["gaussian", "uniform", "rome", "mask", "mean", "replace"]


@dataclass(frozen=True, kw_only=True)
class Survey:
    """How every fact is traced."""

    steps: int = 16
    at: tuple[str, ...] = ("first", "last")
    parts: tuple[str, ...] = ("resid", "mlp", "attn")
    window: int = 10
    corruption: Corrupting = "gaussian"
    samples: int = 10
    metric: str = "p"
    guidance: float = 0.0
    length: int | None = None
    joint: Literal["mean_field", "chain_rule"] = "mean_field"
    mode: Literal["restore", "ablate"] = "restore"
    run: Literal["teacher_forced", "free_running"] = "teacher_forced"
    source: Literal["subject", "committed", "both"] = "subject"
    severed: Literal["mlp", "attn"] | None = None
    any_answer: bool = False
    """Whether facts that are not recalled are traced, too, their answer placed for them."""
    seed: int = 0


@dataclass(frozen=True)
class Summary:
    """What a survey kept and dropped."""

    kept: int
    dropped: dict[str, int]
    """By reason."""


def choose_facts(facts: Sequence[Fact], number: int, phrasings: int) -> list[Fact]:
    """The first `number` facts of a split, each in `phrasings` phrasings.

    One fact after the other starts at the next phrasing, so that no phrasing stands for all facts.
    """
    chosen: dict[tuple[str, str], list[Fact]] = {}
    for fact in facts:
        chosen.setdefault((fact.fact_id, fact.direction), []).append(fact)
    return [
        asked[(i + j) % len(asked)]
        for i, asked in enumerate(list(chosen.values())[:number])
        for j in range(min(phrasings, len(asked)))
    ]


def make_corruption(survey: Survey, model: Model, facts: Sequence[Fact]) -> Corruption:
    """The corruption that a survey names; noise is measured against all its subjects."""
    assert model.tokenizer is not None
    found = (tokenize_fact(fact, model.tokenizer) for fact in facts)
    subjects = tuple(tuple(tokens.ids[slice(*tokens.subject)]) for tokens in found)
    name = survey.corruption
    if name == "mask":
        return Mask()
    if name == "mean":
        return Mean()
    if name == "replace":
        return Replace(subjects, survey.samples, survey.seed)
    sigma = measure_sigma(model, subjects)
    if name == "rome":
        return Noise(sigma, survey.samples, "rome")
    return Noise(sigma, survey.samples, survey.seed, name)


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


def trace_one(
    model: Model,
    fact: Fact,
    survey: Survey,
    memory: int | None = None,
    foil: Fact | None = None,
) -> tuple[Course, dict[int | None, TraceGrid]]:
    """The course of a single fact, and its grids by step; no controls.

    The answer of the `foil` is what a logit difference compares with.
    """
    if survey.corruption == "replace":
        raise UserError(
            "a single prompt has no other subjects to put in its subject's place: give --data with "
            "facts, or use another corruption."
        )
    course = follow(model, fact, survey.steps, survey.length, survey.guidance, survey.any_answer)
    corruption = make_corruption(survey, model, [fact])
    other = None
    if foil is not None:
        assert model.tokenizer is not None
        other = make_foil(course, foil, model.tokenizer)
    grids = _trace(model, course, survey, corruption, memory=memory, foil=other or None)
    if not grids:
        raise UserError(
            f"none of the steps {', '.join(survey.at)} can be traced with the source "
            f"{survey.source!r}: no answer token is committed before them; name later steps."
        )
    return course, {grid.step: grid for grid in grids}


def trace_fact(
    model: Model,
    fact: Fact,
    pool: Sequence[Fact],
    survey: Survey,
    corruption: Corruption,
    memory: int | None = None,
) -> tuple["pyarrow.Table | None", dict[str, Any]]:
    """A fact's rows, controls included, and what became of it; no rows if it is dropped.

    Its placebos are chosen from the `pool`.
    """
    import pyarrow

    assert model.tokenizer is not None
    record = asdict(fact) | {"fact": fact.fact_id, "kind": model.kind, "reason": "", "said": ""}
    record |= {"corruption": survey.corruption, "forced": False, "t1": 0, "t2": 0, "clean": 0.0}
    for name in ("fact_id", "subject_span", "object_span"):
        del record[name]
    try:
        course = follow(
            model, fact, survey.steps, survey.length, survey.guidance, survey.any_answer
        )
    except NotTracedError as error:
        return None, record | {"kept": False, "reason": error.reason}
    other = choose_other(fact, pool, model.tokenizer, survey.seed)
    foil = make_foil(course, other, model.tokenizer) if other is not None else None
    if survey.metric == "logit_difference" and not foil:
        return None, record | {"kept": False, "reason": "no other answer"}
    named = course.find_steps(survey.at)
    more: dict[str, Any] = {"memory": memory}
    try:
        found = _trace(model, course, survey, corruption, foil=foil or None, **more)
    except NoReplacementError:
        return None, record | {"kept": False, "reason": "no subject as long"}
    grids = {grid.step: grid for grid in found}
    placebos: dict[int | None, TraceGrid] = {}
    if other is not None and survey.mode == "restore":
        donor = make_donor(course, other, model.tokenizer)
        more |= {"donor": donor, "places": tuple(range(*course.subject)), "foil": foil or None}
        found = _trace(model, course, survey, corruption, **more)
        placebos = {grid.step: grid for grid in found}
    tables = []
    for label, step in named:
        if step not in grids:
            continue
        grid = grids[step]
        tables.append(tabulate(grid, fact, model.kind, label))
        # A logit difference has both answers in it already.
        if grid.corrupted_logp.shape[1] > 1 and survey.metric != "logit_difference":
            tables.append(tabulate(grid, fact, model.kind, label, SHUFFLED))
        if step in placebos:
            tables.append(tabulate(placebos[step], fact, model.kind, label, OTHER_FACT))
    record |= {"said": course.text, "forced": course.forced, "t1": course.t1, "t2": course.t2}
    if not tables:
        return None, record | {"kept": False, "reason": "no such step"}
    # Grids come in the order of their steps.
    clean = next(iter(grids.values())).clean_value("p")
    return pyarrow.concat_tables(tables), record | {"kept": True, "clean": clean}


def _trace(
    model: Model,
    course: Course,
    survey: Survey,
    corruption: Corruption,
    **more: Any,
) -> list[TraceGrid]:
    return trace_steps(
        model,
        course,
        survey.steps,
        survey.at,
        corruption=corruption,
        guidance=survey.guidance,
        joint=survey.joint,
        run=survey.run,
        source=survey.source,
        parts=survey.parts,
        window=survey.window,
        metric=survey.metric,
        mode=survey.mode,
        severed=survey.severed,
        **more,
    )


def run_survey(
    model: Model,
    facts: Sequence[Fact],
    survey: Survey,
    folder: Path,
    memory: int | None = None,
    rank: int = 0,
    world: int = 1,
    pool: Sequence[Fact] | None = None,
) -> Summary | None:
    """Trace all facts into `folder`; facts that are there already are not traced again.

    Noise is measured against the subjects of the `pool`, and placebos and replacements come from
    it; by default it is the facts themselves.
    Of several processes each takes its share, and the first gathers the tables once all parts are
    there; the others return None. They share nothing but the folder.
    """
    if not facts:
        raise UserError("no facts were given: name a split that is not empty.")
    keys = name_parts(facts)
    traces, records = Parts(folder / "parts", SCHEMA), Parts(folder / "records", FACTS_SCHEMA)
    pool = facts if pool is None else pool
    corruption = make_corruption(survey, model, pool)
    mine = [i for i in range(rank, len(facts), world) if not records.has(keys[i])]
    for i in track(mine, "facts traced"):
        table, record = trace_fact(model, facts[i], pool, survey, corruption, memory)
        if table is not None:
            traces.write(keys[i], table)
        records.write(keys[i], [record])
    if rank != 0:
        return None
    while not all(records.has(key) for key in keys):
        time.sleep(1.0)  # other processes still trace; if one fails, torchrun ends all
    return gather(folder, keys, traces, records, survey)


def name_parts(facts: Sequence[Fact]) -> list[str]:
    """The names under which a survey keeps what it found about each fact."""
    # Facts of one's own may be called anything, files not.
    return [
        re.sub(r"[^\w.-]", "_", f"{i:05d}-{fact.fact_id}-{fact.direction}")
        for i, fact in enumerate(facts)
    ]


def gather(
    folder: Path, keys: Sequence[str], traces: Parts, records: Parts, survey: Survey
) -> Summary:
    """Write the tables of a finished survey: traces, facts, averages and tests."""
    told = records.gather(keys)
    write_table(folder / "facts.parquet", told, FACTS_SCHEMA)
    reasons = [reason for reason in told["reason"].to_pylist() if reason]
    kept = [key for key in keys if traces.has(key)]
    dropped = {reason: reasons.count(reason) for reason in sorted(set(reasons))}
    if kept:
        table = traces.gather(kept)
        write_table(folder / "trace.parquet", table, SCHEMA)
        write_averages(folder, table, survey.mode, survey.seed)
    return Summary(len(kept), dropped)


def write_averages(folder: Path, table: "pyarrow.Table", mode: str, seed: int) -> None:
    """Write the averages and tests of a table of traces, of one run or of several together."""
    write_table(folder / "averages.parquet", average(table, mode), AVERAGES_SCHEMA)
    tests = compare_groups(find_effects(table, mode), seed)
    if tests:
        write_table(folder / "tests.parquet", tests, TESTS_SCHEMA)
