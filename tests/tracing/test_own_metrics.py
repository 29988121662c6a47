"""Metrics and corruptions: by name, as an object, or as a function written here."""

from dataclasses import dataclass

import pytest
import torch

import unmask
from tests.conftest import build
from tests.tracing.learned import LENGTH
from unmask import UserError, trace_tokens
from unmask.net.model import Model
from unmask.tracing.corruption import CORRUPTIONS, Corrupted, Mask, Mean, Noise, get_corruption
from unmask.tracing.grid import TraceGrid
from unmask.tracing.metrics import METRICS
from unmask.tracing.windows import default_window

L, V, SUBJECT = 9, 40, (2, 4)
ANSWER = {7: 3, 8: 5}


@pytest.fixture(scope="module")
def model() -> Model:
    return build(vocab_size=V, layers=4)


def trace(model: Model, answer=ANSWER, **how) -> TraceGrid:
    """A trace of one text; MLPs restored layer by layer, the subject masked, unless said."""
    row = torch.randint(0, V - 1, (L,), generator=torch.Generator().manual_seed(0)).tolist()
    usual = {"parts": ("mlp",), "window": 1, "corruption": "mask"}
    return trace_tokens(model, [*row[:7], V - 1, V - 1], SUBJECT, answer, **(usual | how))


def trace_first(model: Model, fact, **how) -> TraceGrid:
    """The first of four steps."""
    usual = {"length": LENGTH, "any_answer": True, "parts": ("resid",), "steps": 4, "at": "first"}
    (grid,) = unmask.trace_steps(model, fact, **(usual | how))
    return grid


def worst_token(logp, clean, corrupted, which):
    """The log-probability of the least likely token of the answer."""
    return logp[..., which, :].nan_to_num(0.0).amin(-1)


def regained(logp, clean, corrupted, which):
    """Which share of the lost log-probability is back."""
    joint, high, low = (x[..., which, :].nansum(-1) for x in (logp, clean, corrupted))
    return (joint - low.mean()) / (high.mean() - low.mean())


def test_a_metric(model):
    settings = {"window": 2, "corruption": Noise(sigma=0.5, samples=3)}
    own, named = (trace(model, metric=each, **settings) for each in (worst_token, "logp"))
    assert torch.equal(own.values("mlp"), named.logp["mlp"][..., 0, :].double().amin(-1))
    assert own.metric is worst_token and own.clean == float(named.clean_logp.amin())
    assert own.total_effect == own.clean - own.corrupted
    for metric in (worst_token, "logp"):
        expected = own.values("mlp", metric).mean(-1) - own.corrupted_values(metric).mean()
        torch.testing.assert_close(own.effects("mlp", metric), expected)
    # Any grid can be scored by it afterwards, and by a name again.
    assert torch.equal(named.values("mlp", worst_token), own.values("mlp"))
    assert torch.equal(own.values("mlp", "logp"), named.values("mlp"))
    assert named.clean_value(regained) == pytest.approx(1.0)
    assert float(named.corrupted_values(regained).mean()) == pytest.approx(0.0)


def test_a_metric_of_the_foil(model):
    foil, how = {7: 11}, {"window": 2, "corruption": "mean"}
    grid = trace(model, metric=worst_token, foil=foil, **how)
    alone = trace(model, foil, metric="logp", **how)
    torch.testing.assert_close(grid.values("mlp", which=1), alone.values("mlp"), atol=1e-5, rtol=0)


def test_named_metrics_are_functions_of_the_same_kind(model):
    for each in METRICS.items():
        one, other = (trace(model, metric=metric, foil={7: 11, 8: 12}) for metric in each)
        assert torch.equal(one.values("mlp"), other.values("mlp"))
    with pytest.raises(UserError, match="compares the answer with another one"):
        trace(model, metric=METRICS["logit_difference"])


def hide_all_before(model, tokens, places):
    """Masks up to the end of the subject."""
    hidden = torch.arange(len(tokens)) < max(places) + 1
    return Corrupted(torch.where(hidden, model.mask_id, tokens)[None])


@dataclass(frozen=True)
class Shuffled:
    """The prompt's other tokens in the subject's place, `samples` times."""

    samples: int = 2
    name: str = "shuffled"

    def apply(self, model, tokens, places):
        rows = tokens.repeat(self.samples, 1)
        rows[:, list(places)] = torch.stack(
            [tokens[: len(places)].roll(i) for i in range(self.samples)]
        )
        return Corrupted(rows)


