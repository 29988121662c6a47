"""An objective: masked cross-entropy in which the tokens of answers weigh more than prompts."""

import torch
import torch.nn.functional as F

WEIGHT = 3.0


def heavy_answers(model, batch, t, streams):
    """The loss, with a gradient, of rows [B, L] at times [B]; streams are the rows' own noise."""
    may = ~batch.is_kept()
    hidden = (streams.uniform(batch.tokens.shape[1]) < t[:, None]) & may
    logits = model.logits(torch.where(hidden, model.mask_id, batch.tokens))
    losses = F.cross_entropy(logits.float().transpose(1, 2), batch.tokens, reduction="none")
    weights = torch.where(batch.is_prompt(), 1.0, WEIGHT) / t[:, None].clamp(min=1e-3)
    return (losses * weights * hidden).sum() / may.sum()
