"""`unmask.trace_tokens`: where does a state have to be restored for a fact to be recalled again?"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.data.facts import Span
from unmask.net.model import Model
from unmask.tracing.corruption import Apply, Corrupted, Corruption
from unmask.tracing.engine import Engine
from unmask.tracing.grid import TraceGrid
from unmask.tracing.metrics import Metric, check_metric
from unmask.tracing.question import Donor, Question, ask, reveal
from unmask.tracing.record import Record, record_run
from unmask.tracing.sweep import plan, ran_out_of_memory, sweep
from unmask.tracing.windows import choose_window

Joint = Literal["mean_field", "chain_rule"]
Mode = Literal["restore", "ablate"]


@torch.inference_mode()
def trace_tokens(
    model: Model,
    tokens: Int[Tensor, "L"] | Sequence[int],
    subject: Span,
    answer: Mapping[int, int],
    parts: Sequence[str] = ("resid", "mlp", "attn"),
    window: int | None = None,
    corruption: str | Corruption | Apply | Corrupted | None = None,
    metric: str | Metric = "p",
    guidance: float = 0.0,
    *,
    joint: Joint = "mean_field",
    mode: Mode = "restore",
    severed: Literal["mlp", "attn"] | None = None,
    foil: Mapping[int, int] | None = None,
    places: Sequence[int | tuple[int, ...]] | None = None,
    prompt_length: int | None = None,
    donor: Donor | None = None,
    memory: int | None = None,
) -> TraceGrid:
    """The metric of the answer when one clean state, or a window of them, is put back.

    Blocks are run in parts, so a network that is patched or captured is refused.

    Args:
        model: Masked or causal.
        tokens: The text as token ids [L], with masks where the answer is asked for.
        subject: First position of the subject and the one after its last.
        answer: The tokens expected, by position; for a causal model the position after the last
            token is one as well. Several are one joint probability.
        parts: "resid", one layer's residual stream; "mlp" and "attn", their outputs in a window of
            layers; "attn_z", head by head; "embed", the embedding.
        window: Layers that are restored together; by default half of the network's, at most ten.
        corruption: What hides the subject: "gaussian" (the default), "uniform", "rome", "mask",
            "mean", or an object or function as in `unmask.tracing.corruption`.
        metric: "p", "logp", "logit_difference", "normalised", or a function as in
            `unmask.tracing.metrics.Metric`.
        guidance: Strength of classifier-free guidance.
        joint: "mean_field", the product over masks of one state, or "chain_rule", which reveals
            the answer token by token, in the mapping's order. A causal model's is always the chain
            rule, from left to right.
        mode: "restore" clean states into the corrupted run, or "ablate" them from the clean one.
        severed: "mlp" or "attn": that part's later additions at the restored position are kept as
            they were.
        foil: Another answer, for metrics that need one.
        places: Rows of the grid: every position by default, or several positions at once.
        prompt_length: Positions that guidance hides: by default all before the first mask and the
            first answer.
        donor: Another prompt whose clean states are put in instead: a placebo.
        memory: Bytes to use beside the weights, the clean and corrupted runs included, as far as a
            single restored run allows.

    >>> model = unmask.load("reversal-mdm", device="cpu")
    >>> text = model.tokenizer.encode("We sat down beside the[MASK]", allow_mask=True).ids
    >>> grid = unmask.trace_tokens(model, text, (1, 3), {len(text) - 1: 300}, parts=("resid",))
    >>> grid.effects("resid").shape == (len(text), 6)
    True
    """
    model.net.taps.require_none("tracing")
    question = ask(
        model,
        tokens,
        subject,
        answer,
        corruption,
        guidance=guidance,
        foil=foil,
        prompt_length=prompt_length,
        donor=donor,
    )
    check_metric(metric, foil is not None)
    _check_settings(parts, mode, severed, joint, donor)
    window = choose_window(window, model.net.config.layers)
    rows = _check_places(places, question.clean.shape[1], donor)
    factors, used = [question], name_joint(model, joint)
    if used == "chain_rule" and model.paradigm.sees_later:
        factors = reveal(question)
    runs = [_run(each, parts, window, mode, severed, rows, memory) for each in factors]
    # The factors of one answer lie side by side, as its positions do.
    logp = {part: torch.cat([run[0][part] for run in runs], -1).cpu() for part in parts}
    clean, corrupted = (torch.cat([run[i] for run in runs], -1).cpu() for i in (1, 2))
    return TraceGrid(
        tokens=tuple(question.clean[0].tolist()),
        subject=subject,
        answer=question.answer,
        prompt_length=question.prompt_length,
        mask_id=model.mask_id,
        places=rows,
        logp={part: question.blank(x) for part, x in logp.items()},
        clean_logp=question.blank(clean),
        corrupted_logp=question.blank(corrupted),
        metric=metric,
        window=window,
        corruption=question.corruption,
        joint=used,
        guidance=guidance,
        mode=mode,
        severed=severed,
    )


def name_joint(model: Model, joint: Joint) -> Joint:
    """The joint that is used: a causal model's is always the chain rule."""
    return joint if model.paradigm.sees_later else "chain_rule"


