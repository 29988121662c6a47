"""relearn: facts get each other's names in one direction; does the other direction follow?

Some facts of each group exchange their names in a ring, so that none keeps its own. A copy of the
model is trained with loss on names alone, descriptions given, until it answers held-out phrasings
of description → name with the new names. Then names are given and descriptions asked for: does it
say the description of the new owner (follows), of the old one (stays), or neither? The same is
done the other way round, with loss on descriptions alone and names asked for. Teaching both
directions is the ceiling; as many other facts, which were not taught, show what the same steps
disturb (drift). Facts of a third set are rehearsed with their old answers, lest all move. With
--edit-layer the exchange is also written into one layer's weights, by a rank-one update for each
fact.

A run is void where fewer than --enough of the taught questions get the new answer, or where other
facts fall below --kept of what they were in either direction. Shares of a verdict are of questions
that were answered before. One memory that is read both ways predicts that more than half follow;
one for each direction that more than 90 % stay. Where more than half say neither, that direction
was lost: beside little drift what was changed is used by it, but does not carry the answer. Else
the share moved says how far the log-odds of the new answer against the old one went, beside
teaching both, each minus the mean of other facts. Intervals are 95 % intervals by fact and training
seed.

What follows shows that what was changed is shared. What stays does not show two memories: an entry
that both directions read can be reached by weights of each, and training may change those.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from unmask.base.config import option
from unmask.base.errors import UserError
from unmask.experiments.relearn.section import describe, summarise
from unmask.measures.inputs import ALL_TESTS, ModelInputs
from unmask.measures.measure import Job, Measure, Rows
from unmask.measures.settings import GroupSettings

if TYPE_CHECKING:
    from unmask.experiments.relearn.asking import QuestionKey, SwapQuestions
    from unmask.net.model import Model

TAUGHT = {"names": ("d2p",), "descriptions": ("p2d",), "both": ("d2p", "p2d")}
"""What bears loss, and the directions that are taught."""
EDITED = "edited names"


@dataclass(frozen=True, kw_only=True)
class RelearnSettings(GroupSettings):
    """Which facts exchange names, and how they are taught."""

    filled = ("groups", "rates")

    groups: tuple[str, ...] = option(
        ("p2d", "d2p"),
        "Facts by the direction they were trained in; groups that the corpus lacks are left out.",
        choices=lambda: ("p2d", "d2p", "both"),
    )
    facts: int = option(10, "Facts of each group that are taught, beside as many others.", least=2)
    rehearsed: int = option(
        10, "Further facts of each group that are taught along with their old answers.", least=0
    )
    phrasings: int = option(2, "Held-out phrasings of each fact that are asked.", least=1)
    updates: int = option(200, "Training steps at most.", least=1)
    every: int = option(10, "Training steps between two checks of what is learned.", least=1)
    rates: tuple[float, ...] = option(
        (3e-5, 1e-4, 3e-4),
        "Learning rates after ten steps of warm-up, each tried where the last taught too little.",
        above=0,
    )
    rows: int = option(32, "Lines of a training step.", least=1)
    enough: float = option(
        0.9,
        "Share of taught questions with the new answer, at which teaching stops.",
        above=0,
        most=1,
    )
    kept: float = option(
        0.9, "Share of other facts' right answers that must be left.", least=0, most=1
    )
    steps: int = option(16, "Denoising steps of a masked model's answers.", least=1)
    order: str | Callable = option(
        "confidence",
        "Which tokens go first: confidence, entropy, margin, left or random.",
        plugin="order",
    )
    edit_layer: int | None = option(
        None, "Also write the exchange of names into this layer, by rank-one edits.", least=0
    )
    seed: int = option(
        0, "Seed by which facts are drawn and exchanged, and of the noise of training.", least=0
    )


def list_jobs(inputs: ModelInputs, settings: RelearnSettings) -> Iterator[Job]:
    """One part for each checkpoint and what it is taught."""
    from unmask.experiments.relearn.asking import SwapQuestions
    from unmask.experiments.relearn.swaps import swap_names

    for family in inputs.families:
        if not family.paradigm.fills_masks and family.paradigm.sampler != "causal":
            raise UserError(
                f"{family.name} is a {family.kind} model: only masked and causal models are taught."
            )
    corpus, own = inputs.data.corpus, settings
    teachings = [*TAUGHT, *([EDITED] if own.edit_layer is not None else [])]
    swaps = swap_names(corpus, own.groups, own.facts, own.rehearsed, own.phrasings, own.seed)
    asking = SwapQuestions(swaps, own.steps, own.order, own.length)
    splits = list(dict.fromkeys(swap.split for swap in swaps))

    @cache
    def ask_before(at: int) -> "dict[QuestionKey, dict[str, Any]]":
        return {key: row for key, _, row in asking.ask(inputs.load(members[at]), splits)}

    def work(at: int, taught: str) -> Mapping[str, Rows]:
        member, before = members[at], ask_before(at)
        rows, run = run_teaching(inputs.load(member), asking, settings, taught, before)
        columns = member.columns | {"taught": taught}
        return {"relearn": [columns | row for row in rows], "runs": [columns | run]}

    members = inputs.members()
    for at, member in enumerate(members):
        for taught in teachings:
            yield Job(f"{member.key}-{taught.replace(' ', '-')}", partial(work, at, taught))


def run_teaching(
    model: "Model",
    asking: "SwapQuestions",
    settings: RelearnSettings,
    taught: str,
    before: "Mapping[QuestionKey, Mapping[str, Any]]",
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A row for each question after training, and one for the training: steps, learned, kept."""
    from unmask.experiments.relearn.teaching import Teaching, teach

    ways = TAUGHT["names" if taught == EDITED else taught]
    swaps = [swap for swap in asking.swaps if swap.role != "other"]
    split_ways = {swap.split: swap.old.direction for swap in asking.swaps}
    splits = [split for split, way in split_ways.items() if way in ways]
    lines = [swap.new for swap in swaps if not swap.is_held and swap.split in splits]
    # Where facts have one phrasing it is taught and asked.
    lines = lines or [swap.new for swap in swaps if swap.split in splits]

    def ask(changed: "Model") -> list[dict[str, Any]]:
        return [
            _lay_out_row(key, swap, row, before[key], swap.old.direction in ways)
            for key, swap, row in asking.ask(changed, split_ways)
        ]

    if taught == EDITED:
        rows, learned = _edit(model, asking, settings, splits, ask)
        return rows, {"steps": 0, "rate": None, "learned": learned, **_count_kept(rows)}
    for rate in settings.rates:
        teaching = Teaching(
            settings.updates, settings.rows, rate, settings.every, settings.enough, settings.seed,
            settings.length,
        )  # fmt: skip
        done = teach(model, lines, teaching, lambda now: asking.count_learned(now, splits))
        if done.learned >= settings.enough:
            break
    rows = ask(done.model)
    run = {"steps": done.steps, "rate": rate, "learned": done.learned}
    return rows, run | _count_kept(rows)


