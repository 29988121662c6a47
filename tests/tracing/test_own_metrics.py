"""Metrics and corruptions: by name, as an object, or as a function written here."""

from dataclasses import dataclass

import pytest
import torch

import unmask
from tests.conftest import lively
from tests.tracing.learned import LENGTH
from unmask import UserError, preset, trace_tokens
from unmask.net.model import Blueprint, Model
from unmask.tracing.corruption import CORRUPTIONS, Corrupted, Mask, Mean, Noise, get_corruption
from unmask.tracing.metrics import METRICS
from unmask.tracing.settings import Tracing
from unmask.tracing.windows import default_window

L, V, SUBJECT = 9, 40, (2, 4)
ANSWER = {7: 3, 8: 5}


@pytest.fixture(scope="module")
def model() -> Model:
    config = preset("tiny", vocab_size=V, layers=4)
    return Model("made", lively(config), Blueprint(config, "masked", V - 1))


@pytest.fixture(scope="module")
def tokens() -> list[int]:
    row = torch.randint(0, V - 1, (L,), generator=torch.Generator().manual_seed(0)).tolist()
    return [*row[:7], V - 1, V - 1]


def worst_token(logp, clean, corrupted, which):
    """The log-probability of the least likely token of the answer."""
    return logp[..., which, :].nan_to_num(0.0).amin(-1)


def regained(logp, clean, corrupted, which):
    """Which share of the lost log-probability is back."""
    joint, high, low = (x[..., which, :].nansum(-1) for x in (logp, clean, corrupted))
    return (joint - low.mean()) / (high.mean() - low.mean())


def test_a_metric(model, tokens):
    settings = {"parts": ("mlp",), "window": 2, "corruption": Noise(sigma=0.5, samples=3)}
    own = trace_tokens(model, tokens, SUBJECT, ANSWER, metric=worst_token, **settings)
    named = trace_tokens(model, tokens, SUBJECT, ANSWER, metric="logp", **settings)
    assert torch.equal(own.values("mlp"), named.logp["mlp"][..., 0, :].double().amin(-1))
    assert own.metric is worst_token and own.clean == float(named.clean_logp.amin())
    assert own.total_effect == own.clean - own.corrupted
    torch.testing.assert_close(
        own.effects("mlp"), own.values("mlp").mean(-1) - own.corrupted_values().mean()
    )
    expected = own.values("mlp", "logp").mean(-1) - own.corrupted_values("logp").mean()
    torch.testing.assert_close(own.effects("mlp", "logp"), expected)
    # Any grid can be scored by it afterwards, and by a name again.
    assert torch.equal(named.values("mlp", worst_token), own.values("mlp"))
    assert torch.equal(own.values("mlp", "logp"), named.values("mlp"))
    assert named.clean_value(regained) == pytest.approx(1.0)
    assert float(named.corrupted_values(regained).mean()) == pytest.approx(0.0)


def test_a_metric_of_the_foil(model, tokens):
    foil = {7: 11}
    grid = trace_tokens(
        model, tokens, SUBJECT, ANSWER, parts=("mlp",), window=2, corruption="mean",
        metric=worst_token, foil=foil,
    )  # fmt: skip
    alone = trace_tokens(
        model, tokens, SUBJECT, foil, parts=("mlp",), window=2, corruption="mean", metric="logp"
    )
    foils = grid.values("mlp", which=1)
    torch.testing.assert_close(foils, alone.values("mlp"), atol=1e-5, rtol=0)


def test_named_metrics_are_functions_of_the_same_kind(model, tokens):
    for name, function in METRICS.items():
        foil = {7: 11, 8: 12}
        by_name, by_function = (
            trace_tokens(
                model, tokens, SUBJECT, ANSWER, parts=("resid",), window=1, corruption="mask",
                metric=each, foil=foil,
            )
            for each in (name, function)
        )  # fmt: skip
        assert torch.equal(by_name.values("resid"), by_function.values("resid"))
    with pytest.raises(UserError, match="compares the answer with another one"):
        trace_tokens(model, tokens, SUBJECT, ANSWER, metric=METRICS["logit_difference"])


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


def test_a_corruption(model, tokens):
    given = (model, tokens, SUBJECT, ANSWER, Tracing(parts=("resid",), window=1))
    own = trace_tokens(*given, corruption=hide_all_before)
    corrupted = hide_all_before(model, torch.tensor(tokens), range(*SUBJECT))
    ready = trace_tokens(*given, corruption=corrupted)
    assert own.corruption == "hide_all_before" and ready.corruption == "given"
    assert torch.equal(own.logp["resid"], ready.logp["resid"])
    drawn = trace_tokens(*given, corruption=Shuffled(3))
    assert drawn.corruption == "shuffled" and drawn.corrupted_logp.shape[0] == 3
    guess = unmask.estimate_effects(*given, corruption=hide_all_before)
    assert guess.corruption == "hide_all_before" and guess.estimate


