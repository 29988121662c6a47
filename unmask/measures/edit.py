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

Statements are judged from two sides: given the new object, the subject against another one, and
given that one's object, its owner against the edited subject; who always names the edited subject
is right half of the time. KL and bits per token are read on the last training texts, noised at
uniform times for a masked model, at the tokens that are hidden. Controls are the editor's own edit
in a layer drawn at random, the wrong subject's key, and another fact's delta, of equal norm. A
learned statement is trained by the model's own loss until its object costs as much as under the
edit. The sharing of keys is the cosine of a reverse question's key with the edited prompt's, minus
its mean over the other facts' edited prompts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from unmask.base.config import option
from unmask.base.errors import UserError
from unmask.measures.edit_section import describe, summarise
from unmask.measures.inputs import Member, ModelInputs, ModelsAndData, find_corpus
from unmask.measures.measure import Job, Measure
from unmask.measures.settings import MachineSettings
from unmask.representation.settings import choose_layers

if TYPE_CHECKING:
    from unmask.editing.requests import EditRequest

CHUNK = 10
"""Requests whose edits are one part of a run."""
NO_TEXT = {"text_kl": None, "text_bits_before": None, "text_bits_after": None}
CONTROLS = ("layer", "key", "delta", "tuned", "tuned-layer")


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
    controls: tuple[str, ...] = option(
        (),
        "Beside each edit: in a layer drawn at random, with the wrong subject's key, with another "
        "fact's delta, or the statement learned by the model's own loss, in the whole network "
        "(tuned) or the edited projections (tuned-layer).",
        choices=lambda: CONTROLS,
    )
    tune_updates: int = option(100, "Updates of a learned statement, at most.", least=1)
    tune_lr: float = option(1e-4, "Adam's learning rate of a learned statement.", above=0)
    text_rows: int = option(8, "Rows of training text to compare KL and bits on.", least=0)
    step_counts: tuple[int, ...] = option((), "Further step counts of generations.", least=1)
    lengths: tuple[int, ...] = option((), "Further canvases of generations.", least=2)
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
    if {"key", "delta"} & {*settings.controls} and len(requests) < 2:
        raise UserError("one edit has no other to take a key or a delta from: edit two, or more.")
    chunks = [range(len(requests))[i : i + CHUNK] for i in range(0, len(requests), CHUNK)]
    shared: dict[str, Preparation] = {}

    def work(member: Member, layers: Sequence[int], numbers: Sequence[int]) -> dict[str, Any]:
        model = inputs.load(member)
        if member.key not in shared:
            shared.clear()
            shared[member.key] = _prepare(model, layers, inputs.data, settings)
        # One canvas for all requests, whatever part they are in.
        ready = shared[member.key]
        examination = ready.examination
        # The next request's edit gives its key and its delta, whatever part it is in.
        following = {(i + 1) % len(requests) for i in numbers} if settings.controls else set()
        wanted = sorted({*numbers, *following})
        before = {i: examination.ask(requests[i].questions) for i in numbers}
        edits = _edit_each(model, ready, settings, [requests[i] for i in wanted], layers)
        made = dict(zip(wanted, edits, strict=True))
        moved: dict[int, Any] = {}
        if "layer" in settings.controls:
            own = [requests[i] for i in numbers]
            elsewhere = _edit_each(model, ready, settings, own, [ready.random_layer])
            moved = dict(zip(numbers, elsewhere, strict=True))
        rows, steps, canvases = [], [], []
        for i in numbers:
            which = member.columns | _describe(requests[i], made[i], settings, layers)
            cosines = examination.read_cosines(i, layers[-1])
            changes = {"edit": made[i]}
            if settings.controls:
                other = made[(i + 1) % len(requests)]
                changes |= _make_controls(
                    model, requests[i], made[i], other, moved.get(i), settings, examination.length
                )
            for variant, change in changes.items():
                one = which | {"variant": variant, "magnitude": change.magnitude}
                one |= NO_TEXT if ready.text is None else ready.text.compare(change)
                outcomes = list(examination.compare(i, change, before[i]))
                rows += [
                    one | outcome | {"cosine": cosine}
                    for outcome, cosine in zip(outcomes, cosines, strict=True)
                ]
                if variant == "edit":
                    more = settings.step_counts, settings.lengths
                    swept = examination.sweep(i, change, outcomes, *more)
                    canvases += [which | row for row in swept]
            steps += [which | step for step in examination.follow(i, made[i])]
        return {"edit": rows, "edit_steps": steps, "edit_canvases": canvases}

    for member in inputs.members():
        layers, _ = choose_layers(member.family.name, member.config.layers, settings.layer)
        for number, chunk in enumerate(chunks):
            yield Job(f"{member.key}-{number:03d}", partial(work, member, layers, chunk))


