"""interchange: with another person's subject state patched in, taken from a prompt of the other
direction, does the model give that person's answer?

Two people are paired: the recipient, whose prompt is run, and the donor. After one layer, the
states of the recipient's subject are replaced by those of the donor's (interchange intervention,
`unmask.representation.interchange`). Success is the donor's answer, each of its tokens the
likeliest one, so that greedy decoding writes it. Across: the donor's state comes from a prompt of
the other direction, with a description where the recipient's prompt has a name. Within: from a
prompt of the same direction, in another phrasing; the ceiling. Own: the recipient's own state from
another phrasing; the floor. Untrained: as across, with people that training never named
(`strangers`): how often an answer is copied from the words of the donor's prompt. Where they were
asked, success across directions is clear only if it is clearly above theirs, too.

Either the last subject token's state is replaced, and the rest of the subject by its mean over
recipients, or the states of all subject tokens, aligned at their ends. The layer is chosen on one
half of the people, where the donor's answer is likeliest, and results are read on the other half;
own and untrained are read at the layers chosen for across. Layer -1 is the residual stream before
layer 0: there words take the place of words, so that it is drawn but not chosen. Shares have 95 %
intervals by fact and training seed; differences are paired by fact. Where the ceiling is low, a
failure across directions says nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from unmask.base.config import option
from unmask.base.errors import UserError
from unmask.blocks import labels, tidy
from unmask.blocks.blocks import Notice, ReportBlock
from unmask.measures.inputs import ALL_TESTS, Member, ModelInputs, read_all_tests
from unmask.measures.measure import Job, Measure, Rows
from unmask.measures.result import Result
from unmask.measures.settings import StateSettings
from unmask.results.comparison import ASKED, KIND, MODEL, Comparison, Factor, Quantity
from unmask.results.effects import EffectLayout, GroupEffects, list_effects
from unmask.results.summaries import Summary, Tables

if TYPE_CHECKING:
    from unmask.data.facts import Fact
    from unmask.representation.interchange import StateSwap


@dataclass(frozen=True, kw_only=True)
class InterchangeSettings(StateSettings):
    """Which facts are asked, and what replaces the states of their subjects."""

    splits: tuple[str, ...] = option((), "Splits of the recipients; all tests by default.")
    facts: int = option(30, "Recipients of each split.", least=2)
    phrasings: int = option(2, "Phrasings of each recipient.", least=1)
    tokens: tuple[str, ...] = option(
        ("last", "all"),
        "Which subject states are replaced by the donor's: the last token's (the rest by its mean "
        "over recipients), or all.",
        choices=lambda: tuple(TOKENS),
    )
    layers: tuple[int, ...] = option(
        (),
        "Layers after which states are replaced, one at a time, -1 for the embeddings; all by "
        "default.",
        least=-1,
    )
    strangers: str | None = option(
        None,
        "A corpus or file of facts, phrased alike, of people that training never named: a control; "
        "without it there is none.",
    )
    seed: int = option(0, "Seed by which recipients and donors are paired.", least=0)

    def _problems(self) -> Iterator[str]:
        if not self.tokens or len(set(self.tokens)) < len(self.tokens):
            yield f"'tokens' is {self.tokens}, expected last, all or both"


def _read(data: Any, settings: InterchangeSettings, families: Any) -> tuple[Any, str, str]:
    """The questions; the strangers are part of what is asked."""
    from unmask.base.identity import digest_values
    from unmask.data.sources import read_asked

    questions, source, digest = read_all_tests(data, settings, families)
    if settings.strangers is not None:
        digest = digest_values([digest, *read_asked(settings.strangers).splits.items()])
    return questions, source, digest


def list_jobs(inputs: ModelInputs, settings: InterchangeSettings) -> Iterator[Job]:
    """One part for each checkpoint, split and choice of tokens."""
    swaps = {split.name: pair_swaps(inputs, split.name, settings) for split in inputs.data.splits}

    def work(member: Member, split: str, tokens: Any) -> Mapping[str, Rows]:
        from unmask.representation.interchange import interchange

        layers = settings.layers or None
        rows = interchange(
            inputs.load(member), swaps[split], layers, tokens, "mean", settings.length
        )
        first = swaps[split][0].recipient
        keys = member.columns | {"split": split, "direction": first.direction}
        keys |= {"trained": first.trained, "tokens": tokens}
        return {"interchange": [keys | {"fact": row["recipient"]} | row for row in rows]}

    for member in inputs.members():
        for split in swaps:
            for tokens in settings.tokens:
                yield Job(f"{member.key}-{split}-{tokens}", partial(work, member, split, tokens))


def pair_swaps(inputs: ModelInputs, split: str, settings: InterchangeSettings) -> "list[StateSwap]":
    """Every recipient of a split with its donors of each source."""
    from unmask.representation.interchange import make_swaps
    from unmask.tracing.facts import choose_facts

    corpus = inputs.data.corpus
    same = corpus[split]
    recipients = choose_facts(same, settings.facts, settings.phrasings)
    donors = {"across": _list_others(corpus.splits, same), "within": same}
    swaps = [
        swap
        for source, prompts in donors.items()
        for swap in make_swaps(source, recipients, prompts, same, seed=settings.seed)
    ]
    swaps += make_swaps("own", recipients, same, same, own=True, seed=settings.seed)
    if settings.strangers is not None:
        swaps += _pair_strangers(recipients, same, corpus.source, settings)
    halves = {swap.half for swap in swaps if swap.source == "across"}
    if len(halves) < 2:
        raise UserError(
            f"{split} has no two people with donors of the other direction, and a layer is chosen "
            "on one half of the people and read on the other: ask more facts, both ways."
        )
    return swaps


def _pair_strangers(
    recipients: "Sequence[Fact]", same: "Sequence[Fact]", source: str, settings: InterchangeSettings
) -> "list[StateSwap]":
    """The recipients with donors that training never named, as far as these are phrased alike."""
    from unmask.data.sources import read_asked
    from unmask.representation.interchange import make_swaps

    splits = read_asked(str(settings.strangers)).splits
    every = [fact for name in _name_tests(splits) for fact in splits[name]]
    answers = [fact for fact in every if fact.direction == same[0].direction]
    prompts = _list_others(splits, same)
    known = {text for fact in same for text in (fact.subject, fact.object)}
    if met := sorted({fact.subject for fact in prompts} & known):
        raise UserError(
            f"{settings.strangers} has {met[0]!r}, which {source} has, too: expected people that "
            "training never named; make a corpus with another seed."
        )
    swaps = make_swaps("untrained", recipients, prompts, answers, seed=settings.seed)
    if not swaps:
        raise UserError(
            f"{settings.strangers} asks nobody in the phrasings of {source}, by their numbers: "
            "expected such people; `unmask data make strangers` makes them for Berglund's files."
        )
    return swaps


def _name_tests(splits: Mapping[str, Any]) -> list[str]:
    """Splits with true answers in test phrasings, one set of phrasings for each direction."""
    from unmask.data.sources import OWN
    from unmask.representation.extraction import GROUPS

    return [name for name in (*sum(GROUPS.values(), ()), OWN) if name in splits]


def _list_others(splits: "Mapping[str, list[Fact]]", same: "Sequence[Fact]") -> "list[Fact]":
    """Test prompts of the other direction."""
    way = same[0].direction
    return [fact for name in _name_tests(splits) for fact in splits[name] if fact.direction != way]


SWAPS = {
    "none": "no state replaced",
    "across": "donor, other direction",
    "within": "donor, same direction (ceiling)",
    "own": "own state, other phrasing (floor)",
    "untrained": "untrained donor, other direction",
}
TOKENS = {"last": "last subject token, the rest by its mean", "all": "all subject tokens"}
LOW = 0.5
"""A ceiling that is clearly below is low."""
COMPARISON = Comparison(
    metrics={
        "says_donor": Quantity("gives the donor's answer", "%"),
        "says_recipient": Quantity("gives its own answer", "%"),
        "prefers_donor": Quantity("donor's answer is likelier", "%"),
        "logp_donor": Quantity("log p of the donor's answer", "nats"),
        "logp_recipient": Quantity("log p of its own answer", "nats"),
    },
    groups=(MODEL, KIND, ASKED, Factor("tokens", "states", TOKENS)),
    variant=Factor("swap", "replaced by", SWAPS),
    against=[("across", control) for control in ("own", "untrained", "within")],
    compared=("says_donor",),
    paired_by=("fact", "phrasing"),
    title="How often the donor's answer is given",
    caption="Share of recipients that give the donor's answer, or find it likelier than their own, "
    "by the layer after which the donor's state replaces theirs (-1: embeddings). Bands are 95 % "
    "intervals by fact.",
    means="Whose answer is given, each half of the people at the layer chosen on the other half",
    differences="Share of donor's answers: donors of the other direction minus each control",
)


def summarise(tables: Tables, settings: InterchangeSettings) -> Summary:
    """Scores at cross-fitted layers, what across has over its controls, and curves over layers."""
    rows = [
        row | {"prefers_donor": row["logp_donor"] > row["logp_recipient"]}
        for row in tables["interchange"].to_pylist()
    ]
    names = [factor.column for factor in COMPARISON.groups]
    layout = EffectLayout(
        group=names, prompt=("recipient", "phrasing", "seed"), cell=("swap", "layer")
    )
    table = tables["interchange"]
    swapped = table.filter(table["layer"].is_valid())
    panels = list_effects(swapped, layout, "logp_donor").panels()
    chosen = [
        row
        for group, same in tidy.group_by(rows, *names).items()
        for row in _choose_rows(same, panels[group])
    ]
    curves = COMPARISON.average([row for row in rows if row["layer"] is not None], "layer")
    return {
        "means": COMPARISON.average(chosen, "first_layer", "second_layer"),
        "differences": COMPARISON.subtract(chosen),
        "curves": [row for row in curves if row["metric"] in ("says_donor", "prefers_donor")],
    }


def _choose_rows(rows: Rows, panel: GroupEffects) -> Iterator[dict[str, Any]]:
    """A group's rows without a swap, and those of each half of the people at the layer that is
    best for the other half; controls take the layers of across."""
    halves = {row["recipient"]: row["half"] for row in rows}
    layers = {}
    for swap in ("across", "within"):
        # Of layers that are equally good the lowest; embeddings only where they are alone.
        cells = sorted(cell for cell in panel.cells if cell[0] == swap)
        inner = [cell for cell in cells if cell[1] >= 0] or cells
        if chosen := panel.choose_cells(inner, halves=halves):
            layers[swap] = {halves[fact]: cell[1] for fact, (cell,) in chosen.items()}
    for row in rows:
        if row["layer"] is None and row["swap"] == "across":
            yield {**row, "swap": "none", "first_layer": None, "second_layer": None}
    for row in rows:
        best = layers.get(row["swap"], layers["across"])
        if row["layer"] == best[row["half"]]:
            yield {**row, "first_layer": best[0], "second_layer": best[1]}


def describe(result: Result) -> Sequence[ReportBlock]:
    """A sentence for each model and way of asking, curves over layers, and the tables."""
    summary = result.summary
    layers = {"layers": lambda row: "" if row["first_layer"] is None
              else f"{row['first_layer']} and {row['second_layer']}"}  # fmt: skip
    return [
        *COMPARISON.state(summary),
        *_warn(summary),
        COMPARISON.draw(summary["curves"], Factor("layer", "layer"), ylabel="% of recipients"),
        COMPARISON.tabulate(summary["means"], **layers),
        COMPARISON.tabulate_differences(summary["differences"]),
    ]


def _warn(summary: Summary) -> Iterator[ReportBlock]:
    """Where success across directions can show nothing."""
    ceilings = tidy.select(summary["means"], swap="within", metric="says_donor")
    for model, rows in tidy.group_by(ceilings, "model").items():
        if low := [row for row in rows if row["high"] < LOW]:
            ways = list(dict.fromkeys(tidy.name_asked(row) for row in low))
            yield Notice(
                f"In {model} the ceiling is low in {len(low)} of "
                f"{labels.count(len(rows), 'group')} ({'; '.join(ways)}), so that a failure there "
                "says nothing."
            )


MEASURE = Measure(
    name="interchange",
    title="Subject states replaced by another person's",
    help="Replace a subject's state by another person's and see whose answer the model gives.",
    settings=InterchangeSettings,
    tables={"interchange": "interchange/1"},
    inputs=replace(ALL_TESTS, read_data=_read),
    jobs=list_jobs,
    summarise=summarise,
    describe=describe,
    method=__doc__,
)
