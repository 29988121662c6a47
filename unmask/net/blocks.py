"""The transformer block: its parts (norm, attention, MLP), and how they meet the stream."""

import math
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from unmask.base.errors import UserError, suggest
from unmask.net.attention import Attention, Keys, Projected, Queries, Residual
from unmask.net.config import NetConfig
from unmask.net.layers import add_and_norm, make_norm
from unmask.net.mlp import Experts, make_mlp
from unmask.net.pieces import PIECES, at_weights
from unmask.net.sites import Tap
from unmask.net.taps import is_wanted, mix_rows, untouched
from unmask.net.view import View

InnerKey = Float[Tensor, "*n F"]
"""The MLP's inner activation."""


READ = ("attn_q", "attn_k", "attn_v")
"""Sites of what attention reads of the stream."""


class Block(nn.Module):
    """One layer, in pieces. Whatever runs a layer, whole or in part, is composed of these:

        queries, keys, values = read(x)             what attention sees of each position
        z = attend(queries, keys, values)           each head's mixture of values
        attn = attn_out(z)                          what attention adds to the stream
        reads, stream = after_attention(x, attn)    what the MLP reads, and what it adds to
        mlp = mlp_out(mlp_key(reads))               what the MLP adds to the stream
        x = after_mlp(stream, mlp)                  what enters the next layer

    Here the MLP reads the stream that attention has added to. All pieces but `attend` work position
    by position, so that tracing can run them on a flat list of positions [N, D], and `after_mlp` is
    linear in what is added, so that a change of the MLP's addition can be added afterwards. A block
    of another kind overrides pieces and nothing else (`register_block`).
    """

    elsewhere: torch.device | None = None
    """Where the weights are, in a network that is cut over several devices, if not at its home."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in PIECES:
            if name in vars(cls):
                setattr(cls, name, at_weights(vars(cls)[name]))

    def __init__(self, config: NetConfig, layer: int):
        super().__init__()
        # Token vectors that were normalised are not normalised again.
        bare = config.embed_norm and layer == 0
        self.attn_norm = nn.Identity() if bare else make_norm(config)
        self.attn = Attention(config, layer)
        self.mlp_norm = make_norm(config)
        self.mlp = make_mlp(config, layer)
        self.recompute = False
        """Whether only the input is kept for the backward pass, which runs the block again."""

    def forward(self, x: Float[Tensor, "B L D"], view: View, tap: Tap) -> Float[Tensor, "B L D"]:
        if not self.recompute:
            return self.run(x, view, tap)
        run = partial(self.run, view=view, tap=tap)
        return checkpoint(run, x, use_reentrant=False, preserve_rng_state=False)

    def run(self, x: Float[Tensor, "B L D"], view: View, tap: Tap) -> Float[Tensor, "B L D"]:
        """The whole layer, every activation passed through its tap."""
        x = tap("resid_in", x)
        z = tap("attn_z", self.attend_tapped(x, view, tap))
        attn = tap("attn_out", self.attn_out(z))
        mlp, stream = self.run_mlp(x, attn, tap)
        return tap("resid_out", self.after_mlp(stream, tap("mlp_out", mlp)))

    def attend_tapped(self, x: Float[Tensor, "B L D"], view: View, tap: Tap) -> Queries:
        """Each head's mixture of values of a stream; all before it passed through its tap."""
        queries, keys, values = (
            tap(part, made) for part, made in zip(READ, self.read_tapped(x, view, tap), strict=True)
        )
        if view.cache is not None:
            keys, values = self.attn.extend(view.cache, keys, values)
        if not is_wanted(tap, "attn_scores", "attn_pattern"):
            return self.attend(queries, keys, values, view.mask, view.is_causal)
        self._require_known(is_wanted(tap, "attn_scores"))
        # 1. The pattern [B, H, n, N] as it is, and as patches leave it.
        sees = view.mask, view.is_causal
        pattern = changed = self.weigh(queries, keys, *sees)
        if is_wanted(tap, "attn_scores"):
            scores = tap("attn_scores", self.score(queries, keys, *sees))
            changed = scores.softmax(-1).to(queries.dtype)
        changed = tap("attn_pattern", changed)
        is_changed = _find_changed(changed, pattern)
        # 2. The mixture by what was changed; of rows without a change it is what it is without a
        #    tap, to the last bit, and a gradient goes through the pattern.
        if all(is_changed):
            return self.attn.mix_by(changed, values)
        z = self.attend(queries, keys, values, *sees)
        has_gradient = torch.is_grad_enabled() and changed.requires_grad
        if not (has_gradient or any(is_changed)):
            return z
        mixed = self.attn.mix_by(changed, values)
        if has_gradient:
            z = z.detach() + (mixed - mixed.detach())
        return mix_rows(is_changed, mixed, z)

    def read_tapped(self, x: Float[Tensor, "B L D"], view: View, tap: Tap) -> tuple[Tensor, ...]:
        """Queries, keys and values of a stream, each head's of what a patch lets it read."""
        made = self.read(x, view.cos, view.sin)
        for number, part in enumerate(READ):
            if not is_wanted(tap, f"{part}_in"):
                continue
            # 1. The stream once for each head [B, L, H, D], without copying.
            given = x[..., None, :].expand(*x.shape[:-1], made[number].shape[-2], -1)
            inputs, heads = tap(f"{part}_in", given), list(made[number].unbind(-2))
            # 2. Heads and rows that read something else, or what a gradient asks for, read anew.
            for head, own in enumerate(inputs.unbind(-2)):
                is_new = _find_changed(own, x) if inputs is not given else [False]
                if torch.is_grad_enabled() and inputs.requires_grad:
                    is_new = [True] * len(x)
                if any(is_new):
                    new = self.read(own, view.cos, view.sin)[number][..., head, :]
                    heads[head] = mix_rows(is_new, new, heads[head])
            made = (*made[:number], torch.stack(heads, -2), *made[number + 1 :])
        return made

    def _require_known(self, scores: bool) -> None:
        """Raise where a block attends in its own way, and does not say how."""
        own = type(self)
        attends = own.attend is not Block.attend
        if scores:
            is_known = own.score is not Block.score or not (attends or own.weigh is not Block.weigh)
        else:
            is_known = not attends or (own.score, own.weigh) != (Block.score, Block.weigh)
        if not is_known:
            what, piece = ("scores", "score") if scores else ("patterns", "weigh")
            raise UserError(
                f"the block {own.__name__} attends in its own way, and its {what} are not known: "
                f"define its `{piece}` beside its `attend`."
            )

    def score(
        self, queries: Queries, keys: Keys, mask: Tensor | None = None, is_causal: bool = False
    ) -> Float[Tensor, "B H n N"]:
        """What softmax makes the pattern of, in float32: -inf where a position cannot attend."""
        return self.attn.score(queries, keys, mask, is_causal)

    def weigh(
        self, queries: Queries, keys: Keys, mask: Tensor | None = None, is_causal: bool = False
    ) -> Float[Tensor, "B H n N"]:
        """How much each position takes of each other, which `attend` itself does not keep."""
        return self.score(queries, keys, mask, is_causal).softmax(-1).to(queries.dtype)

    @at_weights
    def read(self, x: Residual, cos: Tensor | None, sin: Tensor | None) -> Projected:
        """Queries, keys and values of the stream; the angles are those of its positions."""
        return self.attn.project(self.attn_norm(x), cos, sin)

    def attend(
        self,
        queries: Queries,
        keys: Keys,
        values: Keys,
        mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Queries:
        """Each head's mixture of values."""
        return self.attn.mix(queries, keys, values, mask, is_causal)

    @at_weights
    def attn_out(self, z: Float[Tensor, "*n H d"]) -> Residual:
        """What attention adds to the stream."""
        return self.attn.out(z.flatten(-2))

    def after_attention(self, x: Residual, attn: Residual) -> tuple[Residual, Residual]:
        """What the MLP reads, and the stream that it adds to."""
        x = x + attn
        return x, x

    @at_weights
    def mlp_key(self, x: Residual, tap: Tap = untouched) -> InnerKey:
        """The MLP's inner activation, having read `x`."""
        return self.mlp(tap("mlp_in", self.mlp_norm(x)))

    @at_weights
    def run_mlp(
        self, x: Residual, attn: Residual, tap: Tap = untouched
    ) -> tuple[Residual, Residual]:
        """What the MLP adds, and the stream that it adds to, once attention is done.

        What `through_mlp` makes of `after_attention`, where nobody looks between them by a kernel
        that does both.
        """
        own = type(self)
        is_plain = own.after_attention is Block.after_attention and own.mlp_key is Block.mlp_key
        is_plain &= not is_wanted(tap, "mlp_in", "mlp_key")
        if is_plain and not isinstance(self.mlp, Experts):
            both = add_and_norm(x, attn, self.mlp_norm)
            if both is not None:
                return self.mlp_out(self.mlp(both[1])), both[0]
        reads, stream = self.after_attention(x, attn)
        return self.through_mlp(reads, tap), stream

    @at_weights
    def through_mlp(self, x: Residual, tap: Tap = untouched) -> Residual:
        """What the MLP adds, having read `x`: `mlp_out` of `mlp_key`.

        Experts go without their wide key where nobody looks at it.
        """
        own = type(self)
        is_plain = own.mlp_key is Block.mlp_key and own.mlp_out is Block.mlp_out
        if isinstance(self.mlp, Experts) and is_plain and not is_wanted(tap, "mlp_key"):
            return self.mlp.add(tap("mlp_in", self.mlp_norm(x)))
        return self.mlp_out(tap("mlp_key", self.mlp_key(x, tap)))

    @at_weights
    def mlp_out(self, key: InnerKey) -> Residual:
        """What the MLP adds to the stream."""
        return self.mlp.down(key)

    def after_mlp(self, stream: Residual, mlp: Residual) -> Residual:
        """The stream that leaves the block."""
        return stream + mlp

    @at_weights
    def finish(self, x: Residual, attn: Residual) -> tuple[Residual, Residual]:
        """The stream that leaves the block, and what the MLP added, once attention is done."""
        mlp, stream = self.run_mlp(x, attn)
        return self.after_mlp(stream, mlp), mlp


def _find_changed(now: Float[Tensor, "B *n"], before: Float[Tensor, "B *n"]) -> list[bool]:
    """In which rows a patch left something else than stood there."""
    return [False] * len(now) if now is before else (now != before).flatten(1).any(-1).tolist()


class ParallelBlock(Block):
    """Attention and MLP side by side: both read the stream that enters the block.

    As in GPT-J and GPT-NeoX (Black et al. 2022, arXiv 2204.06745).
    """

    def after_attention(self, x: Residual, attn: Residual) -> tuple[Residual, Residual]:
        """The MLP does not see what attention added, but adds to it."""
        return x, x + attn


class PostNormBlock(Block):
    """Norms after the additions, as in BERT (Devlin et al. 2019, arXiv 1810.04805).

    Each norm stands where its result is read: `attn_norm` is that of the layer below (in layer 0 of
    the embedding), the last layer's is the network's. So streams between layers are sums here, too.
    """

    def after_attention(self, x: Residual, attn: Residual) -> tuple[Residual, Residual]:
        """The MLP adds to the stream as it reads it."""
        x = self.attn_norm(x) + attn
        return x, self.mlp_norm(x)


BLOCKS: dict[str, type[Block]] = {
    "sequential": Block,
    "parallel": ParallelBlock,
    "post": PostNormBlock,
}
"""What `NetConfig.residual` can name."""


def register_block(name: str, block: type[Block]) -> None:
    """Make a block of one's own known as `NetConfig(residual=name)`, wherever networks are made."""
    if not (isinstance(block, type) and issubclass(block, Block)):
        raise UserError(
            f"the block {name!r} was given as {block!r:.80}: expected a class derived from "
            "unmask.net.blocks.Block."
        )
    if BLOCKS.get(name, block) is not block:
        raise UserError(
            f"the name {name!r} is taken by {BLOCKS[name].__qualname__}: choose another."
        )
    BLOCKS[name] = block


def make_block(config: NetConfig, layer: int) -> Block:
    """The block that the configuration names."""
    if config.residual not in BLOCKS:
        raise UserError(
            f"residual {config.residual!r} is unknown ({suggest(config.residual, BLOCKS)}): name "
            "one of these, or make your block known by unmask.net.blocks.register_block first."
        )
    return BLOCKS["adaln" if config.adaln else config.residual](config, layer)


@torch.no_grad()
def initialise(module: nn.Module, layers: int, generator: torch.Generator | None) -> None:
    """Draw all weights: normal with deviation 0.02, smaller where a block adds to the stream.

    GPT-2's rule: the 2 x `layers` additions to the stream are scaled to keep its size.
    """
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            parameter.zero_()
        elif parameter.ndim < 2:
            parameter.fill_(1.0)
        else:
            adds_to_stream = name.endswith(("attn.out.weight", "down.weight", ".downs"))
            deviation = 0.02 / math.sqrt(2 * layers) if adds_to_stream else 0.02
            parameter.normal_(0.0, deviation, generator=generator)
