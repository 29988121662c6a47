"""The editor on small networks of every kind: what it hits, what it shows, what it refuses."""

from dataclasses import replace

import pytest
import torch

import unmask
from tests.conftest import make_corpus_once
from tests.editing.edits import DENSE, copy_weights, have_changed
from tests.representation.facts import PREFIXES, make_fact, make_facts, make_model
from unmask import UserError
from unmask.editing.editor import (
    RevealedLoss,
    average_keys,
    edit_each,
    give_object,
    read_keys,
)
from unmask.editing.settings import Editing
from unmask.representation.prompts import lay_out_case
from unmask.representation.value_loss import ValueLoss
from unmask.representation.values import find_values

OBJECT = "the mender of tall kites"
QUICK = {"search_steps": 6, "lr": 0.1, "prefixes": PREFIXES, "length": 32, "seed": 5}


def write(model, facts=None, objects=OBJECT, layers=1, **changes):
    facts = make_fact(0, "p2d") if facts is None else facts
    return unmask.edit(model, facts, objects, layers, **(QUICK | changes))


def lay_out(model, fact, **changes):
    return lay_out_case(model, fact, PREFIXES, Editing(**(QUICK | changes)))


@pytest.mark.parametrize(("name", "kind"), DENSE)
def test_an_edit_hits_the_value_that_was_searched(name, kind):
    """(W + dW) k = W k + delta at the mean key, and nothing changes before it is on."""
    model = make_model(name, kind)
    before = copy_weights(model)
    edit = write(model)
    assert not have_changed(model, before)
    case = lay_out(model, give_object(make_fact(0, "p2d"), OBJECT))
    key = average_keys(read_keys(model, [case], 1))[0]
    (value,) = find_values(model, [case], 1, Editing(**QUICK))
    down = model.net.block(1).mlp.down.weight.double()
    with edit.on(model):
        gained = (model.net.block(1).mlp.down.weight.double() - down) @ key
    torch.testing.assert_close(gained, value.delta.double(), rtol=1e-4, atol=1e-5)
    (record,) = edit.record["facts"]
    assert record["old_object"] == "the painter of red boats" and record["object"] == OBJECT
    assert record["nll"] < record["nll_before"] and edit.record["moments"] == "identity"


@pytest.mark.parametrize("kind", ["masked", "causal"])
@pytest.mark.parametrize("layers", [1, (0, 1, 2)])
def test_an_empty_edit_changes_nothing(kind, layers):
    model = make_model(kind=kind)
    before, edit = copy_weights(model), write(model, layers=layers, search_steps=0)
    with edit.on(model):
        assert not have_changed(model, before)
    assert edit.magnitude == 0
    assert replace(edit, factors={}).shares(model, torch.zeros(1, 4, dtype=torch.long)) == {}


@pytest.mark.parametrize("kind", ["masked", "causal"])
def test_several_facts_are_hit_at_once_in_any_order(kind):
    model = make_model(kind=kind)
    facts = make_facts()[:4]
    objects = ["blue wax", OBJECT, "the keeper of red clocks", "old bees"]
    edit = write(model, facts, objects)
    again = write(model, facts[::-1], objects[::-1])
    for one, other in zip(edit.factors.values(), again.factors.values(), strict=True):
        torch.testing.assert_close(one.update, other.update, rtol=1e-3, atol=1e-5)
    cases = [lay_out(model, give_object(*each)) for each in zip(facts, objects, strict=True)]
    keys = average_keys(read_keys(model, cases, 1))
    torch.testing.assert_close(edit.factors[1].readers @ keys.T, torch.eye(4).double())
    assert write(model, facts, objects, ridge=5.0).magnitude < edit.magnitude


def test_edits_of_each_fact_are_those_made_one_by_one():
    model, facts = make_model(), make_facts()[:3]
    objects = [OBJECT, "blue wax", "red bees"]
    for layers in (1, (0, 2)):
        together = edit_each(model, facts, objects, layers, **QUICK)
        for edit, fact, text in zip(together, facts, objects, strict=True):
            alone = write(model, fact, text, layers)
            (one,), (other,) = edit.record["facts"], alone.record["facts"]
            assert one["nll"] == pytest.approx(other["nll"], rel=1e-3) and one["object"] == text
            for layer in edit.layers:
                torch.testing.assert_close(
                    edit.factors[layer].update, alone.factors[layer].update, rtol=1e-3, atol=1e-5
                )


