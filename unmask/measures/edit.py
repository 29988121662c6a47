"""edit: facts get new objects by a low-rank change of one layer's weights, one edit at a time; the
page shows what each did, and whether the reverse question follows.

The update maps the key of the subject to the value that makes the model say the new object, and
disturbs other keys least under their second moment (r-ROME with a ridge of 0, MEMIT above; see
`unmask/editing/update.py`). Success is the likelihood of the right answer against its rival, nats
per token by the chain rule: the new object against the old one on the edited prompt (efficacy) and
on other phrasings (paraphrase), a neighbour's own object against the new one (neighbourhood). Their
harmonic mean is that of the three means. Generations are read for the right answer. In reverse the
new object is given and the subject asked for, and the old one likewise; the subject's rank is among
all subjects of its group, by the mean field for a masked model. Fresh objects occur in no training
text; swapped ones have another owner, who may answer in reverse.

The share is how much of an edit acts at the last token of a prompt's subject, in closed form: 1 at
the key that it was written with. By step it is read in the edited model's own states.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from unmask.base.config import option
from unmask.base.errors import UserError
from unmask.blocks import blocks, labels, tidy
from unmask.blocks.blocks import Column
from unmask.measures.inputs import Member, ModelInputs, ModelsAndData, find_corpus
from unmask.measures.measure import Job, Measure, Rows, Summary, Tables
from unmask.measures.result import Result
from unmask.measures.settings import MachineSettings
from unmask.measures.summaries import estimate_means, subtract_shares
from unmask.representation.settings import choose_layers

if TYPE_CHECKING:
    from unmask.editing.requests import EditRequest

CHUNK = 10
"""Requests whose edits are one part of a run."""
METRICS = {
    "success_before": Column("right before, %", 1, is_percent=True),
    "success_after": Column("right after, %", 1, is_percent=True),
    "said_before": Column("said before, %", 1, is_percent=True),
    "said_after": Column("said after, %", 1, is_percent=True),
    "gain": Column("gain, nats per token"),
    "rank_before": Column("rank before", 1),
    "rank_after": Column("rank after", 1),
    "share": Column("share of the edit"),
}
SHARES = ("success_before", "success_after", "said_before", "said_after")
FORWARD = ("edited", "paraphrase", "neighbour")
"""Roles whose success makes up the score."""
ROLES = {
    "edited": "the edited prompt",
    "paraphrase": "other phrasings",
    "neighbour": "neighbours",
    "reverse new": "reversed, new object",
    "reverse old": "reversed, old object",
}


@dataclass(frozen=True, kw_only=True)
class EditSettings(MachineSettings):
    """Which facts are edited, how, and how the edited model is asked."""

    layer: str = option("auto", "auto (the middle one), 3, or 0,1,2 (spread over these).")
    groups: tuple[str, ...] = option(
        ("p2d", "d2p", "both"),
        "Facts by the direction they were trained in; one's own facts are one group.",
        choices=lambda: ("p2d", "d2p", "both"),
    )
    facts: int = option(20, "Facts of each group, edited one way and the other in turn.", least=1)
    objects: Literal["fresh", "swap"] = option(
        "fresh", "New objects: of no training text, or another fact's."
    )
    method: Literal["update", "null-space", "rome"] = option(
        "update", "Least harm, only where keys of text hardly point (AlphaEdit), or ROME's first."
    )
    ridge: float = option(0.0, "0 hits the values exactly; more disturbs less.", least=0)
    moments: Literal["states", "clean", "identity"] = option(
        "states", "Keys to spare: of the states that a model meets, of clean text, or all alike."
    )
    moment_tokens: int = option(20_000, "Tokens of training text to gather them on.", least=1)
    shrink: float = option(0.0, "The share of the identity in the moments.", least=0, most=1)
    reveal: Literal["none", "cycle", "random"] = option(
        "none", "Tokens of the object that a masked model is shown at a step of the search."
    )
    search_steps: int = option(20, "Evaluations of the search for values.", least=0)
    lr: float = option(0.5, "Adam's learning rate in the search.", above=0)
    clamp: float = option(4.0, "The longest change of a value, in lengths of it.", above=0)
    prefixes: int = option(4, "Texts put before a prompt where keys are read.", least=1)
    paraphrases: int = option(2, "Other phrasings that are asked.", least=0)
    neighbours: int = option(3, "Other facts that are asked.", least=0)
    steps: int = option(8, "Denoising steps of a generation.", least=1)
    length: int | None = option(None, "Positions of the canvas; 52 by default.", least=2)
    examples: int = option(4, "Answers to show of each model.", least=0, is_identity=False)
    seed: int = option(0, "Seed of objects, neighbours, prefixes and moments.", least=0)
    dtype: str = option("float32", "float32, bfloat16, …")


@dataclass(frozen=True)
class EditData:
    """What is edited, and texts to gather moments on."""

    requests: "list[EditRequest]"
    texts: list[str]


def _read(data: Any, settings: EditSettings, families: Any) -> tuple[EditData, str, str]:
    from unmask.base.identity import digest_values
    from unmask.editing.requests import make_requests, read_requests

    if isinstance(data, str | Path) and str(data).endswith(".json"):
        requests, texts, source = read_requests(data), list[str](), str(data)
    else:
        corpus = find_corpus(data, families)
        source = corpus.source
        texts = corpus.training_texts() if "train" in corpus.splits else []
        requests = make_requests(
            corpus,
            settings.groups,
            settings.facts,
            settings.objects,
            settings.paraphrases,
            settings.neighbours,
            settings.seed,
        )
    if settings.moments != "identity" and not texts:
        raise UserError(
            f"{source} has no training texts to gather moments of keys on: use moments identity, "
            "or a corpus with its training split."
        )
    return EditData(requests, texts), source, digest_values([*requests, *texts])


def list_jobs(inputs: ModelInputs, settings: EditSettings) -> Iterator[Job]:
    """For each checkpoint: its requests in chunks."""
    requests = inputs.data.requests
    chunks = [range(len(requests))[i : i + CHUNK] for i in range(0, len(requests), CHUNK)]
    shared: dict[str, tuple[Any, Any, Any]] = {}

    def work(member: Member, layers: Sequence[int], numbers: Sequence[int]) -> dict[str, Any]:
        from unmask.editing.editor import edit_each

        model, chunk = inputs.load(member), [requests[i] for i in numbers]
        if member.key not in shared:
            shared.clear()
            shared[member.key] = _prepare(model, layers, inputs.data, settings)
        # One canvas for all requests, whatever part they are in.
        examination, moments, prefixes = shared[member.key]
        before = [examination.ask(request.questions) for request in chunk]
        names = ("method", "ridge", "reveal", "lr", "clamp", "length", "seed")
        edits = edit_each(
            model,
            [request.fact for request in chunk],
            [request.object for request in chunk],
            layers,
            moments,
            **{name: getattr(settings, name) for name in names},
            steps=settings.search_steps,
            prefixes=prefixes,
        )
        rows, steps = [], []
        for number, request, made, old in zip(numbers, chunk, edits, before, strict=True):
            which = member.columns | _describe(request, made, settings, layers)
            rows += [which | outcome for outcome in examination.compare(number, made, old)]
            steps += [which | step for step in examination.follow(number, made)]
        return {"edit": rows, "edit_steps": steps}

    for member in inputs.members():
        layers, _ = choose_layers(member.family.name, member.config.layers, settings.layer)
        for number, chunk in enumerate(chunks):
            yield Job(f"{member.key}-{number:03d}", partial(work, member, layers, chunk))


def _prepare(
    model: Any, layers: Sequence[int], data: EditData, settings: EditSettings
) -> tuple[Any, Any, tuple[str, ...]]:
    """All requests on their canvas, moments and prefixes: the same in every process."""
    from unmask.editing.moments import moments
    from unmask.editing.outcomes import Examination
    from unmask.representation.prompts import make_prefixes

    examination = Examination(model, data.requests, settings.steps, settings.length)
    prefixes = make_prefixes(model, settings.prefixes, settings.seed)
    if settings.moments == "identity":
        return examination, None, prefixes
    gathered = moments(
        model,
        data.texts,
        layers,
        None if settings.moments == "states" else "clean",
        tokens=settings.moment_tokens,
        shrink=settings.shrink,
        seed=settings.seed,
    )
    return examination, gathered, prefixes


def _describe(
    request: "EditRequest", made: Any, settings: EditSettings, layers: Sequence[int]
) -> dict[str, Any]:
    (search,) = made.record["facts"]
    names = ("nll_before", "nll", "relative_distance", "stopped", "diverged")
    return {
        "group": request.group,
        "fact": request.fact.fact_id,
        "direction": request.fact.direction,
        "trained": request.fact.trained,
        "subject": request.fact.subject,
        "old": request.fact.object,
        "new": request.object,
        "objects": settings.objects,
        "layers": ",".join(map(str, layers)),
        "magnitude": made.magnitude,
        **{f"search_{name}": search[name] for name in names},
    }


def summarise(tables: Tables, settings: EditSettings) -> Summary:
    """Means by model and role, the score, forwards against reversed, and shares by step."""
    rows = tables["edit"].to_pylist()
    means = estimate_means(rows, ("model", "kind", "role"), list(METRICS), SHARES)
    steps = estimate_means(tables["edit_steps"].to_pylist(), ("model", "kind", "step"), ["share"])
    by_model = tidy.group_by(steps, "model").values()
    shown = tidy.select(rows, seed=0)
    examples = [
        row
        for own in tidy.group_by(shown, "model").values()
        for fact in tidy.distinct(own, "fact")[: settings.examples]
        for row in tidy.select(own, fact=fact)
        if row["text_after"] is not None
    ]
    return {
        "means": means,
        "ways": estimate_means(rows, ("model", "kind", "direction", "role"), list(METRICS), SHARES),
        "scores": list(_score(means)),
        "differences": list(_compare_directions(rows)),
        # As long as every fact has a state there: texts end at different steps.
        "steps": [row for own in by_model for row in own if row["facts"] == own[0]["facts"]],
        "examples": examples,
    }


def _score(means: Rows) -> Iterator[dict[str, Any]]:
    """The harmonic mean of the three means, as in the papers; 0 where one of them is."""
    after = tidy.select(means, metric="success_after")
    for (model, kind), own in tidy.group_by(after, "model", "kind").items():
        values = {row["role"]: row["mean"] for row in own if row["role"] in FORWARD}
        score = None
        if len(values) == len(FORWARD):
            score = 3 / sum(1 / value for value in values.values()) if all(values.values()) else 0.0
        yield {"model": model, "kind": kind, "score": score} | {
            role: values.get(role) for role in FORWARD
        }


def _compare_directions(rows: Rows) -> Iterator[dict[str, Any]]:
    """How much more often the new object is said forwards than the subject in reverse."""
    for (model, kind), own in tidy.group_by(rows, "model", "kind").items():
        reverse = tidy.select(own, role="reverse new")
        facts = {row["fact"] for row in reverse}
        forward = [row for row in tidy.select(own, role="edited") if row["fact"] in facts]
        if reverse:
            yield {"model": model, "kind": kind} | subtract_shares(forward, reverse, "said_after")


def describe(result: Result) -> Sequence[blocks.ReportBlock]:
    """What edits did: a sentence for each model, the scores, shares by step, texts side by side."""
    summary = result.summary
    scores = tidy.tabulate(
        "scores",
        "Share of edits that are right by likelihood, %",
        summary["scores"],
        {
            "model": "model",
            Column("efficacy", 1, is_percent=True): "edited",
            Column("paraphrase", 1, is_percent=True): "paraphrase",
            Column("neighbourhood", 1, is_percent=True): "neighbour",
            Column("harmonic mean", 1, is_percent=True): "score",
        },
    )
    means = tidy.tabulate_means(
        "means",
        "Before and after the edit",
        summary["means"],
        {"model": "model", "asked": lambda row: ROLES[row["role"]]},
        METRICS,
    )
    figure = tidy.draw_lines(
        summary["steps"],
        "shares",
        "How much of an edit acts while its answer is written",
        "At the subject's last token; 1 is all of it. Bands are 95 % intervals by fact.",
        x="step",
        line="model",
        colour=lambda row: "p3" if labels.is_causal(row["kind"]) else "p2",
        panel=lambda row: "the edited model's own states",
        xlabel="step",
        ylabel="share of the edit",
    )
    texts = tidy.tabulate(
        "examples",
        "Answers before and after",
        summary["examples"],
        {
            "model": "model",
            "asked": lambda row: ROLES[row["role"]],
            "prompt": "prompt",
            "right": "wanted",
            "before": "text_before",
            "after": "text_after",
        },
    )
    return [*_state(result), scores, means, figure, *([texts] if summary["examples"] else [])]


def _state(result: Result) -> Iterator[blocks.Finding]:
    for row in result.summary["differences"]:
        own = tidy.select(result.summary["means"], model=row["model"], metric="said_after")
        shares = {mean["role"]: tidy.say(tidy.to_interval(mean), "%") for mean in own}
        change = tidy.say(tidy.to_interval(row), "points")
        yield blocks.Finding(
            f"{row['model']} ({labels.KINDS[row['kind']]}) says {shares['edited']} of the new "
            f"objects when asked as edited, and {shares['reverse new']} of the subjects when given "
            f"the new object, a difference of {change}.",
            result.verdicts[row["model"]],
        )


MEASURE = Measure(
    name="edit",
    title="Edits, and whether the reverse follows",
    help="Write new objects into a model's weights, and ask forwards, nearby and in reverse.",
    settings=EditSettings,
    tables={"edit": "edit/1", "edit_steps": "edit-steps/1"},
    inputs=ModelsAndData(
        _read,
        "A corpus folder, a file of facts (with --objects swap), or records of CounterFact, BAKE "
        "or zsRE as JSON; by default the corpus that a shipped model was trained on.",
    ),
    jobs=list_jobs,
    summarise=summarise,
    describe=describe,
    method=__doc__,
)
