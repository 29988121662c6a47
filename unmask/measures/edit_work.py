"""The work of the measure `edit` on one checkpoint: edits, controls, answers, shares.

All requests of a part are searched in one batch and, on an accelerator, asked in one; questions
without an edit are asked once. What stays one by one are statements that are learned.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unmask.base.errors import UserError
from unmask.base.seeds import python_stream
from unmask.editing.controls import Swap, Tuned, UnrelatedText, find_cost, swap_factors, tune
from unmask.editing.edit import Edit
from unmask.editing.editor import edit_each
from unmask.editing.moments import Moments, moments
from unmask.editing.outcomes import Change, Examination, Reply
from unmask.editing.requests import EditRequest, find_recalled
from unmask.editing.sharing import (
    compare_directions,
    list_prompts,
    probe_directions,
    read_shares,
)
from unmask.evaluation.metrics import is_contained
from unmask.measures.edit_data import EditData, EditSettings, choose_requests
from unmask.net.model import Model
from unmask.representation.prompts import make_prefixes

SWAPS: tuple[Swap, ...] = ("key", "delta")
NO_TEXT = {"text_kl": None, "text_bits_before": None, "text_bits_after": None}


@dataclass(frozen=True)
class Preparation:
    """What all edits of a model share: the same in every process."""

    layers: tuple[int, ...]
    examination: Examination
    """All requests on one canvas."""
    moments: Moments | None
    condition: float | None
    """The largest condition number of the moments."""
    prefixes: tuple[str, ...]
    random_layer: int
    text: UnrelatedText | None
    cosines: list[float | None]
    """How alike key and value in reverse are, by request."""
    probes: dict[tuple[str, str], float]
    """The log-odds of probes across directions, by fact and the direction it is edited in."""

    @property
    def requests(self) -> list[EditRequest]:
        return self.examination.requests


def prepare_edits(
    model: Model, layers: tuple[int, ...], data: EditData, settings: EditSettings
) -> Preparation:
    """Everything that is read off the model before its first edit."""
    random_layer = _draw_layer(model, layers, settings)
    requests = _find_requests(model, data, settings)
    examination = Examination(model, requests, settings.steps, settings.length, settings.write_all)
    needed = {*layers, *([random_layer] if "layer" in settings.controls else [])}
    gathered = _gather_moments(model, data.texts, needed, settings)
    probes: dict[tuple[str, str], float] = {}
    if data.corpus is not None:
        facts = [request.fact.fact_id for request in requests]
        prompts = list_prompts(data.corpus, settings.groups, facts)
        probes = probe_directions(model, prompts, layers[-1], settings.length)
    text = None
    if data.other_texts:
        text = UnrelatedText(model, data.other_texts, settings.text_rows, settings.seed)
    return Preparation(
        layers=layers,
        examination=examination,
        moments=gathered,
        condition=None if gathered is None else max(map(gathered.condition, layers)),
        prefixes=make_prefixes(model, settings.prefixes, settings.seed),
        random_layer=random_layer,
        text=text,
        cosines=compare_directions(examination, layers[-1]),
        probes=probes,
    )


def _draw_layer(model: Model, layers: tuple[int, ...], settings: EditSettings) -> int:
    """The layer of the control that edits another one."""
    # The last layer is not edited: what it writes at a subject is read nowhere else.
    others = [i for i in range(model.net.config.layers - 1) if i not in layers]
    if "layer" in settings.controls and not others:
        raise UserError(
            f"{model.name} has no layer beside those that are edited and its last: leave out the "
            "control layer, or edit fewer."
        )
    return python_stream(settings.seed, "layer").choice(others or list(layers))


def _find_requests(model: Model, data: EditData, settings: EditSettings) -> list[EditRequest]:
    """The requests that were given, or those about facts that the model recalls."""
    if not settings.recalled:
        return data.requests
    assert data.corpus is not None
    where = data.corpus, settings.groups, settings.steps, settings.length
    requests = choose_requests(data.corpus, settings, find_recalled(model, *where))
    if len(requests) < 2:
        raise UserError(
            f"{model.name} says {len(requests)} of the facts, asked as they were trained: "
            "expected at least 2; leave recalled out, or train it for longer."
        )
    return requests


def _gather_moments(
    model: Model, texts: Iterable[str], layers: Iterable[int], settings: EditSettings
) -> Moments | None:
    """The moments that edits are weighed by; None is the identity."""
    if settings.moments == "identity":
        return None
    return moments(
        model,
        texts,
        sorted(layers),
        None if settings.moments == "states" else "clean",
        tokens=settings.moment_tokens,
        shrink=settings.shrink,
        seed=settings.seed,
    )


def work(
    model: Model,
    columns: Mapping[str, Any],
    ready: Preparation,
    chunk: range,
    settings: EditSettings,
) -> dict[str, list[dict[str, Any]]]:
    """The rows of some requests; a model that recalls fewer facts has fewer."""
    requests, examination = ready.requests, ready.examination
    numbers = [i for i in chunk if i < len(requests)]
    if not numbers:
        return {}
    # 1. Answers without an edit; the edits and their controls, asked together.
    before = dict(zip(numbers, examination.ask_clean(numbers), strict=True))
    edits = list(_make_edits(model, ready, numbers, settings))
    after = examination.ask_each([(i, edit) for i, _, edit in edits])
    made = {i: edit for i, variant, edit in edits if variant == "edit"}
    which = {
        i: {**columns, **_describe(requests[i], made[i], settings, ready, i, before[i])}
        for i in numbers
    }
    # 2. Where they act: in every state of the edits, in the first one of the controls.
    acting = list(read_shares(examination, [(i, edit) for i, _, edit in edits], after))
    first = {
        (at, place): row["share"]
        for at, place, row in acting
        if (row["states"], row["step"]) == ("given", 0)
    }
    by_state = [which[edits[at][0]] | row for at, _, row in acting if edits[at][1] == "edit"]

    # 3. A row for each question of a request under each change; statements are learned in turn.
    def compare(
        i: int, variant: str, change: Change, replies: Sequence[Reply]
    ) -> list[dict[str, Any]]:
        one = which[i] | {"variant": variant, "magnitude": change.magnitude}
        one |= {name: getattr(change, name, None) for name in ("updates", "reached")}
        one |= NO_TEXT if ready.text is None else ready.text.compare(change)
        rows = examination.compare(i, change, before[i], replies)
        return [one | row | {"share": None} for row in rows]

    rows: list[dict[str, Any]] = []
    for at, edit in enumerate(edits):
        numbered = enumerate(compare(*edit, after[at]))
        rows += [row | {"share": first[at, place]} for place, row in numbered]
    for i, variant, learned in _learn_each(model, ready, made, settings):
        rows += compare(i, variant, learned, examination.ask_each([(i, learned)])[0])
    canvases = _list_canvases(examination, rows, which, made, settings)
    return {"edit": rows, "edit_steps": by_state, "edit_canvases": canvases}


def _list_canvases(
    examination: Examination,
    rows: Sequence[Mapping[str, Any]],
    which: Mapping[int, Mapping[str, Any]],
    made: Mapping[int, Edit],
    settings: EditSettings,
) -> list[dict[str, Any]]:
    """Generations with the edits on: those of `rows` on the usual canvas, and those on others."""
    names = [*next(iter(which.values())), "role"]
    names += ["said_before", "said_after", "text_before", "text_after"]
    here = {"length": examination.length, "steps": settings.steps}
    own = [row for row in rows if row["variant"] == "edit" and row["text_after"] is not None]
    canvases = [{name: row[name] for name in names} | here for row in own]
    numbers = list(made)
    swept = examination.sweep(list(made.items()), settings.step_counts, settings.lengths)
    return canvases + [{**which[numbers[at]], **row} for at, row in swept]


def _make_edits(
    model: Model, ready: Preparation, numbers: Sequence[int], settings: EditSettings
) -> Iterator[tuple[int, str, Edit]]:
    """The edit of each request, and its controls."""
    # The next request's edit gives its key and its delta, whatever part it is in.
    following = {i: (i + 1) % len(ready.requests) for i in numbers}
    needs_other = bool({*SWAPS} & {*settings.controls})
    wanted = sorted({*numbers, *(following.values() if needs_other else ())})
    made = _edit_each(model, ready, settings, wanted, ready.layers)
    moved: dict[int, Edit] = {}
    if "layer" in settings.controls:
        moved = _edit_each(model, ready, settings, numbers, (ready.random_layer,))
    for i in numbers:
        yield i, "edit", made[i]
        if i in moved:
            yield i, "layer", moved[i]
        for swap in SWAPS:
            if swap in settings.controls:
                yield i, swap, swap_factors(model, made[i], made[following[i]], swap)


def _edit_each(
    model: Model,
    ready: Preparation,
    settings: EditSettings,
    numbers: Sequence[int],
    layers: tuple[int, ...],
) -> dict[int, Edit]:
    names = ("method", "ridge", "null_share", "reveal", "search_steps", "lr", "clamp", "kl")
    requests = [ready.requests[i] for i in numbers]
    edits = edit_each(
        model,
        [request.fact for request in requests],
        [request.object for request in requests],
        layers,
        ready.moments,
        **{name: getattr(settings, name) for name in (*names, "bare_weight", "length", "seed")},
        prefixes=ready.prefixes,
    )
    return dict(zip(numbers, edits, strict=True))


def _learn_each(
    model: Model, ready: Preparation, made: Mapping[int, Edit], settings: EditSettings
) -> Iterator[tuple[int, str, Tuned]]:
    """Statements learned until their objects cost as much as under their edits."""
    for i, edit in made.items():
        statement, length = ready.requests[i].questions[0].fact, ready.examination.length
        for name, layers in (("tuned", None), ("tuned-layer", edit.layers)):
            if name not in settings.controls:
                continue
            with edit.on(model):
                target = find_cost(model, statement, length)
            yield (
                i,
                name,
                tune(
                    model,
                    statement,
                    target,
                    layers,
                    updates=settings.tune_updates,
                    lr=settings.tune_lr,
                    length=length,
                    seed=settings.seed,
                ),
            )


def _describe(
    request: EditRequest,
    made: Edit,
    settings: EditSettings,
    ready: Preparation,
    number: int,
    before: Sequence[Reply],
) -> dict[str, Any]:
    (search,) = made.record["facts"]
    names = ("nll_before", "nll", "relative_distance", "stopped", "diverged")
    fact, text = request.fact, before[0].text
    return {
        "group": request.group,
        "fact": fact.fact_id,
        "direction": fact.direction,
        "trained": fact.trained,
        "subject": fact.subject,
        "old": fact.object,
        "new": request.object,
        "objects": request.objects,
        "recalled": text is not None and is_contained(text, fact.object),
        "layers": ",".join(map(str, ready.layers)),
        "condition": ready.condition,
        "cosine": ready.cosines[number],
        "probe": ready.probes.get((fact.fact_id, fact.direction)),
        **{f"search_{name}": search[name] for name in names},
    }
