"""What the page's calls compute of a text: its tokens, how it is written, one position of it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.streams import RowStreams
from unmask.data.tokenizer import MASK
from unmask.evaluation.questions import STUDY_LENGTH
from unmask.explorer.requests import (
    CanvasRequest,
    PositionRequest,
    TokenizeRequest,
    WriteRequest,
    WriteSettings,
)
from unmask.explorer.session import TokenTexts
from unmask.explorer.worker import Emit
from unmask.net.model import Model
from unmask.representation.lens import logit_lens
from unmask.sampling import texts
from unmask.sampling.canvas import (
    check_lengths,
    encode_pattern,
    encode_prompt,
    lay_out_patterns,
    lay_out_prompts,
)
from unmask.sampling.denoiser import make_denoiser
from unmask.sampling.orders import get_order
from unmask.sampling.settings import Sampling
from unmask.sampling.state import StepState, find_entropy
from unmask.sampling.trajectory import Trajectory

TOP_POSITION, TOP_LENS = 10, 5
"""Candidates at a position, and at each layer of its logit lens."""


def tokenize(model: Model, request: TokenizeRequest) -> dict[str, Any]:
    """A text's tokens; `[MASK]` in it is a mask where the model has one."""
    tokens = encode_canvas(model, CanvasRequest(prompt=request.text))
    return {"tokens": TokenTexts(model).describe(tokens)}


def encode_canvas(model: Model, canvas: CanvasRequest) -> list[int]:
    """The tokens of a canvas, without the masks after a prompt."""
    if canvas.tokens is not None:
        return encode_pattern(model, canvas.tokens)
    assert canvas.prompt is not None
    encode = encode_pattern if _has_masks(model, canvas.prompt) else encode_prompt
    return encode(model, canvas.prompt)


def _has_masks(model: Model, prompt: str) -> bool:
    return MASK in prompt and model.paradigm.has_mask


@dataclass(frozen=True)
class Draw:
    """A call of `unmask.sample` or `unmask.infill`, to be made here or written as Python."""

    verb: Literal["sample", "infill"]
    given: str | list[int]
    settings: dict[str, Any]

    def run(self, model: Model, **more: Any) -> Trajectory:
        """Make the call."""
        call = texts.sample if self.verb == "sample" else texts.infill
        return call(model, self.given, Sampling(**{**self.settings, **more}))


def plan_draw(model: Model, canvas: CanvasRequest, settings: WriteSettings) -> Draw:
    """The call that writes a canvas. What stands on a canvas of tokens stays; masks are filled.

    A causal model continues what is given; order, guidance and remasking are not for it.
    """
    given = canvas.prompt if canvas.tokens is None else list(canvas.tokens)
    assert given is not None
    length = canvas.length or settings.length or min(STUDY_LENGTH, model.net.config.context)
    chosen: dict[str, Any] = {"seed": settings.seed}
    if settings.temperature is not None:
        chosen["temperature"] = settings.temperature
    if not model.paradigm.has_steps:
        return Draw("sample", given, {"length": length, **chosen})
    chosen |= {"steps": settings.steps, "order": settings.order, "guidance": settings.guidance}
    chosen["remask"] = settings.remasking
    if not isinstance(given, str) or _has_masks(model, given):
        return Draw("infill", given, chosen)
    return Draw("sample", given, {"length": length, **chosen})


def lay_out(model: Model, draw: Draw) -> tuple[list[int], list[bool]]:
    """The tokens that writing starts from, and which of them were given.

    A causal model's row begins as its prompt alone.
    """
    if draw.verb == "infill":
        canvas = lay_out_patterns(model, [draw.given])
    elif model.paradigm.has_steps:
        canvas = lay_out_prompts(model, [draw.given], draw.settings["length"])
    else:
        prompt = encode_prompt(model, draw.given)
        check_lengths(model, [draw.given], [prompt], draw.settings["length"])
        return prompt, [True] * len(prompt)
    return canvas.tokens[0].tolist(), canvas.fixed[0].tolist()


def count_steps(model: Model, draw: Draw, tokens: Sequence[int]) -> int:
    """Steps of writing from these tokens on; a causal model's are the tokens that it writes."""
    if model.paradigm.has_steps:
        return draw.settings["steps"]
    return draw.settings["length"] - len(tokens)


class WatchedOrder:
    """An order that remembers how unsure the model is at the open positions of each step."""

    def __init__(self, order: str):
        self.order = get_order(order)
        self.entropy: dict[int, float] = {}

    def __call__(self, state: StepState, streams: RowStreams) -> Float[Tensor, "1 L"]:
        positions = state.open[0].nonzero()[:, 0].tolist()
        self.entropy = dict(zip(positions, state.entropy[0, positions].tolist(), strict=True))
        return self.order(state, streams)


