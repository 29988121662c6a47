"""Steering as a measure: what is added, what is counted, and what is chosen at equal damage."""

import pyarrow
import pytest
import torch

from tests.measures.asking import ask, show
from tests.representation.facts import PEOPLE, make_fact, make_model
from unmask.base.errors import UserError
from unmask.blocks.tidy import select
from unmask.dictionaries.dictionary import make_random_dictionary
from unmask.dictionaries.steering import choose_steps
from unmask.dictionaries.targets import Heading, count_firing, find_heading, has_words
from unmask.measures import steer_texts
from unmask.measures.steer import MEASURE
from unmask.measures.steer_section import choose_strengths, summarise
from unmask.net.families import Family
from unmask.net.loading import save

SITE, LENGTH = "layers.1.resid_out", 16
FACTS = [make_fact(i, way, p) for i in range(len(PEOPLE)) for way in ("p2d", "d2p") for p in (0, 1)]
LINES = [fact.text for fact in FACTS]
SIDES = [x for x in LINES if "Ada" in x], [x for x in LINES if "Ada" not in x][:5]
SMALL = {"number": 2, "texts": 2, "facts": 1, "lines": 4, "steps": 4, "length": 20}


def test_words_count_as_words():
    assert has_words("They say Ada, who paints.", ["ada"])
    assert has_words("the painter of red boats", ["nobody", "Red boats"])
    assert not has_words("Adamant boats", ["Ada"]) and not has_words("Ada", [])


def test_a_direction_is_a_difference_of_means_over_lines_and_steps():
    """By hand at the last of two steps, where half is masked, and the first, where all is."""
    model = make_model()
    found = find_heading(model, SITE, SIDES, 2, LENGTH)
    given = find_heading(model, SITE, SIDES, 2, LENGTH, 3 * found.direction)
    assert torch.allclose(found.direction, given.direction, atol=1e-6)
    assert found.gaps == pytest.approx(given.gaps, abs=1e-4)
    # Lines of equal length are alike where all is masked: the only difference is at step 2.
    assert found.size > 0 and found.gaps[1] > abs(found.gaps[0])
    assert float(found.direction.norm()) == pytest.approx(1.0)
    away = find_heading(model, SITE, SIDES[::-1], 2, LENGTH, found.direction)
    assert away.gaps[1] < 0
    with pytest.raises(UserError, match="has no length"):
        find_heading(model, SITE, SIDES, 2, LENGTH, torch.zeros(64))


def test_firing_is_counted_at_a_lines_own_positions():
    model, dictionary = make_model(), make_random_dictionary(64, 12, 3)
    fires = count_firing(model, SITE, dictionary, LINES[:2], LENGTH)
    end = model.require_tokenizer().end_id
    for row, line in enumerate(LINES[:2]):
        ids = model.encode(line).ids
        tokens = torch.tensor([[*ids, *[end] * (LENGTH - len(ids))]])
        with model.net.capture(SITE) as taken:
            model.logits(tokens)
        own = dictionary.encode(taken[SITE][0, : len(ids)]) > 0
        assert torch.allclose(fires[row], own.float().mean(0))


def test_every_schedule_adds_as_much(tmp_path, monkeypatch):
    """strength · S · size · direction over a text's steps, whatever the schedule."""
    doses = []
    heading = Heading(torch.ones(64) / 8, 2.0, (0.0, 1.0, 4.0, 5.0))
    monkeypatch.setattr(steer_texts.SteeredTexts, "head", lambda *_: heading)

    def note(model, prompts, site, length, steps, way, drawn_by):
        if way is not None and drawn_by:
            doses.append(way)
        return ["They say nothing"] * len(prompts)

    monkeypatch.setattr(steer_texts, "_continue", note)
    given = SMALL | {"number": 1, "strengths": (0.5,), "layer": 1}
    ask(MEASURE, [Family("m", (make_model(),), "masked")], FACTS, tmp_path / "run", **given)
    steps = [{1, 2, 3, 4}, {1, 2}, {3, 4}, {3}]
    assert [set(chosen) for _, _, chosen in doses[::2]] == steps
    assert choose_steps("all", 4) == steps[0] and heading.forming == [3]
    for unit, dose, chosen in doses:
        assert dose * len(chosen) == pytest.approx(0.5 * 4 * 2.0)
        assert float(unit.norm()) == pytest.approx(1.0)
    own, random = doses[0][0], doses[1][0]
    assert torch.equal(own, heading.direction) and abs(float(own @ random)) < 0.9


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("steer")
    save(make_model(kind="causal"), folder / "judge")
    given = SMALL | {"strengths": (0.5, 200.0), "judge": str(folder / "judge")}
    given |= {"schedules": ("all", "forms")}
    families = [Family("m", (make_model(),), "masked")]
    return ask(MEASURE, families, FACTS, folder / "run", **given)


