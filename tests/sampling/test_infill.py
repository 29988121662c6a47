"""Infilling and constraints: the given stays, the forbidden never comes, identities hold."""

import pytest
import torch

import unmask
from tests.conftest import make_model
from unmask import Trajectory, UserError
from unmask.data.chat import ChatTemplate


@pytest.fixture(scope="module")
def model() -> unmask.Model:
    return make_model()


TEXT = "The caves of Orsel are deep."


def test_everything_fixed_returns_the_input(model):
    found = unmask.infill(model, TEXT)
    assert found.texts == [TEXT] and found.calls == 0
    assert (found.committed_at == 0).all()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_fixed_is_unconditional_sampling(model, temperature):
    how = {"temperature": temperature, "seed": 3, "order": "random"}
    free = unmask.sample(model, [""], length=12, **how)
    filled = unmask.infill(model, "[MASK]*12", **how)
    assert torch.equal(free.tokens, filled.tokens) and free.texts == filled.texts
    ids = unmask.infill(model, [[model.mask_id] * 12], **how)
    assert torch.equal(free.tokens, ids.tokens)


def test_a_prompt_with_masks_behind_it_is_a_completion(model):
    """Guidance included: both hide what was given."""
    length = len(model.tokenizer.encode("The caves").ids) + 9
    for guidance in (0.0, 0.7):
        one = unmask.sample(model, ["The caves"], length=length, guidance=guidance)
        two = unmask.infill(model, "The caves[MASK]*9", guidance=guidance)
        assert torch.equal(one.tokens, two.tokens)


def test_given_tokens_stay_where_they_are(model):
    found = unmask.infill(model, ["The [MASK]*3 of Orsel[MASK].", "[MASK]baker"], temperature=1.0)
    rows = [model.tokenizer.encode(text).ids for text in ("The", " of Orsel", ".", "baker")]
    given = [*rows[0], *[None] * 3, *rows[1], None, *rows[2]]
    for token, wanted in zip(found.tokens[0].tolist(), given, strict=False):
        assert wanted is None or token == wanted
    assert found.tokens[1, 1 : 1 + len(rows[3])].tolist() == rows[3]
    assert (found.tokens[0] != model.mask_id).all()
    assert (found.states[0, 0] == model.mask_id).sum() == 4


def test_a_space_before_a_mask_belongs_to_what_fills_it(model):
    """Words carry the space before them: as a token of its own it would be doubled."""
    texts = ["The[MASK]*3 of Orsel[MASK].", "The [MASK]*3 of Orsel [MASK]."]
    without, with_space = (unmask.infill(model, text) for text in texts)
    assert torch.equal(without.tokens, with_space.tokens) and without.texts == with_space.texts
    together = unmask.infill(model, "[MASK]*2 [MASK] of")
    assert torch.equal(together.tokens, unmask.infill(model, "[MASK]*3 of").tokens)
    one, two = (unmask.infill(model, f"The{space}[MASK]").tokens.shape[1] for space in (" ", "  "))
    assert two == one + 1, "a second space is one that was meant"


def test_no_text_ends_before_what_was_given(model):
    """An end token in a gap would cut the given words off; behind them it may come."""
    end = torch.nn.functional.one_hot(
        torch.tensor(model.tokenizer.end_id), model.net.config.logit_rows
    )
    # Not by a patch, under which nothing is cached.
    hook = model.net.head.register_forward_hook(lambda _, given, logits: logits + 1e3 * end)
    for cache in ("none", "exact"):
        found = unmask.infill(model, "The [MASK]*4 of Orsel[MASK]*3", cache=cache)
        assert found.texts[0].endswith(" of Orsel")
        assert (found.tokens[0, -3:] == model.tokenizer.end_id).all()
    hook.remove()


def test_an_end_that_is_given_ends_nothing_before_it(model):
    """Ends are often committed first: a half-written text may still end earlier."""
    end, mask = model.tokenizer.end_id, model.mask_id
    likely = torch.nn.functional.one_hot(torch.tensor(end), model.net.config.logit_rows)
    half = [*model.tokenizer.encode("The").ids, *[mask] * 4, end, end]
    with model.net.patch({"logits": lambda x: x + 1e3 * likely}):
        assert unmask.infill(model, half).tokens[0, -6:].tolist() == [end] * 6


