"""steer: texts written while a direction is added to states, by which denoising steps add it.

What is asked for is a fact (its subject or its object), a word or phrase, a feature of a
dictionary, or the words that a given vector should bring. The direction of facts and words is the
mean state of lines that have them minus that of lines that lack them, read as a sampler's steps see
them: masked to the share that a step begins with, in random places. Texts begin with the first
words of lines and are drawn at temperature 1, the most confident tokens first.

In each step of a schedule T, of S steps, strength · S/|T| · m · u is added to every state after one
layer, u of length 1, m the mean length of a state there: schedules of one strength add as much to a
text. All: every step. Early, late: the first and the second half. Forms: how far apart lines with
and without the target lie along u, in standard deviations, is their gap at a step; the fewest steps
whose rises make up half of the widest gap.

Effect: the share of texts that have what was asked for; of a feature, the share of a text's
positions at which it fires when the network reads the text unsteered. Damage: nats per token under
the judge, another causal model; distinct-2, the share of different pairs of words among all that
one target's texts have (jackknife pseudo-values); recall of facts that do not state the target,
asked as trained and continued greedily under the same steering. Controls: the same texts unsteered,
and steered along a random direction, one for each target, with as much added.

At equal damage: of each schedule the strength with the largest effect is chosen among those that
cost the judge at most `--budget` nats per token more than unsteered texts (or twice as much), 0
included, on half of the texts, and read on the other half, both ways. Intervals are 95 % intervals
by text or by fact, for these targets.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from unmask.base.config import option
from unmask.base.errors import UserError
from unmask.measures.inputs import QUESTIONS, ModelInputs, ModelsAndData, find_corpus
from unmask.measures.measure import Job, Measure
from unmask.measures.settings import StateSettings
from unmask.measures.steer_section import SCHEDULES, describe, summarise

if TYPE_CHECKING:
    from unmask.net.families import Family


@dataclass(frozen=True, kw_only=True)
class SteerSettings(StateSettings):
    """What is asked for, when and how strongly it is added, and who judges."""

    filled = ("schedules", "strengths")
    distinct = (*filled, "words", "features")

    words: tuple[str, ...] = option(
        (), "Words or phrases that are asked for, each alone; by default facts are."
    )
    number: int = option(6, "Facts that are asked for, drawn by seed.", least=1)
    dictionary: str | None = option(
        None, "The folder of a dictionary in SAELens' format, whose features are asked for."
    )
    features: tuple[int, ...] = option((), "Numbers of features that are asked for.", least=0)
    vector: str | None = option(
        None, "A .safetensors file with one vector, which should bring the words that are named."
    )
    layer: int | None = option(
        None, "The layer after which is added; the middle one by default.", least=0
    )
    schedules: tuple[str, ...] = option(
        tuple(SCHEDULES), "When is added.", choices=lambda: tuple(SCHEDULES)
    )
    strengths: tuple[float, ...] = option(
        (0.1, 0.2, 0.4, 0.8),
        "What is added, mean over all steps, in lengths of a state.",
        above=0.0,
    )
    steps: int = option(8, "Denoising steps.", least=2)
    texts: int = option(12, "Texts for each target and way.", least=2)
    given: int = option(1, "First words of a line that a text begins with.", least=1)
    lines: int = option(64, "Lines of each kind that a direction is made of, at most.", least=2)
    facts: int = option(8, "Facts that are asked under each steering; 0: none.", least=0)
    judge: str | None = option(None, "A causal model that the texts are scored by.")
    budget: float = option(0.5, "What texts may cost the judge more, nats per token.", least=0.0)
    seed: int = option(0, "Seed of facts, lines, random directions and texts.", least=0)

    def _problems(self) -> Iterator[str]:
        if bool(self.features) != (self.dictionary is not None):
            yield "'features' and 'dictionary' go together: expected both or neither"
        if self.features and (self.words or self.vector):
            yield "'features' were named beside words or a vector: expected one kind of target"
        if self.vector is not None and not self.words:
            yield "'vector' has no words: expected those that it should bring, by 'words'"


def _read(data: Any, settings: SteerSettings, families: "list[Family]") -> tuple[Any, str, Any]:
    from unmask.base.seeds import python_stream
    from unmask.data.corpus import list_trained_texts
    from unmask.measures.inputs import name_splits
    from unmask.measures.steer_texts import SteerData, Target
    from unmask.net.families import digest_model

    corpus = find_corpus(data, families)
    known = [x for name in name_splits(corpus) for x in corpus[name] if x.trained == "same"]
    facts = list({fact.fact_id: fact for fact in reversed(known)}.values())[::-1]
    lines = list_trained_texts(corpus) or [fact.text for fact in known]
    if settings.features:
        targets = [Target(f"feature {number}", feature=number) for number in settings.features]
    elif settings.vector is not None:
        targets = [Target("the vector", tuple(settings.words))]
    elif settings.words:
        targets = [Target(word, (word,)) for word in settings.words]
    else:
        drawn = python_stream(settings.seed, "facts").sample(
            facts, min(settings.number, len(facts))
        )
        targets = [Target(fact.fact_id, (fact.subject, fact.object)) for fact in drawn]
    # A judge, a dictionary or a vector may come to be another one in the same place.
    judge = {} if settings.judge is None else digest_model(settings.judge)
    contents = [*judge.items(), *(each.name for each in targets), *_digest_files(settings)]
    return SteerData(lines, facts, targets), corpus.source, [lines, *facts, *contents]


def _digest_files(settings: SteerSettings) -> list[str]:
    from pathlib import Path

    from unmask.base.identity import digest_file
    from unmask.dictionaries.dictionary import WEIGHTS

    named = [settings.vector, settings.dictionary and str(Path(settings.dictionary) / WEIGHTS)]
    return [digest_file(Path(file)) for file in named if file and Path(file).is_file()]


def list_jobs(inputs: ModelInputs, settings: SteerSettings) -> Iterator[Job]:
    """For each checkpoint and target a part without steering, and one for each schedule."""
    from unmask.measures.steer_texts import SteeredTexts

    for family in inputs.families:
        if family.paradigm.sampler != "unmasking":
            words = f"{family.name} is a {family.kind} model"
            raise UserError(
                f"{words}: steps of masked models alone are steered here; leave it out."
            )
    texts = SteeredTexts(inputs, settings)
    for member in inputs.members():
        for number, target in enumerate(inputs.data.targets):
            for schedule in (None, *settings.schedules):
                key = f"{member.key}-{number}-{schedule or 'none'}"
                yield Job(key, partial(texts.write, member, target, schedule))


MEASURE = Measure(
    name="steer",
    title="Steering by schedules over denoising steps",
    help="Add a direction or a feature to states at chosen denoising steps: what it brings, what "
    "it costs.",
    settings=SteerSettings,
    tables={"steer": "steer/1", "recall": "steer-recall/1", "formed": "steer-formed/1"},
    inputs=ModelsAndData(_read, QUESTIONS.help),
    jobs=list_jobs,
    summarise=summarise,
    describe=describe,
    method=__doc__,
)
