"""Guidance by a classifier and by probes through the public calls."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import unmask
from tests.commands import run
from tests.conftest import build, lively, make_model
from tests.laws.test_sampling import ROWS, make
from tests.sampling.states import V
from unmask import UserError
from unmask.net.model import Blueprint, Model
from unmask.noise.guidance import find_log_rate
from unmask.sampling.probes import StateProbe, find_mean_state, train_probe

LENGTH = 12
DRAWN: dict[str, Any] = {"temperature": 1.0, "order": "random", "plan": "linear", "length": LENGTH}


def make_rows(seed: int, number: int = 200) -> tuple[list[list[int]], list[bool]]:
    """Rows of tokens, half of them made of low ones mostly."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(0, V - 1, (number, LENGTH), generator=generator)
    labels = [i % 2 == 0 for i in range(number)]
    rows[::2] = torch.where(torch.rand(rows[::2].shape, generator=generator) < 0.7, rows[::2] % 5,
                            rows[::2])  # fmt: skip
    return rows.tolist(), labels


@pytest.fixture(scope="module")
def probe(model) -> StateProbe:
    return train_probe(model, *make_rows(0))


def few_low(tokens: Tensor, t: Tensor) -> Tensor:
    """A classifier by rule: the more low tokens, the likelier."""
    return torch.nn.functional.logsigmoid((tokens < 5).double().sum(-1) - 6)


def test_a_probe_reads_the_attribute_off_noised_texts(model, probe):
    rows, labels = make_rows(1)
    tokens, is_low = torch.tensor(rows), torch.tensor(labels)
    shares = []
    for masked in (0, 6, 10):
        xt = torch.where(torch.arange(LENGTH) < masked, V - 1, tokens)
        p = probe(xt, torch.full((len(xt),), masked / LENGTH)).exp()
        shares.append(float(((p > 0.5) == is_low).double().mean()))
    assert min(shares[:2]) > 0.85 and min(shares[:2]) > shares[2] > 0.55
    again = train_probe(model, *make_rows(0))
    assert torch.equal(again.weight, probe.weight) and again.bias == probe.bias


def test_first_order_is_the_slope_of_the_embeddings(model, probe):
    """Against a small step towards each token's embedding."""
    xt = torch.tensor(make_rows(2, 2)[0])
    xt[:, ::3] = V - 1
    t, gains, table = torch.zeros(2), probe.expand(xt, torch.zeros(2)), model.net.embedding.weight
    assert gains.shape == (2, LENGTH, V - 1)
    for row, column, token in ((0, 0, 3), (0, 4, 17), (1, 3, 0), (1, 11, 38)):
        at = torch.zeros(2, LENGTH, 1)
        at[row, column] = 1e-2
        step = at * (table[token] - table[xt[row, column]])
        sides = []
        for sign in (1, -1):
            with model.net.patch({"embed": lambda x, sign=sign, step=step: x + sign * step}):
                sides.append(probe(xt, t)[row])
        slope = float(sides[0] - sides[1]) / 2e-2
        assert slope == pytest.approx(float(gains[row, column, token]), rel=2e-2, abs=2e-3)
    same = gains.gather(-1, xt.clamp(max=V - 2)[..., None])[..., 0][xt != V - 1]
    assert same.abs().max() < 1e-9, "a token in its own place adds nothing"


@pytest.mark.parametrize(
    "judged,calls", [(4, 4 + 4 * (12 + 9 + 6 + 3)), ("first-order", 4 + 2 * 4)]
)
def test_a_probe_guides_and_its_passes_are_counted(model, probe, judged, calls):
    settings = {"steps": 4, **DRAWN}
    plain = unmask.sample(model, [[]] * 32, **settings)
    guided = unmask.sample(
        model, [[]] * 32, classifier=probe, judged=judged, classifier_guidance=3.0, **settings
    )
    assert plain.calls == 4 and guided.calls == calls
    t = torch.zeros(32)
    assert probe(guided.tokens, t).mean() > probe(plain.tokens, t).mean() + 0.3
    low, before = ((each.tokens < 5).double().mean() for each in (guided, plain))
    assert low > before


def test_strength_by_step(model):
    """Until guidance sets in, every state is the plain one's; strength 0 changes no bit."""
    settings = {"steps": 4, "judged": 8, **DRAWN}
    plain = unmask.sample(model, [[1]] * 8, **settings)
    idle = unmask.sample(model, [[1]] * 8, classifier=few_low, classifier_guidance=0, **settings)
    assert torch.equal(plain.states, idle.states) and torch.equal(plain.entropy, idle.entropy)
    late = unmask.sample(
        model, [[1]] * 8, classifier=few_low, classifier_guidance=[0, 0, 0, 9], **settings
    )
    assert torch.equal(late.states[:4], plain.states[:4])
    assert (late.tokens < 5).sum() > (plain.tokens < 5).sum() and late.calls == 4


@pytest.mark.parametrize("more", [{}, {"corrector": "uniform=2"}, {"cache": "exact"}, {"block": 6}])
def test_a_row_is_the_same_alone(model, more):
    settings = {"steps": 4, "classifier": few_low, "classifier_guidance": 2.0, **DRAWN, **more}
    together = unmask.sample(model, [[1], [2], [3, 4]], **settings, fixed={5: [7]})
    for row, prompt in enumerate(([1], [2], [3, 4])):
        alone = unmask.sample(model, [prompt], **settings, fixed={5: [7]})
        assert torch.equal(alone.states[:, 0], together.states[:, row])
    assert (together.tokens[:, 5] == 7).all() and (together.tokens != V - 1).all()


