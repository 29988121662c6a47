"""knockout: what an answer loses when some positions cannot attend to others, in a few layers.

Attention knock-out (Geva et al. 2023, arXiv 2304.14767). An edge names the positions that attend
and those they attend to: the answer's positions to the subject, other masks to the subject, and so
on. In the layers of a window its pairs of positions are taken out of attention; everything else
runs as before. What is lost is what the model needs of this edge in these layers and cannot get by
another path. A trace says which states are enough to bring an answer back; this says which
attention it needs.

An effect is the answer's score with nothing cut minus its score with the edge cut. The total effect
is the score with nothing cut minus that with the subject hidden. Where no position outside the
subject can read it in any layer, the answer does not depend on it, and all that reading it gives is
lost; hiding it can take more than that, where what stands in its place misleads. Scores are the
probability, the log-probability per token and the logit difference to another fact's answer, all of
the same runs. Intervals are 95 % t intervals over facts; training seeds of a model are averaged
fact by fact, so that intervals and tests say nothing of other seeds. Two groups count as alike
where their effects, as shares of the total effect, differ by less than the margin in every layer,
by two one-sided tests. Finding no difference does not make two groups alike.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from unmask.base.config import option
from unmask.measures.clean_runs import CleanRunSettings, list_prompt_jobs
from unmask.measures.inputs import QUESTIONS, ModelInputs
from unmask.measures.knockout_section import describe
from unmask.measures.knockout_summary import (
    CELL,
    CLEAN,
    HIDDEN,
    METRICS,
    WHOLE,
    judge,
    summarise,
)
from unmask.measures.measure import Job, Measure, Stage
from unmask.tracing.settings import Tracing

if TYPE_CHECKING:
    from unmask.data.facts import Fact
    from unmask.tracing.clean_run import CleanRun
    from unmask.tracing.knockout import KnockoutGrid


@dataclass(frozen=True, kw_only=True)
class KnockoutSettings(CleanRunSettings):
    """Which facts are asked, and which edges are cut where."""

    edges: tuple[str, ...] = option(
        (
            *("answer:subject", "answer:prompt", "answer:last", "answer:masks", "answer:answer"),
            *("prompt:subject", "last:subject", "masks:subject", "others:subject"),
        ),
        "Which positions cannot attend to which, as FROM:TO: answer:subject stops the answer's "
        "positions from attending to the subject. Roles are subject, prompt (its other tokens), "
        "last (the prompt's last token), answer (where the answer is predicted), written (other "
        "tokens after the prompt), masks (other masks) and others (all but the other end).",
    )
    windows: tuple[int, ...] = option(
        (1, 5),
        "Numbers of layers that are cut together, around each layer. A cut in all layers is always "
        "measured as well.",
        least=1,
        most=1_000_000,
    )
    margin: float = option(
        0.1,
        "Two groups are alike where their effects differ by less than this share of the total "
        "effect.",
        above=0,
    )

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if not self.edges or len(set(self.edges)) < len(self.edges):
            yield f"'edges' is {self.edges}, expected at least one, and none twice"


def list_jobs(inputs: ModelInputs, settings: KnockoutSettings) -> Iterator[Job]:
    """One part for each model and prompt."""
    from unmask.tracing.knockout import name_edges

    name_edges(settings.edges)
    return list_prompt_jobs(inputs, settings, "knockout", partial(_cut_step, settings=settings))


def _cut_step(
    clean: "CleanRun",
    step: int,
    other: "Fact | None",
    tracing: Tracing,
    settings: KnockoutSettings,
) -> Iterator[dict[str, Any]]:
    """A row for each edge and window, and for the scores with nothing cut and the subject hidden.

    Edges that cut nothing, of a causal model or of a state without such positions, have none.
    """
    from unmask.evaluation.questions import require_tokenizer
    from unmask.tracing.facts import make_foil
    from unmask.tracing.knockout import cut_edges
    from unmask.tracing.windows import window_of

    foil = make_foil(clean, other, require_tokenizer(clean.model)) if other is not None else {}
    layers = clean.model.net.config.layers
    cells = [
        (width, layer, *window_of(layer, width, layers))
        for width in settings.windows
        for layer in range(layers)
    ]
    cells.append((WHOLE, -1, 0, layers))
    grid = cut_edges(
        clean.model,
        clean,
        tracing,
        edges=settings.edges,
        layers=[(first, end) for *_, first, end in cells],
        step=step,
        foil=foil or None,
        memory=settings.memory_bytes,
    )
    named = {name: name in _list_metrics(grid) for name in METRICS}
    ends = dict(zip(CELL[1:], (WHOLE, -1, -1, -1), strict=True)) | {"pairs": 0.0}
    for edge, read in ((CLEAN, grid.clean_value), (HIDDEN, grid.corrupted_value)):
        values = {name: read(name) if is_there else None for name, is_there in named.items()}
        yield {"edge": edge, **ends, **values}
    values = {name: grid.values(name).tolist() for name, is_there in named.items() if is_there}
    for i, edge in enumerate(grid.edges):
        for j, (width, layer, first, end) in enumerate(cells if grid.pairs[i] else ()):
            where = dict(zip(CELL, (edge, width, layer, first, end - 1), strict=True))
            scores = {name: values[name][i][j] if name in values else None for name in METRICS}
            yield where | {"pairs": grid.pairs[i], **scores}


def _list_metrics(grid: "KnockoutGrid") -> list[str]:
    """The metrics that can be had: without a foil there is no logit difference."""
    has_foil = grid.clean_logp.shape[1] > 1
    return [name for name in METRICS if has_foil or name != "logit_difference"]


_FULL: dict[str, Any] = {"facts": 30, "consider": 30, "guidance": 0.0}
_QUICK: dict[str, Any] = _FULL | {"facts": 1, "consider": 6, "steps": 4, "windows": (1,)}

MEASURE = Measure(
    name="knockout",
    title="What an answer needs to read",
    help="Find which positions an answer must attend to, and in which layers (attention "
    "knock-out).",
    settings=KnockoutSettings,
    tables={"knockout": "knockout/1", "facts": "knockout-facts/1"},
    inputs=QUESTIONS,
    jobs=list_jobs,
    summarise=summarise,
    judge=judge,
    describe=describe,
    method=__doc__,
    stages=[Stage(sizes={"quick": _QUICK, "laptop": _FULL | {"facts": 8}, "full": _FULL})],
)
