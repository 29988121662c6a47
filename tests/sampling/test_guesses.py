"""What a model would say at open positions, kept on demand; activations by denoising step."""

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import unmask
from tests.conftest import build
from tests.representation.facts import make_model
from unmask import Trajectory, UserError
from unmask.net.model import Model
from unmask.sampling.trajectory import show_token

PROMPTS = [[5, 6, 7], [8, 9]]
KINDS = ("masked", "causal", "uniform", "hybrid")


def make_kind(kind: str) -> Model:
    if kind in ("masked", "causal"):
        return make_model(kind=kind)
    # A mask comes after the tokens that have logits.
    return build(kind=kind, vocab_size=40, context=16, num_logits=39 if kind == "hybrid" else None)


@pytest.mark.parametrize("kind", ["masked", "causal"])
@pytest.mark.parametrize("how", [{}, {"temperature": 1.0}, {"block": 4, "steps": 6}])
def test_guesses_are_what_the_network_says_at_each_state(kind, how):
    model = make_model(kind=kind)
    how = {"steps": 5, "length": 12, "seed": 2} | how
    drawn = unmask.sample(model, PROMPTS, guesses=4, **how)
    plain = unmask.sample(model, PROMPTS, **how)
    assert torch.equal(drawn.tokens, plain.tokens) and plain.guess_ids is None
    assert len(drawn.guess_ids) == drawn.num_steps == len(drawn.states) - 1
    checked = 0
    for step in range(1, drawn.num_steps + 1):
        guesses, state = drawn.guesses(step), drawn.states[step - 1]
        wrote = drawn.committed_at == step
        assert bool((guesses.open | ~wrote).all()), "what is written was open"
        logits = model.logits(state) if kind == "masked" else model.net(state)[:, :-1]
        if kind == "masked":
            logits[..., model.mask_id] = -torch.inf
            assert not bool((guesses.open & (state != model.mask_id)).any())
        else:
            logits = torch.cat((logits[:, :1], logits), 1)
        p, ids = logits.double().softmax(-1).topk(4, dim=-1)
        # The end token is not allowed everywhere; without it the order is the network's.
        same = guesses.open & (ids == guesses.ids).all(-1)
        torch.testing.assert_close(guesses.p[same], p[same].float(), atol=1e-5, rtol=1e-4)
        checked += int(same.sum())
        assert bool((guesses.p[..., :-1] >= guesses.p[..., 1:]).all())
        sure = wrote & (guesses.ids[..., 0] == drawn.tokens)
        torch.testing.assert_close(guesses.p[sure][:, 0].double(), drawn.confidence[sure])
    assert checked > 0.8 * int((drawn.guess_ids[..., 0] >= 0).sum()) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_keeps_guesses_and_announces_its_steps(kind):
    model, prompts = make_kind(kind), [[5, 6, 7], [8, 9, 4]]
    with model.net.capture("layers.0.resid_out", "logits", steps="all") as taken:
        drawn = unmask.sample(model, prompts, steps=3, length=6, guesses=2)
    assert sorted(taken) == list(range(1, drawn.num_steps + 1))
    assert drawn.guess_ids.shape == (drawn.num_steps, 2, 6, 2)
    assert all(set(sites) == {"layers.0.resid_out", "logits"} for sites in taken.values())
    assert not bool(drawn.guesses(1).open[:, :3].any()), "the prompt is given"
    assert model.net.taps.step is None


def test_rows_that_are_sampled_apart_have_their_guesses():
    """Rows with another number of blocks take other steps; each keeps those it had alone."""
    model, seen = make_model(), []
    how = {"block": 4, "steps": 4, "guesses": 3, "length": [11, 7]}
    both = unmask.sample(model, [PROMPTS[0]] * 2, watch=seen.append, **how)
    for row, length in enumerate(how["length"]):
        alone = unmask.sample(model, PROMPTS[0], **(how | {"length": length}))
        steps = len(alone.guess_ids)
        assert torch.equal(both.guess_ids[:steps, row, :length], alone.guess_ids[:, 0])
        assert bool((both.guess_ids[steps:, row] == -1).all())
    assert all(each.guess_ids.shape[1:] == (2, 11, 3) for each in seen)


