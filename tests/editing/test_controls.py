"""Controls have the size of the edit; a learned statement is put on and off; text is compared."""

import math

import pytest
import torch

from tests.editing.edits import copy_weights, have_changed, make_edit
from tests.representation.facts import make_fact, make_model
from unmask.editing.controls import UnrelatedText, find_cost, swap_factors, tune
from unmask.editing.editor import give_object

TEXTS = ["Ann paints red boats all day.", "They say Dan makes wax masks."] * 20
FACT = give_object(make_fact(0, "p2d"), "the mender of tall kites")


@pytest.mark.parametrize("swap", ["key", "delta"])
def test_controls_have_the_size_of_the_edit(swap):
    model = make_model()
    made, other = (make_edit(model, 0, 1, facts=1, seed=seed) for seed in (1, 2))
    control = swap_factors(model, made, other, swap)
    assert control.magnitude == pytest.approx(made.magnitude) and control.layers == (0, 1)
    kept, taken = ("residuals", "readers") if swap == "key" else ("readers", "residuals")
    for layer in (0, 1):
        own, mixed, theirs = (each.factors[layer] for each in (made, control, other))
        assert getattr(mixed, kept).equal(getattr(own, kept))
        cosine = torch.cosine_similarity(
            getattr(mixed, taken).flatten(), getattr(theirs, taken).flatten(), 0
        )
        assert float(cosine) == pytest.approx(1.0)
    weights = copy_weights(model)
    with control.on(model):
        assert have_changed(model, weights)
    assert not have_changed(model, weights)


@pytest.mark.parametrize("kind", ["masked", "shifted", "causal"])
@pytest.mark.parametrize("layers", [None, (1,)])
def test_a_statement_is_learned_to_a_cost(kind, layers):
    model = make_model(kind=kind)
    weights, before = copy_weights(model), find_cost(model, FACT, 32)
    needed = [parameter.requires_grad for parameter in model.net.parameters()]
    target = before - 0.2
    tuned = tune(model, FACT, target, layers, updates=200, lr=3e-3, rows=4, length=32)
    assert not have_changed(model, weights), "nothing is left behind"
    assert [parameter.requires_grad for parameter in model.net.parameters()] == needed
    assert all(parameter.grad is None for parameter in model.net.parameters())
    assert tuned.reached and 0 < tuned.updates < 200 and tuned.magnitude > 0
    with tuned.on(model):
        assert find_cost(model, FACT, 32) <= target + 1e-4
        changed = have_changed(model, weights)
    assert not have_changed(model, weights)
    if layers:
        assert changed == {"layers.1.mlp.down.weight"}
    else:
        assert len(changed) > 5
    nothing = tune(model, FACT, before + 1, layers, length=32)
    assert nothing.reached and nothing.updates == 0 and nothing.magnitude == 0


@pytest.mark.parametrize("kind", ["masked", "causal"])
def test_unrelated_text_is_compared(kind):
    model = make_model(kind=kind)
    text = UnrelatedText(model, TEXTS, 4)
    same = text.compare(make_edit(model, 1, size=0.0))
    assert same["text_kl"] == 0 and same["text_bits_before"] == same["text_bits_after"]
    edit = make_edit(model, 1, size=1.0)
    changed = text.compare(edit)
    assert changed["text_kl"] > 0 and changed["text_bits_before"] == same["text_bits_before"]
    # By hand: every hidden token of a masked model, all but the first of a causal one.
    costs, divergences = [], []
    for words, x0, xt in zip(TEXTS, text.x0, text.xt, strict=False):
        before = model.logits(xt[None])[0].double().log_softmax(-1)
        with edit.on(model):
            after = model.logits(xt[None])[0].double().log_softmax(-1)
        for at in range(len(model.tokenizer.encode(words).ids)):
            is_read = at > 0 if kind == "causal" else int(xt[at]) == model.mask_id
            if is_read:
                row = at - (kind == "causal")
                costs.append(-float(after[row, x0[at]]) / math.log(2))
                divergences.append(float((before[row].exp() * (before[row] - after[row])).sum()))
    assert changed["text_bits_after"] == pytest.approx(sum(costs) / len(costs), rel=1e-4)
    assert changed["text_kl"] == pytest.approx(sum(divergences) / len(costs), rel=1e-3, abs=1e-6)
