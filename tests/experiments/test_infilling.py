"""Gaps that are filled: against networks that know the text, and candidates scored one by one."""

import pytest
import torch

import unmask
from tests.conftest import make_model, make_noised
from unmask.base.errors import UserError
from unmask.blocks import tidy
from unmask.experiments.correctors.laws import ExactModel
from unmask.experiments.infilling import fillers
from unmask.experiments.infilling.fillers import fill_gap
from unmask.experiments.infilling.measure import BEFORE, BOTH, OPEN
from unmask.experiments.infilling.measure import MEASURE as INFILLING
from unmask.experiments.transparency.laws import TableLaw

ROWS = torch.randint(0, 90, (3, 14), generator=torch.Generator().manual_seed(3))


def knows(model, token):
    """The model with logits that are sure of this token, whatever it reads."""
    sure = 50.0 * torch.nn.functional.one_hot(torch.tensor(token), model.net.config.logit_rows)
    return model.net.patch({"logits": lambda x: sure.expand(x.shape).to(x.dtype)})


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("sees_after", [True, False])
@pytest.mark.parametrize("size", [1, 5, 12])
def test_who_knows_the_text_fills_its_gaps(size, sees_after, causal):
    model, rows = make_model(causal=causal), torch.full((3, 14), 7)
    rows[:, 0] = 9
    for token, is_right in ((7, 1.0), (8, 0.0)):
        with knows(model, token):
            for filled in fill_gap(model, rows, size, sees_after, steps=4, candidates=3):
                assert filled["right"] == filled["exact"] == is_right
                assert filled["calls"] >= min(4, size)


def test_a_gap_of_any_size_is_filled_where_the_text_after_fits():
    """A model that knows what stands where puts the text after in its place, and fills the gap."""
    rows = torch.arange(14)[None]
    for known, right in (
        ([*range(14), 14, 15, 16], 1.0),
        ([0, 1, 2, 3, 4, 5, 6, *range(8, 14), 14, 15, 16, 17], 2 / 3),  # one token too few
        ([0, 1, 2, 3, 4, 5, 6, 7, 18, *range(8, 14), 14, 15], 1.0),  # one too many
    ):
        model = ExactModel.make(TableLaw.of({tuple(known): 1.0}, 20))
        (filled,) = fillers.fill_open_gap(model, rows, 3, steps=2)
        start = known.index(8)
        assert filled["right"] == pytest.approx(right)
        assert filled["exact"] == (start == 8)


def test_the_second_side_is_hidden_from_the_control():
    other = ROWS.clone()
    other[:, 9:] = (other[:, 9:] + 1) % 90
    for model in (make_model(), make_model(causal=True)):
        filled = [
            [row["right"] for row in fill_gap(model, rows, 4, False, steps=4, candidates=3)]
            for rows in (ROWS, other)
        ]
        assert filled[0] == filled[1]


def test_a_causal_model_keeps_the_candidate_with_which_the_whole_text_is_likeliest(monkeypatch):
    """Each whole text is scored by itself, as `unmask.likelihood` does it."""
    model, gap = make_model(causal=True), fillers.Gap(ROWS, 3)
    drawn = []
    keep = fillers._continue

    def draw(*words):
        drawn.append(keep(*words))
        return drawn[-1]

    monkeypatch.setattr(fillers, "_continue", draw)
    filled, calls = fillers._choose(model, gap, 4, seed=1)
    assert calls == (3 + 1) * 5
    for i, row in enumerate(ROWS):
        candidates = [drawn[0][i], *drawn[1][4 * i : 4 * i + 4]]
        before, after = row[: gap.start].tolist(), row[gap.stop :].tolist()
        costs = [
            unmask.likelihood(model, [*each.tolist(), *after], before, "chain").nll
            for each in candidates
        ]
        assert filled[i].equal(candidates[costs.index(min(costs))])
    assert len({tuple(each.tolist()) for each in drawn[1]}) > 3, "candidates differ"


def test_the_measure(tmp_path):
    (tmp_path / "text.txt").write_text("The caves of Orsel are deep. The baker sings. " * 20)
    models = {"masked": make_model(), "causal": make_model(causal=True)}
    few = {"data": tmp_path / "text.txt", "length": 20, "candidates": 2}
    few["out"] = tmp_path / "run"
    result = INFILLING(models, texts=4, gaps=(1, 3), steps=2, **few)
    means = tidy.select(result.summary["means"], metric="right")
    assert {(row["gap"], row["given"]) for row in means} == {
        (gap, given) for gap in (1, 3) for given in (BOTH, BEFORE, OPEN)
    }
    assert {row["minus"] for row in result.summary["models"]} == {"causal"}
    assert "Both sides minus the text before alone" in str(result.section)
    with pytest.raises(UserError, match="expected at most 18, a token on either side"):
        INFILLING(models, texts=4, gaps=(19,), **few)
    with pytest.raises(UserError, match="only masked and causal models fill gaps"):
        INFILLING({"uniform": make_noised("uniform")}, texts=4, **few | {"out": tmp_path / "no"})