def _run(
    question: Question,
    parts: Sequence[str],
    window: int,
    mode: Mode,
    severed: str | None,
    places: tuple[tuple[int, ...], ...],
    memory: int | None,
) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """log p of one state: of every cell by part, clean, and corrupted."""
    net, samples = question.model.net, question.corrupted.samples
    reading = question.make_reading()
    # One batch, so that places which cannot differ do not differ by rounding either.
    embedded = torch.cat(question.embed())
    try:
        both = record_run(net, embedded)
    except RuntimeError as error:
        if not ran_out_of_memory(error):
            raise
        raise UserError(
            f"memory ran out on {question.model.device} for the clean and {samples} corrupted runs "
            f"of {question.length} tokens: ask for fewer samples, a shorter text, a smaller "
            "dtype or another device."
        ) from error
    clean, corrupted = both.take(slice(0, 1)), both.take(slice(1, 1 + samples))
    source = clean if question.donor is None else _record_donor(question)
    base, source = (corrupted, source) if mode == "restore" else (clean, corrupted)
    of_clean, of_corrupted = reading.take(slice(0, 1)), reading.take(slice(1, None))
    engine = Engine(net, base, source, of_corrupted if mode == "restore" else of_clean)
    read_clean = of_clean.read_stream(clean.entering[-1])
    read_corrupted = of_corrupted.read_stream(corrupted.entering[-1])
    _check_numbers(read_clean, read_corrupted)
    start = read_corrupted if mode == "restore" else read_clean.expand(samples, -1, -1)
    same_before = 0
    if net.config.causal and question.donor is None:
        changed = (embedded[1:] != embedded[:1]).any(-1).any(0).nonzero()[:, 0].tolist()
        same_before = min(changed, default=0)
    jobs = [plan(engine, part, window, severed) for part in parts]
    grids = sweep(engine, jobs, places, start, memory, same_before)
    _check_numbers(*grids)
    return dict(zip(parts, grids, strict=True)), read_clean, read_corrupted


def _check_numbers(*logp: Float[Tensor, "..."]) -> None:
    """Raise where a log-probability is not a number; it would count as certainty."""
    if not bool(torch.stack([each.isfinite().all() for each in logp]).all()):
        raise UserError(
            "the network's logits are not numbers, or the answer is impossible: look at the "
            "weights, the noise and the dtype (bfloat16 reaches further than float16)."
        )


def _record_donor(question: Question) -> Record:
    """The clean run of another text, its positions named as ours."""
    assert question.donor is not None
    net, device = question.model.net, question.model.device
    record = record_run(net, net.embed(question.continue_donor()))
    moved = torch.zeros(question.length, dtype=torch.long, device=device)
    for ours, theirs in question.donor.moved.items():
        moved[ours] = theirs
    return replace(record, moved=moved)


def _check_settings(
    parts: Sequence[str],
    mode: str,
    severed: str | None,
    joint: str,
    donor: Donor | None,
) -> None:
    if not parts or len(set(parts)) < len(parts):
        raise UserError(f"the parts are {tuple(parts)}: name at least one, and none twice.")
    if mode not in ("restore", "ablate"):
        raise UserError(f"mode {mode!r} is unknown: expected restore or ablate.")
    if joint not in ("mean_field", "chain_rule"):
        raise UserError(f"joint {joint!r} is unknown: expected mean_field or chain_rule.")
    if severed not in (None, "mlp", "attn"):
        raise UserError(f"severed {severed!r} is unknown: expected mlp or attn.")
    if severed is not None and set(parts) != {"resid"}:
        raise UserError("a severed graph is for the part resid alone: ask for parts=('resid',).")
    if donor is not None and mode == "ablate":
        raise UserError("another text's states are restored, not ablated: use mode 'restore'.")


def _check_places(
    places: Sequence[int | tuple[int, ...]] | None, length: int, donor: Donor | None
) -> tuple[tuple[int, ...], ...]:
    wanted = range(length) if places is None else places
    rows = tuple((at,) if isinstance(at, int) else tuple(sorted(set(at))) for at in wanted)
    for at in rows:
        if any(not 0 <= place < length for place in at):
            raise UserError(f"the places {at} are not all in 0..{length - 1}.")
        if donor is not None and not set(at) <= set(donor.moved):
            raise UserError(
                f"the places {at} are not all among those that the donor stands in for, "
                f"{sorted(donor.moved)}: name `places` that are."
            )
    return rows
