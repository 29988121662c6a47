"""What a run leaves at every layer, and how the answer is read from the stream at its end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.base.seeds import torch_stream
from unmask.net.fused import fuses
from unmask.net.model import Model
from unmask.net.sites import Patch
from unmask.net.transformer import Transformer
from unmask.noise.guidance import mix

RECORDED = ("resid_out", "attn_q", "attn_k", "attn_v", "attn_z", "attn_out", "mlp_out")
"""Parts that a record keeps, in the order of its fields."""
_MOST_LOGITS = {"cpu": 2**24, "cuda": 2**27, "mps": 2**24}
"""Logits held at once: 67 megabytes in float32, and on a GPU 268 in bfloat16."""


@dataclass
class Activations:
    """Activations of S rows at every layer; a clean run has one row for all samples."""

    entering: list[Float[Tensor, "S L D"]] = field(default_factory=list)
    """The stream that enters each layer, and at the end the one that leaves the last."""
    queries: list[Float[Tensor, "S L H d"]] = field(default_factory=list)
    keys: list[Float[Tensor, "S L h d"]] = field(default_factory=list)
    values: list[Float[Tensor, "S L h d"]] = field(default_factory=list)
    attn_z: list[Float[Tensor, "S L H d"]] = field(default_factory=list)
    attn: list[Float[Tensor, "S L D"]] = field(default_factory=list)
    """Attention's addition to the stream."""
    mlp: list[Float[Tensor, "S L D"]] = field(default_factory=list)
    moved: Int[Tensor, "ours"] | None = None
    """For another text's run: which of its positions stands for each of ours."""
    tokens: Int[Tensor, "S L"] | None = None
    """What was read, where a patch may ask for it."""

    @property
    def samples(self) -> int:
        return len(self.entering[0])

    @property
    def bytes(self) -> int:
        return sum(x.nbytes for kept in self.lists() for x in kept)

    def resid(self, layer: int) -> Float[Tensor, "S L D"]:
        """The stream that leaves a layer; layer -1 is the embeddings."""
        return self.entering[layer + 1]

    def pick(self, kept: Tensor, sample: Tensor, position: Tensor) -> Tensor:
        """What was kept at (sample, position) pairs."""
        position = position if self.moved is None else self.moved[position]
        return kept[sample if self.samples > 1 else 0, position]

    def take(self, rows: slice) -> "Activations":
        """Some of the rows, without copying."""
        tokens = None if self.tokens is None else self.tokens[rows]
        return replace(self.map(lambda x: x[rows]), tokens=tokens)

    def repeat(self, times: int) -> "Activations":
        """Every row so many times in a row."""
        if times == 1:
            return self
        tokens = None if self.tokens is None else self.tokens.repeat_interleave(times, 0)
        return replace(self.map(lambda x: x.repeat_interleave(times, 0)), tokens=tokens)

    def map(self, call: Callable[[Tensor], Tensor]) -> "Activations":
        """What a function makes of everything that was kept."""
        return Activations(*([call(x) for x in kept] for kept in self.lists()), moved=self.moved)

    def lists(self) -> tuple[list[Tensor], ...]:
        """What was kept, by layer, in the order of the fields."""
        kept = (self.entering, self.queries, self.keys, self.values)
        return (*kept, self.attn_z, self.attn, self.mlp)


def record_run(
    net: Transformer, x: Float[Tensor, "S L D"], tokens: Int[Tensor, "S L"] | None = None
) -> Activations:
    """Run the embedded rows through all layers and keep what tracing needs.

    With patches, what they left. `tokens` are those of the rows, which patches may ask for.
    """
    record, functions = Activations(entering=[x], tokens=tokens), dict[str, Patch]()

    def keep(kept: list[Tensor]) -> Patch:
        def act(x: Tensor) -> Tensor:
            kept.append(x)
            return x

        return act

    kept = dict(zip(RECORDED, record.lists(), strict=True))
    for layer in range(net.config.layers):
        functions |= {f"layers.{layer}.{part}": keep(own) for part, own in kept.items()}
    with net.taps.on_tokens(tokens), net.taps.in_rows((0,)), net.taps.attach(functions):
        net.run_layers(x)
    return record


@torch.inference_mode()
def average_states(model: Model, texts: Sequence[Sequence[int]]) -> Activations:
    """Every activation's mean over all positions of some texts, as a record of one position."""
    assert texts, "no text to take means of"
    net, number = model.net, sum(map(len, texts))
    means: Activations | None = None
    for ids in texts:
        tokens = torch.tensor([ids], device=model.device)
        record = record_run(net, net.embed(tokens), tokens)
        own = record.map(lambda x: x.float().sum(1, keepdim=True) / number)
        if means is None:
            means = own
            continue
        for kept, more in zip(means.lists(), own.lists(), strict=True):
            for mean, x in zip(kept, more, strict=True):
                mean += x
    assert means is not None
    dtype = net.embedding.weight.dtype
    return means.map(lambda x: x.to(dtype))