@dataclass(frozen=True)
class Preparation:
    """What all edits of a model share: the same in every process."""

    examination: Any
    """All requests on one canvas."""
    moments: Any
    prefixes: tuple[str, ...]
    random_layer: int
    text: Any
    """Text to compare on; None where there is none."""


def _prepare(
    model: Any, layers: Sequence[int], data: EditData, settings: EditSettings
) -> Preparation:
    from unmask.base.seeds import python_stream
    from unmask.editing.controls import UnrelatedText
    from unmask.editing.moments import moments
    from unmask.editing.outcomes import Examination
    from unmask.representation.prompts import make_prefixes

    # The last layer is not edited: what it writes at a subject is read nowhere else.
    others = [i for i in range(model.net.config.layers - 1) if i not in layers]
    if "layer" in settings.controls and not others:
        raise UserError(
            f"{model.name} has no layer beside those that are edited and its last: leave out the "
            "control layer, or edit fewer."
        )
    random_layer = python_stream(settings.seed, "layer").choice(others or list(layers))
    examination = Examination(model, data.requests, settings.steps, settings.length)
    prefixes = make_prefixes(model, settings.prefixes, settings.seed)
    gathered = None
    if settings.moments != "identity":
        needed = {*layers, *([random_layer] if "layer" in settings.controls else [])}
        gathered = moments(
            model,
            data.texts,
            sorted(needed),
            None if settings.moments == "states" else "clean",
            tokens=settings.moment_tokens,
            shrink=settings.shrink,
            seed=settings.seed,
        )
    text = None
    if data.texts and settings.text_rows:
        text = UnrelatedText(model, data.texts[::-1], settings.text_rows, settings.seed)
    return Preparation(examination, gathered, prefixes, random_layer, text)


def _edit_each(
    model: Any,
    ready: Preparation,
    settings: EditSettings,
    requests: "Sequence[EditRequest]",
    layers: Sequence[int],
) -> list[Any]:
    from unmask.editing.editor import edit_each

    names = ("method", "ridge", "reveal", "lr", "clamp", "length", "seed")
    return edit_each(
        model,
        [request.fact for request in requests],
        [request.object for request in requests],
        layers,
        ready.moments,
        **{name: getattr(settings, name) for name in names},
        steps=settings.search_steps,
        prefixes=ready.prefixes,
    )


def _make_controls(
    model: Any,
    request: "EditRequest",
    made: Any,
    other: Any,
    moved: Any,
    settings: EditSettings,
    length: int,
) -> dict[str, Any]:
    """The controls of one edit by name, in the order of `CONTROLS`."""
    from unmask.editing.controls import find_cost, swap_factors, tune

    makers: dict[str, Any] = {
        "layer": lambda: moved,
        "key": lambda: swap_factors(model, made, other, "key"),
        "delta": lambda: swap_factors(model, made, other, "delta"),
    }
    statement = request.questions[0].fact
    with made.on(model):
        target = find_cost(model, statement, length)
    for name, layers in (("tuned", None), ("tuned-layer", made.layers)):
        makers[name] = partial(
            tune,
            model,
            statement,
            target,
            layers,
            updates=settings.tune_updates,
            lr=settings.tune_lr,
            length=length,
            seed=settings.seed,
        )
    return {name: makers[name]() for name in CONTROLS if name in settings.controls}


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
        **{f"search_{name}": search[name] for name in names},
    }


MEASURE = Measure(
    name="edit",
    title="Edits, and whether the reverse follows",
    help="Write new objects into a model's weights, and ask forwards, nearby and in reverse.",
    settings=EditSettings,
    tables={
        "edit": "edit/2",
        "edit_steps": "edit-steps/1",
        "edit_canvases": "edit-canvases/1",
    },
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
