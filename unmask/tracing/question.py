"""Questions: a state, its corruption, and what is asked of it; all of it checked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.data.facts import Fact, Span, find_tokens, place_subject
from unmask.data.words import put_space
from unmask.net.model import Model
from unmask.net.readings import open_at
from unmask.tracing.corruption import Corrupted, get_corruption, hide
from unmask.tracing.grid import TraceGrid
from unmask.tracing.record import AnswerReader
from unmask.tracing.settings import Tracing
from unmask.tracing.windows import default_window

TokenRow = Int[Tensor, "L"] | Sequence[int] | str | Fact
"""Token ids, a text with masks where the answer is asked for, or a fact with both."""
Answer = Mapping[int, int] | str
"""Tokens by position, or a text."""


@dataclass(frozen=True)
class Donor:
    """Another prompt whose clean states are put in instead: a placebo.

    After it comes what comes after ours, so that the prompts alone differ.
    """

    prompt: tuple[int, ...]
    moved: dict[int, int]
    """Which of its positions stands for each position of ours."""


Placebo = Donor | Literal["random"]
"""States put in instead of the clean ones: another prompt's, or the corrupted ones moved as far as
the clean ones are away, in a random direction."""


@dataclass(frozen=True)
class Question:
    """What is traced: a state, its corruption, and what is asked of it, all checked."""

    model: Model
    clean: Int[Tensor, "1 L"]
    subject: Span
    answer: dict[int, int]
    settings: Tracing
    corruption: str
    """Its name."""
    corrupted: Corrupted
    prompt_length: int
    foil: dict[int, int] | None = None
    donor: Placebo | None = None

    @property
    def window(self) -> int:
        return self.settings.window or default_window(self.model.net.config.layers)

    @property
    def length(self) -> int:
        """Positions that are run: a causal network needs none after the last row it is read at."""
        if not self.model.net.config.causal:
            return self.clean.shape[1]
        return max(self.model.row_of(position) for position in self.answer) + 1

    def continue_donor(self) -> Int[Tensor, "1 M"]:
        """The donor's prompt, and after it our state, as far as there is room.

        A diffusion model's canvas stays as long as it is; a causal one sees nothing later anyway.
        """
        assert isinstance(self.donor, Donor)
        prompt = torch.tensor([self.donor.prompt], device=self.model.device)
        room = max(self.clean.shape[1], prompt.shape[1])
        if not self.model.paradigm.sees_later:
            room = self.model.net.config.context
        return torch.cat((prompt, self.clean[:, self.prompt_length :]), 1)[:, :room]

    def embed(self) -> tuple[Tensor, Tensor]:
        """The clean and the corrupted rows as they enter layer 0.

        A patch of the embeddings acts on both alike: after the corruption.
        """
        net, (clean, corrupted) = self.model.net, self.tokens
        with net.taps.in_rows((0,)):
            embedded = net.embed(clean)
            with net.taps.attach({"embed": self.corrupted.embed}, first=True):
                return embedded, net.embed(corrupted)

    @property
    def tokens(self) -> tuple[Int[Tensor, "1 L"], Int[Tensor, "S L"]]:
        """The clean and the corrupted rows that are run."""
        return self.clean[:, : self.length], self.corrupted.tokens[:, : self.length]

    def make_reader(self) -> AnswerReader:
        """Where the answer is read; with guidance, the pass without the prompt is run here."""
        model, guidance = self.model, self.settings.guidance
        rows = [model.row_of(position) for position in self.answer]
        targets = [list(self.answer.values())]
        if self.foil is not None:
            # A position without a foil reads the answer; it is blanked afterwards.
            targets.append([self.foil.get(at, token) for at, token in self.answer.items()])
        rows, targets = (torch.tensor(each, device=model.device) for each in (rows, targets))
        reader = AnswerReader(model, rows, targets, guidance)
        if not guidance:
            return reader
        # Generated tokens stay, and may differ between samples of a free-running trace.
        without = torch.cat((self.clean, self.corrupted.tokens)).clone()
        assert model.mask_id is not None
        kept = model.count_kept(self.clean[0].tolist())
        without[:, kept : self.prompt_length] = model.mask_id
        if bool((without == without[:1]).all()):
            without = without[:1]
        with model.net.taps.in_rows((0,)):
            logits = model.net.unembed(model.net.run_layers(model.net.embed(without)), rows)
        return replace(reader, without=logits.float())

    def make_grid(
        self,
        places: tuple[tuple[int, ...], ...],
        logp: Mapping[str, Float[Tensor, "place layer *head S K A"]],
        clean: Float[Tensor, "1 K A"],
        corrupted: Float[Tensor, "S K A"],
    ) -> TraceGrid:
        """The grid of this question's log-probabilities."""
        settings = self.settings
        return TraceGrid(
            tokens=tuple(self.clean[0].tolist()),
            subject=self.subject,
            answer=self.answer,
            prompt_length=self.prompt_length,
            mask_id=self.model.mask_id,
            places=places,
            logp={part: self.blank(x.cpu()) for part, x in logp.items()},
            clean_logp=self.blank(clean.cpu()),
            corrupted_logp=self.blank(corrupted.cpu()),
            metric=settings.metric,
            joint=name_joint(self.model, settings),
            window=self.window,
            corruption=self.corruption,
            guidance=settings.guidance,
            mode=settings.mode,
            severed=settings.severed,
            tokenizer=self.model.tokenizer,
        )

    def blank(self, logp: Float[Tensor, "*n K A"]) -> Float[Tensor, "*n K A"]:
        """NaN where the foil has no token."""
        for i, position in enumerate(self.answer):
            if self.foil is not None and position not in self.foil:
                logp[..., 1, i] = torch.nan
        return logp


