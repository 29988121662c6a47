"""What a step's tokens cost for being committed together: a product of marginals for their joint.

A step that commits several tokens chooses each from its own prediction, as if they were
independent. The model has a joint law of them as well, by the chain rule: one token after the
other, each shown to those after it. How far the two are apart is measured at the states that a
sampler visits, and for the positions that it commits there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.base.streams import RowStreams
from unmask.evaluation.chain import Chain, log_softmax, score_chains
from unmask.net.batches import count_row_bytes, fit_rows, map_batches
from unmask.net.model import Model
from unmask.sampling.orders import get_order
from unmask.sampling.state import StepState
from unmask.sampling.texts import sample
from unmask.sampling.token_sampler import invert
from unmask.sampling.trajectory import Trajectory


@dataclass(frozen=True)
class Commit:
    """Tokens that one step wrote into one text, from left to right."""

    text: int
    """The number of the text."""
    step: int
    before: list[int]
    """The canvas before the step, masks where nothing is written."""
    positions: list[int]
    tokens: list[int]
    logp: Float[Tensor, "k V"]
    """What the sampler took the network to say at these positions."""


@dataclass(frozen=True)
class CommitCost:
    """What a step's tokens lose by being committed together, in nats."""

    correlation: float
    """KL(joint || product of marginals), the conditional total correlation: what the tokens tell
    about each other."""
    gap: float
    """log p of the tokens written, as a product of marginals minus by the chain rule: above 0 they
    are less likely together than they look apart."""
    staleness: float
    """Summed KL(marginal || what the sampler took for it): 0 but for caches that approximate."""


def watch_commits(
    model: Model, prompts: Sequence[Sequence[int]], order: Any, **sampling: Any
) -> tuple[list[list[int]], list[Commit]]:
    """The tokens that a masked model has at the end of each prompt's row, and what each step
    committed.

    Without remasking and correctors a token is written once, by one step.
    """
    texts: dict[int, list[int]] = {}
    commits: list[Commit] = []
    # Prompts of one length have their blocks in the same places, and so share every step.
    by_length = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    for _, group in groupby(by_length, key=lambda i: len(prompts[i])):
        rows = list(group)
        seen: list[StepState] = []
        watched = _watch(get_order(order), seen, rows, commits)
        given = [prompts[i] for i in rows]
        drawn = sample(model, given, order=watched[0], watch=watched[1], **sampling)
        texts |= zip(rows, drawn.tokens.tolist(), strict=True)
    return [texts[i] for i in range(len(prompts))], commits


def _watch(order: Any, seen: list[StepState], rows: list[int], commits: list[Commit]) -> Any:
    """The order, which notes what it is shown, and a watcher that notes what became of it."""

    def score(state: StepState, streams: RowStreams) -> Tensor:
        seen[:] = [state]
        return order(state, streams)

    def note(drawn: Trajectory) -> None:
        (state,) = seen
        written = drawn.committed_at == drawn.num_steps
        number = state.open.flatten().cumsum(0).view_as(state.open) - 1
        for i, text in enumerate(rows):
            at = written[i].nonzero()[:, 0]
            if len(at):
                logp = state.predictions.rows[number[i, at]]
                before, tokens = state.tokens[i].tolist(), drawn.tokens[i, at].tolist()
                commits.append(Commit(text, drawn.num_steps, before, at.tolist(), tokens, logp))

    return score, note