def test_texts_of_all_ways_stand_beside_the_unsteered_ones(result):
    rows = result.tables["steer"].to_pylist()
    assert len(rows) == 2 * 2 * (1 + 2 * 2 * 2)
    for target in {row["target"] for row in rows}:
        plain = [row["text"] for row in select(rows, target=target, added="none")]
        strong = select(rows, target=target, added="own", schedule="all", strength=200.0)
        assert len(plain) == 2 and [row["text"] for row in strong] != plain
    assert all(row["per_token"] > 0 for row in rows if row["text"].strip())
    means = select(result.summary["effect"], metric="brought")
    assert {row["added"] for row in means} == {"own", "random", "none"}
    asked = result.tables["recall"].to_pylist()
    stated = {row["target"] for row in asked if row["fact"] == row["target"]}
    assert asked and not stated  # a target's own fact is not asked
    assert {row["budget"] for row in result.summary["chosen"]} == {0.5, 1.0}
    text = show(result)
    for words in ("where it forms", "a random direction", "unsteered", "distinct-2", "recalled"):
        assert words in text


def test_a_strength_is_chosen_on_one_half_and_read_on_the_other():
    def make(schedule, strength, brought, cost):
        about = {"model": "m", "seed": 0, "target": "a", "schedule": schedule}
        about |= {"strength": strength, "added": "own" if strength else "none"}
        return [
            about | {"fact": f"a-{i:03d}", "brought": brought[i % 2], "per_token": cost}
            for i in range(4)
        ]

    rows = [*make("none", 0.0, (0, 0), 2.0), *make("all", 1.0, (0.5, 0), 2.4)]
    rows += [*make("all", 2.0, (0, 0.5), 2.4), *make("all", 9.0, (1, 1), 2.6)]
    chosen = list(choose_strengths(rows, 0.5))
    every = select(chosen, schedule="all")
    # The best on even texts is the worst on odd ones, and 9 costs more than the budget.
    assert {(row["fact"], row["strength"], row["brought"]) for row in every} == {
        ("a-000", 2.0, 0), ("a-002", 2.0, 0), ("a-001", 1.0, 0), ("a-003", 1.0, 0)
    }  # fmt: skip
    assert {row["strength"] for row in select(chosen, schedule="none")} == {0.0}
    wide = select(list(choose_strengths(rows, 1.0)), schedule="all")
    assert {(row["strength"], row["brought"]) for row in wide} == {(9.0, 1)}
    assert not list(choose_strengths([row | {"per_token": None} for row in rows], 1.0))
    # Without unsteered texts in one half, nothing is known of the other.
    few = [row for row in rows if row["strength"] or row["fact"] in ("a-000", "a-002")]
    assert {row["fact"] for row in choose_strengths(few, 1.0)} == {"a-001", "a-003"}


def test_schedules_without_all_steps_have_no_difference(result):
    kept = [row for row in result.tables["steer"].to_pylist() if row["schedule"] != "all"]
    tables = {**result.tables, "steer": pyarrow.Table.from_pylist(kept)}
    summary = summarise(tables, MEASURE.settings(budget=0.0))
    assert {row["schedule"] for row in summary["chosen"]} == {"none", "forms"}
    assert {row["budget"] for row in summary["chosen"]} == {0.0} and not summary["gained"]


def test_features_and_vectors_are_asked_for(tmp_path):
    from safetensors.torch import save_file

    families = [Family("m", (make_model(),), "masked")]
    make_random_dictionary(64, 12, 3).save(tmp_path / "dictionary")
    save_file({"direction": torch.ones(64)}, tmp_path / "vector.safetensors")
    few = SMALL | {"schedules": ("early",), "strengths": (1.0,), "facts": 0, "layer": 1}
    named = {"dictionary": str(tmp_path / "dictionary"), "features": (3,)}
    rows = ask(MEASURE, families, FACTS, tmp_path / "one", **few, **named).tables["steer"]
    rows = rows.to_pylist()
    assert {row["target"] for row in rows} == {"feature 3"}
    assert all(0 <= row["brought"] <= 1 and row["per_token"] is None for row in rows)
    named = {"vector": str(tmp_path / "vector.safetensors"), "words": ("Ada", "Bob")}
    result = ask(MEASURE, families, FACTS, tmp_path / "two", **few, **named)
    assert set(result.tables["steer"]["target"].to_pylist()) == {"the vector"}
    assert not result.summary["chosen"] and "steps" in show(result)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"features": (3,)}, "expected both or neither"),
        ({"vector": "v.safetensors"}, "expected those that it should bring"),
        ({"words": ("no such word",)}, "at least 2 of both"),
        ({"layer": 9}, "has layers 0 to 3"),
        ({"words": ("red", "red")}, "words"),
        ({"schedules": ("sometimes",)}, "sometimes"),
    ],
)
def test_wrong_requests_are_refused(tmp_path, changes, words):
    families = [Family("m", (make_model(),), "masked")]
    with pytest.raises(UserError, match=words):
        ask(MEASURE, families, FACTS, tmp_path / "run", **SMALL | changes)


def test_causal_models_are_refused(tmp_path):
    families = [Family("twin", (make_model(kind="causal"),), "causal")]
    with pytest.raises(UserError, match="masked models alone"):
        ask(MEASURE, families, FACTS, tmp_path / "run", **SMALL)
