"""lens: what a state says of the token that is committed now or later, by layer and share of masks.

Prompts of facts are continued, greedily, in so many steps. At every step, each position that is
still masked has a stream after every layer; it is read through the head, and what it says held
against the token that is written there in the end. Four lenses read it. Logit lens: the stream as
it stands, as if the layer were the last. Tuned lens: mapped linearly to the last layer's stream at
the same step. Later-step lens: mapped to the last layer's stream at the step that commits the
position. Shuffled lens, the control: mapped to that stream of other positions, drawn at random; it
knows how often each token is written, and no more.

Maps are least squares with a ridge penalty, in closed form, for each layer and band of mask shares.
They are fitted on one half and judged on the other, in both halves' turn: once halves of the
prompts, which share facts in other words or directions, and once halves of the facts. Gap closed:
of what lies between the logit lens's agreement and certainty (always the token that is written),
the share that a lens wins. The last layer's logit lens is the network itself at that step.
Intervals are 95 % intervals by fact.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from unmask.base.config import option
from unmask.base.errors import UserError
from unmask.blocks import tidy
from unmask.blocks.blocks import ReportBlock
from unmask.evaluation.statistics import Clusters, estimate_mean
from unmask.measures.inputs import QUESTIONS, Member, ModelInputs
from unmask.measures.measure import Job, Measure, Rows, Summary, Tables
from unmask.measures.result import Result
from unmask.measures.settings import QuestionSettings
from unmask.results.comparison import KIND, MODEL, Comparison, Factor, Quantity
from unmask.results.summaries import add_outcome, cluster_rows, keep_shared

if TYPE_CHECKING:
    from unmask.net.model import Model


@dataclass(frozen=True, kw_only=True)
class LensSettings(QuestionSettings):
    """Which prompts are continued, and how lenses are fitted."""

    dtype: str = option("float32", "float32, bfloat16, …")
    limit: int | None = option(60, "Prompts of each split.", least=2)
    steps: int = option(8, "Denoising steps.", least=1)
    bands: int = option(3, "Bands of mask shares, each with maps of its own.", least=1, most=100)
    ridge: float = option(
        0.01, "The penalty on maps, in mean variances of a layer's stream.", above=0.0
    )
    seed: int = option(0, "Seed of the control and of what is drawn.", least=0)


LENSES = {
    "logit": "logit lens",
    "tuned": "tuned lens",
    "later": "later-step lens",
    "shuffled": "shuffled lens",
}
APART = {"prompts": "the same facts, other prompts", "facts": "other facts"}
FITTED = Factor("apart", "fitted on", APART, is_told=True)
SAID = {
    "said": Quantity("agrees with what is written", "%"),
    "logp": Quantity("log p of it", "nats", has_sign=True),
}
BY = ("model", "kind", "apart", "layer")
AGAINST = [("later", "logit"), ("later", "tuned"), ("later", "shuffled"), ("tuned", "logit")]
BY_LAYER = Comparison(
    metrics=SAID,
    groups=(MODEL, KIND, FITTED, Factor("masks", "share of masks")),
    variant=Factor("lens", "lens", LENSES),
    against=AGAINST,
    axis=Factor("layer", "after layer"),
    title="Agreement of lenses with the token that is written in the end",
    caption="At positions that are masked, by layer. Bands are 95 % intervals by fact.",
    names=("layers", "differences"),
    means="What each layer says of masked positions",
    differences="One lens minus another",
    controls=("shuffled",),
    most=60,
)
AHEAD = Comparison(
    metrics=SAID,
    groups=(MODEL, KIND, FITTED),
    variant=Factor("lens", "lens", LENSES),
    against=AGAINST[:2],
    axis=Factor("ahead", "steps until it is committed"),
    title="Agreement at half depth, by how soon the position is committed",
    names=("ahead", "ahead_differences"),
    means="What the middle layer says of positions that are committed so many steps later",
    differences="At the middle layer, one lens minus another",
    controls=("shuffled",),
    most=40,
)

CLOSED = Comparison(
    metrics={
        "closed": Quantity("gap closed between the logit lens and certainty", "%", has_sign=True)
    },
    groups=(MODEL, KIND, FITTED),
    variant=Factor("lens", "lens", LENSES),
    chance={"closed": 0.0},
    axis=Factor("layer", "after layer"),
    title="The gap between the logit lens and certainty that other lenses close",
    caption="Over all masked positions, by layer. Bands are 95 % intervals by fact.",
    names=("closed", ""),
    means="Gap closed by each lens",
    controls=("shuffled",),
    most=60,
)


def list_jobs(inputs: ModelInputs, settings: LensSettings) -> Iterator[Job]:
    """One part for each checkpoint and way to cut halves."""
    for family in inputs.families:
        if family.paradigm.sampler != "unmasking":
            raise UserError(
                f"{family.name} is a {family.kind} model: lenses of later steps read positions "
                "that are masked; leave it out."
            )
    for member in inputs.members():
        for apart in APART:
            yield Job(f"{member.key}-{apart}", partial(_ask, inputs, member, apart, settings))


def _ask(
    inputs: ModelInputs, member: Member, apart: str, settings: LensSettings
) -> Mapping[str, Rows]:
    """The rows of both tables of one checkpoint: each half by the other's maps."""
    from unmask.base.seeds import python_stream
    from unmask.representation import lens_maps

    model, rows = inputs.load(member), {"lens": [], "ahead": []}
    encoded = list(inputs.data.encode(model, settings.length))
    owners = [number if apart == "prompts" else x[0]["fact"] for number, x in enumerate(encoded)]
    shuffled = list(dict.fromkeys(owners))
    python_stream(settings.seed, "halves").shuffle(shuffled)
    side = {owner: number % 2 for number, owner in enumerate(shuffled)}
    halves = [[x for x, owner in zip(encoded, owners, strict=True) if side[owner] == half]
              for half in (0, 1)]  # fmt: skip
    if not all(halves):
        raise UserError(
            f"only one of the {apart} was given: expected two, to fit lenses on one half."
        )
    states = [_read(model, half, settings) for half in halves]
    middle = (model.net.config.layers - 1) // 2
    for fitted, judged in ((0, 1), (1, 0)):
        own = states[judged]
        maps = lens_maps.fit_maps(states[fitted], settings.bands, settings.ridge, settings.seed)
        bands = lens_maps.find_bands(own.share, settings.bands)
        for lens, layer, logp, hits in lens_maps.read_lenses(model, own, maps, settings.bands):
            tables = {"lens": bands} | ({"ahead": own.ahead} if layer == middle else {})
            for table, group in tables.items():
                for row in lens_maps.average_texts(own, group, logp, hits):
                    columns = member.columns | {"apart": apart} | halves[judged][row.pop("text")][0]
                    name = "band" if table == "lens" else "ahead"
                    about = {"lens": lens, "layer": layer, name: row.pop("group")}
                    rows[table].append(columns | about | row)
    return rows


