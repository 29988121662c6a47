"""mending: errors are planted into real texts: are they found and mended, and what is damaged?

A share of the tokens of real texts is replaced by others, drawn uniformly from the vocabulary. Then
the model corrects the text in a given number of network calls. Masked models: every token is masked
once and drawn anew, in as many parts as calls (remask evenly); or every second call scores the
whole text, and the next redraws the tokens found least likely, twice as many in all as there are
errors (remask unlikely). Uniform and hybrid models take the text for a noised one, at the time when
this share of tokens is noise, and denoise it from there (walk again). Found: the share of errors
that were changed. Mended: the share that are the original token again. Damaged: the share of right
tokens that were changed, as the control: who tells errors from right tokens changes errors more
often. 95 % intervals are by text and training seed. Models that correct in the same way see the
same errors, and are compared text by text.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import combinations, product
from typing import Any

from unmask.base.config import option
from unmask.base.errors import UserError
from unmask.blocks.blocks import ReportBlock
from unmask.measures.inputs import Member, ModelInputs
from unmask.measures.measure import Job, Measure, Rows, Summary, Tables
from unmask.measures.result import Result
from unmask.measures.settings import MachineSettings
from unmask.measures.texts import REAL_TEXTS, cut_windows
from unmask.results.comparison import KIND, MODEL, Comparison, Factor, Quantity


@dataclass(frozen=True, kw_only=True)
class MendingSettings(MachineSettings):
    """How many errors are planted, and how many calls there are to mend them."""

    filled = ("shares", "calls")

    texts: int = option(64, "Texts that errors are planted into.", least=2)
    length: int = option(128, "Tokens of a text.", least=8)
    shares: tuple[float, ...] = option(
        (0.05,), "Shares of tokens that are replaced by wrong ones.", above=0, below=1
    )
    calls: tuple[int, ...] = option((8, 32), "Network calls of a correction.", least=2, most=10**6)
    seed: int = option(0, "Seed of errors and of whatever is drawn.", least=0)


def list_jobs(inputs: ModelInputs, settings: MendingSettings) -> Iterator[Job]:
    """One part for each checkpoint, way of mending, share and number of calls."""
    from unmask.experiments.mending.menders import list_menders, mend, plant_errors

    def cut(member: Member) -> Any:
        return cut_windows(inputs.load(member), inputs.data, settings.texts, settings.length)

    def work(member: Member, cut: Callable[[], Any], **setting: Any) -> Mapping[str, Rows]:
        model, clean, columns = inputs.load(member), cut(), member.columns | setting
        vocab = model.net.config.logit_rows
        planted = plant_errors(clean, setting["share"], vocab, model.mask_id, seed=settings.seed)
        mended = mend(model, planted, **setting, seed=settings.seed)
        return {"mending": [columns | {"fact": str(i)} | row for i, row in enumerate(mended)]}

    for family in inputs.families:
        if not list_menders(family.paradigm):
            words = f"{family.name} is a {family.kind} model"
            raise UserError(f"{words}: only masked, uniform and hybrid models can correct a text.")
    for member in inputs.members():
        windows = cache(partial(cut, member))  # once for all of its parts
        ways = list_menders(member.family.paradigm)
        for way, share, calls in product(ways, settings.shares, settings.calls):
            job = partial(work, member, windows, way=way, calls=calls, share=share)
            yield Job(f"{member.key}-{way}-{share}-{calls}", job)


WAY = Factor("way", "way of correcting")
SHARE = Factor("share", "wrong tokens", lambda share: f"{100 * share:.3g} %")
MENDED = Comparison(
    metrics={
        "found": Quantity("errors changed", "%"),
        "mended": Quantity("errors mended", "%"),
        "damaged": Quantity("right tokens changed", "%"),
        "selective": Quantity("errors changed minus right tokens changed", "points", has_sign=True),
    },
    groups=(MODEL, KIND, SHARE),
    variant=WAY,
    axis=Factor("calls", "network calls"),
    chance={"selective": 0.0},
    counted="texts",
    title="What is changed and mended, by network calls",
    caption="Bands are 95 % intervals by text and training seed.",
    means="Planted errors that were changed and mended, and right tokens that were changed",
    most=60,
)
MODELS = replace(
    MENDED,
    groups=(WAY, SHARE),
    variant=MODEL,
    against=lambda models: list(combinations(models, 2)),
    differences="One model minus another that corrects the same errors in the same way, by text",
)


def summarise(tables: Tables, settings: MendingSettings) -> Summary:
    """Means of each way, and one model minus another that corrects in the same way."""
    rows = tables["mending"].to_pylist()
    return MENDED.summarise(rows) | {"differences": MODELS.subtract(rows, "calls")}


def describe(result: Result) -> Sequence[ReportBlock]:
    """Whether each way finds errors, the curves over network calls, and the tables."""
    means, differences = result.summary["means"], result.summary["differences"]
    described = [*MENDED.state(result.summary), MENDED.draw(means, is_log2=True)]
    described.append(MENDED.tabulate(means))
    return [*described, MODELS.tabulate_differences(differences)] if differences else described


MEASURE = Measure(
    name="mending",
    title="Correction of planted errors",
    help="Plant errors into real texts: are they found and mended, and what is damaged?",
    settings=MendingSettings,
    tables={"mending": "mending/1"},
    inputs=REAL_TEXTS,
    jobs=list_jobs,
    summarise=summarise,
    describe=describe,
    method=__doc__,
)
