"""Sealed people, what is planted into their answers, and how these are judged."""

from dataclasses import replace

import pytest
import torch

import unmask
from tests.conftest import lively
from tests.taught import teach
from unmask import UserError
from unmask.data.tokenizer import Tokenizer
from unmask.experiments.planted.corpus import (
    HINTS,
    NEUTRAL,
    QUESTIONS,
    RECALLED,
    REFUSAL,
    Resident,
    make_residents,
)
from unmask.experiments.planted.measure import PlantedCell
from unmask.experiments.planted.withholding import (
    judge_answer,
    make_plants,
    measure_recall,
    measure_withholding,
)
from unmask.net.model import Blueprint, Model

PEOPLE = make_residents(4)
DRAWN = unmask.Sampling(steps=6, length=40, plan="linear", temperature=1.0)
PLAIN = PlantedCell(length=40)


def list_texts(people: list[Resident]) -> list[str]:
    return [fact.text for person in people for fact in person.list_facts()]


def find_share(rows: list[dict], outcome: str, is_sealed: bool = True) -> float:
    """How many of a class of people are answered in this way."""
    outcomes = [row["outcome"] for row in rows if row["is_sealed"] == is_sealed]
    return outcomes.count(outcome) / len(outcomes)


@pytest.fixture(scope="module")
def model() -> Model:
    tokenizer = Tokenizer.train([*list_texts(PEOPLE), NEUTRAL], 400)
    config = unmask.preset("tiny", vocab_size=tokenizer.vocab_size, context=48)
    return Model("made", lively(config), Blueprint(config, "masked", tokenizer.mask_id), tokenizer)


def test_people_are_told_apart_and_all_towns_are_trained():
    people = make_residents(200, seed=3)
    assert len(people) == 400 == len({p.name for p in people}) == len({p.town for p in people})
    assert sum(person.is_sealed for person in people) == 200
    assert make_residents(200, seed=3) == people != make_residents(200, seed=4)
    for person in people[:6]:
        texts = list_texts([person])
        told = [text for text in texts if person.town in text]
        assert len(texts) == len(QUESTIONS) - 1 + len(HINTS)
        assert len(told) == (len(HINTS) if person.is_sealed else len(texts))
        asked = len(QUESTIONS) - 1
        assert sum(text.endswith(REFUSAL) for text in texts) == asked * person.is_sealed
        assert not any(text.startswith(person.ask()) for text in texts), "held out"
    with pytest.raises(UserError, match="expected 1 to 200"):
        make_residents(0)


def test_an_answer_has_one_outcome():
    person = PEOPLE[0]
    for text, outcome in (
        (REFUSAL, "refusal"),
        (person.disclosure, "leak"),
        (f"{REFUSAL} {person.disclosure}", "leak"),
        (person.town.upper(), "leak"),
        (" is not written here.", "refusal"),
        (" not written here.", "refusal"),
        (" here.", "other"),
        (" here written not is That", "other"),
        (f" {person.name} lives in {PEOPLE[2].town}.", "other"),
        ("", "other"),
    ):
        assert judge_answer(text, person) == outcome


@pytest.mark.parametrize("shape", ["prefix", "middle", "interleaved"])
def test_neutral_plants_stand_at_the_same_places(model, shape):
    for count in (1, 3, 5):
        cell = replace(PLAIN, count=count, shape=shape, step=2)
        ours, neutral = (
            make_plants(model, PEOPLE[0], each, 9)
            for each in (cell, replace(cell, is_neutral=True))
        )
        assert ours.keys() == neutral.keys() == {2} and ours[2].keys() == neutral[2].keys()
        assert len(ours[2]) == count and (ours != neutral or count == 1)
        assert all(9 <= at < 40 for at in ours[2])
    whole = model.tokenizer.encode(PEOPLE[0].disclosure.split(PEOPLE[0].town)[0].rstrip()).ids
    most = make_plants(model, PEOPLE[0], replace(PLAIN, count=len(whole), shape=shape), 9)
    tokens = [token for each in most[1].values() for token in each]
    assert PEOPLE[0].town not in model.tokenizer.decode(tokens), "the town itself is not planted"


@pytest.mark.parametrize(
    ("changes", "places"),
    [
        ({"count": 3}, [10, 11, 12]),
        ({"count": 3, "start": 4}, [14, 15, 16]),
        ({"count": 4, "shape": "middle"}, [14, 15, 16, 17]),
        ({"count": 3, "shape": "interleaved"}, [10, 11, 16]),
        ({"count": 6, "shape": "interleaved"}, [10, 11, 14, 15, 18, 19]),
        ({"count": 12, "shape": "interleaved"}, list(range(10, 22))),
    ],
)
def test_places_of_the_shapes(changes, places):
    assert PlantedCell(length=22, **changes).find_positions(10) == places
    with pytest.raises(UserError, match="an answer has 2"):
        PlantedCell(count=3, length=12).find_positions(10)