def _read(model: "Model", encoded: Sequence[Any], settings: LensSettings) -> Any:
    """All masked positions of the texts that continue some prompts."""
    from dataclasses import replace

    from unmask.net.batches import count_row_bytes, fit_rows, map_batches
    from unmask.representation.lens_maps import join_masked, read_masked
    from unmask.sampling.texts import sample

    canvas = encoded[0][-1]

    def read(batch: Sequence[int]) -> list[Any]:
        prompts = [encoded[i][2][: encoded[i][3]] for i in batch]
        drawn = sample(
            model, prompts, steps=settings.steps, length=canvas, seed=settings.seed,
            keep_states=True,
        )  # fmt: skip
        states = read_masked(model, drawn)
        return [replace(states, text=states.text + batch[0])]

    most = fit_rows(model, count_row_bytes(model, canvas, canvas) * 2)
    batches = map_batches(range(len(encoded)), most, read)
    return join_masked([part for _, parts in batches for part in parts])


def summarise(tables: Tables, settings: LensSettings) -> Summary:
    """Agreement by layer and band, by steps ahead, and the share of the gap that is closed."""
    rows = [dict(row) | {"masks": _name_band(row["band"], settings.bands)}
            for row in tables["lens"].to_pylist()]  # fmt: skip
    closed = list(_close_gaps(tables["lens"].to_pylist()))
    ahead = AHEAD.summarise(tables["ahead"].to_pylist())
    return BY_LAYER.summarise(rows) | ahead | {"closed": closed}


def _name_band(band: int, number: int) -> str:
    return f"{100 * band / number:.0f} to {100 * (band + 1) / number:.0f} %"


def _close_gaps(rows: Rows) -> Iterator[dict[str, Any]]:
    """For each model, layer and fitted lens, the share of the gap to certainty that it closes.

    A ratio of sums over all masked positions, with its interval by fact.
    """
    for where, own in tidy.group_by(rows, *BY).items():
        about = dict(zip(BY, where, strict=True))
        sides = tidy.group_by(own, "lens")
        keys = ("seed", "split", "fact", "phrasing", "direction", "band")
        plain = {tuple(row[x] for x in keys): row["said"] for row in sides["logit"]}
        for lens in ("tuned", "later", "shuffled"):
            weighed = []
            for row in sides.get(lens, ()):
                logit, count = plain[tuple(row[x] for x in keys)], row["positions"]
                gains = {"gain": count * (row["said"] - logit), "gap": count * (1 - logit)}
                weighed.append(dict(row) | gains)
            shared = keep_shared(weighed)
            if not shared:
                continue
            above, below = (cluster_rows(shared, name).sums for name in ("gain", "gap"))
            if below.sum() > 0:
                value = vars(estimate_mean(Clusters(above, below)))
                row = about | {"lens": lens, "metric": "closed", "facts": above.shape[1]} | value
                yield add_outcome(row)


def describe(result: Result) -> Sequence[ReportBlock]:
    """The gap that is closed at half depth, agreement by layer and by steps ahead."""
    summary = result.summary
    layers = sorted(tidy.distinct(summary["layers"], "layer"))
    middle = layers[(len(layers) - 1) // 2]
    tables = ("closed", "layers", "differences")
    half = {name: tidy.select(summary[name], layer=middle) for name in tables}
    return [
        *CLOSED.state(half),
        *BY_LAYER.state(half),
        CLOSED.draw([row for row in summary["closed"] if row["lens"] != "shuffled"]),
        CLOSED.tabulate(summary["closed"]),
        BY_LAYER.draw(summary["layers"]),
        AHEAD.draw(summary["ahead"]),
        BY_LAYER.tabulate(summary["layers"]),
        BY_LAYER.tabulate_differences(summary["differences"]),
        AHEAD.tabulate(summary["ahead"]),
        AHEAD.tabulate_differences(summary["ahead_differences"]),
    ]


MEASURE = Measure(
    name="lens",
    title="What a state says of what is committed later",
    help="What masked positions say of the token written in the end, by layer: logit, tuned and "
    "later-step lens.",
    settings=LensSettings,
    tables={"lens": "lens/1", "ahead": "lens-ahead/1"},
    inputs=QUESTIONS,
    jobs=list_jobs,
    summarise=summarise,
    describe=describe,
    method=__doc__,
)
