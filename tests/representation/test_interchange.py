"""Interchange of subject states: identities, a network in which layer 0 decides, and pairings."""

from dataclasses import replace

import pytest
import torch

from tests.conftest import KINDS
from tests.representation.facts import make_fact, make_model, make_tokenizer
from tests.representation.planted import plant
from unmask import Fact, UserError
from unmask.data.city_lines import make_city_lines
from unmask.representation.interchange import (
    StateSwap,
    divide,
    interchange,
    make_swaps,
    person_of,
)
from unmask.representation.patched import lay_out_prompt, score_each_patched, score_patched


def swap_of(recipient, donor, answer=None):
    return StateSwap("across", recipient, donor, answer or donor)


def pairs_of_facts():
    """Names as recipients, descriptions of other people as donors, in two phrasings."""
    return [
        swap_of(
            make_fact(i, "p2d", i), make_fact((i + 1) % 5, "d2p", i + 1), make_fact(4 - i, "p2d")
        )
        for i in range(5)
        if i != 2
    ]


@pytest.mark.parametrize("causal", [False, True])
def test_layer_0_decides_and_swapping_both_swaps_the_outcome(causal):
    planted = plant(causal, {"X": "Z", "Q": "K"})
    one, other = planted.facts
    rows = interchange(planted.model, [swap_of(one, other), swap_of(other, one)])
    assert len(rows) == 2 * (1 + 3)
    for row, mirrored in zip(rows[::2], rows[1::2], strict=True):
        # Before the layer that reads it the donor's state decides, afterwards it is too late.
        is_swapped = row["layer"] in (-1, 0)
        assert (row["says_donor"], row["says_recipient"]) == (is_swapped, not is_swapped)
        for name in ("donor", "recipient"):
            assert row[f"says_{name}"] == mirrored[f"says_{name}"]
            assert row[f"logp_{name}"] == pytest.approx(mirrored[f"logp_{name}"], 1e-5, 1e-4)
    assert rows[0]["logp_donor"] == pytest.approx(rows[4]["logp_recipient"], 1e-5, 1e-4)


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_a_state_put_in_its_own_place_changes_nothing(name, kind):
    """A masked model's states are those before any token of the answer is shown.

    A causal model's prompt is read alone there, and with the answer here: on some processors
    products of another shape differ in the last digit.
    """
    model = make_model(name, kind)
    fact = make_fact(0, "p2d")
    token = make_tokenizer().decode([make_tokenizer().encode(fact.completion).ids[0]])
    one = Fact.of(fact.subject, token.strip(), fact.prompt, completion=token, fact_id="one")
    for tokens, rest in (("all", "mean"), ("last", "keep")):
        rows = interchange(model, [swap_of(one, one)], tokens=tokens, rest=rest, length=40)
        assert [row["layer"] for row in rows] == [None, -1, 0, 1, 2, 3]
        for row in rows[1:]:
            assert row["logp_donor"] == pytest.approx(rows[0]["logp_donor"], rel=1e-7), row["layer"]
    changed = interchange(model, [swap_of(one, make_fact(1, "d2p"))], length=40)
    before = pytest.approx(rows[0]["logp_recipient"], rel=1e-5)
    assert all(row["logp_recipient"] != before for row in changed[1:-1])


def test_states_are_lent_by_another_reading_of_the_network():
    """Before layer 0 both readings of a network have the same states, afterwards each its own."""
    model, swaps = make_model(), pairs_of_facts()[:2]
    causal = model.reading("causal")
    for asked, lender in ((model, causal), (causal, model)):
        own = interchange(asked, swaps, tokens="all", length=40)
        assert interchange(asked, swaps, tokens="all", length=40, lender=asked) == own
        lent = interchange(asked, swaps, tokens="all", length=40, lender=lender)
        for one, other in zip(own, lent, strict=True):
            same = one["logp_donor"] == pytest.approx(other["logp_donor"], rel=1e-5)
            # The last layer's states of the prompt come too late for another position's answer.
            assert same == (one["layer"] in (None, -1, 3)), one["layer"]


