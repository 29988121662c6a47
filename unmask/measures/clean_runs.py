"""Prompts that are run clean before they are changed: which ones, and in which parts of a run.

For traces, which put clean states back, and for knock-out and paths, which also share their
settings.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal

from unmask.base.config import option, option_of
from unmask.base.errors import NotMeasuredError, UserError
from unmask.blocks import tidy
from unmask.blocks.blocks import Column, Table
from unmask.blocks.labels import OUTCOMES, name_corruption, name_split, name_stage, order_splits
from unmask.measures.contract import Job, Rows, Tables
from unmask.measures.inputs import Member, ModelInputs
from unmask.measures.settings import MachineSettings
from unmask.results.summaries import mark_outcome
from unmask.tracing.settings import BY_CHAIN, Corruption, Tracing, check_steps

if TYPE_CHECKING:
    import pyarrow

    from unmask.data.facts import Fact
    from unmask.tracing.clean_run import CleanRun


@dataclass(frozen=True)
class PromptStep:
    """A step of a prompt's clean run, which is to be changed."""

    clean: "CleanRun"
    step: int
    other: "Fact | None"
    """Another fact, for controls."""
    tracing: Tracing
    """Settings with their corruption."""


ChangeStep = Callable[[PromptStep, Any], Iterable[Mapping[str, Any]]]
"""A step and the measure's settings to the rows of its changes."""
WorkOnPrompt = Callable[[Member, str, "Fact"], "Mapping[str, Rows | pyarrow.Table]"]
"""(checkpoint, split, prompt) to the rows of a part."""


@dataclass(frozen=True, kw_only=True)
class CleanRunSettings(MachineSettings):
    """Which facts are asked, and how the clean runs are drawn and scored that are changed."""

    filled = ("at",)

    splits: tuple[str, ...] = option((), "Splits of the corpus; the four tests by default.")
    facts: int = option(30, "Facts of each split.", least=1)
    phrasings: int = option(1, "Phrasings of each fact.", least=1)
    consider: int | None = option(
        None,
        "Facts of each split to choose from: those that the first model recalls are taken first. "
        "By default no fact is preferred.",
        least=1,
    )
    at: tuple[str, ...] = option(
        ("first",),
        "Denoising steps at which this is measured: first, t1 and t2 (the steps that commit the "
        "answer's first and last token), t1..t2 (all between them), or numbers.",
    )
    corruption: str = option_of(Tracing, "corruption")
    samples: int = option_of(Tracing, "samples")
    joint: Literal["mean_field", "chain_rule"] = option(
        BY_CHAIN.joint,
        "How a diffusion model's answer of several tokens is scored: token by token, those before "
        "it given (chain_rule), or all its masks at once, as if independent (mean_field).",
    )
    steps: int = option_of(Tracing, "steps")
    guidance: float = option_of(Tracing, "guidance")
    order: str = option_of(Tracing, "order")
    remask: str = option_of(Tracing, "remask")
    length: int | None = option_of(Tracing, "length")
    any_answer: bool = option_of(Tracing, "any_answer")
    memory: float | None = option(
        None,
        "Gigabytes to use beside the weights; by default an amount that suits the device.",
        above=0,
        is_identity=False,
    )
    seed: int = option_of(Tracing, "seed")
    dtype: str = option("auto", "float32, bfloat16, …; auto: bfloat16 on a GPU, else float32.")
    dtype_on_gpu, dtype_elsewhere = "bfloat16", "float32"

    def _problems(self) -> Iterator[str]:
        yield from check_steps(self.at)

    @property
    def tracing(self) -> Tracing:
        """These settings as those of a trace."""
        names = ("corruption", "samples", "joint", "steps", "guidance", "length", "any_answer")
        same = {name: getattr(self, name) for name in (*names, "order", "remask", "seed", "at")}
        return Tracing(**same)

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory is None else int(self.memory * 1e9)


@dataclass(frozen=True)
class ChosenPrompts:
    """The prompts of a split that are run, and how many facts were looked at to choose them."""

    facts: "list[Fact]"
    considered: int | None = None
    recalled: int | None = None


