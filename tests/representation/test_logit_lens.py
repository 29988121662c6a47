"""The logit lens over steps and layers: its last layer is the model, its states the sampler's."""

from dataclasses import replace

import pytest
import torch

import unmask
from tests.representation.facts import make_model
from unmask import UserError
from unmask.sampling.trajectory import show_token

TEXT = "They say[MASK]*3 is known[MASK]*2"


def test_the_last_layer_says_what_the_model_says():
    model = make_model()
    drawn = unmask.infill(model, TEXT, steps=3, seed=1)
    lens = unmask.logit_lens(model, TEXT, steps=3, seed=1, top=4)
    assert lens.steps == (1, 2, 3) and torch.equal(lens.states, drawn.states[:-1, 0])
    masked = (drawn.states[0, 0] == model.mask_id).nonzero()[:, 0].tolist()
    assert model.tokenizer.end_id not in drawn.tokens[0, masked[:-1]]
    assert lens.positions == tuple(masked)
    assert torch.equal(lens.target, drawn.tokens[0, list(lens.positions)])
    for i, state in enumerate(lens.states):
        logits = model.logits(state[None])[0, list(lens.positions)].double()
        logits[:, model.mask_id] = -torch.inf
        logp = logits.log_softmax(-1)
        torch.testing.assert_close(lens.logp[i, -1], logp.gather(-1, lens.target[:, None])[:, 0])
        assert torch.equal(lens.ids[i, -1], logp.topk(4, dim=-1).indices)
        expected = torch.distributions.Categorical(probs=logp.exp()).entropy()
        torch.testing.assert_close(lens.entropy[i, -1], expected)
    first = lens.at(lens.positions[1], step=2)
    assert len(first) == model.net.config.layers and len(first[0]) == 4
    assert first[-1][0][0] == show_token(int(lens.ids[1, -1, 1, 0]), model.tokenizer)
    again = unmask.logit_lens(model, drawn, top=4)
    assert torch.equal(again.logp, lens.logp) and torch.equal(again.rank, lens.rank)


def test_what_comes_after_the_end_is_not_read():
    model = make_model()
    drawn = unmask.sample(model, "They say", steps=2, length=12)
    front, end_id = int((drawn.committed_at == 0).sum()), model.tokenizer.end_id
    tokens = drawn.tokens.clone()
    tokens[0, front + 3 :] = end_id
    tokens[0, front : front + 3][tokens[0, front : front + 3] == end_id] = 5
    ended = replace(drawn, tokens=tokens, states=torch.cat((drawn.states[:-1], tokens[None])))
    lens = unmask.logit_lens(model, ended)
    assert lens.positions == tuple(range(front, front + 4)) and lens.followed.endswith("⏎")
    assert unmask.logit_lens(model, ended, positions=[11]).positions == (11,)


@pytest.mark.parametrize("kind", ["masked", "causal"])
def test_each_layer_is_the_stream_read_as_if_it_were_the_last(kind):
    model = make_model(kind=kind)
    text = TEXT if kind == "masked" else "They say Ada Quill is known"
    lens = unmask.logit_lens(model, text)
    tokens = model.tokens(text)
    rows = [model.row_of(position) for position in lens.positions]
    with model.net.capture("layers.*.resid_out") as streams:
        model.net(tokens)
    for layer in range(model.net.config.layers):
        logits = model.net.unembed(streams[f"layers.{layer}.resid_out"])[0, rows].double()
        if model.mask_id is not None:
            logits[:, model.mask_id] = -torch.inf
        logp = logits.log_softmax(-1)
        torch.testing.assert_close(lens.logp[0, layer], logp.gather(-1, lens.target[:, None])[:, 0])
        rank = 1 + (logp > logp.gather(-1, lens.target[:, None])).sum(-1)
        assert torch.equal(lens.rank[0, layer], rank)
    if kind == "masked":
        assert bool((lens.rank[0, -1] == 1).all()), "what the model itself would say is followed"
    else:
        assert torch.equal(lens.target, tokens[0, 1:])


def test_a_causal_model_is_read_where_it_writes():
    model = make_model(kind="causal")
    lens = unmask.logit_lens(model, "They say Ada", steps=4)
    written = unmask.sample(model, "They say Ada", length=len(lens.states[0]))
    assert len(lens.positions) <= 4 and torch.equal(lens.states[0], written.tokens[0])
    assert bool((lens.rank[0, -1] == 1).all()), "drawn greedily"


def test_a_patch_of_a_layer_reaches_the_lens_and_one_of_the_head_is_refused():
    model = make_model()
    plain = unmask.logit_lens(model, TEXT)
    with model.net.patch({"layers.1.mlp_out": torch.zeros_like}):
        patched = unmask.logit_lens(model, TEXT)
    assert torch.equal(patched.ids[:, 0], plain.ids[:, 0])
    assert not torch.equal(patched.entropy[:, 1:], plain.entropy[:, 1:])
    with model.net.patch({"layers.1.mlp_out": torch.zeros_like}, steps=2):
        stepped = unmask.logit_lens(model, TEXT, steps=2)
    assert torch.equal(stepped.entropy[0], plain.entropy[0])
    for site in ("final", "logits"):
        with pytest.raises(UserError, match=f"captured at {site}, but the logit lens"):
            with model.net.capture(site):
                unmask.logit_lens(model, TEXT)


@pytest.mark.parametrize(
    ("given", "how", "said"),
    [
        ("They say Ada", {}, "the text holds no mask"),
        (TEXT, {"positions": [99]}, "the positions are 99: expected some of 0 to"),
        (TEXT, {"positions": []}, "the positions are none"),
        (TEXT, {"temperature": 1.0}, "temperature were given without steps"),
        (TEXT, {"top": 0}, "'top' is 0"),
    ],
)
def test_mistakes(given, how, said):
    with pytest.raises(UserError, match=said):
        unmask.logit_lens(make_model(), given, **how)


def test_mistakes_with_trajectories():
    model = make_model()
    drawn = unmask.infill(model, TEXT, steps=2, keep_states=False)
    with pytest.raises(UserError, match="keeps no states: sample it with keep_states=True"):
        unmask.logit_lens(model, drawn)
    drawn = unmask.infill(model, TEXT, steps=2)
    with pytest.raises(UserError, match="row 3 was asked for: expected 0 to 0"):
        unmask.logit_lens(model, drawn, row=3)
    lens = unmask.logit_lens(model, drawn)
    with pytest.raises(UserError, match="position 0 at step 1 was not read: expected one of the"):
        lens.at(0)
    assert repr(lens).startswith("Lens(2 steps × 4 layers × 5 positions, following ")
