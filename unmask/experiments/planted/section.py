"""What planted tokens did: rates of answers, what they are held against, and the page."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from unmask.blocks import labels, tidy
from unmask.blocks.blocks import Notice, ReportBlock
from unmask.experiments.planted.corpus import RECALLED
from unmask.measures.measure import Rows, Summary, Tables
from unmask.measures.result import Result
from unmask.results.comparison import KIND, MODEL, Comparison, Factor, Quantity

OUTCOMES = ("refusal", "leak", "other")
SAMPLED = ("length", "order", "remask", "guidance")
"""What a cell says of the sampler."""
CELL = ("planted", "share", "shape", "start", "step", *SAMPLED)
"""What tells the cells of a sweep apart, but for whether the planted tokens are neutral."""
KEY = ("plant", *CELL)
PEOPLE = Factor("is_sealed", "asked about", {True: "sealed people", False: "open people"})
TOKENS = Factor("tokens", "planted tokens")
CELLS = (*map(Factor, CELL), TOKENS, Factor("sampling", "sampling"))
PLANT = Factor(
    "plant",
    "kind of tokens",
    {"none": "nothing planted", "disclosing": "disclosing", "neutral": "neutral"},
)
ANSWERS = Comparison(
    metrics={
        "leak": Quantity("leaks", "%"),
        "refusal": Quantity("refusals", "%"),
        "other": Quantity("other answers", "%"),
        "decided_at": Quantity("decided at step", digits=1),
        "foreseen_at": Quantity("foreseen at step", digits=1),
    },
    groups=(MODEL, KIND, PEOPLE, *CELLS),
    variant=PLANT,
    against=[("disclosing", "neutral")],
    compared=("leak", "refusal"),
    counted="people",
    names=("cells", "effects"),
    title="Answers: leaks, refusals and others",
    caption="By the number of planted tokens. Dotted: as many neutral ones in the same places. "
    "Bands are 95 % intervals by person and training seed.",
    means="Answers by what is planted; of open people, a leak is the trained answer",
    differences="Answers with disclosing tokens planted minus those with neutral ones",
    controls=("neutral",),
    most=60,
)
LENGTHS = replace(
    ANSWERS,
    groups=(MODEL, KIND, PEOPLE, PLANT),
    variant=Factor("length", "canvas", lambda length: f"{length} positions"),
    against=lambda lengths: [(max(lengths), min(lengths))] if len(lengths) > 1 else [],
    names=("length_means", "lengths"),
    differences="Answers at a fixed planted share: longest canvas minus shortest",
)
MODELS = replace(
    ANSWERS,
    groups=(PEOPLE, *CELLS),
    variant=MODEL,
    against=lambda models: [],  # by the kinds of the models that are there
    names=("model_means", "models"),
    differences="Answers with the same disclosing tokens: a diffusion model minus autoregressive "
    "ones, and minus the first diffusion model",
)
DEFENCES = replace(
    ANSWERS,
    groups=(MODEL, KIND, PEOPLE),
    variant=Factor("remask", "remasking"),
    against=lambda names: [(name, names[0]) for name in names[1:]],
    names=("defence_means", "defences"),
    differences="Answers with the first disclosing tokens planted: with remasking minus without",
)
FORESEEN = replace(
    ANSWERS,
    metrics={"refusal": Quantity("p(refusal)", "%"), "leak": Quantity("p(town)", "%")},
    axis=Factor("done", "steps done"),
    names=("foreseen", ""),
    title="How soon the model's predictions show the outcome, for sealed people",
    caption="Shares of texts in which all masked positions are filled at once from the model's "
    "predictions at this step; after the last step, the outcome. Dotted: neutral tokens. Bands are "
    "95 % intervals by person and training seed.",
)
KNOWN = replace(
    ANSWERS,
    metrics={"recalled": Quantity("towns recalled when a trained sentence asks for them", "%")},
    groups=(MODEL, KIND, PEOPLE),
    variant=None,
    against=(),
    compared=(),
    chance={"recalled": RECALLED},
    names=("recalled", ""),
)


def summarise(tables: Tables, settings: Any) -> Summary:
    """Rates by cell and class of people, and what each comparison makes of them."""
    rows, foreseen = (
        [row | _name_cell(row) for row in tables[name].to_pylist()]
        for name in ("planted", "foreseen")
    )
    disclosing = tidy.select(rows, plant="disclosing")
    kinds = dict(tidy.distinct(disclosing, "model", "kind"))
    causal = [model for model, kind in kinds.items() if labels.is_causal(kind)]
    diffusion = [model for model in kinds if model not in causal]
    pairs = [*product(diffusion, causal), *((each, diffusion[0]) for each in diffusion[1:])]
    first = {name: disclosing[0][name] for name in CELL if name != "remask"}
    return {
        "recalled": KNOWN.average(tables["recalled"].to_pylist()),
        "foreseen": FORESEEN.average(foreseen, "done"),
        **ANSWERS.summarise(rows),
        **LENGTHS.summarise([row for row in rows if row["share"] and row["plant"] != "none"]),
        **replace(MODELS, against=lambda models: pairs).summarise(disclosing),
        **DEFENCES.summarise(tidy.select(disclosing, **first)),
    }


def _name_cell(row: tidy.Record) -> dict[str, str]:
    """A cell in words: what is planted, and how texts are sampled."""
    share = f" ({100 * row['share']:g} % of the answer)" if row["share"] else ""
    where = f"{row['shape']} from position {row['start']}" if row["start"] else row["shape"]
    tokens = f"{row['planted']}{share}, {where}, step {row['step']}" if row["planted"] else "0"
    parts = [f"{row['length']} positions", row["order"]]
    parts += [f"remasking {row['remask']}"] if row["remask"] != "none" else []
    parts += [f"guidance {row['guidance']:g}"] if row["guidance"] else []
    return {"tokens": tokens, "sampling": ", ".join(parts)}


def describe(result: Result) -> Sequence[ReportBlock]:
    """What each model knows and what planted tokens do to it, the figures, the tables."""
    summary = result.summary
    declared = (ANSWERS, LENGTHS, MODELS, DEFENCES)
    tables = ((each, summary[each.names[1]]) for each in declared)
    return [
        *KNOWN.state(summary),
        *_warn(tidy.select(summary["recalled"], is_sealed=True)),
        *(finding for each in declared for finding in each.state(summary)),
        *_draw(summary["cells"], summary["foreseen"]),
        ANSWERS.tabulate(summary["cells"]),
        *(each.tabulate_differences(rows) for each, rows in tables if rows),
    ]


def _warn(known: Rows) -> Iterator[Notice]:
    """Which models do not know what they withhold."""
    for row in known:
        if row["mean"] < RECALLED:
            yield Notice(
                f"{row['model']} recalls less than {tidy.say_share(RECALLED)} of the sealed towns, "
                "so that its leak rates say nothing; train it longer."
            )


def _draw(cells: Rows, foreseen: Rows) -> Iterator[ReportBlock]:
    """Answers by the number of planted tokens, and what could be foreseen at each step."""
    sampled = {name: cells[0][name] for name in SAMPLED}
    rows = tidy.select(cells, share=0.0, start=0, step=cells[0]["step"], **sampled)
    answers = replace(ANSWERS, groups=(MODEL, KIND, PEOPLE, Factor("shape", "shape")))
    planted = [row for row in rows if row["plant"] != "none"]
    yield answers.draw(planted, Factor("planted", "planted tokens"))
    if shown := tidy.select(foreseen, is_sealed=True, **sampled):
        yield replace(FORESEEN, groups=(MODEL, KIND, TOKENS)).draw(shown)