def test_rates_of_guidance_by_the_prompt():
    """One open position, two steps: it is written in the first with 1 - (1/2)^Z."""
    model, guidance = make("masked"), 4.0
    how = {"length": 2, "steps": 2, "plan": "ancestral", "order": "random", "temperature": 1.0}
    c, u = (
        model.logits(torch.tensor([each]))[0, 1].double().log_softmax(-1)
        for each in ([1, 2], [2, 2])
    )
    z = float(find_log_rate(c, u, guidance).exp())
    assert z > 1.2, "it makes a difference"
    for rates, chance in ((True, 1 - 0.5**z), (False, 0.5)):
        drawn = unmask.sample(model, [[1]] * ROWS, guidance=guidance, rates=rates, **how)
        share = float((drawn.committed_at[:, 1] == 1).double().mean())
        assert share == pytest.approx(chance, abs=5 * math.sqrt(0.25 / ROWS))
        cached = unmask.sample(
            model, [[1]] * 99, guidance=guidance, rates=rates, cache="exact", **how
        )
        assert torch.equal(cached.states, drawn.states[:, :99])
    plain, off = (unmask.sample(model, [[1]] * 99, rates=rates, **how) for rates in (False, True))
    assert torch.equal(plain.states, off.states), "without guidance there are no rates to guide"


def test_a_probe_in_a_file(model, probe, tmp_path):
    path = tmp_path / "low.safetensors"
    probe.save(path)
    again = StateProbe.load(path, model)
    assert torch.equal(again.weight, probe.weight) and again.bias == probe.bias
    assert again.site == probe.site == "layers.1.resid_out"
    by_file, by_probe = (
        unmask.sample(model, [[1]], classifier=each, judged="first-order", **DRAWN)
        for each in (str(path), probe)
    )
    assert torch.equal(by_file.states, by_probe.states)
    for change in ({"width": 32}, {"layers": 1}):
        other = build(vocab_size=V, context=32, **change)
        with pytest.raises(UserError, match="but the model .* has .* it was trained on"):
            StateProbe.load(path, other)
    with pytest.raises(UserError, match="is not there"):
        unmask.sample(model, [[1]], classifier=tmp_path / "no", length=LENGTH)
    (tmp_path / "broken").write_text("x")
    with pytest.raises(UserError, match="cannot be read as a probe"):
        StateProbe.load(tmp_path / "broken", model)


def test_guidance_and_correctors_from_the_command_line(tmp_path):
    made = make_model()
    unmask.save(made, tmp_path / "made")
    train_probe(made, ["The caves", "A cat", "The dog"], [True, False, True]).save(tmp_path / "p")
    words = ("sample", str(tmp_path / "made"), "The", "--length", "8")
    probe = ("--classifier", str(tmp_path / "p"))
    how = (
        "--judged",
        "first-order",
        "--corrector",
        "gumbel=1,0.5",
        "--classifier-guidance",
        "up=2",
    )
    done = run(*words, *probe, *how, "--steps", "2", "--json", "--temperature", "1")
    assert done.returncode == 0, done.stderr
    assert '"calls"' in done.stdout
    failed = run(*words, *probe, "--rates")
    assert failed.returncode == 2 and "needs plan 'ancestral'" in failed.stderr, failed.stderr


@pytest.mark.parametrize(
    "settings,message",
    [
        ({"rates": True}, "'rates' is on, which needs plan 'ancestral'"),
        ({"classifier": few_low, "judged": "first-order"}, "has no method expand"),
        ({"classifier": lambda x, t: t[:1]}, r"the classifier returned \(1,\)"),
        ({"classifier": lambda x, t: "no"}, "the classifier returned str"),
        ({"classifier": few_low, "length": [9, 12]}, "rows of different lengths"),
        ({"classifier": lambda x, t: t * math.nan}, "not numbers at step 1"),
    ],
)
def test_what_is_given_wrongly_is_a_sentence(model, settings, message):
    with pytest.raises(UserError, match=message):
        unmask.sample(model, [[1], [2]], **{"length": LENGTH, **settings})


def test_what_a_probe_cannot_be_trained_on_is_a_sentence(model):
    rows, labels = make_rows(0, 10)
    for given in ((rows, labels[:3]), (rows, [True] * 10), ([[], [1]], [True, False])):
        with pytest.raises(UserError, match="expected a label for each text"):
            train_probe(model, *given)
    with pytest.raises(UserError, match="expected a state of"):
        train_probe(model, rows, labels, site="layers.0.mlp_key")
    with pytest.raises(UserError, match="does not exist"):
        train_probe(model, rows, labels, site="layers.99.resid_out")
    with pytest.raises(UserError, match="a classifier was given for a uniform model"):
        unmask.sample(make("uniform"), [[]], length=2, classifier=few_low)


def test_shorter_rows_are_read_without_their_filling(model):
    """What a probe is trained on does not depend on the batch."""
    tokens = torch.tensor([[1, 2, 3, V - 1, V - 1], [4, 5, 6, 7, 8]])
    real = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()
    both = find_mean_state(model, "layers.0.resid_out", tokens, real)
    alone = find_mean_state(model, "layers.0.resid_out", tokens[:1, :3])
    assert torch.allclose(both[0], alone[0], atol=1e-5)


def test_states_are_those_of_the_run_at_the_time_of_the_text():
    """A network that takes sigma is given it, as in `Model.logits`."""
    made = make_model()
    config = replace(made.net.config, time=True, time_input="sigma")
    net = lively(config)
    model = Model("timed", net, Blueprint(config, "masked", made.mask_id), made.tokenizer)
    tokens = torch.tensor([[5, 6, made.mask_id, 8, made.mask_id]])
    with net.capture("layers.0.resid_out") as states:
        model.logits(tokens, t=model.find_time(tokens))
    expected = states["layers.0.resid_out"].mean(1)
    torch.testing.assert_close(find_mean_state(model, "layers.0.resid_out", tokens), expected)
