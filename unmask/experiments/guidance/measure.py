"""guidance: ways to sample texts with an attribute, and their cost, at equal network passes.

The attribute is whether a text is a biography, by rule (`unmask data make biographies`). Two
classifiers are trained on texts of the corpus. The guide, which steers the sampler, is a linear
probe on the mean state of the network's own middle layer, trained on one half of the texts, noised
as the sampler meets them. The judge, which only scores the results, is a logistic regression on
tf-idf, trained on the other half. A text has the attribute where the judge's p(biography) is at
least one half. Every way may take the same number of network passes for each text.

Plain: the prompt is "A text:". Label: the prompt is "A biography:", which training showed.
Classifier-free guidance: the label's effect is amplified, two passes per step. Classifier: "A
text:", guided by the probe, by default to first order: one gradient per step, three passes in all.
Rates: the same, but the guided rates are not normalised, so that guidance also changes how soon a
token is written. To first order this includes what un-masking as such does to the probe, and all of
a text may be written in one step. Rejection: "A text:", drawn up to N times in N times fewer steps;
the first text that the guide accepts is kept, or else the one it scores highest.

All texts are drawn by ancestral steps in random order at temperature 1. Bits per token are those of
another model (`--scorer`); distinct-n is the share of different n-grams of words among all n-grams
of a way's texts. Intervals are 95 % intervals by text and training seed.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from unmask.base.config import option
from unmask.base.errors import UserError
from unmask.experiments.guidance.section import describe, judge, summarise
from unmask.measures.inputs import Member, ModelInputs, ModelsAndData
from unmask.measures.measure import Job, Measure, Rows
from unmask.measures.settings import MachineSettings

if TYPE_CHECKING:
    from unmask.experiments.guidance.texts import Way
    from unmask.net.families import Family


@dataclass(frozen=True, kw_only=True)
class GuidanceSettings(MachineSettings):
    """Which ways are compared at how many passes, on how many texts."""

    passes: tuple[int, ...] = option(
        (96,), "Network passes that each text may take; every way gets as many.", least=6
    )
    strengths: tuple[float, ...] = option(
        (1.0, 4.0, 16.0),
        "Strengths of guidance by the classifier, with normalised probabilities and with rates.",
        above=0,
    )
    guidances: tuple[float, ...] = option(
        (1.0, 2.0), "Strengths of classifier-free guidance.", above=0
    )
    draws: tuple[int, ...] = option(
        (2, 4), "Texts that rejection draws at most to keep one.", least=2
    )
    judged: Any = option(
        "first-order",
        "Tokens of each position that the guide scores: a number of the likeliest, all, or "
        "first-order for all by one gradient.",
    )
    texts: int = option(200, "Texts of each way.", least=1, most=1_000_000)
    length: int = option(80, "Positions of a text, prompt included.", least=8)
    trained_on: int = option(2000, "Texts that the guide is trained on, at most.", least=8)
    scorer: str | None = option(
        None, "A model that scores the texts in bits per token; without it they are not scored."
    )
    save_guide: str | None = option(
        None,
        "A file for the guide of the last model, as `unmask sample --classifier` takes it.",
        is_identity=False,
    )
    seed: int = option(0, "Seed of whatever is drawn.", least=0)

    def _problems(self) -> Iterator[str]:
        from unmask.sampling.attributes import read_judged

        try:
            read_judged(self.judged)
        except UserError as error:
            yield str(error).removesuffix(".")
        if not self.passes:
            yield "'passes' is empty, expected at least one number"


def list_ways(settings: GuidanceSettings) -> "list[Way]":
    """All ways, in the order in which they are shown."""
    from unmask.experiments.guidance.texts import Way

    return [
        Way("plain"),
        Way("label"),
        *(Way("cfg", strength) for strength in settings.guidances),
        *(Way("classifier", strength) for strength in settings.strengths),
        *(Way("rates", strength) for strength in settings.strengths),
        *(Way("rejection", float(draws)) for draws in settings.draws),
    ]


def _read(data: Any, settings: GuidanceSettings, families: "list[Family]") -> tuple[Any, str, str]:
    """The corpus of biographies; both halves must have both classes."""
    from unmask.base.identity import digest_values
    from unmask.experiments.guidance.corpus import list_labelled
    from unmask.measures.inputs import find_corpus
    from unmask.net.families import digest_model

    corpus = find_corpus(data, families)
    halves = [list_labelled(corpus, split) for split in ("train", "judge")]
    # Another scorer may come to lie in the same place.
    scorer = {} if settings.scorer is None else digest_model(settings.scorer)
    return corpus, corpus.source, digest_values([*map(str, halves), *scorer.items()])


def list_jobs(inputs: ModelInputs, settings: GuidanceSettings) -> Iterator[Job]:
    """One part for each checkpoint, way and number of passes."""
    for family in inputs.families:
        if family.paradigm.sampler != "unmasking":
            raise UserError(
                f"{family.name} is a {family.kind} model: a classifier guides masked models alone; "
                "leave it out."
            )
    kept: dict[str, Any] = {}
    """The guide of the checkpoint worked on last, the judge, and the scorer."""
    for member in inputs.members():
        yield Job(f"{member.key}-judges", partial(_describe_judges, inputs, member, settings, kept))
        for passes in settings.passes:
            for way in list_ways(settings):
                key = f"{member.key}-{passes}-{way.name}-{way.strength:g}"
                yield Job(key, partial(_draw, inputs, member, settings, kept, way, passes))


def _prepare(
    inputs: ModelInputs, member: Member, settings: GuidanceSettings, kept: dict[str, Any]
) -> tuple[Any, Any, Any]:
    """The model, its guide and the judge; the last two are trained once."""
    from unmask.experiments.guidance.corpus import ANY, PROMPTS, list_labelled
    from unmask.experiments.guidance.texts import TextJudge, train_guide

    model = inputs.load(member)
    if "judge" not in kept:
        kept["judge"] = TextJudge(*list_labelled(inputs.data, "judge"), seed=settings.seed)
    if kept.get("key") != member.key:
        texts, labels = list_labelled(inputs.data, "train")
        some = slice(settings.trained_on)
        shown = texts[some], labels[some], PROMPTS[ANY], settings.length
        guide = train_guide(model, *shown, seed=settings.seed)
        kept |= {"key": member.key, "guide": guide}
        if settings.save_guide is not None:
            guide.save(settings.save_guide)
    return model, kept["guide"], kept["judge"]


def _describe_judges(
    inputs: ModelInputs, member: Member, settings: GuidanceSettings, kept: dict[str, Any]
) -> Mapping[str, Rows]:
    """How often guide and judge are right on texts that neither was trained on, or the guide."""
    from unmask.experiments.guidance.corpus import ANY, PROMPTS, list_labelled
    from unmask.experiments.guidance.texts import lay_out_texts, read_guide

    model, guide, judge = _prepare(inputs, member, settings, kept)
    texts, labels = list_labelled(inputs.data, "judge")
    texts, labels = texts[:500], labels[:500]
    rows = lay_out_texts(model, [f"{PROMPTS[ANY]} {text}" for text in texts], settings.length)
    guesses = (read_guide(guide, rows) >= 0.5).tolist()
    hits = [guess == label for guess, label in zip(guesses, labels, strict=True)]
    row = {"guide": sum(hits) / len(hits), "judge": judge.accuracy}
    return {"judges": [member.columns | row | {"biographies": sum(labels) / len(labels)}]}


def _draw(
    inputs: ModelInputs,
    member: Member,
    settings: GuidanceSettings,
    kept: dict[str, Any],
    way: "Way",
    passes: int,
) -> Mapping[str, Rows]:
    """The texts of one way, judged and scored."""
    from unmask.experiments.guidance.corpus import ANY, BIOGRAPHY, PROMPTS
    from unmask.experiments.guidance.texts import draw_guided_texts
    from unmask.sampling.settings import Sampling

    model, guide, judge = _prepare(inputs, member, settings, kept)
    drawn_by: dict[str, Any] = {"plan": "ancestral", "order": "random", "temperature": 1.0}
    sampling = Sampling(length=settings.length, seed=settings.seed, **drawn_by)
    prompts = PROMPTS[ANY], PROMPTS[BIOGRAPHY]
    more = (settings.texts, passes, sampling, settings.judged)
    drawn = draw_guided_texts(model, guide, way, prompts, *more)
    costs = _score(inputs, drawn.texts, settings, kept)
    shared = {"way": way.name, "strength": way.strength, "passes": passes}
    shared |= {"steps": drawn.steps, "spent": drawn.passes}
    judgements = zip(drawn.texts, drawn.p_guide, judge.read(drawn.texts), costs, strict=True)
    return {
        "guidance": [
            member.columns
            | {"fact": f"text-{i:05d}", **shared, "text": text, "p_guide": p_guide}
            | {"p_judge": p_judge, "has_attribute": float(p_judge >= 0.5), "bits_per_token": bits}
            for i, (text, p_guide, p_judge, bits) in enumerate(judgements)
        ]
    }


def _score(
    inputs: ModelInputs, texts: Sequence[str], settings: GuidanceSettings, kept: dict[str, Any]
) -> list[float | None]:
    """Bits per token of each text by the scorer; none for an empty text, or without a scorer."""
    from unmask.evaluation.perplexity import score_documents
    from unmask.measures.inputs import choose_device
    from unmask.net.loading import load

    if settings.scorer is None:
        return [None] * len(texts)
    if "scorer" not in kept:
        kept["scorer"] = load(settings.scorer, choose_device(inputs.device), inputs.dtype)
    costs = score_documents(kept["scorer"], [text for text in texts if text], seed=settings.seed)
    bits = (cost.nll / cost.tokens / math.log(2) for cost in costs)
    return [next(bits) if text else None for text in texts]


MEASURE = Measure(
    name="guidance",
    title="Sampling texts with an attribute",
    help="Compare guidance by a classifier, by labels and plain rejection, at equal network "
    "passes.",
    settings=GuidanceSettings,
    tables={"guidance": "guidance/1", "judges": "judges/1"},
    inputs=ModelsAndData(
        _read, "A corpus folder that `unmask data make biographies` made.", is_required=True
    ),
    jobs=list_jobs,
    summarise=summarise,
    judge=judge,
    describe=describe,
    method=__doc__,
)