def test_a_corruption(model):
    own = trace(model, corruption=hide_all_before)
    row = own.tokens
    ready = trace(model, corruption=hide_all_before(model, torch.tensor(row), range(*SUBJECT)))
    assert own.corruption == "hide_all_before" and ready.corruption == "given"
    assert torch.equal(own.logp["mlp"], ready.logp["mlp"])
    drawn = trace(model, corruption=Shuffled(3))
    assert drawn.corruption == "shuffled" and drawn.corrupted_logp.shape[0] == 3
    guess = unmask.estimate_effects(model, row, SUBJECT, ANSWER, corruption=hide_all_before)
    assert guess.corruption == "hide_all_before" and guess.estimate


def test_corruptions_by_name_are_the_objects(model):
    noise = {"gaussian": Noise(), "uniform": Noise(shape="uniform"), "rome": Noise(stream="rome")}
    for each in (noise | {"mask": Mask(), "mean": Mean()}).items():
        one, other = (trace(model, corruption=corruption) for corruption in each)
        assert one.corruption == other.corruption == each[0]
        assert torch.equal(one.logp["mlp"], other.logp["mlp"])
    made = get_corruption("replace", subjects=[[1, 2], [3, 4, 5]], samples=4, seed=1)
    assert made == unmask.corruptions.Replace(((1, 2), (3, 4, 5)), 4, 1)
    assert set(CORRUPTIONS) == {"gaussian", "uniform", "rome", "mask", "mean", "replace"}
    assert get_corruption("uniform", sigma=0.3, samples=2) == Noise(0.3, 2, 0, "uniform")


def test_steps_take_them_too(masked, facts):
    by_name, by_object = (
        trace_first(masked, facts[0], corruption=each) for each in ("mask", Mask())
    )
    assert by_name.corruption == "mask"
    assert torch.equal(by_name.logp["resid"], by_object.logp["resid"])
    own = trace_first(masked, facts[0], corruption=hide_all_before, metric=worst_token)
    assert own.corruption == "hide_all_before" and own.metric is worst_token
    assert own.clean == pytest.approx(float(by_name.clean_logp.amin()))
    grid = trace_first(masked, facts[0], run="free_running", corruption=Shuffled(2))
    assert grid.corruption == "shuffled" and grid.corrupted_logp.shape[0] == 2
    for run in ("teacher_forced", "free_running"):
        with pytest.raises(UserError, match="the corruption returned NoneType: expected"):
            trace_first(masked, facts[0], corruption=lambda *_: None, run=run)
    with pytest.raises(UserError, match="a str was given: expected an unmask.Fact"):
        unmask.trace_steps(masked, "Now Ada likes")


def test_the_window_follows_the_depth(model, masked, facts):
    assert [default_window(layers) for layers in (1, 2, 6, 12, 20, 21, 48)] == [
        1, 1, 3, 6, 10, 10, 10,
    ]  # fmt: skip
    found, half = (trace(model, parts=("mlp", "attn"), window=each) for each in (None, 2))
    assert found.window == 2
    for part in ("mlp", "attn"):
        assert torch.equal(found.logp[part], half.logp[part])
    guess = unmask.estimate_effects(model, found.tokens, SUBJECT, ANSWER, corruption="mask")
    assert guess.window == 2
    grid = trace_first(masked, facts[0], parts=("mlp",))
    assert grid.window == default_window(masked.net.config.layers) == 1


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"corruption": "mask=2"}, "corruption 'mask' takes no number"),
        ({"corruption": "replace"}, "but none were given: name their token ids"),
        ({"corruption": Mask}, "corruption was given as the class Mask: expected an object"),
        ({"corruption": lambda *given: 3}, "the corruption returned int: expected"),
    ],
)
def test_mistakes_are_sentences(model, settings, said):
    with pytest.raises(UserError, match=said):
        trace(model, **settings)


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        (lambda logp, clean, corrupted, which: logp.sum(), r"returned \(\): expected a tensor of"),
        (lambda logp, clean, corrupted, which: 1.0, "the metric returned float: expected"),
    ],
)
def test_what_a_metric_returns_is_checked(model, metric, said):
    grid = trace(model, metric=metric)
    with pytest.raises(UserError, match=said):
        grid.effects("mlp")


def test_a_part_that_was_not_traced(model):
    grid = trace(model, parts=("mlp", "resid"))
    for read in (grid.effects, grid.values):
        with pytest.raises(UserError, match="part 'foo' was not traced: known: mlp, resid"):
            read("foo")
