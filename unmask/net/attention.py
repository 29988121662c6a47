"""Attention's own weights, and what it computes of queries, keys and values."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from unmask.net.cache import Cache, Snapshot
from unmask.net.config import NetConfig
from unmask.net.fused import fuses
from unmask.net.layers import Linear, RMSNorm
from unmask.net.rotary import rotate

Residual = Float[Tensor, "*n D"]
Projected = tuple[Float[Tensor, "*n H d"], Float[Tensor, "*n h d"], Float[Tensor, "*n h d"]]
"""Queries, keys and values."""
Queries = Float[Tensor, "B n H d"]
Keys = Float[Tensor, "B N h d"]
"""Keys or values of all that a pass sees: with a cache more than the queries are."""


class Attention(nn.Module):
    """Attention with grouped queries; causal or not is a matter of the view."""

    def __init__(self, config: NetConfig, layer: int):
        super().__init__()
        self.layer = layer
        self.heads, self.kv, self.head_dim = config.heads, config.kv, config.head_dim
        # One product for queries, keys and values: fewer, larger matrices.
        rows = (config.heads + 2 * config.kv) * config.head_dim
        self.qkv = Linear(config.width, rows, bias=config.qkv_bias)
        self.out = Linear(config.heads * config.head_dim, config.width, bias=config.out_bias)
        self.qk_norm = config.qk_norm
        if config.qk_norm:
            self.q_norm = RMSNorm(config.head_dim, eps=config.norm_eps)
            self.k_norm = RMSNorm(config.head_dim, eps=config.norm_eps)

    def project(self, x: Residual, cos: Tensor | None, sin: Tensor | None) -> Projected:
        """Queries, keys and values of the normalised stream, turned by their positions' angles."""
        qkv = self.qkv(x).unflatten(-1, (-1, self.head_dim))
        queries_keys, values = qkv.split((self.heads + self.kv, self.kv), dim=-2)
        if self.qk_norm:
            queries, keys = queries_keys.split((self.heads, self.kv), dim=-2)
            queries_keys = torch.cat((self.q_norm(queries), self.k_norm(keys)), dim=-2)
        if cos is not None and sin is not None:
            queries_keys = rotate(queries_keys, cos, sin)
        queries, keys = queries_keys.split((self.heads, self.kv), dim=-2)
        return queries, keys, values

    def mix(
        self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, is_causal: bool
    ) -> Queries:
        """`Block.attend`."""
        if mask is None and fuses(queries) and self._is_short(queries, keys, values):
            from unmask.net import kernels

            return kernels.attend(queries, keys, values, is_causal)
        z = F.scaled_dot_product_attention(
            queries.transpose(1, 2),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            attn_mask=mask,
            is_causal=is_causal,
            enable_gqa=self.kv != self.heads,
        )
        return z.transpose(1, 2)

    def score(
        self, queries: Tensor, keys: Tensor, mask: Tensor | None, is_causal: bool
    ) -> Float[Tensor, "B H n N"]:
        """`Block.score`."""
        shared = keys.repeat_interleave(self.heads // self.kv, dim=2)
        scores = torch.einsum("bnhd,bmhd->bhnm", queries, shared).float() / self.head_dim**0.5
        if is_causal:
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        return scores if mask is None else scores.masked_fill(~mask, -torch.inf)

    def mix_by(self, pattern: Float[Tensor, "B H n N"], values: Keys) -> Queries:
        """Each head's mixture of values by weights that were given."""
        shared = values.repeat_interleave(self.heads // self.kv, dim=2)
        return torch.einsum("bhnm,bmhd->bnhd", pattern, shared)

    @staticmethod
    def _is_short(queries: Tensor, keys: Tensor, values: Tensor) -> bool:
        from unmask.net import kernels

        alike = all(x.dtype == queries.dtype and x.stride(-1) == 1 for x in (queries, keys, values))
        return alike and kernels.can_attend(queries, keys)

    def extend(
        self,
        cache: Cache | Snapshot,
        keys: Float[Tensor, "B n h d"],
        values: Float[Tensor, "B n h d"],
    ) -> tuple[Keys, Keys]:
        """All keys and values that the cache holds of this layer, the new ones among them."""
        new = (x.transpose(1, 2).to(cache.keys.device) for x in (keys, values))
        keys, values = (
            kept.transpose(1, 2).to(keys.device) for kept in cache.extend(self.layer, *new)
        )
        return keys, values
