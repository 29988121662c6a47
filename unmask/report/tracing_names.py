"""How traces are called on the page: models, ways of asking, what effects are measured in."""

from unmask.report.artefacts import StudyFolder
from unmask.report.recall_section import name_asked

KINDS = {"masked": "diffusion", "causal": "autoregressive"}
STAGES = {"first": "first step", "last": "last step"}
SPLITS = {
    ("d2p", "same"): "d2p_same",
    ("p2d", "same"): "p2d_same",
    ("p2d", "reverse"): "d2p_reverse",
    ("d2p", "reverse"): "p2d_reverse",
}
"""The split that asks in a direction; a fact asked in reverse was trained in the other one."""
METRICS = {
    "p": "probability",
    "logp": "log-probability (nats)",
    "logit_difference": "logits against another answer",
    "normalised": "shares of the total effect",
}
"""What effects are measured in."""


def name_metric(run: StudyFolder) -> str:
    return METRICS[run.record.settings.get("metric", "p")]


def name_way(direction: str, trained: str) -> str:
    """A way of asking in words."""
    return name_asked(SPLITS[direction, trained])
