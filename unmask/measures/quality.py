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
"""

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from unmask.base.config import option
from unmask.base.errors import UserError
from unmask.blocks import blocks, labels, tidy
from unmask.blocks.blocks import Column
from unmask.evaluation.statistics import Interval
from unmask.measures.inputs import Member, ModelInputs, ModelsAndData
from unmask.measures.measure import Job, Measure, Rows, Summary, Tables
from unmask.measures.quality_judge import judge_kinship, say_kinship
from unmask.measures.quality_summary import summarise
from unmask.measures.result import Result
from unmask.measures.settings import MachineSettings
from unmask.results.summaries import GRAMS

if TYPE_CHECKING:
    from unmask.evaluation.quality import DrawnText
    from unmask.net.model import Model

_log = logging.getLogger(__name__)

REAL = "real text"
"""The control's name, in the place of a sampler."""


@dataclass(frozen=True, kw_only=True)
class QualitySettings(MachineSettings):
    """Which texts are drawn, how, and who judges them."""

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
    control: bool = option(True, "Also score real text of the same length, as a control.")
    seed: int = option(0, "Seed of whatever is drawn.", least=0)

    def _problems(self) -> Iterator[str]:
        from unmask.evaluation.quality import parse_sampler

        for name in ("steps", "samplers"):
            if not getattr(self, name):
                yield f"{name!r} is empty, expected at least one value"
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


def _read(data: Any, settings: QualitySettings, families: Any) -> tuple[list[str], str, str]:
    """Pieces of documents, as many words as texts have tokens; as many as texts are drawn."""
    from unmask.base.identity import digest_values
    from unmask.data.text import read_documents
    from unmask.net.families import digest_model

    check_judge(settings)
    pieces = list[tuple[int, str]]()
    for document in read_documents([data]):
        words = document.split()
        starts = range(0, len(words) - settings.length + 1, settings.length)
        pieces += [(at, " ".join(words[at : at + settings.length])) for at in starts]
    if len(pieces) < settings.texts:
        raise UserError(
            f"{data} has {len(pieces)} pieces of {settings.length} words: expected "
            f"{settings.texts}; give more text, or lower --texts or --length."
        )
    # The beginnings of all documents come first.
    pieces.sort(key=lambda piece: piece[0])
    texts = [text for _, text in pieces[: settings.texts]]
    # Another judge may come to lie in the same place.
    judge = digest_model(settings.judge)
    return texts, str(data), digest_values([texts, *judge.items()])


def list_jobs(inputs: ModelInputs, settings: QualitySettings) -> Iterator[Job]:
    """One part for each checkpoint, sampler and number of steps, and the control of each."""
    from unmask.evaluation.quality import list_samplers
    from unmask.net.families import digest_model
    from unmask.net.loading import load

    judges: dict[str, Model] = {}

    def judge() -> "Model":
        if not judges:
            judges["judge"] = load(settings.judge, inputs.device, settings.dtype)
        return judges["judge"]

    kinship = judge_kinship(inputs, settings.judge, digest_model(settings.judge))
    own = {
        family.name: list_samplers(family.paradigm, settings.samplers, settings.steps)
        for family in inputs.families
    }
    if lacking := [name for name, pairs in own.items() if not pairs]:
        text = f"{', '.join(lacking)} can use none of the samplers {', '.join(settings.samplers)}"
        if len(lacking) == len(own):
            raise UserError(f"{text}: give one that does not remask, correct or guide.")
        _log.warning("%s: left out.", text)
    for member in inputs.members():
        pairs = own[member.family.name]
        if not pairs:
            continue
        columns = member.columns | kinship[member.key]
        work = partial(_work, inputs, member, columns, settings, judge)
        for sampler, steps in [*([(REAL, None)] if settings.control else []), *pairs]:
            yield Job(f"{member.key}-{sampler}-{steps}", partial(work, sampler, steps))


def _work(
    inputs: ModelInputs,
    member: Member,
    columns: Mapping[str, Any],
    settings: QualitySettings,
    judge: Any,
    sampler: str,
    steps: int | None,
) -> Mapping[str, Rows]:
    from unmask.evaluation.quality import count_grams, find_text_entropy, judge_texts

    drawn = list(_draw(inputs.load(member), inputs.data, settings, sampler, steps))
    rows = []
    for number, (each, cost) in enumerate(
        zip(drawn, judge_texts(judge(), [each.text for each in drawn]), strict=True)
    ):
        row = dict(columns) | {"sampler": sampler, "steps": steps, "calls": each.calls}
        row |= {"flops": each.flops, "fact": str(number), "text": each.text}
        row |= {"tokens": len(each.tokens), "nll": cost.nll, "judge_tokens": cost.tokens}
        row |= {"judge_flops": cost.flops}
        row["per_token"] = cost.nll / cost.tokens if cost.tokens else None
        row["entropy"] = find_text_entropy(each.tokens)
        for size in GRAMS:
            row[f"different_{size}"], row[f"all_{size}"] = count_grams(each.text.split(), size)
        rows.append(row)
    return {"quality": rows}


def _draw(
    model: "Model",
    documents: Sequence[str],
    settings: QualitySettings,
    sampler: str,
    steps: int | None,
) -> "Iterable[DrawnText]":
    from unmask.evaluation.quality import DrawnText, draw_texts
    from unmask.evaluation.questions import require_tokenizer

    if sampler != REAL:
        prompts = [" ".join(text.split()[: settings.words]) for text in documents]
        return draw_texts(model, prompts, sampler, steps, settings.length, settings.seed)
    tokenizer = require_tokenizer(model)
    rows = [ids[: settings.length - 1] for ids in tokenizer.encode_documents(list(documents))]
    return [DrawnText(tokenizer.decode(ids), ids, 0) for ids in rows]


