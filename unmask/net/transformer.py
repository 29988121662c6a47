"""One transformer for every model: a diffusion network, or with `causal` its AR twin."""

from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, overload

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from unmask.base.config import LARGEST, SettingsError, check_values
from unmask.base.errors import UserError
from unmask.base.seeds import torch_stream
from unmask.net.blocks import Block, initialise, make_block
from unmask.net.cache import Cache, Snapshot
from unmask.net.conditioning import ConditionedNorm, ConditionInput, LatentInput, TimeInput
from unmask.net.config import NetConfig
from unmask.net.graphs import Graphs, can_replay
from unmask.net.layers import Embedding, Head, PredictionNorm, make_norm
from unmask.net.pieces import locate_layers
from unmask.net.rotary import RotaryTables
from unmask.net.sites import Patch, Steps
from unmask.net.taps import Taps, keep_home
from unmask.net.view import (
    View,
    check_length,
    check_positions,
    check_token_rows,
    find_places,
    mask_attention,
    mask_blocks,
    mask_open_block,
    mask_window,
    repeat_block,
)

Tokens = Int[Tensor, "B L"]
Real = Bool[Tensor, "B L"]
Seen = Bool[Tensor, "B N"]
"""What is not padding of all that tokens see: with a cache or a snapshot more than they are."""


