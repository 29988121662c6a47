"""How alike the gradients of a fact's loss are, asked one way and the other, by layer and part.

Shin et al. 2026 (arXiv 2602.02133) argue that a step on "A is B" lowers the loss of "B is A" where
the two gradients point the same way. A cosine says so of each layer's queries and keys, of its
values and output, and of its MLP; beside it stand a fact of other words, and one of the same words
that nobody taught.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from unmask.data.facts import Fact
from unmask.net.blocks import Block
from unmask.net.model import Model
from unmask.representation.patched import choose_canvas, lay_out_prompt
from unmask.representation.prompts import pad_canvas

ROUTES, VALUES, MLP = "routes", "values", "mlp"
PARTS = (ROUTES, VALUES, MLP)
"""Queries and keys, values and what attention writes, and the MLP; norms are left out."""
ALL = "all"
Gradients = dict[tuple[int, str], Float[Tensor, "N"]]
"""A loss's gradients by layer and part, each as one vector."""


def find_alignments(
    model: Model, pairs: Sequence[tuple[Fact, Fact]], length: int | None = None
) -> Iterator[dict[str, Any]]:
    """A row for each fact, comparison, layer and part: the cosine of two losses' gradients.

    Layers together have the number None, parts together the name "all". What is compared:

    - own: "A is B" and "B is A", the fact asked both ways;
    - other: "A is B" and the next fact's "D is C";
    - exchanged: "A is D" and "D is A", with the next fact's answer. Nobody taught it, and its two
      ways have as many words in common as the fact's.

    Args:
        model: Masked or causal.
        pairs: Each fact asked both ways; two or more, in a drawn order.
        length: Positions of a masked model's canvas.
    """
    model = replace(model, net=copy.deepcopy(model.net).requires_grad_(True))
    first = near = _find_both(model, *pairs[0], length)
    for i, (one, back) in enumerate(pairs):
        j = (i + 1) % len(pairs)
        after, after_back = pairs[j]
        following = first if not j else _find_both(model, after, after_back, length)
        exchanged = _find_both(model, put_object(one, after), put_object(after_back, back), length)
        compared = {"own": near, "other": (near[0], following[1]), "exchanged": exchanged}
        for name, (forward, reverse) in compared.items():
            for row in compare_gradients(forward, reverse):
                yield {"fact": one.fact_id, "pair": name, **row}
        near = following


def put_object(fact: Fact, other: Fact) -> Fact:
    """A question with another fact's answer."""
    return replace(
        fact, object=other.object, completion=other.completion, object_span=other.object_span
    )


def compare_gradients(one: Gradients, other: Gradients) -> Iterator[dict[str, Any]]:
    """The cosine of each part of each layer, of whole layers, and of all layers together."""
    # 1. Products and squares of single parts; those of several are their sums.
    sums: dict[tuple[int | None, str], Tensor] = {}
    for (layer, part), a in one.items():
        b = other[layer, part]
        products = torch.stack((a @ b, a @ a, b @ b)).double()
        for key in ((layer, part), (layer, ALL), (None, part), (None, ALL)):
            sums[key] = sums.get(key, 0.0) + products
    # 2. Where a gradient is 0, as of a part that nothing reaches, there is no direction.
    for (layer, part), (product, a, b) in sums.items():
        if a > 0 and b > 0:
            cosine = float(product / (a * b).sqrt())
            yield {"layer": layer, "part": part, "cosine": cosine}


def _find_both(
    model: Model, one: Fact, back: Fact, length: int | None
) -> tuple[Gradients, Gradients]:
    return find_gradients(model, one, length), find_gradients(model, back, length)


def find_gradients(model: Model, fact: Fact, length: int | None = None) -> Gradients:
    """Gradients of an answer's loss, the mean of its tokens.

    A masked model predicts them all at once, from a canvas without any of them.
    """
    # 1. One row: the prompt with masks, or of a causal model with the answer.
    prompt = lay_out_prompt(model, fact, [fact])
    (answer,), start = prompt.answers, len(prompt.tokens)
    canvas = choose_canvas(model, [prompt], length)
    tokens = prompt.tokens if canvas else prompt.tokens + answer[:-1]
    row = torch.tensor([pad_canvas(model, tokens, canvas)], device=model.device)
    reads = torch.tensor([[model.row_of(start + k) for k in range(len(answer))]])
    # 2. Its loss, backwards to the weights of all layers.
    net = model.net
    logits = net.unembed(net.run_layers(net.embed(row)), reads.to(model.device))[0]
    loss = F.cross_entropy(logits.float(), torch.tensor(answer, device=model.device))
    weights = [
        (layer, name, weight)
        for layer in range(net.config.layers)
        for name, weight in net.block(layer).named_parameters()
        if name.startswith(("attn.qkv", "attn.out", "mlp."))
    ]
    made = torch.autograd.grad(loss, [weight for *_, weight in weights], allow_unused=True)
    # 3. By part: queries and keys stand above the values in one matrix.
    by_part: dict[tuple[int, str], list[Tensor]] = {}
    for (layer, name, weight), grad in zip(weights, made, strict=True):
        grad = torch.zeros_like(weight) if grad is None else grad
        for part, own in _split(net.block(layer), name, grad).items():
            by_part.setdefault((layer, part), []).append(own.flatten())
    return {key: torch.cat(own) for key, own in by_part.items()}


def _split(block: Block, name: str, grad: Tensor) -> Mapping[str, Tensor]:
    """A weight's gradient by part."""
    if name.startswith("mlp."):
        return {MLP: grad}
    if name.startswith("attn.out"):
        return {VALUES: grad}
    values = block.attn.kv * block.attn.head_dim
    return {ROUTES: grad[:-values], VALUES: grad[-values:]}
