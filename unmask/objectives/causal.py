"""Next-token cross-entropy: the objective of the autoregressive twin."""

from jaxtyping import Float
from torch import Tensor

from unmask.base.errors import UserError
from unmask.net.transformer import Transformer
from unmask.objectives.batch import Batch, choose_noised
from unmask.objectives.picks import pick_next, picked_loss


def next_token_loss(
    net: Transformer, batch: Batch, response_only: bool = False, learn_filling: bool = True
) -> tuple[Float[Tensor, ""], Float[Tensor, "N"]]:
    """Nats a token, and the cross-entropies (no gradient), of every token but a row's first."""
    if not net.config.causal:
        raise UserError("this network sees the next token: next-token loss needs a causal one.")
    wanted = choose_noised(batch, response_only, learn_filling)
    x = net.run_layers(net.embed(batch.tokens))
    return picked_loss(net, x, pick_next(batch, wanted))