def write(model: Model, request: WriteRequest, emit: Emit) -> None:
    """Write a canvas; every step is an event with what changed and what was guessed before it."""
    names = TokenTexts(model)
    draw = plan_draw(model, request.canvas, request.settings)
    start, is_causal = time.perf_counter(), not model.paradigm.has_steps
    tokens, fixed = lay_out(model, draw)
    steps = count_steps(model, draw, tokens)
    emit("start", {"tokens": names.describe(tokens), "fixed": fixed, "steps": steps})
    order = WatchedOrder(request.settings.order)
    before, step = tokens, 0

    def watch(state: Trajectory) -> None:
        nonlocal before, step
        step += 1
        now = state.tokens[0].tolist()
        written = (state.committed_at[0] == step).nonzero()[:, 0].tolist()
        if is_causal:
            now = now[: max(written, default=len(before) - 1) + 1]
        changed = [at for at, old in enumerate(before) if now[at] != old and at not in written]
        back = [at for at in changed if now[at] == model.mask_id]
        written += [at for at in changed if at not in back]
        entropy = order.entropy or {at: float(state.entropy[0, at]) for at in written}
        confidence = {at: float(state.confidence[0, at]) for at in written}
        guesses = state.guesses(step)
        ids, p = guesses.ids[0].tolist(), guesses.p[0].tolist()
        emit(
            "step",
            {
                "step": step,
                "tokens": now,
                "texts": {at: names[now[at]] for at in written},
                "written": written,
                "back": back,
                "confidence": confidence,
                "entropy": entropy,
                "guesses": {
                    at: names.list_candidates(ids[at], p[at])
                    for at in guesses.open[0].nonzero()[:, 0].tolist()
                },
            },
        )
        before = now

    more = {} if is_causal else {"order": order}
    trajectory = draw.run(model, keep_states=False, guesses=request.top, watch=watch, **more)
    text = trajectory.texts[0] if trajectory.texts else " ".join(map(str, before))
    seconds = time.perf_counter() - start
    emit("end", {"text": text, "calls": trajectory.calls, "seconds": seconds})


@torch.inference_mode()
def look_at_position(model: Model, request: PositionRequest, emit: Emit) -> dict[str, Any]:
    """What the model says at a position of a canvas: candidates, attention, logit lens.

    Attention is that of the row which predicts the position.
    """
    names = TokenTexts(model)
    tokens = torch.tensor([encode_canvas(model, request.canvas)], device=model.device)
    given = request.canvas.fixed
    length, net = tokens.shape[1], model.net
    if model.paradigm.noises_vectors or net.config.time:
        raise UserError(
            f"the model {model.name} works on noised vectors or reads the time: its positions "
            "cannot be opened; its texts can be written."
        )
    most = length if model.paradigm.predicts_next else length - 1
    if request.position > most:
        raise UserError(
            f"the position {request.position} was asked for, expected 0 to {most}: select a token."
        )
    row = model.row_of(request.position)
    attention: list[Tensor] = []

    def keep_row(pattern: Float[Tensor, "1 H L L"]) -> Float[Tensor, "1 H L L"]:
        attention.append(pattern[0, :, row].clone())  # whole patterns would be large
        return pattern

    with net.patch({"layers.*.attn_pattern": keep_row}):
        logits = model.logits(tokens)
    aligned = row if model.paradigm.predicts_next else request.position
    logp = logits[0, aligned].log_softmax(-1, dtype=torch.float64)
    if model.paradigm.fills_masks:
        logp = predict(model, tokens, given, request.position, request.guidance)
    return {
        "top": names.rank(logp, TOP_POSITION),
        "entropy": float(find_entropy(logp)),
        "attention": [heads.tolist() for heads in attention],
        "lens": list_lens(model, names, tokens[0].tolist(), request.position),
    }


def list_lens(
    model: Model, names: TokenTexts, tokens: list[int], position: int
) -> list[list[dict[str, Any]]]:
    """What each layer would say at a position; [] for models that are not read this way."""
    if not model.paradigm.is_scored:
        return []
    # A causal model's next position is read in a row with one token more, which it does not see.
    row = tokens if position < len(tokens) else [*tokens, tokens[-1]]
    lens = logit_lens(model, row, positions=[position], top=TOP_LENS)
    pairs = zip(lens.ids[0, :, 0].tolist(), lens.p[0, :, 0].tolist(), strict=True)
    return [names.list_candidates(ids, p) for ids, p in pairs]


def predict(
    model: Model,
    tokens: Int[Tensor, "1 L"],
    given: Sequence[bool] | None,
    position: int,
    guidance: float,
) -> Float[Tensor, "V"]:
    """log p at a position, as the sampler sees it there; guidance hides what was `given`."""
    canvas = lay_out_patterns(model, [tokens[0]])
    if given is not None:
        known = torch.tensor([list(given)], device=model.device)
        # What earlier steps wrote was not given: a text may still end before it.
        canvas = replace(canvas, prompt=canvas.prompt & known, fixed=canvas.fixed & known)
    open_ = torch.arange(tokens.shape[1], device=model.device)[None] == position
    return make_denoiser(model, canvas, "none").predict(tokens, open_, guidance).rows[0]