@torch.inference_mode()
def find_commit_costs(
    model: Model, commits: Sequence[Commit], draws: int | None = 1, seed: int = 0
) -> list[CommitCost]:
    """What each commit costs.

    Args:
        model: The model that wrote the texts.
        commits: What steps wrote, as `watch_commits` has it.
        draws: Texts of the joint law that a correlation is averaged over. None: all texts with
            their probabilities, for laws of few tokens.
        seed: Of these draws.
    """
    costs: dict[int, CommitCost] = {}
    by_size = sorted(range(len(commits)), key=lambda i: len(commits[i].positions))
    length = max((len(each.before) for each in commits), default=1)
    widest = len(commits[by_size[-1]].positions) if commits else 1
    several = [i for i, commit in enumerate(commits) if len(commit.positions) > 1]
    chained = _score_jointly(model, [commits[i] for i in several], length)
    joint = dict(zip(several, chained, strict=True))

    def work(batch: Sequence[int]) -> list[CommitCost]:
        own = [commits[i] for i in batch]
        marginals, at = _find_marginals(model, own)
        streams = RowStreams.make(seed, [str(i) for i in batch], model.device)
        correlations = _find_correlations(model, own, marginals, at, draws, streams)
        costed = []
        for i, commit, logp, correlation in zip(batch, own, marginals, correlations, strict=True):
            logp = logp[: len(commit.positions)]
            tokens = torch.tensor(commit.tokens, device=logp.device)
            product = float(logp.gather(-1, tokens[:, None]).sum())
            staleness = float(find_divergence(logp, commit.logp).sum())
            costed.append(CommitCost(correlation, product - joint.get(i, product), staleness))
        return costed

    rows = max(1, fit_rows(model, count_row_bytes(model, length, widest)) // (draws or 1))
    for batch, costed in map_batches(by_size, rows, work):
        costs |= zip(batch, costed, strict=True)
    return [costs[i] for i in range(len(commits))]


def find_divergence(
    logp: Float[Tensor, "*n V"], logq: Float[Tensor, "*n V"]
) -> Float[Tensor, "*n"]:
    """KL(p || q) in nats; what p never says adds nothing."""
    terms = logp.exp() * (logp - logq)
    return terms.masked_fill(logp == -torch.inf, 0.0).sum(-1).clamp(min=0)


def _score_jointly(model: Model, commits: Sequence[Commit], length: int) -> list[float]:
    """log p of the tokens of each commit by the chain rule, from left to right."""
    chains = []
    for commit in commits:
        tokens = list(commit.before)
        for at, token in zip(commit.positions, commit.tokens, strict=True):
            tokens[at] = token
        chains.append(Chain(tokens, commit.positions))
    return [sum(terms) for terms in score_chains(model, chains, length)]


def _find_marginals(
    model: Model, commits: Sequence[Commit]
) -> tuple[Float[Tensor, "C K V"], Int[Tensor, "C K"]]:
    """log p at the positions of each commit, all of them masked; the last position fills up."""
    most = max(len(commit.positions) for commit in commits)
    filled = [
        [*commit.positions, *commit.positions[-1:] * (most - len(commit.positions))]
        for commit in commits
    ]
    at = torch.tensor(filled, device=model.device)
    xt = torch.tensor([commit.before for commit in commits], device=model.device)
    return _predict_at(model, xt, at), at


def _predict_at(
    model: Model, xt: Int[Tensor, "R L"], at: Int[Tensor, "R K"]
) -> Float[Tensor, "R K V"]:
    return log_softmax(model, model.logits(xt, None, at, model.find_time(xt)))


def _find_correlations(
    model: Model,
    commits: Sequence[Commit],
    marginals: Float[Tensor, "C K V"],
    at: Int[Tensor, "C K"],
    draws: int | None,
    streams: RowStreams,
) -> list[float]:
    """The conditional total correlation of each commit.

    It is the sum over its tokens of how far a token's prediction, given those before it, is from
    its marginal: KL(p(x_j | x_1 … x_(j-1)) || p(x_j)), in the mean over texts of the joint law.
    """
    # 1. Texts of each commit [R, L], with their weights; each draws numbers of its own.
    copies, sizes = draws or 1, torch.tensor([len(commit.positions) for commit in commits])
    owner = torch.arange(len(commits)).repeat_interleave(copies).to(model.device)
    xt = torch.tensor([commit.before for commit in commits], device=model.device)[owner]
    weight = torch.full((len(xt),), 1 / copies, dtype=torch.float64, device=model.device)
    numbers = streams.uniform(copies, at.shape[1]).flatten(0, 1)  # [R, K]
    logp, sizes = marginals[owner, 0], sizes.to(model.device)
    total = torch.zeros(len(commits), dtype=torch.float64, device=model.device)
    for j in range(at.shape[1] - 1):
        # 2. Texts that have a token after this one; it is drawn, or takes every value in turn.
        kept = sizes[owner] > j + 1
        owner, xt, weight, logp, numbers = (x[kept] for x in (owner, xt, weight, logp, numbers))
        if draws is None:
            rows, tokens = (logp > -torch.inf).nonzero().T
            owner, xt, numbers = owner[rows], xt[rows], numbers[rows]
            weight = weight[rows] * logp[rows, tokens].exp()
        else:
            tokens = invert(logp, numbers[:, j])
        xt = xt.scatter(1, at[owner, j, None], tokens[:, None])
        # 3. What the next token's prediction is now, against its marginal.
        logp = _predict_at(model, xt, at[owner, j + 1, None])[:, 0]
        far = find_divergence(logp, marginals[owner, j + 1])
        total.index_add_(0, owner, weight * far)
    return total.tolist()
