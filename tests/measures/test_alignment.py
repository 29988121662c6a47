"""alignment: gradients are those of the loss, part by part, and known likeness is found."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import unmask
from tests.representation.facts import make_fact, make_facts, make_model
from unmask import UserError
from unmask.blocks.tidy import distinct, select
from unmask.measures.alignment import pair_directions
from unmask.representation.alignment import (
    ALL,
    PARTS,
    compare_gradients,
    find_alignments,
    find_gradients,
    put_object,
)
from unmask.representation.patched import lay_out_prompt, score_patched

PAIRED = [(make_fact(i, "p2d"), make_fact(i, "d2p")) for i in range(3)]


def find_loss(model, fact):
    """The mean cost of an answer's tokens: of a masked model all at once."""
    prompt = lay_out_prompt(model, fact, [fact])
    (answer,) = prompt.answers
    if model.mask_id is None:
        ((score,),) = score_patched(model, [prompt], {})
        return -score.logp / len(answer)
    tokens = prompt.tokens + [model.mask_id] * (40 - len(prompt.tokens))
    with torch.no_grad():
        logits = model.logits(torch.tensor([tokens]))[0, len(prompt.tokens) :][: len(answer)]
    return float(F.cross_entropy(logits, torch.tensor(answer)))


@pytest.mark.parametrize("kind", ["masked", "causal"])
def test_a_step_along_the_gradient_lowers_the_loss_by_its_square(kind):
    """All layers together, in float64: nothing is left out, and the loss is the answer's."""
    model = make_model("tiny", kind)
    model = replace(model, net=copy.deepcopy(model.net).double().requires_grad_(True))
    (fact, back), step = PAIRED[0], 1e-4
    own = find_gradients(model, fact, 40)
    assert {part for _, part in own} == {*PARTS}
    size = sum(float(each @ each) for each in own.values())
    other = find_gradients(model, back, 40)
    product = sum(float(each @ other[key]) for key, each in own.items())
    names = [(layer, name) for layer in range(model.net.config.layers)
             for name, _ in model.net.block(layer).named_parameters()
             if name.startswith(("attn.qkv", "attn.out", "mlp."))]  # fmt: skip
    weights = [dict(model.net.block(layer).named_parameters())[name] for layer, name in names]
    loss = _loss_of(model, fact)
    grads = torch.autograd.grad(loss, weights)
    before = find_loss(model, fact), find_loss(model, back)
    with torch.no_grad():
        for weight, grad in zip(weights, grads, strict=True):
            weight -= step * grad
    fell = before[0] - find_loss(model, fact), before[1] - find_loss(model, back)
    assert fell == pytest.approx((step * size, step * product), rel=0.02, abs=1e-3 * step * size)


def _loss_of(model, fact):
    prompt = lay_out_prompt(model, fact, [fact])
    (answer,) = prompt.answers
    tokens = prompt.tokens + answer[:-1]
    if model.mask_id is not None:
        tokens = prompt.tokens + [model.mask_id] * (40 - len(prompt.tokens))
    reads = [model.row_of(len(prompt.tokens) + k) for k in range(len(answer))]
    net = model.net
    logits = net.unembed(net.run_layers(net.embed(torch.tensor([tokens]))), torch.tensor([reads]))
    return F.cross_entropy(logits[0], torch.tensor(answer))


def test_a_gradient_is_like_itself_and_unlike_its_negative():
    model = make_model("tiny", "masked")
    model = replace(model, net=copy.deepcopy(model.net).requires_grad_(True))
    own = find_gradients(model, PAIRED[0][0], 40)
    rows = list(compare_gradients(own, {key: -3 * each for key, each in own.items()}))
    layers = model.net.config.layers
    assert len(rows) == (layers + 1) * (len(PARTS) + 1)
    assert [row["cosine"] for row in rows] == pytest.approx([-1.0] * len(rows))


def test_facts_are_held_against_their_reverse_and_both_controls():
    """The ring's next fact lends its reverse, or its answer; the model is left as it was."""
    model = make_model("tiny", "masked")
    before = {name: weight.clone() for name, weight in model.net.state_dict().items()}
    rows = list(find_alignments(model, PAIRED, 40))
    whole = [row for row in rows if (row["layer"], row["part"]) == (None, ALL)]
    assert [(row["fact"], row["pair"]) for row in whole] == [
        (one.fact_id, pair) for one, _ in PAIRED for pair in ("own", "other", "exchanged")
    ]
    learned = replace(model, net=copy.deepcopy(model.net).requires_grad_(True))
    (one, back), (after, after_back) = PAIRED[:2]
    asked = put_object(one, after), put_object(after_back, back)
    assert asked[0].text == "They say Ada Quill is known as the mender of old clocks"
    assert asked[1].text == "They say the mender of old clocks is known as Ada Quill"
    for pair, facts in {"own": (one, back), "other": (one, after_back), "exchanged": asked}.items():
        gradients = [find_gradients(learned, fact, 40) for fact in facts]
        wanted = {(row["layer"], row["part"]): row["cosine"]
                  for row in compare_gradients(*gradients)}  # fmt: skip
        own = select(rows, fact=one.fact_id, pair=pair)
        assert {(row["layer"], row["part"]): row["cosine"] for row in own} == pytest.approx(wanted)
    after_all = model.net.state_dict()
    assert all(torch.equal(before[name], after_all[name]) for name in before)


def test_the_measure_asks_facts_both_ways(tmp_path):
    model = make_model("tiny", "causal")
    result = unmask.alignment(model, data=make_facts(), out=tmp_path, device="cpu", length=40)
    summary = result.summary
    assert distinct(summary["means"], "pair") == ["own", "other", "exchanged"]
    assert {row["facts"] for row in summary["means"]} == {5}
    assert {(row["pair"], row["minus"]) for row in summary["differences"]} == {
        ("own", "exchanged"), ("own", "other"), ("exchanged", "other")
    }  # fmt: skip
    assert {row["part"] for row in summary["layers"]} == {*PARTS, ALL}
    with pytest.raises(UserError, match="no two facts of a group"):
        unmask.alignment(model, data=make_facts()[::2], out=tmp_path / "one", device="cpu")


def test_as_trained_stands_before_reversed():
    from unmask.data.reversal_corpus import make_reversal_corpus

    settings = unmask.alignment.settings(facts=2)
    pairs = pair_directions(make_reversal_corpus(2), settings)
    assert [one.direction for one, _ in (*pairs["p2d"], *pairs["d2p"], *pairs["both"])] == [
        "p2d", "p2d", "d2p", "d2p", "p2d", "p2d"
    ]  # fmt: skip
