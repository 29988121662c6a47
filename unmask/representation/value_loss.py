"""The loss whose minimum is a value, for many facts at once: a delta per fact, rows independent.

A delta is added to what the MLP of one layer gives at one position. Only what depends on it is
computed again at each evaluation (`LayersAbove`); everything else is run once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.base.errors import UserError
from unmask.net.blocks import Block
from unmask.net.model import Model
from unmask.net.transformer import Transformer
from unmask.noise.guidance import mix
from unmask.representation.keys import LayerRecord, record_layer
from unmask.representation.prompts import Case, PromptBatch, stack_rows
from unmask.representation.settings import Extraction


@dataclass(frozen=True)
class LossTerms:
    """The terms of the loss, one number per fact, in nats; `loss` is their weighted sum."""

    loss: Float[Tensor, "N"]
    nll: Float[Tensor, "N"]
    """-log p of the object, averaged over its tokens, then over patterns and prefixes."""
    kl: Float[Tensor, "N"]
    norm: Float[Tensor, "N"]
    """||delta|| / ||v0||^2."""
    logp: Float[Tensor, "N"]
    """log p of the object, without a prefix, in the first mask pattern: a sum over its tokens."""


class ValueLoss:
    """The loss of N facts at one layer; each fact has equally many rows, R = N * `per_fact`."""

    def __init__(self, model: Model, cases: Sequence[Case], layer: int, settings: Extraction):
        self.model, self.settings, self.num_facts = model, settings, len(cases)
        # 1. All rows of all facts, up to the layer. The first row of a fact is its prompt without a
        #    prefix: what the MLP gives there is v0 [N, D].
        self.rows = stack_rows([row for case in cases for row in case.rows], model.device)
        _check_reach(model, self.rows, layer, cases)
        self.per_fact = len(self.rows.tokens) // self.num_facts
        record = record_layer(model, self.rows, layer, self.per_fact)
        # Deltas are float32 at least, also where the network is bfloat16.
        self.dtype = torch.promote_types(record.value.dtype, torch.float32)
        self.v0 = record.value[:: self.per_fact].to(self.dtype)
        self.v0_norm = torch.linalg.vector_norm(self.v0, dim=-1)
        # 2. The layers above, which alone see the delta.
        self.above = LayersAbove(model.net, layer, record, self.rows)
        self.is_target = self.rows.is_target
        self.mask: Tensor | None = None
        if model.mask_id is not None and model.mask_id < model.net.config.logit_rows:
            self.mask = torch.tensor([model.mask_id], device=model.device)
        # 3. Guidance mixes in a pass without the prompt, which has no subject to change: run once.
        self.unconditional = self._run_unconditional() if settings.guidance else None
        # 4. What the network says about the subject before any search, one row per fact [N, V].
        self.above_kl: LayersAbove | None = None
        if settings.kl:
            rows = stack_rows([case.kl_prompt for case in cases], model.device)
            self.above_kl = LayersAbove(model.net, layer, record_layer(model, rows, layer), rows)
            with torch.no_grad():
                self.kl_logp = self._predict(self.above_kl.run(torch.zeros_like(self.v0)))[:, 0]

    def evaluate(self, delta: Float[Tensor, "N D"]) -> LossTerms:
        """The terms with a delta added to each fact's value, in all its rows."""
        # 1. Each row of a fact gets the fact's delta: [N, D] -> [R, D], read at A positions.
        x = self.above.run(delta.repeat_interleave(self.per_fact, 0))
        # 2. log p of the targets [R, A]; padding counts 0.
        logp = self._predict(x, self.unconditional).gather(-1, self.rows.targets[..., None])
        logp = torch.where(self.is_target, logp[..., 0], 0.0)
        # 3. Averaged over tokens [R], then over a fact's rows [N]: a long object weighs as much as
        #    a short one, and a pattern that shows much of it as much as one that shows nothing.
        nll = (-logp.sum(-1) / self.rows.num_targets).unflatten(0, (self.num_facts, -1)).mean(1)
        # 4. KL(p_delta || p) of the next token after the subject, over the whole vocabulary.
        kl = torch.zeros_like(nll)
        if self.above_kl is not None:
            kl_logp = self._predict(self.above_kl.run(delta))[:, 0]
            kl = (kl_logp.exp() * (kl_logp - self.kl_logp)).sum(-1)
        # 5. The norm's gradient is not a number at a delta of 0: skipped where it weighs nothing.
        norm = torch.zeros_like(nll)
        if self.settings.norm:
            norm = torch.linalg.vector_norm(delta, dim=-1) / self.v0_norm**2
        loss = nll + self.settings.kl * kl + self.settings.norm * norm
        return LossTerms(loss, nll, kl, norm, logp.sum(-1)[:: self.per_fact])

    def _predict(
        self, x: Float[Tensor, "R A D"], unconditional: Tensor | None = None
    ) -> Float[Tensor, "R A V"]:
        """log p at the positions read; the mask's is tiny, but finite for the KL."""
        facts = [row * self.num_facts // len(x) for row in range(len(x))]
        with self.model.net.taps.in_rows(facts):
            logits = self.model.net.unembed(x).to(self.dtype)
        if unconditional is not None:
            logits = mix(logits, unconditional, self.settings.guidance)
        if self.mask is not None:
            logits = logits.index_fill(-1, self.mask, torch.finfo(self.dtype).min / 4)
        return logits.log_softmax(-1)

    @torch.no_grad()
    def _run_unconditional(self) -> Float[Tensor, "R A V"]:
        """Logits with the prompt masked."""
        net, mask_id = self.model.net, self.model.mask_id
        assert mask_id is not None
        positions = torch.arange(self.rows.tokens.shape[1], device=self.model.device)
        in_prompt = positions < self.rows.prompt_length[:, None]
        kept = [self.model.count_kept(row) for row in self.rows.tokens.tolist()]
        in_prompt &= positions >= torch.tensor(kept, device=self.model.device)[:, None]
        tokens = self.rows.tokens.masked_fill(in_prompt, mask_id)
        return net.unembed(net.run_layers(net.embed(tokens)), self.rows.reads).to(self.dtype)


class LayersAbove:
    """The layers above `layer`, for rows that left it as `x` and are changed at one position.

    Computed again and again: nothing up to the layer itself; in the next layer the queries, keys
    and values of the changed position; in the last layer the positions that are read.
    """

    @torch.no_grad()
    def __init__(self, net: Transformer, layer: int, record: LayerRecord, rows: PromptBatch):
        self.net, self.layer, self.x, self.tokens = net, layer, record.leaving, rows.tokens
        self.position, self.reads, self.facts = rows.position, rows.reads, record.facts
        self.entering = record.entering if net.taps.attached else None
        x, position, reads = self.x, self.position, self.reads
        self.last = net.config.layers - 1
        self.rows = torch.arange(len(x), device=x.device)
        _check_addition(net.block(layer), layer, x[self.rows, position])
        self.view = net.view(x)
        mask = self.view.of(self.last).mask
        self.mask = None if mask is None else mask[reads][:, None]
        if net.config.causal:
            positions = torch.arange(x.shape[1], device=x.device)
            self.mask = (positions <= reads[..., None])[:, None]  # [R, 1, A, L]
        if layer < self.last:
            view = self.view.of(layer + 1)
            self.projected = net.block(layer + 1).read(x, view.cos, view.sin)

    def run(self, added: Float[Tensor, "R D"]) -> Float[Tensor, "R A D"]:
        """The stream that leaves the last layer where it is read, `added` to the MLP's output.

        With patches all layers are run whole; of facts of which they change nothing, that does not
        count.
        """
        taps = self.net.taps
        if self.entering is None:
            return self._run_changed(added)
        with taps.in_rows(self.facts):
            return taps.run_watched(
                partial(self._run_whole, self.entering, added), partial(self._run_changed, added)
            )

    def _run_whole(
        self, x: Float[Tensor, "R L D"], added: Float[Tensor, "R D"]
    ) -> Float[Tensor, "R A D"]:
        """`run` from the stream that enters the layer; what is added comes after the patches."""

        def add(mlp: Float[Tensor, "R L D"]) -> Float[Tensor, "R L D"]:
            at = (self.rows, self.position)
            return mlp.index_put(at, added.to(mlp.dtype), accumulate=True)

        taps, site = self.net.taps, f"layers.{self.layer}.mlp_out"
        with taps.on_tokens(self.tokens), taps.attach({site: add}):
            return self._take_reads(self.net.run_layers(x, self.layer))

    def _run_changed(self, added: Float[Tensor, "R D"]) -> Float[Tensor, "R A D"]:
        """`run` of what can change alone."""
        # 1. What is added at the changed position [R, D] moves the stream that leaves the layer;
        #    the rest of it [R, L, D] stays.
        block = self.net.block(self.layer)
        changed = block.after_mlp(self.x[self.rows, self.position], added.to(self.x.dtype))
        x = self._put(self.x, changed)
        if self.layer == self.last:
            return self._take_reads(x)
        # 2. The next layer's queries, keys and values: new at the changed position [R, H, d], kept
        #    ones [R, L, H, d] at all others.
        block, first = self.net.block(self.layer + 1), self.layer + 1
        view = self.view.of(first)
        cos, sin = (None if t is None else t[self.position] for t in (view.cos, view.sin))
        new = block.read(changed, cos, sin)
        queries, keys, values = map(self._put, self.projected, new)
        if first == self.last:
            return self._finish(x, queries, keys, values)
        # 3. From its attention on every position can differ: whole layers, up to the last.
        z = block.attend(queries, keys, values, view.mask, self.net.config.causal)
        x = block.finish(x, block.attn_out(z))[0]
        x = self.net.run_layers(x, first + 1, self.last)
        # 4. The last layer mixes all positions, but only the A that are read leave it.
        view = self.view.of(self.last)
        return self._finish(x, *self.net.block(self.last).read(x, view.cos, view.sin))

    def _finish(
        self, x: Tensor, queries: Tensor, keys: Tensor, values: Tensor
    ) -> Float[Tensor, "R A D"]:
        """The last layer, at the positions that are read alone."""
        block = self.net.block(self.last)
        queries = queries.take_along_dim(self.reads[..., None, None], dim=1)
        z = block.attend(queries, keys, values, self.mask)
        return block.finish(self._take_reads(x), block.attn_out(z))[0]

    def _put(self, old: Tensor, new: Tensor) -> Tensor:
        return old.index_put((self.rows, self.position), new)

    def _take_reads(self, x: Tensor) -> Tensor:
        return x.take_along_dim(self.reads[..., None], dim=1)


def _check_reach(model: Model, rows: PromptBatch, layer: int, cases: Sequence[Case]) -> None:
    """Raise where nothing above the layer reads what is changed."""
    last = model.net.config.layers - 1
    if layer == last and not bool((rows.reads == rows.position[:, None]).any(-1).all()):
        raise UserError(
            f"layer {layer} is the last: what its MLP adds at the subject "
            f"{cases[0].fact.subject!r} never reaches the object; choose a layer from 0 to "
            f"{last - 1}."
        )


def _check_addition(block: Block, layer: int, x: Float[Tensor, "R D"]) -> None:
    """Raise where a delta added to the MLP's output is not added to the stream.

    `LayersAbove` adds it to what left the layer. A block that normalises the sum (post-norm, as in
    BERT) gives something else; so two additions, of the stream's own size, must be as one.
    """
    size = x.abs().amax().clamp(min=1.0)
    one = (torch.linspace(-1, 1, x.shape[-1]).to(x) * size).expand_as(x)
    other = one.roll(x.shape[-1] // 2, -1)
    apart = block.after_mlp(block.after_mlp(x, one), other) - block.after_mlp(x, one + other)
    if bool((apart.abs() > 8 * torch.finfo(x.dtype).eps * size).any()):
        raise UserError(
            f"layer {layer} is a {type(block).__name__}, which does more with its MLP's output "
            "than add it to the stream, as a block that normalises the sum does: the search for "
            "values needs a block whose after_mlp adds. Keys and traces of this model can be read."
        )