def name_joint(model: Model, settings: Tracing) -> str:
    """The joint that is used: a causal model's is always the chain rule."""
    return settings.joint if model.paradigm.sees_later else "chain_rule"


def ask(
    model: Model,
    tokens: TokenRow,
    subject: Span | str | None,
    answer: Answer | None,
    settings: Tracing,
    prompt_length: int | None = None,
    foil: Answer | None = None,
    donor: Placebo | None = None,
) -> Question:
    """The question, once it makes sense; what does not is a sentence."""
    if isinstance(tokens, Fact) and subject is None and answer is None:
        tokens, subject, answer = _read_fact(model, tokens)
    if isinstance(tokens, Fact) or subject is None or answer is None:
        raise UserError(
            "expected (model, fact) or (model, text, subject, answer), as a fact has the last two."
        )
    if isinstance(tokens, str):
        tokens, subject, answer, foil = _read_texts(model, tokens, subject, answer, foil)
    if isinstance(subject, str) or isinstance(answer, str) or isinstance(foil, str):
        raise UserError(
            "the subject, the answer or the foil is a text, but the tokens are ids: give all of "
            "them as texts, or positions and token ids."
        )
    row = torch.as_tensor(tokens, dtype=torch.long).to(model.device).flatten()
    answer, foil = dict(answer), None if foil is None else dict(foil)
    _check_state(model, row, subject, answer, foil, settings.guidance)
    corruption = get_corruption(settings.corruption, settings.samples, settings.seed)
    corrupted = hide(corruption, model, row, range(*subject))
    if prompt_length is None:
        # All before the first mask and the first position of the answer.
        masks = [] if model.mask_id is None else (row == model.mask_id).nonzero()[:, 0].tolist()
        prompt_length = min([*answer, *masks[:1], len(row)])
    block = model.net.config.block
    if model.net.config.open_block and block is not None and max(answer) >= prompt_length + block:
        raise UserError(
            f"the answer's position {max(answer)} is not in the block of {block} that follows the "
            f"prompt, which {model.name} writes at once: give more of the text as the prompt."
        )
    return Question(
        write_from(model, prompt_length),
        row[None],
        subject,
        answer,
        settings,
        corruption.name,
        corrupted,
        prompt_length,
        foil,
        donor,
    )


def write_from(model: Model, position: int) -> Model:
    """The model about texts that are finished up to a position, where its open block begins.

    What is attached to the sites of one is attached to the other. Models without an open block are
    themselves.
    """
    if not model.net.config.open_block:
        return model
    return replace(model, net=open_at(model.net, position))


def _read_fact(model: Model, fact: Fact) -> tuple[str, Span, str]:
    """The text up to the object, where the subject's tokens are in it, and the object."""
    text = fact.prompt + fact.completion[: fact.object_span[0]].rstrip()
    subject = find_tokens(model.encode(text).offsets, fact.subject_span)
    return text, subject, fact.completion[slice(*fact.object_span)]


