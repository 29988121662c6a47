"""interchange: with another person's subject state patched in, taken from a prompt of the other
direction, does the model give that person's answer?

Two people are paired: the recipient, whose prompt is run, and the donor. After one layer, the
states of the recipient's subject are replaced by those of the donor's (interchange intervention,
`unmask.representation.interchange`). Success is the donor's answer, each of its tokens the
likeliest one, so that greedy decoding writes it. Across: the donor's state comes from a prompt of
the other direction, with a description where the recipient's prompt has a name. Within: from a
prompt of the same direction, in another phrasing; the ceiling. Own: the recipient's own state from
another phrasing; the floor. Untrained: as across, with people that training never named
(`strangers`): how often an answer is copied from the words of the donor's prompt.

Either the last subject token's state is replaced, and the rest of the subject by its mean over
recipients, or the states of all subject tokens, aligned at their ends. The layer is chosen on one
half of the people, where the donor's answer is likeliest, and results are read on the other half;
own and untrained are read at the layers chosen for across. Layer -1 is the residual stream before
layer 0: there words take the place of words, so that it is drawn but not chosen. Shares have 95 %
intervals by fact and training seed; differences are paired by fact. Where the ceiling is low, a
failure across directions says nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from unmask.base.config import option
from unmask.base.errors import UserError
from unmask.blocks import blocks, labels, tidy
from unmask.measures.inputs import ALL_TESTS, Member, ModelInputs, read_all_tests
from unmask.measures.measure import Job, Measure, Rows, Summary, Tables, judge_interval
from unmask.measures.result import Result
from unmask.measures.settings import StateSettings
from unmask.measures.summaries import estimate_means, subtract_shares

if TYPE_CHECKING:
    from unmask.data.facts import Fact
    from unmask.representation.interchange import StateSwap

METRICS = {
    "says_donor": blocks.Column("gives the donor's answer, %", 1, is_percent=True),
    "says_recipient": blocks.Column("gives its own answer, %", 1, is_percent=True),
    "prefers_donor": blocks.Column("donor's answer is likelier, %", 1, is_percent=True),
    "logp_donor": blocks.Column("log p of the donor's answer, nats"),
    "logp_recipient": blocks.Column("log p of its own answer, nats"),
}
SHARES = ("says_donor", "says_recipient", "prefers_donor")
NOTHING = "none"
"""The swap of rows in which no state is replaced."""
SWAPS = {
    NOTHING: "no state replaced",
    "across": "donor, other direction",
    "within": "donor, same direction (ceiling)",
    "own": "own state, other phrasing (floor)",
    "untrained": "untrained donor, other direction",
}
TOKENS = {"last": "last subject token, the rest by its mean", "all": "all subject tokens"}
GROUP = ("model", "kind", "split", "tokens")
LOW = 0.5
"""A ceiling that is clearly below is low."""


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
    swaps = {split.name: pair_facts(inputs, split.name, settings) for split in inputs.data.splits}

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


def pair_facts(inputs: ModelInputs, split: str, settings: InterchangeSettings) -> "list[StateSwap]":
    """Every recipient of a split with its donors of each source."""
    from unmask.data.sources import read_asked
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
        others = read_asked(settings.strangers).splits
        answers = [
            fact
            for name in _name_tests(others)
            for fact in others[name]
            if fact.direction == same[0].direction
        ]
        prompts = _list_others(others, same)
        known = {text for fact in same for text in (fact.subject, fact.object)}
        if met := sorted({fact.subject for fact in prompts} & known):
            raise UserError(
                f"{settings.strangers} has {met[0]!r}, which {corpus.source} has, too: expected "
                "people that training never named; make a corpus with another seed."
            )
        swaps += make_swaps("untrained", recipients, prompts, answers, seed=settings.seed)
    halves = {swap.half for swap in swaps if swap.source == "across"}
    if len(halves) < 2:
        raise UserError(
            f"{split} has no two people with donors of the other direction, and a layer is chosen "
            "on one half of the people and read on the other: ask more facts, both ways."
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


def summarise(tables: Tables, settings: InterchangeSettings) -> Summary:
    """Scores at cross-fitted layers, what across has over its controls, and curves over layers."""
    rows = [
        row | {"prefers_donor": row["logp_donor"] > row["logp_recipient"]}
        for row in tables["interchange"].to_pylist()
    ]
    means, differences, curves = [], [], []
    for key, own in tidy.group_by(rows, *GROUP).items():
        group = dict(zip(GROUP, key, strict=True))
        at: dict[str, Rows] = {NOTHING: [{**row, "swap": NOTHING} for row in own
                        if row["layer"] is None and row["swap"] == "across"]}  # fmt: skip
        layers: dict[str, tuple[int, int]] = {}
        inner = [row for row in own if row["layer"] is None or row["layer"] >= 0]
        if all(row["layer"] is None for row in inner):  # embeddings alone were asked for
            inner = own
        for swap in tidy.distinct(own, "swap"):
            layers[swap], at[swap] = _choose_layer(inner, swap)
        for swap, chosen in at.items():
            first, second = layers.get(swap, (None, None))
            more = {"first_layer": first, "second_layer": second}
            by = (*GROUP, "swap")
            means += [row | more for row in estimate_means(chosen, by, list(METRICS), SHARES)]
        for control in ("own", "untrained", "within"):
            if control in at:
                gap = _subtract(at["across"], at[control])
                differences.append(group | {"minus": control} | gap)
        swapped = [row for row in own if row["layer"] is not None]
        by = (*GROUP, "swap", "layer")
        curves += estimate_means(swapped, by, ("says_donor", "prefers_donor"), SHARES)
    return {"means": means, "differences": differences, "curves": curves}


def _choose_layer(rows: Rows, swap: str) -> tuple[tuple[int, int], list[Mapping[str, Any]]]:
    """A swap's layers of both halves, and its rows there; controls take the layers of across."""
    from unmask.representation.interchange import cross_fit

    chosen_by = "within" if swap == "within" else "across"
    layers = cross_fit(rows, swap, "logp_donor", chosen_by).layers
    own = [row for row in tidy.select(rows, swap=swap) if row["layer"] is not None]
    return layers, [row for row in own if row["layer"] == layers[row["half"]]]


