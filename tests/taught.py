"""Small models that learn a few facts by heart in seconds."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from unmask.data.facts import Fact
from unmask.data.tokenizer import Tokenizer
from unmask.net.model import Blueprint, Model
from unmask.net.presets import preset
from unmask.net.transformer import Transformer


def teach(
    facts: Sequence[Fact], tokenizer: Tokenizer, causal: bool, length: int, context: int, steps: int
) -> Model:
    """A model of two layers that knows the facts, seen as rows of `length` tokens."""
    rows = tokenizer.vocab_size
    shape = {"width": 32, "heads": 2, "mlp_width": 64, "layers": 2, "context": context}
    config = preset("tiny", causal=causal, vocab_size=rows, num_logits=rows - 1, **shape)
    net = Transformer(config, seed=1)
    tokens = torch.full((len(facts), length), tokenizer.end_id)
    starts = torch.tensor([len(tokenizer.encode(fact.prompt).ids) for fact in facts])
    for i, fact in enumerate(facts):
        ids = tokenizer.encode(fact.text).ids
        tokens[i, : len(ids)] = torch.tensor(ids)
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(net.parameters(), 8e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        if causal:
            logits, targets = net(tokens)[:, :-1], tokens[:, 1:]
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        else:
            share = torch.rand(len(tokens), 1, generator=generator)
            hidden = torch.rand(tokens.shape, generator=generator) < share
            hidden = (hidden | (share > 0.5)) & (torch.arange(length) >= starts[:, None])
            logits = net(torch.where(hidden, tokenizer.mask_id, tokens))
            loss = F.cross_entropy(logits[hidden], tokens[hidden])
        loss.backward()
        optimizer.step()
    kind = "causal" if causal else "masked"
    plan = Blueprint(config, kind, None if causal else rows - 1)
    return Model(kind, net.eval().requires_grad_(False), plan, tokenizer)
