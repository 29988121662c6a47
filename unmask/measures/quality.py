"""quality: how likely a judge finds sampled texts, and how varied they are, by network calls.

Texts are drawn without a prompt, or after the first words of documents, by every sampler in every
number of steps. The judge is a causal model that none of the models stems from. It scores the
texts: nats per token, and generative perplexity, which is their exponential over all texts. Texts
that repeat themselves cost a judge little, so two measures of variety stand beside it: the entropy
of a text's tokens by their counts (nats), and distinct-n, the share of different n-grams of words
among all n-grams of a sampler's texts. Samplers are compared at equal numbers of network calls, or
of operations: passes are counted whole, so that samplers which read less than the whole text in
each take fewer. Real text of the same length is the control. 95 % intervals are by text and
training seed: that of perplexity is the exponential of the ratio's, that of distinct-n for other
sets of as many texts (jackknife).

With rounds, all models and samplers draw a batch each in turn, and are timed: tokens a second, up
to the end of each text, and memory beyond the weights, with 95 % intervals by round. Only that of a
machine that does nothing else says how fast they are.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, cast

from unmask.base.config import option
from unmask.base.errors import UserError
from unmask.blocks import blocks, labels, tidy
from unmask.evaluation.statistics import Interval, estimate_mean
from unmask.measures.inputs import Member, ModelInputs, ModelsAndData
from unmask.measures.measure import Job, Measure, Rows, Summary, Tables
from unmask.measures.quality_judge import judge_kinship, say_kinship
from unmask.measures.quality_speed import SPEED, TimedWay, describe_speed, time_ways
from unmask.measures.result import Result
from unmask.measures.settings import MachineSettings
from unmask.measures.texts import OWN
from unmask.results.comparison import KIND, MODEL, Comparison, Factor, Quantity
from unmask.results.summaries import GRAMS, cluster_ratio, cluster_rows, keep_shared

REAL = "real text"
"""The control's name, in the place of a sampler."""
COMPARISON = Comparison(
    metrics={
        "per_token": Quantity("cost under the judge per token", "nats", digits=3, least=0.0),
        "entropy": Quantity("entropy of a text's tokens", "nats", least=0.0),
    },
    groups=(MODEL, KIND),
    variant=Factor("sampler", "sampler"),
    title="Cost and variety of texts by network calls",
    caption="Bands are 95 % intervals by text and training seed. Dotted: real text.",
    controls=(REAL,),
    most=100,
)
TABLE = replace(
    COMPARISON,
    metrics={
        **COMPARISON.metrics,
        "flops": Quantity("FLOP for each text", is_short=True),
        "perplexity": Quantity("generative perplexity", is_short=True),
        **{f"distinct_{size}": Quantity(f"distinct-{size}", digits=3) for size in GRAMS},
    },
    names=("texts", ""),
    means="Cost under the judge and variety; distinct-n: different n-grams of words among all",
)
"""With what is known of all texts of a sampler together."""


@dataclass(frozen=True, kw_only=True)
class QualitySettings(MachineSettings):
    """Which texts are drawn, how, and who judges them."""

    filled = ("steps", "samplers")

    judge: str = option(
        "", "A causal model that scores the texts; required. One that is kin to a model is refused."
    )
    texts: int = option(64, "Texts of each sampler.", least=2)
    length: int = option(128, "Tokens of a text, its prompt included.", least=2)
    words: int = option(
        0, "First words of a document that are given as a prompt; 0: no prompt.", least=0
    )
    steps: tuple[int, ...] = option(
        (16, 64), "Numbers of denoising steps, each with every sampler.", least=1, most=1_000_000
    )
    samplers: tuple[str, ...] = option(
        ("random", "confidence"),
        "Samplers: an order, and further settings after semicolons, such as "
        "random;temperature=0.8;remask=cap=0.05.",
    )
    rounds: int = option(
        0, "Rounds in which every model and sampler is timed, one batch each; 0: none.", least=0
    )
    batch: int = option(8, "Texts of a batch that is timed.", least=1)
    control: bool = option(True, "Also score real text of the same length, as a control.")
    seed: int = option(0, "Seed of whatever is drawn.", least=0)

    def _problems(self) -> Iterator[str]:
        from unmask.evaluation.quality import parse_sampler

        for text in self.samplers:
            try:
                sampler = parse_sampler(text)
            except UserError as error:
                yield str(error).removesuffix(".")
                continue
            if sampler.get("guidance") and not self.words:
                yield f"the sampler {text!r} guides, expected a prompt to guide by: give 'words'"


def check_judge(settings: QualitySettings) -> None:
    """Refuse a judge that is not given, not there or not causal."""
    from unmask.evaluation.quality import require_causal
    from unmask.net.families import parse_families

    if not settings.judge:
        raise UserError("no judge was given: name a causal model by --judge.")
    require_causal(settings.judge, parse_families([settings.judge])[0].paradigm)