def make_constant(record: Activations, is_zero: bool, length: int) -> Activations:
    """A run that is the same at every position: zero, or the mean over the record's positions."""
    first = torch.zeros(length, dtype=torch.long, device=record.entering[0].device)
    means = record.map(lambda x: torch.zeros_like(x[:, :1]) if is_zero else x.mean(1, keepdim=True))
    return replace(means, moved=first)


def make_random(clean: Activations, corrupted: Activations, seed: int) -> Activations:
    """The corrupted run, moved as far as the clean one is away, in a random direction instead.

    One direction for each layer and position, the same in all samples and on every device.
    """
    generator = torch_stream(seed, "random directions")
    lists = []
    for ours, theirs in zip(corrupted.lists(), clean.lists(), strict=True):
        moved = []
        for x, y in zip(ours, theirs, strict=True):
            direction = torch.randn(x[:1].shape, generator=generator).to(x.device)
            direction = direction / direction.norm(dim=-1, keepdim=True)
            length = (y.float() - x.float()).norm(dim=-1, keepdim=True)
            moved.append((x.float() + length * direction).to(x.dtype))
        lists.append(moved)
    return Activations(*lists, moved=corrupted.moved)


@dataclass(frozen=True)
class AnswerReader:
    """Where the network is read, for which tokens, and against what it is guided."""

    model: Model
    rows: Int[Tensor, "A"]
    targets: Int[Tensor, "K A"]
    """The answer, and after it other tokens to read at the same rows (a foil, a placebo)."""
    guidance: float = 0.0
    without: Float[Tensor, "S A V"] | None = None
    """Logits of the pass that sees no prompt, computed once."""
    own: Int[Tensor, "S"] | None = None
    """Which of the rows is read alone, for each sample; None: all are."""

    def take(self, rows: slice) -> "AnswerReader":
        """A reader for some of the rows that the pass without the prompt was run for."""
        if self.without is None or len(self.without) == 1:
            return self
        return replace(self, without=self.without[rows])

    def read_stream(self, x: Float[Tensor, "S L D"]) -> Float[Tensor, "S K A"]:
        """log p of each target in every sample of a stream that leaves the last layer."""
        return self.read(x[:, self.rows], torch.arange(len(x), device=x.device))

    def read(self, x: Float[Tensor, "B A D"], sample: Int[Tensor, "B"]) -> Float[Tensor, "B K n"]:
        """log p of each target, at all rows or at its own; the mask has no probability.

        `sample` is the noise sample of each row, for the logits of the pass without the prompt, and
        for the row that is its own.
        """
        # 1. K targets at A rows [B, A, K]; at each sample's own row alone, A = 1.
        targets = self.targets.T.expand(len(x), -1, -1)
        if self.own is not None:
            at = torch.arange(len(x), device=x.device), self.own[sample]
            x, targets = x[at][:, None], targets[at][:, None]
        # 2. Logits [b, A, V], of as many samples at once as fit into memory.
        most, num_logits = _MOST_LOGITS[x.device.type], self.model.net.config.logit_rows
        num_rows = max(1, most // (x.shape[1] * num_logits))
        mask_id, chunks = self.model.mask_id, []
        for start in range(0, len(x), num_rows):
            rows = slice(start, start + num_rows)
            with self.model.net.taps.in_rows((0,)):
                logits = self.model.net.unembed(x[rows])
            if self.without is None and fuses(logits) and logits.stride(-1) == 1:
                chunks.append(self._read_fused(logits, targets[rows]))
                continue
            # 3. Guided against the pass without the prompt; then log p of the targets [b, K, A].
            logits = logits.float()
            if self.without is not None:
                without = self.without if len(self.without) == 1 else self.without[sample[rows]]
                logits = mix(logits, without, self.guidance)
            if mask_id is not None and mask_id < logits.shape[-1]:
                logits[..., mask_id] = -torch.inf
            logp = logits.gather(-1, targets[rows]) - logits.logsumexp(-1, keepdim=True)
            chunks.append(logp.transpose(1, 2))
        return torch.cat(chunks)

    def _read_fused(
        self, logits: Float[Tensor, "B A V"], wanted: Int[Tensor, "B A K"]
    ) -> Float[Tensor, "B K A"]:
        """log p of the wanted tokens, in one pass over the logits."""
        from unmask.net import kernels

        banned = torch.zeros(logits.shape[-1], dtype=torch.uint8, device=logits.device)
        if self.model.mask_id is not None and self.model.mask_id < len(banned):
            banned[self.model.mask_id] = 1
        totals = kernels.logsumexp(logits.flatten(0, 1), banned).unflatten(0, logits.shape[:2])
        logp = logits.gather(-1, wanted).double() - totals[..., None]
        if self.model.mask_id is not None:
            logp = logp.masked_fill(wanted == self.model.mask_id, -torch.inf)
        return logp.transpose(1, 2).float()
