"""The loss whose minimum is a value, for many facts at once: a delta per fact, rows independent."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.base.errors import UserError
from unmask.net.model import Model
from unmask.noise.guidance import mix
from unmask.representation.record import record_layer
from unmask.representation.settings import Extraction
from unmask.representation.states import Case, Rows, stack_rows
from unmask.representation.tail import Tail


@dataclass(frozen=True)
class Terms:
    """The terms of the loss, one number per fact, in nats; `loss` is their weighted sum."""

    loss: Float[Tensor, "N"]
    nll: Float[Tensor, "N"]
    """-log p of the object, averaged over its tokens, then over patterns and prefixes."""
    kl: Float[Tensor, "N"]
    norm: Float[Tensor, "N"]
    """||delta|| / ||v0||^2."""
    logp: Float[Tensor, "N"]
    """Of the whole object, without a prefix, in the first mask pattern: a sum over its tokens."""


class Problem:
    """Facts with equally many rows, asked at one layer."""

    def __init__(self, model: Model, cases: Sequence[Case], layer: int, settings: Extraction):
        self.model, self.settings, self.num_facts = model, settings, len(cases)
        self.rows = stack_rows([row for case in cases for row in case.rows], model.device)
        _check_reach(model, self.rows, layer, cases)
        record = record_layer(model, self.rows, layer)
        self.per_fact = len(self.rows.tokens) // self.num_facts
        self.dtype = torch.promote_types(record.value.dtype, torch.float32)
        self.v0 = record.value[:: self.per_fact].to(self.dtype)
        self.size = torch.linalg.vector_norm(self.v0, dim=-1)
        self.tail = Tail(model.net, layer, record.leaving, self.rows.place, self.rows.reads)
        places = torch.arange(self.rows.reads.shape[1], device=model.device)
        self.asked = places < self.rows.count[:, None]
        self.mask: Tensor | None = None
        if model.mask_id is not None and model.mask_id < model.net.config.logit_rows:
            self.mask = torch.tensor([model.mask_id], device=model.device)
        self.without = self._run_without() if settings.guidance else None
        self.essence: Tail | None = None
        if settings.kl:
            essence = stack_rows([case.essence for case in cases], model.device)
            leaving = record_layer(model, essence, layer).leaving
            self.essence = Tail(model.net, layer, leaving, essence.place, essence.reads)
            with torch.no_grad():
                self.meant = self._predict(self.essence.run(torch.zeros_like(self.v0)))[:, 0]

    def evaluate(self, delta: Float[Tensor, "N D"]) -> Terms:
        """The terms with a delta added to each fact's value, in all its rows."""
        x = self.tail.run(delta.repeat_interleave(self.per_fact, 0))
        said = self._predict(x, self.without).gather(-1, self.rows.targets[..., None])[..., 0]
        said = torch.where(self.asked, said, 0.0)
        each = -said.sum(-1) / self.rows.count
        nll = each.unflatten(0, (self.num_facts, -1)).mean(1)
        kl = torch.zeros_like(nll)
        if self.essence is not None:
            logp = self._predict(self.essence.run(delta))[:, 0]
            kl = (logp.exp() * (logp - self.meant)).sum(-1)
        norm = torch.zeros_like(nll)
        if self.settings.norm:
            norm = torch.linalg.vector_norm(delta, dim=-1) / self.size**2
        loss = nll + self.settings.kl * kl + self.settings.norm * norm
        return Terms(loss, nll, kl, norm, said.sum(-1)[:: self.per_fact])

    def _predict(self, x: Float[Tensor, "R A D"], without: Tensor | None = None) -> Tensor:
        """log p at the rows read; the mask has none to speak of, but stays finite for the KL."""
        logits = self.model.net.unembed(x).to(self.dtype)
        if without is not None:
            logits = mix(logits, without, self.settings.guidance)
        if self.mask is not None:
            logits = logits.index_fill(-1, self.mask, torch.finfo(self.dtype).min / 4)
        return logits.log_softmax(-1)

    @torch.no_grad()
    def _run_without(self) -> Float[Tensor, "R A V"]:
        """Logits of the pass that sees no prompt, and so no subject to change."""
        net, mask_id = self.model.net, self.model.mask_id
        assert mask_id is not None
        places = torch.arange(self.rows.tokens.shape[1], device=self.model.device)
        hidden = places < self.rows.prompt_length[:, None]
        tokens = self.rows.tokens.masked_fill(hidden, mask_id)
        return net.unembed(net.run_layers(net.embed(tokens)), self.rows.reads).to(self.dtype)


def _check_reach(model: Model, rows: Rows, layer: int, cases: Sequence[Case]) -> None:
    """Raise where nothing above the layer reads what is changed."""
    last = model.net.config.layers - 1
    if layer == last and not bool((rows.reads == rows.place[:, None]).any(-1).all()):
        raise UserError(
            f"layer {layer} is the last: what its MLP adds at the subject "
            f"{cases[0].fact.subject!r} never reaches the object; choose a layer from 0 to "
            f"{last - 1}."
        )
