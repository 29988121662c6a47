"""infilling: gaps are cut into real texts: how much of what stood there comes back?

A window of text loses the tokens in its middle. A masked diffusion model gets masks in their place,
and un-masks the likeliest first. A causal model cannot look ahead: it continues the text before the
gap, draws some more continuations, and keeps the one with which the whole text is likeliest. Both
are compared with themselves without the text after the gap, which is the control: what is right
there owes nothing to the second side. (The diffusion model then writes that text as well, at the
same pace.) Where the length is not told, masks stand up to the canvas's end, one gap more than are
needed, the diffusion model puts the text after the gap where it finds it likeliest, and what lies
before it counts, token by token from the gap's start. A gap has many good fillings and one that
counts, so numbers are low and comparisons are what matters. 95 % intervals are by text and training
seed. Models with one tokenizer see the same gaps, and are compared text by text.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import combinations
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

BOTH, BEFORE, OPEN = "both sides", "text before alone", "both sides, length not told"
"""What of the text is given to fill its gap."""
KEYS = {BOTH: "both", BEFORE: "before", OPEN: "open"}


@dataclass(frozen=True, kw_only=True)
class InfillingSettings(MachineSettings):
    """Which gaps are cut, and how hard they are tried."""

    filled = ("gaps",)

    texts: int = option(64, "Texts that gaps are cut into.", least=2)
    length: int = option(64, "Tokens of a text with its gap.", least=3)
    gaps: tuple[int, ...] = option((1, 4, 16), "Tokens of a gap.", least=1, most=100_000)
    steps: int = option(
        16, "Denoising steps of a masked model, never more than one a token.", least=1
    )
    candidates: int = option(
        16, "Continuations that a causal model draws beside the likeliest one.", least=1
    )
    seed: int = option(0, "Seed of what is drawn.", least=0)

    def _problems(self) -> Iterator[str]:
        if max(self.gaps) > self.length - 2:
            yield (
                f"'gaps' is {', '.join(map(str, self.gaps))} in texts of {self.length} tokens: "
                f"expected at most {self.length - 2}, a token on either side"
            )


def list_jobs(inputs: ModelInputs, settings: InfillingSettings) -> Iterator[Job]:
    """One part for each checkpoint, gap and what is given."""
    from unmask.experiments.infilling.fillers import fill_gap, fill_open_gap

    def cut(member: Member) -> Any:
        return cut_windows(inputs.load(member), inputs.data, settings.texts, settings.length)

    def work(member: Member, windows: Any, gap: int, given: str) -> Mapping[str, Rows]:
        model, columns = inputs.load(member), member.columns | {"gap": gap, "given": given}
        own = (model, windows(), gap)
        if given == OPEN:
            filled = fill_open_gap(*own, settings.steps)
        else:
            several = (settings.steps, settings.candidates, settings.seed)
            filled = fill_gap(*own, given == BOTH, *several)
        return {"infilling": [columns | {"fact": str(i)} | row for i, row in enumerate(filled)]}

    for family in inputs.families:
        if not family.paradigm.fills_masks and family.paradigm.sampler != "causal":
            raise UserError(
                f"{family.name} is a {family.kind} model: only masked and causal models fill gaps."
            )
    for member in inputs.members():
        windows = cache(partial(cut, member))  # once for all of its parts
        for gap in settings.gaps:
            for given, key in KEYS.items():
                # A causal model has no masks to leave open: it draws as much as the gap holds.
                if given != OPEN or member.family.paradigm.fills_masks:
                    job = partial(work, member, windows, gap, given)
                    yield Job(f"{member.key}-{gap}-{key}", job)


GIVEN = Factor("given", "given")
FILLED = Comparison(
    metrics={
        "right": Quantity("tokens that came back", "%"),
        "exact": Quantity("whole gaps that came back", "%"),
        "calls": Quantity("network calls for each text", digits=0, least=0.0),
    },
    groups=(MODEL, KIND),
    variant=GIVEN,
    against=[(BOTH, BEFORE), (OPEN, BOTH)],
    compared=("right", "exact"),
    axis=Factor("gap", "tokens of the gap"),
    counted="texts",
    title="Tokens that came back, by the size of the gap",
    caption="Bands are 95 % intervals by text and training seed. Dotted: the text before alone.",
    means="What came back of the gaps",
    differences="Both sides minus the text before alone; not told the length minus told it",
    controls=(BEFORE,),
    most=60,
)
MODELS = replace(
    FILLED,
    groups=(GIVEN,),
    variant=MODEL,
    against=lambda models: list(combinations(models, 2)),
    controls=(),
    names=("by given", "models"),
    differences="One model minus another that was given as much, by text",
)


def summarise(tables: Tables, settings: InfillingSettings) -> Summary:
    """Means, both sides minus one, and one model minus another."""
    rows = tables["infilling"].to_pylist()
    return FILLED.summarise(rows) | {"models": MODELS.subtract(rows, "gap")}


def describe(result: Result) -> Sequence[ReportBlock]:
    """What the second side is worth, the curves over the gap's size, and the tables."""
    summary = result.summary
    shown: list[ReportBlock] = [*FILLED.state(summary)]
    shown += [FILLED.draw(summary["means"], is_log2=True), FILLED.tabulate(summary["means"])]
    shown += [FILLED.tabulate_differences(summary["differences"])]
    if summary["models"]:
        shown.append(MODELS.tabulate_differences(summary["models"]))
    return shown


MEASURE = Measure(
    name="infilling",
    title="Gaps filled in real texts",
    help="Fill gaps in real texts, from both sides or from the text before: what comes back?",
    settings=InfillingSettings,
    tables={"infilling": "infilling/1"},
    inputs=REAL_TEXTS,
    jobs=list_jobs,
    summarise=summarise,
    describe=describe,
    method=__doc__,
)
