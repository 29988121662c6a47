"""A network with one association written into one MLP by hand: a key that finds a value."""

from dataclasses import dataclass

import torch
from scipy.linalg import hadamard
from torch import Tensor

from tests.representation.facts import make_tokenizer
from unmask.data.facts import Fact
from unmask.net.config import NetConfig
from unmask.net.model import Blueprint, Model
from unmask.net.transformer import Transformer

SUBJECT, OBJECT = "X", "Z"
WIDTH, MLP, NEURON = 512, 16, 5


@dataclass(frozen=True)
class Planted:
    model: Model
    fact: Fact
    key: Tensor
    value: Tensor

    @torch.no_grad()
    def erase(self) -> None:
        """Forget the value; the key still fires."""
        self.model.net.block(0).mlp.down.weight.zero_()


@torch.no_grad()
def plant(causal: bool) -> Planted:
    """Two layers: the first MLP holds the pair, the second attention carries it everywhere.

    Tokens and values are rows of a Hadamard matrix: orthogonal, with entries of one size.
    """
    tokenizer = make_tokenizer()
    config = NetConfig(
        vocab_size=tokenizer.vocab_size, width=WIDTH, layers=2, heads=1, mlp_width=MLP, context=64,
        causal=causal,
    )  # fmt: skip
    net = Transformer(config, seed=None).eval().requires_grad_(False)
    for name, parameter in net.named_parameters():
        parameter.fill_(1.0 if "norm" in name else 0.0)
    rows = torch.tensor(hadamard(WIDTH)).float()
    net.embedding.weight.copy_(rows[: config.vocab_size] / WIDTH**0.5)
    text = f"Q{SUBJECT}:"
    encoded = tokenizer.encode(text + OBJECT)
    subject, object_ = encoded.ids[1], encoded.ids[-1]
    assert encoded.offsets[1] == (1, 2), "subject and object are tokens of their own"
    assert tokenizer.decode([object_]) == OBJECT
    value = rows[config.vocab_size]
    mlp = net.block(0).mlp
    mlp.gate.weight[NEURON] = rows[subject] / WIDTH
    mlp.up.weight[NEURON] = rows[subject] / WIDTH
    key = torch.zeros(MLP)
    key[NEURON] = 1.0
    mlp.down.weight[:, NEURON] = 8 * value
    # Attention that looks everywhere alike, and hands on what it sees.
    attn = net.block(1).attn
    attn.qkv.weight[-WIDTH:] = torch.eye(WIDTH)
    attn.out.weight.copy_(40 * torch.eye(WIDTH) / WIDTH**0.5)
    net.head.weight[object_] = value
    blueprint = Blueprint(
        config, "causal" if causal else "masked", None if causal else tokenizer.mask_id
    )
    fact = Fact(
        subject=SUBJECT, object=OBJECT, prompt=text, completion=OBJECT, subject_span=(1, 2),
        object_span=(0, len(OBJECT)), fact_id="planted",
    )  # fmt: skip
    return Planted(Model("planted", net, blueprint, tokenizer), fact, key, value)
