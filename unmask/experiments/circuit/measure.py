"""circuit: which heads and MLPs bring an answer, at which step and along which edges?

A node is a head, an MLP or the embeddings at the positions of one role. Each question stands beside
another one in the same words, about another fact, whose prompt has the same shape. The metric is
the logit of the own answer's tokens minus that of the other's, mean over the tokens that the step
commits. A node's effect is what it loses where everything reads the node's value of the other
question; an edge's, where one reader alone does, and what follows from what that writes is run on
(path patching). Between steps there is no edge but those of the embeddings of committed tokens.

Nodes are exact, all of them. Edges are exact for those that either screen finds strongest and for
some drawn at random, on which screens are judged: attribution (change times slope) and integrated
gradients (the mean slope on the way to the other question). Found among the strongest: the share of
the exactly strongest 2 % that are among a screen's strongest 2 %, of the edges drawn. A circuit
keeps edges and gives all others the other question's values. Its faithfulness is (circuit − other
question) / (network − other question); CPR is the area under it over circuit sizes from 0.1 to 100
% of edges, by score, CMD the area between it and 1, by magnitude (Mueller et al. 2025, arXiv
2504.13151). Random orders are the control.

Neurons are exchanged alone, those of the screen's highest magnitude, and a layer's together, beside
as many drawn at random. Circuits are alike where the strongest tenth of nodes is shared more than
when heads and MLPs change places within their role; the halves of a group's facts are the ceiling.
On networks of known mechanism an edge matters where its exchange changes the word in the program.
Intervals are 95 % intervals by fact, there by network.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from unmask.base.config import option, option_of
from unmask.experiments.circuit.section import describe, summarise
from unmask.measures.clean_runs import ChosenPrompts, make_jobs
from unmask.measures.inputs import QUESTIONS, Member, ModelInputs
from unmask.measures.measure import Job, Measure, Rows
from unmask.measures.settings import StateSettings
from unmask.tracing.settings import Tracing, check_steps

if TYPE_CHECKING:
    from unmask.data.facts import Fact


@dataclass(frozen=True, kw_only=True)
class CircuitSettings(StateSettings):
    """Which facts are asked, and what of their circuits is exact."""

    filled = ("at",)

    splits: tuple[str, ...] = option((), "Splits of the corpus; the four tests by default.")
    facts: int = option(8, "Facts of each split.", least=1)
    at: tuple[str, ...] = option(
        ("t1", "t2"), "Denoising steps: t1 and t2 commit the answer's first and last token."
    )
    steps: int = option_of(Tracing, "steps")
    any_answer: bool = option_of(Tracing, "any_answer")
    edges: float = option(
        0.05, "Share of edges drawn at random whose effects are exact.", above=0.0, most=1.0
    )
    strongest: float = option(
        0.02, "Share of edges, each screen's strongest, that are exact.", above=0.0, most=1.0
    )
    points: int = option(5, "Points of integrated gradients.", least=1, most=1000)
    neurons: int = option(8, "Neurons that are exchanged one by one at a step.", least=0)
    known: int = option(
        1, "Networks of each known mechanism on which edges are judged; 0: none.", least=0, most=3
    )
    seed: int = option(0, "Seed of the edges and neurons that are drawn.", least=0)

    def _problems(self) -> Iterator[str]:
        yield from check_steps(self.at)


def list_jobs(inputs: ModelInputs, settings: CircuitSettings) -> Iterator[Job]:
    """One part for each known network, then one for each model and prompt."""
    from unmask.compiled.mechanisms import MECHANISMS
    from unmask.experiments.bench.networks import list_networks
    from unmask.experiments.circuit.work import judge_known
    from unmask.tracing.facts import choose_facts

    for network in list_networks(MECHANISMS, settings.known):
        yield Job(f"known-{network.name}", partial(judge_known, network, settings.points))
    chosen = {
        split.name: ChosenPrompts(choose_facts(split.facts, settings.facts, 1))
        for split in inputs.data.splits
    }

    def work(member: Member, split: str, fact: "Fact") -> Mapping[str, Rows]:
        return ask_prompt(inputs, settings, member, split, fact)

    yield from make_jobs(inputs.members(), chosen, work)


def ask_prompt(
    inputs: ModelInputs, settings: CircuitSettings, member: Member, split: str, fact: "Fact"
) -> Mapping[str, Rows]:
    """The circuit of a prompt at each step, beside the next fact whose prompt has its shape."""
    from unmask.experiments.circuit.work import map_step
    from unmask.tracing.clean_run import NotTracedError, generate
    from unmask.tracing.contrasts import contrast_step, list_partners

    model = inputs.load(member)
    keys: dict[str, Any] = {**member.columns, "split": split, **fact.columns}
    asking = {name: getattr(settings, name) for name in ("steps", "length", "any_answer")}
    tracing = Tracing(**asking)
    tables: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
    record = keys | {"kept": False, "reason": ""}
    try:
        clean = generate(model, fact, tracing)
    except NotTracedError as error:
        return tables | {"facts": [record | {"reason": error.reason}]}
    facts = next(own.facts for own in inputs.data.splits if own.name == split)
    partners = list_partners(clean, fact, facts)
    for stage, step in clean.find_steps(settings.at):
        contrasts = (contrast_step(clean, step, other) for other in partners)
        if (contrast := next((each for each in contrasts if each is not None), None)) is not None:
            for name, rows in map_step(contrast, settings).items():
                tables[name] += [{**keys, "stage": stage, "step": step, **row} for row in rows]
    reason = "" if tables["circuit"] else "no fact of the same shape"
    return tables | {"facts": [record | {"kept": not reason, "reason": reason}]}


TABLES = {
    "circuit": "circuit/1", "edges": "circuit-edges/1", "neurons": "circuit-neurons/1",
    "steps": "circuit-steps/1", "known": "circuit-known/1", "facts": "circuit-facts/1",
}  # fmt: skip

MEASURE = Measure(
    name="circuit",
    title="Circuits by denoising step",
    help="Find which heads, MLPs, neurons and edges bring an answer at each denoising step.",
    settings=CircuitSettings,
    tables=TABLES,
    inputs=QUESTIONS,
    jobs=list_jobs,
    summarise=summarise,
    describe=describe,
    method=__doc__,
)
