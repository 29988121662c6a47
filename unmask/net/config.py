"""The shapes and switches of a network; everything a checkpoint needs to say about its own."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import Literal, get_type_hints

from unmask.base.config import SettingsError, check_values

MOST_CONTEXT = 1 << 24
"""Tokens of a row; positions that turn are in no tensor, which would bound them."""


_COUNTS = """
vocab_size width layers heads mlp_width context num_logits kv_heads head_width latent_width
token_types rotary_context window window_period block adaln classes experts experts_per_token
expert_width shared_width router_groups router_top_groups"""
"""Settings that are at least 1 where they are given."""


@dataclass(frozen=True, kw_only=True)
class NetConfig:
    """One transformer: the Llama block by default, GPT-2's and Pythia's by its switches."""

    vocab_size: int
    """V, rows of the embedding, the mask token's row included."""
    width: int
    """D, width of the residual stream."""
    layers: int
    heads: int
    mlp_width: int
    """F, width of the MLP's inner activation (`mlp_key`)."""
    context: int = 2048
    """The longest row of tokens, padding included."""
    causal: bool = False
    """The one difference between a diffusion network and its autoregressive twin."""
    block: int | None = None
    """Block-causal attention: a position sees its own block of so many and all earlier ones.
    None: it sees everything, or with `causal` what is before it."""
    open_block: bool = False
    """Nemotron-Labs-Diffusion's: the block begins where a row is being written. Its positions see
    each other, and every position sees what is before it."""

    num_logits: int | None = None
    """Rows of the head; SMDM's has none for the mask token. None: as many as `vocab_size`."""
    kv_heads: int | None = None
    """Heads of keys and values, shared by groups of query heads. None: as many as `heads`."""
    head_width: int | None = None
    """None: `width / heads`."""
    tied: bool = False
    """Whether the head is the embedding."""

    norm: Literal["rms", "layer"] = "rms"
    norm_eps: float = 1e-5
    norm_bias: bool = True
    """Whether the `layer` norm adds a bias; the `rms` norm never does."""
    qk_norm: bool = False
    """Qwen3's: an RMS norm of each head's queries and keys, before positions turn them."""
    positions: Literal["rotary", "learned"] = "rotary"
    rotary_base: float = 10_000.0
    rotary_scaling: Literal["none", "linear", "llama3", "yarn"] = "none"
    """How positions were stretched to a longer context (see `unmask.net.rotary`)."""
    rotary_factor: float = 1.0
    """By how much."""
    rotary_context: int | None = None
    """The context before that; `llama3` and `yarn` need it."""
    rotary_slow: float = 1.0
    rotary_fast: float = 32.0
    """Turns within that context at which a pair is stretched in full, or not at all."""
    rotary_gain: float = 1.0
    """`yarn`'s factor of the tables, which sharpens attention."""
    rotary_tables: Literal["float32", "bfloat16"] = "float32"
    """SMDM rounds its cosine and sine tables to bfloat16; its weights expect that."""
    rotary_share: float = 1.0
    """Share of each head that its position turns; the rest of it knows no position."""
    mlp: Literal["swiglu", "geglu", "gelu"] = "swiglu"
    """`gelu` is GPT-2's: one up projection."""
    gelu: Literal["tanh", "exact"] = "tanh"
    """GPT-2's approximation, or the function itself."""
    experts: int | None = None
    """A mixture of experts: so many SwiGLUs in place of the MLP, of which a token goes through a
    few (Shazeer et al. 2017, arXiv 1701.06538). None: one MLP for all tokens."""
    experts_per_token: int = 1
    expert_width: int | None = None
    """Width of an expert's inner activation. None: `mlp_width`."""
    shared_width: int | None = None
    """That of a further expert, which takes every token. None: there is none."""
    dense_layers: int = 0
    """First layers that have one MLP of `mlp_width` for all tokens."""
    router: Literal["softmax", "sigmoid"] = "softmax"
    """What scores are: a distribution over the experts, or each for itself."""
    router_bias: bool = False
    """Whether experts are chosen by score plus a bias, which has no part in their weights."""
    router_groups: int | None = None
    router_top_groups: int | None = None
    """Experts are chosen from the best of so many groups. None: from all."""
    router_renorm: bool = False
    """Whether the weights of the chosen experts are divided by their sum."""
    router_scale: float = 1.0
    """What the weights are multiplied by."""
    residual: str = "sequential"
    """How attention and MLP meet the stream: `sequential`, `parallel`, `post` (BERT's, with norms
    after the additions), or a block of one's own by the name that
    `unmask.net.blocks.register_block` gave it."""
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    head_mlp: bool = False
    """A masked language model's head: after the last norm a matrix, GELU and another norm."""
    head_mlp_bias: bool = False
    """Whether that matrix has a bias."""
    embed_norm: bool = False
    """Whether token vectors are normalised; layer 0 then has no norm before its attention."""
    token_types: int | None = None
    """Rows of BERT's table of token types, of which the first is added to every token vector."""
    window: int | None = None
    """How far to each side layers see, all but every `window_period`-th, which see everything."""
    window_period: int = 3
    window_base: float = 10_000.0
    """`rotary_base` of the layers with a window."""

    time: bool = False
    """Whether the network is told the time t; masked processes can do without."""
    time_input: Literal["t", "sigma"] = "t"
    """What the time enters as: t itself in [0, 1], or sigma = -log alpha_t."""
    adaln: int | None = None
    """Width of a vector by which the time sets scales, shifts and gates of every layer (adaLN,
    Peebles & Xie 2023, arXiv 2212.09748). None: with `time`, a vector is added to the stream."""
    classes: int | None = None
    """Classes that a network with `adaln` can be told beside the time."""
    latent_width: int | None = None
    """For Gaussian noise: width of the token vectors that are noised. None: tokens only."""

    def __post_init__(self) -> None:
        hints, values = get_type_hints(type(self)), vars(self)
        floats = {name for name in values if hints[name] is float and type(values[name]) is float}
        typed = {name: values[name] for name in values.keys() - floats}  # those have own sentences
        if problems := check_values(typed, hints) or list(self._problems()):
            raise SettingsError("network", problems)

    def made_causal(self) -> "NetConfig":
        """These settings, with attention to what is before each position alone."""
        return replace(self, causal=True, block=None, open_block=False)

    @property
    def logit_rows(self) -> int:
        return self.num_logits if self.num_logits is not None else self.vocab_size

    @property
    def kv(self) -> int:
        return self.kv_heads if self.kv_heads is not None else self.heads

    @property
    def head_dim(self) -> int:
        return self.head_width if self.head_width is not None else self.width // self.heads

    @property
    def rotary_dim(self) -> int:
        return int(self.head_dim * self.rotary_share)

    @property
    def expert_inner(self) -> int:
        return self.expert_width if self.expert_width is not None else self.mlp_width

    @property
    def active_mlp_width(self) -> int:
        """Inner activations that a token meets in a layer of experts, or in any layer without."""
        if self.experts is None:
            return self.mlp_width
        return self.experts_per_token * self.expert_inner + (self.shared_width or 0)

    @property
    def widest_mlp(self) -> int:
        """Numbers that a token takes up in a layer's MLP, for estimates of memory.

        Where there are experts, the stream is copied for each of those that it goes through.
        """
        if self.experts is None:
            return self.mlp_width
        routed = self.active_mlp_width + 2 * self.experts_per_token * self.width
        return max(routed, self.mlp_width) if self.dense_layers else routed

    def has_experts(self, layer: int) -> bool:
        """Whether a layer has experts in place of its MLP."""
        return self.experts is not None and layer >= self.dense_layers

    def key_width(self, layer: int) -> int:
        """Width of a layer's `mlp_key`; with experts, of all of them (`unmask.net.mlp.Experts`)."""
        if self.experts is None or layer < self.dense_layers:
            return self.mlp_width
        return self.experts * self.expert_inner + (self.shared_width or 0)

    def _problems(self) -> Iterator[str]:
        stretch = ("rotary_factor", "rotary_slow", "rotary_fast", "rotary_gain")
        for name in ("norm_eps", "rotary_base", "window_base", "router_scale", *stretch):
            if not 0 < getattr(self, name) < inf:
                yield f"{name!r} is {getattr(self, name)}, expected a finite number above 0"
        is_share = 0 < self.rotary_share <= 1
        if not is_share:
            yield f"'rotary_share' is {self.rotary_share}, expected a number above 0 and at most 1"
        given = {
            name: value for name in _COUNTS.split() if (value := getattr(self, name)) is not None
        }
        small = [name for name, value in given.items() if value < 1]
        for name in small:
            yield f"{name!r} is {given[name]}, expected at least 1"
        if small:  # the rest divides by them
            return
        yield from self._expert_problems()
        if self.window is not None and (self.causal or self.block is not None):
            yield f"'window' is {self.window}, but the network does not see both directions"
        if self.head_mlp and self.norm != "layer":
            yield "'head_mlp' needs 'norm' \"layer\""
        if self.head_mlp_bias and not self.head_mlp:
            yield "'head_mlp_bias' needs 'head_mlp'"
        if self.rotary_scaling in ("llama3", "yarn") and self.rotary_context is None:
            yield f"'rotary_scaling' is {self.rotary_scaling!r}, but 'rotary_context' is missing"
        if self.rotary_slow >= self.rotary_fast:
            yield f"'rotary_slow' {self.rotary_slow} is not below 'rotary_fast' {self.rotary_fast}"
        if self.adaln is not None and not (self.time and self.norm == "layer" and self.mlp_bias):
            yield "'adaln' needs 'time', 'norm' \"layer\" and 'mlp_bias'"
        if self.adaln is not None and (self.norm_bias or self.residual != "sequential"):
            yield "'adaln' needs 'norm_bias' false and 'residual' \"sequential\""
        if self.classes is not None and self.adaln is None:
            yield "'classes' needs 'adaln'"
        if self.block is not None and self.causal:
            yield f"'block' is {self.block}, but a causal network sees no later position: drop one"
        if self.open_block and (self.block is None or self.time):
            yield "'open_block' needs 'block', and a network that is not told the time"
        if self.context > MOST_CONTEXT:
            yield f"'context' is {self.context}, expected at most {MOST_CONTEXT}"
        if self.head_width is None and self.width % self.heads:
            yield (
                f"'width' {self.width} is not a multiple of 'heads' {self.heads}: "
                "change one, or give 'head_width'"
            )
        if self.heads % self.kv:
            yield f"'kv_heads' {self.kv} does not divide 'heads' {self.heads}"
        turns = self.positions == "rotary" and is_share
        if turns and (self.rotary_dim < 2 or self.rotary_dim % 2):
            yield (
                "rotary positions turn pairs, an even share of a head: 'rotary_share' "
                f"{self.rotary_share:g} of the head width {self.head_dim} is {self.rotary_dim}"
            )
        if self.logit_rows > self.vocab_size:
            yield f"'num_logits' {self.logit_rows} is not in 1..vocab_size ({self.vocab_size})"
        if self.tied and self.logit_rows != self.vocab_size:
            yield (
                f"a tied head has one row per token ({self.vocab_size}), "
                f"but 'num_logits' is {self.logit_rows}: untie it or leave 'num_logits' out"
            )

    def _expert_problems(self) -> Iterator[str]:
        """What is wrong with the settings of experts, or set where there are none."""
        if self.experts is None:
            fields = self.__dataclass_fields__
            for name in fields:
                about = (
                    name.startswith(("expert", "router_", "shared_", "dense_")) or name == "router"
                )
                if about and getattr(self, name) != fields[name].default:
                    yield f"{name!r} is {getattr(self, name)!r}, but there are no 'experts'"
            return
        if self.mlp != "swiglu" or self.mlp_bias:
            yield "'experts' need 'mlp' \"swiglu\" without 'mlp_bias'"
        if not 0 <= self.dense_layers <= self.layers:
            yield f"'dense_layers' is {self.dense_layers}, expected 0 to {self.layers}"
        groups, top = self.router_groups, self.router_top_groups
        if (groups is None) != (top is None):
            yield "'router_groups' and 'router_top_groups' need each other"
        if groups is None or top is None:
            groups = top = 1
        elif self.experts % groups or self.experts < 2 * groups:
            yield f"'router_groups' {groups} do not hold two or more each of {self.experts} experts"
        if top > groups:
            yield f"'router_top_groups' is {top}, but there are {groups} groups"
        elif self.experts_per_token > (room := self.experts // groups * top):
            yield f"'experts_per_token' is {self.experts_per_token}, to be chosen among {room}"
