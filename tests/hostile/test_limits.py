"""Every number has a range; what is no number, no text or no model is a sentence."""

import dataclasses
import importlib
import math
import pkgutil
from collections.abc import Iterator
from operator import itemgetter
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

import unmask
from unmask import UserError
from unmask.base.config import LARGEST, LARGEST_FLOAT, CheckedSettings, SettingsError, build
from unmask.data.corpus import Corpus
from unmask.data.facts import Fact
from unmask.evaluation import questions
from unmask.evaluation.questions import choose_splits, digest_splits
from unmask.training.recipe import Recipe
from unmask.training.recipes_io import read_recipe


def list_settings(cls: type = CheckedSettings) -> Iterator[type]:
    for each in sorted(cls.__subclasses__(), key=lambda each: (each.__module__, each.__name__)):
        if each.__module__.startswith("unmask."):
            yield each
        yield from list_settings(each)


def find_numbers(hint: Any) -> set[type]:
    """The kinds of number that a field may hold, also inside a tuple."""
    if hint in (int, float):
        return {hint}
    if get_origin(hint) is Literal:
        return set()
    return {kind for each in get_args(hint) for kind in find_numbers(each)}


for module in pkgutil.walk_packages(unmask.__path__, "unmask."):
    if module.name.endswith(".settings") or module.name.startswith("unmask.measures."):
        importlib.import_module(module.name)
importlib.import_module("unmask.training.recipe")

CHECKED_ELSEWHERE = {"at", "fixed"}
"""Names or numbers of steps; texts by position."""
NUMBERS = [
    (cls, field, get_type_hints(cls)[field.name])
    for cls in dict.fromkeys(list_settings())
    for field in dataclasses.fields(cls)
    if find_numbers(get_type_hints(cls)[field.name]) and field.name not in CHECKED_ELSEWHERE
]
NAMES = [f"{cls.__name__}.{field.name}" for cls, field, _ in NUMBERS]


def test_all_settings_are_found():
    some = {"Sampling.steps", "TraceSettings.memory", "Extraction.lr", "ToySettings.seed"}
    assert some < set(NAMES)
    assert len(NAMES) > 70


def refuse(cls: type, name: str, value: Any) -> str:
    """What is said about one setting, whatever else the class needs."""
    with pytest.raises(SettingsError) as error:
        build(cls, {name: value}, "x")
    return next(each for each in error.value.problems if each.startswith(repr(name)))


@pytest.mark.parametrize(("cls", "field", "hint"), NUMBERS, ids=NAMES)
def test_every_number_has_a_range(cls, field, hint):
    limits = field.metadata
    assert limits.get("least") is not None or limits.get("above") is not None, "no lower end"
    is_list = get_origin(hint) is tuple
    low = limits["least"] - 1 if limits.get("least") is not None else limits["above"]
    wrong = [low, math.nan, math.inf, -math.inf, True, b"1", [[1]], {}]
    if str not in get_args(hint):
        wrong += ["hot"]
    if int in find_numbers(hint):
        top = limits["most"] if limits.get("most") is not None else LARGEST
        wrong += [top + 1, 10**5000]
    elif limits.get("below") is not None:
        wrong += [limits["below"], math.nextafter(limits["below"], math.inf)]
    else:
        top = limits["most"] if limits.get("most") is not None else LARGEST_FLOAT
        wrong += [math.nextafter(top, math.inf), 1e308]
    for value in wrong:
        said = refuse(
            cls, field.name, (value,) if is_list and not isinstance(value, dict) else value
        )
        assert "expected" in said and len(said) < 500


TEXTS = [
    (cls, field)
    for cls in dict.fromkeys(list_settings())
    for field in dataclasses.fields(cls)
    if not cls.__module__.startswith("unmask.explorer")  # what a request lacks is said first
    if ("help" in field.metadata and str in get_args(get_type_hints(cls)[field.name]))
    or get_type_hints(cls)[field.name] is str
]