def _subtract(ours: Rows, theirs: Rows) -> dict[str, Any]:
    """Success in our rows minus that in theirs, of the recipients and phrasings that both have."""
    keys = [{(row["fact"], row["phrasing"]) for row in rows} for rows in (ours, theirs)]
    shared = keys[0] & keys[1]
    sides = [
        [row for row in rows if (row["fact"], row["phrasing"]) in shared] for rows in (ours, theirs)
    ]
    return subtract_shares(sides[0], sides[1], "says_donor")


def judge(summary: Summary, settings: InterchangeSettings) -> Iterable[blocks.Verdict]:
    """Whether donors of the other direction succeed more often than each control."""
    for row in summary["differences"]:
        yield judge_interval(_name(row), tidy.to_interval(row), row["facts"])


def _name(row: tidy.Record) -> str:
    return ", ".join(row[name] for name in ("model", "split", "tokens", "minus"))


def describe(result: Result) -> Sequence[blocks.ReportBlock]:
    """A sentence for each model and way of asking, the tables, and curves over layers."""
    keys = {"model": "model", "asked": tidy.name_asked, "states": lambda row: TOKENS[row["tokens"]]}
    names = list(SWAPS)
    figure = tidy.draw_lines(
        [{**row, "label": SWAPS[row["swap"]]} for row in result.summary["curves"]],
        "interchange",
        "How often the donor's answer is given",
        "Share of recipients that give the donor's answer, or find it likelier than their own, by "
        "the layer after which the donor's state replaces theirs (-1: embeddings). Bands are 95 % "
        "intervals by fact.",
        x="layer",
        line="label",
        colour=lambda row: f"p{1 + names.index(row['swap'])}",
        scale=100,
        choose=[
            tidy.ASKED,
            tidy.Choose("states", "tokens", lambda tokens: TOKENS[tokens]),
            tidy.Choose("score", "metric", lambda metric: METRICS[metric].label),
        ],
        xlabel="layer",
        ylabel="% of recipients",
    )
    means = tidy.tabulate_means(
        "means",
        "Whose answer is given, each half of the people at the layer chosen on the other half",
        result.summary["means"],
        keys | {"replaced by": lambda row: SWAPS[row["swap"]], "layers": _say_layers},
        METRICS,
        most=30,
    )
    differences = tidy.tabulate(
        "differences",
        "Share of donor's answers: donors of the other direction minus each control, in points",
        result.summary["differences"],
        keys
        | {
            "minus": lambda row: SWAPS[row["minus"]],
            "facts": "facts",
            blocks.Column("difference, points", 1, True, has_sign=True): tidy.to_interval,
        },
        role=result.mark(_name),
        most=30,
    )
    return [*_state(result), figure, means, differences]


def _say_layers(row: tidy.Record) -> str:
    if row["first_layer"] is None:
        return ""
    return f"{row['first_layer']} and {row['second_layer']}"


def _state(result: Result) -> Iterator[blocks.Finding]:
    shares = tidy.select(result.summary["means"], metric="says_donor")
    for (model, _, split, tokens), rows in tidy.group_by(shares, *GROUP).items():
        own = {row["swap"]: row for row in rows}
        across = own.pop("across")
        others = [f"{SWAPS[swap]}: {tidy.say(row, '%')}" for swap, row in own.items()]
        claims = {minus: ", ".join((model, split, tokens, minus)) for minus in ("own", "within")}
        floor, ceiling = (
            result.verdicts.get(claim) or blocks.Verdict(claim, "not measured")
            for claim in claims.values()
        )
        if floor.outcome == "above" or ceiling.outcome != "below":
            verdict, so = floor, ""
        else:
            verdict, so = ceiling, " Not clearly above the floor, and clearly below the ceiling."
        if own["within"]["high"] < LOW:
            verdict, so = floor, " The ceiling is low, so that a failure says nothing."
        yield blocks.Finding(
            f"In {model}, asked {labels.name_split(split)}, a donor's states of the other "
            f"direction ({TOKENS[tokens]}; layers {_say_layers(across)}) bring the donor's answer "
            f"in {tidy.say(across, '%')} of the cases ({labels.count(across['facts'], 'fact')}). "
            f"For comparison: {'; '.join(others)}.{so}",
            verdict,
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
    judge=judge,
    describe=describe,
    method=__doc__,
)
