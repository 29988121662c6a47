"""interchange: with another person's subject state patched in, taken from a prompt of the other
direction, does the model give that person's answer?

After one layer, the states of the subject of the prompt that is run (the recipient) are replaced by
those of another person (the donor). Success is the donor's answer, as greedy decoding writes it.
Across: the donor's state comes from a prompt of the other direction, with a description where the
recipient's prompt has a name. Within: from a prompt of the same direction, in another phrasing;
where this ceiling is low, a failure across says nothing. Own: the recipient's own state from
another phrasing; the floor. Untrained: as across, with people that training never named
(`strangers`): how often an answer is copied from the words of the donor's prompt. Factless, where a
name is asked for: the name of a person whom training named as often and described anew in every
line. What it brings is a name, and no fact. Its log p without a swap must lie within 5 nats of
those of trained donors' names.

Either the last subject token's state is replaced, and the rest of the subject by its mean over
recipients, or the states of all subject tokens, aligned at their ends; or as many of them as the
recipient and every donor it is given have, with attention to the recipient's others cut in the
layers above. The layer is chosen on one
half of the people, where the donor's answer is likeliest, and results are read on the other half;
own and untrained are read at the layers chosen for across. With a lender, donors' states are those
of another reading of the network, causal or diffusion, at the same layer. Layer -1 is the residual
stream before layer 0: there words take the place of words, so that it is drawn but not chosen.
Shares have 95 % intervals by fact and training seed; differences are paired by fact.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from unmask.base.config import option
from unmask.base.errors import UserError
from unmask.blocks import tidy
from unmask.blocks.blocks import Notice, ReportBlock
from unmask.measures.inputs import ALL_TESTS, Member, ModelInputs, read_all_tests
from unmask.measures.measure import Job, Measure, Rows, Summary, Tables
from unmask.measures.result import Result
from unmask.measures.settings import StateSettings
from unmask.results.comparison import ASKED, KIND, MODEL, Comparison, Factor, Quantity
from unmask.results.effects import EffectLayout, GroupEffects, list_effects

if TYPE_CHECKING:
    from unmask.data.corpus import Corpus
    from unmask.data.facts import Fact
    from unmask.representation.interchange import StateSwap


@dataclass(frozen=True, kw_only=True)
class InterchangeSettings(StateSettings):
    """Which facts are asked, and what replaces the states of their subjects."""

    filled = distinct = ("tokens",)

    splits: tuple[str, ...] = option((), "Splits of the recipients; all tests by default.")
    facts: int = option(30, "Recipients of each split.", least=2)
    phrasings: int = option(2, "Phrasings of each recipient.", least=1)
    tokens: tuple[str, ...] = option(
        ("last", "all"),
        "Subject states that are replaced: the last token's (the rest by its mean), all, or as "
        "many as all donors have, others cut off.",
        choices=lambda: tuple(TOKENS),
    )
    layers: tuple[int, ...] = option(
        (), "Layers after which states are replaced (-1: embeddings); all by default.", least=-1
    )
    strangers: str | None = option(
        None, "A corpus or file of facts, phrased alike, of people that training never named."
    )
    factless: bool = option(
        False,
        "Also donors of whom nothing can be known, from a corpus of `unmask data make factless`.",
    )
    lender: str | None = option(
        None,
        "The reading of the model's network that donors' states come from, causal or diffusion; by "
        "default the one that is asked.",
        choices=lambda: ("causal", "diffusion"),
    )
    seed: int = option(0, "Seed by which recipients and donors are paired.", least=0)


def _read(data: Any, settings: InterchangeSettings, families: Any) -> tuple[Any, str, Any]:
    """The questions; the strangers are part of what is asked."""
    from unmask.data.sources import read_asked

    questions, source, contents = read_all_tests(data, settings, families)
    if settings.strangers is not None:
        contents += read_asked(settings.strangers).splits.items()
    return questions, source, contents


def list_jobs(inputs: ModelInputs, settings: InterchangeSettings) -> Iterator[Job]:
    """One part for each checkpoint, split and choice of tokens."""
    swaps = {split.name: pair_swaps(inputs, split.name, settings) for split in inputs.data.splits}

    def work(member: Member, split: str, tokens: Any) -> Mapping[str, Rows]:
        from unmask.representation.interchange import interchange

        own, first, layers = swaps[split], swaps[split][0].recipient, settings.layers or None
        model, lender = inputs.load(member), None
        if settings.lender is not None:
            lender = model.reading(settings.lender)
        rows = interchange(model, own, layers, tokens, "mean", settings.length, lender)
        keys = member.columns | {"split": split, "direction": first.direction}
        keys |= {"trained": first.trained, "tokens": tokens}
        return {"interchange": [keys | {"fact": row["recipient"]} | row for row in rows]}

    for member in inputs.members():
        for split in swaps:
            for tokens in settings.tokens:
                yield Job(f"{member.key}-{split}-{tokens}", partial(work, member, split, tokens))


def pair_swaps(inputs: ModelInputs, split: str, settings: InterchangeSettings) -> "list[StateSwap]":
    """Every recipient of a split with its donors of each source."""
    from unmask.data.sources import read_asked
    from unmask.representation.interchange import make_swaps
    from unmask.tracing.facts import choose_facts

    corpus, strangers, seed = inputs.data.corpus, settings.strangers, settings.seed
    same = corpus[split]
    recipients = choose_facts(same, settings.facts, settings.phrasings)
    swaps = make_swaps("across", recipients, _list_tests(corpus, same)[1], same, seed=seed)
    if len({swap.half for swap in swaps}) < 2:
        raise UserError(
            f"{split} has no two people with donors of the other direction, and a layer is chosen "
            "on one half of the people and read on the other: ask more facts, both ways."
        )
    swaps += make_swaps("within", recipients, same, same, seed=seed)
    swaps += make_swaps("own", recipients, same, same, own=True, seed=seed)
    if settings.factless and same[0].direction == "d2p":
        swaps += _lend_factless(corpus, recipients, seed)
    if strangers is None:
        return swaps
    answers, prompts = _list_tests(read_asked(strangers), same)
    known = {text for fact in same for text in (fact.subject, fact.object)}
    if met := sorted({fact.subject for fact in prompts} & known):
        raise UserError(
            f"{strangers} has {met[0]!r}, which {corpus.source} has, too: expected people that "
            "training never named; make a corpus with another seed."
        )
    untrained = make_swaps("untrained", recipients, prompts, answers, seed=seed)
    if not untrained:
        raise UserError(
            f"{strangers} asks nobody in the phrasings of {corpus.source}, by their numbers: "
            "expected such people; `unmask data make strangers` makes them for Berglund's files."
        )
    return swaps + untrained


def _lend_factless(corpus: "Corpus", recipients: "Sequence[Fact]", seed: int) -> "list[StateSwap]":
    """Each recipient with the name of a factless person."""
    from unmask.data.factless import FACTLESS
    from unmask.representation.interchange import make_swaps

    answers, prompts = (corpus.splits.get(FACTLESS[way], []) for way in ("d2p", "p2d"))
    if not prompts:
        raise UserError(
            f"{corpus.source} has no factless people: expected a corpus as `unmask data make "
            "factless` makes it, and a model that was trained on it."
        )
    return make_swaps("factless", recipients, prompts, answers, seed=seed)


def _list_tests(corpus: "Corpus", same: "Sequence[Fact]") -> "tuple[list[Fact], list[Fact]]":
    """Tests with true answers: those in the direction of some prompts, and those in the other."""
    from unmask.data.sources import OWN
    from unmask.representation.extraction import GROUPS

    names, way = (*sum(GROUPS.values(), ()), OWN), same[0].direction
    tests = [fact for name in names for fact in corpus.splits.get(name, [])]
    return [f for f in tests if f.direction == way], [f for f in tests if f.direction != way]


SWAPS = {
    "none": "no state replaced",
    "across": "donor, other direction",
    "within": "donor, same direction (ceiling)",
    "own": "own state, other phrasing (floor)",
    "untrained": "untrained donor, other direction",
    "factless": "donor without a fact, other direction",
}
TOKENS = {"last": "last subject token, the rest by its mean", "all": "all subject tokens",
          "cut": "as many subject tokens as all donors have, others cut off"}  # fmt: skip
LOW = 0.5  # a ceiling that is clearly below
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
    against=[("across", control) for control in ("own", "untrained", "factless", "within")],
    compared=("says_donor",),
    paired_by=("fact", "phrasing"),
    title="How often the donor's answer is given",
    caption="Share of recipients, by the layer after which the donor's state replaces theirs (-1: "
    "embeddings). Bands are 95 % intervals by fact.",
    means="Whose answer is given, each half of the people at the layer chosen on the other half",
    differences="Share of donor's answers: donors of the other direction minus each control",
)
GAINED = Comparison(
    metrics={"gained": Quantity("log p of the donor's answer, gained", "nats", has_sign=True)},
    groups=COMPARISON.groups,
    variant=COMPARISON.variant,
    against=[("across", control) for control in ("factless", "untrained", "own")],
    paired_by=("fact", "phrasing"),
    title="What the donor's state adds to its answer",
    names=("gains", "gain_differences"),
    differences="Nats gained by the donor's answer: donors of the other direction minus controls",
)
GATE = 5.0
"""Nats within which names of factless people must lie of trained donors' names, without a swap."""
SHOWN = ("says_donor", "prefers_donor")
CURVES = replace(COMPARISON, metrics={name: COMPARISON.metrics[name] for name in SHOWN})
GROUP = [factor.column for factor in COMPARISON.groups]
PROMPT = ("recipient", "phrasing", "seed")
LAYOUT = EffectLayout(group=GROUP, prompt=PROMPT, cell=("swap", "layer"))


