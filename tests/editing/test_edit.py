"""An edit comes on whole and goes off to the bit, in any order, and survives a file."""

from contextlib import ExitStack

import pytest
import torch
from safetensors.torch import save_file

import unmask
from tests.editing.edits import DENSE, copy_weights, fail_at_write, have_changed, make_edit
from tests.representation.facts import make_model
from unmask import UserError
from unmask.editing.edit import Edit, _find_stack, _Stack
from unmask.net.dialects import DIALECTS

TOKENS = torch.randint(0, 200, (3, 12), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def model():
    return make_model()


@pytest.mark.parametrize(("name", "kind"), DENSE)
def test_an_edit_adds_its_update_and_goes_off_to_the_bit(name, kind):
    model = make_model(name, kind)
    edit, before = make_edit(model, 0, 2), copy_weights(model)
    downs = {f"layers.{layer}.mlp.down.weight" for layer in (0, 2)}
    address = model.net.block(2).mlp.down.weight.data_ptr()
    with edit.on(model) as same:
        assert same is model and edit.is_on(model) and have_changed(model, before) == downs
        for layer, factors in edit.factors.items():
            own = before[f"layers.{layer}.mlp.down.weight"].double()
            expected = (own + factors.residuals @ factors.readers).float()
            assert model.net.block(layer).mlp.down.weight.equal(expected)
        assert model.net.block(2).mlp.down.weight.data_ptr() == address
    assert not have_changed(model, before) and not edit.is_on(model)
    assert not _find_stack(model.net).own, "no copy of a weight is kept"


def test_edits_stack_and_end_in_any_order(model):
    one, two = make_edit(model, 1, seed=1), make_edit(model, 1, seed=2)
    before = copy_weights(model)

    def weight():
        return model.net.block(1).mlp.down.weight.clone()

    with one.on(model):
        alone = weight()
    with (one + two).on(model):
        together = weight()
    first, second = ExitStack(), ExitStack()
    first.enter_context(one.on(model))
    second.enter_context(two.on(model))
    torch.testing.assert_close(weight(), together)
    second.close()
    assert weight().equal(alone)
    second.enter_context(two.on(model))
    first.close()
    with two.on(model), two.on(model):
        pass  # an edit can be on several times
    torch.testing.assert_close(weight() - before["layers.1.mlp.down.weight"], together - alone)
    second.close()
    assert not have_changed(model, before)


def test_an_edit_made_on_top_of_another_needs_it(model):
    below = make_edit(model, 1, seed=1)
    with below.on(model):
        above = make_edit(model, 1, seed=2)
        with above.on(model):
            pass
    with pytest.raises(UserError, match="made for another network"), above.on(model):
        pass
    with pytest.raises(UserError, match="different weights or layers"):
        below + above


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupt_never_leaves_half_an_edit(model, error):
    """Killed at any write, on the way in or out: all layers have the edit or none has."""
    edit, before = make_edit(model, 0, 1, 2), copy_weights(model)
    for kill_at in range(1, 7):
        with fail_at_write(kill_at, error), pytest.raises(error), edit.on(model):
            assert kill_at > 3 and len(have_changed(model, before)) == 3
        assert not have_changed(model, before) and not edit.is_on(model)
    with pytest.raises(error), edit.on(model):
        raise error
    assert not have_changed(model, before)


def test_interrupts_one_after_the_other_leave_no_edit_on(model, monkeypatch):
    """An impatient user presses Ctrl-C again while the edit is taken off."""
    edit, before, write, calls = make_edit(model, 0, 1, 2), copy_weights(model), _Stack._write, []

    def interrupt(stack, layers):
        calls.append(layers)
        if len(calls) in (2, 3, 4):
            write(stack, layers[:1])
            raise KeyboardInterrupt
        write(stack, layers)

    monkeypatch.setattr(_Stack, "_write", interrupt)
    with pytest.raises(KeyboardInterrupt), edit.on(model):
        pass
    assert len(calls) == 5 and not have_changed(model, before) and not edit.is_on(model)


def test_save_and_load_give_the_same_edit(model, tmp_path):
    edit = make_edit(model, 0, 3)
    edit.save(tmp_path / "deep" / "edit.safetensors")
    again = Edit.load(tmp_path / "deep" / "edit.safetensors")
    assert again.layers == (0, 3) and again.network == edit.network
    assert dict(again.record) == {"seed": 0}
    with edit.on(model):
        logits = model.logits(TOKENS)
    with again.on(model):
        assert model.logits(TOKENS).equal(logits)
    assert again.magnitude == edit.magnitude > 0


def test_an_edit_fits_the_same_checkpoint_in_another_dtype_and_no_other(model, tmp_path):
    edit = make_edit(model, 1)
    unmask.save(model, tmp_path / "model")
    small = unmask.load(tmp_path / "model", device="cpu", dtype="bfloat16")
    before = copy_weights(small)
    with edit.on(small):
        assert have_changed(small, before)
    assert not have_changed(small, before)
    # Rounded to float16 and then to bfloat16 is not rounded to bfloat16.
    half = unmask.load(tmp_path / "model", device="cpu", dtype="float16")
    with pytest.raises(UserError, match="made for, in the same dtype"), edit.on(half):
        pass
    for other in (make_model(kind="causal"), make_model(layers=1), make_model("tiny-gpt2")):
        with pytest.raises(UserError, match=r"made for another network than tiny.*digests"):
            with edit.on(other):
                pass
    # Trained otherwise: the edited weights are the same, others are not; or the other way round.
    for name in ("layers.0.attn.qkv.weight", "embedding.weight", "layers.1.mlp.down.weight"):
        weight = dict(model.net.named_parameters())[name]
        with torch.no_grad():
            weight[0, 0] += 1
        with pytest.raises(UserError, match="made for another network"), edit.on(model):
            pass
        with torch.no_grad():
            weight[0, 0] -= 1


@pytest.mark.parametrize(("name", "kind"), [("tiny", "masked"), ("tiny-gpt2", "causal")])
def test_an_edit_merges_into_every_layout_that_holds_the_model(name, kind, tmp_path):
    model = make_model(name, kind)
    edit, before, written = make_edit(model, 0, 2), copy_weights(model), []
    with edit.on(model):
        expected = model.logits(TOKENS)
    for dialect in DIALECTS:
        try:
            edit.merge(model, tmp_path / dialect, dialect)
        except UserError:
            assert dialect != "unmask" and not (tmp_path / dialect).exists()
            continue
        merged = unmask.load(tmp_path / dialect, device="cpu")
        assert merged.logits(TOKENS).equal(expected), dialect
        written.append(dialect)
    assert len(written) > 1 and not have_changed(model, before)


def test_files_that_are_no_edits_are_a_sentence(model, tmp_path):
    unmask.save(model, tmp_path / "model")
    (tmp_path / "text").write_text("edit")
    whole = {"schema": "edit/1", "network": "none", "record": "{}"}
    save_file({"layers.1.readers": torch.ones(1, 2)}, tmp_path / "half", whole)
    save_file({"weight": torch.ones(1, 2)}, tmp_path / "other", whole)
    for path, words in (
        (tmp_path / "model" / "model.safetensors", "is no edit of this version"),
        (tmp_path / "text", "cannot be read as an edit"),
        (tmp_path / "half", "does not hold a whole edit .*residuals"),
        (tmp_path / "other", "does not hold a whole edit"),
        (tmp_path / "absent", "cannot be read as an edit"),
    ):
        with pytest.raises(UserError, match=words):
            Edit.load(path)


@pytest.mark.parametrize(("name", "kind"), DENSE)
def test_shares_are_what_acts_at_every_position(name, kind):
    """The MLP of an edited layer gains residuals times shares, at masks as at words."""
    model = make_model(name, kind)
    edit, tokens = make_edit(model, 1, 2), TOKENS.clone()
    if model.mask_id is not None:
        tokens[:, 6:] = model.mask_id
    shares = edit.shares(model, tokens)
    with edit.on(model), model.net.capture("layers.*.mlp_key", "layers.*.mlp_out") as sites:
        model.logits(tokens)
    for layer in edit.layers:
        down = model.net.block(layer).mlp.down
        without = torch.nn.functional.linear(
            sites[f"layers.{layer}.mlp_key"], down.weight, down.bias
        )
        gained = sites[f"layers.{layer}.mlp_out"] - without
        expected = shares[layer] @ edit.factors[layer].residuals.T
        torch.testing.assert_close(gained.double(), expected, rtol=1e-3, atol=1e-4)
        assert shares[layer].shape == (3, 12, 2)


def test_an_edit_is_seen_by_tracing_and_refused_under_a_patch(model):
    edit = make_edit(model, 1)
    with model.net.patch({"layers.0.mlp_out": torch.zeros_like}):
        with pytest.raises(UserError, match="shares is of the network's own states"):
            edit.shares(model, TOKENS)
        model.logits(TOKENS)
