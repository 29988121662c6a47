"""Answers of a network whose states are changed at chosen positions while it runs.

Every answer is scored by the chain rule, token by token from left to right: a masked model is run
once for each token, with those before it shown and the rest of the canvas masked, a causal one once
for all of them. Where every token is the likeliest one, greedy decoding one token at a time writes
exactly this answer: that is recall, without a sampler.

A change is a function of the stream that leaves a layer and of the numbers of the prompts that its
rows belong to, so that prompts of any shape share a batch.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.data.facts import Fact, Span, tokenize_fact
from unmask.evaluation.chain import log_softmax
from unmask.evaluation.questions import STUDY_LENGTH, require_tokenizer
from unmask.net.batches import count_row_bytes, fit_rows
from unmask.net.model import Model
from unmask.representation.prompts import PromptRow, map_rows, pad_canvas, stack_rows

StateChange = Callable[[Float[Tensor, "R L D"], Int[Tensor, "R"]], Float[Tensor, "R L D"]]
"""From the stream and the number of each row's prompt to the stream that goes on."""
TokenScores = list[tuple[float, bool]]
"""log p of each token, and whether it is the likeliest one."""
EMBEDDINGS = -1
"""The layer whose changes act on the stream before layer 0."""


@dataclass(frozen=True)
class PatchedPrompt:
    """What is given, where its subject stands, and the answers that are scored after it."""

    tokens: list[int]
    subject: Span
    answers: list[list[int]]


@dataclass(frozen=True)
class AnswerScore:
    """One answer after one prompt."""

    terms: list[float]
    """log p of each token in nats, those before it given."""
    is_said: bool
    """Whether every token is the likeliest one where it stands."""

    @property
    def logp(self) -> float:
        return sum(self.terms)


def lay_out_prompt(model: Model, fact: Fact, answers: Sequence[Fact]) -> PatchedPrompt:
    """A fact's prompt, and the objects of some facts as its answers.

    What the fact's own completion says before the object is given with the prompt; the objects are
    tokenised in their own texts.
    """
    tokenizer = require_tokenizer(model)
    model.paradigm.require_scored(model.name, "answers under changed states are scored")
    own = tokenize_fact(fact, tokenizer)
    texts = [own if answer is fact else tokenize_fact(answer, tokenizer) for answer in answers]
    objects = [text.ids[slice(*text.object)] for text in texts]
    return PatchedPrompt(own.ids[: own.object[0]], own.subject, objects)


def score_patched(
    model: Model,
    prompts: Sequence[PatchedPrompt],
    changes: Mapping[int, StateChange],
    length: int | None = None,
) -> list[list[AnswerScore]]:
    """The answers of each prompt, scored while the changes act on the stream leaving their layers.

    A masked model's canvas has `length` positions, by default the study's, or what the longest text
    needs; layer -1 is the stream before layer 0.
    """
    return score_each_patched(model, prompts, [changes], length)[0]


@torch.inference_mode()
def score_each_patched(
    model: Model,
    prompts: Sequence[PatchedPrompt],
    variants: Sequence[Mapping[Any, StateChange]],
    length: int | None = None,
) -> list[list[list[AnswerScore]]]:
    """Scores of answers under several sets of changes, by set: layers below are run once.

    A change acts on the stream after a layer, by its number, or at a site, by its name.
    """
    for layer in {layer for changes in variants for layer in changes}:
        _name_site(model, layer)  # refused here if there is none
    # 1. A row for each token of each answer, or one for all of a causal model's; `keys` say whose.
    canvas = choose_canvas(model, prompts, length)
    keys, rows = list[tuple[int, int]](), list[PromptRow]()
    for i, prompt in enumerate(prompts):
        for j, answer in enumerate(prompt.answers):
            steps = _lay_out_steps(model, prompt, answer, canvas)
            keys += [(i, j)] * len(steps)
            rows += steps

    def score(batch: Sequence[int]) -> list[list[TokenScores]]:
        about = [keys[n][0] for n in batch]
        owners = torch.tensor(about, device=model.device)
        with model.net.taps.in_rows(about):
            return _score_rows(model, [rows[n] for n in batch], owners, variants)

    # 2. Rows of about one length run together, all variants of a row one after the other.
    lengths = [len(row.tokens) for row in rows]
    most = max((len(row.reads) for row in rows), default=1)
    size = fit_rows(model, count_row_bytes(model, max(lengths, default=1), most))
    scored = map_rows(model, lengths, size, score, lengths)
    # 3. Each row's terms under every variant, put together by answer again.
    joined: list[list[list[TokenScores]]] = [
        [[[] for _ in prompt.answers] for prompt in prompts] for _ in variants
    ]
    for (i, j), by_variant in zip(keys, scored, strict=True):
        for by_prompt, terms in zip(joined, by_variant, strict=True):
            by_prompt[i][j] += terms
    return [
        [
            [AnswerScore([x for x, _ in terms], all(hit for _, hit in terms)) for terms in answers]
            for answers in by_prompt
        ]
        for by_prompt in joined
    ]


def choose_canvas(
    model: Model, prompts: Sequence[PatchedPrompt], length: int | None = None
) -> int | None:
    """Positions of a masked model's canvas, the same for all prompts; None for a causal model."""
    longest = max((len(p.tokens) + max(map(len, p.answers), default=0) for p in prompts), default=0)
    context = model.net.config.context
    if not model.paradigm.sees_later:
        length = context
    elif length is None:
        length = min(max(STUDY_LENGTH, longest), context)
    if longest > length or length > context:
        raise UserError(
            f"a prompt with its answer has {longest} tokens, and the canvas {length} positions of "
            f"a context of {context}: use shorter prompts, another length, or a model with a "
            "longer context."
        )
    return length if model.paradigm.sees_later else None