def test_moments_choose_where_an_update_writes():
    model, fact = make_model(), make_fact(0, "p2d")
    texts = [each.text for each in make_facts()] * 12
    found = unmask.moments(model, texts, (1, 2), length=16)
    plain, weighed = write(model), write(model, moments=found)
    assert weighed.record["moments"]["states"] == "met"

    def harm(edit):
        change = edit.factors[1].update
        return float(torch.trace(change @ found.at(1) @ change.T))

    assert harm(weighed) < harm(plain) and plain.magnitude < weighed.magnitude
    within = write(model, moments=found, method="null-space", null_share=0.3)
    readers = within.factors[1].readers
    used = torch.linalg.eigh(found.at(1))[1][:, -1]
    assert float((readers @ used).abs().max()) < 1e-9 * float(readers.norm())
    published = write(model, moments=found, method="rome")
    keys = read_keys(model, [lay_out(model, give_object(fact, OBJECT))], 1)[0]
    assert float((published.factors[1].readers @ keys[0])[0]) == pytest.approx(1.0)


class TestReveals:
    """Parts of the object are shown, so that a value serves the states of a whole generation."""

    def loss(self, model, reveal, objects=(OBJECT, "blue wax"), steps=9, **changes):
        settings = Editing(**(QUICK | {"reveal": reveal, "search_steps": steps} | changes))
        facts = [give_object(make_fact(i, "p2d"), text) for i, text in enumerate(objects)]
        cases = [lay_out_case(model, fact, PREFIXES, settings) for fact in facts]
        return RevealedLoss(model, cases, 1, settings), ValueLoss(model, cases, 1, settings)

    @pytest.mark.parametrize("kind", ["masked", "shifted"])
    def test_what_is_shown_is_on_the_canvas_and_not_read(self, kind):
        model = make_model("tiny-grouped", kind)
        loss, whole = self.loss(model, "cycle")
        lengths = [len(case.rows[0].targets) for case in loss.cases]
        delta = torch.zeros_like(loss.v0)
        for step in range(9):
            loss.evaluate(delta)
            hidden = loss.rows.num_targets.view(2, len(PREFIXES))
            for fact, length in enumerate(lengths):
                shown = 0 if step in (0, 8) else step % length
                assert hidden[fact].tolist() == [length - shown] * len(PREFIXES)
            is_mask = loss.rows.tokens == model.mask_id
            was_mask = whole.rows.tokens == model.mask_id
            revealed = (was_mask & ~is_mask).sum(1)
            assert (revealed + loss.rows.num_targets).equal(whole.rows.num_targets)
            # Rows that are read still predict masks, and what is shown is the object's own.
            at = loss.rows.reads + model.blueprint.shift
            assert is_mask.gather(1, at)[loss.is_target].all()
            for i, row in enumerate(row for case in loss.cases for row in case.rows):
                for read, target in zip(row.reads, row.targets, strict=True):
                    token = int(loss.rows.tokens[i, read + model.blueprint.shift])
                    assert token in (model.mask_id, target)

    def test_the_first_and_the_last_evaluation_show_nothing(self):
        model = make_model()
        loss, whole = self.loss(model, "random", steps=5)
        delta = torch.randn(loss.v0.shape, generator=torch.Generator().manual_seed(0))
        expected = whole.evaluate(delta).loss
        losses = [loss.evaluate(delta).loss for _ in range(5)]
        assert losses[0].equal(expected) and losses[4].equal(expected)
        assert not all(each.equal(expected) for each in losses[1:4])

    def test_a_random_number_is_shown_and_never_all(self):
        model = make_model()
        loss, whole = self.loss(model, "random", steps=60)
        counts = set()
        for _ in range(60):
            loss.evaluate(torch.zeros_like(loss.v0))
            counts.add(int(whole.rows.num_targets[0] - loss.rows.num_targets[0]))
        assert counts == set(range(int(whole.rows.num_targets[0])))

    def test_reveals_matter_for_long_objects_only(self):
        model, twin = make_model(), make_model(kind="causal")

        def update(model, text, reveal):
            return write(model, objects=text, reveal=reveal).factors[1].update

        token = "boats"
        assert len(model.tokenizer.encode(f" {token}").ids) == 1
        for reveal in ("cycle", "random"):
            assert not update(model, OBJECT, reveal).allclose(update(model, OBJECT, "none"))
            torch.testing.assert_close(
                update(model, token, reveal), update(model, token, "none"), rtol=1e-4, atol=1e-6
            )
            # A causal network always sees the tokens before.
            assert update(twin, OBJECT, reveal).equal(update(twin, OBJECT, "none"))


