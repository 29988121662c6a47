"""Hand-written networks do what their programs do, and what carries an answer is what they say."""

from itertools import product

import pytest
import torch

import unmask
from unmask import UserError
from unmask.compiled.mechanisms import CAUSAL, IDS, MECHANISMS, WORDS, build_compiled
from unmask.compiled.program import OUT, AmbiguousError, run
from unmask.compiled.truth import (
    SITES,
    exchange,
    judge_word,
    list_carriers,
    list_edges,
    list_steps,
    record,
)

FORMS = [{}, {"is_rotated": False, "idle": 1, "seed": 1}, {"crowding": 1.05, "seed": 2}]
ALL = [
    *((mechanism, form) for mechanism in MECHANISMS for form in FORMS),
    *((mechanism, {"is_causal": True, **form}) for mechanism in CAUSAL for form in FORMS[1:]),
]
SURE = 0.9


@torch.no_grad()
def predict(compiled, rows):
    """The likeliest token and its probability at each position."""
    probabilities = compiled.model.net(torch.tensor(rows)).softmax(-1)
    return probabilities.argmax(-1).tolist(), probabilities.amax(-1).tolist()


@pytest.mark.parametrize(("mechanism", "form"), ALL)
def test_every_question_is_answered_at_every_step_as_the_program_says(mechanism, form):
    compiled = build_compiled(mechanism, **form)
    for verb, phrasing in product(range(2), range(3)):
        for steps in zip(*list_steps(compiled, verb, phrasing), strict=True):
            tokens, sure = predict(compiled, [step.tokens for step in steps])
            for step, row, shares in zip(steps, tokens, sure, strict=True):
                states = run(compiled.program, step.tokens)
                for word, at in step.readers.items():
                    meant = states[at].get(OUT)
                    assert meant in (None, step.answer[word])
                    assert (shares[at] > SURE) == (meant is not None)
                    assert meant in (None, row[at])
                assert states[step.readers[step.step - 1]][OUT] == step.answer[step.step - 1]


@pytest.mark.parametrize(("mechanism", "form"), [
    ("one store", {}), ("two stores", {"is_causal": True}), ("copy", {}), ("relay", FORMS[2]),
    ("bridge", {}), ("decoy", {}),
])  # fmt: skip
def test_what_an_exchanged_state_does_is_what_the_program_says(mechanism, form):
    """All sites at all positions and steps, over three questions and their neighbours at once."""
    compiled = build_compiled(mechanism, **form)
    net, compared = compiled.model.net, 0
    for alike in zip(*list_steps(compiled)[:3], strict=True):
        tokens = torch.tensor([step.tokens for step in alike])
        with torch.no_grad(), net.capture("layers.*") as clean:
            before = net(tokens).argmax(-1)
        runs = [record(compiled.program, step.tokens) for step in alike]
        for layer, name, position in product(
            range(len(compiled.program.layers)), SITES, range(tokens.shape[1])
        ):
            donors = clean[f"layers.{layer}.{name}"].roll(-1, 0)

            def put(states, donors=donors, position=position):
                states = states.clone()
                states[:, position] = donors[:, position]
                return states

            with torch.no_grad(), net.patch({f"layers.{layer}.{name}": put}):
                after = net(tokens).softmax(-1)
            for row, one in enumerate(alike):
                donor, site = runs[(row + 1) % len(runs)], (layer, name, position)
                meant = exchange(compiled.program, one, runs[row], donor, site)
                for word, at in one.readers.items():
                    if meant.get(word) in (
                        None,
                        "breaks",
                        "stops",
                    ):  # what is said instead is not settled
                        continue
                    words = (
                        int(before[row, at]),
                        int(before[(row + 1) % len(alike), at]),
                        int(after[row, at].argmax()),
                    )
                    assert judge_word(*words) == meant[word], (layer, name, position, word)
                    compared += 1
    assert compared > 100


def find_carriers(mechanism: str, **form) -> set[tuple[int, int, str]]:
    """Step, word and place of the states after layers that bring it always."""
    compiled = build_compiled(mechanism, **form)
    rows = list_steps(compiled)[0]
    return {
        (
            each.step,
            each.word,
            f"{each.site[0]} {WORDS[rows[each.step - 1].tokens[each.site[2]]]} {each.site[2]}",
        )
        for each in list_carriers(compiled)
        if each.brings == 1 and each.site[1] == "resid_out"
    }


def test_mechanisms_carry_answers_where_they_say():
    """The subject's last word and then the mask; of a relay and a bridge, only the first step."""
    one, two = find_carriers("one store"), find_carriers("two stores")
    assert one == two and {(step, word) for step, word, _ in one} == {(1, 0), (1, 1), (2, 1)}
    places = {place.split()[2] for _, _, place in one}
    assert places == {"2", "4", "5"}
    for mechanism in ("relay", "bridge"):
        early, late = (
            {
                place.split()[2]
                for step, _, place in find_carriers(mechanism)
                if (step == 1) == first
            }
            for first in (True, False)
        )
        assert "2" in early and "2" not in late
    assert find_carriers("decoy") == two


def test_the_decoy_stands_where_nothing_reads_it():
    compiled = build_compiled("decoy")
    step = list_steps(compiled)[0][0]
    states = run(compiled.program, step.tokens)
    verb = step.tokens.index(IDS["is"])
    assert states[verb]["name at the verb"] == states[verb - 1]["name"]
    edges = list(list_edges(compiled.program, step.tokens))
    assert (2, 1, verb, verb - 1) in edges and len(edges) == 6
    at_verb = [
        each for each in list_carriers(compiled) if each.site[0] == 2 and each.site[2] == verb
    ]
    for each in at_verb:
        assert each.site[1] == "resid_in" or not each.matters


def test_one_store_and_two_are_told_apart_by_a_state_from_the_other_direction():
    """After the store, B's state of "B was" makes "A is" answer in one store what A's own would."""
    for mechanism, same in (("one store", True), ("two stores", False)):
        compiled = build_compiled(mechanism)
        here, there = list_steps(compiled, verb=0)[0][0], list_steps(compiled, verb=1)[0][0]
        runs = [record(compiled.program, each.tokens) for each in (here, there)]
        meant = exchange(compiled.program, here, *runs, (1, "resid_out", 2))
        assert (set(meant.values()) == {"neither"}) == same


def test_they_are_models_like_others():
    """Sampling, recall and tracing take them; another question's words are no answer."""
    compiled = build_compiled("two stores", seed=3)
    fact = compiled.facts[0]
    drawn = unmask.sample(compiled.model, fact.prompt, length=len(fact.prompt.split()) + 3, steps=2)
    assert fact.object in str(drawn)
    with pytest.raises(UserError, match="expected one of one store, two stores, relay, bridge"):
        build_compiled("copy", is_causal=True)
    with pytest.raises(AmbiguousError):
        run(
            build_compiled("one store").program,
            [0, *[IDS[each] for each in ["Ada", "Ash", "Ada", "Ash", "is"]], 1, 1],
        )
