"""States are those of a whole run, whatever the batches; a stream goes on where another stopped."""

import dataclasses

import pytest
import torch
from torch import Tensor

import unmask
from tests.conftest import build, make_model
from unmask.base.errors import UserError
from unmask.dictionaries.states import StateBatch, join_batches
from unmask.net.model import Model
from unmask.sampling.canvas import encode_prompt

SENTENCES = ["The caves of Orsel are deep.", "The baker sings.", "Deep are the caves.", "The baker"]
SITES = ["layers.0.mlp_key", "layers.1.attn_z", "layers.1.resid_in"]


def collect(stream) -> StateBatch:
    return join_batches(list(stream))


def lay_out(states: StateBatch, step: int) -> dict[int, Tensor]:
    """The canvas of each text at a step, put together from what batches say of positions."""
    canvases = {}
    for text in states.text.unique().tolist():
        own = states.pick((states.text == text) & (states.step == step))
        if len(own):
            canvases[text] = own.token[own.position.argsort()]
    return canvases


def check_against_whole_runs(model: Model, states: StateBatch, sites: list[str]) -> None:
    for step in states.step.unique().tolist():
        for text, canvas in lay_out(states, step).items():
            with model.net.capture(*sites) as taken, torch.no_grad():
                model.logits(canvas[None])
            own = states.pick((states.text == text) & (states.step == step))
            for site in sites:
                expected = taken[site][0].flatten(1)[own.position]
                torch.testing.assert_close(own.states[site], expected, atol=1e-4, rtol=1e-4)
            is_masked = canvas == (-1 if model.mask_id is None else model.mask_id)
            assert own.is_masked.tolist() == is_masked[own.position].tolist()
            assert own.share.tolist() == pytest.approx(
                [float(is_masked.double().mean())] * len(own)
            )


@pytest.mark.parametrize("causal", [False, True])
def test_noised_states_are_those_of_a_whole_run(causal):
    model = make_model(causal=causal)
    stream = unmask.activations(model, SITES, SENTENCES, batch=7, buffer=3, rows=2, epochs=1)
    states = collect(stream)
    check_against_whole_runs(model, states, SITES)
    # Every position of every text is there once, and says what is written there in the end.
    for text, sentence in enumerate(SENTENCES):
        own = states.pick(states.text == text)
        order = own.position.argsort()
        assert own.written[order].tolist() == encode_prompt(model, sentence, added="both")
        assert own.position[order].tolist() == list(range(len(own)))
    unmasked = ~states.is_masked
    assert (states.token == states.written)[unmasked].all()
    assert bool(states.is_masked.any()) is not causal


@pytest.mark.parametrize("site", ["embed", "final", "logits"])
def test_sites_below_and_above_the_layers(site):
    model = build("tiny", "shifted")
    rows = torch.arange(24).view(3, 8)
    states = collect(unmask.activations(model, site, rows))
    check_against_whole_runs(model, states, [site])


@pytest.mark.parametrize("given", ["trajectory", "masks"])
def test_denoising_states_are_those_that_steps_see(given):
    model = make_model()
    texts = ["The [MASK]*4 deep.", "The baker [MASK]*3."]
    drawn = unmask.infill(model, texts, steps=3)
    source, more = (drawn, {}) if given == "trajectory" else (texts, {"steps": 3})
    stream = unmask.activations(model, SITES, source, states="denoising", batch=5, buffer=6, **more)
    states = collect(stream)
    check_against_whole_runs(model, states, SITES)
    assert drawn.states is not None
    for step in (1, 2, 3):
        for text, canvas in lay_out(states, step).items():
            assert canvas.tolist() == drawn.states[step - 1, text, : len(canvas)].tolist()
            own = states.pick((states.text == text) & (states.step == step))
            assert own.written.tolist() == drawn.tokens[text][own.position].tolist()


def test_the_network_stops_at_the_last_site():
    model = make_model()
    stream = unmask.activations(model, "layers.0.resid_out", SENTENCES)
    broken = model.net.block(1)
    broken.forward = lambda *given: pytest.fail("a layer above the site was run")  # ty: ignore
    assert len(collect(stream))


def equal(one: StateBatch, other: StateBatch) -> bool:
    return all(
        torch.equal(getattr(one, each.name), getattr(other, each.name))
        for each in dataclasses.fields(one)[1:]
    ) and all(torch.equal(x, other.states[site]) for site, x in one.states.items())


@pytest.mark.parametrize("states", ["noised", "denoising"])
def test_a_stream_goes_on_where_another_stopped(states):
    model = make_model()
    more = {"steps": 2, "length": 24} if states == "denoising" else {}
    given = {"states": states, "batch": 6, "buffer": 4, "epochs": 2, **more}
    whole = list(unmask.activations(model, SITES, SENTENCES, **given))
    for taken in (1, 3, len(whole) - 1):
        stream = unmask.activations(model, SITES, SENTENCES, **given)
        first = iter(stream)
        for _ in range(taken):
            next(first)
        rest = list(unmask.activations(model, SITES, SENTENCES, place=stream.place, **given))
        assert len(rest) == len(whole) - taken
        assert all(map(equal, rest, whole[taken:]))


def test_shards_share_the_blocks():
    model = make_model()
    given = {"batch": 6, "buffer": 1, "epochs": 3}
    whole = list(unmask.activations(model, SITES, SENTENCES, **given))
    parts = [
        list(unmask.activations(model, SITES, SENTENCES, shard=(i, 2), **given)) for i in (0, 1)
    ]
    assert all(parts)
    assert len(whole) == sum(map(len, parts))
    for one in (*parts[0], *parts[1]):
        assert sum(equal(one, other) for other in whole) == 1


def test_epochs_have_noise_and_order_of_their_own():
    model = make_model()
    stream = unmask.activations(model, SITES, SENTENCES, batch=10_000, epochs=2)
    first, second = list(stream)
    assert len(first) == len(second)
    assert not torch.equal(first.text, second.text)
    for text in range(len(SENTENCES)):
        shares = [float(each.share[each.text == text][0]) for each in (first, second)]
        if shares[0] != shares[1]:
            return
    pytest.fail("no text was noised otherwise in the second epoch")


def test_wrong_requests_are_refused():
    model, causal = make_model(), make_model(causal=True)
    site = "layers.0.resid_out"
    for call, words in [
        (lambda: unmask.activations(model, "layers.0.attn_scores", SENTENCES), "pair of positions"),
        (lambda: unmask.activations(model, "layers.9.resid_out", SENTENCES), "does not exist"),
        (lambda: unmask.activations(model, site, []), "no texts"),
        (lambda: unmask.activations(model, site, SENTENCES, steps=3), "nothing is sampled"),
        (lambda: unmask.activations(causal, site, SENTENCES, states="denoising"), "no mask token"),
        (lambda: unmask.activations(model, site, SENTENCES, shard=(2, 2)), "shard"),
        (lambda: unmask.activations(model, site, SENTENCES, batch=0), "batch"),
        (
            lambda: list(
                unmask.activations(
                    model, site, ["The [MASK]", "The"], states="denoising", steps=2, length=6
                )
            ),
            "beside texts without",
        ),
    ]:
        with pytest.raises(UserError, match=words):
            call()