def collect_subjects(
    model: Model, prompts: Sequence[PatchedPrompt], layers: Sequence[int], canvas: int | None
) -> list[Float[Tensor, "layers S D"]]:
    """Each prompt's states at its S subject tokens after the layers named, equal prompts once."""
    # 1. One row for all prompts that are equal.
    keys = [(tuple(pad_canvas(model, each.tokens, canvas)), each.subject) for each in prompts]
    rows = list(dict.fromkeys(keys))
    # 2. Of each row's stream [L, D] after every layer, the S subject tokens [layers, S, D].
    sites = [_name_site(model, layer) for layer in layers]
    states = dict(zip(rows, read_spans(model, rows, sites), strict=True))
    # 3. The states of every prompt, equal ones again.
    return [states[key] for key in keys]


@torch.inference_mode()
def read_spans(
    model: Model, rows: Sequence[tuple[Sequence[int], Span]], sites: Sequence[str]
) -> list[Float[Tensor, "sites S F"]]:
    """What passes some sites at a span of each row, given as tokens and span."""

    def read(batch: Sequence[int]) -> list[Tensor]:
        padded = [PromptRow(list(rows[n][0]), 0, [0], [], 0) for n in batch]
        tokens = stack_rows(padded, model.device).tokens
        inside = model.find_block(tokens, tokens.new_empty(0))  # nothing is predicted
        with model.net.capture(*sites) as taken:
            model.net.run_layers(model.net.embed(tokens), inside=inside)
        return [
            torch.stack([taken[site][row, slice(*rows[n][1])] for site in sites])
            for row, n in enumerate(batch)
        ]

    lengths = [len(tokens) for tokens, _ in rows]
    size = fit_rows(model, count_row_bytes(model, max(lengths), 1) * (1 + len(sites)))
    return map_rows(model, lengths, size, read)


def attach_changes(
    model: Model, changes: Mapping[Any, StateChange], owners: Int[Tensor, "R"]
) -> ExitStack:
    """The changes waiting at their sites, for a batch whose rows belong to these prompts."""
    sites = {
        _name_site(model, layer): lambda x, change=change: change(x, owners)
        for layer, change in changes.items()
    }
    stack = ExitStack()
    if sites:
        stack.enter_context(model.net.patch(sites))
    return stack


def _name_site(model: Model, layer: int | str) -> str:
    layers = model.net.config.layers
    if isinstance(layer, str):
        return layer
    if not EMBEDDINGS <= layer < layers:
        raise UserError(
            f"layer {layer} was named: {model.name} has layers 0 to {layers - 1}, and -1 for the "
            "stream before them."
        )
    return "layers.0.resid_in" if layer == EMBEDDINGS else f"layers.{layer}.resid_out"


def _lay_out_steps(
    model: Model, prompt: PatchedPrompt, answer: list[int], canvas: int | None
) -> list[PromptRow]:
    """The rows that score an answer: one for each token, or one for all of a causal model's."""
    start, last = len(prompt.tokens), prompt.subject[1] - 1
    if canvas is None:
        tokens = prompt.tokens + answer[:-1]
        reads = [model.row_of(start + k) for k in range(len(answer))]
        return [PromptRow(tokens, last, reads, answer, start)]
    return [
        PromptRow(
            pad_canvas(model, prompt.tokens + answer[:k], canvas),
            last,
            [model.row_of(start + k)],
            [token],
            start,
        )
        for k, token in enumerate(answer)
    ]


def _score_rows(
    model: Model,
    rows: Sequence[PromptRow],
    owners: Int[Tensor, "R"],
    variants: Sequence[Mapping[Any, StateChange]],
) -> list[list[TokenScores]]:
    """log p of each row's targets, and whether each is the likeliest; row by row, by variant."""
    net, batch = model.net, stack_rows(rows, model.device)
    scores = [list[TokenScores]() for _ in variants]
    # The stream without changes is taken up to the first changed layer of one variant after the
    # other; each variant runs on from there.
    numbers = [[int(each.split(".")[1]) if isinstance(each, str) else each for each in changes]
                for changes in variants]  # fmt: skip
    firsts = [max(min(own, default=net.config.layers), 0) for own in numbers]
    inside = model.find_block(batch.tokens, batch.reads)
    x, layer = net.embed(batch.tokens), 0
    for number in sorted(range(len(variants)), key=firsts.__getitem__):
        x, layer = net.run_layers(x, layer, firsts[number], inside=inside), firsts[number]
        with attach_changes(model, variants[number], owners):
            changed = net.run_layers(x, layer, inside=inside)
        logp = log_softmax(model, net.unembed(changed, batch.reads))  # [R, A, V]
        target = logp.gather(-1, batch.targets[..., None])[..., 0]
        is_best = logp.argmax(-1) == batch.targets
        scores[number] = [
            list(zip(terms[: len(row.targets)], hits[: len(row.targets)], strict=True))
            for row, terms, hits in zip(rows, target.tolist(), is_best.tolist(), strict=True)
        ]
    return [list(each) for each in zip(*scores, strict=True)]
