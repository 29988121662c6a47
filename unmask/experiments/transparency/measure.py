"""transparency: what a diffusion model's canvas shows while a text is written, and what it hides.

The phenomena are those of Engels et al. 2026 (arXiv 2606.20560), who found them by eye; how each is
measured is this project's own. Expected length, at a state: the sum over places of 1 − p(end).
Early length: how sure the first state is of it, 1 minus twice the expected distance from the median
length, as a share of the canvas. Token smearing: a token's probability at other places near by that
goes away once it is written where it is likeliest. Sequence smearing: twice the probability of the
second token at the place that hesitates most, times how far (total variation) the predictions of
three other places are apart when either is written. Revision: the share of places that held another
written token before; under noise that draws tokens anew, one that the model was surer of than not
as it came or stayed. Order: the share of pairs of tokens that are written from right to left.
Needed, not shown: a token that was written on the way and is nowhere in the text is forbidden, and
the text written again; the share of other places that change.

Detectors are tried on laws that force a phenomenon to a known dose and on laws that exclude it, and
look alike place by place; predictions are those of the law with noise. A limit is chosen on
languages of one size, halfway from what 5 % of excluding texts exceed to the least of full dose,
and is judged on larger ones. AUROC: full dose against none, with the interval by language. Slope:
of what is found against the dose, over all doses; 1 is exact. Of early length that is the
correlation of the expected length with the one that comes, and of what is needed the share of texts
above the limit.

Opaque serial depth: how many operations must wait for each other between states that can be read
(Brown-Cohen et al. 2026, arXiv 2603.09786), counted while the network runs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from unmask.base.config import CheckedSettings, option
from unmask.base.errors import UserError
from unmask.experiments.transparency.section import describe, summarise
from unmask.measures.inputs import QUESTIONS, Member, ModelInputs
from unmask.measures.measure import Argument, Job, Measure, Rows
from unmask.measures.settings import SamplingSettings


@dataclass(frozen=True, kw_only=True)
class TransparencySettings(SamplingSettings):
    """How many languages detectors are tried on, and which texts of models are looked at."""

    limit: int | None = option(4, "Prompts of each split.", least=1)
    steps: int = option(16, "Denoising steps of a model's texts.", least=1, most=1_000_000)
    states: int = option(5, "States of each text that are looked at.", least=1, most=1000)
    languages: int = option(
        8, "Languages of each size that detectors are tried on.", least=1, most=1000
    )
    texts: int = option(96, "Texts of a language whose lengths are drawn.", least=2, most=10**6)
    seed: int = option(0, "Seed of languages and texts.", least=0)


@dataclass(frozen=True)
class LawsAndModels:
    """Languages that are made from the settings, and models with questions if there are any."""

    def parameters(self) -> Sequence[Argument]:
        models, data = QUESTIONS.parameters()
        help = "Masked models whose texts are looked at as well."
        return (Argument("models", help, models.metavar, is_list=True, is_required=False), data)

    def read(self, given: Mapping[str, Any], settings: CheckedSettings) -> ModelInputs:
        if given.get("models"):
            return QUESTIONS.read(given, settings)
        if given.get("data") is not None:
            raise UserError("data were given without a model to ask: name one, or leave them out.")
        return ModelInputs([], None, "", "")


def list_jobs(inputs: ModelInputs, settings: TransparencySettings) -> Iterator[Job]:
    """One part for each language, and for each checkpoint."""
    settings.check_strategies()
    for family in inputs.families:
        if not family.paradigm.fills_masks:
            raise UserError(
                f"{family.name} is a {family.kind} model: smearing is read where masks are filled; "
                "leave it out."
            )
    for is_fixing in (True, False):
        for number in range(settings.languages):
            key = f"language-{'fixing' if is_fixing else 'judging'}-{number}"
            yield Job(key, partial(_try_language, number, is_fixing, settings))
    for member in inputs.members():
        yield Job(member.key, partial(_watch, inputs, member, settings), cost=20.0)


def _try_language(
    number: int, is_fixing: bool, settings: TransparencySettings
) -> Mapping[str, Rows]:
    """What detectors say of the laws of one language."""
    from unmask.experiments.transparency.languages import list_corpora
    from unmask.experiments.transparency.scoring import score_corpus

    columns = {"fact": f"language-{number}", "seed": 0, "expected": None, "came": None}
    rows = [
        columns | row
        for corpus in list_corpora(settings.seed, number, is_fixing)
        for row in score_corpus(corpus, settings.texts, settings.seed)
    ]
    return {"transparency": rows}


def _watch(
    inputs: ModelInputs, member: Member, settings: TransparencySettings
) -> Mapping[str, Rows]:
    """The states of a model's own texts, and how deep its passes are."""
    from unmask.experiments.transparency.scoring import watch_phenomena
    from unmask.net.depth import list_opaque_depths

    model = inputs.load(member)
    encoded = list(inputs.data.encode(model, settings.length))
    length = encoded[0][-1]
    given = {"length": length, "steps": settings.steps, "plan": settings.plan}
    given |= {"order": settings.order, "seed": settings.seed}
    prompts = [ids[:start] for _, _, ids, start, _ in encoded]
    rows = [
        member.columns | encoded[row["text"]][0] | row
        for row in watch_phenomena(model, prompts, settings.states, **given)
    ]
    depths = list_opaque_depths(model.net.config, length, settings.steps, model.paradigm.sampler)
    return {"states": rows, "depth": [member.columns | row for row in depths]}


MEASURE = Measure(
    name="transparency",
    title="What a canvas shows while it is written",
    help="Smearing, early length, revision, hidden tokens and serial depth, tried on known laws.",
    settings=TransparencySettings,
    tables={"transparency": "transparency/1", "states": "states/1", "depth": "depth/1"},
    inputs=LawsAndModels(),
    jobs=list_jobs,
    summarise=summarise,
    describe=describe,
    method=__doc__,
)