class Transformer(nn.Module):
    """Tokens in, raw logits out; every activation in between has a name (`unmask.net.sites`).

    `real` marks the tokens of a batch that are not padding. Positions count from a row's first
    real token, so a row's logits depend neither on its padding nor on the other rows.
    """

    def __init__(self, config: NetConfig, seed: int | None = 0):
        """A network with fresh weights; with `seed` None they are left for a checkpoint to fill."""
        super().__init__()
        hints = {"config": NetConfig, "seed": int | None}
        if problems := check_values({"config": config, "seed": seed}, hints, seed=(0, LARGEST)):
            raise SettingsError("Transformer", problems)
        self.config = config
        self.embedding = Embedding(config.vocab_size, config.width)
        if config.positions == "learned":
            self.position = Embedding(config.context, config.width)
        if config.token_types is not None:
            self.types = Embedding(config.token_types, config.width)
        if config.time:
            self.time = TimeInput(config) if config.adaln is None else ConditionInput(config)
        if config.latent_width is not None:
            self.latents = LatentInput(config)
        self.layers = nn.ModuleList(make_block(config, layer) for layer in range(config.layers))
        if config.embed_norm:
            self.embed_norm = make_norm(config)
        last = ConditionedNorm if config.adaln else PredictionNorm if config.head_mlp else make_norm
        self.norm = last(config)
        self.head = Head(config.width, config.logit_rows, bias=config.head_bias)
        self.tie_head()
        self.taps = Taps(config.layers)
        self._rotary = RotaryTables(config)
        self._local_rotary = RotaryTables(replace(config, rotary_base=config.window_base))
        self.graphs = Graphs()
        self.open_at: tuple[int, int] | None = None
        """An open block [begin, end) for passes that do not say where theirs is."""
        if seed is not None:
            device = self.embedding.weight.device
            initialise(self, config.layers, torch_stream(seed, "weights", device=device))

    def forward(
        self,
        tokens: Tokens,
        real: Real | None = None,
        at: Tensor | None = None,
        cache: Cache | None = None,
        t: Float[Tensor, "B"] | None = None,
        classes: Int[Tensor, "B"] | None = None,
    ) -> Float[Tensor, "*n V"]:
        """Raw logits, at all positions or at those that `at` names (see `unembed`).

        With a `cache` the tokens stand after those it already holds, and are added to it. `classes`
        are for networks that take one beside the time `t`.
        """
        condition = self.make_condition(t, classes)
        x = self.run_tokens(tokens, real, cache, t, condition)
        if cache is not None:
            cache.length += tokens.shape[1]
        return self.unembed(x, at, condition=condition)

    def make_condition(
        self, t: Float[Tensor, "B"] | None, classes: Int[Tensor, "B"] | None = None
    ) -> Float[Tensor, "B C"] | None:
        """What layers are told of a time, in networks with adaLN; None for all others."""
        if classes is not None and self.config.classes is None:
            raise UserError("classes were given, but this network knows none: leave them out.")
        if t is None or self.config.adaln is None:
            return None
        return self.time(t, classes)

    def run_tokens(
        self,
        tokens: Tokens,
        real: Seen | None = None,
        cache: Cache | Snapshot | None = None,
        t: Float[Tensor, "B"] | None = None,
        condition: Float[Tensor, "B C"] | None = None,
        inside: Seen | None = None,
    ) -> Float[Tensor, "B L D"]:
        """The stream that leaves the last layer, replayed where that is faster."""
        check_token_rows(tokens)
        is_plain = real is None and cache is None and t is None and not self.config.open_block
        if is_plain and can_replay(self, tokens):
            check_length(self.config, tokens.shape[1])
            if (x := self.graphs.run_pass(self, tokens)) is not None:
                return x
        x = self.embed(tokens, real, cache, t)
        return self.run_layers(x, real=real, cache=cache, condition=condition, inside=inside)

    def embed(
        self,
        tokens: Tokens,
        real: Seen | None = None,
        cache: Cache | Snapshot | None = None,
        t: Float[Tensor, "B"] | None = None,
    ) -> Float[Tensor, "B L D"]:
        """The residual stream that enters layer 0; `t` is for networks that are told the time."""
        check_token_rows(tokens)
        x = self.embedding(tokens)
        in_part = isinstance(cache, Snapshot) and self.taps.attached
        self.taps.tokens = cache.complete("tokens", tokens) if in_part else tokens
        return self._enter(self.embed_norm(x) if self.config.embed_norm else x, real, cache, t)

    def embed_latents(
        self,
        z: Float[Tensor, "B L d"],
        hint: Float[Tensor, "B L d"] | None = None,
        real: Seen | None = None,
        t: Float[Tensor, "B"] | None = None,
    ) -> Float[Tensor, "B L D"]:
        """The stream of noised token vectors, with the last guess at the clean ones as a hint."""
        self.taps.tokens = None
        return self._enter(self.latents(z, hint), real, None, t)

    def _enter(
        self, x: Tensor, real: Seen | None, cache: Cache | Snapshot | None, t: Tensor | None
    ) -> Tensor:
        past = cache.length - cache.padding if isinstance(cache, Cache) else 0
        check_length(self.config, past + x.shape[1])
        snapshot = cache if isinstance(cache, Snapshot) else None
        x = self.taps.at(snapshot=snapshot)("embed", x)
        if self.config.positions == "learned":
            x = x + self.position(find_places(x, real, cache)[0])
        if self.config.token_types is not None:
            x = x + self.types.weight[0]
        if self.config.time and self.config.adaln is None:
            assert t is not None, "this network is told the time: pass t"
            x = x + self.time(t)
        return x

    def run_layers(
        self,
        x: Float[Tensor, "B L D"],
        start: int = 0,
        stop: int | None = None,
        real: Seen | None = None,
        cache: Cache | Snapshot | None = None,
        sees: Bool[Tensor, "L L"] | None = None,
        condition: Float[Tensor, "B C"] | None = None,
        positions: Tokens | None = None,
        inside: Seen | None = None,
    ) -> Float[Tensor, "B L D"]:
        """The stream that leaves layer `stop` - 1 when `x` enters layer `start`.

        A `cache` is written to, but only `forward` counts its new positions as filled. With a
        snapshot `real` is that of its whole canvas. `sees` narrows attention further: True where
        a position (first) may see another (second). Rotary `positions` may be in any order.
        `inside` is True at each row's open block.
        """
        stop = self.config.layers if stop is None else stop
        assert 0 <= start <= stop <= self.config.layers, (start, stop, self.config.layers)
        view = replace(self.view(x, real, cache, sees, positions, inside), condition=condition)
        home, snapshot = x.device, cache if isinstance(cache, Snapshot) else None
        for layer in range(start, stop):
            own, tap = view.of(layer), self.taps.at(f"layers.{layer}.", snapshot)
            if (away := self.block(layer).elsewhere) is not None:
                own, tap = own.to(away), keep_home(tap, home)
            x = self.layers[layer](x.to(away or home), own, tap)
        return x.to(home)

    def block(self, layer: int) -> Block:
        """One layer, for those who run parts of it."""
        block = self.layers[layer]
        assert isinstance(block, Block)
        return block

    def unembed(
        self,
        x: Float[Tensor, "B L D"],
        at: Tensor | None = None,
        number: int | None = None,
        condition: Float[Tensor, "B C"] | None = None,
    ) -> Float[Tensor, "*n V"]:
        """Raw logits of the stream that leaves the last layer, only where they are wanted.

        `at` is a mask [B, L] of that `number` of positions (logits [N, V]), positions [n] for all
        rows, or positions [B, n] row by row (logits [B, n, V]).
        """
        conditions, packed = () if condition is None else (condition[:, None],), None
        if at is not None:
            check_positions(at, x)
            if at.dtype == torch.bool and condition is not None:
                each = condition[:, None].expand(-1, x.shape[1], -1)
                conditions = (select_rows(each, at, number),)
            if at.dtype == torch.bool:
                if self.taps.attached:
                    packed = locate(at, number) // x.shape[1]
                x = select_rows(x, at, number)
            elif at.ndim == 1:
                x = x[:, at]
            else:
                x = x.take_along_dim(at[..., None], dim=1)
        tap = self.taps.at(packed=packed)
        x = tap("final", self.norm(x, *conditions))
        return tap("logits", self.head(x))

    @overload
    @contextmanager
    def capture(self, *names: str, steps: None = None) -> Generator[dict[str, Tensor]]: ...
    @overload
    @contextmanager
    def capture(self, *names: str, steps: Steps) -> Generator[dict[int, dict[str, Tensor]]]: ...
    @contextmanager
    def capture(self, *names: str, steps: Steps | None = None) -> Generator[dict]:
        """A dictionary that holds the newest activation of each named site that fired.

        Nothing is copied or detached. Samplers and scores run the network many times, in batches
        of their own: what is kept is their last pass. With `steps`, the dictionary has one such for
        each of these denoising steps of a sampler, by its number; a guided step holds twice the
        rows, first those that see the prompt.

        Args:
            names: Sites (`unmask.net.sites` lists them with their shapes); `*` stands for any
                layer or part. A name at which nothing comes by is an error.
            steps: Denoising steps to keep, counted from 1: a number, several, or "all".

        >>> model = unmask.load("reversal-mdm", device="cpu")
        >>> with model.net.capture("layers.*.mlp_key") as cache:
        ...     logits = model.logits("We sat down beside[MASK]")
        >>> len(cache), cache["layers.0.mlp_key"].shape[:2]
        (6, torch.Size([1, 5]))
        >>> with model.net.capture("layers.3.attn_pattern", steps=(1, 4)) as by_step:
        ...     drawn = unmask.sample(model, "We sat down", steps=4, length=8)
        >>> by_step[4]["layers.3.attn_pattern"].shape[-2:]
        torch.Size([8, 8])
        """
        with self.taps.capture(names, steps) as taken:
            yield taken

    @contextmanager
    def patch(
        self,
        functions: Mapping[str, Patch],
        steps: Steps | None = None,
        rows: int | Collection[int] | None = None,
    ) -> Generator[None]:
        """Inside the block, each site's activation is what its function makes of it.

        Args:
            functions: By site, or by a pattern with `*`, a function from the activation to one of
                the same shape. It must not write into the tensor it gets, which other sites and
                captures may share, and what it does may depend on nothing but that tensor and its
                context: samplers, scores and traces run the network as often as they need to. A
                function with an argument named `context` gets a `unmask.net.sites.PatchContext`:
                the tokens, which of them are masks, the step, the site, and which text each row is
                about.
            steps: Denoising steps of a sampler at which they act, counted from 1: a number,
                several, or "all"; by default they act in every pass, of a sampler or not.
            rows: Which of the given texts they act on, counted from 0: a number or several. The
                function sees the rows of these alone, and the other rows stay as they are.

        >>> model = unmask.load("reversal-mdm", device="cpu")
        >>> with model.net.patch({"layers.2.mlp_out": torch.zeros_like}):
        ...     ablated = model.logits("We sat down beside[MASK]")
        >>> with model.net.patch({"layers.2.mlp_out": torch.zeros_like}, steps=1, rows=1):
        ...     drawn = unmask.sample(model, ["We sat down"] * 2, steps=4, length=8)
        >>> def hide_masks(x, context):
        ...     return x.masked_fill(context.open[..., None], 0.0)
        >>> with model.net.patch({"layers.2.mlp_out": hide_masks}):
        ...     drawn = unmask.sample(model, "We sat down", steps=4, length=8)
        """
        with self.taps.patch(functions, steps, rows):
            yield

    def tie_head(self) -> None:
        """Make a tied head the embedding again, after weights were given new memory."""
        if self.config.tied:
            self.head.weight = self.embedding.weight

    def _apply(self, *given: Any, **more: Any) -> "Transformer":
        """What moves a module, such as `net.to(device)`: layers may lie elsewhere afterwards."""
        super()._apply(*given, **more)
        locate_layers(self)
        return self

    def new_cache(self, batch: int, length: int | None = None, padding: int = 0) -> Cache:
        """An empty cache that fits this network's weights, as long as its context by default.

        `padding` is room for columns in front of shorter rows, which take up no position. With
        block-causal attention a cache is exact over finished blocks: a block that is still written
        is run behind it, and `cache.length` set back before it is run again.
        """
        if not self.config.causal and (self.config.block is None or self.config.open_block):
            raise UserError(
                "a cache was asked for a network that sees in both directions: the keys and values "
                "of earlier tokens change with later ones; run it whole, or use a causal network "
                "or one with a 'block'."
            )
        if self.config.block is not None and padding:
            raise UserError(
                "padding was asked for in the cache of a network with block-causal attention: its "
                "rows finish their blocks together; give rows of the same length."
            )
        weight = self.embedding.weight
        length = self.config.context if length is None else length
        return Cache(self.config, batch, length, weight.device, weight.dtype, padding)

    def new_snapshot(self, batch: int, length: int) -> Snapshot:
        """An empty snapshot of canvases of that length, for a network of either kind."""
        weight = self.embedding.weight
        return Snapshot(self.config, batch, length, weight.device, weight.dtype)

    def view(
        self,
        x: Tensor,
        real: Seen | None = None,
        cache: Cache | Snapshot | None = None,
        sees: Bool[Tensor, "L L"] | None = None,
        positions: Tokens | None = None,
        inside: Seen | None = None,
    ) -> View:
        """What each position of the stream `x` sees, the same in every layer."""
        config, length = self.config, x.shape[1]
        past = cache.length if isinstance(cache, Cache) else 0
        where, seen = find_places(x, real, cache, positions)
        mask, is_causal = mask_attention(seen, length, past, config.causal, x.device)
        num_keys = cache.room if isinstance(cache, Snapshot) else past + length
        if config.open_block and positions is None:
            fixed = repeat_block(self.open_at, num_keys, x.device)
            mask = mask_open_block(seen, fixed if inside is None else inside, length, cache)
        elif config.block is not None and not config.open_block:
            mask = mask_blocks(seen, where, num_keys, config.block, positions)
        if sees is not None:
            assert not config.causal and cache is None, "only open attention can be narrowed"
            mask = sees if mask is None else mask & sees
        turned = self._rotary.look_up(x, where, past, num_keys)
        view = View(*turned, mask, is_causal, cache)
        if config.window is None:
            return view
        near = mask_window(seen, where, num_keys, config.window)
        if near is not None and sees is not None:
            near = near & sees
        turned = self._local_rotary.look_up(x, where, past, num_keys)
        local = View(*turned, mask if near is None else near, cache=cache)
        return replace(view, local=local, period=config.window_period)


def select_rows(
    x: Float[Tensor, "B L D"], at: Bool[Tensor, "B L"], number: int | None = None
) -> Float[Tensor, "N D"]:
    """The rows where `at` is True.

    By number: the gradient of indexing with a mask sorts all its positions first.
    """
    return x.flatten(0, 1).index_select(0, locate(at, number))


def locate(mask: Bool[Tensor, "*n"], number: int | None = None) -> Int[Tensor, "N"]:
    """Where a mask is True, counted over all of it.

    A GPU that has to count first makes the host wait; it is told the `number` where that is known.
    """
    if number is None or mask.device.type == "cpu":
        return mask.flatten().nonzero()[:, 0]
    return (~mask).flatten().byte().argsort(stable=True)[:number]
