"""`unmask.trace`: where does a state have to be restored for a fact to be recalled again?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.data.facts import Span
from unmask.net.model import Model
from unmask.tracing.corruption import Corrupted, Corruption, Noise
from unmask.tracing.engine import Engine
from unmask.tracing.grid import TraceGrid
from unmask.tracing.metrics import check_metric
from unmask.tracing.reading import Reading
from unmask.tracing.record import Record, record_run
from unmask.tracing.sweep import plan, sweep

Joint = Literal["mean_field", "chain_rule"]
Mode = Literal["restore", "ablate"]


@dataclass(frozen=True)
class Donor:
    """Another text whose clean states are put in instead: a placebo."""

    tokens: tuple[int, ...]
    moved: dict[int, int]
    """Which of its positions stands for each position of ours."""


@dataclass(frozen=True)
class Question:
    """What is traced: a state, its corruption, and what is asked of it, all checked."""

    model: Model
    clean: Int[Tensor, "1 L"]
    corrupted: Corrupted
    answer: dict[int, int]
    foil: dict[int, int] | None
    prompt_length: int
    guidance: float
    donor: Donor | None = None

    @property
    def length(self) -> int:
        """Positions that are run: a causal network needs none behind the last row it is read at."""
        if not self.model.net.config.causal:
            return self.clean.shape[1]
        return max(self.model.row_of(position) for position in self.answer) + 1

    def embed(self) -> tuple[Tensor, Tensor]:
        """The clean and the corrupted rows as they enter layer 0."""
        net, length = self.model.net, self.length
        clean = net.embed(self.clean[:, :length])
        with net.patch({"embed": self.corrupted.embed}):
            corrupted = net.embed(self.corrupted.tokens[:, :length])
        return clean, corrupted

    def make_reading(self) -> Reading:
        """Where the answer is read; with guidance, the pass without the prompt is run here."""
        model = self.model
        rows = [model.row_of(position) for position in self.answer]
        targets = [list(self.answer.values())]
        if self.foil is not None:
            # A position without a foil reads the answer; it is blanked afterwards.
            targets.append([self.foil.get(at, token) for at, token in self.answer.items()])
        made = Reading(
            model,
            torch.tensor(rows, device=model.device),
            torch.tensor(targets, device=model.device),
            self.guidance,
        )
        if not self.guidance:
            return made
        # Generated tokens stay, and may differ between samples of a free-running trace.
        without = torch.cat((self.clean, self.corrupted.tokens)).clone()
        assert model.mask_id is not None
        without[:, : self.prompt_length] = model.mask_id
        if bool((without == without[:1]).all()):
            without = without[:1]
        logits = model.net.unembed(model.net.run_layers(model.net.embed(without)), made.rows)
        return replace(made, without=logits.float())

    def blank(self, logp: Float[Tensor, "*n K A"]) -> Float[Tensor, "*n K A"]:
        """NaN where the foil has no token."""
        if self.foil is not None:
            for i, position in enumerate(self.answer):
                if position not in self.foil:
                    logp[..., 1, i] = torch.nan
        return logp


@torch.inference_mode()
def trace(
    model: Model,
    tokens: Int[Tensor, "L"] | Sequence[int],
    subject: Span,
    answer: Mapping[int, int],
    parts: Sequence[str] = ("resid", "mlp", "attn"),
    window: int = 10,
    corruption: Corruption | Corrupted | None = None,
    metric: str = "p",
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

    `answer` maps positions to the tokens expected there; for a causal model the position behind
    the last token is one, too. Several positions are one joint probability: `mean_field` is the
    product over masks of one state; `chain_rule` reveals the answer token by token, in the
    mapping's order. A causal model's is always the chain rule, from left to right.

    `resid` is one layer's stream; `window` layers of `mlp` and `attn` outputs are restored
    together; `attn_z` restores head by head; `embed` the embedding. `places` are the rows of the
    grid: every position by default, or several at once. `severed` keeps that part's later additions
    at the restored place as they were. `prompt_length` is what guidance hides: by default all
    before the first mask and the first answer. `memory` bounds the bytes used beside the weights.
    """
    corruption = Noise() if corruption is None else corruption
    question = _ask(
        model, tokens, subject, dict(answer), corruption, foil, prompt_length, guidance, donor
    )
    check_metric(metric, foil is not None)
    _check_settings(parts, window, mode, severed, joint, donor)
    rows = _check_places(places, question.clean.shape[1])
    factors, used = [question], "chain_rule" if model.kind == "causal" else joint
    if used == "chain_rule" and model.kind != "causal":
        factors = _reveal(question)
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
        corruption=getattr(corruption, "name", "given"),
        joint=used,
        guidance=guidance,
        mode=mode,
        severed=severed,
    )


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
    both = record_run(net, torch.cat(question.embed()))
    clean, corrupted = both.take(slice(0, 1)), both.take(slice(1, 1 + samples))
    source = clean if question.donor is None else _record_donor(question)
    base, source = (corrupted, source) if mode == "restore" else (clean, corrupted)
    of_clean, of_corrupted = reading.take(slice(0, 1)), reading.take(slice(1, None))
    engine = Engine(net, base, source, of_corrupted if mode == "restore" else of_clean)
    read_clean = of_clean.read_stream(clean.entering[-1])
    read_corrupted = of_corrupted.read_stream(corrupted.entering[-1])
    if not bool((read_clean.isfinite().all() & read_corrupted.isfinite().all()).cpu()):
        raise UserError(
            "the network's logits are not numbers, or the answer is impossible: look at the "
            "weights, the noise and the number format (bfloat16 reaches further than float16)."
        )
    start = read_corrupted if mode == "restore" else read_clean.expand(samples, -1, -1)
    same_before = 0
    if net.config.causal and question.donor is None:
        same_before = int(question.corrupted.places.min())
    jobs = [plan(engine, part, window, severed) for part in parts]
    grids = sweep(engine, jobs, places, start, memory, same_before)
    return dict(zip(parts, grids, strict=True)), read_clean, read_corrupted


