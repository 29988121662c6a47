"""A Model: a network with its tokenizer, its mask and the meaning of its logits."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.base.config import SettingsError
from unmask.data.tokenizer import Tokenizer
from unmask.net.cache import Snapshot
from unmask.net.config import NetConfig
from unmask.net.paradigm import Kind, Paradigm, find_unknown, get_paradigm
from unmask.net.transformer import Transformer, check_tokens
from unmask.noise.gaussian import Gaussian
from unmask.noise.process import Process
from unmask.noise.processes import make_gaussian, make_process
from unmask.noise.settings import NoiseConfig


@dataclass(frozen=True)
class Blueprint:
    """Everything about a model but its weights and its tokenizer."""

    config: NetConfig
    kind: Kind
    mask_id: int | None = None
    shift: bool = False
    """Dream's habit: the network's row i predicts position i + 1, though it sees everything."""
    noise: NoiseConfig = field(default_factory=NoiseConfig)
    """What the process of its kind needs to be undone; causal models have none."""

    def __post_init__(self) -> None:
        if problems := list(self._problems()):
            raise SettingsError("model", problems)

    @property
    def paradigm(self) -> Paradigm:
        """How a model of this kind is read, sampled and scored."""
        return get_paradigm(self.kind)

    def _problems(self) -> Iterator[str]:
        unknown = list(find_unknown(self.kind))
        yield from unknown
        if not unknown and self.paradigm.sees_later == self.config.causal:
            sees = "only earlier tokens" if self.config.causal else "both directions"
            yield f"'kind' is {self.kind!r}, but the network sees {sees}"
        if not unknown and self.paradigm.has_mask and self.mask_id is None:
            yield f"a {self.kind} model needs a mask id, but has none"
        if self.mask_id is not None and type(self.mask_id) is not int:
            yield f"the mask id is {self.mask_id!r}, expected an integer"
        elif self.mask_id is not None and not 0 <= self.mask_id < self.config.vocab_size:
            yield f"mask id {self.mask_id} is not in 0..{self.config.vocab_size - 1}, the embedding"
        if type(self.shift) is not bool:
            yield f"'shift' is {self.shift!r}, expected true or false"


@dataclass(frozen=True)
class Model:
    """A loaded model; `.net` gives raw logits, `.logits` aligned ones."""

    name: str
    net: Transformer
    blueprint: Blueprint
    tokenizer: Tokenizer | None = None

    @property
    def kind(self) -> Kind:
        return self.blueprint.kind

    @property
    def paradigm(self) -> Paradigm:
        """How a model of this kind is read, sampled and scored."""
        return self.blueprint.paradigm

    @property
    def mask_id(self) -> int | None:
        return self.blueprint.mask_id

    @property
    def device(self) -> torch.device:
        return self.net.embedding.weight.device

    def make_process(self) -> Process:
        """The noise on tokens that this model undoes."""
        config = self.net.config
        return make_process(self.kind, self.blueprint.noise, config.logit_rows, self.mask_id)

    def make_gaussian(self) -> Gaussian:
        """The same for noise on token vectors, which are the network's own."""
        return make_gaussian(self.blueprint.noise, self.net.latents.table().detach().float())

    def logits(
        self,
        tokens: Int[Tensor, "B L"],
        real: Bool[Tensor, "B N"] | None = None,
        at: Tensor | None = None,
        t: Float[Tensor, "B"] | None = None,
        snapshot: Snapshot | None = None,
    ) -> Float[Tensor, "*n V"]:
        """Logits [B, L, V] whose row i predicts position i, or position i + 1 for a causal model.

        What is given is moved to the model's device.

        Args:
            tokens: Rows of token ids, masks among them.
            real: False at padding; by default all positions are text. With a `snapshot` it is the
                whole canvas', which starts at its first position.
            at: Rows to compute, as in `Transformer.unembed`: positions or a mask [B, L]; the result
                is then [n, V].
            t: Times, for networks that take one.
            snapshot: Keys and values of an earlier run; the tokens may then be some positions of
                its canvas, in order and without gaps.

        >>> model = unmask.load("reversal-mdm", device="cpu")
        >>> model.logits(torch.full((2, 7), model.mask_id)).shape[:2]
        torch.Size([2, 7])
        """
        check_tokens(tokens)
        tokens = tokens.to(self.device)
        real, at = (x if x is None else x.to(self.device) for x in (real, at))
        x = self.net.embed(tokens, real, snapshot, t)
        x = self.net.run_layers(x, real=real, cache=snapshot)
        in_part = snapshot is not None and snapshot.places is not None
        return self.net.unembed(self.align(x, None if in_part else real), at)

    def align(
        self, x: Float[Tensor, "B L D"], real: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "B L D"]:
        """The stream in which row i predicts position i: Dream's moves one place to the right.

        A row's first real token has nothing before it and keeps its own.
        """
        if not self.blueprint.shift:
            return x
        before = (torch.arange(x.shape[1], device=x.device) - 1).clamp(min=0)
        if real is None:
            return x[:, before]
        first = real.long().argmax(-1, keepdim=True)
        return x.take_along_dim(torch.maximum(before, first)[..., None], dim=1)

    def row_of(self, position: int) -> int:
        """The row of the unaligned stream that predicts a position: where it is read.

        A causal network's row i - 1, Dream's as well (its first position keeps its own), and every
        other network's row i.
        """
        return self.paradigm.row_of(position, self.blueprint.shift)
