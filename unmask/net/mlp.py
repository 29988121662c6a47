"""What a layer does position by position: one MLP for all tokens, or experts that a router chooses.

Each is two pieces: `forward` gives the inner activation, ROME's key, and `down` reads it.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from unmask.net.config import NetConfig
from unmask.net.fused import fuses, has_hooks
from unmask.net.layers import Linear


class SwiGLU(nn.Module):
    """Llama's MLP: down(silu(gate x) * up x)."""

    def __init__(self, config: NetConfig, inner: int | None = None):
        """`inner` is the width of the inner activation, `config.mlp_width` by default."""
        super().__init__()
        inner = config.mlp_width if inner is None else inner
        self.gate = Linear(config.width, inner, bias=config.mlp_bias)
        self.up = Linear(config.width, inner, bias=config.mlp_bias)
        self.down = Linear(inner, config.width, bias=config.mlp_bias)

    def forward(self, x: Float[Tensor, "*n D"]) -> Float[Tensor, "*n F"]:
        """The inner activation, input of the down projection."""
        gate, up = self.gate(x), self.up(x)
        if fuses(up, gate) and up.is_contiguous():
            from unmask.net import kernels

            return kernels.gate(gate, up)
        if torch.is_grad_enabled() or has_hooks(self.gate):
            return F.silu(gate) * up
        return F.silu(gate, inplace=True).mul_(up)  # which nobody else holds


class GELU(nn.Module):
    """GPT-2's MLP: down(gelu(up x)), with the tanh approximation or exact.

    Gated, as in ModernBERT, `up` has twice the rows: down(gelu(first half) * second half).
    """

    def __init__(self, config: NetConfig):
        super().__init__()
        self.approximate = "tanh" if config.gelu == "tanh" else "none"
        self.gated = config.mlp == "geglu"
        self.up = Linear(config.width, (1 + self.gated) * config.mlp_width, bias=config.mlp_bias)
        self.down = Linear(config.mlp_width, config.width, bias=config.mlp_bias)

    def forward(self, x: Float[Tensor, "*n D"]) -> Float[Tensor, "*n F"]:
        """The inner activation, input of the down projection."""
        if not self.gated:
            return F.gelu(self.up(x), approximate=self.approximate)
        gate, up = self.up(x).chunk(2, dim=-1)
        return F.gelu(gate, approximate=self.approximate) * up