def choose_prompts(
    inputs: ModelInputs, settings: CleanRunSettings, *, is_recalled: bool = False
) -> dict[str, ChosenPrompts]:
    """By split, so many facts in so many phrasings.

    Only recalled facts can be traced; a few taken as they come would often hold none. So where
    `consider` is given, the first model answers so many, and those it recalls come first. Where
    `is_recalled`, of each fact the first phrasings that it recalls are taken; one that it recalls
    in none stands in its first phrasing, so that it is counted.
    """
    from unmask.data.facts import gather_prompts
    from unmask.tracing.clean_run import rank_facts
    from unmask.tracing.facts import choose_facts

    # A model that cannot be guided is found before the others are run.
    unguided = [each for each in inputs.families if each.paradigm.sampler == "causal"]
    if settings.guidance and unguided:
        raise UserError(
            f"{unguided[0].name} is a {unguided[0].kind} model and has no pass without the prompt, "
            f"but guidance is {settings.guidance:g}: use guidance 0, or run it apart."
        )
    number, phrasings = settings.facts, settings.phrasings
    chosen: dict[str, ChosenPrompts] = {}
    for split in inputs.data.splits:
        if settings.consider is None and not is_recalled:
            chosen[split.name] = ChosenPrompts(choose_facts(split.facts, number, phrasings))
            continue
        wide = (number, len(split.facts)) if is_recalled else (settings.consider or 0, phrasings)
        considered = choose_facts(split.facts, *wide)
        model = inputs.load(inputs.members()[0])
        ranked, recalled = rank_facts(model, considered, settings.tracing)
        prompts = ranked[: number * phrasings]
        if is_recalled:
            known, prompts = set(ranked[:recalled]), []
            for same in gather_prompts(considered).values():
                same.sort(key=lambda fact: fact.phrasing)
                prompts += [fact for fact in same if fact in known][:phrasings] or same[:1]
        chosen[split.name] = ChosenPrompts(prompts, len(considered), recalled)
    return chosen


def make_jobs(
    members: Sequence[Member], chosen: Mapping[str, ChosenPrompts], work: WorkOnPrompt
) -> Iterator[Job]:
    """One part for each checkpoint and prompt; splits take turns, so that a cut run has all."""
    turns = zip_longest(*([(split, fact) for fact in own.facts] for split, own in chosen.items()))
    prompts = [prompt for turn in turns for prompt in turn if prompt is not None]
    for member in members:
        for i, (split, fact) in enumerate(prompts):
            # Facts of one's own may be called anything, files not.
            key = re.sub(r"[^\w.-]", "_", f"{member.key}-{i:05d}-{fact.fact_id}-{fact.direction}")
            yield Job(key, partial(work, member, split, fact))


def list_prompt_jobs(
    inputs: ModelInputs, settings: CleanRunSettings, table: str, change: ChangeStep
) -> Iterator[Job]:
    """The parts of a measure that changes the steps of each prompt's clean run."""
    from unmask.evaluation.questions import require_tokenizer
    from unmask.tracing.clean_run import NotTracedError, generate
    from unmask.tracing.facts import check_choices, choose_other, make_corruption
    from unmask.tracing.question import name_joint

    tracing = settings.tracing
    check_choices(tracing)
    chosen = choose_prompts(inputs, settings)
    pool = [fact for _, fact in inputs.data.facts()]
    corruptions: dict[str, Corruption] = {}

    def work(member: Member, split: str, fact: "Fact") -> Mapping[str, Rows]:
        model = inputs.load(member)
        if member.key not in corruptions:
            corruptions[member.key] = make_corruption(tracing, model, pool)
        corruption = corruptions[member.key]
        own = replace(tracing, corruption=corruption)
        keys = {**member.columns, "split": split, **fact.columns}
        record = {**keys, "prompt": fact.prompt, "object": fact.object, "said": ""}
        record |= {"corruption": corruption.name, "joint": name_joint(model, own)}
        try:
            clean = generate(model, fact, own)
        except NotTracedError as error:
            return {table: (), "facts": [record | {"kept": False, "reason": error.reason}]}
        other = choose_other(fact, pool, require_tokenizer(model), own.seed)
        rows = [
            {**keys, "stage": stage, "step": step, **row}
            for stage, step in clean.find_steps(own.at)
            for row in change(PromptStep(clean, step, other, own), settings)
        ]
        record |= {"said": clean.text, "kept": bool(rows), "reason": "" if rows else "no such step"}
        return {table: rows, "facts": [record]}

    yield from make_jobs(inputs.members(), chosen, work)


