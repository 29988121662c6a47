"""Metrics: one number for an answer of several tokens, from their log-probabilities.

Joint probabilities are products over the answer's positions, in log space, sample by sample; means
over samples come after.
"""

from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.base.errors import UserError, suggest

Metric = Literal["p", "logp", "logit_difference", "normalised"]


def check_metric(metric: str, has_foil: bool) -> None:
    """Raise for a metric that is unknown or lacks its foil."""
    if metric not in get_args(Metric):
        raise UserError(f"metric {metric!r} is unknown: {suggest(metric, get_args(Metric))}")
    if metric == "logit_difference" and not has_foil:
        raise UserError(
            "the logit difference compares the answer with another one, but none was given: name "
            "a foil (--foil, or foil={position: token})."
        )


def score(
    metric: str,
    logp: Float[Tensor, "*cells K A"],
    clean: Float[Tensor, "1 K A"],
    corrupted: Float[Tensor, "S K A"],
    which: int = 0,
) -> Float[Tensor, "*cells"]:
    """The metric of each cell, in float64; `which` target it is about, 0 being the answer.

    NaN stands where a target has no token at a position; it does not count. A logit difference is
    about both targets at once; what is normalised is so by the answer's total effect.
    """

    def joint(x: Tensor, of: int = which) -> Tensor:
        return x[..., of, :].double().nansum(-1)

    if metric == "p":
        return joint(logp).exp()
    if metric == "logp":
        return joint(logp)
    if metric == "logit_difference":
        # The normaliser is the same for both, so log-probabilities differ as logits do.
        both = logp[..., 1, :].isfinite()
        difference = logp[..., 0, :].double() - logp[..., 1, :].double()
        return torch.where(both, difference, 0.0).sum(-1)
    total = joint(clean, 0).exp().mean() - joint(corrupted, 0).exp().mean()
    if total == 0:
        raise UserError(
            "the corruption changed nothing, so effects cannot be normalised by its total effect: "
            "use the metric p, or a stronger corruption."
        )
    return (joint(logp).exp() - joint(corrupted).exp().mean()) / total