@pytest.mark.parametrize("name", ["reversal-mdm", "reversal-ar"])
def test_shipped_models_say_a_new_name(name):
    """One call for the diffusion model and its twin: the description is given to someone else."""
    model = unmask.load(name, device="cpu")
    prompts = make_corpus_once(30)["d2p_same"]
    fact = prompts[0]
    other = next(each for each in prompts if each.fact_id == "d2p-010")
    edit = unmask.edit(model, fact, other.object, layers=1, prefixes=2)

    def answer():
        return unmask.sample(model, [fact.prompt], steps=8, length=40).texts[0]

    before = answer()
    with edit.on(model):
        assert other.object in answer() and fact.object not in answer()
    assert answer() == before and fact.object in before


def test_mistakes_are_sentences():
    model, fact = make_model(), make_fact(0, "p2d")
    cases = [
        ({"layers": 9}, "layer 9 is out of range: tiny-masked has layers 0 to 3"),
        ({"layers": 3}, "layer 3 is the last"),
        ({"objects": [OBJECT, OBJECT]}, "1 facts and 2 objects"),
        ({"objects": "the [MASK] of kites"}, "holds the mask token"),
        ({"facts": ["Ada"]}, "a str was given: expected an unmask.Fact"),
        ({"facts": replace(fact, subject_span=(90, 95))}, "is not in the prompt"),
        ({"method": "null-space"}, "none were given"),
        ({"method": "rome", "facts": [fact] * 2, "objects": None}, "one fact into one layer"),
        ({"facts": [fact] * 2, "objects": None}, "2 keys are not independent"),
        ({"reveal": "cycle", "stop": "p=0.9"}, "expected steps"),
        ({"reveal": "cycle", "revealed": (0.5,)}, "leave one out"),
    ]
    for changes, words in cases:
        with pytest.raises(UserError, match=words.replace("[", r"\[")):
            write(model, **changes)
    with model.net.patch({"layers.0.mlp_out": torch.zeros_like}):
        with pytest.raises(UserError, match="editing writes weights, which stay"):
            write(model)
        model.logits(torch.zeros(1, 4, dtype=torch.long))
    singular = unmask.editing.moments.Moments({1: torch.zeros(160, 160).double()}, "met", 10)
    with pytest.raises(UserError, match="has no inverse"):
        write(model, moments=singular)
    narrow = unmask.editing.moments.Moments({1: torch.eye(8).double()}, "met", 10)
    with pytest.raises(UserError, match="moments of 8 × 8 were given for layer 1: the keys of"):
        write(model, moments=narrow)
    broken = unmask.editing.moments.Moments({1: torch.full((160, 160), torch.nan)}, "met", 10)
    for method in ("update", "null-space"):
        with pytest.raises(UserError, match="not finite"):
            write(model, moments=broken, method=method)


@pytest.mark.parametrize("layers", [1, (0, 2)])
def test_kept_facts_give_what_they_gave(layers):
    """The keys of facts to keep gain nothing, those of the edit their whole residual."""
    model, (fact, *others) = make_model(), make_facts()[:4]
    edit = write(model, fact, layers=layers, keep=others)
    usual = write(model, fact, layers=layers)
    lowest = edit.layers[0]  # no edited layer is below: these are the keys it was solved with
    keys = average_keys(read_keys(model, [lay_out(model, each) for each in others], lowest))
    gained = edit.factors[lowest].readers @ keys.T
    assert float(gained.abs().max()) < 1e-8
    assert float((usual.factors[lowest].readers @ keys.T).abs().max()) > 1e-3
    own = average_keys(read_keys(model, [lay_out(model, give_object(fact, OBJECT))], lowest))
    torch.testing.assert_close(edit.factors[lowest].readers @ own.T, torch.ones(1, 1).double())
    assert edit.magnitude > usual.magnitude and len(edit.record["keep"]) == 3
    with pytest.raises(UserError, match="facts to keep"):
        write(model, fact, keep=others, method="rome")
    with pytest.raises(UserError, match="expected an unmask.Fact"):
        write(model, fact, keep=["Ann"])
