"""guidance: ways to sample texts with an attribute, and their cost, at equal network passes.

The attribute is whether a text is a biography, by rule (`unmask data make biographies`). The guide,
which steers the sampler, is a linear probe on the mean state of the network's own middle layer,
trained on one half of the texts, noised as the sampler meets them. The judge, which only scores the
results, is a logistic regression on tf-idf, trained on the other half. A text has the attribute
where the judge's p(biography) is at least one half. Every way may take as many network passes.

Plain: the prompt is "A text:". Label: the prompt is "A biography:", which training showed.
Classifier-free guidance: the label's effect is amplified, two passes per step. Classifier: "A
text:", guided by the probe, by default to first order: one gradient per step, three passes in all.
Rates: the same, but the guided rates are not normalised, so that guidance also changes how soon a
token is written, and all of a text may be written in one step. Rejection: "A text:", drawn up to N
times in N times fewer steps; kept is the first text that the guide accepts, or else the likeliest.

All texts are drawn by ancestral steps in random order at temperature 1. Bits per token are those of
another model (`--scorer`); distinct-n is the share of different n-grams of words among all n-grams
of a way's texts. Intervals are 95 % intervals by text and training seed.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

from unmask.base.config import option
from unmask.base.errors import UserError
from unmask.blocks import tidy
from unmask.blocks.blocks import Text
from unmask.experiments.guidance.corpus import list_labelled
from unmask.measures.inputs import ModelInputs, ModelsAndData
from unmask.measures.measure import Job, Measure, Rows, Tables
from unmask.measures.result import Result
from unmask.measures.settings import MachineSettings
from unmask.results.comparison import KIND, MODEL, Comparison, Factor, Quantity
from unmask.results.summaries import GRAMS

if TYPE_CHECKING:
    from unmask.experiments.guidance.texts import Way
    from unmask.net.families import Family


@dataclass(frozen=True, kw_only=True)
class GuidanceSettings(MachineSettings):
    """Which ways are compared at how many passes, on how many texts."""

    filled = ("passes",)

    passes: tuple[int, ...] = option((96,), "Network passes that each text may take.", least=6)
    strengths: tuple[float, ...] = option(
        (1.0, 4.0, 16.0), "Strengths of guidance by the classifier, also by rates.", above=0
    )
    guidances: tuple[float, ...] = option((1.0, 2.0), "Strengths of guidance by label.", above=0)
    draws: tuple[int, ...] = option((2, 4), "Texts that rejection draws to keep one.", least=2)
    judged: Any = option(
        "first-order", "Tokens of a position that the guide scores: a number, all or first-order."
    )
    texts: int = option(200, "Texts of each way.", least=1, most=1_000_000)
    length: int = option(80, "Positions of a text, prompt included.", least=8)
    trained_on: int = option(2000, "Texts that the guide is trained on, at most.", least=8)
    scorer: str | None = option(None, "A model that scores the texts in bits per token.")
    save_guide: str | None = option(
        None, "A file for the last guide, for `unmask sample --classifier`.", is_identity=False
    )
    seed: int = option(0, "Seed of whatever is drawn.", least=0)

    def _problems(self) -> Iterator[str]:
        from unmask.sampling.attributes import read_judged

        try:
            read_judged(self.judged)
        except UserError as error:
            yield str(error).removesuffix(".")


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


def _read(data: Any, settings: GuidanceSettings, families: "list[Family]") -> tuple[Any, str, Any]:
    """The corpus of biographies; both halves must have both classes."""
    from unmask.measures.inputs import find_corpus
    from unmask.net.families import digest_model

    corpus = find_corpus(data, families)
    halves = [list_labelled(corpus, split) for split in ("train", "judge")]
    # Another scorer may come to lie in the same place.
    scorer = {} if settings.scorer is None else digest_model(settings.scorer)
    return corpus, corpus.source, [*map(str, halves), *scorer.items()]


def list_jobs(inputs: ModelInputs, settings: GuidanceSettings) -> Iterator[Job]:
    """One part for each checkpoint, way and number of passes."""
    from unmask.experiments.guidance.texts import GuidedTexts

    for family in inputs.families:
        if family.paradigm.sampler != "unmasking":
            words = f"{family.name} is a {family.kind} model"
            raise UserError(f"{words}: a classifier guides masked models alone; leave it out.")
    texts = GuidedTexts(inputs, settings)
    for member in inputs.members():
        yield Job(f"{member.key}-judges", partial(texts.check_judges, member))
        for passes, way in product(settings.passes, list_ways(settings)):
            key = f"{member.key}-{passes}-{way.name}-{way.strength:g}"
            yield Job(key, partial(texts.draw, member, way, passes))


WAYS = {
    "plain": "plain",
    "label": "label",
    "cfg": "classifier-free guidance",
    "classifier": "classifier",
    "rates": "classifier (rates)",
    "rejection": "rejection",
}


def name_way(row: tidy.Record) -> str:
    """A way with its strength, in words."""
    strength = f" {row['strength']:g}" if row["strength"] else ""
    return f"{WAYS[row['way']]}{strength}" + (" draws" if row["way"] == "rejection" else "")


def pair_ways(ways: Sequence[str]) -> list[tuple[str, str]]:
    """Every way against plain texts and against rejection, but for these themselves."""
    controls = [way for way in ways if way.startswith((WAYS["plain"], WAYS["rejection"]))]
    pairs = [(way, control) for way in ways for control in controls if way != WAYS["plain"]]
    return [(way, control) for way, control in pairs if way.split()[0] != control.split()[0]]


COMPARISON = Comparison(
    metrics={
        "has_attribute": Quantity("biographies by the judge", "%"),
        "p_guide": Quantity("p(biography) by the guide", "%"),
        "bits_per_token": Quantity("bits per token"),
    },
    groups=(MODEL, KIND, Factor("passes", "passes")),
    variant=Factor("way", "way"),
    against=pair_ways,
    compared=("has_attribute",),
    beside={"steps": "steps", "spent": "passes spent"}
    | {f"distinct_{n}": f"distinct-{n}" for n in GRAMS},
    counted="texts",
    title="Share of texts that are biographies, by the judge",
    caption="By the strength of guidance, or the number of texts that rejection draws at most; all "
    "at equal passes. Bars are 95 % intervals by text and training seed.",
    means="Biographies and bits per token of each way's texts, at equal passes; distinct-n: share "
    "of different n-grams of words",
    differences="Share of biographies minus that of plain texts or of rejection, at equal passes",
    most=60,
)


def prepare(tables: Tables, settings: GuidanceSettings) -> Rows:
    """The texts, each with its way in words and the variety of all that were drawn with it."""
    from unmask.evaluation.quality import find_distinct_share

    rows = [row | {"way": name_way(row)} for row in tables["guidance"].to_pylist()]
    varied = []
    for drawn in tidy.group_by(rows, "model", "passes", "way").values():
        texts = [row["text"] for row in drawn]
        variety = {f"distinct_{n}": find_distinct_share(texts, n) or math.nan for n in GRAMS}
        varied += [{**row, **variety} for row in drawn]
    return varied


def conclude(result: Result) -> Iterator[Text]:
    """How good guide and judge are."""
    for row in result.rows("judges"):
        seed = f", seed {row['seed']}" if row["seed"] else ""
        guide, judge, share = (tidy.say_share(row[x]) for x in ("guide", "judge", "biographies"))
        yield Text(
            f"In {row['model']}{seed}, the guide is right about {guide} of unseen texts, the judge "
            f"about {judge}; {share} of these texts are biographies."
        )


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
    comparison=COMPARISON,
    prepare=prepare,
    conclude=conclude,
    method=__doc__,
)
