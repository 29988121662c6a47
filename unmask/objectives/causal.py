"""Next-token cross-entropy: the objective of the autoregressive twin."""

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.base.errors import UserError
from unmask.net.transformer import Transformer, select_rows
from unmask.objectives.batch import Batch, choose_noised
from unmask.objectives.cross_entropy import weighted_cross_entropy


def next_token_loss(
    net: Transformer, batch: Batch, response_only: bool = False, learn_filling: bool = True
) -> tuple[Float[Tensor, ""], Float[Tensor, "N"]]:
    """Nats a token, and the cross-entropies (no gradient), of every token but a row's first."""
    if not net.config.causal:
        raise UserError("this network sees the next token: next-token loss needs a causal one.")
    wanted = choose_noised(batch, response_only, learn_filling)
    wanted = wanted & (batch.places > 0)
    x = net.run_layers(net.embed(batch.tokens))
    before = wanted.roll(-1, dims=1)
    rows = net.norm(select_rows(x, before))
    count = int(wanted.sum())
    if not count:
        raise UserError("the rows have no second token: there is nothing to predict.")
    weights = torch.full((count,), 1 / count, device=rows.device)
    return weighted_cross_entropy(rows, net.head.weight, batch.tokens[wanted], weights)
