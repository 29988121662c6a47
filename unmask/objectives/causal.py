"""Next-token cross-entropy: the objective of the autoregressive twin."""

from jaxtyping import Float
from torch import Tensor

from unmask.base.errors import UserError
from unmask.net.transformer import Transformer
from unmask.objectives.batch import Batch, choose_noised
from unmask.objectives.targets import next_targets, targets_loss


def next_token_loss(
    net: Transformer, batch: Batch, response_only: bool = False, learn_filling: bool = True
) -> tuple[Float[Tensor, ""], Float[Tensor, "N"]]:
    """Nats per token, and the cross-entropies (no gradient), of every token but a row's first."""
    if not net.config.causal:
        raise UserError("this network sees the next token: next-token loss needs a causal one.")
    wanted = choose_noised(batch, response_only, learn_filling)
    x = net.run_layers(net.embed(batch.tokens))
    return targets_loss(net, x, next_targets(batch, wanted))