def test_guesses_of_cached_sampling():
    model, how = make_model(), {"steps": 6, "length": 14, "block": 4, "guesses": 3}
    prompts = [[5, 6], [7, 8]]
    plain = unmask.sample(model, prompts, **how)
    exact = unmask.sample(model, prompts, cache="exact", **how)
    assert torch.equal(plain.guess_ids, exact.guess_ids)
    near = unmask.sample(model, prompts, cache="approximate", **how)
    assert torch.equal(near.guess_ids[0], plain.guess_ids[0]), "the first step runs everything"
    assert near.guess_ids.shape == plain.guess_ids.shape


def test_guesses_survive_a_file(tmp_path):
    model = make_model()
    drawn = unmask.sample(model, PROMPTS, steps=3, length=8, guesses=2)
    drawn.save(tmp_path / "drawn.safetensors")
    read = Trajectory.load(tmp_path / "drawn.safetensors", model.tokenizer)
    assert torch.equal(read.guess_ids, drawn.guess_ids) and read.mask_id == model.mask_id
    assert torch.equal(read.guess_p, drawn.guess_p)
    position = int(drawn.guesses(1).open[0].nonzero()[0])
    assert read.guesses(1).at(position) == drawn.guesses(1).at(position)
    text, p = drawn.guesses(1).at(position)[0]
    assert text == show_token(int(drawn.guess_ids[0, 0, position, 0]), model.tokenizer)
    assert 0 < p <= 1 and show_token(model.tokenizer.end_id, model.tokenizer) == "⏎"
    assert drawn.guesses(1).at(0) == []
    assert f"row 0, position {position}: {text!r}" in repr(drawn.guesses(1))


def test_what_is_wrong_with_guesses(monkeypatch):
    model = make_model()
    drawn = unmask.sample(model, PROMPTS, steps=2, length=8)
    with pytest.raises(UserError, match="keeps no guesses: sample it with guesses=5"):
        drawn.guesses(1)
    kept = unmask.sample(model, PROMPTS, steps=2, length=8, guesses=10**6)
    assert kept.guess_ids.shape[-1] == model.net.config.logit_rows
    for step in (0, 3, 1.5):
        with pytest.raises(UserError, match=f"step {step} were asked for: expected 1 to 2"):
            kept.guesses(step)
    with pytest.raises(UserError, match="'guesses' is -1"):
        unmask.sample(model, PROMPTS, guesses=-1)
    monkeypatch.setattr("unmask.sampling.texts.MOST_GUESS_BYTES", 2 * 8 * 2 * 3 * 8 - 1)
    with pytest.raises(UserError, match="3 guesses at 8 positions of 2 rows in 2 steps take"):
        unmask.sample(model, PROMPTS, steps=2, length=8, guesses=3)
    with pytest.raises(UserError, match="ask for fewer guesses, rows, steps or positions"):
        unmask.sample(make_model(kind="causal"), PROMPTS, length=12, guesses=3)
    assert unmask.sample(model, PROMPTS, steps=2, length=8, guesses=2).guess_ids is not None


@pytest.mark.parametrize("how", [{}, {"plan": "cosine"}, {"plan": "llada"}])
def test_steps_are_counted_with_and_without_states(tmp_path, how):
    model, path = make_model(), tmp_path / "drawn.safetensors"
    for keep_states in (True, False):
        drawn = unmask.sample(model, PROMPTS, steps=40, length=8, keep_states=keep_states, **how)
        assert drawn.num_steps == 40 and "40 steps" in repr(drawn)
        drawn.save(path)
        assert Trajectory.load(path).num_steps == 40
        # Files of before the number was kept: the states tell, or the last step that wrote.
        with safe_open(path, "pt") as file:
            notes = {k: note for k, note in file.metadata().items() if k != "num_steps"}
        save_file(load_file(path), path, notes)
        written = int(drawn.committed_at.max())
        assert Trajectory.load(path).num_steps == (40 if keep_states else written)