def summarise(tables: Tables, settings: InterchangeSettings) -> Summary:
    """Scores at cross-fitted layers, what across has over its controls, and curves over layers."""
    rows = [
        row | {"prefers_donor": row["logp_donor"] > row["logp_recipient"]}
        for row in tables["interchange"].to_pylist()
    ]
    swapped = tables["interchange"].filter(tables["interchange"]["layer"].is_valid())
    panels = list_effects(swapped, LAYOUT, "logp_donor").panels()
    groups = tidy.group_by(rows, *LAYOUT.group)
    chosen = [row for group in groups for row in _choose_rows(groups[group], panels[group])]
    more = {}
    if settings.factless:
        more = {**GAINED.summarise(_list_gains(rows, chosen)), "gate": _find_gate(rows)}
    return {
        **more,
        "means": COMPARISON.average(chosen, "first_layer", "second_layer"),
        "differences": COMPARISON.subtract(chosen),
        "curves": CURVES.average([row for row in rows if row["layer"] is not None], "layer"),
    }


def _list_gains(rows: Rows, chosen: Rows) -> list[dict[str, Any]]:
    """The chosen rows with the nats that the donor's answer has over its own without a swap."""
    keys = (*GROUP, "swap", *PROMPT)
    plain = {
        tuple(row[key] for key in keys): row["logp_donor"] for row in rows if row["layer"] is None
    }
    return [
        {**row, "gained": row["logp_donor"] - plain[key]}
        for row in chosen
        if (key := tuple(row[name] for name in keys)) in plain and row["layer"] is not None
    ]