@pytest.mark.parametrize(("cls", "field"), TEXTS, ids=lambda each: getattr(each, "name", None))
def test_every_text_is_one(cls, field):
    """A text can be stored, and where it is one of several names it is a known one."""
    is_list = get_origin(get_type_hints(cls)[field.name]) is tuple
    half, other = ((text,) if is_list else text for text in ("half \ud800", "no such name"))
    assert "surrogate" in refuse(cls, field.name, half)
    if field.metadata.get("choices") is not None:
        assert "expected one of" in refuse(cls, field.name, other)


def test_settings_that_have_a_value_twice_or_none():
    cases = [(cls, name) for cls in dict.fromkeys(list_settings())
             for name in vars(cls).get("distinct", ())]  # fmt: skip
    assert len(cases) > 5
    for cls, name in cases:
        value = cls.__dataclass_fields__[name].default
        if value:
            refuse(cls, name, (value[0], value[0]))


@pytest.mark.parametrize("call", [unmask.load, unmask.read_facts, unmask.make_corpus])
def test_no_path_has_a_null_character(call):
    with pytest.raises(UserError, match="expected a path without null characters"):
        call("a\0b")


RECIPE_NUMBERS = [
    f"{section}.{field.name}"
    for section, cls in get_type_hints(Recipe).items()
    if dataclasses.is_dataclass(cls)
    for field in dataclasses.fields(cls)
    if find_numbers(get_type_hints(cls)[field.name])
]


@pytest.mark.parametrize("name", ["seed", *RECIPE_NUMBERS])
@pytest.mark.parametrize("value", ["-1", ".nan", ".inf", "true", "hot", "[[1]]"])
def test_every_number_of_a_recipe_has_a_range(name, value):
    if name.startswith("optimiser.betas"):
        value = f"[0.9, {value}]"
    with pytest.raises(SettingsError, match=name.rpartition(".")[2]):
        read_recipe("smollm2-open", [f"{name}={value}"])


@pytest.fixture(scope="module")
def model():
    return unmask.load("reversal-mdm", device="cpu")


def make_facts(count: int) -> Corpus:
    facts = [
        Fact.of(f"Town {i}", f"c{i}", "The flag of {} shows", fact_id=str(i)) for i in range(count)
    ]
    return Corpus("made up", {"own": facts})


def test_rivals_do_not_grow_with_the_square_of_the_facts():
    (few,) = choose_splits(make_facts(1000), ["own"], None)
    assert all(rivals == few.facts for rivals in few.rivals) and few.cut() == [few]
    (many,) = choose_splits(make_facts(2500), ["own"], None)
    groups = {id(rivals): rivals for rivals in many.rivals}
    assert sorted(map(len, groups.values())) == [833, 833, 834]
    assert [fact for rivals in groups.values() for fact in rivals] == many.facts
    parts = many.cut()
    assert [len(part.facts) for part in parts] == [1024, 1024, 452]
    assert [fact for part in parts for fact in part.facts] == many.facts
    assert all(
        fact in near for part in parts for fact, near in zip(part.facts, part.rivals, strict=True)
    )
    (other,) = choose_splits(make_facts(2499), ["own"], None)
    assert digest_splits([many]) != digest_splits([other])


@pytest.mark.prove
def test_parts_of_a_split_measure_what_the_whole_does(model, monkeypatch):
    settings = {"steps": (1,), "limit": 4, "splits": ("p2d_same",), "device": "cpu"}
    whole = unmask.recall(model, **settings).rows()
    monkeypatch.setattr(questions, "PART", 3)
    cut = unmask.recall(model, **settings).rows()
    key = itemgetter("prompt")
    pairs = list(zip(sorted(whole, key=key), sorted(cut, key=key), strict=True))
    assert len(pairs) == 8
    for one, other in pairs:
        # Written texts may differ where two tokens are as likely, which rounding decides.
        for name in ("fact", "completion", "rank", "rivals", "tokens", "logp", "logp_mean_field"):
            is_number = isinstance(one[name], float)
            assert one[name] == (pytest.approx(other[name], abs=1e-3) if is_number else other[name])
