"""knockout: what an answer loses when some positions cannot attend to others, in a few layers.

Attention knock-out (Geva et al. 2023, arXiv 2304.14767). An edge names the positions that attend
and those they attend to: the answer's positions to the subject, other masks to the subject, and so
on. In the layers of a window its pairs of positions are taken out of attention; everything else
runs as before. What is lost is what the model needs of this edge in these layers and cannot get by
another path. A trace says which states are enough to bring an answer back; this says which
attention it needs.

An effect is the answer's score with nothing cut minus its score with the edge cut. The total effect
is the score with nothing cut minus that with the subject hidden. Scores are the probability, the
log-probability per token and the logit difference to another fact's answer, all of the same runs.
Intervals are 95 % t intervals over facts. Two groups count as alike where their effects, as shares
of the total effect, differ by less than the margin in every layer, by two one-sided tests. Finding
no difference does not make two groups alike.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal

from unmask.base.config import option
from unmask.measures.inputs import QUESTIONS, Member, ModelInputs
from unmask.measures.knockout_section import describe
from unmask.measures.knockout_summary import (
    CELL,
    CLEAN,
    HIDDEN,
    METRICS,
    WHOLE,
    judge,
    summarise,
)
from unmask.measures.measure import Job, Measure, Rows, Stage
from unmask.measures.settings import MachineSettings
from unmask.tracing.settings import Corruption, Tracing

if TYPE_CHECKING:
    from unmask.data.facts import Fact
    from unmask.tracing.clean_run import CleanRun
    from unmask.tracing.knockout import KnockoutGrid


@dataclass(frozen=True, kw_only=True)
class CleanRunSettings(MachineSettings):
    """Which facts are asked, and how the clean runs are drawn and scored that are changed."""

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
    corruption: str = option(
        "mean",
        "How the subject is hidden for the total effect: mean, gaussian, uniform, rome, mask or "
        "replace.",
    )
    samples: int = option(10, "Random draws of a corruption that is random.", least=1, most=100_000)
    joint: Literal["mean_field", "chain_rule"] = option(
        "chain_rule",
        "How a diffusion model's answer of several tokens is scored: token by token, those before "
        "it given (chain_rule), or all its masks at once, as if independent (mean_field).",
    )
    steps: int = option(16, "Denoising steps of the clean run.", least=1, most=1_000_000)
    guidance: float = option(
        0.0, "Strength of a diffusion model's classifier-free guidance; 0 is off.", least=0
    )
    order: str = option(
        "confidence",
        "Which masks the clean run commits first: confidence, entropy, margin, left or random.",
    )
    remask: str = option(
        "none",
        "Which tokens the clean run masks again: none, cap, rescale, conf, loop or low.",
    )
    length: int | None = option(
        None, "Positions of the canvas; 52 by default, or what a text needs.", least=2
    )
    any_answer: bool = option(
        False, "Keep facts that are not recalled as well, with the true answer written in."
    )
    memory: float | None = option(
        None,
        "Gigabytes to use beside the weights; by default an amount that suits the device.",
        above=0,
        is_identity=False,
    )
    seed: int = option(0, "Seed of the noise, the other facts and the tests.", least=0)
    dtype: str = option("auto", "float32, bfloat16, …; auto: bfloat16 on a GPU, else float32.")
    dtype_on_gpu, dtype_elsewhere = "bfloat16", "float32"

    @property
    def tracing(self) -> Tracing:
        """The same as settings of a trace."""
        names = ("corruption", "samples", "joint", "steps", "guidance", "length", "any_answer")
        same = {name: getattr(self, name) for name in (*names, "order", "remask", "seed", "at")}
        return Tracing(**same)

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory is None else int(self.memory * 1e9)


@dataclass(frozen=True, kw_only=True)
class KnockoutSettings(CleanRunSettings):
    """Which facts are asked, and which edges are cut where."""

    edges: tuple[str, ...] = option(
        (
            *("answer:subject", "answer:prompt", "answer:last", "answer:masks", "answer:answer"),
            *("prompt:subject", "last:subject", "masks:subject", "others:subject"),
        ),
        "Which positions cannot attend to which, as FROM:TO: answer:subject stops the answer's "
        "positions from attending to the subject. Roles are subject, prompt (its other tokens), "
        "last (the prompt's last token), answer (where the answer is predicted), written (other "
        "tokens after the prompt), masks (other masks) and others (all but the other end).",
    )
    windows: tuple[int, ...] = option(
        (1, 5),
        "Numbers of layers that are cut together, around each layer. A cut in all layers is always "
        "measured as well.",
        least=1,
        most=1_000_000,
    )
    margin: float = option(
        0.1,
        "Two groups are alike where their effects differ by less than this share of the total "
        "effect.",
        above=0,
    )

    def _problems(self) -> Iterator[str]:
        if not self.edges or len(set(self.edges)) < len(self.edges):
            yield f"'edges' is {self.edges}, expected at least one, and none twice"


def list_jobs(inputs: ModelInputs, settings: KnockoutSettings) -> Iterator[Job]:
    """One part for each model and prompt."""
    from unmask.tracing.knockout import name_edges

    name_edges(settings.edges)
    return list_prompts(inputs, settings, "knockout", partial(_cut_step, settings=settings))


ChangeStep = Callable[["CleanRun", int, "Fact | None", Tracing], Iterable[Mapping[str, Any]]]
"""(clean run, step, another fact or none, settings with their corruption) to rows."""


def list_prompts(
    inputs: ModelInputs, settings: CleanRunSettings, table: str, change: ChangeStep
) -> Iterator[Job]:
    """One part for each model and prompt; splits take turns, so that a cut run has all of them."""
    from unmask.measures.trace import choose_prompts
    from unmask.tracing.facts import check_choices

    check_choices(settings.tracing)
    questions = inputs.data
    chosen = [
        [(split.name, fact) for fact in choose_prompts(inputs, split.facts, settings).facts]
        for split in questions.splits
    ]
    prompts = [each for turn in zip_longest(*chosen) for each in turn if each is not None]
    pool = [fact for _, fact in questions.facts()]
    corruptions: dict[str, Corruption] = {}

    def work(member: Member, split: str, fact: "Fact") -> Mapping[str, Rows]:
        from unmask.tracing.facts import make_corruption

        model = inputs.load(member)
        if member.key not in corruptions:
            corruptions[member.key] = make_corruption(settings.tracing, model, pool)
        tracing = replace(settings.tracing, corruption=corruptions[member.key])
        keys = {**member.columns, "split": split, "fact": fact.fact_id}
        keys |= {name: getattr(fact, name) for name in ("phrasing", "direction", "trained")}
        rows, record = _change_fact(model, fact, pool, tracing, change, keys)
        return {table: rows, "facts": [record]}

    for member in inputs.members():
        for i, (split, fact) in enumerate(prompts):
            # Facts of one's own may be called anything, files not.
            key = re.sub(r"[^\w.-]", "_", f"{member.key}-{i:05d}-{fact.fact_id}-{fact.direction}")
            yield Job(key, partial(work, member, split, fact))


def _change_fact(
    model: Any,
    fact: "Fact",
    pool: "Sequence[Fact]",
    tracing: Tracing,
    change: ChangeStep,
    keys: Mapping[str, Any],
) -> tuple[Rows, Mapping[str, Any]]:
    """The rows of one fact, and what became of it."""
    from unmask.evaluation.questions import require_tokenizer
    from unmask.tracing.clean_run import NotTracedError, generate
    from unmask.tracing.facts import choose_other
    from unmask.tracing.question import name_joint

    assert isinstance(tracing.corruption, Corruption)
    record = {**keys, "prompt": fact.prompt, "object": fact.object, "said": ""}
    record |= {"corruption": tracing.corruption.name, "joint": name_joint(model, tracing)}
    try:
        clean = generate(model, fact, tracing)
    except NotTracedError as error:
        return (), record | {"kept": False, "reason": error.reason}
    other = choose_other(fact, pool, require_tokenizer(model), tracing.seed)
    rows = [
        {**keys, "stage": stage, "step": step, **row}
        for stage, step in clean.find_steps(tracing.at)
        for row in change(clean, step, other, tracing)
    ]
    record |= {"said": clean.text, "kept": bool(rows), "reason": "" if rows else "no such step"}
    return rows, record


def _cut_step(
    clean: "CleanRun",
    step: int,
    other: "Fact | None",
    tracing: Tracing,
    settings: KnockoutSettings,
) -> Iterator[dict[str, Any]]:
    """A row for each edge and window, and for the scores with nothing cut and the subject hidden.

    Edges that cut nothing, of a causal model or of a state without such positions, have none.
    """
    from unmask.evaluation.questions import require_tokenizer
    from unmask.tracing.facts import make_foil
    from unmask.tracing.knockout import cut_edges
    from unmask.tracing.windows import window_of

    foil = make_foil(clean, other, require_tokenizer(clean.model)) if other is not None else {}
    layers = clean.model.net.config.layers
    cells = [
        (width, layer, *window_of(layer, width, layers))
        for width in settings.windows
        for layer in range(layers)
    ]
    cells.append((WHOLE, -1, 0, layers))
    grid = cut_edges(
        clean.model,
        clean,
        tracing,
        edges=settings.edges,
        layers=[(first, end) for *_, first, end in cells],
        step=step,
        foil=foil or None,
        memory=settings.memory_bytes,
    )
    named = {name: name in _list_metrics(grid) for name in METRICS}
    ends = dict(zip(CELL[1:], (WHOLE, -1, -1, -1), strict=True)) | {"pairs": 0.0}
    for edge, read in ((CLEAN, grid.clean_value), (HIDDEN, grid.corrupted_value)):
        values = {name: read(name) if is_there else None for name, is_there in named.items()}
        yield {"edge": edge, **ends, **values}
    values = {name: grid.values(name).tolist() for name, is_there in named.items() if is_there}
    for i, edge in enumerate(grid.edges):
        for j, (width, layer, first, end) in enumerate(cells if grid.pairs[i] else ()):
            where = dict(zip(CELL, (edge, width, layer, first, end - 1), strict=True))
            scores = {name: values[name][i][j] if name in values else None for name in METRICS}
            yield where | {"pairs": grid.pairs[i], **scores}


def _list_metrics(grid: "KnockoutGrid") -> list[str]:
    """The metrics that can be had: without a foil there is no logit difference."""
    has_foil = grid.clean_logp.shape[1] > 1
    return [name for name in METRICS if has_foil or name != "logit_difference"]


_FULL: dict[str, Any] = {"facts": 30, "consider": 30}
_QUICK: dict[str, Any] = {"facts": 1, "consider": 6, "steps": 4, "windows": (1,)}

MEASURE = Measure(
    name="knockout",
    title="What an answer needs to read",
    help="Find which positions an answer must attend to, and in which layers (attention "
    "knock-out).",
    settings=KnockoutSettings,
    tables={"knockout": "knockout/1", "facts": "knockout-facts/1"},
    inputs=QUESTIONS,
    jobs=list_jobs,
    summarise=summarise,
    judge=judge,
    describe=describe,
    method=__doc__,
    stages=[Stage(sizes={"quick": _QUICK, "laptop": _FULL | {"facts": 8}, "full": _FULL})],
)