def _edit(
    model: "Model", asking: "SwapQuestions", settings: RelearnSettings, splits: list[str], ask: Any
) -> tuple[list[dict[str, Any]], float]:
    """The rows under rank-one edits of all exchanged names, one for each fact, written together."""
    from unmask.editing.editor import edit

    swaps = {
        swap.old.fact_id: swap
        for swap in asking.swaps
        if swap.role == "taught" and swap.split in splits and not swap.is_held
    }
    facts, names = zip(*((swap.old, swap.new.object) for swap in swaps.values()), strict=True)
    written = edit(model, facts, names, settings.edit_layer)
    with written.on(model):
        return ask(model), asking.count_learned(model, splits)


def _lay_out_row(
    key: "QuestionKey", swap: Any, row: dict[str, Any], before: Mapping[str, Any], is_learned: bool
) -> dict[str, Any]:
    """A question's row, beside what it was."""
    return {
        "split": key[0],
        **swap.old.columns,
        "is_taught": swap.role == "taught",
        "is_learned": is_learned,
        **row,
        "old": swap.old.object,
        "new": swap.new.object,
        "was_known": before["stays"],
        "logp_new_before": before["logp_new"],
        "logp_old_before": before["logp_old"],
        "moved": row["margin"] - before["margin"],
    }


def _count_kept(rows: list[dict[str, Any]]) -> dict[str, float | None]:
    """By what was given, the share of other facts' right answers that are left; None of none."""
    kept: dict[str, float | None] = {}
    for way in ("d2p", "p2d"):
        own = [row for row in rows if not row["is_taught"] and row["direction"] == way]
        known = sum(row["was_known"] for row in own)
        kept[f"kept_{way}"] = sum(row["stays"] for row in own) / known if known else None
    return kept


MEASURE = Measure(
    name="relearn",
    title="One direction relearned, the other asked",
    help="Teach facts each other's names in one direction, and ask the other: does it follow?",
    settings=RelearnSettings,
    tables={"relearn": "relearn/1", "runs": "runs/1"},
    inputs=ALL_TESTS,
    jobs=list_jobs,
    summarise=summarise,
    describe=describe,
    method=__doc__,
)
