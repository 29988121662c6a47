"""`unmask.trace_tokens`: where does a state have to be restored for a fact to be recalled again?"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.base.config import LARGEST, adjust, check_arguments, list_settings
from unmask.base.errors import UserError
from unmask.data.facts import Span
from unmask.net.batches import ran_out_of_memory
from unmask.net.model import Model
from unmask.tracing.clean_run import asks_whole
from unmask.tracing.grid import TraceGrid
from unmask.tracing.metrics import NO_FOIL, needs_foil
from unmask.tracing.patched import make_engine
from unmask.tracing.question import (
    Answer,
    Donor,
    Placebo,
    Question,
    TokenRow,
    ask,
    reveal,
    write_from,
)
from unmask.tracing.record import Activations, AnswerReader, make_constant, make_random, record_run
from unmask.tracing.settings import STEP_SETTINGS, Tracing
from unmask.tracing.sweep import WatchCells, sweep_cells
from unmask.tracing.windows import plan_part

MOST_ROWS = 32
"""Corrupted runs that are kept at once, of several states of one answer."""


@list_settings(Tracing, STEP_SETTINGS)
@torch.inference_mode()
@check_arguments(memory=(1, LARGEST))
def trace_tokens(
    model: Model,
    tokens: TokenRow,
    subject: Span | str | None = None,
    answer: Answer | None = None,
    settings: Tracing | None = None,
    *,
    foil: Answer | None = None,
    places: Sequence[int | tuple[int, ...]] | None = None,
    prompt_length: int | None = None,
    donor: Placebo | None = None,
    means: Activations | None = None,
    memory: int | None = None,
    watch: WatchCells | None = None,
    **changes: Any,
) -> TraceGrid:
    """The metric of the answer when one clean state, or a window of them, is put back.

    Patches act in clean, corrupted and restored runs alike, all of which are about one text. What
    is restored is what patches left; each restored run of a patched network is then run whole.

    Args:
        model: Masked or causal.
        tokens: A text, or token ids [L], with masks where the answer is asked for; or an
            `unmask.Fact`, which has a subject and an answer: its object.
        subject: First position of the subject and the one after its last; of a text, its words.
        answer: The tokens expected, by position; for a causal model the position after the last
            token is one as well. Several are one joint probability, by the chain rule in the
            mapping's order. Of a text, the words at its first masks; without masks, those that
            follow it.
        settings: All of the settings below as one object; those about steps are not used.
        foil: Another answer, for metrics that need one.
        places: Rows of the grid: every position by default, or several positions at once.
        prompt_length: Positions that guidance hides: by default all before the first mask and the
            first answer.
        donor: A placebo: another prompt whose clean states are put in instead, or "random" for the
            corrupted states moved as far as the clean ones are away, in random directions.
        means: What the mode "mean" puts in, from `unmask.tracing.record.average_states`; by default
            the mean over this state's own positions.
        memory: Bytes to use beside the weights, the clean and corrupted runs included, as far as a
            single restored run allows.
        watch: Called with cells as they are run (`unmask.tracing.sweep.WatchCells`; plans are
            numbered as the parts are); what it raises ends the trace. A masked model's answer by
            the chain rule is traced token by token, and so are its cells.
        changes: Single settings by name, which come before those of `settings`.

    Keyword Args:
        {settings}

    >>> model = unmask.load("reversal-mdm", device="cpu")
    >>> prompt = "We sat down beside the well digger, our old"
    >>> grid = unmask.trace_tokens(model, prompt, "well digger", "friend", parts=("resid",))
    >>> grid.effects("resid").shape == (len(grid.tokens), 6)
    True
    """
    settings = adjust(trace_tokens, Tracing, settings, changes, STEP_SETTINGS)
    question = ask(model, tokens, subject, answer, settings, prompt_length, foil, donor)
    if needs_foil(settings.metric) and foil is None:
        raise UserError(NO_FOIL)
    if donor is not None and settings.mode != "restore":
        raise UserError("a donor's states are restored, not ablated: use mode 'restore'.")
    rows = _check_places(places, question)
    groups = group_factors(question, memory if watch is None else 0)
    runs = [_run(group, rows, means, memory, watch) for group in groups]
    # The factors of one answer lie side by side, as its positions do.
    logp: dict[str, Tensor] = {
        part: torch.cat([run[0][part] for run in runs], -1) for part in settings.all_parts
    }
    clean, corrupted = (torch.cat([run[i] for run in runs], -1) for i in (1, 2))
    return question.make_grid(rows, logp, clean, corrupted)


def group_factors(question: Question, memory: int | None) -> list[list[Question]]:
    """The factors of an answer by the chain rule, or the question; each group runs as one batch.

    What is kept of a group's runs takes an eighth of the memory at most, as far as one allows.
    """
    if not asks_whole(question.model, question.settings):
        return [[question]]
    config, samples = question.model.net.config, question.corrupted.samples
    most = MOST_ROWS // samples
    if memory is not None:
        heads = (2 * config.heads + 2 * config.kv) * config.head_dim
        entries = question.length * config.layers * (3 * config.width + heads)
        row = entries * question.model.net.embedding.weight.element_size()
        most = min(most, memory // (8 * row * (1 + samples)))
    if question.settings.guidance:  # a pass without the prompt for each
        most = 1
    factors, most = reveal(question), max(1, most)
    return [factors[start : start + most] for start in range(0, len(factors), most)]


def _run(
    factors: Sequence[Question],
    places: tuple[tuple[int, ...], ...],
    means: Activations | None,
    memory: int | None,
    watch: WatchCells | None = None,
) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """log p of a state: of every cell by part, clean, and corrupted.

    Of an answer by the chain rule, several states: they run as further samples, each of which is
    read at a row of its own.
    """
    question, number = factors[0], len(factors)
    net, settings, samples = question.model.net, question.settings, question.corrupted.samples
    clean, corrupted, read_clean, read_corrupted = record_factors(factors)
    logp_clean = read_clean.read_stream(clean.entering[-1])
    logp_corrupted = read_corrupted.read_stream(corrupted.entering[-1])
    _check_numbers(logp_clean, logp_corrupted)
    if number > 1 and settings.mode in ("restore", "ablate"):
        clean = clean.repeat(samples)  # of each factor, a clean run beside each corrupted one
    if settings.mode == "restore":
        source = choose_source(factors, clean, corrupted)
        engine, start = make_engine(net, corrupted, source, read_corrupted), logp_corrupted
    elif settings.mode == "ablate":
        reader = read_clean if number == 1 else read_corrupted
        engine = make_engine(net, clean, corrupted, reader)
        start = logp_clean.repeat_interleave(samples, 0)
    else:
        source = clean if means is None else means
        constant = make_constant(source, settings.mode == "zero", question.length)
        engine, start = make_engine(net, clean, constant, read_clean), logp_clean
    same_before = 0
    is_own = not isinstance(question.donor, Donor)
    is_own &= engine.is_local
    if net.config.causal and is_own and settings.mode in ("restore", "ablate"):
        differs = corrupted.entering[0] != clean.entering[0]
        changed = differs.any(-1).any(0).nonzero()[:, 0].tolist()
        same_before = min(changed, default=0)
    plans = [
        plan_part(net.config, part, question.window, settings.severed)
        for part in settings.all_parts
    ]
    grids = sweep_cells(engine, plans, places, start, memory, same_before, watch)
    _check_numbers(*grids)
    *grids, logp_clean, logp_corrupted = (
        split_factors(each, number) for each in (*grids, logp_clean, logp_corrupted)
    )
    return dict(zip(settings.all_parts, grids, strict=True)), logp_clean, logp_corrupted


def record_factors(
    factors: Sequence[Question],
) -> tuple[Activations, Activations, AnswerReader, AnswerReader]:
    """The clean and the corrupted runs of questions that run together, and where they are read."""
    question, number = factors[0], len(factors)
    # One batch, so that positions which cannot differ do not differ by rounding either.
    pairs = zip(*map(Question.embed, factors), strict=True)
    embedded = torch.cat([rows for side in pairs for rows in side])
    pairs = zip(*(factor.tokens for factor in factors), strict=True)
    tokens = torch.cat([rows for side in pairs for rows in side])
    try:
        both = record_run(question.model.net, embedded, tokens)
    except RuntimeError as error:
        if not ran_out_of_memory(error):
            raise
        raise UserError(
            f"memory ran out on {question.model.device} for the clean and "
            f"{question.corrupted.samples} corrupted runs of {question.length} tokens: ask for "
            "fewer samples, a shorter text, a smaller dtype or another device."
        ) from error
    clean, corrupted = both.take(slice(0, number)), both.take(slice(number, None))
    readers = [factor.make_reader() for factor in factors]
    if number == 1:
        return clean, corrupted, readers[0].take(slice(0, 1)), readers[0].take(slice(1, None))
    rows = torch.cat([each.rows for each in readers])
    targets = torch.cat([each.targets for each in readers], 1)
    own = torch.arange(number, device=rows.device)
    reader = replace(readers[0], rows=rows, targets=targets, own=own)
    own = own.repeat_interleave(question.corrupted.samples)
    return clean, corrupted, reader, replace(reader, own=own)


def split_factors(logp: Float[Tensor, "*n F K A"], number: int) -> Float[Tensor, "*n S K factors"]:
    """[..., factors × samples, K, 1] to [..., samples, K, factors]; one question's stays."""
    if number == 1:
        return logp
    return logp.unflatten(-3, (number, -1)).squeeze(-1).movedim(-3, -1)