def _find_gate(rows: Rows) -> list[dict[str, Any]]:
    """By model and way of asking, how likely factless donors' names are without a swap, beside
    trained donors' names."""
    gates = []
    plain = [row for row in rows if row["layer"] is None]
    for key, own in tidy.group_by(plain, *GROUP).items():
        means = {
            swap: sum(row["logp_donor"] for row in same) / len(same)
            for swap, same in tidy.group_by(own, "swap").items()
        }
        if "factless" in means:
            gap = means["factless"] - means["across"]
            gates.append(
                dict(zip(GROUP, key, strict=True)) | {"gap": gap, "open": abs(gap) <= GATE}
            )
    return gates


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
        best = layers.get(row["swap"], layers["across"])
        if row["layer"] is None and row["swap"] == "across":
            yield {**row, "swap": "none", "first_layer": None, "second_layer": None}
        elif row["layer"] == best[row["half"]]:
            yield {**row, "first_layer": best[0], "second_layer": best[1]}


def describe(result: Result) -> Sequence[ReportBlock]:
    """A sentence for each model, where it can show nothing, curves over layers, and the tables."""
    summary = result.summary
    ceilings = tidy.select(summary["means"], swap="within", metric="says_donor")
    low = [f"{row['model']}, {tidy.name_asked(row)}" for row in ceilings if row["high"] < LOW]
    few = f"The ceiling is low, so that a failure says nothing: {'; '.join(dict.fromkeys(low))}."
    layers = {"first layer": "first_layer", "second layer": "second_layer"}
    shut = [
        f"{row['model']}, {tidy.name_asked(row)} ({row['gap']:+.1f} nats)"
        for row in summary.get("gate", ())
        if not row["open"]
    ]
    gate = (
        f"Names of factless people lie more than {GATE:g} nats from those of trained donors before "
        f"any swap, so that they are no control: {'; '.join(dict.fromkeys(shut))}."
    )
    gains = "gains" in summary
    return [
        *COMPARISON.state(summary),
        *([Notice(few)] if low else []),
        *(GAINED.state(summary) if gains else []),
        *([Notice(gate)] if shut else []),
        CURVES.draw(summary["curves"], Factor("layer", "layer")),
        COMPARISON.tabulate(summary["means"], **layers),
        COMPARISON.tabulate_differences(summary["differences"]),
        *([GAINED.tabulate_differences(summary["gain_differences"])] if gains else []),
    ]


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
