"""Texts from a model: the two verbs, whatever its kind."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.base.config import adjust, list_settings
from unmask.base.errors import UserError
from unmask.net.model import Model
from unmask.net.readings import split_reading
from unmask.sampling.ancestral import walk_back
from unmask.sampling.attributes import AttributeGuidance
from unmask.sampling.autoregressive import decode_causal
from unmask.sampling.canvas import (
    Canvas,
    Prompt,
    check_lengths,
    check_model,
    encode_prompt,
    lay_out_patterns,
    lay_out_prompts,
    list_prompt_rows,
    name_streams,
)
from unmask.sampling.constraints import Constraints, fix_tokens
from unmask.sampling.correctors import get_corrector
from unmask.sampling.guidance import guidance_schedule
from unmask.sampling.loop import fill_masks
from unmask.sampling.orders import get_order
from unmask.sampling.plans import get_plan
from unmask.sampling.planting import lay_out_plants
from unmask.sampling.probes import StateProbe
from unmask.sampling.remasking import get_remasking
from unmask.sampling.settings import Sampling
from unmask.sampling.speculation import speculate
from unmask.sampling.steps import Strategy
from unmask.sampling.token_sampler import TokenSampler
from unmask.sampling.trajectory import BYTES_PER_GUESS, MOST_GUESS_BYTES, Trajectory

_NOT_FOR_PATTERNS = ("length", "fixed", "chat")
"""Settings that a text with masks in it answers itself."""


@list_settings(Sampling)
def sample(
    model: Model,
    prompts: Prompt | Sequence[Prompt],
    settings: Sampling | None = None,
    **changes: Any,
) -> Trajectory:
    """Texts that continue the prompts, un-masked in `steps` steps, with all states in between.

    A row's text is the same alone and in any batch: it depends on the seed and its prompt alone.
    Uniform, hybrid and gaussian models step back through their own noise instead; a causal model
    writes from left to right, one token per step. What has no meaning for a kind of model, such as
    the order for these, is left unread.

    Args:
        model: Of any kind.
        prompts: A text or token ids, or a list of them; rows may differ in length.
        settings: All of the settings below as one object, `unmask.Sampling`, which says more.
        changes: Single settings by name, which come before those of `settings`.

    Keyword Args:
        {settings}

    >>> model = unmask.load("reversal-mdm", device="cpu")
    >>> drawn = unmask.sample(model, ["We sat down beside", "A quiet"], steps=4, length=12)
    >>> len(drawn.texts), drawn.tokens.shape, drawn.states.shape
    (2, torch.Size([2, 12]), torch.Size([5, 2, 12]))
    """
    check_model(model)
    settings = adjust(sample, Sampling, settings, changes)
    return draw_rows(model, list_prompt_rows(prompts), settings)


def draw_rows(
    model: Model, given: Sequence[Prompt], settings: Sampling, copies: Sequence[int] | None = None
) -> Trajectory:
    """What `sample` draws; `copies` numbers each row among equal prompts, by default in `given`.

    A list that is drawn in several batches is numbered as a whole: its texts are then the same
    however it is cut.
    """
    if settings.chat:
        given = [_say(model, prompt) for prompt in given]
    constraints = Constraints.make(settings.fixed, settings.forbid, settings.require)
    if model.paradigm.sampler != "causal":
        canvas = fix_tokens(model, lay_out_prompts(model, given, settings.length), constraints)
        return _fill(model, canvas, settings, constraints, copies)
    if any(guidance_schedule(settings.guidance, settings.steps)):
        raise UserError("an autoregressive model has no unconditional pass: use guidance 0.")
    _refuse_masked_only(model, settings)
    if settings.fixed or settings.require:
        raise UserError(
            "an autoregressive model writes from left to right: it takes neither fixed nor "
            "required tokens, only a prompt."
        )
    rows = [tuple(encode_prompt(model, prompt)) for prompt in given]
    check_lengths(model, given, rows, settings.length)
    _check_guesses(settings, len(rows), model.net.config.context, model.net.config.context)
    if settings.drafts is not None:
        return _speculate(model, rows, settings, settings.drafts, copies, constraints)
    return decode_causal(
        model,
        rows,
        settings.length,
        _make_sampler(model, settings),
        name_streams(model, rows, settings.seed, copies),
        constraints.find_forbidden(model),
        settings.keep_states,
        settings.watch,
        settings.guesses,
        _plant_causal(model, rows, settings),
    )


def _speculate(
    model: Model,
    rows: Sequence[tuple[int, ...]],
    settings: Sampling,
    drafts: int,
    copies: Sequence[int] | None,
    constraints: Constraints,
) -> Trajectory:
    """Texts of a causal reading that the diffusion reading drafts."""
    sampler = _make_sampler(model, settings)
    if settings.planted or settings.guesses or sampler.stochastic < 1:
        raise UserError(
            "drafts were asked for with planted tokens, guesses or a stochastic share, which need "
            "a step for every token: leave out one of the two."
        )
    return speculate(
        model,
        rows,
        settings.length,
        drafts,
        sampler,
        name_streams(model, rows, settings.seed, copies),
        constraints.find_forbidden(model),
        settings.keep_states,
        settings.watch,
    )


@list_settings(Sampling, leave_out=_NOT_FOR_PATTERNS)
def infill(
    model: Model, texts: Prompt | Sequence[Prompt], settings: Sampling | None = None, **changes: Any
) -> Trajectory:
    """Texts with their masks filled, by a diffusion model.

    What is not a mask stays; any half-unmasked state of a trajectory will do as well. A space
    before a mask is part of what fills it, since words carry the space before them: "by [MASK]" is
    "by[MASK]". Guidance hides all that was given. A text without a mask comes back as it is.

    Args:
        model: Of any kind but causal.
        texts: Texts such as "We met [MASK]*5 yesterday.", or token ids with mask ids among them.
        settings: All of the settings below as one object, `unmask.Sampling`, which says more.
        changes: Single settings by name, which come before those of `settings`.

    Keyword Args:
        {settings}

    >>> model = unmask.load("reversal-mdm", device="cpu")
    >>> filled = unmask.infill(model, "We sat down beside [MASK]*4, our old friend.", steps=4)
    >>> filled.texts[0].startswith("We sat down beside")
    True
    """
    check_model(model)
    settings = adjust(infill, Sampling, settings, changes, _NOT_FOR_PATTERNS)
    for name in _NOT_FOR_PATTERNS:
        if getattr(settings, name) != getattr(Sampling, name):
            raise UserError(
                f"infill was given settings with {name} {getattr(settings, name)!r:.80}: a text "
                "with masks has its own length and tokens and is not a chat; use sample, or take "
                "it back."
            )
    if model.paradigm.sampler == "causal":
        raise UserError("an autoregressive model cannot fill masks: use a diffusion model.")
    constraints = Constraints.make(forbid=settings.forbid, require=settings.require)
    return _fill(model, lay_out_patterns(model, list_prompt_rows(texts)), settings, constraints)


def _fill(
    model: Model,
    canvas: Canvas,
    settings: Sampling,
    constraints: Constraints,
    copies: Sequence[int] | None = None,
) -> Trajectory:
    """What a diffusion model makes of the canvas."""
    if settings.drafts is not None:
        raise UserError(
            f"drafts were asked for, but {model.name} is a {model.kind} model: they are for the "
            f"causal reading, {split_reading(model.name)[0]}:causal."
        )
    strategy = Strategy(
        settings.steps,
        get_plan(settings.plan),
        get_order(settings.order),
        _make_sampler(model, settings),
        get_remasking(settings.remask),
        settings.guidance,
        settings.block,
        settings.cache,
        settings.guesses,
        get_corrector(settings.corrector),
        _make_attribute(model, canvas, settings),
        settings.classifier_guidance,
        settings.rates,
        lay_out_plants(model, settings.planted, _list_lengths(canvas), canvas.fixed),
        settings.clamp,
    )
    if not strategy.plan.paces_itself:
        strategy.planting.check_steps(strategy.steps)
    guided = any(guidance_schedule(settings.guidance, settings.steps))
    if guided and not bool(canvas.prompt.any(-1).all()):
        raise UserError("guidance needs a prompt in every row: give one, or use guidance 0.")
    _check_guesses(settings, *canvas.tokens.shape, settings.steps)
    names = canvas.name_rows(-1 if model.mask_id is None else model.mask_id)
    streams = name_streams(model, names, settings.seed, copies)
    fill = fill_masks
    if model.paradigm.sampler != "unmasking":
        fill = walk_back
        _refuse_masked_only(model, settings)
        if settings.planted:
            raise UserError(
                f"a {model.kind} model takes no planted tokens: fix them, or use "
                "a masked or an autoregressive model."
            )
        if constraints.require:
            raise UserError(f"a {model.kind} model takes no required tokens: fix them in a place.")
    return fill(model, canvas, strategy, streams, constraints, settings.keep_states, settings.watch)


def _refuse_masked_only(model: Model, settings: Sampling) -> None:
    given = {
        "a corrector": get_corrector(settings.corrector) is not None,
        "a classifier": settings.classifier is not None,
        "guidance by rates": settings.rates,
    }
    if names := [name for name, is_given in given.items() if is_given]:
        raise UserError(
            f"{' and '.join(names)} was given for a {model.kind} model: only masked models take "
            "it; leave it out."
        )


def _list_lengths(canvas: Canvas) -> list[int]:
    rows, length = canvas.tokens.shape
    return [length] * rows if canvas.real is None else canvas.real.sum(-1).tolist()


def _plant_causal(model: Model, rows: Sequence[Sequence[int]], settings: Sampling) -> Tensor | None:
    """What is planted after the prompts of a causal model, laid out as its rows are."""
    if not settings.planted:
        return None
    lengths = check_lengths(model, rows, [list(row) for row in rows], settings.length)
    counts = torch.tensor([len(row) for row in rows], device=model.device)
    given = torch.arange(max(lengths), device=model.device) < counts[:, None]
    return lay_out_plants(model, settings.planted, lengths, given).merge()


def _make_attribute(model: Model, canvas: Canvas, settings: Sampling) -> AttributeGuidance | None:
    """Guidance by the settings' classifier, a function or the file of a probe."""
    classifier = settings.classifier
    if classifier is None or model.paradigm.sampler != "unmasking":
        return None
    if canvas.real is not None:
        raise UserError(
            "a classifier was given with rows of different lengths: it judges rows of one length; "
            "give all the same length, or sample them apart."
        )
    if isinstance(classifier, str | Path):
        classifier = StateProbe.load(classifier, model)
    return AttributeGuidance(classifier, settings.judged, settings.rates)


