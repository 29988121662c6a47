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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unmask.base.config import option
from unmask.blocks import blocks, labels, tidy
from unmask.measures import clean_runs
from unmask.measures.contract import Job, Rows, Summary, Tables
from unmask.measures.inputs import QUESTIONS, ModelInputs
from unmask.measures.measure import Measure, Stage
from unmask.measures.result import Result
from unmask.results import effects as by_fact
from unmask.results.effects import SHARE, CellKey, EffectLayout, GroupEffects, GroupKey
from unmask.results.summaries import add_outcome, mark_outcome

METRICS = {
    "p": blocks.Column("probability", is_short=True),
    "logp_per_token": blocks.Column("log p per token, nats", 3),
    "logit_difference": blocks.Column("logit difference"),
}
COMPARED = "logp_per_token"
"""The metric of sentences, shares and tests."""
CLEAN, HIDDEN = "nothing cut", "subject hidden"
"""Rows without a cut, and with the subject hidden instead: what effects are compared with."""
WHOLE = 0
"""The window of rows that cut all layers."""
BY_ANSWER, BY_OTHERS = "answer:subject", "others:subject"
"""The subject is not read by the answer's positions, and by none but its own."""
GROUP = ("model", "kind", "split", "stage")
CELL = ("edge", "window", "layer", "first", "last")
NOWHERE = (WHOLE, -1, -1, -1)
TOTAL: CellKey = (HIDDEN, *NOWHERE)
LAYOUT = EffectLayout(group=GROUP, cell=CELL, start=(CLEAN, *NOWHERE), is_loss=True)


@dataclass(frozen=True, kw_only=True)
class KnockoutSettings(clean_runs.CleanRunSettings):
    """Which facts are asked, and which edges are cut where."""

    filled = distinct = ("edges",)

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


def list_jobs(inputs: ModelInputs, settings: KnockoutSettings) -> Iterator[Job]:
    """One part for each model and prompt."""
    from unmask.tracing.knockout import name_edges

    name_edges(settings.edges)
    return clean_runs.list_prompt_jobs(inputs, settings, "knockout", _cut_step)


def _cut_step(at: clean_runs.PromptStep, settings: KnockoutSettings) -> Iterator[dict[str, Any]]:
    """A row for each edge and window, and for the scores with nothing cut and the subject hidden.

    Edges that cut nothing, of a causal model or of a state without such positions, have none.
    """
    from unmask.evaluation.questions import require_tokenizer
    from unmask.tracing.facts import make_foil
    from unmask.tracing.knockout import cut_edges
    from unmask.tracing.windows import window_of

    model, foil = at.clean.model, dict[Any, Any]()
    if at.other is not None:
        foil = make_foil(at.clean, at.other, require_tokenizer(model))
    layers = model.net.config.layers
    cells = [
        (width, layer, *window_of(layer, width, layers))
        for width in settings.windows
        for layer in range(layers)
    ]
    cells.append((WHOLE, -1, 0, layers))
    grid = cut_edges(
        model,
        at.clean,
        at.tracing,
        edges=settings.edges,
        layers=[(first, end) for *_, first, end in cells],
        step=at.step,
        foil=foil or None,
        memory=settings.memory_bytes,
    )
    has_foil = grid.clean_logp.shape[1] > 1  # without one there is no logit difference
    named = [name for name in METRICS if has_foil or name != "logit_difference"]
    nothing: dict[str, Any] = dict.fromkeys(METRICS)
    for edge, read in ((CLEAN, grid.clean_value), (HIDDEN, grid.corrupted_value)):
        where = dict(zip(CELL, (edge, *NOWHERE), strict=True)) | {"pairs": 0.0}
        yield where | nothing | {name: read(name) for name in named}
    values = {name: grid.values(name).tolist() for name in named}
    for i, edge in enumerate(grid.edges):
        for j, (width, layer, first, end) in enumerate(cells if grid.pairs[i] else ()):
            where = dict(zip(CELL, (edge, width, layer, first, end - 1), strict=True))
            scores = {name: own[i][j] for name, own in values.items()}
            yield where | {"pairs": grid.pairs[i]} | nothing | scores


def summarise(tables: Tables, settings: KnockoutSettings) -> Summary:
    """Average effects and their shares, what the answer reads by itself, tests, counts."""
    counts, table = clean_runs.count_prompts(tables), tables["knockout"]
    panels = {metric: by_fact.list_effects(table, LAYOUT, metric).panels() for metric in METRICS}
    tests = by_fact.compare_shares(
        panels[COMPARED], LAYOUT, TOTAL, "layer", settings.margin, settings.seed
    )
    return {
        "effects": list(map(_finish, by_fact.average_panels(panels, LAYOUT, TOTAL))),
        "reading": list(_share_reading(panels[COMPARED])),
        "tests": list(tests),
        "counts": counts,
    }


def _finish(row: dict[str, Any]) -> dict[str, Any]:
    """A row of effects; cuts in all layers have an outcome."""
    row = by_fact.bound_effect(row, row["metric"])
    return add_outcome(row) if row["window"] == WHOLE else row


