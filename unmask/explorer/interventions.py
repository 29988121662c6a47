"""What the page's calls change inside a network: traces, restored generations, moved states."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.data.facts import Fact
from unmask.data.words import put_space
from unmask.explorer.requests import (
    CanvasRequest,
    MoveRequest,
    PlaceRequest,
    RestoreRequest,
    TraceRequest,
    WriteSettings,
)
from unmask.explorer.session import TokenTexts
from unmask.explorer.views import Draw, encode_canvas, plan_draw, predict
from unmask.explorer.worker import Emit
from unmask.net.model import Model
from unmask.net.sites import Patch
from unmask.tracing.attribution import estimate_effects
from unmask.tracing.clean_run import CleanRun, find_state, generate
from unmask.tracing.corruption import Corruption, get_corruption, hide
from unmask.tracing.grid import TraceGrid
from unmask.tracing.metrics import score_cells
from unmask.tracing.settings import Tracing
from unmask.tracing.steps import trace_steps
from unmask.tracing.windows import default_window, window_of

SITES = {"resid": "resid_out", "mlp": "mlp_out", "attn": "attn_out"}
"""The site of each part whose single cells can be restored in a generation."""
LEAST_LOST = 0.1
"""Nats: less counts as so much, where shares of what is lost are estimated."""


def make_page_fact(prompt: str, subject: Sequence[int], answer: str) -> Fact:
    """A fact of the page: a prompt, the characters of its subject, and the answer after it."""
    # A space at the end would be a token of its own; the answer brings its own.
    prompt, answer = prompt.rstrip(), answer.strip()
    begin, end = subject[0], min(subject[1], len(prompt))
    completion = put_space(prompt, answer)
    return Fact(
        subject=prompt[begin:end],
        object=answer,
        prompt=prompt,
        completion=completion,
        subject_span=(begin, end),
        object_span=(len(completion) - len(answer), len(completion)),
        fact_id="explorer",
    )


def make_tracing(request: TraceRequest) -> Tracing:
    """The settings of the trace; an answer that the model does not say is put in its place."""
    return Tracing(
        parts=request.parts,
        corruption=request.corruption,
        samples=request.samples,
        at=(request.step,),
        steps=request.steps,
        any_answer=True,
        seed=request.seed,
    )


def begin_trace(model: Model, request: TraceRequest) -> tuple[CleanRun, Tracing]:
    settings = make_tracing(request)
    clean = generate(
        model, make_page_fact(request.prompt, request.subject, request.answer), settings
    )
    if not clean.find_steps(settings.at):
        raise UserError(
            f"the step {request.step} was asked for, but the answer is written at steps {clean.t1} "
            f"to {clean.t2}: name one of these or an earlier one."
        )
    return clean, settings


# A gradient is taken, which tensors made in inference mode would not allow.
@torch.inference_mode(False)
@torch.no_grad()
def trace(model: Model, request: TraceRequest, emit: Emit) -> None:
    """Trace a fact: first estimates of all cells, then each as it is run, the subject's first."""
    start = time.perf_counter()
    clean, settings = begin_trace(model, request)
    (grid,) = trace_steps(model, clean, settings, places=())
    emit(
        "start",
        {
            "tokens": TokenTexts(model).describe(grid.tokens),
            "layers": model.net.config.layers,
            "parts": list(request.parts),
            "clean": grid.clean,
            "corrupted": grid.corrupted,
            "subject": list(range(*grid.subject)),
            "answer": sorted(grid.answer),
            "step": grid.step,
            "said": clean.text,
            "forced": clean.forced,
            "window": grid.window,
        },
    )
    for part, values in estimate_cells(clean, settings).items():
        emit("estimate", {"part": part, "values": values})
    length, order = len(grid.tokens), [*range(*grid.subject), *range(clean.prompt_length)]
    order += [at for at in sorted(grid.answer) if at < length]
    places = tuple(dict.fromkeys([*order, *range(length)]))
    values = _CellValues(request.parts, model.net.config.layers, places, grid, emit)
    (whole,) = trace_steps(model, clean, settings, places=places, watch=values.add)
    values.send_rest(whole)
    emit("end", {"seconds": time.perf_counter() - start})


def estimate_cells(clean: CleanRun, settings: Tracing) -> dict[str, list[list[float]]]:
    """What each cell would give back to first order, by part and at [position][layer]: a share of
    the log p that is lost. From one gradient, before any state is restored."""
    model, parts = clean.model, tuple(part for part in settings.parts if part in SITES)
    if not parts:
        return {}
    ((_, step),) = clean.find_steps(settings.at)
    state, answer = find_state(clean, step, settings)
    corrupted = hide(get_chosen_corruption(settings), model, state, range(*clean.subject))
    settings = replace(settings, parts=parts, corruption=corrupted)
    length = clean.prompt_length
    grid = estimate_effects(model, state, clean.subject, answer, settings, prompt_length=length)
    # Where next to nothing is lost, shares would be of any size.
    lost = max(grid.total_effect, LEAST_LOST)
    return {part: (grid.effects(part) / lost).clamp(-1, 1).tolist() for part in parts}


