"""A masked diffusion network and its training step as a peer writes them: plain and eager."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.net.config import NetConfig


class _Block(nn.Module):
    def __init__(self, config: NetConfig):
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.norm_1, self.norm_2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width, bias=False)
        self.w1 = nn.Linear(width, config.mlp_width, bias=False)
        self.w2 = nn.Linear(width, config.mlp_width, bias=False)
        self.w3 = nn.Linear(config.mlp_width, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        b, length, width = x.shape
        qkv = self.qkv(self.norm_1(x)).view(b, length, 3, self.heads, width // self.heads)
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        z = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, length, width)
        x = x + self.proj(z)
        h = self.norm_2(x)
        return x + self.w3(F.silu(self.w1(h)) * self.w2(h))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return (x * cos + torch.cat((-second, first), -1) * sin).to(x.dtype)


class Peer(nn.Module):
    """Tokens in, all logits out."""

    def __init__(self, config: NetConfig, length: int):
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.width)
        self.h = nn.ModuleList(_Block(config) for _ in range(config.layers))
        self.ln_f = nn.RMSNorm(config.width, eps=1e-5)
        self.lm_head = nn.Linear(config.width, config.logit_rows, bias=False)
        head = config.width // config.heads
        angles = torch.outer(torch.arange(length), 10_000.0 ** -(torch.arange(0, head, 2) / head))
        self.register_buffer("cos", angles.cos().repeat(1, 2).bfloat16())
        self.register_buffer("sin", angles.sin().repeat(1, 2).bfloat16())
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, 0.0, 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens)
        for block in self.h:
            x = block(x, self.cos, self.sin)
        return self.lm_head(self.ln_f(x))


class PeerTraining:
    """SMDM's training step: mask, all logits, cross-entropy where masked, clip, AdamW."""

    def __init__(self, config: NetConfig, rows: int, length: int, device: torch.device):
        with torch.device(device):
            self.net = Peer(config, length)
        self.optimizer = torch.optim.AdamW(
            self.net.parameters(), 2e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
        )
        self.shape, self.device, self.mask_id = (rows, length), device, config.logit_rows
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32

    def take_step(self) -> None:
        tokens = torch.randint(0, self.mask_id, self.shape).to(self.device)
        t = torch.rand(self.shape[0], device=self.device)
        chance = ((1 - 1e-3) * t + 1e-3)[:, None].expand(self.shape)
        hidden = torch.rand(self.shape, device=self.device) < chance
        noised = torch.where(hidden, self.mask_id, tokens)
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
            logits = self.net(noised)
            loss = F.cross_entropy(logits[hidden], tokens[hidden], reduction="none")
            loss = (loss / chance[hidden]).sum() / tokens.numel()
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
