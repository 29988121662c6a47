"""From a causal model to a diffusion model: attention opened, a mask token added.

Gong et al. 2024 (DiffuLLaMA, arXiv 2410.17891) open the attention step by step and keep the shift;
Ye et al. 2025 (Dream, arXiv 2508.15487) open it at once and keep the shift. Both are settings here.
"""

from dataclasses import replace

import torch
from jaxtyping import Bool
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.seeds import derive_seed
from unmask.base.streams import RowStreams
from unmask.data.tokenizer import Tokenizer
from unmask.net.config import NetConfig
from unmask.net.counts import fill_network
from unmask.net.model import Blueprint, Model
from unmask.net.transformer import Transformer
from unmask.noise.settings import NoiseConfig
from unmask.training.recipe import Recipe


def adapt_model(start: Model, recipe: Recipe, tokenizer: Tokenizer) -> Model:
    """The model that training starts from: `start`, or if it is causal, made from it."""
    if recipe.input_length > start.net.config.context:
        raise UserError(
            f"rows of data.context={recipe.data.context} tokens do not fit {start.name}, whose "
            f"context is {start.net.config.context}: shorten data.context."
        )
    both_masked = start.paradigm.fills_masks and recipe.paradigm.fills_masks
    if start.kind == recipe.kind or both_masked:
        if recipe.start.shift and not start.blueprint.shift:
            raise UserError(f"start.shift is for causal models; {start.name} has no shift.")
        if recipe.start.open_over:
            raise UserError(
                f"start.open_over={recipe.start.open_over} opens the attention of a causal model; "
                f"{start.name} is {start.kind} and open already: leave it out."
            )
        _check_vocabulary(tokenizer, start.net.config)
        # What the recipe leaves unsaid about the noise stays as the model learned it.
        noise = recipe.noise
        if noise == NoiseConfig() and start.kind == recipe.kind:
            noise = start.blueprint.noise
        blueprint = replace(start.blueprint, kind=recipe.kind, noise=noise)
        if recipe.needs_mask and start.mask_id is None:
            tokenizer = add_mask(tokenizer)
            rows = max(start.net.config.vocab_size, tokenizer.vocab_size)
            net = widen_network(start.net, rows, causal=True)
            blueprint = replace(blueprint, config=net.config, mask_id=tokenizer.mask_id)
            return Model("trained", net, blueprint, tokenizer)
        return replace(start, name="trained", tokenizer=tokenizer, blueprint=blueprint)
    if start.paradigm.sees_later or not recipe.paradigm.fills_masks:
        raise UserError(
            f"{start.name} is {start.kind} and the recipe trains {recipe.kind}: only causal models "
            "are adapted, to masked ones; change kind or start.model."
        )
    with_mask = add_mask(tokenizer)
    net = open_network(start.net, max(start.net.config.vocab_size, with_mask.vocab_size))
    more = (recipe.start.shift, recipe.noise, start.blueprint.noises_beginning)
    blueprint = Blueprint(net.config, recipe.kind, with_mask.mask_id, *more)
    return Model("trained", net, blueprint, with_mask)


def add_mask(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer with a mask: its own, or the id right after its vocabulary, as in SMDM."""
    if tokenizer.mask_id is not None:
        return tokenizer
    ids = tokenizer.vocab_size, tokenizer.pad_id, tokenizer.end_id
    return Tokenizer(tokenizer.backend, *ids, begin_id=tokenizer.begin_id)


def open_network(net: Transformer, vocab_size: int) -> Transformer:
    """The network with open attention, and rows for a mask."""
    return widen_network(net, vocab_size, causal=False)


@torch.no_grad()
def widen_network(net: Transformer, vocab_size: int, causal: bool) -> Transformer:
    """The network with more rows of the embedding, which are the mean of the others.

    A head of its own gets no new rows, since a mask is never predicted; a tied one must.
    """
    config = net.config
    rows = vocab_size if config.tied else config.logit_rows
    wider = replace(config, causal=causal, vocab_size=vocab_size, num_logits=rows)
    weights = dict(net.state_dict())
    table = weights["embedding.weight"]
    if more := vocab_size - len(table):
        weights["embedding.weight"] = torch.cat((table, table.mean(0).expand(more, -1)))
        if config.tied:
            weights["head.weight"] = weights["embedding.weight"]
    return fill_network(wider, {name: x.clone() for name, x in weights.items()})


@torch.no_grad()
def untie_head(model: Model) -> Model:
    """The model with a head of its own, equal to the embedding."""
    config = model.net.config
    if not config.tied:
        raise UserError(
            f"start.untie gives a tied head weights of its own; that of {model.name} has its own "
            "already: leave it out."
        )
    config = replace(config, tied=False, num_logits=config.logit_rows)
    weights = model.net.state_dict() | {"head.weight": model.net.embedding.weight}
    net = fill_network(config, {name: x.clone() for name, x in weights.items()})
    return replace(model, net=net, blueprint=replace(model.blueprint, config=config))


def open_attention(step: int, length: int, recipe: Recipe) -> Bool[Tensor, "L L"] | None:
    """Which positions see which at a step: all earlier ones, and of the later ones a growing share.

    Drawn anew for every step from the recipe's seed; None once everything is open.
    """
    over = recipe.start.open_over
    if step >= over:
        return None
    streams = RowStreams.make(derive_seed(recipe.seed, "attention", step), length)
    later_open = streams.uniform(length) < (step + 1) / (over + 1)
    return later_open | torch.ones(length, length, dtype=torch.bool).tril()


def _check_vocabulary(tokenizer: Tokenizer, config: NetConfig) -> None:
    if tokenizer.vocab_size > config.vocab_size:
        raise UserError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, but the model to start from has "
            f"{config.vocab_size} rows: they do not belong together; name the model's own "
            "tokenizer by data.tokenizer."
        )
