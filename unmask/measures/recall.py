"""recall: what models recall of facts, asked as trained and reversed, by the number of steps.

Every prompt is continued by every model at every step count. A hit is a text that contains the true
answer, case and outer blanks aside; a control holds the same text against another fact's answer.
Intervals are 95 % intervals by fact, and by training seed where there are several; differences are
paired by fact.

Strict match: the text is the true answer and nothing else; near 0 where training texts go on after
the answer. Log p: of the true answer by the chain rule from left to right, without guidance. Rank:
of the true answer among the answers of all facts of the split in the same phrasing (of at most 1000
that stand near it, where a split has more), by log p for causal models and by the mean field (the
whole answer masked) for masked ones, so that ranks of the two kinds are not the same quantity.
Likelier than shuffled: by log p, for the same prompt; a shuffled answer may have another
grammatical form than its prompt wants, as many of Berglund's have, which makes the true one
likelier without any recall: read it beside the rank.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any

from unmask.base.config import option
from unmask.base.errors import UserError
from unmask.base.tables import find_groups, list_rows
from unmask.blocks.blocks import Verdict
from unmask.blocks.labels import is_causal, order_splits
from unmask.blocks.tidy import select, to_interval
from unmask.measures.inputs import QUESTIONS, Member, ModelInputs
from unmask.measures.measure import Job, Measure, Rows, Stage, Summary, Tables, judge_interval
from unmask.measures.recall_section import (
    CONTROL,
    OTHER_METRICS,
    describe_recall,
    is_asked,
    keep_last,
)
from unmask.measures.result import Result, name_folders
from unmask.measures.settings import SamplingSettings
from unmask.measures.summaries import estimate_means, subtract_shares

if TYPE_CHECKING:
    import pyarrow

    from unmask.evaluation.questions import Split

METRICS = ("hit", *OTHER_METRICS)
SHARES = ("hit", *(name for name, column in OTHER_METRICS.items() if column.is_percent))
"""Metrics between 0 and 1."""
UNUSED = ("completion", "generation", "guidance", "length", "direction", "trained", "phrasing")
UNUSED += ("rivals", "tokens", "seconds")
"""Columns that no statistic is made of."""


@dataclass(frozen=True, kw_only=True)
class RecallSettings(SamplingSettings):
    """How texts are drawn, and what they are held against."""

    steps: tuple[int, ...] = option(
        (1, 2, 4, 8, 16, 32), "Denoising steps; causal models have none.", least=1, most=1_000_000
    )
    guidance: float = option(0.8, "Strength of guidance; causal models have none.", least=0)
    controls: bool = option(True, "Hold the texts against shuffled answers, too.")
    dtype: str = option(
        "auto", "float32, bfloat16, …; auto: bfloat16 on a GPU, else what suits file and processor."
    )
    dtype_on_gpu = "bfloat16"

    def _problems(self) -> Iterator[str]:
        if not self.steps:
            yield "'steps' is empty, expected at least one number of steps"


def list_jobs(inputs: ModelInputs, settings: RecallSettings) -> Iterator[Job]:
    """One part for each checkpoint, split and step count; a long split is cut into several."""
    from unmask.evaluation.recall import AskedModel

    settings.check_strategies()
    for family in inputs.families:
        family.paradigm.require_scored(family.name, "recall is measured")
    splits = inputs.data.splits
    prepared: dict[str, AskedModel] = {}
    """The checkpoint worked on last, with the scores of its answers."""

    def work(member: Member, split: "Split", steps: int | None) -> Mapping[str, Rows]:
        if member.key not in prepared:
            prepared.clear()
            prepared[member.key] = AskedModel(inputs.load(member), splits, settings.length)
        rows = prepared[member.key].measure(
            split, steps, settings.guidance, settings.plan, settings.order
        )
        return {"recall": [member.columns | row for row in rows]}

    pieces = [(f"{i:04d}" if i else "", part) for split in splits
              for i, part in enumerate(split.cut())]  # fmt: skip
    for member in inputs.members():
        # A causal model writes a token a step and is measured once.
        counts = sorted(set(settings.steps)) if member.family.paradigm.has_steps else [None]
        for number, part in pieces:
            for steps in counts:
                key = f"{member.key}-{part.name}-{steps or 'any'}"
                yield Job(f"{key}-{number}" if number else key, partial(work, member, part, steps))


def summarise(tables: Tables, settings: RecallSettings) -> Summary:
    """Means of all metrics; differences between models, to the controls, and between steps."""
    from unmask.evaluation.metrics import bleu_signature

    groups = Groups(tables["recall"])
    by = ("model", "kind", "split", "steps")
    cells = [estimate_means(rows, by, METRICS, SHARES) for rows in groups.values()]
    summary: dict[str, Rows] = {
        "cells": [cell for group in cells for cell in group],
        "pairs": list(_compare_models(groups)),
        "controls": list(_subtract_controls(groups)),
        "gains": list(_compare_steps(groups)),
        "example": _choose_example(groups),
        "method": [{"bleu": bleu_signature()}],
    }
    left_out = tables.get("left_out")
    return summary if left_out is None else summary | {"left_out": left_out.to_pylist()}


class Groups(Mapping[tuple[str, str, int | None], Rows]):
    """Rows by model, split and steps, made when they are looked at: all at once would fill memory.

    They have `beats_control`: whether the true answer is likelier than the shuffled one.
    """

    def __init__(self, table: "pyarrow.Table"):
        self.table, self.places = table, find_groups(table, "model", "split", "steps")
        self.kinds = {key[0]: table["kind"][at[0]].as_py() for key, at in self.places.items()}

    def __getitem__(self, key: tuple[str, str, int | None]) -> Rows:
        rows = list_rows(self.table.take(self.places[key]), *UNUSED)
        controls = {}
        if at := self.places.get((key[0], key[1] + CONTROL, key[2])):
            columns = (self.table[name].take(at).to_pylist() for name in ("seed", "prompt", "logp"))
            controls = {(seed, prompt): logp for seed, prompt, logp in zip(*columns, strict=True)}
        for row in rows:
            logp = controls.get((row["seed"], row["prompt"]))
            row["beats_control"] = None if logp is None else row["logp"] > logp
        return rows

    def __iter__(self) -> Iterator[tuple[str, str, int | None]]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


def _compare_models(groups: Groups) -> Iterator[dict[str, Any]]:
    """How much more often one model hits than another, at the step counts that both have.

    A causal model is the same at every step count. Diffusion models come first.
    """
    kinds = groups.kinds
    splits = dict.fromkeys(split for _, split, _ in groups if is_asked(split))
    models = sorted(kinds, key=lambda model: is_causal(kinds[model]))
    counts = sorted({steps for _, _, steps in groups if steps is not None})
    for one, other in combinations(models, 2):
        has_steps = not (is_causal(kinds[one]) and is_causal(kinds[other]))
        for split in splits:
            for steps in counts if has_steps else [None]:
                ours, theirs = (
                    groups.get((model, split, None if is_causal(kinds[model]) else steps))
                    for model in (one, other)
                )
                if ours and theirs:
                    named = {"one": one, "other": other, "split": split, "steps": steps}
                    yield named | subtract_shares(ours, theirs, "hit")


def _subtract_controls(groups: Groups) -> Iterator[dict[str, Any]]:
    """How much more often the texts hold the true answers than the shuffled ones."""
    for (model, split, steps), rows in groups.items():
        if controls := groups.get((model, split + CONTROL, steps)):
            kept = [row for row in rows if row["beats_control"] is not None]
            named = {"model": model, "split": split, "steps": steps}
            yield named | subtract_shares(kept, controls, "hit")


def _compare_steps(groups: Groups) -> Iterator[dict[str, Any]]:
    """How much more often a model hits with the most steps than with the fewest."""
    for model, split in dict.fromkeys(key[:2] for key in groups if is_asked(key[1])):
        steps = [key[2] or 0 for key in groups if key[:2] == (model, split)]
        few, many = min(steps), max(steps)
        if few < many:
            sides = (groups[model, split, at] for at in (many, few))
            named = {"model": model, "split": split, "few": few, "many": many}
            yield named | subtract_shares(*sides, "hit")


def _choose_example(groups: Groups) -> Rows:
    """What each model wrote after one prompt, one that diffusion recalls where there is one."""
    split = order_splits([split for _, split, _ in groups if is_asked(split)])[0]
    first_seed = min(groups.table["seed"].to_pylist())
    steps: dict[str, int | None] = {}
    for model, each, count in groups:
        if each == split and (steps.get(model) or 0) <= (count or 0):
            steps[model] = count
    scores: dict[str, int] = {}
    places: dict[str, list[int]] = {}
    columns = ("model", "kind", "split", "steps", "prompt", "completion", "generation", "hit")
    for model, count in steps.items():
        at = groups.places[model, split, count]
        needed = groups.table.select(["seed", "prompt", "hit"]).take(at).to_pylist()
        for place, row in zip(at, needed, strict=True):
            if row["seed"] == first_seed:
                won = -row["hit"] if is_causal(groups.kinds[model]) else row["hit"]
                scores[row["prompt"]] = scores.get(row["prompt"], 0) + won
                places.setdefault(row["prompt"], []).append(place)
    prompt = max(scores, key=lambda each: scores[each])
    return groups.table.select(list(columns)).take(places[prompt]).to_pylist()


def judge(summary: Summary, settings: RecallSettings) -> Iterable[Verdict]:
    """Whether models recall anything, one more than another, more with more steps.

    At the most steps: chosen beforehand, not by the result.
    """
    cells = [row for row in select(summary["cells"], metric="hit") if is_asked(row["split"])]
    claims: list[tuple[str, Mapping[str, Any]]] = []
    for cell in keep_last(cells, "model", "split"):
        where = {name: cell[name] for name in ("model", "split", "steps")}
        row = next(iter(select(summary["controls"], **where)), cell)
        claims.append((f"{cell['model']}: {cell['split']}", row))
    for row in keep_last(summary["pairs"], "one", "other", "split"):
        claims.append((f"{row['one']} − {row['other']}: {row['split']}", row))
    claims += [(f"{row['model']}: {row['split']}, more steps", row) for row in summary["gains"]]
    for claim, row in claims:
        yield judge_interval(claim, to_interval(row), row["facts"])


def pool(results: Sequence[Result]) -> Tables:
    """The prompts and the step counts that all runs share, and a table of what was left out."""
    import pyarrow

    from unmask.measures.runner import pool_tables

    table = pool_tables(results)["recall"]
    prompts, counts = [], []
    for result in results:
        columns = (result.tables["recall"][name].to_pylist() for name in ("split", "prompt"))
        prompts.append({key for key in zip(*columns, strict=True) if is_asked(key[0])})
        counts.append(set(result.tables["recall"]["steps"].to_pylist()) - {None})
    shared = set.intersection(*prompts)
    numbered = [each for each in counts if each]  # a run of causal models alone has no steps
    steps = set.intersection(*numbered) if numbered else set()
    names = " and ".join(name_folders([result.folder for result in results]))
    if not shared:
        raise UserError(
            f"{names} share no prompt: expected runs over the same data; draw them one by one."
        )
    if numbered and not steps:
        lists = " against ".join(_list_steps(each) for each in numbered)
        raise UserError(
            f"{names} share no step count ({lists}): measure one of them anew with steps of the "
            "other, or draw them one by one."
        )
    columns = (table[name].to_pylist() for name in ("split", "prompt", "steps"))
    keep = [
        (split.removesuffix(CONTROL), prompt) in shared and (at is None or at in steps)
        for split, prompt, at in zip(*columns, strict=True)
    ]
    every, every_count = set.union(*prompts), set().union(*counts)
    pooled = {"recall": table.filter(pyarrow.array(keep))}
    if (every, every_count) == (shared, steps):
        return pooled
    left_out = {
        "steps": _list_steps(every_count - steps),
        "prompts": len(every - shared),
        "shared": len(shared),
    }
    return pooled | {"left_out": pyarrow.Table.from_pylist([left_out])}


def _list_steps(steps: set[int]) -> str:
    return ", ".join(map(str, sorted(steps)))


MEASURE = Measure(
    name="recall",
    title="What is recalled",
    help="Recall of facts, asked as trained and reversed, against the number of denoising steps.",
    settings=RecallSettings,
    tables={"recall": "recall/1"},
    inputs=QUESTIONS,
    jobs=list_jobs,
    summarise=summarise,
    judge=judge,
    describe=describe_recall,
    method=__doc__,
    pool=pool,
    stages=[
        Stage(
            sizes={
                "quick": {"limit": 3, "steps": (1, 4)},
                "laptop": {"limit": 14, "steps": (1, 2, 4, 8, 16)},
                "full": {"limit": None, "steps": (1, 2, 4, 8, 16, 32)},
            }
        )
    ],
)
