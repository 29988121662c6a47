"""Texts from a model: the two verbs, whatever its kind."""

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import get_args

from unmask.base.errors import UserError, suggest
from unmask.base.streams import RowStreams
from unmask.net.model import Model
from unmask.sampling.ancestral import walk_back
from unmask.sampling.autoregressive import decode_causal
from unmask.sampling.canvas import (
    Canvas,
    Prompt,
    encode_prompt,
    lay_out_patterns,
    lay_out_prompts,
    list_rows,
    name_streams,
)
from unmask.sampling.constraints import Constraints, Token, fix_tokens
from unmask.sampling.denoiser import CacheMode
from unmask.sampling.guidance import Guidance, guidance_schedule
from unmask.sampling.loop import Strategy, fill_masks
from unmask.sampling.orders import Order, get_order
from unmask.sampling.plans import Count, Plan, get_plan
from unmask.sampling.remasking import Choose, Remasking, get_remasking
from unmask.sampling.state import StepState
from unmask.sampling.token_sampler import TokenSampler
from unmask.sampling.trajectory import StateCallback, Trajectory


def sample(
    model: Model,
    prompts: Prompt | Sequence[Prompt],
    steps: int = 16,
    guidance: Guidance = 0.0,
    length: int | Sequence[int] | None = None,
    plan: str | Plan | Callable[[StepState, RowStreams], Count] = "smdm",
    block: int | None = None,
    order: str | Sequence[int] | Order = "confidence",
    temperature: float | None = None,
    seed: int = 0,
    keep_states: bool = True,
    *,
    top_k: int | None = None,
    top_p: float | None = None,
    stochastic: float = 1.0,
    remask: str | Remasking | Choose | None = "none",
    fixed: Mapping[int, Prompt] | None = None,
    forbid: Token | Sequence[Token] = (),
    require: Prompt | Sequence[Prompt] = (),
    cache: CacheMode = "none",
    chat: bool = False,
    watch: StateCallback | None = None,
) -> Trajectory:
    """Texts that continue the prompts, un-masked in `steps` steps, with all states in between.

    A row's text is the same alone and in any batch: it depends on the seed and its prompt alone.
    Uniform, hybrid and gaussian models step back through their own noise instead; a causal model
    writes from left to right, one token per step. What has no meaning for a kind of model, such as
    the order for these, is left unread.

    Args:
        model: Of any kind.
        prompts: A text or token ids, or a list of them; rows may differ in length.
        steps: Denoising steps.
        guidance: Strength of classifier-free guidance, 0 for none, or a function of the share of
            steps that are done.
        length: Positions of a whole row, prompt included; one for all rows or one per row.
        plan: How many masks a step commits: "smdm", "llada", "linear", "cosine", "one",
            "threshold=0.9", "ancestral", or `plan(state, streams)`, which returns counts [B].
        block: Positions of a block; blocks are filled from left to right. None: one block.
        order: Which masks are committed first: "confidence", "entropy", "margin", "random",
            "left", a permutation, or `order(state, streams)`, which returns scores [B, L].
        temperature: 0 takes the likeliest token; by default 0, or 1 for models that are not
            masked or causal.
        seed: Of everything that is drawn.
        keep_states: Whether the trajectory has the canvas of every step.
        top_k, top_p: Tokens that may be drawn: the k likeliest, or those that together have this
            probability.
        stochastic: The share of steps that draw; the last ones take the likeliest token.
        remask: Which written tokens become masks again: "none", "cap", "rescale", "conf", "loop",
            "low", or `remask(state, streams)`, which returns a mask [B, L].
        fixed: Texts or ids by the position at which they stand.
        forbid: Tokens that are never written.
        require: Phrases that every text contains.
        cache: "none", "exact", or "approximate", which is faster and changes texts.
        chat: Whether prompts are put into the tokenizer's chat template.
        watch: Called with every state.

    >>> model = unmask.load("reversal-mdm", device="cpu")
    >>> drawn = unmask.sample(model, ["We sat down beside", "A quiet"], steps=4, length=12)
    >>> len(drawn.texts), drawn.tokens.shape, drawn.states.shape
    (2, torch.Size([2, 12]), torch.Size([5, 2, 12]))
    """
    given = list_rows(prompts)
    if chat:
        given = [_say(model, prompt) for prompt in given]
    constraints = Constraints.make(fixed, forbid, require)
    values = _choose_values(model, temperature, top_k, top_p, stochastic)
    steps = _check_steps(steps)
    _check_cache(cache)
    # Made for every kind of model: a mistyped name is a mistake for all of them.
    strategy = Strategy(
        steps,
        get_plan(plan),
        get_order(order),
        values,
        get_remasking(remask),
        guidance,
        block,
        cache,
    )
    if not model.paradigm.has_steps:
        if any(guidance_schedule(guidance, steps)):
            raise UserError("an autoregressive model has no unconditional pass: use guidance 0.")
        if fixed or require:
            raise UserError(
                "an autoregressive model writes from left to right: it takes neither fixed nor "
                "required tokens, only a prompt."
            )
        rows = [tuple(encode_prompt(model, prompt)) for prompt in given]
        streams = name_streams(model, rows, seed)
        forbidden = constraints.find_forbidden(model)
        return decode_causal(model, rows, length, values, streams, forbidden, keep_states, watch)
    canvas = fix_tokens(model, lay_out_prompts(model, given, length), constraints)
    return _fill(model, canvas, strategy, constraints, seed, keep_states, watch)