def _check_numbers(*logp: Float[Tensor, "..."]) -> None:
    """Raise where a log-probability is not a number; it would count as certainty."""
    if not bool(torch.stack([each.isfinite().all() for each in logp]).all()):
        raise UserError(
            "the network's logits are not numbers, or the answer is impossible: look at the "
            "weights, the noise and the dtype (bfloat16 reaches further than float16)."
        )


def choose_source(
    factors: Sequence[Question], clean: Activations, corrupted: Activations
) -> Activations:
    """What is restored: the clean run, or a placebo."""
    question = factors[0]
    if question.donor is None:
        return clean
    if question.donor == "random":
        return make_random(clean, corrupted, question.settings.seed)
    # The clean run of another text, its positions named as ours.
    net, device = write_from(question.model, len(question.donor.prompt)).net, question.model.device
    rows = torch.cat([factor.continue_donor() for factor in factors])
    record = record_run(net, net.embed(rows), rows).repeat(
        1 if len(factors) == 1 else question.corrupted.samples
    )
    moved = torch.zeros(question.length, dtype=torch.long, device=device)
    for ours, theirs in question.donor.moved.items():
        moved[ours] = theirs
    return replace(record, moved=moved)


def _check_places(
    places: Sequence[int | tuple[int, ...]] | None, question: Question
) -> tuple[tuple[int, ...], ...]:
    length, donor = question.clean.shape[1], question.donor
    wanted = range(length) if places is None else places
    rows = tuple((at,) if isinstance(at, int) else tuple(sorted(set(at))) for at in wanted)
    for at in rows:
        if any(not 0 <= position < length for position in at):
            raise UserError(f"the places {at} are not all in 0..{length - 1}.")
        if isinstance(donor, Donor) and not set(at) <= set(donor.moved):
            raise UserError(
                f"the places {at} are not all among those that the donor stands in for, "
                f"{sorted(donor.moved)}: name `places` that are."
            )
    return rows