def get_chosen_corruption(settings: Tracing) -> Corruption:
    """How the subject is hidden."""
    return get_corruption(settings.corruption, settings.samples, settings.seed)


class _CellValues:
    """Cells of a trace, each sent once: when all of its noise samples are there."""

    def __init__(
        self, parts: Sequence[str], layers: int, places: Sequence[int], grid: TraceGrid, emit: Emit
    ):
        self.parts, self.places, self.grid, self.emit = parts, places, grid, emit
        shape = len(parts), layers, len(places), len(grid.corrupted_logp)
        self.samples = torch.full(shape, torch.nan, dtype=torch.float64)
        self.is_sent = torch.zeros(shape[:3], dtype=torch.bool)

    def add(self, part: int, layer: int, head: int | None, at: Tensor, logp: Tensor) -> None:
        """Some (place, sample) pairs of a part's layer, with their log p."""
        grid, at = self.grid, at.cpu()
        scores = score_cells(grid.metric, logp.cpu(), grid.clean_logp, grid.corrupted_logp)
        self.samples[part, layer, at[:, 0], at[:, 1]] = scores
        self._send(part, layer, self.samples[part, layer].mean(-1))

    def send_rest(self, grid: TraceGrid) -> None:
        """Cells that cannot change anything are not run: their values are in the whole grid."""
        for number, part in enumerate(self.parts):
            for layer, column in enumerate(grid.scores[part].T):
                self._send(number, layer, column)

    def _send(self, part: int, layer: int, column: Float[Tensor, "place"]) -> None:
        is_new = column.isfinite() & ~self.is_sent[part, layer]
        self.is_sent[part, layer] |= is_new
        values = [[self.places[i], float(column[i])] for i in is_new.nonzero()[:, 0].tolist()]
        if values:
            self.emit("cells", {"part": self.parts[part], "layer": layer, "values": values})
        else:  # ends the work of a client that is gone
            self.emit("progress", {})


@torch.inference_mode()
def restore(model: Model, request: RestoreRequest, emit: Emit) -> dict[str, Any]:
    """What a model writes from the traced state on, its subject hidden, one clean cell put back.

    The cell's clean activation is put back at every step that follows, of the first noise sample;
    `p` is the cell's value in the trace.
    """
    if request.part not in SITES:
        raise UserError(f"the part {request.part} cannot be restored here: {', '.join(SITES)} can.")
    clean, settings = begin_trace(model, request)
    ((_, step),) = clean.find_steps(settings.at)
    state = clean.state_at(step)
    check_cell(model, request.layer, request.position, len(state))
    parts = replace(settings, parts=(request.part,))
    (grid,) = trace_steps(model, clean, parts, places=(request.position,))
    hidden = hide_subject(clean, state, settings)
    window = [request.layer]
    if request.part != "resid":
        layers = model.net.config.layers
        window = list(range(*window_of(request.layer, default_window(layers), layers)))
    sites = [f"layers.{layer}.{SITES[request.part]}" for layer in window]
    kept = capture_at(model, state, sites, request.position)
    emit("progress", {})
    corrupted = go_on(clean, step, hidden)
    restored = go_on(clean, step, hidden | put_in(kept, request.position))
    p = float(grid.scores[request.part][0, request.layer])
    return {"clean": clean.text, "corrupted": corrupted, "restored": restored, "p": p}


