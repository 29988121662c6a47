"""A Model: a network with its tokenizer, its mask and the meaning of its logits."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeGuard

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.base.config import SettingsError
from unmask.base.errors import UserError
from unmask.base.extras import Shown
from unmask.base.plugins import describe_plugins
from unmask.data.tokenizer import Encoded, Tokenizer
from unmask.net.cache import Snapshot
from unmask.net.config import NetConfig
from unmask.net.paradigm import Kind, Paradigm, find_unknown, get_paradigm
from unmask.net.readings import CAUSAL, DIFFUSION, check_reading, share_network, split_reading
from unmask.net.sites import site_names
from unmask.net.transformer import Transformer
from unmask.net.view import check_token_rows, find_open_block
from unmask.noise.gaussian import Gaussian
from unmask.noise.process import Process
from unmask.noise.processes import find_noise_problems, make_gaussian, make_process
from unmask.noise.schedules import find_time
from unmask.noise.settings import NoiseConfig

MOST_NOISED = 0.999
"""The share at t = 1 that the peers' sigma = -log alpha reckons with."""
_MASKS = re.compile(r" ?\[MASK\](?:\*(\d+))?")
"""Masks in a text, their number after an asterisk."""


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
    noises_beginning: bool = False
    """Whether what its tokenizer puts before a text is noised in training and hidden by guidance,
    as SMDM does; else it always stands."""

    def __post_init__(self) -> None:
        if problems := list(self._problems()):
            raise SettingsError("model", problems)

    @property
    def paradigm(self) -> Paradigm:
        """How a model of this kind is read, sampled and scored."""
        return get_paradigm(self.kind)

    def read_as(self, reading: str) -> "Blueprint":
        """What a model is whose network is read causally, or as a diffusion model."""
        check_reading(reading)
        if reading == (CAUSAL if self.paradigm.predicts_next else DIFFUSION) and self._has_readings:
            return self
        if not self._has_readings or self.config.time:
            timed = " that is told the time" if self.config.time else ""
            raise UserError(
                f"a {reading} reading was asked for of a {self.kind} model{timed}: expected a "
                "masked or a causal model, whose network is not told the time."
            )
        causal = reading == CAUSAL
        config = self.config.made_causal() if causal else replace(self.config, causal=False)
        kind = "causal" if causal else "masked"
        return replace(self, config=config, kind=kind, noise=NoiseConfig())

    @property
    def _has_readings(self) -> bool:
        return self.paradigm.fills_masks or self.paradigm.predicts_next

    def describe_plugins(self) -> dict[str, dict[str, str]]:
        """What other packages have a part in: noise and its schedule, by kind and name."""
        return describe_plugins((("noise", self.kind), ("schedule", self.noise.schedule)))

    def _problems(self) -> Iterator[str]:
        unknown = list(find_unknown(self.kind))
        yield from unknown
        if not unknown and self.paradigm.sees_later == self.config.causal:
            sees = "only earlier tokens" if self.config.causal else "both directions"
            yield f"'kind' is {self.kind!r}, but the network sees {sees}"
        if not unknown:
            yield from find_noise_problems(self.kind, self.noise)
        if not unknown and self.paradigm.has_mask and self.mask_id is None:
            yield f"a {self.kind} model needs a mask id, but has none"
        if not unknown and self.paradigm.noises_vectors and self.config.latent_width is None:
            yield f"'kind' is {self.kind!r}, but the network takes tokens and no vectors"
        if self.mask_id is not None and type(self.mask_id) is not int:
            yield f"the mask id is {self.mask_id!r}, expected an integer"
        elif self.mask_id is not None and not 0 <= self.mask_id < self.config.vocab_size:
            yield f"mask id {self.mask_id} is not in 0..{self.config.vocab_size - 1}, the embedding"
        for name in ("shift", "noises_beginning"):
            if type(value := getattr(self, name)) is not bool:
                yield f"{name!r} is {value!r}, expected true or false"


