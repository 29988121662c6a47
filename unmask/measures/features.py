"""features: what a dictionary of sparse features keeps of a model's states, when features fire
while texts are written, and what recall loses without a fact's own.

A dictionary (TopK, or BatchTopK) is learnt from states after one layer, of lines that training
showed, noised at times drawn evenly; a causal model's are read as they stand. Held-out statements
are noised to a share of masks, their states replaced by the dictionary's, and their masked tokens
predicted. Recovered: the share of the cross-entropy between clean states and mean ones (or zeros)
that is won back. Beside it stand a dictionary of random directions, scaled to fit best, and the
first principal directions, as many as features fire. At 0 a replacement is worth no more than the
mean state; below 0 less.

Features of a fact: the largest value over the prompt and the answer's first mask, less the mean of
all facts in that phrasing. Their cosine between both directions of one fact stands beside that of
two facts, with a permutation test over facts. The features that stand out most on a fact's prompts
asked as trained are taken out of all states of other prompts, in both directions; beside them
another fact's, and as much along random features' directions. Intervals are by fact or by text.

While prompts are continued in `--steps` steps, each feature is counted by step, at masks and at
written positions. Directions are read by the logit lens.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.base.config import option
from unmask.base.errors import UserError
from unmask.measures.features_section import describe, summarise
from unmask.measures.inputs import QUESTIONS, Member, ModelInputs, find_corpus
from unmask.measures.measure import Job, Measure, Rows
from unmask.measures.settings import StateSettings

if TYPE_CHECKING:
    from unmask.data.facts import Fact
    from unmask.dictionaries.activations import ActivationStream
    from unmask.dictionaries.dictionary import Dictionary
    from unmask.net.model import Model


@dataclass(frozen=True, kw_only=True)
class FeatureSettings(StateSettings):
    """Which dictionary, and what it is asked."""

    filled = distinct = ("groups", "shares")

    layer: int | None = option(
        None, "The layer after which states are read; the middle one by default.", least=0
    )
    dictionaries: str | None = option(
        None,
        "A folder of dictionaries in SAELens' format, NAME-SEED for each checkpoint; those that "
        "are not there are trained and kept in it. By default they are trained and not kept.",
    )
    text: str | None = option(
        None, "A file of text to learn features of; by default lines that training showed."
    )
    rule: str = option(
        "topk", "Which features fire: topk or batchtopk.", choices=lambda: ("topk", "batchtopk")
    )
    size: int = option(1024, "Features.", least=2)
    k: int = option(32, "Features that fire at a state.", least=1)
    train_steps: int = option(
        1500, "Batches of 1,024 states that features are learnt from.", least=1
    )
    groups: tuple[str, ...] = option(
        ("p2d", "d2p"), "Facts by the direction they were trained in.",
        choices=lambda: ("p2d", "d2p"),
    )  # fmt: skip
    facts: int = option(30, "Facts of each group.", least=2)
    phrasings: int = option(2, "Phrasings of each fact and direction.", least=1)
    taken_out: int = option(8, "Features of a fact that are taken out.", least=1)
    draws: int = option(4, "Draws of other facts and of random directions.", least=1)
    texts: int = option(60, "Held-out statements whose states are replaced.", least=2)
    shares: tuple[float, ...] = option(
        (0.15, 0.5, 0.85), "Shares of masks.", above=0.0, most=1.0
    )  # fmt: skip
    steps: int = option(8, "Steps in which prompts are continued.", least=1)
    shown: int = option(30, "Features that are described.", least=1)
    permutations: int = option(10_000, "Random pairings of facts.", least=19, most=10_000_000)
    seed: int = option(0, "Seed of training, noise and controls.", least=0)

    def _problems(self) -> Iterator[str]:
        if self.k > self.size:
            yield f"'k' is {self.k}, of {self.size} features: expected at most those"


@dataclass(frozen=True)
class FeatureData:
    """Texts to learn features of, held-out statements, and prompts by group."""

    learnt: list[str]
    held_out: list[str]
    groups: "dict[str, list[Fact]]"


def _read(data: Any, settings: FeatureSettings, families: Any) -> tuple[Any, str, Any]:
    from unmask.data.corpus import list_trained_texts
    from unmask.data.facts import gather_prompts
    from unmask.data.text import read_documents
    from unmask.representation.extraction import find_groups

    corpus, groups = find_corpus(data, families), {}
    for group, splits in find_groups(corpus, settings.groups).items():
        facts = [fact for split in splits for fact in corpus[split]]
        people = list(dict.fromkeys(fact.fact_id for fact in facts))[: settings.facts]
        prompts = gather_prompts(facts).items()
        chosen = [same[: settings.phrasings] for (who, _), same in prompts if who in people]
        groups[group] = [fact for same in chosen for fact in same]
    every = [fact for own in groups.values() for fact in own if fact.trained == "same"]
    statements = list(dict.fromkeys(fact.text for fact in every))
    spread = max(1, len(statements) // settings.texts)
    learnt = list_trained_texts(corpus) or statements
    if settings.text is not None:
        learnt = list(read_documents([settings.text]))
    read = FeatureData(learnt, statements[::spread][: settings.texts], groups)
    return read, corpus.source, [*learnt, *read.held_out, *groups.values()]


def list_jobs(inputs: ModelInputs, settings: FeatureSettings) -> Iterator[Job]:
    """One part for each checkpoint: its dictionary is trained once."""

    def work(member: Member) -> Mapping[str, Rows]:
        tables = ask_model(inputs.load(member), inputs.data, settings, member.key)
        return {name: [member.columns | dict(row) for row in rows] for name, rows in tables.items()}

    for member in inputs.members():
        yield Job(member.key, partial(work, member))


_NO_STEPS: dict[str, Rows] = {"life": [], "contexts": []}


def ask_model(
    model: "Model", data: FeatureData, settings: FeatureSettings, key: str = "model"
) -> dict[str, Rows]:
    """The rows of all tables of one checkpoint."""
    from unmask.dictionaries.reconstruction import (
        collect_states,
        list_replacements,
        score_replacements,
    )
    from unmask.evaluation.questions import STUDY_LENGTH
    from unmask.sampling.canvas import encode_prompt

    model.paradigm.require_scored(model.name, "what features keep is measured")
    layers, context = model.net.config.layers, model.net.config.context
    layer = (layers - 1) // 2 if settings.layer is None else settings.layer
    if layer >= layers:
        raise UserError(f"layer {layer} was named: {model.name} has layers 0 to {layers - 1}.")
    site, length = f"layers.{layer}.resid_out", min(settings.length or STUDY_LENGTH, context)
    streams = partial(_stream, model, site, data, length, settings)
    # 1. The dictionary, and what its states are held against.
    dictionary = find_dictionary(streams, site, settings, key).to(model.device)
    states = collect_states(streams(epochs=1))
    replacements = list_replacements(dictionary, states, settings.k, settings.seed)
    # 2. Held-out statements on canvases as they were trained.
    texts = []
    for text in data.held_out:
        ids = encode_prompt(model, text, added="both")
        filling = [model.require_tokenizer().end_id] * (length - len(ids))
        texts.append(([*ids, *filling][:length], min(len(ids), length)))
    scored = score_replacements(
        model, site, dictionary, replacements, texts, settings.shares, settings.seed
    )
    rows = {"features": list(scored)} | _NO_STEPS
    rows |= _follow(model, dictionary, data, length, settings, site)
    return rows | _ask_facts(model, dictionary, data, settings, layer)


def _stream(
    model: "Model",
    site: str,
    data: FeatureData,
    length: int,
    settings: FeatureSettings,
    **more: Any,
) -> "ActivationStream":
    from unmask.dictionaries.activations import activations

    # Running text has no end tokens after it, and is cut at the canvas.
    filled = length if settings.text is None and model.paradigm.fills_masks else None
    texts = data.learnt
    if settings.text is not None:
        texts = [ids[:length] for ids in model.require_tokenizer().encode_documents(texts) if ids]
    return activations(model, site, texts, length=filled, seed=settings.seed, **more)


def find_dictionary(streams: Any, site: str, settings: FeatureSettings, key: str) -> "Dictionary":
    """The dictionary that the settings name, or one that is trained, and kept if they say where."""
    from unmask.dictionaries.dictionary import Dictionary
    from unmask.dictionaries.dictionary_training import train_dictionary

    folder = None if settings.dictionaries is None else Path(settings.dictionaries) / key
    if folder is not None and (folder / "cfg.json").is_file():
        dictionary = Dictionary.load(folder)
        if dictionary.site and dictionary.site != site:
            raise UserError(
                f"the dictionary in {folder} is of {dictionary.site}, and states are read at "
                f"{site}: name its layer, or another folder."
            )
        return dictionary
    names = ("rule", "size", "k", "seed")
    own: dict[str, Any] = {name: getattr(settings, name) for name in names}
    own["steps"] = settings.train_steps
    state = None if folder is None else folder.with_name(f"{key}-training")
    dictionary = train_dictionary(streams(epochs=None), out=state, **own)
    if folder is not None:
        dictionary.save(folder)
    return dictionary


def _follow(
    model: "Model",
    dictionary: "Dictionary",
    data: FeatureData,
    length: int,
    settings: FeatureSettings,
    site: str,
) -> dict[str, Rows]:
    """When features fire while held-out prompts are continued; nothing of models without masks."""
    from unmask.dictionaries.activations import activations
    from unmask.dictionaries.life import describe_features, follow_features

    if not model.paradigm.fills_masks:
        return {}
    facts = [fact for own in data.groups.values() for fact in own if fact.trained == "same"]
    prompts = list(dict.fromkeys(fact.prompt for fact in facts))[: settings.texts]
    make = partial(activations, model, site, prompts, states="denoising", length=length)
    stream = partial(make, steps=settings.steps, seed=settings.seed)
    life, total = follow_features(dictionary, stream())
    best = total.topk(min(settings.shown, len(total))).indices.tolist()
    return {"life": life, "contexts": list(describe_features(model, dictionary, stream(), best))}


def _ask_facts(
    model: "Model",
    dictionary: "Dictionary",
    data: FeatureData,
    settings: FeatureSettings,
    layer: int,
) -> dict[str, Rows]:
    from unmask.dictionaries.fact_features import (
        ablate_features,
        centre_features,
        collect_features,
        compare_features_of_facts,
    )

    site, pairs, ablated = f"layers.{layer}.resid_out", [], []
    for group, facts in data.groups.items():
        length, keys = settings.length, {"group": group}
        own = centre_features(collect_features(model, dictionary, site, facts, length), facts)
        if len({direction for _, direction in own}) == 2:
            compared = compare_features_of_facts(own, settings.taken_out)
            pairs += [keys | row for row in compared]
        # Features are chosen on one phrasing and taken out in the others, as far as there are any.
        trained = [fact for fact in facts if fact.trained == "same"]
        first = {fact.fact_id: fact for fact in reversed(trained)}
        others = [fact for fact in trained if fact is not first[fact.fact_id]] or trained
        questions = [*others, *(fact for fact in facts if fact.trained == "reverse")]
        more = (settings.taken_out, settings.draws, length, settings.seed)
        rows = ablate_features(model, dictionary, layer, list(first.values()), questions, *more)
        ablated += [keys | row for row in rows]
    return {"pairs": pairs, "ablation": ablated}


MEASURE = Measure(
    name="features",
    title="Features of a model's states",
    help="Learn sparse features of a layer's states: what they keep, when they fire, what recall "
    "loses without a fact's own.",
    settings=FeatureSettings,
    tables={
        "features": "features/1",
        "life": "life/1",
        "contexts": "contexts/1",
        "pairs": "pairs/1",
        "ablation": "ablation/1",
    },
    inputs=replace(QUESTIONS, read_data=_read),
    jobs=list_jobs,
    summarise=summarise,
    describe=describe,
    method=__doc__,
)
