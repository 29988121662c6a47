"""Metrics: one number for an answer of several tokens, from their log-probabilities.

Joint probabilities are products over the answer's positions, in log space, sample by sample; means
over samples come after.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.base.choices import refuse_type
from unmask.base.errors import UserError
from unmask.base.plugins import Registry

Metric = Callable[[Tensor, Tensor, Tensor, int], Tensor]
"""(logp [*cells, K, A], clean [1, K, A], corrupted [S, K, A], which) to a number per cell [*cells].

All are log-probabilities in float64: of the cells that are scored, and of the clean and the S
corrupted runs for comparison. K counts targets, 0 being the answer and 1 its foil, `which` says
which of them is asked about; A counts the answer's positions. NaN stands where a target has no
token at a position. Higher means more likely.
"""


def probability(logp: Tensor, clean: Tensor, corrupted: Tensor, which: int) -> Tensor:
    """The joint probability."""
    return _joint(logp, which).exp()


def log_probability(logp: Tensor, clean: Tensor, corrupted: Tensor, which: int) -> Tensor:
    """Its logarithm, in nats."""
    return _joint(logp, which)


def log_probability_per_token(logp: Tensor, clean: Tensor, corrupted: Tensor, which: int) -> Tensor:
    """log p of the answer by its number of tokens, so that answers of any length compare."""
    return logp[..., which, :].nanmean(-1)


def logit_difference(logp: Tensor, clean: Tensor, corrupted: Tensor, which: int) -> Tensor:
    """The answer's logits minus the foil's, summed over positions that have both."""
    # The normaliser is the same for both, so log-probabilities differ as logits do.
    difference = logp[..., 0, :] - logp[..., 1, :]
    return torch.where(logp[..., 1, :].isfinite(), difference, 0.0).sum(-1)


def normalised(logp: Tensor, clean: Tensor, corrupted: Tensor, which: int) -> Tensor:
    """What is regained of the probability, as a share of the answer's total effect."""
    total = _joint(clean, 0).exp().mean() - _joint(corrupted, 0).exp().mean()
    if total == 0:
        raise UserError(
            "the corruption changed nothing, so effects cannot be normalised by its total effect: "
            "use the metric p, or a stronger corruption."
        )
    return (_joint(logp, which).exp() - _joint(corrupted, which).exp().mean()) / total


NO_FOIL = (
    "the logit difference compares the answer with another one, and none was given: name a --foil "
    "(foil={position: token}), give more facts, or use another metric."
)
METRICS = Registry[Metric](
    "metric",
    {
        "p": probability,
        "logp": log_probability,
        "logp_per_token": log_probability_per_token,
        "logit_difference": logit_difference,
        "normalised": normalised,
    },
    callable,
    "a function of log-probabilities (unmask.tracing.metrics.Metric)",
)


def get_metric(metric: str | Metric) -> Metric:
    """The metric of that name, or the caller's own function."""
    if isinstance(metric, str):
        return METRICS.find(metric)
    if callable(metric):
        return metric
    raise refuse_type(metric, METRICS)


def needs_foil(metric: str | Metric) -> bool:
    """Whether a metric compares the answer with another one."""
    return get_metric(metric) is logit_difference


def score_cells(
    metric: str | Metric,
    logp: Float[Tensor, "*cells K A"],
    clean: Float[Tensor, "1 K A"],
    corrupted: Float[Tensor, "S K A"],
    which: int = 0,
) -> Float[Tensor, "*cells"]:
    """The metric of each cell, in float64; `which` target it is about, 0 being the answer."""
    scores = get_metric(metric)(logp.double(), clean.double(), corrupted.double(), which)
    if not isinstance(scores, Tensor) or scores.shape != logp.shape[:-2]:
        shown = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise UserError(
            f"the metric returned {shown}: expected a tensor of shape {tuple(logp.shape[:-2])}, a "
            "number for each cell; reduce the last two dimensions, targets and positions."
        )
    return scores


def _joint(logp: Tensor, which: int) -> Tensor:
    return logp[..., which, :].nansum(-1)
