"""trace: where must a state be restored for a fact to be recalled again?

Causal tracing as ROME's (Meng et al. 2022, arXiv 2202.05262): a clean run, a run with the subject
corrupted, and the corrupted run with one clean state put back. A diffusion model is traced at the
denoising steps of its own answer.

Effects of a fact's phrasings and training seeds are averaged first; intervals are 95 % t intervals
over facts, and say nothing of other seeds. Placebos are the state of a prompt token that is not the
subject's, another fact's state (or one as far away in a random direction) put in at the subject and
at the answer's rows, and the same restored run read for another answer. Layers are chosen on one
half of the facts (by a hash of the fact) and read on the other. An effect there is clear if its
interval lies above 0 and above those of all placebos that were measured. Shares are ratios of means
over facts, their intervals by the delta method.

An indirect effect says that a state is enough, under this corruption, to bring some of the answer
back; not that the fact is stored there, nor that the network needs the state on other prompts.
Noise takes a network outside of what it was trained on; masks do not, but hide only what the prompt
says. Windows add up layers, which can hide opposing ones. A state of the subject can give back all
that was lost, one of several answer masks only its own token's share: roles are not to be compared
as if they held the same. Facts that a model does not recall are not in the averages.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from unmask.base.config import CheckedSettings, option
from unmask.base.errors import UserError
from unmask.base.runs import DIGESTS
from unmask.blocks import tidy
from unmask.blocks.blocks import ReportBlock
from unmask.evaluation.equivalence import MARGIN
from unmask.measures.clean_runs import (
    ChosenPrompts,
    CleanRunSettings,
    choose_prompts,
    make_jobs,
)
from unmask.measures.inputs import QUESTIONS, Member, ModelInputs, ModelsAndData
from unmask.measures.measure import Argument, Job, Measure, Rows, Stage
from unmask.measures.result import Result
from unmask.measures.runner import pool_tables
from unmask.measures.stored import open_stored_run
from unmask.measures.trace_effects import add_outcomes
from unmask.measures.trace_section import describe, draw_roles, state_groups
from unmask.measures.trace_summary import summarise
from unmask.measures.trainings import concatenate, number_trainings
from unmask.results.summaries import Tables
from unmask.tracing.settings import Tracing
from unmask.tracing.table import FACTS_SCHEMA, OTHER_FACT, SCHEMA, TOKENS_SCHEMA

if TYPE_CHECKING:
    import pyarrow

    from unmask.data.corpus import Corpus
    from unmask.data.facts import Fact
    from unmask.tracing.corruption import Corruption
    from unmask.tracing.record import Activations

FOIL = "foil"
"""A split of facts that are not traced, but whose answers can be compared with."""
ALIKE = ("metric", "mode", "run", "severed", "source", "cells", "window")
"""Settings that runs must share for their effects to be compared."""
ALIKE_OF_MODEL = ("steps", "guidance", "length", "dtype", "any_answer", "order", "remask", "joint")
"""Settings that runs of one model must share; a model and its twin may differ in them."""


@dataclass(frozen=True, kw_only=True)
class TraceSettings(Tracing, CleanRunSettings):  # ty: ignore[incompatible-attribute-override]
    """Which facts are traced, and how."""

    first_recalled: bool = option(
        False, "Of each fact, the first phrasings that the first model recalls."
    )
    also: tuple[Literal["p", "logp", "logp_per_token", "logit_difference"], ...] = option(
        (), "Further metrics of the same runs, side by side with --metric."
    )
    placebos: tuple[Literal["other fact", "random direction"], ...] = option(
        (OTHER_FACT,),
        "What is put in at the subject and at the answer's positions instead of the clean states: "
        "another fact's, or the corrupted ones moved as far in a random direction.",
    )
    condensed: bool = option(
        False,
        "Keep means over the tokens of a role and the noise samples alone: small tables, the same "
        "averages, no single texts.",
    )
    margin: float = option(
        MARGIN, "Shares of the total effect that differ by less are alike.", above=0
    )


@dataclass(frozen=True)
class FactsOrPrompt(ModelsAndData):
    """Models with a corpus or facts, or with one prompt on the command line."""

    def parameters(self) -> Sequence[Argument]:
        words = {
            "prompt": "One prompt instead of a corpus.",
            "subject": "Its subject, as it stands in the prompt.",
            "answer": "Its answer.",
            "foil": "A wrong answer to compare with, for logit_difference.",
        }
        more = (Argument(*each, is_option=True, is_required=False) for each in words.items())
        return (*super().parameters(), *more)

    def read(self, given: Mapping[str, Any], settings: CheckedSettings) -> ModelInputs:
        from unmask.tracing.facts import check_choices

        assert isinstance(settings, TraceSettings)
        check_choices(settings)
        data = _read_prompt(given) or given.get("data")
        inputs = super().read({"models": given["models"], "data": data}, settings)
        unmasked = [each for each in inputs.families if not each.paradigm.hides_behind_mask]
        if unmasked and settings.corruption == "mask":
            raise UserError(
                f"{unmasked[0].name} is a {unmasked[0].kind} model and has no mask to hide the "
                "subject behind: use noise (gaussian), the mean embedding (mean) or another "
                "subject (replace), or trace it apart."
            )
        return inputs


def _read_prompt(given: Mapping[str, Any]) -> "Corpus | None":
    """The one prompt of a command line, with its foil, as a corpus; None where there is none."""
    from unmask.data.corpus import Corpus
    from unmask.data.sources import OWN
    from unmask.tracing.facts import make_fact

    prompt, subject, answer, foil = map(given.get, ("prompt", "subject", "answer", FOIL))
    if prompt is None:
        if subject or answer or foil:
            raise UserError("a --subject, --answer or --foil goes with a --prompt: give one.")
        return None
    if given.get("data") is not None:
        raise UserError("give either --data with facts, or --prompt with --subject and --answer.")
    if subject is None or answer is None:
        raise UserError("a prompt needs its --subject and its --answer.")
    fact = make_fact(prompt, subject, answer)
    if foil is None:
        return Corpus("one prompt", {OWN: [fact]})
    other = replace(make_fact(prompt, subject, foil), fact_id=FOIL)
    return Corpus(f"one prompt, compared with {foil!r}", {OWN: [fact], FOIL: [other]})


def list_jobs(inputs: ModelInputs, settings: TraceSettings) -> Iterator[Job]:
    """One part for each model and prompt."""
    from unmask.tracing.windows import default_window

    chosen = choose_prompts(inputs, settings, is_recalled=settings.first_recalled)
    questions, members = inputs.data, inputs.members()
    pool = [fact for _, fact in questions.facts()] + questions.corpus.splits.get(FOIL, [])
    # The default window of the shallowest model, so that all of them are compared alike.
    window = settings.window or default_window(min(each.config.layers for each in members))
    settings = replace(settings, window=window)
    number = len(members) * sum(len(each.facts) for each in chosen.values())
    prepared: dict[str, tuple[Corruption, Activations | None]] = {}

    def work(member: Member, split: str, fact: "Fact") -> "Mapping[str, Rows | pyarrow.Table]":
        from unmask.tracing.facts import make_corruption, make_means, trace_fact

        model = inputs.load(member)
        if member.key not in prepared:
            corruption = make_corruption(settings, model, pool)
            prepared[member.key] = corruption, make_means(settings, model, pool)
        keys = {**member.columns, "split": split}
        corruption, means = prepared[member.key]
        more = (settings.memory_bytes, settings.also, means, settings.placebos, settings.condensed)
        trace = trace_fact(model, fact, pool, settings, corruption, keys, *more)
        # Of many facts some may be left out; a single one is what was asked for.
        if trace.error is not None and number == 1 and settings.consider is None:
            raise trace.error
        # The first model chose them.
        is_first = member.family is inputs.families[0]
        choice = chosen[split] if is_first else ChosenPrompts([])
        counts = {"considered": choice.considered, "recalled": choice.recalled}
        cells = () if trace.cells is None else trace.cells
        return {"trace": cells, "tokens": trace.tokens, "facts": [trace.record | counts]}

    yield from make_jobs(members, chosen, work)


def pool(results: Sequence[Result]) -> Tables:
    """The tables of several runs as one, if what they say can be said together."""
    facts = [result.tables["facts"].to_pylist() for result in results]
    trainings, runs = number_trainings(facts), list[tidy.Record]()
    for result, rows, numbers in zip(results, facts, trainings, strict=True):
        inputs, settings = result.records[0].inputs, result.settings.to_record()
        for model, own in tidy.group_by(rows, "model").items():
            names = [x for x in inputs[DIGESTS] if x.partition(", seed")[0] == model]
            more = {"training": (model, numbers[model]), "data": inputs.get("data")}
            more["weights"] = str([inputs[DIGESTS][name] for name in names])
            runs.append({**settings, **own[0], **more})
    require_alike(runs, ALIKE)
    trained = tidy.group_by(runs, "training")
    if any(len(tidy.distinct(same, "weights")) > 1 for same in trained.values()):
        # Different weights under one name: models are named by their runs.
        return pool_tables(results)
    for (model, _), same in trained.items():
        require_alike(same, ("data",), f" of {model}")
    for model, same in tidy.group_by(runs, "model").items():
        require_alike(same, ALIKE_OF_MODEL, f" of {model}")
    keys = ("seed", "split", "fact", "phrasing", "corruption")
    prompts = [
        (row["model"], number[row["model"]], *(row[name] for name in keys))
        for rows, number in zip(facts, trainings, strict=True)
        for row in rows
    ]
    if len(set(prompts)) < len(prompts):
        raise UserError(
            "a prompt was traced in two of these runs under one corruption, and would count twice: "
            "trace all its steps in one run, or report the runs apart."
        )
    return concatenate(results, facts, trainings)


def require_alike(runs: Rows, names: Sequence[str], of: str = "") -> None:
    """Raise for runs that differ in something that their effects depend on."""
    for name in names:
        values = sorted({str(run[name]) for run in runs})
        if len(values) > 1:
            raise UserError(
                f"these runs{of} differ in {name} ({', '.join(values)}), so their effects cannot "
                "be compared: report them apart."
            )


def _draw_stored(folder: str) -> list[ReportBlock]:
    """The diffusion model's finding and the map of residual streams, at step 1."""
    with open_stored_run(folder) as result:
        settings, names = result.settings.to_record(), ("averages", "shares")
        summary = add_outcomes(*(tidy.select(result.summary[n], stage="first") for n in names))
        finding, *_ = state_groups(summary, settings)
        return [finding, draw_roles(summary["averages"], settings)]


