"""mending: errors are planted into real texts: are they found and mended, and what is damaged?

A share of the tokens of real texts is replaced by others, drawn uniformly from the vocabulary. Then
the model corrects the text in a given number of network calls, in the ways that its kind allows.
Masked models: every token is masked once and drawn anew, in as many parts as calls (remask evenly);
or every second call scores the whole text, and the next redraws the tokens found least likely
(remask unlikely), twice as many in all as there are errors, and at least one each time. Uniform and
hybrid models take the text for a noised one, at the time of the schedule when this share of tokens
is noise, and denoise it from there (walk again). The share is given to all but the first way.
Found: the share of errors that were changed. Mended: the share of errors that are the original
token again. Damaged: the share of right tokens that were changed. Damage is the control: a way that
tells errors from right tokens changes errors more often. 95 % intervals are by text and training
seed. Models that correct in the same way see the same errors, and are compared text by text.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import combinations, islice, product
from typing import TYPE_CHECKING, Any

from unmask.base.config import option
from unmask.base.errors import UserError
from unmask.blocks import blocks, tidy
from unmask.blocks.blocks import Column
from unmask.measures.inputs import Member, ModelInputs, ModelsAndData
from unmask.measures.measure import Job, Measure, Rows, Summary, Tables, judge_interval
from unmask.measures.result import Result
from unmask.measures.settings import MachineSettings
from unmask.results.summaries import cluster_rows, estimate_means, subtract_clusters

if TYPE_CHECKING:
    from torch import Tensor

_log = logging.getLogger(__name__)

MOST_DOCUMENTS = 2_000
SHARES = ("found", "mended", "damaged")
METRICS = (*SHARES, "selective")
"""Selective: found minus damaged, text by text."""


@dataclass(frozen=True, kw_only=True)
class MendingSettings(MachineSettings):
    """How many errors are planted, and how many calls there are to mend them."""

    texts: int = option(64, "Texts that errors are planted into.", least=2)
    length: int = option(128, "Tokens of a text.", least=8)
    shares: tuple[float, ...] = option(
        (0.05,),
        "Shares of tokens that are replaced by wrong ones, between 0 and 1.",
        above=0,
        below=1,
    )
    calls: tuple[int, ...] = option(
        (8, 32), "Network calls that a correction may take.", least=2, most=1_000_000
    )
    seed: int = option(0, "Seed of errors and of whatever is drawn.", least=0)

    def _problems(self) -> Iterator[str]:
        for name in ("shares", "calls"):
            if not getattr(self, name):
                yield f"{name!r} is empty, expected at least one value"


def _read(data: Any, settings: MendingSettings, families: Any) -> tuple[list[str], str, str]:
    from unmask.base.identity import digest_values
    from unmask.data.text import read_documents

    documents = list(islice(read_documents([data]), MOST_DOCUMENTS))
    return documents, str(data), digest_values(documents)


def list_jobs(inputs: ModelInputs, settings: MendingSettings) -> Iterator[Job]:
    """One part for each checkpoint, way of mending, share and number of calls."""
    from unmask.experiments.mending.menders import list_menders

    ways = {each.key: list_menders(each.family.paradigm) for each in inputs.members()}
    if not any(ways.values()):
        raise UserError(
            f"{', '.join(f'{each.name} is {each.kind}' for each in inputs.families)}: expected at "
            "least one masked, uniform or hybrid model, since others cannot correct a text."
        )
    if lacking := [each.name for each in inputs.families if not list_menders(each.paradigm)]:
        _log.warning(
            "%s: only masked, uniform and hybrid models can correct a text; left out.",
            ", ".join(lacking),
        )
    for member in inputs.members():
        cut = cache(partial(_cut_windows, inputs, member, settings))  # once for all of its parts
        for way, share, calls in product(ways[member.key], settings.shares, settings.calls):
            work = partial(_work, inputs, member, cut, way, share, calls, settings.seed)
            yield Job(f"{member.key}-{way}-{share}-{calls}", work)


def _work(
    inputs: ModelInputs,
    member: Member,
    cut: "Callable[[], Tensor]",
    way: str,
    share: float,
    calls: int,
    seed: int,
) -> Mapping[str, Rows]:
    from unmask.experiments.mending.menders import mend, plant_errors

    model = inputs.load(member)
    rows = model.net.config.logit_rows
    planted = plant_errors(cut(), share, rows, model.mask_id, seed=seed)
    columns = member.columns | {"way": way, "share": share, "calls": calls}
    mended = mend(model, planted, way, calls, share, seed)
    return {"mending": [columns | {"fact": str(i)} | row for i, row in enumerate(mended)]}


def _cut_windows(inputs: ModelInputs, member: Member, settings: MendingSettings) -> "Tensor":
    """Windows of documents, their first ones first, each after what a document comes after."""
    import torch

    from unmask.evaluation.questions import require_tokenizer

    model = inputs.load(member)
    tokenizer = require_tokenizer(model)
    size = settings.length - len(tokenizer.opening)
    windows = [
        (at, [*tokenizer.opening, *ids[at : at + size]])
        for ids in tokenizer.encode_documents(inputs.data)
        for at in range(0, len(ids) - size + 1, size)
    ]
    if len(windows) < settings.texts:
        raise UserError(
            f"the data have {len(windows)} texts of {settings.length} tokens: expected "
            f"{settings.texts}; give more text, or lower --texts or --length."
        )
    windows.sort(key=lambda window: window[0])
    rows = [ids for _, ids in windows[: settings.texts]]
    return torch.tensor(rows, device=model.device)


def summarise(tables: Tables, settings: MendingSettings) -> Summary:
    rows = tables["mending"].to_pylist()
    by = ("model", "kind", "way", "share", "calls")
    means = estimate_means(rows, by, METRICS, SHARES)
    return {"means": means, "differences": list(_subtract_models(rows))}


def _subtract_models(rows: Rows) -> Iterator[dict[str, Any]]:
    """One model minus another that corrects in the same way, paired by text."""
    by = ("way", "share", "calls")
    for key, alike in tidy.group_by(rows, *by).items():
        for (name, ours), (other, theirs) in combinations(tidy.group_by(alike, "model").items(), 2):
            if {row["fact"] for row in ours} != {row["fact"] for row in theirs}:
                continue  # runs of other numbers of texts, drawn together
            named = {"model": name, "against": other} | dict(zip(by, key, strict=True))
            for metric in METRICS:
                clusters = (cluster_rows(side, metric) for side in (ours, theirs))
                difference = subtract_clusters(*clusters, is_share=metric in SHARES)
                yield named | {"metric": metric} | difference


def judge(summary: Summary, settings: MendingSettings) -> Iterator[blocks.Verdict]:
    """Whether errors are changed more often than right tokens: whether they are found at all."""
    for row in tidy.select(summary["means"], metric="selective"):
        yield judge_interval(_name(row), tidy.to_interval(row), row["facts"])


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['model']}, {row['way']}, {_name_share(row['share'])}, {row['calls']} calls"


def _name_share(share: float) -> str:
    return f"{100 * share:.3g} % wrong"


def describe(result: Result) -> Sequence[blocks.ReportBlock]:
    means, differences = result.summary["means"], result.summary["differences"]
    colours = {each: f"p{i + 1}" for i, each in enumerate(tidy.distinct(means, "model", "way"))}
    titles = {
        "found": "errors changed",
        "mended": "errors mended",
        "damaged": "right tokens changed",
        "selective": "errors changed minus right tokens changed",
    }
    columns = {name: Column(f"{label}, %", 1, is_percent=True) for name, label in titles.items()}
    setting = {
        "way of correcting": "way",
        "share of wrong tokens": "share",
        "network calls": "calls",
    }
    described: list[blocks.ReportBlock] = [
        tidy.tabulate_means(
            "mending",
            "Planted errors that were changed and mended, and right tokens that were changed",
            means,
            {"model": "model"} | setting,
            columns,
            most=60,
        )
    ]
    if differences:
        table = tidy.tabulate_means(
            "differences",
            "One model minus another that corrects the same errors in the same way, paired by text",
            differences,
            {"model": "model", "minus": "against"} | setting,
            columns,
            most=60,
        )
        described.append(table)
    if len(tidy.distinct(means, "calls")) < 2:
        return described
    figure = tidy.draw_lines(
        means,
        "calls",
        "What is changed and mended, by network calls",
        "Shares of planted errors and of right tokens. Bands are 95 % intervals by text and "
        "training seed.",
        x="calls",
        line=lambda row: f"{row['model']}, {row['way']}",
        colour=lambda row: colours[row["model"], row["way"]],
        panel=lambda row: titles[row["metric"]],
        choose=[tidy.Choose("share of wrong tokens", "share", _name_share)],
        xlabel="network calls",
        ylabel="share of tokens",
        is_log2=True,
    )
    return [figure, *described]


MEASURE = Measure(
    name="mending",
    title="Correction of planted errors",
    help="Plant errors into real texts: are they found and mended, and what is damaged?",
    settings=MendingSettings,
    tables={"mending": "mending/1"},
    inputs=ModelsAndData(
        _read, "Real texts: .txt, .md or .jsonl, also packed as .xz or .zst.", is_required=True
    ),
    jobs=list_jobs,
    summarise=summarise,
    judge=judge,
    describe=describe,
    method=__doc__,
)