def test_any_state_of_a_trajectory_can_be_gone_on_from(model):
    prompt = len(model.tokenizer.encode("The").ids)
    whole = unmask.sample(model, ["The"], length=prompt + 16, plan="linear", steps=8)
    for step in (0, 3, 8):
        half = whole.states[step]
        rest = unmask.infill(model, list(half), plan="linear", steps=max(1, 8 - step))
        assert torch.equal(rest.tokens, whole.tokens)


def test_fixed_tokens_anywhere(model):
    found = unmask.sample(model, ["The"], length=20, fixed={10: "deep", 19: "."}, temperature=1.0)
    deep, stop = (model.tokenizer.encode(text).ids for text in ("deep", "."))
    assert found.tokens[0, 10 : 10 + len(deep)].tolist() == deep
    assert found.tokens[0, 19:].tolist() == stop
    assert found.committed_at[0, 19] == 0


def test_forbidden_tokens_never_come(model):
    free = unmask.sample(model, ["The"], length=30)
    unwanted = sorted(set(free.tokens[0].tolist()) - set(model.tokenizer.encode("The").ids))
    bound = unmask.sample(model, ["The"], length=30, forbid=unwanted)
    assert not set(bound.tokens[0].tolist()) & set(unwanted)


def test_a_single_constraint_needs_no_list(model):
    how, token = {"length": 24, "steps": 4}, model.tokenizer.encode(".").ids
    for single in ({"require": " Orsel sings"}, {"forbid": token[0]}):
        alone = unmask.sample(model, ["The"], **how, **single)
        listed = unmask.sample(model, ["The"], **how, **{name: [x] for name, x in single.items()})
        assert torch.equal(alone.tokens, listed.tokens)


def test_required_phrases_leave_room_for_each_other(model):
    phrases = [" Orsel sings", " of Orsel"]
    sizes = [len(model.tokenizer.encode(text).ids) for text in phrases]
    prompt = len(model.tokenizer.encode("The").ids)
    for order in (phrases, phrases[::-1]):
        found = unmask.sample(model, ["The"], length=prompt + sum(sizes), require=order)
        assert all(text in found.texts[0] for text in phrases)
    with pytest.raises(UserError, match="no such space left"):
        unmask.sample(model, ["The"], length=prompt + sum(sizes) - 1, require=phrases)


def test_required_phrases_are_there(model):
    phrase = model.tokenizer.encode(" Orsel sings").ids
    found = unmask.sample(model, ["The", "The baker"], length=24, require=[" Orsel sings", "."])
    for row in found.tokens.tolist():
        assert any(row[i : i + len(phrase)] == phrase for i in range(len(row)))
    # Where the network finds the phrase likeliest, by hand.
    prompt = model.tokenizer.encode("The").ids
    canvas = torch.tensor([prompt + [model.mask_id] * (24 - len(prompt))])
    logits = (
        model.logits(canvas)[0].double().index_fill(-1, torch.tensor(model.mask_id), -torch.inf)
    )
    logp = logits.log_softmax(-1)
    places = range(len(prompt), 24 - len(phrase) + 1)
    best = max(places, key=lambda i: sum(logp[i + j, t] for j, t in enumerate(phrase)))
    alone = unmask.sample(model, ["The"], length=24, require=[" Orsel sings"])
    assert alone.calls == 16 + 1, "looking for the place is a call, too"
    assert alone.tokens[0, best : best + len(phrase)].tolist() == phrase


