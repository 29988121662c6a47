"""represent: what an MLP reads at a subject (its key k*), and what it would have to give there for
the model to say the object (its value v*), in both directions of a fact.

The key is the input of the layer's down projection at the last subject token, averaged over
prefixes. The value v* = v0 + delta is searched by Adam (Meng et al. 2022, arXiv 2202.05262): v0 is
the MLP's own output there, delta what makes the object likely while what follows `SUBJECT is a`
stays as it is. All facts are asked in one phrasing, recalled or not. A search that ends with the
object clearly less likely than at v0 has diverged.

Probes are ridge classifiers for which fact a state belongs to, on the residual stream at the last
subject token, from the embeddings (layer -1) up, fitted on two thirds of the phrasings. Of the two
directions that one is told which is less clear. p is that of the largest accuracy over all layers
when facts change their names (100,000 times), corrected (Holm) for the directions and readings of a
model's probes across directions.

On the canvas the subject of a diffusion model sees the masks of the answer, which can carry what is
predicted there; in an autoregressive one it does not. So probes also read states without masks and
of the subject's tokens alone; keys and v0 are read both ways, v* and delta on the canvas.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from unmask.base.config import SettingsError, option, option_of
from unmask.measures.inputs import QUESTIONS, Member, ModelInputs, RunFolders, find_corpus
from unmask.measures.measure import Job, Measure, Rows, Stage
from unmask.measures.represent_section import READINGS, describe, summarise
from unmask.measures.settings import GroupSettings
from unmask.representation.settings import (
    OBJECTIVES,
    Extraction,
    Reason,
    choose_extraction,
    choose_layers,
    find_traced_layer,
)

if TYPE_CHECKING:
    import pyarrow

    from unmask.data.facts import Fact
    from unmask.representation.extraction import ChosenFact

WAYS = ("p2d", "d2p")
CHUNK = 64
"""Prompts whose keys and values are one part of a run."""


@dataclass(frozen=True, kw_only=True)
class RepresentSettings(GroupSettings):
    """Which facts are looked into at which layers, and how values are searched for."""

    renamed: ClassVar[Mapping[str, str]] = {"steps": "search_steps"}
    filled = ("directions", "readings")

    layer: str = option("auto", "auto (by --trace, else the middle one), all, 3, or 0,1,2.")
    trace: tuple[str, ...] = option(
        (),
        "Runs of `unmask trace`: the first that has a model's MLPs chooses its layer.",
        is_identity=False,  # the layers are, and parts are named after them
    )
    directions: tuple[str, ...] = option(
        tuple(WAYS), "Directions asked: p2d gives a name, d2p a description.", choices=lambda: WAYS
    )
    facts: int = option(30, "Facts of each group.", least=1)
    phrasing: int = option(0, "Which phrasing of each fact is asked.", least=0)
    prefixes: int = option_of(Extraction, "prefixes")
    prefix_text: str | None = option(
        None, "A text file to cut prefixes from; by default the model writes them."
    )
    objective: str = option(
        "seed", "The study's loss, or ROME's (Meng et al. 2022).", choices=lambda: OBJECTIVES
    )
    kl: float | None = option(None, "Weight of KL; by default the objective's.", least=0)
    norm: float | None = option(None, "Weight of the norm; by default the objective's.", least=0)
    search_steps: int = option_of(Extraction, "search_steps")
    lr: float = option_of(Extraction, "lr")
    clamp: float = option_of(Extraction, "clamp")
    stop: str = option_of(Extraction, "stop")
    revealed: tuple[float, ...] = option_of(Extraction, "revealed")
    guidance: float = option_of(Extraction, "guidance")
    key_text: Literal["prompt", "subject"] = option_of(Extraction, "key_text")
    lens: bool = option(True, "Also the logit lens on the object's positions.")
    probes: bool = option(True, "Also linear probes over phrasings.")
    readings: tuple[str, ...] = option(
        tuple(READINGS),
        "What probes read: states on the canvas, without its masks, or of the subject alone.",
        choices=lambda: tuple(READINGS),
    )
    seed: int = option(0, "Seed of prefixes, mask patterns and permutations.", least=0)

    @property
    def extraction(self) -> Extraction:
        """How keys and values are extracted."""
        names = ("search_steps", "lr", "clamp", "stop", "prefixes", "revealed", "guidance")
        names += ("length", "key_text", "seed")
        names += tuple(name for name in ("kl", "norm") if getattr(self, name) is not None)
        return choose_extraction(self.objective, **{name: getattr(self, name) for name in names})

    def _problems(self) -> Iterator[str]:
        if self.trace and self.layer != "auto":
            yield f"'layer' is {self.layer!r}, and 'trace' chooses one as well: leave one out"
        if self.objective in OBJECTIVES:
            try:
                _ = self.extraction
            except SettingsError as error:
                yield from error.problems


@dataclass(frozen=True)
class ChosenFacts:
    """The facts that are looked into, every phrasing of them by group, and traces of models."""

    chosen: "list[ChosenFact]"
    phrasings: "dict[str, list[Fact]]"
    traces: list[Rows]
    lines: list[str] | None
    """What prefixes are cut from."""


def _read(data: Any, settings: RepresentSettings, families: Any) -> tuple[ChosenFacts, str, Any]:
    from unmask.base.reading import read_text
    from unmask.representation.extraction import choose_group_facts, gather_phrasings

    corpus, traces, lines = find_corpus(data, families), list[Rows](), None
    chosen = choose_group_facts(
        corpus, settings.groups, settings.directions, settings.facts, settings.phrasing
    )
    phrasings = gather_phrasings(corpus, chosen)
    contents: list[Any] = [*chosen, *phrasings.values()]
    if settings.prefix_text is not None:
        contents.append(read_text(Path(settings.prefix_text)))
        lines = [line for line in contents[-1].splitlines() if line.strip()]
    if settings.trace:
        runs = RunFolders("trace").read({"runs": settings.trace}, settings)
        contents.append(runs.record())
        traces = [result.summary["averages"] for _, result in runs]
    facts = ChosenFacts(chosen, phrasings, traces, lines)
    return facts, corpus.source, contents


def list_jobs(inputs: ModelInputs, settings: RepresentSettings) -> Iterator[Job]:
    """For each checkpoint: its layers in chunks of prompts, its lens, its probes by group."""
    from unmask.representation import extraction, readout
    from unmask.representation.prompts import make_prefixes

    facts, made = inputs.data, dict[str, tuple[str, ...]]()

    def extract(member: Member, layer: int, reason: Reason, chunk: list[Any]) -> dict[str, Any]:
        model = inputs.load(member)
        if member.key not in made:  # equal in every process: by the model and the seed alone
            made[member.key] = make_prefixes(model, settings.prefixes, settings.seed, facts.lines)
        prefixes = made[member.key]
        rows, vectors = extraction.extract(model, chunk, layer, prefixes, settings.extraction)
        more = {"chosen_by": reason, "prefixes": list(prefixes)}
        table = [member.columns | row | more for row in rows]
        return {"represent": table, "vectors": tabulate_vectors(vectors)}

    def read_lens(member: Member) -> dict[str, Any]:
        model, prompts = inputs.load(member), [each.fact for each in facts.chosen]
        seed, length = settings.seed, settings.length
        by_fact = readout.read_facts_by_layer(model, prompts, length=length, seed=seed)
        names = ("group", "split", "fact", "direction", "trained")
        rows = []
        for each, lines in zip(facts.chosen, by_fact, strict=True):
            which = member.columns | {name: each.columns[name] for name in names}
            rows += [which | line for line in lines]
        return {"lens": rows}

    def fit_probes(member: Member, group: str) -> dict[str, Any]:
        model, prompts = inputs.load(member), facts.phrasings[group]
        readings = [each for each in readout.list_readings(model) if each in settings.readings]
        probed = (readout.probe(model, prompts, settings.length, each) for each in readings)
        which = member.columns | {"group": group}
        return {"probes": [which | row for rows in probed for row in rows]}

    chunks = [facts.chosen[i : i + CHUNK] for i in range(0, len(facts.chosen), CHUNK)]
    for member in inputs.members():
        name, count = member.family.name, member.config.layers
        traced = (find_traced_layer(rows, name, count) for rows in facts.traces)
        first = next((layer for layer in traced if layer is not None), None)
        layers, reason = choose_layers(name, count, settings.layer, first)
        # Deepest first: a last layer whose output nothing reads is refused before any search.
        for layer in reversed(layers):
            for number, chunk in enumerate(chunks):
                key = f"{member.key}-layer{layer:03d}-{number:03d}"
                yield Job(key, partial(extract, member, layer, reason, chunk))
        if settings.lens:
            yield Job(f"{member.key}-lens", partial(read_lens, member))
        for group, phrasings in facts.phrasings.items():
            if settings.probes and readout.can_probe(phrasings):
                yield Job(f"{member.key}-probes-{group}", partial(fit_probes, member, group))


def tabulate_vectors(vectors: Mapping[str, np.ndarray]) -> "pyarrow.Table":
    """Vectors as a table with a column of lists for each name."""
    import pyarrow

    return pyarrow.table({name: list(rows) for name, rows in vectors.items()})


def stack_vectors(table: "pyarrow.Table") -> dict[str, np.ndarray]:
    """The vectors in the rows of a table, which are of one checkpoint: [rows, width] by name."""
    return {
        name: table[name].combine_chunks().flatten().to_numpy().reshape(len(table), -1)
        for name in table.column_names
    }


def choose_traces(folders: Mapping[str, Path]) -> Mapping[str, Any]:
    """The study's traces of MLPs: a model's own corruption before the one that twins share."""
    from unmask.base.runs import read_record

    runs = [folders[name] for name in ("trace-steps", "trace") if name in folders]
    return {"trace": tuple(str(run) for run in runs if "mlp" in read_record(run).settings["parts"])}


LESS = {"prefixes": 1, "guidance": 0.0, "lens": False}
MEASURE = Measure(
    name="represent",
    title="Keys and values",
    help="Extract keys k* and values v* of facts in both directions; probes and the logit lens.",
    settings=RepresentSettings,
    tables={
        "represent": "represent/2",
        "vectors": "vectors/2",
        "lens": "lens/2",
        "probes": "probes/3",
    },
    inputs=replace(QUESTIONS, read_data=_read),
    jobs=list_jobs,
    summarise=summarise,
    describe=describe,
    method=__doc__,
    stages=[
        Stage(
            sizes={
                "quick": LESS
                | {"groups": ("p2d",), "facts": 10, "search_steps": 4, "probes": False},
                "laptop": LESS | {"groups": ("p2d", "d2p"), "facts": 12, "search_steps": 10},
                "full": {"guidance": 0.0},
            },
            adjust=choose_traces,
        )
    ],
)