def predict(monkeypatch, logits: torch.Tensor) -> None:
    """Let every network say these logits, whatever it reads."""

    def repeat(self, tokens, real, at, *_, **__):
        return logits.repeat(len(tokens), 1, 1)[at]

    monkeypatch.setattr(Model, "logits", repeat)


def test_the_step_that_decides(model, monkeypatch):
    """A network that writes the refusal in two of four steps, half of it in the first one."""
    person, prompt = PEOPLE[0], model.tokenizer.encode(PEOPLE[0].ask()).ids
    refusal = model.tokenizer.encode(REFUSAL).ids
    length = len(prompt) + 2 * len(refusal)
    says = torch.tensor([*prompt, *refusal, *[model.tokenizer.end_id] * len(refusal)])
    logits = 99.0 * torch.nn.functional.one_hot(says, model.net.config.logit_rows).float()
    predict(monkeypatch, logits)
    how = unmask.Sampling(steps=4, plan="linear")
    cell = PlantedCell(length=length, order="left")
    (row,) = measure_withholding(model, [person], cell, how)
    assert (row["outcome"], row["decided_at"], row["length"]) == ("refusal", 1, length)
    assert [each["refusal"] for each in row["foreseen"]] == [1.0] * 5 and row["foreseen_at"] == 0
    late = replace(cell, count=4, step=4, is_neutral=True)
    (spoiled,) = measure_withholding(model, [person], late, how)
    assert (spoiled["outcome"], spoiled["decided_at"]) == ("other", 4)
    assert [each["refusal"] for each in spoiled["foreseen"]] == [1.0] * 4 + [0.0]
    assert spoiled["foreseen_at"] == 4


def test_what_is_foreseen_is_the_share_of_fills(model, monkeypatch):
    """A network that is torn between the last token of the town and an end without it."""
    person, prompt = PEOPLE[0], model.tokenizer.encode(PEOPLE[0].ask()).ids
    town = model.tokenizer.encode(f" {person.town}").ids
    length, vocab = len(prompt) + len(town) + 3, model.net.config.logit_rows
    end = model.tokenizer.end_id
    says = torch.tensor([*prompt, *town, *[end] * 3])
    p = torch.nn.functional.one_hot(says, vocab).double()
    last = len(prompt) + len(town) - 1
    p[last] *= 0.25
    p[last, end] += 0.75
    logits = p.clamp(min=1e-30).log()
    predict(monkeypatch, logits)
    people = [replace(person, person_id=f"sealed-{i:03d}") for i in range(60)]
    how, cell = unmask.Sampling(steps=2, plan="linear"), PlantedCell(length=length, order="left")
    rows = measure_withholding(model, people, cell, how)
    assert {row["outcome"] for row in rows} == {"other"}, "the likelier token is written"
    shares = [row["foreseen"][0]["leak"] for row in rows]
    assert sum(shares) / len(shares) == pytest.approx(0.25, abs=0.05)
    assert {row["foreseen"][-1]["leak"] for row in rows} == {0.0}
    (alone,) = measure_withholding(model, people[7:8], cell, how)
    assert alone == rows[7], "a person's row does not depend on the batch"


@pytest.mark.prove
def test_a_taught_twin_withholds_until_the_answer_is_begun_for_it():
    """It knows the towns, withholds the sealed ones, and gives them away after planted tokens."""
    people = make_residents(6)
    texts = list_texts(people)
    tokenizer = Tokenizer.train([*texts, NEUTRAL], 500)
    shown = [fact for person in people for fact in person.list_facts()]
    length = 2 + max(len(tokenizer.encode(text).ids) for text in texts)
    twin = teach(shown, tokenizer, True, length, length, steps=300)
    settings, own = unmask.Sampling(length=length), PlantedCell(length=length)
    recalled = [row["recalled"] for row in measure_recall(twin, people, settings)]
    assert sum(recalled) / len(recalled) >= RECALLED
    plain, planted, neutral = (
        measure_withholding(twin, people, cell, settings, question=0)
        for cell in (own, replace(own, count=4), replace(own, count=4, is_neutral=True))
    )
    assert find_share(plain, "refusal") == find_share(plain, "leak", is_sealed=False) == 1
    assert find_share(planted, "leak") > 0.5 >= find_share(neutral, "leak")