def count_prompts(tables: Tables) -> Rows:
    """How many prompts of each group were run, and why others were not; an error where none was."""
    facts, by = tables["facts"].to_pylist(), ("model", "kind", "split", "corruption", "joint")
    if not any(fact["kept"] for fact in facts):
        reasons = {fact["reason"] for fact in facts}
        if reasons <= {"not recalled", "not aligned"}:
            models = " and ".join(tidy.distinct(facts, "model"))
            raise NotMeasuredError("none recalled", models=models)
        raise UserError(
            f"no fact could be traced ({', '.join(sorted(reasons))}): give other facts, or other "
            "settings."
        )
    shared: dict[str, set[str]] = {}
    for (split, _), rows in tidy.group_by(facts, "split", "model").items():
        here = {fact["fact"] for fact in rows if fact["kept"]}
        shared[split] = shared.get(split, here) & here
    counts = []
    for key, rows in tidy.group_by(facts, *by).items():
        kept = tidy.select(rows, kept=True)
        reasons = Counter(fact["reason"] for fact in rows if not fact["kept"])
        row = dict(zip(by, key, strict=True)) | {
            "prompts": len(rows),
            "kept": len(kept),
            "facts": len(tidy.distinct(kept, "fact")),
            "shared": len(shared[key[2]]),
            "seeds": len(tidy.distinct(rows, "seed")),
            "left_out": ", ".join(f"{reasons[each]} {each}" for each in sorted(reasons)),
        }
        counts.append(row)
    return counts


def tabulate_counts(counts: Rows, more: Mapping[str | Column, tidy.Get] | None = None) -> Table:
    """The table of how many prompts of each group were run, and why others were not."""
    columns: dict[str | Column, tidy.Get] = {
        "model": "model",
        "asked": tidy.name_asked,
        "hidden by": name_corruption,
        "answers scored by": lambda row: row["joint"].replace("_", " "),
        "prompts": "prompts",
        "kept": "kept",
        "facts kept of every model": "shared",
        "left out": lambda row: row["left_out"] or None,
        **(more or {}),
    }
    return tidy.tabulate("counts", "Prompts asked, and those kept", counts, columns)


def tabulate_tests(rows: tidy.Records, caption: str, keys: Mapping[str, tidy.Get]) -> Table:
    """Shares of two groups compared, with what is shown; bold where they differ."""
    columns: dict[str | Column, tidy.Get] = {
        "one": lambda row: f"{row['model']}, {tidy.name_asked(row)}",
        "other": lambda row: f"{row['other_model']}, {name_split(row['other_split'])}",
        "step": lambda row: name_stage(row["stage"]),
        **keys,
        Column("difference of shares", has_sign=True): tidy.to_interval,
        Column("p of no difference (Holm)", 3): "p_holm",
        Column("p of one beyond the margin", 3): "p_equivalent",
        Column("smallest margin that would hold"): "smallest_margin",
        Column("power to find them alike"): "power",
        "facts": lambda row: f"{row['facts']} {'' if row['paired'] else 'un'}paired",
        "outcome": lambda row: OUTCOMES[row["outcome"]],
    }
    return tidy.tabulate("tests", caption, rows, columns, mark_outcome, most=40)


def list_told_groups(rows: tidy.Records) -> Iterator[tuple[bool, list[tidy.Record]]]:
    """The rows that a model's sentences are about, at the first step, each way of asking apart.

    All but the first way, in reverse where it was asked so, are further ones.
    """
    for members in tidy.group_by(rows, "model").values():
        for number, split in enumerate(order_splits(tidy.distinct(members, "split"))):
            first = tidy.select(members, split=split)
            yield number > 0, tidy.select(first, stage=first[0]["stage"])
