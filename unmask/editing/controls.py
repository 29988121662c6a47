"""What an edit is held against: edits that should not work, and the same statement learned.

The wrong subject's key and another fact's residual have the norm of the edit they stand beside; the
edit in a layer drawn at random, of a norm of its own, is made by the caller. The baseline learns
the new statement by the model's own objective, in the whole network or in the edited down
projections alone, until it is as likely as under the edit. A masked objective also hides the
subject and asks for it: if that answers in reverse where the edit does not, either the low-rank
write or what is trained is the reason.
"""

import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.base.progress import track_inside
from unmask.base.streams import RowStreams
from unmask.data.facts import Fact, tokenize_fact
from unmask.editing.edit import Edit, Factors, digest_downs
from unmask.editing.moments import make_states
from unmask.evaluation.questions import require_tokenizer
from unmask.net.model import Model
from unmask.noise.masked import Masked
from unmask.objectives.batch import Batch
from unmask.objectives.causal import next_token_loss
from unmask.objectives.masked import get_weighting, masked_loss, noise_batch

Swap = Literal["key", "delta"]


def swap_factors(model: Model, made: Edit, other: Edit, swap: Swap) -> Edit:
    """The edit with another edit's keys or residuals in the place of its own, of equal norm."""
    name = "readers" if swap == "key" else "residuals"
    factors = {}
    for layer, own in made.factors.items():
        parts = {"residuals": own.residuals, "readers": own.readers}
        theirs = getattr(other.factors[layer], name)
        parts[name] = theirs * (parts[name].norm() / theirs.norm().clamp(min=1e-30))
        factors[layer] = Factors(**parts)
    return Edit(factors, digest_downs(model, made.layers), made.record)


@dataclass(frozen=True)
class Tuned:
    """Weights that were trained on a statement, put on like an edit."""

    weights: Mapping[str, Tensor]
    magnitude: float
    """The Frobenius norm of all that was changed."""
    updates: int
    reached: bool
    """Whether the statement became as likely as was asked for."""

    @contextmanager
    def on(self, model: Model) -> Generator[Model]:
        """Inside the block the model has these weights; afterwards its own, to the bit."""
        parameters = dict(model.net.named_parameters())
        own = {name: parameters[name].detach().clone() for name in self.weights}
        try:
            _write(parameters, self.weights)
            yield model
        finally:
            _restore(parameters, own)


