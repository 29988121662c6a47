"""`unmask.trace_steps`: tracing along the denoising steps of a model's own generation."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from jaxtyping import Int
from torch import Tensor

from unmask.base.config import LARGEST, adjust, check_arguments, list_settings
from unmask.data.facts import Fact, FactTexts, as_fact
from unmask.net.model import Model
from unmask.tracing.clean_run import CleanRun, asks_whole, find_state, generate, generate_corrupted
from unmask.tracing.corruption import Corrupted, Corruption, forget, get_corruption, hide
from unmask.tracing.grid import Flow, TraceGrid
from unmask.tracing.metrics import needs_foil
from unmask.tracing.question import Donor, Placebo, check_foil
from unmask.tracing.record import Activations
from unmask.tracing.settings import JOINT_ROLES, WHOLE_ANSWER, WHOLE_SUBJECT, Tracing
from unmask.tracing.sweep import WatchCells
from unmask.tracing.tokens import trace_tokens


@list_settings(Tracing)
@check_arguments(leave_out=("fact",), memory=(1, LARGEST))
def trace_steps(
    model: Model,
    fact: Fact | FactTexts | CleanRun,
    settings: Tracing | None = None,
    *,
    foil: Mapping[int, int] | None = None,
    places: Sequence[int | tuple[int, ...]] | None = None,
    donor: Placebo | None = None,
    means: Activations | None = None,
    memory: int | None = None,
    watch: WatchCells | None = None,
    **changes: Any,
) -> list[TraceGrid]:
    """A grid for each step that is named, of states of the model's own clean generation.

    The answer is the model's own: by the joint "mean_field" its tokens that are still masked at a
    step, by "chain_rule" all of it, masked again and revealed as it was committed. Steps at which
    there is nothing to corrupt are left out, and so are those without a foil for a metric that
    needs one.

    Args:
        model: Masked or causal.
        fact: A fact or its (subject, object, prompt), or a clean generation that was kept.
        settings: All of the settings below as one object.
        changes: Single settings by name, which come before those of `settings`.

    Keyword Args:
        {settings}

    The other arguments are those of `unmask.trace_tokens`.

    >>> model = unmask.load("reversal-mdm", device="cpu")
    >>> fact = unmask.read_facts("facts.csv")[0]
    >>> settings = unmask.Tracing(steps=2, length=24, at="first", parts=("resid",), samples=1)
    >>> grid, = unmask.trace_steps(model, fact, settings, any_answer=True)
    >>> grid.step, grid.effects("resid").shape[1]
    (1, 6)
    """
    settings = adjust(trace_steps, Tracing, settings, changes)
    clean = fact if isinstance(fact, CleanRun) else generate(model, as_fact(fact), settings)
    check_foil(model, foil, clean.answer)
    corruption = get_corruption(settings.corruption, settings.samples, settings.seed)
    free = None
    if settings.run == "free_running":
        free = generate_corrupted(clean, _hide_subject(clean, 1, corruption), settings)
    more: dict[str, Any] = {"places": places, "donor": donor, "means": means}
    more |= {"memory": memory, "watch": watch}
    grids = []
    for step in sorted({step for _, step in clean.find_steps(settings.at)}):
        if settings.source != "subject" and not clean.committed_before(step):
            continue
        # Only what is still asked for has a foil.
        state, answer = find_state(clean, step, settings)
        open_foil = {at: token for at, token in (foil or {}).items() if at in answer}
        if foil and not open_foil and needs_foil(settings.metric):
            continue
        more["foil"] = open_foil or None
        with model.net.taps.in_step(step):
            grid = _trace_step(clean, step, state, answer, settings, corruption, free, more)
        grids.append(grid)
    return grids


def _trace_step(
    clean: CleanRun,
    step: int,
    state: Int[Tensor, "L"],
    answer: dict[int, int],
    settings: Tracing,
    corruption: Corruption,
    free: Int[Tensor, "states n M"] | None,
    more: dict[str, Any],
) -> TraceGrid:
    model, source = clean.model, settings.source
    # By the chain rule all of the answer is asked for, and masked again.
    committed = () if asks_whole(model, settings) else clean.committed_before(step)
    if free is not None:
        corrupted = _corrupt_freely(clean, step, state, answer, corruption, free)
    else:
        # The subject corrupted, committed answer tokens hidden, or both.
        corrupted = Corrupted(state[None])
        if source != "committed":
            corrupted = hide(corruption, model, state, range(*clean.subject))
        if source != "subject":
            corrupted = forget(model, corrupted, committed)

    def trace(settings: Tracing, bad: Corrupted, **more: Any) -> TraceGrid:
        settings, length = replace(settings, corruption=bad), clean.prompt_length
        return trace_tokens(
            model, state, clean.subject, answer, settings, prompt_length=length, **more
        )

    together: dict[str, int] = {}
    joint = find_joint_rows(clean, state, answer)
    if settings.cells == "tokens":
        whole = (WHOLE_SUBJECT, WHOLE_ANSWER) if settings.together else ()
        joint = {name: joint[name] for name in whole}
    if joint:
        places: list[Any] = [] if settings.cells == "roles" else list(range(len(state)))
        places, donor = places if more["places"] is None else list(more["places"]), more["donor"]
        for name, rows in joint.items():
            if not isinstance(donor, Donor) or set(rows) <= set(donor.moved):
                together[name] = len(places)
                places.append(rows)
        more = {**more, "places": places}
    grid, flow = trace(settings, corrupted, **more), None
    if committed and source == "subject" and free is None:
        # What the subject and the committed answer tokens each give to p, by hiding them.
        plain = Tracing(parts=("resid",), guidance=settings.guidance)
        only_committed = forget(model, Corrupted(state[None]), committed)
        flow = Flow(
            both=grid.clean_value("p"),
            no_subject=float(grid.corrupted_values("p").mean()),
            no_committed=trace(plain, only_committed, places=()).corrupted,
            neither=trace(plain, forget(model, corrupted, committed), places=()).corrupted,
        )
    name = corruption.name if source == "subject" else f"{corruption.name} of {source}"
    return replace(
        grid,
        step=step,
        run=settings.run,
        flow=flow,
        together=together,
        committed=committed,
        corruption=name,
        source=source,
    )


def find_joint_rows(
    clean: CleanRun, state: Int[Tensor, "L"], answer: Mapping[int, int]
) -> dict[str, tuple[int, ...]]:
    """The positions of each joint role in a state; roles without any are left out.

    Where the prompt's last row is one that the answer is read from, it is one of these.
    """
    model, last = clean.model, clean.prompt_length - 1
    subject = set(range(*clean.subject))
    read = {model.row_of(position) for position in answer}
    masks = (
        set() if model.mask_id is None else set((state == model.mask_id).nonzero()[:, 0].tolist())
    )
    after = set(range(clean.prompt_length, len(state))) - read
    rest = set(range(clean.prompt_length)) - subject - read
    rows = (subject, rest - {last}, rest & {last}, read, after - masks, after & masks)
    return {name: tuple(sorted(at)) for name, at in zip(JOINT_ROLES, rows, strict=True) if at}


def _hide_subject(clean: CleanRun, step: int, corruption: Corruption) -> Corrupted:
    return hide(corruption, clean.model, clean.state_at(step), range(*clean.subject))


def _corrupt_freely(
    clean: CleanRun,
    step: int,
    state: Int[Tensor, "L"],
    answer: dict[int, int],
    corruption: Corruption,
    free: Int[Tensor, "states n M"],
) -> Corrupted:
    """The corrupted generations' states at a step, with the answer's positions as in the clean."""
    corrupted = _hide_subject(clean, 1, corruption)
    rows = state.expand(corrupted.samples, -1).clone()
    reached = free[min(step - 1, len(free) - 1)][:, : len(state)]
    if clean.model.paradigm.has_steps:
        rows[:] = reached
        for position in answer:
            rows[:, position] = state[position]
    else:
        own = slice(clean.prompt_length, clean.prompt_length + step - 1)
        rows[:, own] = reached[:, own]
    subject = slice(*clean.subject)
    rows[:, subject] = corrupted.tokens[:, subject]
    return replace(corrupted, tokens=rows)