def _check_guesses(settings: Sampling, rows: int, length: int, steps: int) -> None:
    """Raise before the work where what would be kept of all predictions is too much."""
    size = settings.guesses * rows * length * steps * BYTES_PER_GUESS
    if size > MOST_GUESS_BYTES:
        raise UserError(
            f"{settings.guesses} guesses at {length} positions of {rows} rows in {steps} steps "
            f"take {size / 2**30:.1f} GiB: expected at most {MOST_GUESS_BYTES / 2**30:.0f}; ask "
            "for fewer guesses, rows, steps or positions."
        )


def _make_sampler(model: Model, settings: Sampling) -> TokenSampler:
    """Which token is proposed; a temperature that is not given is the model's usual one."""
    temperature = settings.temperature
    if temperature is None:
        temperature = 0.0 if model.paradigm.sampler in ("unmasking", "causal") else 1.0
    return TokenSampler(temperature, settings.top_k, settings.top_p, settings.stochastic)


def _say(model: Model, prompt: Prompt) -> str:
    """A prompt as the user's turn of a chat, in the words of the model's own template."""
    if not isinstance(prompt, str):
        raise UserError("a chat was asked for with prompts of token ids: give texts.")
    if model.tokenizer is None or model.tokenizer.chat is None:
        raise UserError(
            f"a chat was asked for, but the model {model.name} has no chat template: prompt it "
            "with plain texts."
        )
    return model.tokenizer.chat.render([{"role": "user", "content": prompt}])
