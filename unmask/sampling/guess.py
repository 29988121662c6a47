"""What a network says about the open positions of a batch, at one step."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.streams import RowStreams
from unmask.net.model import Model
from unmask.noise.guidance import mix
from unmask.sampling.canvas import Canvas


@dataclass(frozen=True)
class Guess:
    """Predictions at the open positions alone, N of them; everything else is never computed."""

    open: Bool[Tensor, "B L"]
    logp: Float[Tensor, "N V"]
    """log p(token), the mask impossible, in float64."""
    proposed: Int[Tensor, "N"]

    def spread(self, values: Tensor, elsewhere: float) -> Tensor:
        """Values of the open positions in their places [B, L]."""
        canvas = torch.full(self.open.shape, elsewhere, dtype=values.dtype, device=values.device)
        return canvas.masked_scatter(self.open, values)

    def confidence(self) -> Float[Tensor, "N"]:
        """The probability of each proposed token."""
        return self.logp.gather(-1, self.proposed[:, None])[:, 0].exp()

    def entropy(self) -> Float[Tensor, "N"]:
        """In nats."""
        return -torch.where(self.logp == -torch.inf, 0.0, self.logp.exp() * self.logp).sum(-1)


def predict(
    model: Model,
    canvas: Canvas,
    xt: Int[Tensor, "B L"],
    open_: Bool[Tensor, "B L"],
    guidance: float,
) -> Float[Tensor, "N V"]:
    """log p at the open positions; with guidance a second pass hides the prompt.

    What was generated stays in both passes. The two are one batch of twice the rows.
    """
    if guidance == 0:
        logits = model.logits(xt, canvas.real, open_).double()
    else:
        without = torch.where(canvas.is_prompt, model.mask_id or 0, xt)
        real = None if canvas.real is None else canvas.real.repeat(2, 1)
        both = model.logits(torch.cat((xt, without)), real, open_.repeat(2, 1)).double()
        logits = mix(*both.chunk(2), guidance)
    if model.mask_id is not None and model.mask_id < logits.shape[-1]:
        logits[:, model.mask_id] = -torch.inf
    if logits.isnan().any():
        raise UserError(
            "the network's logits are not numbers: its weights or the guidance are off."
        )
    return logits.log_softmax(-1)


def propose(
    logp: Float[Tensor, "N V"],
    open_: Bool[Tensor, "B L"],
    temperature: float,
    streams: RowStreams,
) -> Int[Tensor, "N"]:
    """A token for each open position: the likeliest, or one drawn at a temperature.

    Drawn by inverting the distribution at one uniform number a position, in float64: the same law
    as Gumbel noise on every token, with one number instead of V.
    """
    draws = streams.uniform(open_.shape[1])[open_] if temperature else None
    return draw_tokens(logp, temperature, draws)


def draw_tokens(
    logp: Float[Tensor, "N V"], temperature: float, draws: Float[Tensor, "N"] | None
) -> Int[Tensor, "N"]:
    """The likeliest token of each row; with a temperature, the one at a uniform number."""
    if draws is None:
        return logp.argmax(-1)
    total = (logp / temperature).softmax(-1).cumsum(-1)
    found = torch.searchsorted(total, draws[:, None] * total[:, -1:])[:, 0]
    return found.clamp(max=logp.shape[-1] - 1)