def _share_reading(panels: Mapping[GroupKey, GroupEffects]) -> Iterator[dict[str, Any]]:
    """What each group loses where the answer's positions cannot read the subject in any layer, as a
    share of what is lost where no other position can.

    In the latter case the answer does not depend on the subject: all that reading it gives is lost.
    """
    for group, panel in panels.items():
        edges = {cell[0]: panel.read(cell) for cell in panel.cells if cell[1] == WHOLE}
        answer, others = (edges.get(edge, {}) for edge in (BY_ANSWER, BY_OTHERS))
        lost = by_fact.estimate_values({fact: others[fact] for fact in answer if fact in others})
        if lost and lost["low"] > 0:
            estimate = by_fact.estimate_values(answer, others)
            ends = {end: estimate[name] for end, name in zip(tidy.ENDS, SHARE, strict=True)}
            yield dict(zip(GROUP, group, strict=True)) | ends | {"facts": lost["facts"]}


COLOURS = dict(zip(labels.POSITIONS, ("p0", "p2", "p3", "p6", "p4", "p1", "p7"), strict=False))
"""Colours of roles; p5 is left out, which is hard to tell from p0."""
KEYS: dict[str, tidy.Get] = {"model": "model", "asked": tidy.name_asked}
KEYS["step"] = lambda row: labels.name_stage(row["stage"])


def name_edge(row: tidy.Record) -> str:
    """An edge in words."""
    words = [labels.POSITIONS[role] for role in row["edge"].split(":") if ":" in row["edge"]]
    return " read by ".join(reversed(words)) or row["edge"]


def describe(result: Result) -> Sequence[blocks.ReportBlock]:
    """What is needed: a sentence for each model, curves over layers, and the tables."""
    summary, margin = result.summary, result.settings.to_record()["margin"]
    whole = tidy.select(summary["effects"], window=WHOLE)
    share = blocks.Column("share, %", 0, is_percent=True)
    shares = {**KEYS, share: tidy.to_interval, "facts": "facts"}
    losses = "What the answer loses when an edge is cut in all layers"
    reads = "Lost where the answer's positions cannot read the subject, of that where no other can"
    compared = (
        "Shares of each group's total effect on log p per token, mean over layers; alike: within "
        f"±{margin:g} in every layer"
    )
    cuts: dict[str, tidy.Get] = {"cut": name_edge}
    windows: dict[str, tidy.Get] = {"layers cut together": lambda row: row["window"] or "all"}
    tables = [
        tidy.tabulate_means("whole", losses, whole, KEYS | cuts, METRICS, mark_outcome, 24),
        tidy.tabulate("reading", reads, summary["reading"], shares),
        clean_runs.tabulate_tests(summary["tests"], compared, cuts | windows),
        clean_runs.tabulate_counts(summary["counts"]),
    ]
    numbers = blocks.Fold("Numbers", [table for table in tables if table.rows])
    return [*_state(summary), _draw_curves(summary["effects"]), numbers]


def _state(summary: Summary) -> Iterator[blocks.Finding]:
    """What an answer loses where its positions cannot read the subject, by model."""
    cuts = tidy.select(summary["effects"], metric=COMPARED, edge=BY_ANSWER, window=WHOLE)
    for is_further, (row,) in clean_runs.list_told_groups(cuts):
        group = {name: row[name] for name in GROUP}
        share = "".join(
            f", {tidy.say(each, '%')} of what is lost where no other position can"
            for each in tidy.select(summary["reading"], **group)
        )
        yield blocks.Finding(
            f"In {row['model']}, asked {tidy.name_asked(row)}: where the answer's positions cannot "
            f"read the subject in any layer, the answer loses {tidy.say(row, 'nats per token')}"
            f"{share} ({labels.count(row['facts'], 'fact')}).",
            row["outcome"],
            ways=[tidy.name_asked(row)],
            is_further=is_further,
        )


def _draw_curves(effects: Rows) -> blocks.Figure:
    """What each edge takes by layer."""
    rows = tidy.select(effects, metric=COMPARED)
    return tidy.draw_lines(
        [row for row in rows if row["window"] != WHOLE],
        "knockout",
        "What the answer loses when some positions cannot attend to others",
        "Loss of log p per token with an edge cut in a window of layers around this one. Solid: "
        "what the answer's positions read; dashed: who else reads the subject. Bands: 95 % "
        "intervals by fact.",
        x="layer",
        line=name_edge,
        colour=lambda row: _choose_look(row)[0],
        dash=lambda row: _choose_look(row)[1],
        choose=[
            tidy.ASKED,
            tidy.Choose("layers cut together", "window"),
            tidy.Choose("step", "stage", labels.name_stage),
        ],
        xlabel="layer",
        ylabel="nats per token lost",
    )


def _choose_look(row: tidy.Record) -> tuple[str, str]:
    """Colour and dash of an edge: the role that tells it from others of its kind, and which kind.

    Dashed are edges from the subject to positions that are not the answer's.
    """
    reads, _, is_read = row["edge"].partition(":")
    is_other = is_read == "subject" and reads != "answer"
    return COLOURS[reads if is_other else is_read], "dash" if is_other else "solid"


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
    describe=describe,
    method=__doc__,
    stages=[Stage(sizes={"quick": _QUICK, "laptop": _FULL | {"facts": 8}, "full": _FULL})],
)
