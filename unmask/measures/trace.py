"""trace: where must a state be restored for a fact to be recalled again?

Causal tracing as ROME's (Meng et al. 2022, arXiv 2202.05262): a clean run, a run with the subject
corrupted, and the corrupted run with one clean state put back. A diffusion model is traced at the
denoising steps of its own answer.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from unmask.base.config import CheckedSettings, option
from unmask.base.errors import UserError
from unmask.blocks import tidy
from unmask.blocks.blocks import Figure, Finding, ReportBlock
from unmask.evaluation.equivalence import MARGIN
from unmask.measures.clean_runs import (
    ChosenPrompts,
    choose_prompts,
    choose_recalled,
    make_jobs,
    refuse_guidance,
    take_turns,
)
from unmask.measures.inputs import QUESTIONS, Member, ModelInputs, ModelsAndData
from unmask.measures.measure import Argument, Job, Measure, Rows, Stage
from unmask.measures.settings import MachineSettings
from unmask.measures.stored import StoredResult, open_stored_run
from unmask.measures.trace_effects import TOTAL
from unmask.measures.trace_runs import pool, read_old
from unmask.measures.trace_section import TITLE, describe
from unmask.measures.trace_summary import judge, summarise
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


@dataclass(frozen=True, kw_only=True)
class TraceSettings(Tracing, MachineSettings):
    """Which facts are traced, and how."""

    splits: tuple[str, ...] = option((), "Splits of the corpus; the four tests by default.")
    facts: int = option(30, "Facts of each split.", least=1)
    phrasings: int = option(1, "Phrasings of each fact.", least=1)
    consider: int | None = option(
        None,
        "Among so many facts of each split, those that the first model recalls are traced first.",
        least=1,
    )
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
    memory: float | None = option(
        None, "Gigabytes a trace may use beside the weights.", above=0, is_identity=False
    )
    dtype: str = option("auto", "float32, bfloat16, …; auto: bfloat16 on a GPU, else float32.")
    dtype_on_gpu, dtype_elsewhere = "bfloat16", "float32"


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
        more = [
            Argument(name, help, is_option=True, is_required=False) for name, help in words.items()
        ]
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

    prompt, subject, answer, foil = (
        given.get(name) for name in ("prompt", "subject", "answer", FOIL)
    )
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
    """One part for each model and prompt; splits take turns, so that a cut run has all of them."""
    from unmask.tracing.windows import default_window

    refuse_guidance(inputs, settings.guidance)
    questions = inputs.data
    chosen = {split.name: _choose(inputs, split.facts, settings) for split in questions.splits}
    prompts = take_turns(chosen)
    pool = [fact for _, fact in questions.facts()] + questions.corpus.splits.get(FOIL, [])
    # The default window of the shallowest model, so that all of them are compared alike.
    members = inputs.members()
    window = settings.window or default_window(min(each.config.layers for each in members))
    settings = replace(settings, window=window)
    is_alone = len(members) * len(prompts) == 1 and settings.consider is None
    prepared: dict[str, tuple[Corruption, Activations | None]] = {}

    def work(member: Member, split: str, fact: "Fact") -> "Mapping[str, Rows | pyarrow.Table]":
        from unmask.tracing.facts import make_corruption, make_means, trace_fact

        model = inputs.load(member)
        if member.key not in prepared:
            corruption = make_corruption(settings, model, pool)
            prepared[member.key] = corruption, make_means(settings, model, pool)
        keys = {**member.columns, "split": split}
        memory = None if settings.memory is None else int(settings.memory * 1e9)
        corruption, means = prepared[member.key]
        more = (memory, settings.also, means, settings.placebos, settings.condensed)
        trace = trace_fact(model, fact, pool, settings, corruption, keys, *more)
        # Of many facts some may be left out; a single one is what was asked for.
        if trace.error is not None and is_alone:
            raise trace.error
        # The first model chose them.
        is_first = member.family is inputs.families[0]
        choice = chosen[split] if is_first else ChosenPrompts([])
        counts = {"considered": choice.considered, "recalled": choice.recalled}
        cells = () if trace.cells is None else trace.cells
        return {"trace": cells, "tokens": trace.tokens, "facts": [trace.record | counts]}

    yield from make_jobs(members, prompts, work)


def _choose(inputs: ModelInputs, facts: "Sequence[Fact]", settings: TraceSettings) -> ChosenPrompts:
    number, phrasings = settings.facts, settings.phrasings
    if settings.first_recalled:
        return choose_recalled(inputs, facts, settings, number, phrasings)
    return choose_prompts(inputs, facts, settings, number, phrasings, settings.consider)


_FULL: dict[str, Any] = {"facts": 30, "consider": 30, "guidance": 0.0}
_LAPTOP: dict[str, Any] = _FULL | {"facts": 8, "samples": 1, "corruption": "mean"}
_QUICK: dict[str, Any] = _LAPTOP | {"facts": 1, "consider": 6, "parts": ("resid",), "steps": 4}
_FIRST: dict[str, Any] = {"at": ("first",)}
_MASKS = _QUICK | {"corruption": "mask"}


def _draw_stored(folder: str) -> list[ReportBlock]:
    """The diffusion model's finding and the map of residual streams, at step 1."""
    with open_stored_run(folder) as result:
        averages = [
            row
            for row in tidy.select(result.summary["averages"], stage="first")
            if row["part"] in ("resid", TOTAL)
        ]
        blocks = result.with_summary({**result.summary, "averages": averages}).section.blocks
    kinds = (Finding, Figure)
    return [next(block for block in blocks if isinstance(block, kind)) for kind in kinds]


STORED = (
    StoredResult(
        "tracing",
        "shipped",
        "20 recalled facts each way of asking, the mean embedding in the subject's place at "
        "the first step, all positions of a role restored together.",
        "make paper STAGE=mechanism-shipped",
        _draw_stored,
    ),
    StoredResult(
        "tracing-berglund",
        "pretrained",
        "29 to 32 recalled facts each way of asking, the mean embedding in the subject's place "
        "at the first step; each model trained twice, the groups of facts swapped.",
        "make paper STAGE=tracing",
        _draw_stored,
    ),
)

MEASURE = Measure(
    name="trace",
    title=TITLE,
    help="Find which states, put back, are enough to bring an answer back (causal tracing).",
    settings=TraceSettings,
    tables={"trace": SCHEMA, "tokens": TOKENS_SCHEMA, "facts": FACTS_SCHEMA},
    inputs=FactsOrPrompt(QUESTIONS.read_data, QUESTIONS.help),
    jobs=list_jobs,
    summarise=summarise,
    judge=judge,
    describe=describe,
    pool=pool,
    read_old=read_old,
    stored=STORED,
    stages=[
        Stage(
            sizes={"quick": _QUICK | _FIRST, "laptop": _LAPTOP | _FIRST, "full": _FULL | _FIRST},
        ),
        Stage("trace-steps", "diffusion", {"quick": _MASKS, "laptop": None, "full": _FULL}),
        Stage(
            "trace-denoising",
            "diffusion",
            {
                "quick": _MASKS | {"at": ("1", "4")},
                "laptop": None,
                "full": _FULL | {"at": ("all",)},
            },
        ),
    ],
)