@pytest.mark.parametrize("kind", ["masked", "causal", "shifted"])
@pytest.mark.parametrize(("tokens", "rest"), [("last", "keep"), ("all", "mean")])
def test_a_batch_is_its_swaps_one_by_one(kind, tokens, rest):
    model, swaps = make_model(kind=kind), pairs_of_facts()
    settings = {"layers": (0, 2), "tokens": tokens, "rest": rest, "length": 40}
    together = interchange(model, swaps, **settings)
    alone = [interchange(model, [swap], **settings) for swap in swaps]
    for i, row in enumerate(together):
        single = alone[i % len(swaps)][i // len(swaps)]
        assert {name: row[name] for name in row if not name.startswith("logp")}.items() <= (
            single.items()
        )
        for name in ("logp_donor", "logp_recipient"):
            assert row[name] == pytest.approx(single[name], rel=1e-4)


def test_the_rest_of_the_subject_is_the_mean_over_recipients():
    """Against a plain patched pass of the first token."""
    model, swaps = make_model(), pairs_of_facts()
    rows = interchange(model, swaps, layers=[1], length=40)

    def run(fact):
        tokens = lay_out_prompt(model, fact, []).tokens
        row = torch.tensor([tokens + [model.mask_id] * (40 - len(tokens))])
        with model.net.capture("layers.1.resid_out") as taken:
            model.logits(row)
        return taken["layers.1.resid_out"][0]

    prompts = [lay_out_prompt(model, swap.recipient, [swap.answer]) for swap in swaps]
    others = [
        run(swap.recipient)[prompt.subject[0] : prompt.subject[1] - 1]
        for swap, prompt in zip(swaps, prompts, strict=True)
    ]
    mean = torch.cat(others).mean(0)
    for i, (swap, prompt) in enumerate(zip(swaps, prompts, strict=True)):
        donor = run(swap.donor)[lay_out_prompt(model, swap.donor, []).subject[1] - 1]
        begin, end = prompt.subject

        def change(x, _, begin=begin, end=end, donor=donor):
            out = x.clone()
            out[:, begin : end - 1] = mean
            out[:, end - 1] = donor
            return out

        ((score,),) = score_patched(model, [prompt], {1: change}, 40)
        assert rows[len(swaps) + i]["logp_donor"] == pytest.approx(score.logp, rel=1e-4)


@pytest.mark.parametrize("kind", ["masked", "causal"])
def test_changes_together_are_changes_alone(kind):
    """Several sets share the layers below their first change, to the bit, in any order."""
    model = make_model(kind=kind)
    prompts = [
        lay_out_prompt(model, swap.recipient, [swap.answer, swap.recipient])
        for swap in pairs_of_facts()
    ]

    def double(x, owners):
        return x * (2 + owners[:, None, None])

    variants = [{1: double}, {}, {-1: double, 1: double}, {0: double}]
    assert score_each_patched(model, prompts, variants, 40) == [
        score_patched(model, prompts, changes, 40) for changes in variants
    ]


@pytest.fixture(scope="module")
def questions():
    """Names asked for cities, and descriptions of the same people."""
    people = {f"p-{i}": f"Ann Number{i}" for i in range(12)}
    cities = [fact for fact in make_city_lines(people)[1] if fact.phrasing % 2]
    described = [
        Fact.of(f"the thing {i}", f"Ann Number{i}", front, fact_id=f"p-{i}", phrasing=j)
        for i in range(12)
        for j, front in enumerate(("Here {} is", "There {} was"))
    ]
    return cities, described


def test_pairs_stay_in_their_half_and_are_shared_between_kinds(questions):
    cities, described = questions
    across = make_swaps("across", cities, described)
    within = make_swaps("within", cities, cities)
    floor = make_swaps("own", cities, cities, own=True)
    assert len(across) == len(within) == len(floor) == len(cities)
    halves = {person_of(swap.recipient): swap.half for swap in across}
    assert halves == divide(halves) and sorted(halves.values()) == [0] * 6 + [1] * 6
    for one, two, three in zip(across, within, floor, strict=True):
        assert one.recipient == two.recipient == three.recipient
        assert one.answer == two.answer == three.answer
        person = person_of(one.recipient)
        assert person_of(one.answer) == person_of(one.donor) == person_of(two.donor) != person
        assert one.half == two.half == three.half == halves[person_of(one.donor)]
        assert one.answer.phrasing == one.recipient.phrasing
        assert person_of(three.donor) == person and three.donor.prompt != three.recipient.prompt
    assert make_swaps("across", cities, described) == across
    assert make_swaps("across", cities, described, seed=1) != across
    # Two people are a half each, and one has no donor.
    (one, two) = make_swaps("across", [cities[0], cities[-3]], described)
    assert {one.half, two.half} == {0, 1} and person_of(one.donor) == person_of(two.recipient)
    assert make_swaps("across", cities[:1], described) == []
    strangers = [replace(fact, fact_id=f"stranger {fact.fact_id}") for fact in cities]
    lent = [replace(fact, fact_id=f"stranger {fact.fact_id}") for fact in described]
    untrained = make_swaps("untrained", cities, lent, strangers)
    assert [swap.half for swap in untrained] == [swap.half for swap in across]
    assert all(person_of(swap.donor).startswith("stranger") for swap in untrained)


def test_no_swaps_are_refused():
    with pytest.raises(UserError, match="no swaps were given"):
        interchange(make_model(), [])