def _read_texts(
    model: Model, text: str, subject: Span | str, answer: Answer, foil: Answer | None
) -> tuple[list[int], Span, Mapping[int, int], Mapping[int, int] | None]:
    """Tokens, the subject's span, answer and foil by position, of what was given as texts.

    An answer stands at the first masks of the text, or after its end: there a masked model is given
    masks for it, and a causal one its earlier tokens.
    """
    encoded = model.encode(text)
    ids, given = list(encoded.ids), len(encoded.ids)
    if isinstance(subject, str):
        subject = find_tokens(encoded.offsets, place_subject(text, subject, "the trace"))
    masks = [] if model.mask_id is None else [i for i, x in enumerate(ids) if x == model.mask_id]
    before = text.partition("[MASK]")[0].rstrip() if masks else text

    def place_answer(words: Answer) -> Mapping[int, int]:
        if not isinstance(words, str):
            return words
        spoken = _encode_after(model, before, words)
        places = masks or list(range(given, given + len(spoken)))
        if len(spoken) > len(places):
            raise UserError(
                f"the answer {words!r} has {len(spoken)} tokens, but the text has "
                f"{len(places)} masks: write [MASK]*{len(spoken)}, or leave the masks out."
            )
        return dict(zip(places, spoken, strict=False))

    answer = place_answer(answer)
    foil = None if foil is None else place_answer(foil)
    if not masks and model.paradigm.fills_masks:
        ids += [model.require_mask()] * (max(answer, default=given) + 1 - given)
    elif not masks:
        ids += [answer[i] for i in range(given, max(answer, default=given)) if i in answer]
    return ids, subject, answer, foil


def _encode_after(model: Model, before: str, words: str) -> list[int]:
    """The tokens of words that follow a text, usually after a space; else they are cut alone."""
    tokenizer, start = model.require_tokenizer(), model.require_tokenizer().encode(before).ids
    if before and words[:1].isalnum():
        words = put_space(before, words)
    whole = tokenizer.encode(before + words).ids
    if whole[: len(start)] != start and put_space(before, words) == words:
        return tokenizer.encode(words, added="nothing").ids
    if whole[: len(start)] != start:
        raise UserError(
            f"the text {before!r} and the answer {words!r} share a token: expected the answer to "
            "start a token of its own, usually by a space."
        )
    return whole[len(start) :]


def check_foil(model: Model, foil: Mapping[int, int] | None, answer: Mapping[int, int]) -> None:
    """Raise for a foil that the model cannot say, or where nothing is asked for."""
    rows = model.net.config.logit_rows
    for position, token in (foil or {}).items():
        if position not in answer or not 0 <= token < rows or token == model.mask_id:
            raise UserError(
                f"the foil names the token {token} at position {position}: expected one that the "
                f"model can say, at one of the answer's positions, {', '.join(map(str, answer))}."
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
    if model.paradigm.noises_vectors or model.net.config.time:
        raise UserError(
            f"the model {model.name} works on noised vectors or reads the time: tracing is for "
            "masked, uniform, hybrid and causal models that see tokens alone."
        )
    strange = row[(row < 0) | (row >= model.net.config.vocab_size)].tolist()
    if strange:
        raise UserError(
            f"the text holds the token {strange[0]}, expected tokens in 0.."
            f"{model.net.config.vocab_size - 1}: use the model's own tokenizer."
        )
    if not 0 <= begin < end <= length:
        raise UserError(f"the subject is [{begin}, {end}), expected a range within 0..{length}.")
    if not answer:
        raise UserError("no answer was given: map at least one position to its token.")
    far = length if model.paradigm.predicts_next else length - 1
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
        if model.paradigm.fills_masks and given != model.mask_id:
            raise UserError(
                f"position {position} of the answer holds the token {given}, expected the mask "
                f"{model.mask_id}: a masked model would copy what it sees."
            )
        if not model.paradigm.sees_later and position < max(answer) and given != token:
            raise UserError(
                f"position {position} holds the token {given}, but the answer has {token} there: "
                "a causal model reads an answer token by token, the earlier ones given."
            )
    first_row = min(model.row_of(position) for position in answer)
    if not model.paradigm.sees_later and end > first_row + 1:
        raise UserError(
            f"the subject [{begin}, {end}) stands after the answer's first position: a causal "
            "model cannot see it; ask later."
        )
    check_foil(model, foil, answer)
    if guidance and model.mask_id is None:
        raise UserError(f"the model {model.name} has no unconditional pass: use guidance 0.")


def reveal(question: Question) -> list[Question]:
    """One question for each answer token: those before it revealed, those after it masked."""
    mask_id, factors = question.model.mask_id, []
    if mask_id is None:
        raise UserError(f"the model {question.model.name} has no mask: use joint='mean_field'.")
    clean, rows = question.clean.clone(), question.corrupted.tokens.clone()
    for position in question.answer:
        clean[:, position] = rows[:, position] = mask_id
    for position, token in question.answer.items():
        foil = question.foil
        if foil is not None:
            foil = {at: other for at, other in foil.items() if at == position}
        corrupted = replace(question.corrupted, tokens=rows.clone())
        factors.append(
            replace(
                question,
                clean=clean.clone(),
                corrupted=corrupted,
                answer={position: token},
                foil=foil,
            )
        )
        clean[:, position] = rows[:, position] = token
    return factors