@dataclass(frozen=True, repr=False)
class Model(Shown):
    """A loaded model; `.net` gives raw logits, `.logits` aligned ones."""

    name: str
    net: Transformer
    blueprint: Blueprint
    tokenizer: Tokenizer | None = None
    diffusion: Blueprint | None = field(default=None, kw_only=True)
    """What the model is that a causal reading was taken from; None for others."""

    def __post_init__(self) -> None:
        self.net.taps.mask_id = self.blueprint.mask_id

    def __repr__(self) -> str:
        config, weight = self.net.config, self.net.embedding.weight
        return (
            f"Model({self.name!r}, {self.kind}, {config.layers} layers of width {config.width}, "
            f"{config.vocab_size:,} tokens, context {config.context:,}, "
            f"{str(weight.dtype).removeprefix('torch.')} on {weight.device})"
        )

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

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of what can be captured and patched; `unmask.net.sites` has their shapes."""
        return site_names(self.net.config.layers)

    def reading(self, name: str) -> "Model":
        """This network read in another way: a model of its own name that shares all weights.

        What changes the weights of one, such as an edit, changes those of all. Captures and patches
        are each model's own. Whether a network was trained to be read so is not looked at.

        Args:
            name: "causal" (a position sees what is before it and predicts the next token) or
                "diffusion" (masks are filled, and a position sees what the network's attention
                shows it).

        >>> model = unmask.load("reversal-mdm", device="cpu")
        >>> causal = model.reading("causal")
        >>> causal.name, causal.kind, causal.net.embedding.weight is model.net.embedding.weight
        ('reversal-mdm:causal', 'causal', True)
        """
        blueprint = self.diffusion if name == DIFFUSION else None
        blueprint = blueprint or self.blueprint.read_as(name)
        diffusion = None
        if name == CAUSAL:
            diffusion = self.blueprint if self.paradigm.fills_masks else self.diffusion
        net = self.net
        if blueprint.config != net.config:
            net = share_network(net, blueprint.config)
        own = f"{split_reading(self.name)[0]}:{name}"
        return Model(own, net, blueprint, self.tokenizer, diffusion=diffusion)

    @cached_property
    def drafter(self) -> "Model":
        """The diffusion reading, which drafts for the causal one: kept, with what it recorded."""
        return self.reading(DIFFUSION)

    def make_process(self) -> Process:
        """The noise on tokens that this model undoes."""
        config = self.net.config
        own = (self.kind, self.blueprint.noise, config.logit_rows, self.mask_id)
        return make_process(*own, self.tokenizer)

    def make_gaussian(self) -> Gaussian:
        """The process of noise on token vectors, which are the network's own."""
        return make_gaussian(self.blueprint.noise, self.net.latents.table().detach().float())

    def encode(self, text: str) -> Encoded:
        """The tokens of a text, `[MASK]*5` being five masks; offsets are characters of the text.

        A text with masks is whole and gets the tokenizer's ending, one without may be continued. A
        space before a mask belongs to the token that fills it: words carry the space before them.
        """
        ids, offsets, begin = list[int](), list[tuple[int, int]](), 0
        # Plain text, then masks, in turn; the last plain text has none after it.
        for masks in [*_MASKS.finditer(text), None]:
            end = len(text) if masks is None else masks.start()
            if begin < end:
                plain = self.require_tokenizer().encode(text[begin:end], added="nothing")
                ids += plain.ids
                offsets += [(begin + b, begin + e) for b, e in plain.offsets]
            if masks is not None:
                begin = masks.end()
                count = self._count_masks(masks)
                ids += [self.require_mask()] * count
                offsets += [(begin, begin)] * count  # masks hold no character
        plain = Encoded(ids, offsets)
        if self.tokenizer is None:
            return plain
        return self.tokenizer.enclose(
            plain, len(text), "both" if _MASKS.search(text) else "beginning"
        )

    def count_beginning(self, ids: Sequence[int]) -> int:
        """How many of a row's first tokens are what the tokenizer puts before every text."""
        added = [] if self.tokenizer is None else self.tokenizer.beginning
        return len(added) if list(ids[: len(added)]) == added else 0

    def count_kept(self, ids: Sequence[int]) -> int:
        """How many of a row's first tokens noise and guidance leave as they are."""
        return 0 if self.blueprint.noises_beginning else self.count_beginning(ids)

    def find_kept(self, tokens: Int[Tensor, "B L"]) -> Bool[Tensor, "B L"] | None:
        """True on every beginning that noise leaves as it is, inside of packed rows as well."""
        if (
            self.tokenizer is None
            or self.blueprint.noises_beginning
            or not self.tokenizer.beginning
        ):
            return None
        beginning = torch.tensor(self.tokenizer.beginning, device=tokens.device)
        # An end token that also begins texts is noised inside of a row, as ends are.
        kept = torch.isin(tokens, beginning[beginning != self.tokenizer.end_id])
        first = tokens[:, : len(beginning)]
        if first.shape[1] == len(beginning):
            kept[:, : len(beginning)] |= (first == beginning).all(-1, keepdim=True)
        return kept

    def _count_masks(self, written: re.Match[str]) -> int:
        text, context = written[1] or "1", self.net.config.context
        if len(text) > 20 or int(text) > context:
            raise UserError(
                f"{text:.60} masks were asked for, expected at most the context {context}."
            )
        return int(text)

    def require_tokenizer(self) -> Tokenizer:
        """The tokenizer, or a sentence about models that have none."""
        if self.tokenizer is None:
            raise UserError(
                f"the model {self.name} has no tokenizer: give prompts as token ids, or name a "
                "tokenizer when loading it."
            )
        return self.tokenizer

    def require_mask(self) -> int:
        """The mask id, or a sentence about models that have none."""
        if self.mask_id is None:
            raise UserError(
                f"the model {self.name} is {self.kind} and has no mask token: masks cannot be "
                "filled."
            )
        return self.mask_id

    def tokens(self, texts: str | Sequence[str]) -> Int[Tensor, "B L"]:
        """The token ids of a text, or of texts with as many tokens each, masks among them.

        Args:
            texts: Such as "We met [MASK]*3 there.".

        >>> model = unmask.load("reversal-mdm", device="cpu")
        >>> model.tokens("We sat down beside [MASK]*3").shape
        torch.Size([1, 7])
        """
        texts = [texts] if isinstance(texts, str) else list(texts)
        rows = [self.encode(text).ids for text in texts]
        if len(lengths := {len(row) for row in rows}) != 1 or lengths == {0}:
            raise UserError(
                f"texts of {', '.join(map(str, sorted(lengths))) or 'no'} tokens were given: "
                "expected one, or several with as many tokens each; run others one by one."
            )
        return torch.tensor(rows, device=self.device)

    def logits(
        self,
        tokens: Int[Tensor, "B L"] | str | Sequence[str],
        real: Bool[Tensor, "B N"] | None = None,
        at: Tensor | None = None,
        t: Float[Tensor, "B"] | None = None,
        snapshot: Snapshot | None = None,
        number: int | None = None,
        time: Float[Tensor, "B"] | None = None,
        inside: Bool[Tensor, "B N"] | None = None,
    ) -> Float[Tensor, "*n V"]:
        """Logits [B, L, V] whose row i predicts position i, or position i + 1 for a causal model.

        What is given is moved to the model's device.

        Args:
            tokens: Rows of token ids, masks among them, or texts as `tokens` takes them.
            real: False at padding; by default all positions are text. With a `snapshot` it is the
                whole canvas', which starts at its first position.
            at: Rows to compute, as in `Transformer.unembed`: positions or a mask [B, L]; the result
                is then [n, V].
            t: Times in [0, 1], for networks that take one.
            snapshot: Keys and values of an earlier run; the tokens may then be some positions of
                its canvas, in order and without gaps.
            number: How many positions the mask `at` names, if that is known: a GPU that has to
                count them makes the host wait.
            time: What the network itself takes, instead of `t`: sigma for SEDD, DUO and UDLM.
            inside: True at the block that is being written, for networks with an open block; by
                default it begins at each row's first mask and is as long as their settings say.

        >>> model = unmask.load("reversal-mdm", device="cpu")
        >>> model.logits(torch.full((2, 7), model.mask_id)).shape[:2]
        torch.Size([2, 7])
        """
        if isinstance(tokens, str) or _are_texts(tokens):
            tokens = self.tokens(tokens)
        check_token_rows(tokens)
        assert isinstance(tokens, Tensor)
        tokens = tokens.to(self.device)
        real, at = (x if x is None else x.to(self.device) for x in (real, at))
        time = self.convert_time(t) if time is None else time.to(self.device)
        condition = self.net.make_condition(time)
        inside = self.find_block(tokens, at) if inside is None else inside.to(self.device)
        x = self.net.run_tokens(tokens, real, snapshot, time, condition, inside)
        in_part = snapshot is not None and snapshot.places is not None
        return self.net.unembed(self.align(x, None if in_part else real), at, number, condition)

    def find_block(
        self, tokens: Int[Tensor, "B L"], at: Tensor | None = None
    ) -> Bool[Tensor, "B L"] | None:
        """The open block of each row, from its first mask on; None for networks without one.

        Masks that are read, all of them or those `at` some positions, must be in it.
        """
        config = self.net.config
        if not config.open_block or config.block is None or self.net.open_at is not None:
            return None
        return find_open_block(tokens == self.require_mask(), config.block, at)

    def find_time(
        self, tokens: Int[Tensor, "B L"], real: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "B"] | None:
        """The times at which as many tokens are masked; None for networks that take no time."""
        if not self.net.config.time:
            return None
        masked = (tokens == self.require_mask()).double()
        share = masked.mean(-1) if real is None else (masked * real).sum(-1) / real.sum(-1)
        return find_time(self.make_process().schedule, share)

    def convert_time(self, t: Float[Tensor, "B"] | None) -> Float[Tensor, "B"] | None:
        """What the network takes for a time in [0, 1]."""
        t = t if t is None else t.to(self.device)
        if t is None or self.net.config.time_input == "t":
            return t
        noised = self.make_process().schedule.noised(t.double())
        return -torch.log1p(-MOST_NOISED * noised)  # finite at t = 1

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


def _are_texts(given: object) -> TypeGuard[Sequence[str]]:
    is_list = isinstance(given, list | tuple) and bool(given)
    return is_list and all(isinstance(each, str) for each in given)