_FULL: dict[str, Any] = {"facts": 30, "consider": 30, "guidance": 0.0}
_LAPTOP: dict[str, Any] = _FULL | {"facts": 8, "samples": 1, "corruption": "mean"}
_QUICK: dict[str, Any] = _LAPTOP | {"facts": 1, "consider": 6, "parts": ("resid",), "steps": 4}
_FIRST: dict[str, Any] = {"at": ("first",)}
_MASKS = _QUICK | {"corruption": "mask"}
_SIZES = {"quick": _QUICK | _FIRST, "laptop": _LAPTOP | _FIRST, "full": _FULL | _FIRST}
_DENOISING = {
    "quick": _MASKS | {"at": ("1", "4")},
    "laptop": None,
    "full": _FULL | {"at": ("all",)},
}

MEASURE = Measure(
    name="trace",
    title="Which states bring answers back",
    help="Find which states, put back, are enough to bring an answer back (causal tracing).",
    settings=TraceSettings,
    tables={"trace": SCHEMA, "tokens": TOKENS_SCHEMA, "facts": FACTS_SCHEMA},
    inputs=FactsOrPrompt(QUESTIONS.read_data, QUESTIONS.help),
    jobs=list_jobs,
    summarise=summarise,
    describe=describe,
    method=__doc__,
    pool=pool,
    draw_stored=_draw_stored,
    stages=[
        Stage(sizes=_SIZES),
        Stage("trace-steps", "diffusion", {"quick": _MASKS, "laptop": None, "full": _FULL}),
        Stage("trace-denoising", "diffusion", _DENOISING),
    ],
)
