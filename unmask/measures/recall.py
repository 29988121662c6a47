"""recall: what models recall of facts, asked as trained and reversed, by the number of steps.

Every prompt is continued by every model at every step count. Of descriptions a text is right by its
content: it says this answer and none of the others that are asked for, in whatever words; at least
half of the answer's distinctive words stand there. Names have to be contained as they are; beside
it stands their surname, the last word. The study's rule is "contained" for both: the answer stands
in the text, case and outer blanks aside. A control holds the same text against another fact's
answer. Starts with: the text begins with the answer. Exact: it is the answer and nothing else; near
0 where training texts go on after the answer.

Intervals are 95 % intervals for other facts and, where facts are asked in several phrasings, for
other phrasings; for other training seeds where there are several (by adaptation, where a model's
runs start from several models). Differences are paired by fact. Facts that training showed both
ways are the positive control: a model that cannot recall them has not learned enough. Guidance is
0, as in traces and edits, unless another is named.

Log p: of the true answer by the chain rule from left to right, without guidance. Rank: of the true
answer among the answers of all facts of the split in the same phrasing (of at most 1000 that stand
near it, where a split has more), by log p for causal models and by the mean field (the whole answer
masked) for masked ones, so that these ranks of the two kinds are not the same quantity; by the
chain rule (`ranks=chain_rule`) they are. Likelier than shuffled: by log p, for the same prompt,
than another fact's answer in the same phrasing. In Berglund's own shuffled file most answers have
another grammatical form than their prompt wants, which makes the true one likelier without recall.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Literal

from unmask.base.config import option
from unmask.base.errors import UserError
from unmask.base.plugins import find_registry
from unmask.base.tables import find_row_groups
from unmask.blocks import labels, tidy
from unmask.blocks.blocks import ReportBlock
from unmask.measures.inputs import NEAR_AND_FAR, Member, ModelInputs
from unmask.measures.measure import Job, Measure, Rows, Stage, Summary, Tables
from unmask.measures.recall_section import describe_recall, draw_curves
from unmask.measures.recall_summary import is_asked, name_base, summarise
from unmask.measures.recall_texts import judge_kept
from unmask.measures.result import Result, name_folders
from unmask.measures.settings import SamplingSettings
from unmask.measures.stored import read_csv_rows

if TYPE_CHECKING:
    from unmask.evaluation.questions import Split


@dataclass(frozen=True, kw_only=True)
class RecallSettings(SamplingSettings):
    """How texts are drawn, and what they are held against."""

    filled = ("steps", "guidance")

    steps: tuple[int, ...] = option(
        (1, 2, 4, 8, 16, 32), "Denoising steps; causal models have none.", least=1, most=1_000_000
    )
    guidance: float | tuple[float, ...] = option(
        0.0, "Strength of guidance, or several; causal models have none.", least=0
    )
    ranks: Literal["mean_field", "chain_rule"] = option(
        "mean_field",
        "How masked models' answers are ranked: by chain_rule as well, which takes longer.",
    )
    rule: str | None = option(
        None,
        "A further rule by which a text counts as the answer, one of another package.",
        plugin="rule",
    )
    masks: Literal["canvas", "answer", "padded"] = option(
        "canvas",
        "Where masks stand: up to the canvas's end, as many as the true answer has tokens, which "
        "tells its length, or one more for a full stop, end tokens after them.",
    )
    signals: bool = option(
        False, "Keep what each text's trajectory says of it, and whether that tells wrong answers."
    )
    controls: bool = option(True, "Hold the texts against shuffled answers, too.")
    dtype: str = option(
        "auto", "float32, bfloat16, …; auto: bfloat16 on a GPU, else what suits file and processor."
    )
    dtype_on_gpu = "bfloat16"

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.strengths) == 1:  # recorded as a number, as runs always were
            object.__setattr__(self, "guidance", self.strengths[0])

    @property
    def strengths(self) -> tuple[float, ...]:
        """The strengths of guidance, each once."""
        several = self.guidance if isinstance(self.guidance, tuple) else (self.guidance,)
        return tuple(dict.fromkeys(map(float, several)))


def list_jobs(inputs: ModelInputs, settings: RecallSettings) -> Iterator[Job]:
    """One part for each checkpoint, split and step count; a long split is cut into several."""
    from unmask.evaluation.recall import AskedModel

    settings.check_strategies()
    if settings.rule is not None:
        find_registry("rule").find(settings.rule)
    for family in inputs.families:
        family.paradigm.require_scored(family.name, "recall is measured")
        if settings.masks == "padded" and not family.paradigm.fills_masks:
            raise UserError(
                f"padded masks were asked for, but {family.name} is a {family.kind} model: "
                "expected one that fills masks; leave it out."
            )
    splits = inputs.data.splits
    prepared: dict[str, AskedModel] = {}
    """The checkpoint worked on last, with the scores of its answers."""

    def work(
        member: Member, split: "Split", steps: int | None, guidance: float
    ) -> Mapping[str, Rows]:
        if member.key not in prepared:
            prepared.clear()
            model, by_chain = inputs.load(member), settings.ranks == "chain_rule"
            prepared[member.key] = AskedModel(
                model, splits, settings.length, by_chain, settings.masks
            )
        strategies = (settings.plan, settings.order, settings.rule, settings.signals)
        rows = prepared[member.key].measure(split, steps, guidance, *strategies)
        return {"recall": [member.columns | row for row in rows]}

    pieces = [(f"-{i:04d}" if i else "", part) for split in splits
              for i, part in enumerate(split.cut())]  # fmt: skip
    for member in inputs.members():
        # A causal model writes a token a step, without guidance, and is measured once.
        has_steps = member.family.paradigm.has_steps
        counts = sorted(set(settings.steps)) if has_steps else [None]
        strengths = settings.strengths if has_steps else (0.0,)
        for number, part in pieces:
            for guidance, steps in product(strengths, counts):
                key = f"{member.key}-{part.name}-{steps or 'any'}{number}"
                key += f"-guidance-{guidance:g}" if len(strengths) > 1 else ""
                cost = len(part.facts) * (steps or max(settings.steps))
                yield Job(key, partial(work, member, part, steps, guidance), cost)


def summarise_texts(tables: Tables, settings: RecallSettings) -> Summary:
    """All statistics; texts that a run kept without judging what they say are judged here."""
    return summarise({**tables, "recall": judge_kept(tables["recall"])}, settings)


def pool(results: Sequence[Result]) -> Tables:
    """The prompts and the step counts that all runs share, and a table of what was left out."""
    import pyarrow

    from unmask.measures.runner import pool_tables

    table = pool_tables(results)["recall"]
    askings = [
        find_row_groups(each.tables["recall"], "split", "prompt", "steps") for each in results
    ]
    prompts = [{key[:2] for key in each if is_asked(key[0])} for each in askings]
    # A run of causal models alone has no steps.
    counts = [steps for each in askings if (steps := {key[2] for key in each} - {None})]
    shared, steps = set.intersection(*prompts), set.intersection(*(counts or [set()]))
    names = " and ".join(name_folders([result.folder for result in results]))
    if not shared:
        raise UserError(
            f"{names} share no prompt: expected runs over the same data; draw them one by one."
        )
    if counts and not steps:
        lists = " against ".join(map(_list_steps, counts))
        raise UserError(
            f"{names} share no step count ({lists}): measure one of them anew with steps of the "
            "other, or draw them one by one."
        )
    columns = (table[name].to_pylist() for name in ("split", "prompt", "steps"))
    kept = [
        (name_base(split), prompt) in shared and (at is None or at in steps)
        for split, prompt, at in zip(*columns, strict=True)
    ]
    pooled = {"recall": table.filter(pyarrow.array(kept))}
    more, further = set.union(*prompts) - shared, set().union(*counts) - steps
    if not more and not further:
        return pooled
    text = (
        f"The runs are compared on the {labels.count(len(shared), 'prompt')} that all of them "
        f"asked; left out: {labels.count(len(more), 'prompt')}"
        f"{f' and the step counts {_list_steps(further)}' if further else ''} that only some have."
    )
    return pooled | {"left_out": pyarrow.Table.from_pylist([{"text": text}])}


def _list_steps(steps: set[int]) -> str:
    return ", ".join(map(str, sorted(steps)))


def _draw_stored(file: str) -> list[ReportBlock]:
    """Curves of recall; the twin has no steps."""
    cells = [
        {**row, "name": row["model"], "ending": "", "mean": row["percent"] / 100}
        | {end: row[end] / 100 for end in ("low", "high")}
        for row in read_csv_rows(file, ("steps",), ("percent", "low", "high"))
    ]
    splits = labels.order_splits(tidy.distinct(cells, "split"))
    return [draw_curves(sorted(cells, key=lambda cell: splits.index(cell["split"])))]


MEASURE = Measure(
    name="recall",
    title="What is recalled",
    help="Recall of facts, asked as trained and reversed, against the number of denoising steps.",
    settings=RecallSettings,
    tables={"recall": "recall/1"},
    inputs=NEAR_AND_FAR,
    jobs=list_jobs,
    summarise=summarise_texts,
    describe=describe_recall,
    method=__doc__,
    pool=pool,
    draw_stored=_draw_stored,
    stages=[
        Stage(
            sizes={
                "quick": {"limit": 6, "steps": (1, 4)},
                "laptop": {"limit": 14, "steps": (1, 2, 4, 8, 16)},
                "full": {"limit": None, "steps": (1, 2, 4, 8, 16, 32)},
            }
        )
    ],
)