def test_corruptions_by_name_are_the_objects(model, tokens):
    given = (model, tokens, SUBJECT, ANSWER, Tracing(parts=("resid",), window=1))
    noise = {"gaussian": Noise(), "uniform": Noise(shape="uniform"), "rome": Noise(stream="rome")}
    for name, made in (noise | {"mask": Mask(), "mean": Mean()}).items():
        by_name, by_object = (trace_tokens(*given, corruption=each) for each in (name, made))
        assert by_name.corruption == by_object.corruption == name
        assert torch.equal(by_name.logp["resid"], by_object.logp["resid"])
    assert torch.equal(
        trace_tokens(*given).logp["resid"],
        trace_tokens(*given, corruption="mean").logp["resid"],
    )
    made = get_corruption("replace", subjects=[[1, 2], [3, 4, 5]], samples=4, seed=1)
    assert made == unmask.corruptions.Replace(((1, 2), (3, 4, 5)), 4, 1)
    assert set(CORRUPTIONS) == {"gaussian", "uniform", "rome", "mask", "mean", "replace"}
    assert get_corruption("uniform", sigma=0.3, samples=2) == Noise(0.3, 2, 0, "uniform")


def test_steps_take_them_too(masked, facts):
    settings = {"length": LENGTH, "any_answer": True, "parts": ("resid",)}
    (by_name,) = unmask.trace_steps(
        masked, facts[0], steps=4, at="first", corruption="mask", **settings
    )
    (by_object,) = unmask.trace_steps(
        masked, facts[0], steps=4, at="first", corruption=Mask(), **settings
    )
    assert by_name.corruption == "mask"
    assert torch.equal(by_name.logp["resid"], by_object.logp["resid"])
    (own,) = unmask.trace_steps(
        masked, facts[0], steps=4, at="first", corruption=hide_all_before, metric=worst_token,
        **settings,
    )  # fmt: skip
    assert own.corruption == "hide_all_before" and own.metric is worst_token
    assert own.clean == pytest.approx(float(by_name.clean_logp.amin()))
    free = {"run": "free_running", "corruption": Shuffled(2)}
    (grid,) = unmask.trace_steps(masked, facts[0], steps=4, at="first", **free, **settings)
    assert grid.corruption == "shuffled" and grid.corrupted_logp.shape[0] == 2


def test_the_window_follows_the_depth(model, tokens, masked, facts):
    assert [default_window(layers) for layers in (1, 2, 6, 12, 20, 21, 48)] == [
        1, 1, 3, 6, 10, 10, 10,
    ]  # fmt: skip
    settings = {"corruption": "mask", "parts": ("mlp", "attn")}
    found = trace_tokens(model, tokens, SUBJECT, ANSWER, **settings)
    half = trace_tokens(model, tokens, SUBJECT, ANSWER, window=2, **settings)
    assert found.window == 2
    for part in ("mlp", "attn"):
        assert torch.equal(found.logp[part], half.logp[part])
    assert unmask.estimate_effects(model, tokens, SUBJECT, ANSWER, **settings).window == 2
    (grid,) = unmask.trace_steps(
        masked, facts[0], steps=4, at="first", any_answer=True, length=LENGTH
    )
    assert grid.window == default_window(masked.net.config.layers) == 1


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"corruption": "noisy"}, "corruption 'noisy' is unknown: known: gaussian, uniform"),
        ({"corruption": "mask=2"}, "corruption 'mask' takes no number"),
        ({"corruption": "replace"}, "but none were given: name their token ids"),
        ({"corruption": Mask}, "corruption was given as the class Mask: expected an object"),
        ({"corruption": 3}, "'corruption' is 3, expected a text or Corruption or"),
        ({"corruption": lambda *given: 3}, "the corruption returned int: expected"),
        ({"metric": 3}, "'metric' is 3, expected a text or Callable"),
        ({"window": 2.5}, "'window' is 2.5, expected an integer"),
    ],
)
def test_mistakes_are_sentences(model, tokens, settings, said):
    with pytest.raises(UserError) as caught:
        trace_tokens(model, tokens, SUBJECT, ANSWER, **settings)
    assert said in str(caught.value)


def test_what_a_metric_returns_is_checked(model, tokens):
    for metric, said in (
        (lambda logp, clean, corrupted, which: logp.sum(), r"returned \(\): expected a tensor of"),
        (lambda logp, clean, corrupted, which: 1.0, "the metric returned float: expected"),
    ):
        grid = trace_tokens(
            model, tokens, SUBJECT, ANSWER, parts=("mlp",), window=1, corruption="mask",
            metric=metric,
        )  # fmt: skip
        with pytest.raises(UserError, match=said):
            grid.effects("mlp")


def test_a_part_that_was_not_traced(model, tokens):
    grid = trace_tokens(
        model, tokens, SUBJECT, ANSWER, parts=("mlp", "resid"), window=1, corruption="mask"
    )
    for read in (grid.effects, grid.values):
        with pytest.raises(UserError, match="part 'foo' was not traced: known: mlp, resid"):
            read("foo")


def test_mistakes_of_steps(masked, facts):
    for run in ("teacher_forced", "free_running"):
        with pytest.raises(UserError, match="the corruption returned NoneType: expected"):
            unmask.trace_steps(
                masked, facts[0], steps=4, corruption=lambda *_: None, run=run, any_answer=True,
                length=LENGTH,
            )  # fmt: skip
    with pytest.raises(UserError, match="a str was given: expected an unmask.Fact"):
        unmask.trace_steps(masked, "Now Ada likes")