def _read(data: Any, settings: QualitySettings, families: Any) -> tuple[list[str], str, Any]:
    """Pieces of documents, as many words as texts have tokens; as many as texts are drawn."""
    from unmask.measures.texts import find_texts
    from unmask.net.families import digest_model

    check_judge(settings)
    documents, source = find_texts(data, families)
    pieces = list[tuple[int, str]]()
    for document in documents:
        words = document.split()
        starts = range(0, len(words) - settings.length + 1, settings.length)
        pieces += [(at, " ".join(words[at : at + settings.length])) for at in starts]
    if len(pieces) < settings.texts:
        raise UserError(
            f"{source} has {len(pieces)} pieces of {settings.length} words: expected "
            f"{settings.texts}; give more text, or lower --texts or --length."
        )
    pieces.sort(key=lambda piece: piece[0])  # the beginnings of all documents come first
    texts = [text for _, text in pieces[: settings.texts]]
    # Another judge may come to lie in the same place.
    return texts, source, [texts, *digest_model(settings.judge).items()]


def list_jobs(inputs: ModelInputs, settings: QualitySettings) -> Iterator[Job]:
    """One part for each checkpoint, sampler and number of steps, and the control of each."""
    from unmask.evaluation import quality
    from unmask.net.families import digest_model
    from unmask.net.loading import load

    judge = cache(partial(load, settings.judge, inputs.device, settings.dtype))
    kinship = judge_kinship(inputs, settings.judge, digest_model(settings.judge))
    own = {
        family.name: quality.list_samplers(
            family.paradigm, _choose_samplers(family, settings), settings.steps
        )
        for family in inputs.families
    }
    if lacking := [name for name, pairs in own.items() if not pairs]:
        raise UserError(
            f"{', '.join(lacking)} can use none of the samplers {', '.join(settings.samplers)}: "
            "give one that does not remask, correct or guide."
        )

    def work(member: Member, sampler: str, steps: int | None) -> Mapping[str, Rows]:
        columns = member.columns | kinship[member.key] | {"sampler": sampler, "steps": steps}
        model, documents, length = inputs.load(member), inputs.data, settings.length
        if sampler == REAL:
            drawn = quality.take_texts(model, documents, length)
        else:
            prompts = [" ".join(text.split()[: settings.words]) for text in documents]
            drawn = quality.draw_texts(model, prompts, sampler, steps, length, settings.seed)
        return {"quality": [columns | row for row in quality.assess_texts(list(drawn), judge())]}

    def time_all() -> Mapping[str, Rows]:
        ways = [
            TimedWay(member.columns, model, sampler, steps)
            for member in first
            for model in [inputs.load(member)]
            for sampler, steps in own[member.family.name]
        ]
        prompts = [" ".join(text.split()[: settings.words]) for text in inputs.data]
        prompts = [prompts[i % len(prompts)] for i in range(settings.batch)]
        more = (settings.length, settings.rounds, settings.seed)
        return {"speed": list(time_ways(ways, prompts, *more))}

    first = [member for member in inputs.members() if member.seed == 0]
    if settings.rounds:
        yield Job("speed", time_all, cost=settings.rounds)
    for member in inputs.members():
        control = [(REAL, None)] if settings.control else []
        for sampler, steps in [*control, *own[member.family.name]]:
            yield Job(f"{member.key}-{sampler}-{steps}", partial(work, member, sampler, steps))


def _choose_samplers(family: Any, settings: QualitySettings) -> list[str]:
    """The samplers, those with drafts only for the causal reading of a network that has both."""
    from unmask.evaluation.quality import parse_sampler
    from unmask.net.readings import split_reading

    if all(split_reading(str(place))[1] for place in family.places):
        return list(settings.samplers)
    return [text for text in settings.samplers if "drafts" not in parse_sampler(text)]


def summarise(tables: Tables, settings: QualitySettings) -> Summary:
    """Means by model, sampler and steps; values of all texts together; whose kin the judge is."""
    rows = list(_average_calls(tables["quality"].to_pylist()))
    means = COMPARISON.average(rows, "steps", "calls")
    timed = tables["speed"].to_pylist() if "speed" in tables else []
    return {
        "means": means,
        "texts": list(pool_rows(rows)),
        "judged": list(_join_kinship(rows)),
        "speed": SPEED.average(timed, "steps"),
    }


def _average_calls(rows: Rows) -> Iterator[dict[str, Any]]:
    """The rows, each with the mean calls of its sampler.

    Batches, and models of other training seeds, stop earlier where all of their texts have ended:
    they are one sampler all the same.
    """
    for own in tidy.group_by(rows, "model", "sampler", "steps").values():
        calls = sum(row["calls"] for row in own) / len(own)
        calls = int(calls) if calls.is_integer() else round(calls, 1)
        yield from ({**row, "calls": calls} for row in own)


def _join_kinship(rows: Rows) -> Iterator[dict[str, Any]]:
    """What records say of each model and the judge."""
    for model, own in tidy.group_by(rows, "model").items():
        is_apart = all(row["is_apart"] for row in own)
        shares_text = any(row["shares_text"] for row in own)
        yield {"model": model, "is_apart": is_apart, "shares_text": shares_text}