@torch.no_grad()
def _write(parameters: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    for name, value in values.items():
        parameters[name].copy_(value)


def _restore(parameters: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    """Write all own weights back; an interrupt is let through once all are written."""
    try:
        _write(parameters, own)
    except BaseException:
        _write(parameters, own)
        raise


def tune(
    model: Model,
    fact: Fact,
    target: float,
    layers: Sequence[int] | None = None,
    *,
    updates: int = 100,
    lr: float = 1e-4,
    rows: int = 16,
    length: int | None = None,
    seed: int = 0,
) -> Tuned:
    """Learn a fact's statement by the model's own objective; the model stays as it is.

    Args:
        model: Masked or causal.
        fact: With the object that is to be said.
        target: Learning ends once the object costs no more than this after the prompt, nats per
            token: of a causal model by the chain rule, of a masked one all masked (`find_cost`).
        layers: Of the down projections that may change; None: the whole network.
        updates: At most.
        lr: Of Adam, after no warm-up.
        rows: Copies of the statement in a batch, each noised on its own.
        length: Of a row; a masked model's ends with end tokens, as its canvas does.
        seed: Of the noise.
    """
    net, (row, span) = model.net, _lay_out(model, fact, length)
    chosen = {
        name: parameter
        for name, parameter in net.named_parameters()
        if layers is None or name in {f"layers.{layer}.mlp.down.weight" for layer in layers}
    }
    own = {name: parameter.detach().clone() for name, parameter in chosen.items()}
    needed = {name: parameter.requires_grad for name, parameter in net.named_parameters()}
    batch = Batch(row.expand(rows, -1))
    batch = replace(batch, kept=model.find_kept(batch.tokens) if model.paradigm.has_steps else None)
    optimiser = torch.optim.Adam(chosen.values(), lr=lr)
    step, reached = 0, False
    try:
        for name, parameter in net.named_parameters():
            parameter.requires_grad_(name in chosen)
        for step in track_inside(range(updates + 1)):
            reached = _cost(model, row, span) <= target
            if reached or step == updates:
                break
            with torch.enable_grad():
                optimiser.zero_grad()
                _loss(model, batch, step, seed).backward()
            optimiser.step()
        weights = {name: parameter.detach().clone() for name, parameter in chosen.items()}
    finally:
        _restore(chosen, own)
        for name, parameter in net.named_parameters():
            parameter.requires_grad_(needed[name])
            parameter.grad = None
    moved = [(weights[name].double() - own[name].double()).norm() for name in weights]
    return Tuned(weights, float(torch.stack(moved).norm()), step, reached)


def _loss(model: Model, batch: Batch, step: int, seed: int) -> Tensor:
    """The training objective on a batch of copies of one statement."""
    if not model.paradigm.has_steps:
        return next_token_loss(model.net, batch)[0]
    process = model.make_process()
    assert isinstance(process, Masked), "edits are made of masked and causal models"
    first = step * len(batch.tokens)
    streams = RowStreams.make(seed, range(first, first + len(batch.tokens)), model.device)
    t = streams.at("time").uniform(1)[:, 0]
    noised = noise_batch(process, batch, t, streams.at("noise"), get_weighting("bound"))
    return masked_loss(model.net, process, batch, noised, model.blueprint.shift)[0]


def _lay_out(model: Model, fact: Fact, length: int | None) -> tuple[Tensor, tuple[int, int]]:
    """The statement's row of tokens, and where its object stands."""
    tokens = tokenize_fact(fact, require_tokenizer(model))
    ids = list(tokens.ids)
    if model.paradigm.has_steps and length is not None:
        ids += [require_tokenizer(model).end_id] * (length - len(ids))
    return torch.tensor(ids, device=model.device), tokens.object


def find_cost(model: Model, fact: Fact, length: int | None = None) -> float:
    """What a fact's object costs after its prompt now, as `tune` measures it."""
    return _cost(model, *_lay_out(model, fact, length))


@torch.no_grad()
def _cost(model: Model, tokens: Int[Tensor, "L"], span: tuple[int, int]) -> float:
    """-log p of the object, nats per token; a masked model's tokens are all masked at once."""
    wanted, row = tokens[slice(*span)], tokens.clone()
    if model.paradigm.sees_later:
        row[span[0] :] = model.require_mask()
    reads = [model.row_of(at) if model.paradigm.predicts_next else at for at in range(*span)]
    logp = model.logits(row[None])[0, reads].log_softmax(-1, dtype=torch.float64)
    return float(-logp.gather(-1, wanted[:, None]).mean())


class UnrelatedText:
    """Rows of text on which an edit should change nothing: KL and bits per token.

    A diffusion model reads them noised at uniform times, and its tokens are the hidden ones.
    """

    def __init__(self, model: Model, texts: Sequence[str], rows: int, seed: int = 0):
        tokenizer, length = require_tokenizer(model), min(64, model.net.config.context)
        # A text a row, filled with end tokens as statements are in training; these are not read.
        cut = [tokenizer.encode(text).ids[:length] for text in texts[:rows]]
        filled = [ids + [tokenizer.end_id] * (length - len(ids)) for ids in cut]
        self.model, self.x0 = model, torch.tensor(filled, device=model.device)
        kind = "noised" if model.paradigm.has_steps else "clean"
        self.xt = make_states(model, self.x0, range(len(cut)), kind, seed)
        # Masked tokens of a diffusion model; every token but a row's first of a causal one.
        self.is_read = self.xt != self.x0
        if not model.paradigm.has_steps:
            self.is_read = torch.ones_like(self.x0, dtype=torch.bool)
            self.is_read[:, 0] = False
        ends = torch.tensor([len(ids) for ids in cut], device=model.device)
        self.is_read &= torch.arange(length, device=model.device) < ends[:, None]
        self.logp = self._read()

    @torch.no_grad()
    def _read(self) -> Float[Tensor, "N V"]:
        logits = self.model.logits(self.xt)
        if self.model.paradigm.predicts_next:
            logits = logits.roll(1, 1)  # row i predicts the position after it
        return logits[self.is_read].log_softmax(-1, dtype=torch.float64)

    def compare(self, change: "Edit | Tuned") -> dict[str, float]:
        """KL(before || after) in nats, and bits per token that is read, before and after."""
        with change.on(self.model):
            after = self._read()
        before, wanted = self.logp, self.x0[self.is_read][:, None]
        terms = torch.where(before.isfinite(), before.exp() * (before - after), 0.0)
        bits = [float(-each.gather(-1, wanted).mean()) / math.log(2) for each in (before, after)]
        return {
            "text_kl": float(terms.sum(-1).mean()),
            "text_bits_before": bits[0],
            "text_bits_after": bits[1],
        }
