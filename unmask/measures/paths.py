"""paths: through which positions, layers and heads the subject's information reaches the answer.

Path patching (Wang et al. 2022, arXiv 2211.00593; Goldowsky-Dill et al. 2023, arXiv 2304.05969).
The subject is hidden (corrupted). The sender is a role: all of its positions, such as the tokens of
the subject. Their clean states after one layer are shown to the attention of the receivers alone:
the positions of another role, in a band of layers above. Everything else sees the residual stream
of the run with the subject hidden, and changes only through what the receivers pass on. Whatever
score this gives back went through these positions in this band. From the subject to the answer's
positions the same is measured for every single head.

An effect is the answer's score along a path minus its score with the subject hidden. Shares are of
the total effect: the score with nothing hidden minus that with the subject hidden. "Every way"
restores the sender's states for everything that reads them. Paths do not add up to it: several
receivers together can give back more, or less, than the sum of each. Intervals are 95 % t intervals
over facts; training seeds of a model are averaged fact by fact, so that intervals say nothing of
other seeds. Controls send another fact's states, or the hidden states moved in a random direction
by the distance of the clean ones; a path counts where it gives back more than both.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from unmask.base.config import option
from unmask.blocks import blocks, labels, tidy
from unmask.evaluation.equivalence import divide
from unmask.measures import clean_runs
from unmask.measures.contract import Rows, Summary, Tables
from unmask.measures.inputs import QUESTIONS
from unmask.measures.measure import Measure
from unmask.measures.result import Result
from unmask.results import effects as by_fact
from unmask.results.effects import SHARE, CellKey, EffectLayout, GroupEffects
from unmask.results.summaries import add_outcome, mark_outcome
from unmask.tracing.table import OTHER_FACT, RANDOM

if TYPE_CHECKING:
    from unmask.tracing.question import Placebo

METRICS = ("p", "logp_per_token")
COMPARED = "logp_per_token"
"""The metric of what is shown, of heads and of what is above the controls."""
OWN = "none"
"""The control of rows that have none: the fact's own states are sent."""
CLEAN, HIDDEN = "nothing hidden", "subject hidden"
"""Senders of the rows that say what paths stand between."""
GROUP = ("model", "kind", "split", "stage")
CELL = ("sender", "sent", "receiver", "first", "last", "head")
NOWHERE = (-1, "", -1, -1, -1)
TOTAL: CellKey = (OWN, CLEAN, *NOWHERE)
LAYOUT = EffectLayout(group=GROUP, cell=("control", *CELL), start=(OWN, HIDDEN, *NOWHERE))
MOST_HEADS = 5
"""Heads that each half of the facts chooses."""
PathRole = Literal["subject", "prompt", "last", "answer", "written", "masks"]


@dataclass(frozen=True, kw_only=True)
class PathsSettings(clean_runs.CleanRunSettings):
    """Which facts are asked, and which paths are followed."""

    filled = distinct = ("senders", "receivers")

    senders: tuple[PathRole, ...] = option(
        ("subject", "prompt", "last", "masks"),
        "Positions whose clean states are sent: subject, prompt (its other tokens), last (the "
        "prompt's last token), answer (where the answer is predicted), written (other tokens "
        "after the prompt), masks (other masks).",
    )
    receivers: tuple[PathRole, ...] = option(
        ("subject", "prompt", "last", "answer", "masks"),
        "Positions whose attention reads the sent states.",
    )
    bands: int = option(
        6,
        "Bands that the layers are divided into; states are sent from the layer below each band.",
        least=1,
    )
    heads: bool = option(
        True, "Also measure each single head by which the answer's positions read the subject."
    )
    placebos: tuple[Literal["other fact", "random direction"], ...] = option(
        (OTHER_FACT, RANDOM),
        "Controls, sent in place of the subject's clean states: another fact's states, or the "
        "hidden states moved in a random direction by the same distance.",
    )