def pool_rows(rows: Rows) -> Iterator[dict[str, Any]]:
    """Over all texts together: generative perplexity, and shares of different n-grams."""
    names = ("model", "sampler", "steps", "calls")
    for key, own in tidy.group_by(rows, *names).items():
        flops = sum(each["flops"] for each in own) / len(own)
        values = {"flops": Interval(flops, math.nan, math.nan)}
        values |= {"perplexity": _find_perplexity(own)}
        values |= {f"distinct_{size}": _find_distinct(own, size) for size in GRAMS}
        for metric, value in values.items():
            yield dict(zip(names, key, strict=True)) | {"metric": metric} | vars(value)


def _find_perplexity(rows: Rows) -> Interval:
    """exp of nats per token over all texts, and of the ends of that ratio's interval."""
    from unmask.objectives.likelihood import exponentiate

    tokens, shared = sum(row["judge_tokens"] for row in rows), keep_shared(rows)
    if not any(row["judge_tokens"] for row in shared):
        mean = exponentiate(sum(row["nll"] for row in rows) / tokens) if tokens else math.nan
        return Interval(mean, math.nan, math.nan)
    ratio = estimate_mean(cluster_ratio(shared, "nll", "judge_tokens"))
    return Interval(*(exponentiate(each) for each in (ratio.mean, ratio.low, ratio.high)))


def _find_distinct(rows: Rows, size: int) -> Interval:
    """The share of different n-grams among all, over the texts of a training seed; the mean.

    How far other texts would move it is how far they would move the mean of the pseudo-values that
    `find_pseudo_values` explains.
    """
    from unmask.evaluation.quality import find_distinct_share, find_pseudo_values

    shares, valued = [], []
    for own in tidy.group_by(rows, "seed").values():
        texts = [row["text"] for row in own]
        shares.append(find_distinct_share(texts, size))
        values = find_pseudo_values(texts, size) or [None] * len(own)
        valued += [{**row, "pseudo_value": each} for row, each in zip(own, values, strict=True)]
    known = [share for share in shares if share is not None]  # a text may have too few words
    share = sum(known) / len(known) if known else math.nan
    shared = keep_shared(valued)
    if not known or not shared or any(row["pseudo_value"] is None for row in shared):
        return Interval(share, math.nan, math.nan)
    # Where nothing is repeated, all values are 1: as many texts as of a share never hit still may.
    estimate = estimate_mean(cluster_rows(shared, "pseudo_value"), is_share=share == 1)
    low, high = (share + end - estimate.mean for end in (estimate.low, estimate.high))
    return Interval(share, max(low, 0.0), min(high, 1.0))


def describe(result: Result) -> Sequence[blocks.ReportBlock]:
    """Who judged what, cost and entropy against network calls, and the table."""
    summary, settings = result.summary, cast(QualitySettings, result.settings)
    means, texts, judged = (summary[name] for name in ("means", "texts", "judged"))
    drawn = [row for row in means if row["sampler"] != REAL]
    calls = sorted(tidy.distinct(drawn, "calls"))
    figures: list[blocks.ReportBlock] = []
    if len(calls) > 1:  # real text takes no calls: its level is a line across each panel
        real = tidy.select(means, sampler=REAL)
        level = [{**row, "calls": end} for row in real for end in (calls[0], calls[-1])]
        axis = Factor("calls", "network calls")
        figures.append(COMPARISON.draw([*drawn, *level], axis, is_log2=True))
    costs = tidy.select(texts, metric="perplexity")
    if all(math.isnan(row["mean"]) for row in costs if row["sampler"] != REAL):
        figures = [blocks.Notice("All texts that were sampled are empty: no judge can score them.")]
    text = (
        f"{labels.count(settings.texts, 'text')} of {settings.length} tokens at most from each "
        f"sampler, judged by {settings.judge}. {say_kinship(judged, settings.judge)} Lower "
        "perplexity at lower entropy is a trade, not a gain."
    )
    rows = [*means, *texts]
    # Models of one tokenizer have one control.
    if len({round(row["mean"], 6) for row in tidy.select(costs, sampler=REAL)}) == 1:
        rows = [{**row, "model": "–"} if row["sampler"] == REAL else row for row in rows]
    table = TABLE.tabulate(rows, steps="steps", **{"network calls": "calls"})
    speed = describe_speed(summary["speed"], drawn, COMPARISON)
    return [blocks.Text(text), *speed, *figures, table]


MEASURE = Measure(
    name="quality",
    title="Quality and variety of sampled texts",
    help="How likely a judge finds texts and how varied they are, by sampler and network calls.",
    settings=QualitySettings,
    tables={"quality": "quality/3", "speed": "speed/1"},
    inputs=ModelsAndData(
        _read,
        "Documents: the control, and where prompts come from (.txt, .jsonl, also .xz or .zst); "
        f"{OWN}",
        is_text=True,
    ),
    jobs=list_jobs,
    summarise=summarise,
    describe=describe,
    check=check_judge,
    method=__doc__,
)