def test_trajectories_come_back_from_disk(model, tmp_path):
    for keep in (True, False):
        found = unmask.sample(model, ["The caves"], length=20, keep_states=keep)
        found.save(tmp_path / "x.safetensors")
        again = Trajectory.load(tmp_path / "x.safetensors")
        assert again.texts == found.texts and again.calls == found.calls
        for name in ("tokens", "lengths", "committed_at", "confidence", "entropy"):
            assert torch.equal(getattr(again, name), getattr(found, name))
        assert (again.states is None) == (not keep)
    with pytest.raises(UserError, match="is not there"):
        Trajectory.load(tmp_path / "y.safetensors")
    (tmp_path / "y.safetensors").write_bytes(b"no")
    with pytest.raises(UserError, match="cannot be read as a trajectory"):
        Trajectory.load(tmp_path / "y.safetensors")


def test_a_watcher_sees_every_step_and_all_rows_whatever_their_blocks(model):
    """Rows with more blocks are filled apart: what was watched last is what came out."""
    seen: list[Trajectory] = []
    found = unmask.sample(model, ["The"], length=20, steps=5, watch=seen.append)
    assert [int(one.committed_at.max()) for one in seen] == [1, 2, 3, 4, 5]
    assert torch.equal(seen[-1].tokens, found.tokens) and len(seen[1].states) == 3
    seen.clear()
    prompts = ["The caves of Orsel", "The", "The caves of"]
    how = {"length": 24, "block": 6, "steps": 12, "watch": seen.append}
    found = unmask.sample(model, prompts, **how)
    starts = [len(model.tokenizer.encode(prompt).ids) for prompt in prompts]
    groups = {-(-(24 - start) // 6) for start in starts}
    assert len(groups) > 1 and len(seen) == 12 * len(groups)
    assert all(one.tokens.shape == found.tokens.shape for one in seen)
    assert torch.equal(seen[-1].tokens, found.tokens) and seen[-1].texts == found.texts
    assert torch.equal(seen[-1].states, found.states) and seen[-1].calls == found.calls
    hidden = [int((one.tokens == model.mask_id).sum()) for one in seen]
    assert hidden == sorted(hidden, reverse=True)


def test_chat_templates_are_used_on_request(tmp_path, model):
    model.tokenizer.save(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(
        "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}<answer> {% endif %}"
    )
    tokenizer = unmask.Tokenizer.load(tmp_path)
    talkative = unmask.Model("chatty", model.net, model.blueprint, tokenizer)
    found = unmask.sample(talkative, ["deep?"], length=60, chat=True)
    assert found.texts[0].startswith("<user> deep?\n<answer> ")
    tokenizer.save(tmp_path / "again")
    again = unmask.Tokenizer.load(tmp_path / "again")
    assert again.chat is not None and again.chat.render([]) == "<answer> "


@pytest.mark.parametrize("causal", [False, True])
def test_a_chat_that_ends_its_turns_is_answered(causal):
    """The end of the user's turn is not the end of the text."""
    model, begin = make_model(causal=causal), "<user> deep?<answer> "
    template = "<user> {{ messages[0]['content'] }}{{ eos_token }}<answer> "
    model.tokenizer.chat = ChatTemplate(template, {"eos_token": "[END]"})
    found = unmask.sample(model, ["deep?"], length=60, chat=True)
    assert (found.tokens == model.tokenizer.end_id).any()
    assert found.texts[0].startswith(begin) and len(found.texts[0]) > len(begin)


def test_bad_input(model):
    twin = make_model(causal=True)
    for call, said in (
        (lambda: unmask.infill(model, []), "no texts were given"),
        (lambda: unmask.infill(model, "[MASK]*99999999999"), "99999999999 masks were asked for"),
        (lambda: unmask.infill(model, 2 * "[MASK]*100"), "expected 1 to the context"),
        (lambda: unmask.infill(model, "[MASK]*9", guidance=1.0), "guidance needs a prompt"),
        (lambda: unmask.infill(twin, "[MASK]"), "cannot fill masks"),
        (lambda: unmask.sample(model, ["The [MASK]"]), "holds the mask token"),
        (lambda: unmask.sample(model, ["The"], forbid=["two words"]), "'two words' was forbidden"),
        (lambda: unmask.sample(twin, ["The"], require=["deep"]), "neither fixed nor required"),
    ):
        with pytest.raises(UserError, match=said):
            call()