def _patch_step(at: clean_runs.PromptStep, settings: PathsSettings) -> Iterator[dict[str, Any]]:
    """A row for each path, and for the scores with nothing and with the subject hidden."""
    from unmask.evaluation.questions import require_tokenizer
    from unmask.tracing.clean_run import find_state
    from unmask.tracing.facts import make_donor
    from unmask.tracing.path_cells import Bands, list_asked_roles, list_path_cells, list_readers
    from unmask.tracing.paths import check_blocks, patch_senders
    from unmask.tracing.question import ask

    clean, model = at.clean, at.clean.model
    check_blocks(model)
    state, answer = find_state(clean, at.step, at.tracing)
    question = ask(model, state, clean.subject, answer, at.tracing, clean.prompt_length)
    bands = Bands.divide(model.net.config.layers, settings.bands)
    roles = list_asked_roles(question)
    senders = [role for role in settings.senders if role in roles]
    receivers = [role for role in settings.receivers if role in roles]
    runs: list[tuple[str, Placebo | None, Sequence[str]]] = [(OWN, None, senders)]
    if "subject" in senders:
        if OTHER_FACT in settings.placebos and at.other is not None:
            donor = make_donor(clean, at.other, require_tokenizer(model))
            runs.append((OTHER_FACT, donor, ["subject"]))
        if RANDOM in settings.placebos:
            runs.append((RANDOM, "random", ["subject"]))
    for control, donor, own in runs:
        has_heads = settings.heads and donor is None
        cells = list_path_cells(model.net.config.heads, bands, own, receivers, has_heads)
        paths = [
            ((sender, sent, "resid"), [list_readers(cell) for cell in each])
            for (sender, sent), each in cells.items()
        ]
        grids = patch_senders(replace(question, donor=donor), paths, settings.memory_bytes)
        if donor is None:
            for i, end in enumerate((CLEAN, HIDDEN)):
                where = {"control": OWN} | dict(zip(CELL, (end, *NOWHERE), strict=True))
                yield where | {name: grids[0].ends(name)[i] for name in METRICS}
        for each, grid in zip(cells.values(), grids, strict=True):
            values = {name: grid.values(name).tolist() for name in METRICS}
            for i, cell in enumerate(each):
                where = {"control": control} | dict(zip(CELL, cell, strict=True))
                yield where | {name: own[i] for name, own in values.items()}


def summarise(tables: Tables, settings: PathsSettings) -> Summary:
    """Average effects and their shares, what is above the controls, the strongest heads, counts."""
    counts, table = clean_runs.count_prompts(tables), tables["paths"]
    panels = {metric: by_fact.list_effects(table, LAYOUT, metric).panels() for metric in METRICS}
    effects = [
        add_outcome(row) if (row["sender"], row["metric"]) == (CLEAN, COMPARED) else row
        for row in by_fact.average_panels(panels, LAYOUT, TOTAL)
        if row["head"] < 0  # single heads stand elsewhere
    ]
    above, heads = list[dict[str, Any]](), list[dict[str, Any]]()
    for group, panel in panels[COMPARED].items():
        where = dict(zip(GROUP, group, strict=True))
        above += [where | row for row in _subtract_controls(panel)]
        heads += [where | row for row in _choose_heads(panel)]
    return {"effects": effects, "above": above, "heads": heads, "counts": counts}


def _subtract_controls(panel: GroupEffects) -> Iterator[dict[str, Any]]:
    """What each path gives beyond the control that gives more, fact by fact."""
    totals, column = panel.read(TOTAL), dict(zip(panel.cells, panel.effects.T, strict=True))
    for control, *cell in panel.cells:
        beside = [column[name, *cell] for name in (OTHER_FACT, RANDOM) if (name, *cell) in column]
        if control == OWN and beside:
            beyond = column[OWN, *cell] - np.fmax.reduce(beside)
            values = dict(zip(panel.facts, beyond, strict=True))
            estimate = by_fact.estimate_values(values, totals)
            yield dict(zip(CELL, cell, strict=True)) | add_outcome(estimate)


def _choose_heads(panel: GroupEffects) -> Iterator[dict[str, Any]]:
    """The strongest heads of each half of the facts, read on the other; `chosen` by how many."""
    totals = panel.read(TOTAL)
    heads = [cell for cell in panel.cells if cell[-1] >= 0]
    chosen = panel.choose_cells(heads, MOST_HEADS)
    halves = divide(chosen)
    for head in dict.fromkeys(cell for best in chosen.values() for cell in best):
        values = panel.take({fact: head for fact, best in chosen.items() if head in best})
        where = dict(zip(LAYOUT.cell, head, strict=True)) | by_fact.estimate_values(values, totals)
        yield where | {"chosen": len({halves[fact] for fact in values})}


def name_sender(row: tidy.Record) -> str:
    """What is sent, and after which layer."""
    after = f"after layer {row['sent']}" if row["sent"] >= 0 else "embeddings"
    return f"{labels.POSITIONS[row['sender']]}, {after}"


def name_band(row: tidy.Record) -> str:
    """The layers of a receiver."""
    return f"{row['first']}–{row['last']}" if row["first"] < row["last"] else f"{row['first']}"


