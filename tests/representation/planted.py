"""A network with associations written into one MLP by hand: keys that find values."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from scipy.linalg import hadamard
from torch import Tensor

from tests.representation.facts import make_tokenizer
from unmask.data.facts import Fact
from unmask.net.config import NetConfig
from unmask.net.model import Blueprint, Model
from unmask.net.transformer import Transformer

WIDTH, MLP = 512, 16


@dataclass(frozen=True)
class Planted:
    model: Model
    facts: list[Fact]
    keys: list[Tensor]
    values: list[Tensor]

    @torch.no_grad()
    def erase(self) -> None:
        """Forget the values; the keys still fire."""
        self.model.net.block(0).mlp.down.weight.zero_()


@torch.no_grad()
def plant(causal: bool, objects: Mapping[str, str]) -> Planted:
    """Two layers: the first MLP holds objects by subject, the second attention carries them on.

    Subjects and objects are single tokens. Tokens and values are rows of a Hadamard matrix:
    orthogonal, with entries of one size.
    """
    tokenizer = make_tokenizer()
    shape = {"width": WIDTH, "layers": 2, "heads": 1, "mlp_width": MLP, "context": 64}
    config = NetConfig(vocab_size=tokenizer.vocab_size, causal=causal, **shape)
    net = Transformer(config, seed=None).eval().requires_grad_(False)
    for name, parameter in net.named_parameters():
        parameter.fill_(1.0 if "norm" in name else 0.0)
    rows = torch.tensor(hadamard(WIDTH)).float()
    net.embedding.weight.copy_(rows[: config.vocab_size] / WIDTH**0.5)
    mlp, attn = net.block(0).mlp, net.block(1).attn
    facts, values = [], list(rows[config.vocab_size :][: len(objects)])
    for neuron, (subject, answer) in enumerate(objects.items()):
        encoded = tokenizer.encode(f"({subject}:{answer}")
        assert len(encoded.ids) == 4
        mlp.gate.weight[neuron] = mlp.up.weight[neuron] = rows[encoded.ids[1]] / WIDTH
        mlp.down.weight[:, neuron] = 8 * values[neuron]
        net.head.weight[encoded.ids[3]] = values[neuron]
        facts.append(Fact.of(subject, answer, "({}:", completion=answer, fact_id=subject))
    # Attention that looks everywhere alike, and hands on what it sees.
    attn.qkv.weight[-WIDTH:] = torch.eye(WIDTH)
    attn.out.weight.copy_(40 * torch.eye(WIDTH) / WIDTH**0.5)
    kind = ("causal", None) if causal else ("masked", tokenizer.mask_id)
    model = Model("planted", net, Blueprint(config, *kind), tokenizer)
    return Planted(model, facts, list(torch.eye(MLP)[: len(objects)]), values)
