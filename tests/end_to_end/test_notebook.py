"""A notebook with an order, a plan, a corruption, a metric and a noise process of its own.

Imported are `torch`, public names, the table that names processes and a schedule.
"""

from dataclasses import dataclass, field

import pytest
import torch
import torch.nn.functional as F

import unmask
from unmask.noise.processes import PROCESSES
from unmask.noise.schedules import LinearSchedule

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


@dataclass(frozen=True)
class Shifted(unmask.Process):
    """Noise that turns a token into the one after it, once."""

    num_tokens: int
    schedule: object = field(default_factory=LinearSchedule)

    @classmethod
    def from_config(cls, config, schedule, num_logits, mask_id):
        return cls(num_logits, schedule)

    @property
    def num_states(self):
        return self.num_tokens

    def corrupt(self, x0, t, streams):
        moved = streams.uniform(x0.shape[1]) < self.schedule.noised(t)
        return torch.where(moved, (x0 + 1) % self.num_tokens, x0)

    def prior(self, length, streams):
        return streams.below(self.num_tokens, length)

    def nll(self, logits, x0, xt, t):
        return -self.predict(logits).gather(-1, x0[..., None])[..., 0]

    def posterior(self, logits, xt, t, s):
        stay = (self.schedule.noised(s) / self.schedule.noised(t))[..., None]
        kept = F.one_hot(xt, self.num_tokens)
        return (self.predict(logits).exp() * (1 - stay) + stay * kept).log()


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


def test_a_process_of_a_notebook(tmp_path, monkeypatch):
    monkeypatch.setitem(PROCESSES, "shifted", Shifted)
    recipe = tmp_path / "shifted.yaml"
    recipe.write_text(
        "kind: shifted\ndata: {source: reversal, facts: 2, vocab: 900, context: 64}\n"
        "batch: {rows: 8}\nbudget: {steps: 12}\ncadence: {log: 1, facts: 0, samples: 0}\n"
    )
    outcome = unmask.train(recipe, tmp_path / "run", device="cpu")
    assert outcome is not None and outcome.ended == "done"
    model = unmask.load(tmp_path / "run" / "model", device="cpu")
    assert type(model.make_process()) is Shifted
    assert unmask.sample(model, PROMPT, length=12, steps=4).tokens.shape == (1, 12)
