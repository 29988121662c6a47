"""How likely answers are after their prompts, and where the true one ranks among its rivals.

Computed once for each prompt, however many step counts are sampled. `logp` is the joint
log-probability by the chain rule from left to right, for both kinds of model. For a masked model
`logp_mean_field` sums the log-probabilities that the answer's tokens have while all of them are
masked (step 1); its rank goes by that, since the chain rule for all rivals can cost more than all
sampling. A causal model's rank goes by `logp`. `rank_chain` goes by `logp` for both kinds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Int
from torch import Tensor

from unmask.evaluation.chain import Chain, entropy, log_softmax, score_chains, score_continuations
from unmask.evaluation.metrics import rank_of
from unmask.net.batches import count_row_bytes, fit_rows, map_batches
from unmask.net.model import Model


@dataclass(frozen=True)
class Asked:
    """A prompt, the answers whose likelihood is asked, and the rivals they are ranked among.

    Prompts may share one list of rivals, which is then made a tensor only once.
    """

    prompt: list[int]
    answers: list[list[int]]
    rivals: list[list[int]]


@dataclass(frozen=True)
class Scored:
    """One answer after its prompt, in nats."""

    terms: list[float]
    """log p of each token, those before it given."""
    logp_mean_field: float | None
    """None for causal models."""
    rank: int
    num_rivals: int
    """How many answers the rank counts, the right one among them."""
    first_token_entropy: float
    rank_chain: int | None = None
    """By the chain rule; of a masked model only where it was asked for, and of the first answer."""

    @property
    def logp(self) -> float:
        return sum(self.terms)


def score_answers(
    model: Model, questions: Sequence[Asked], length: int, ranks_by_chain: bool = False
) -> list[list[Scored]]:
    """Each answer of each prompt scored, on a canvas of `length`; too long rivals do not count.

    With `ranks_by_chain` a masked model's first answer of each prompt is also ranked by the chain
    rule.
    """
    questions = [_drop_long(each, length) for each in questions]
    is_masked = model.paradigm.sees_later
    scores = list((_score_masked if is_masked else _score_causal)(model, questions, length))
    chain_ranks: list[int | None] = [None] * len(questions)
    if is_masked and ranks_by_chain:
        totals = [sum(terms[0]) for terms, _, _ in scores]
        chain_ranks[:] = _rank_by_chain(model, questions, totals, length)
    scored = []
    for question, (terms, joints, first), chain in zip(questions, scores, chain_ranks, strict=True):
        own, rivals = joints[: len(question.answers)], joints[len(question.answers) :]
        ranks = [rank_of(joint, rivals) for joint in own]
        chains = [chain, *[None] * (len(ranks) - 1)] if is_masked else ranks
        scored.append(
            [
                Scored(each, joint if is_masked else None, rank, len(rivals), first, by_chain)
                for each, joint, rank, by_chain in zip(terms, own, ranks, chains, strict=True)
            ]
        )
    return scored


def _drop_long(question: Asked, length: int) -> Asked:
    room = length - len(question.prompt)
    assert all(len(answer) <= room for answer in question.answers)
    fitting = [rival for rival in question.rivals if len(rival) <= room]
    if len(fitting) == len(question.rivals):
        return question
    return Asked(question.prompt, question.answers, fitting)


Scores = Iterator[tuple[list[list[float]], list[float], float]]
"""For each prompt: log p of its answers' tokens, the joint log p that answers and rivals are ranked
by, and the entropy of the first token."""


def _score_causal(model: Model, questions: Sequence[Asked], length: int) -> Scores:
    together = [each.answers + each.rivals for each in questions]
    continued = score_continuations(model, [each.prompt for each in questions], together)
    for each, after in zip(questions, continued, strict=True):
        yield after.terms[: len(each.answers)], list(map(sum, after.terms)), after.entropy


def _score_masked(model: Model, questions: Sequence[Asked], length: int) -> Scores:
    chains = [
        Chain(each.prompt + answer, list(range(len(each.prompt), len(each.prompt) + len(answer))))
        for each in questions
        for answer in each.answers
    ]
    items = [i for i, each in enumerate(questions) for _ in each.answers]
    terms = iter(score_chains(model, chains, length, items))
    for each, (joints, first) in zip(questions, _look(model, questions, length), strict=True):
        yield [next(terms) for _ in each.answers], joints, first


def _rank_by_chain(
    model: Model, questions: Sequence[Asked], totals: Sequence[float], length: int
) -> list[int]:
    """The rank of each prompt's first answer, whose log p is in `totals`, by the chain rule.

    Rivals are written token by token, all at once. Their log p can only fall: one that falls to the
    true answer's ranks below it and is asked no further. Rivals that begin alike share the passes
    of what they begin with.
    """
    ranks, depth = [1] * len(questions), 0
    rows = fit_rows(model, count_row_bytes(model, length, 1))
    ahead = [
        (i, tuple(rival), 0.0)
        for i, each in enumerate(questions)
        for rival in each.rivals
        if rival != each.answers[0]
    ]
    while ahead:
        # 1. The next tokens of all rivals, by prompt and by what is written of them.
        wanted: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        for i, rival, _ in ahead:
            wanted.setdefault((i, rival[:depth]), []).append(rival[depth])
        # 2. A pass for each beginning; its rivals' next tokens in their order.
        beginnings = [([*questions[i].prompt, *written], tokens)
                      for (i, written), tokens in wanted.items()]  # fmt: skip
        scores = map_batches(beginnings, rows, partial(_score_next, model, length))
        logp_next = dict(zip(wanted, (each for _, batch in scores for each in batch), strict=True))
        # 3. Who is still ahead: those that end here rank above the answer, the others go on.
        depth += 1
        moved = [(i, rival, logp + next(logp_next[i, rival[: depth - 1]]))
                 for i, rival, logp in ahead]  # fmt: skip
        moved = [each for each in moved if each[2] > totals[each[0]]]
        for i, rival, _ in moved:
            ranks[i] += len(rival) == depth
        ahead = [each for each in moved if len(each[1]) > depth]
    return ranks


@torch.inference_mode()
def _score_next(
    model: Model, length: int, batch: Sequence[tuple[list[int], list[int]]]
) -> list[Iterator[float]]:
    """log p of some tokens, each as the next one of its text, all after it masked."""
    canvas = torch.full((len(batch), length), model.require_mask())
    for row, (text, _) in enumerate(batch):
        canvas[row, : len(text)] = torch.tensor(text)
    at = torch.tensor([[len(text)] for text, _ in batch], device=model.device)
    logp = log_softmax(model, model.logits(canvas.to(model.device), None, at)[:, 0])
    pairs = [(row, token) for row, (_, tokens) in enumerate(batch) for token in tokens]
    row, token = torch.tensor(pairs, device=model.device).T
    values = logp[row, token].split([len(tokens) for _, tokens in batch])
    return [iter(each.tolist()) for each in values]


@torch.inference_mode()
def _look(model: Model, questions: Sequence[Asked], length: int) -> list[tuple[list[float], float]]:
    """Mean-field joint log-probabilities of answers and rivals, and the first token's entropy."""
    mask_id, device = model.require_mask(), model.device
    lists = {
        id(some): some for question in questions for some in (question.answers, question.rivals)
    }
    longest = max(len(answer) for answers in lists.values() for answer in answers)
    padded = {key: _pad(answers, longest) for key, answers in lists.items()}

    def look(numbers: Sequence[int]) -> list[tuple[list[float], float]]:
        # 1. Prompts and masks after them [B, L]; answers and rivals [B, K, A], filled up with -1.
        batch = [questions[i] for i in numbers]
        canvas = torch.full((len(batch), length), mask_id)
        most = max(len(question.answers + question.rivals) for question in batch)
        answers = torch.full((len(batch), most, longest), -1)
        for i, question in enumerate(batch):
            canvas[i, : len(question.prompt)] = torch.tensor(question.prompt)
            both = torch.cat([padded[id(question.answers)], padded[id(question.rivals)]])
            answers[i, : len(both)] = both
        # 2. One pass, read at the A positions after each prompt [B, A, V].
        start = torch.tensor([[len(question.prompt)] for question in batch])
        at = (start + torch.arange(longest)).clamp(max=length - 1)
        with model.net.taps.in_rows(numbers):
            logp = log_softmax(model, model.logits(canvas, None, at))
        # 3. log p of each answer's tokens [B, A, K], summed over A: the rest counts for nothing.
        wanted = answers.transpose(1, 2).to(device)
        joint = logp.gather(-1, wanted.clamp(min=0)).where(wanted >= 0, 0.0).sum(1)
        rows = zip(batch, joint.tolist(), entropy(logp[:, 0]).tolist(), strict=True)
        return [
            (row[: len(question.answers + question.rivals)], first) for question, row, first in rows
        ]

    rows = fit_rows(model, count_row_bytes(model, length, longest))
    numbers = range(len(questions))
    return [seen for _, batch in map_batches(numbers, rows, look) for seen in batch]


def _pad(answers: Sequence[list[int]], length: int) -> Int[Tensor, "N length"]:
    """Answers as rows, filled up with -1."""
    rows = [[*answer, *[-1] * (length - len(answer))] for answer in answers]
    return torch.tensor(rows, dtype=torch.long).view(-1, length)