def judge_nothing(summary: Summary, settings: QualitySettings) -> Iterator[blocks.Verdict]:
    """Perplexity and variety are weighed by the reader: no single number says what is better."""
    return iter(())


def describe(result: Result) -> Sequence[blocks.ReportBlock]:
    """The table, and cost and entropy against network calls."""
    means = [row for row in result.summary["means"] if row["sampler"] != REAL]
    calls = sorted(tidy.distinct(means, "calls"))
    # Real text takes no calls: its level is a line across each panel.
    level = [
        {**row, "calls": end}
        for row in tidy.select(result.summary["means"], sampler=REAL)
        for end in (calls[0], calls[-1])
    ]
    table = _tabulate(result)
    colours = {each: f"p{i}" for i, each in enumerate(tidy.distinct(means, "sampler"))}
    colours[REAL] = "control"
    names = {
        "per_token": "nats per token under the judge",
        "entropy": "entropy of a text's tokens, nats",
    }
    figures = [
        tidy.draw_lines(
            tidy.select([*means, *level], metric=metric),
            metric,
            label[0].upper() + label[1:],
            "By sampler. Bands are 95 % intervals by text and training seed.",
            x="calls",
            line="sampler",
            colour=lambda row: colours[row["sampler"]],
            dash=lambda row: "dash" if row["sampler"] == REAL else "solid",
            xlabel="network calls",
            ylabel=label,
            is_log2=True,
        )
        for metric, label in names.items()
        if len(calls) > 1
    ]
    drawn = [row for row in result.summary["texts"] if row["sampler"] != REAL]
    if all(math.isnan(row["perplexity"]) for row in drawn):
        figures = [blocks.Notice("All texts that were sampled are empty: no judge can score them.")]
    settings = result.settings.to_record()
    judged = result.summary["judged"]
    text = (
        f"{labels.count(settings['texts'], 'text')} of {settings['length']} tokens at most from "
        f"each sampler, judged by {settings['judge']}. {say_kinship(judged, settings['judge'])} "
        f"Lower perplexity at lower entropy is a trade, not a gain. {_say_compute(judged)}"
    )
    return [blocks.Text(text), *figures, table]


def _say_compute(judged: Rows) -> str:
    drawing, judging = (sum(row[name] for row in judged) for name in ("flops", "judge_flops"))
    return (
        f"Drawing all texts took at most {drawing:.2g} floating-point operations, judging them "
        f"and the control {judging:.2g}."
    )


def _tabulate(result: Result) -> blocks.Table:
    means = {
        (row["model"], row["sampler"], row["steps"], row["metric"]): tidy.to_interval(row)
        for row in result.summary["means"]
    }

    def get(metric: str) -> Any:
        return lambda row: means.get((row["model"], row["sampler"], row["steps"], metric))

    real = tidy.select(result.summary["texts"], sampler=REAL)
    if is_shared := len(real) > 1 and len({round(row["perplexity"], 6) for row in real}) == 1:
        real = real[:1]  # models of one tokenizer have one control
    drawn = [row for row in result.summary["texts"] if row["sampler"] != REAL]
    return tidy.tabulate(
        "texts",
        "Cost under the judge and variety; distinct-n: different n-grams of words among all",
        [*real, *drawn],
        {
            "model": lambda row: "–" if is_shared and row in real else row["model"],
            "sampler": "sampler",
            "steps": "steps",
            "network calls": "calls",
            Column("GFLOP a text", is_short=True): lambda row: row["flops"] / 1e9,
            Column("generative perplexity", is_short=True): partial(_take_interval, "perplexity"),
            Column("nats per token", 3): get("per_token"),
            Column("entropy of a text, nats", 2): get("entropy"),
            Column("distinct-1", 3): partial(_take_interval, "distinct_1"),
            Column("distinct-2", 3): partial(_take_interval, "distinct_2"),
            Column("distinct-3", 3): partial(_take_interval, "distinct_3"),
        },
        lambda row: "control" if row["sampler"] == REAL else "plain",
        most=100,
    )


def _take_interval(name: str, row: Mapping[str, Any]) -> Interval:
    return tidy.to_interval(row, (name, f"{name}_low", f"{name}_high"))


def pool(results: Sequence[Result]) -> Tables:
    """The rows of all runs, which must have one judge and texts of one length."""
    from unmask.measures.runner import pool_tables

    settings = [cast(QualitySettings, each.settings) for each in results]
    judged = {f"{each.judge} reading {each.length} tokens" for each in settings}
    if len(judged) > 1:
        raise UserError(
            f"the runs have different judges or lengths ({'; '.join(sorted(judged))}): expected "
            "one judge and one length; join runs that share both."
        )
    return pool_tables(results)


MEASURE = Measure(
    name="quality",
    title="Quality and variety of sampled texts",
    help="How likely a judge finds texts and how varied they are, by sampler and network calls.",
    settings=QualitySettings,
    tables={"quality": "quality/2"},
    inputs=ModelsAndData(
        _read,
        "Documents: the control, and where prompts come from (.txt, .jsonl, also .xz or .zst).",
        is_required=True,
    ),
    jobs=list_jobs,
    summarise=summarise,
    judge=judge_nothing,
    describe=describe,
    check=check_judge,
    method=__doc__,
    pool=pool,
)