class Experts(nn.Module):
    """A mixture of experts: each token goes through the few SwiGLUs that a router chooses for it.

    Its key holds a place for every expert, zero but for the chosen ones, whose inner activations
    stand there times their weights; those of the shared expert, which takes every token, come last.
    So a key says which experts it went through (`split`), and what is added to the stream is linear
    in it, as in any MLP. Keys are wide: `add` goes from stream to stream without one.
    """

    def __init__(self, config: NetConfig):
        super().__init__()
        assert config.experts is not None
        self.config, self.number, self.inner = config, config.experts, config.expert_inner
        self.router = Linear(config.width, self.number, bias=False)
        if config.router_bias:
            self.choice_bias = nn.Parameter(torch.empty(self.number))
        shape = (self.number, self.inner, config.width)
        self.gates, self.ups = nn.Parameter(torch.empty(shape)), nn.Parameter(torch.empty(shape))
        self.downs = nn.Parameter(torch.empty(self.number, config.width, self.inner))
        shared = config.shared_width
        self.shared = None if shared is None else SwiGLU(config, shared)

    def forward(self, x: Float[Tensor, "*n D"]) -> Float[Tensor, "*n K"]:
        """The inner activations of all experts, zero where a token does not go."""
        flat = x.flatten(0, -2)
        experts, weights = self.route(flat)
        values = self._activate(flat, experts, weights)
        places = experts[..., None].expand_as(values)
        wide = values.new_zeros(len(flat), self.number, self.inner).scatter(1, places, values)
        wide = wide.flatten(1).unflatten(0, x.shape[:-1])
        return wide if self.shared is None else torch.cat((wide, self.shared(x)), dim=-1)

    def down(self, key: Float[Tensor, "*n K"]) -> Float[Tensor, "*n D"]:
        """What a key adds to the stream: the sum over experts of their down projections."""
        wide, shared = self.split(key)
        flat = wide.flatten(0, -3)
        used = (flat != 0).any(-1)
        needs_all = torch.is_grad_enabled() and key.requires_grad
        if needs_all or bool((used.sum(-1) > self.config.experts_per_token).any()):
            # A gradient, or a patch that wrote into more places than a router chooses.
            out = torch.einsum("nef,edf->nd", flat, self.downs)
        else:
            experts = used.byte().topk(self.config.experts_per_token).indices.sort(-1).values
            out = self._sum_up(flat.take_along_dim(experts[..., None], 1), experts)
        out = out.unflatten(0, key.shape[:-1])
        return out if self.shared is None else out + self.shared.down(shared)

    def add(self, x: Float[Tensor, "*n D"]) -> Float[Tensor, "*n D"]:
        """`down` of the key of `x`, without its zeros."""
        flat = x.flatten(0, -2)
        experts, weights = self.route(flat)
        out = self._sum_up(self._activate(flat, experts, weights), experts)
        out = out.unflatten(0, x.shape[:-1])
        return out if self.shared is None else out + self.shared.down(self.shared(x))

    def split(
        self, key: Float[Tensor, "*n K"]
    ) -> tuple[Float[Tensor, "*n E f"], Float[Tensor, "*n s"]]:
        """A key by expert, and the shared expert's part of it (of width 0 where there is none)."""
        routed = self.number * self.inner
        wide, shared = key.split((routed, key.shape[-1] - routed), dim=-1)
        return wide.unflatten(-1, (self.number, self.inner)), shared

    def route(self, x: Float[Tensor, "n D"]) -> tuple[Int[Tensor, "n k"], Float[Tensor, "n k"]]:
        """Which experts each token goes through, in ascending order, and their weights.

        With groups (DeepSeek-AI 2024, arXiv 2412.19437), the best groups by the sum of their two
        best scores come first, then the best experts inside these. A bias has a say in the choice,
        not in the weights.
        """
        config = self.config
        wide = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            logits = F.linear(x.to(wide), self.router.weight.to(wide))
        scores = logits.sigmoid() if config.router == "sigmoid" else logits.softmax(-1)
        choice = scores + self.choice_bias.to(wide) if config.router_bias else scores
        if config.router_groups is not None:
            assert config.router_top_groups is not None
            grouped = choice.unflatten(-1, (config.router_groups, -1))
            best = grouped.topk(2, dim=-1).values.sum(-1).topk(config.router_top_groups).indices
            out = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter(-1, best, False)
            choice = grouped.masked_fill(out[..., None], -torch.inf).flatten(-2)
        experts = choice.topk(config.experts_per_token).indices.sort(-1).values
        weights = scores.gather(-1, experts)
        if config.router_renorm:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return experts, (weights * config.router_scale).to(x.dtype)

    def _activate(
        self, x: Float[Tensor, "n D"], experts: Int[Tensor, "n k"], weights: Float[Tensor, "n k"]
    ) -> Float[Tensor, "n k f"]:
        """The chosen experts' inner activations times their weights."""
        order, counts = self._group(experts)
        rows = x[order // experts.shape[1]]
        inner = F.silu(multiply_by_group(rows, self.gates, counts))
        inner = inner * multiply_by_group(rows, self.ups, counts)
        return inner[order.argsort()].unflatten(0, experts.shape) * weights[..., None]

    def _sum_up(
        self, values: Float[Tensor, "n k f"], experts: Int[Tensor, "n k"]
    ) -> Float[Tensor, "n D"]:
        """The sum of the chosen experts' down projections."""
        order, counts = self._group(experts)
        out = multiply_by_group(values.flatten(0, 1)[order], self.downs, counts)
        return out[order.argsort()].unflatten(0, experts.shape).sum(1)

    def _group(self, experts: Int[Tensor, "n k"]) -> tuple[Int[Tensor, "N"], Int[Tensor, "E"]]:
        """(token, choice) pairs sorted by expert, and how many each expert has."""
        flat = experts.flatten()
        counts = torch.zeros(self.number, dtype=torch.long, device=flat.device)
        return flat.argsort(stable=True), counts.index_add(0, flat, torch.ones_like(flat))


def multiply_by_group(
    x: Float[Tensor, "N i"], matrices: Float[Tensor, "E o i"], counts: Int[Tensor, "E"]
) -> Float[Tensor, "N o"]:
    """The first `counts[0]` rows times the first matrix, the next `counts[1]` times the second, …

    One kernel for all groups where a GPU has it; else a product for each group that has rows.
    """
    aligned = not (x.shape[1] % 8 or matrices.shape[1] % 8)
    short = x.dtype == matrices.dtype == torch.bfloat16
    if x.is_cuda and short and aligned and len(x) and not torch.is_grad_enabled():
        ends = counts.cumsum(0).to(torch.int32)
        return F.grouped_mm(x.contiguous(), matrices.transpose(1, 2), offs=ends)
    parts = zip(x.split(counts.tolist()), matrices, strict=True)
    products = [F.linear(rows, matrix) for rows, matrix in parts if len(rows)]
    return torch.cat(products) if products else x.new_zeros(0, matrices.shape[1])


def make_mlp(config: NetConfig, layer: int) -> SwiGLU | GELU | Experts:
    """The MLP that the configuration names for a layer."""
    if config.has_experts(layer):
        return Experts(config)
    return SwiGLU(config) if config.mlp == "swiglu" else GELU(config)