def hide_subject(clean: CleanRun, state: Int[Tensor, "L"], settings: Tracing) -> dict[str, Patch]:
    """A patch that hides the subject from every run, as the first noise sample does.

    It acts on embeddings alone: a canvas with masks in the subject's place would have them filled.
    """
    net, subject = clean.model.net, slice(*clean.subject)
    corrupted = hide(get_chosen_corruption(settings), clean.model, state, range(*clean.subject))
    embedded = corrupted.embed(net.embedding(corrupted.tokens))[0, subject]

    def act(x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        x = x.clone()
        x[:, subject] = embedded
        return x

    return {"embed": act}


def go_on(clean: CleanRun, step: int, patches: Mapping[str, Patch]) -> str:
    """What the model says after the prompt, from the state of a step on, while it is patched."""
    model, length = clean.model, clean.states.shape[1]
    if model.paradigm.has_steps:
        left = max(1, len(clean.states) - step)
        draw = Draw("infill", clean.state_at(step).tolist(), {"steps": left})
    else:
        draw = Draw("sample", clean.states[0][: clean.prompt_length].tolist(), {"length": length})
    with model.net.patch(patches):
        trajectory = draw.run(model, keep_states=False)
    assert model.tokenizer is not None
    return model.tokenizer.decode(trajectory.tokens[0, clean.prompt_length :].tolist())


def capture_at(
    model: Model, tokens: Int[Tensor, "L"], sites: list[str], position: int
) -> dict[str, Float[Tensor, "D"]]:
    """Activations of a text at one position, by site."""
    with model.net.capture(*sites) as kept:
        model.logits(tokens[None])
    return {site: kept[site][0, position] for site in sites}


def put_in(vectors: Mapping[str, Float[Tensor, "D"]], position: int) -> dict[str, Patch]:
    """Patches that put vectors at a position, in runs that are long enough to have it."""

    def make(vector: Tensor) -> Patch:
        def act(x: Tensor) -> Tensor:
            if position >= x.shape[1]:
                return x
            x = x.clone()
            x[:, position] = vector
            return x

        return act

    return {site: make(vector) for site, vector in vectors.items()}


def check_cell(model: Model, layer: int, position: int, length: int) -> None:
    layers = model.net.config.layers
    if layer >= layers or position >= length:
        raise UserError(
            f"layer {layer} at position {position} was asked for: expected layers from 0 to "
            f"{layers - 1} and positions from 0 to {length - 1}."
        )


@dataclass(frozen=True)
class State:
    """A row of tokens in the midst of being written, and the call that writes the rest of it."""

    tokens: Int[Tensor, "L"]
    rest: Draw


def find_place_state(model: Model, place: PlaceRequest, settings: WriteSettings) -> State:
    """The state that a place is in: the canvas itself, or of a prompt that of a step of its run."""
    settings = replace(settings, steps=place.steps)
    tokens = encode_canvas(model, place.canvas)
    if place.canvas.tokens is None:
        trajectory = plan_draw(model, place.canvas, settings).run(model)
        assert trajectory.states is not None
        states = trajectory.states[:, 0].tolist()
        if place.step > len(states):
            raise UserError(
                f"step {place.step} was asked for, but the run has {len(states) - 1} steps."
            )
        end = None if model.paradigm.has_steps else len(tokens) + place.step - 1
        tokens = states[place.step - 1][:end]
    left = replace(settings, steps=max(1, place.steps - place.step + 1))
    canvas = CanvasRequest(tokens=tuple(tokens), length=place.canvas.length)
    row = torch.tensor(tokens, device=model.device)
    check_cell(model, place.layer, place.position, len(row))
    return State(row, plan_draw(model, canvas, left))


@torch.inference_mode()
def move(model: Model, request: MoveRequest, emit: Emit) -> dict[str, Any]:
    """Put a state of the residual stream into another run, for all steps that are left of it.

    `before_p` and `after_p` are the probabilities of one token, the likeliest before, at the first
    position that is still open.
    """
    names = TokenTexts(model)
    source = find_place_state(model, request.source, request.settings)
    target = find_place_state(model, request.target, request.settings)
    emit("progress", {})
    site = f"layers.{request.source.layer}.resid_out"
    (vector,) = capture_at(model, source.tokens, [site], request.source.position).values()
    patch = put_in({f"layers.{request.target.layer}.resid_out": vector}, request.target.position)
    open_ = find_open(model, target.tokens)
    texts, predictions = [], []
    for patches in ({}, patch):
        with model.net.patch(patches):
            trajectory = target.rest.run(model, keep_states=False)
            predictions.append(read_open(model, target.tokens, open_, request.settings.guidance))
        shown = trajectory.texts or [" ".join(map(str, trajectory.tokens[0].tolist()))]
        texts.append(shown[0])
        emit("progress", {})
    token = int(predictions[0].argmax())
    before, after = (float(logp[token].exp()) for logp in predictions)
    return {
        "before": texts[0],
        "after": texts[1],
        "before_p": before,
        "after_p": after,
        "position": open_,
        "token": names.describe([token])[0],
        "candidates": names.rank(predictions[1], 5),
    }


def find_open(model: Model, tokens: Int[Tensor, "L"]) -> int:
    """The first position that is still to be written: its first mask, or the one after its end."""
    if not model.paradigm.has_steps:
        return len(tokens)
    masks = [at for at, token in enumerate(tokens.tolist()) if token == model.mask_id]
    if not masks:
        raise UserError("nothing is open in the run to move to: choose an earlier step.")
    return masks[0]


def read_open(
    model: Model, tokens: Int[Tensor, "L"], position: int, guidance: float
) -> Float[Tensor, "V"]:
    """log p at an open position."""
    if model.paradigm.has_steps:
        return predict(model, tokens[None], None, position, guidance)
    return model.logits(tokens[None])[0, -1].log_softmax(-1, dtype=torch.float64)