COLUMNS: dict[str | blocks.Column, tidy.Get] = {
    "model": "model",
    "asked": tidy.name_asked,
    "sender": name_sender,
    "receiver": lambda row: labels.POSITIONS[row["receiver"]],
    "layers": name_band,
    blocks.Column("nats per token", 3): tidy.to_interval,
    blocks.Column("% of the total effect", 1, is_percent=True): partial(
        tidy.to_interval, columns=SHARE
    ),
}


def describe(result: Result) -> Sequence[blocks.ReportBlock]:
    """By which way: sentences, a map of receivers and layers, heads, controls, counts."""
    summary = result.summary
    effects = tidy.select(summary["effects"], metric=COMPARED, control=OWN)
    own = [row for row in effects if row["sender"] != CLEAN]
    chosen = (
        "The strongest heads by which the answer's positions read the subject: chosen on one half "
        "of the facts, measured on the other"
    )
    ways = "What comes back when the receiver reads the sender in all layers above it"
    above = "What a path from the subject gives back beyond the stronger of its controls"
    heads = COLUMNS | {"head": "head", "halves that chose it": "chosen"}
    tables = [
        tidy.tabulate("ways", ways, _list_whole(own), COLUMNS, most=40),
        tidy.tabulate("above", above, summary["above"], COLUMNS, mark_outcome, most=40),
        tidy.tabulate("heads", chosen, summary["heads"], heads, most=30),
        clean_runs.tabulate_counts(summary["counts"]),
    ]
    numbers = blocks.Fold("Numbers", [table for table in tables if table.rows])
    return [*_state(summary), _draw_map(own), numbers]


def _draw_map(rows: Rows) -> blocks.Figure:
    """What single receivers give back, band by band: of what begins at a layer, the shortest."""
    starts = tidy.group_by(rows, "model", "first").items()
    ends = {start: min(row["last"] for row in same) for start, same in starts}
    return tidy.draw_map(
        [
            {**row, "percent": 100 * row["share"], "from": name_sender(row)}
            for row in rows
            if row["receiver"] != "every way" and row["last"] == ends[row["model"], row["first"]]
        ],
        "paths",
        "Through which positions and layers a state reaches the answer",
        "Share of the total effect (what hiding the subject takes) that comes back when only the "
        "attention of these positions in these layers reads the sender's clean states.",
        x=name_band,
        y=lambda row: labels.POSITIONS[row["receiver"]],
        ends=("percent",),
        choose=[tidy.ASKED, tidy.Choose("sender", "from")],
        xlabel="layers of the receiver",
        ylabel="% of the total effect",
        is_signed=True,
    )


def _list_whole(rows: Rows) -> list[tidy.Record]:
    """The paths by all layers above their sender, and by every way."""
    last = {row["model"]: row["last"] for row in sorted(rows, key=lambda row: row["last"])}
    above = [row for row in rows if row["first"] == row["sent"] + 1]
    return [row for row in above if row["last"] == last[row["model"]]]


def _state(summary: Summary) -> Iterator[blocks.Finding]:
    """What the answer's positions give back by reading the subject's states, by model."""
    paths = tidy.select(summary["above"], sender="subject", receiver="answer")
    for is_further, rows in clean_runs.list_told_groups(paths):
        # After the first band, where the subject's tokens have read each other.
        sent = sorted(tidy.distinct(rows, "sent"))[:2][-1]
        (row,) = tidy.select(_list_whole(rows), sent=sent)
        yield blocks.Finding(
            f"In {row['model']}, asked {tidy.name_asked(row)}: the subject's states after layer "
            f"{sent}, read by the attention of the answer's positions alone, give back "
            f"{tidy.say(row, 'nats per token')} beyond the controls, "
            f"{tidy.say_share(row['share'])} of what hiding the subject takes "
            f"({labels.count(row['facts'], 'fact')}).",
            row["outcome"],
            ways=[tidy.name_asked(row)],
            is_further=is_further,
        )


MEASURE = Measure(
    name="paths",
    title="Paths from the subject to the answer",
    help="Find through which positions, layers and heads the subject reaches the answer (path "
    "patching).",
    settings=PathsSettings,
    tables={"paths": "paths/1", "facts": "paths-facts/1"},
    inputs=QUESTIONS,
    jobs=partial(clean_runs.list_prompt_jobs, table="paths", change=_patch_step),
    summarise=summarise,
    describe=describe,
    method=__doc__,
)