def _record_donor(question: Question) -> Record:
    """The clean run of another text, its positions named as ours."""
    assert question.donor is not None
    net, device = question.model.net, question.model.device
    tokens = torch.tensor([question.donor.tokens], device=device)
    record = record_run(net, net.embed(tokens))
    moved = torch.zeros(question.length, dtype=torch.long, device=device)
    for ours, theirs in question.donor.moved.items():
        moved[ours] = theirs
    return replace(record, moved=moved)


def _reveal(question: Question) -> list[Question]:
    """One question for each answer token: those before it revealed, those behind it masked."""
    mask_id, factors = question.model.mask_id, []
    if mask_id is None:
        raise UserError(f"the model {question.model.name} has no mask: use joint='mean_field'.")
    positions = list(question.answer)
    for i, position in enumerate(positions):
        clean, rows = question.clean.clone(), question.corrupted.tokens.clone()
        for j, at in enumerate(positions):
            token = question.answer[at] if j < i else mask_id
            clean[:, at], rows[:, at] = token, token
        foil = question.foil
        if foil is not None:
            foil = {at: token for at, token in foil.items() if at == position}
        factors.append(
            replace(
                question,
                clean=clean,
                corrupted=replace(question.corrupted, tokens=rows),
                answer={position: question.answer[position]},
                foil=foil,
            )
        )
    return factors


def _ask(
    model: Model,
    tokens: Tensor | Sequence[int],
    subject: Span,
    answer: dict[int, int],
    corruption: Corruption | Corrupted,
    foil: Mapping[int, int] | None,
    prompt_length: int | None,
    guidance: float,
    donor: Donor | None,
) -> Question:
    row = torch.as_tensor(tokens, dtype=torch.long).to(model.device).flatten()
    _check_state(model, row, subject, answer, foil, guidance)
    if isinstance(corruption, Corrupted):
        corrupted = corruption
    else:
        corrupted = corruption.apply(model, row, range(*subject))
    if prompt_length is None:
        hidden = (row == model.mask_id).nonzero()[:1, 0].tolist() if model.mask_id else []
        prompt_length = min([*answer, *hidden, len(row)])
    return Question(
        model,
        row[None],
        corrupted,
        answer,
        None if foil is None else dict(foil),
        prompt_length,
        guidance,
        donor,
    )


def _check_state(
    model: Model,
    row: Int[Tensor, "L"],
    subject: Span,
    answer: dict[int, int],
    foil: Mapping[int, int] | None,
    guidance: float,
) -> None:
    length, rows = len(row), model.net.config.logit_rows
    begin, end = subject
    if model.kind == "gaussian" or model.net.config.time:
        raise UserError(
            f"the model {model.name} works on noised vectors or is told the time: tracing is for "
            "masked, uniform, hybrid and causal models that see tokens alone."
        )
    if not 0 <= begin < end <= length:
        raise UserError(f"the subject is [{begin}, {end}), expected a range within 0..{length}.")
    if not answer:
        raise UserError("no answer was given: map at least one position to its token.")
    far = length if model.kind == "causal" else length - 1
    for position, token in answer.items():
        if not 0 <= position <= far:
            raise UserError(f"the answer's position {position} is not in 0..{far}.")
        if not 0 <= token < rows or token == model.mask_id:
            raise UserError(f"the answer's token {token} is none that the model can say.")
        if begin <= position < end:
            raise UserError(
                f"the subject [{begin}, {end}) overlaps the answer at position {position}: the "
                "corruption would hide the place where the answer is read; keep them apart."
            )
        given = int(row[position]) if position < length else None
        if model.kind == "masked" and given != model.mask_id:
            raise UserError(
                f"position {position} of the answer holds the token {given}, expected the mask "
                f"{model.mask_id}: a masked model would copy what it sees."
            )
        if model.kind == "causal" and position < max(answer) and given != token:
            raise UserError(
                f"position {position} holds the token {given}, but the answer has {token} there: "
                "a causal model reads an answer token by token, the earlier ones given."
            )
    if model.kind == "causal" and end > min(model.row_of(position) for position in answer) + 1:
        raise UserError(
            f"the subject [{begin}, {end}) stands behind the answer's first position: a causal "
            "model cannot see it; ask later."
        )
    for position, token in (foil or {}).items():
        if position not in answer or not 0 <= token < rows:
            raise UserError(
                f"the foil names the token {token} at position {position}: expected a token at "
                f"one of the answer's positions, {', '.join(map(str, answer))}."
            )
    if guidance and model.mask_id is None:
        raise UserError(f"the model {model.name} has no unconditional pass: use guidance 0.")


def _check_settings(
    parts: Sequence[str],
    window: int,
    mode: str,
    severed: str | None,
    joint: str,
    donor: Donor | None,
) -> None:
    if not parts or len(set(parts)) < len(parts):
        raise UserError(f"the parts are {tuple(parts)}: name at least one, and none twice.")
    if window < 1:
        raise UserError(f"a window of {window} layers was asked for: expected at least 1.")
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
    places: Sequence[int | tuple[int, ...]] | None, length: int
) -> tuple[tuple[int, ...], ...]:
    wanted = range(length) if places is None else places
    rows = tuple((at,) if isinstance(at, int) else tuple(sorted(set(at))) for at in wanted)
    for at in rows:
        if any(not 0 <= place < length for place in at):
            raise UserError(f"the places {at} are not all in 0..{length - 1}.")
    return rows
