"""A notebook with an order, a plan, a corruption and a metric of its own, by public names alone."""

import pytest
import torch

import unmask

PROMPT = "We sat down beside"


def last_first(state: unmask.StepState, streams):
    """Scores [B, L]: the highest is committed first."""
    return torch.arange(state.open.shape[1]).expand(state.open.shape)


def half(state: unmask.StepState, streams):
    """How many positions of each row are committed [B]."""
    return (state.num_open + 1) // 2


def rotate_subject(model, tokens, positions):
    """The subject's tokens in another order."""
    rows = tokens.clone()[None]
    rows[:, list(positions)] = tokens[list(positions)].roll(1)
    return unmask.corruptions.Corrupted(rows)


def least_sure(logp, clean, corrupted, which):
    """log p of the least likely token of the answer."""
    return logp[..., which, :].amin(-1)


def test_strategies_and_traces_of_a_notebook():
    model = unmask.load("reversal-mdm", device="cpu")
    drawn = unmask.sample(model, PROMPT, length=15, steps=6, order=last_first, plan=half)
    given = int((drawn.committed_at[0] == 0).sum())
    written = drawn.committed_at[0, given:]
    assert written.tolist() == sorted(written, reverse=True), "the last positions come first"
    counts = torch.bincount(written)[1:].tolist()
    assert counts[0] == (15 - given + 1) // 2 and len(counts) <= 6

    tokens = [*drawn.tokens[0, :14].tolist(), model.mask_id]
    answer = {14: int(drawn.tokens[0, 14])}
    settings = unmask.Tracing(parts=("resid",), window=1, corruption=rotate_subject)
    grid = unmask.trace_tokens(model, tokens, (2, 5), answer, settings, metric=least_sure)
    assert grid.corruption == "rotate_subject" and grid.total_effect != 0
    assert grid.effects("resid").shape == (15, model.net.config.layers)
    # Of one token the least likely is that token; what restores it all has the whole effect.
    assert grid.clean == pytest.approx(float(grid.clean_logp))
    assert float(grid.effects("resid")[14, -1]) == pytest.approx(grid.total_effect, abs=1e-5)
