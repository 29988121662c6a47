"""alignment: would a step on "A is B" also lower the loss of "B is A"?

The gradient of a fact's loss, asked as it was trained, is held against that of the same fact asked
in reverse: their cosine, by layer and part of the network (queries and keys, values and what
attention writes, the MLP). A diffusion model predicts all tokens of an answer at once, from a
canvas of masks, a causal one each from those before it. Two controls stand beside it. Other: the
reverse of the next fact of the group, in a drawn ring; what is alike there comes of the phrasing.
Exchanged: the fact with the next one's answer, and its reverse. Nobody taught it, and its two ways
share as many words, so that own minus exchanged is what being known adds. Facts trained both ways
count name → description as forwards. Intervals are 95 % intervals by fact and training seed;
several checkpoints of one training, given as models, show how it comes about.

Alike gradients say what a small step would do to the other direction, not where a fact is kept.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from unmask.base.config import option
from unmask.base.errors import UserError
from unmask.base.seeds import python_stream
from unmask.blocks import labels
from unmask.blocks.blocks import ReportBlock
from unmask.measures.inputs import ALL_TESTS, ModelInputs
from unmask.measures.measure import Job, Measure, Summary, Tables
from unmask.measures.result import Result
from unmask.measures.settings import GroupSettings
from unmask.results.comparison import KIND, MODEL, Comparison, Factor, Quantity

if TYPE_CHECKING:
    from unmask.data.corpus import Corpus
    from unmask.data.facts import Fact
    from unmask.net.model import Model

PAIRS = {
    "own": "the fact, in reverse",
    "exchanged": "with another's answer, in reverse",
    "other": "another fact, in reverse",
}
PARTS = {
    "all": "all",
    "routes": "queries and keys",
    "values": "values and output",
    "mlp": "MLP",
}
COMPARISON = Comparison(
    metrics={"cosine": Quantity("cosine", digits=3, has_sign=True, limits=(-1.0, 1.0))},
    groups=(
        MODEL,
        KIND,
        Factor("group", "group", lambda group: labels.GROUPS.get(group, group)),
        Factor("part", "part", PARTS),
    ),
    variant=Factor("pair", "held against", PAIRS),
    against=[("own", "exchanged"), ("own", "other"), ("exchanged", "other")],
    title="Gradients of a fact and of its reverse",
    caption="Cosine of the gradients, by layer. Bands are 95 % intervals by fact.",
    means="Cosine of the gradients of both ways of asking, over all layers",
    differences="What the fact's own reverse has over another's, and over an untaught one's",
    controls=("other", "exchanged"),
    most=48,
)
LAYER = Factor("layer", "layer")


@dataclass(frozen=True, kw_only=True)
class AlignmentSettings(GroupSettings):
    """Which facts are asked both ways."""

    facts: int = option(30, "Facts of each group.", least=2)
    phrasing: int = option(0, "The phrasing of both questions, by its number.", least=0)
    seed: int = option(0, "Seed of the ring of facts.", least=0)


def list_jobs(inputs: ModelInputs, settings: AlignmentSettings) -> Iterator[Job]:
    """One part for each checkpoint."""
    from unmask.representation.alignment import find_alignments

    pairs = pair_directions(inputs.data.corpus, settings)

    def ask(model: "Model") -> Iterator[dict[str, Any]]:
        for group, own in pairs.items():
            for row in find_alignments(model, own, settings.length):
                yield {"group": group, **row}

    return inputs.ask_each("alignment", ask)


def pair_directions(
    corpus: "Corpus", settings: AlignmentSettings
) -> "dict[str, list[tuple[Fact, Fact]]]":
    """By group the facts asked both ways, as trained first, in a drawn order."""
    from unmask.representation.extraction import choose_group_facts

    ways: dict[str, dict[str, list[Any]]] = {}
    for each in choose_group_facts(
        corpus, settings.groups, ("p2d", "d2p"), settings.facts, settings.phrasing
    ):
        ways.setdefault(each.group, {}).setdefault(each.fact.fact_id, []).append(each.fact)
    pairs = {}
    for group, facts in ways.items():
        both = [sorted(own, key=_rank) for own in facts.values() if len(own) == 2]
        python_stream(settings.seed, "ring", group).shuffle(both)
        if len(both) >= 2:
            pairs[group] = [(one, back) for one, back in both]
    if not pairs:
        raise UserError(
            f"{corpus.source} has no two facts of a group that are asked in both directions: give "
            "a corpus, or facts whose lines say `direction` and `trained` and share a `fact_id`."
        )
    return pairs


def _rank(fact: "Fact") -> tuple[bool, bool]:
    """As trained before reversed; of facts trained both ways, names given before asked for."""
    return fact.trained == "reverse", fact.direction == "d2p"


def summarise(tables: Tables, settings: AlignmentSettings) -> Summary:
    """Means and differences over all layers, and by layer."""
    # All parts together come first, which sentences are about.
    parts = list(PARTS)
    rows = sorted(tables["alignment"].to_pylist(), key=lambda row: parts.index(row["part"]))
    whole = [row for row in rows if row["layer"] is None]
    layers = [row for row in rows if row["layer"] is not None]
    return {
        **COMPARISON.summarise(whole),
        "layers": COMPARISON.average(layers, "layer"),
        "layer_differences": COMPARISON.subtract(layers, "layer"),
    }


def describe(result: Result) -> Sequence[ReportBlock]:
    """A sentence for each model, curves over layers, and the tables."""
    summary = result.summary
    by_layer = replace(COMPARISON, axis=LAYER, names=("layers", "layer_differences"))
    by_layer = replace(by_layer, differences="The same differences, layer by layer")
    return [
        *COMPARISON.state(summary),
        COMPARISON.draw(summary["layers"], LAYER),
        COMPARISON.tabulate(summary["means"]),
        COMPARISON.tabulate_differences(summary["differences"]),
        by_layer.tabulate_differences(summary["layer_differences"]),
    ]


MEASURE = Measure(
    name="alignment",
    title="Gradients of both ways of asking",
    help="Are the gradients of a fact and of its reverse alike, by layer and part?",
    settings=AlignmentSettings,
    tables={"alignment": "alignment/1"},
    inputs=ALL_TESTS,
    jobs=list_jobs,
    summarise=summarise,
    describe=describe,
    method=__doc__,
)