def infill(
    model: Model,
    texts: Prompt | Sequence[Prompt],
    steps: int = 16,
    guidance: Guidance = 0.0,
    plan: str | Plan | Callable[[StepState, RowStreams], Count] = "smdm",
    block: int | None = None,
    order: str | Sequence[int] | Order = "confidence",
    temperature: float | None = None,
    seed: int = 0,
    keep_states: bool = True,
    *,
    top_k: int | None = None,
    top_p: float | None = None,
    stochastic: float = 1.0,
    remask: str | Remasking | Choose | None = "none",
    forbid: Token | Sequence[Token] = (),
    require: Prompt | Sequence[Prompt] = (),
    cache: CacheMode = "none",
    watch: StateCallback | None = None,
) -> Trajectory:
    """Texts with their masks filled, by a diffusion model.

    What is not a mask stays; any half-unmasked state of a trajectory will do as well. A space
    before a mask is part of what fills it, since words carry the space before them: "by [MASK]" is
    "by[MASK]". Guidance hides all that was given. A text without a mask comes back as it is.

    Args:
        model: Of any kind but causal.
        texts: Texts such as "We met [MASK]*5 yesterday.", or token ids with mask ids among them.

    The other arguments are those of `unmask.sample`.

    >>> model = unmask.load("reversal-mdm", device="cpu")
    >>> filled = unmask.infill(model, "We sat down beside [MASK]*4, our old friend.", steps=4)
    >>> filled.texts[0].startswith("We sat down beside")
    True
    """
    if not model.paradigm.has_steps:
        raise UserError("an autoregressive model cannot fill masks: use a diffusion model.")
    steps = _check_steps(steps)
    _check_cache(cache)
    strategy = Strategy(
        steps,
        get_plan(plan),
        get_order(order),
        _choose_values(model, temperature, top_k, top_p, stochastic),
        get_remasking(remask),
        guidance,
        block,
        cache,
    )
    constraints = Constraints.make(forbid=forbid, require=require)
    canvas = lay_out_patterns(model, list_rows(texts))
    return _fill(model, canvas, strategy, constraints, seed, keep_states, watch)


def _fill(
    model: Model,
    canvas: Canvas,
    strategy: Strategy,
    constraints: Constraints,
    seed: int,
    keep_states: bool,
    watch: StateCallback | None,
) -> Trajectory:
    guided = any(guidance_schedule(strategy.guidance, strategy.steps))
    if guided and not bool(canvas.prompt.any(-1).all()):
        raise UserError("guidance needs a prompt in every row: give one, or use guidance 0.")
    names = canvas.name_rows(-1 if model.mask_id is None else model.mask_id)
    streams = name_streams(model, names, seed)
    if model.paradigm.sampler == "unmasking":
        return fill_masks(model, canvas, strategy, streams, constraints, keep_states, watch)
    if constraints.require:
        raise UserError(f"a {model.kind} model takes no required tokens: fix them in a place.")
    return walk_back(model, canvas, strategy, streams, constraints, keep_states, watch)


def _choose_values(
    model: Model,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    stochastic: float,
) -> TokenSampler:
    if temperature is None:
        temperature = 0.0 if model.paradigm.sampler in ("unmasking", "causal") else 1.0
    return TokenSampler(temperature, top_k, top_p, stochastic)


def _check_steps(steps: int) -> int:
    if not isinstance(steps, Integral) or steps < 1:
        raise UserError(
            f"{steps} sampling steps were asked for: expected a whole number of at least 1."
        )
    return int(steps)


def _check_cache(cache: str) -> None:
    """A mistyped name is a mistake also for models that need no cache."""
    if cache not in get_args(CacheMode):
        raise UserError(f"cache {cache!r} is unknown: {suggest(cache, get_args(CacheMode))}")


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
