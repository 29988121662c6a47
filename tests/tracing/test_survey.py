"""Surveys: tables that are complete, resumable and shared by processes, with their controls."""

from dataclasses import replace
from threading import Thread

import pyarrow.compute as pc
import pytest
import torch

import unmask
from tests.tracing.conftest import LENGTH
from tests.tracing.test_steps import recalled
from unmask import UserError
from unmask.base.tables import read_table
from unmask.tracing import question as questions
from unmask.tracing import survey as surveys
from unmask.tracing.averages import OTHER_TOKEN
from unmask.tracing.controls import choose_other, make_donor, make_foil
from unmask.tracing.corruption import Noise
from unmask.tracing.question import Donor
from unmask.tracing.survey import (
    Survey,
    choose_facts,
    make_corruption,
    make_fact,
    run_survey,
    trace_one,
)
from unmask.tracing.table import ASKED, OTHER_FACT, RESULT, SHUFFLED

SURVEY = Survey(steps=6, length=LENGTH, window=2, samples=2, at=("first", "last"))


@pytest.fixture(scope="module")
def done(causal, tmp_path_factory):
    """A finished survey of the causal model, one answer of which is wrong."""
    from tests.tracing.conftest import make_facts

    facts = make_facts()
    facts[-1] = replace(facts[-1], object="old boats", completion=" old boats", object_span=(1, 10))
    folder = tmp_path_factory.mktemp("survey")
    return facts, folder, run_survey(causal, facts, SURVEY, folder)


def test_what_is_kept_and_dropped_is_counted(done):
    facts, folder, summary = done
    assert summary.kept == 7 and summary.dropped == {"not recalled": 1}
    told = read_table(folder / "facts.parquet", "trace-facts/1").to_pylist()
    assert [row["kept"] for row in told] == [True] * 7 + [False]
    assert told[0]["said"].strip() == facts[0].object and 0.5 < told[0]["clean"] <= 1
    assert {(row["t1"], row["t2"]) for row in told[:7]} == {(1, 2)}


def test_the_table_is_tidy_and_complete(done, causal):
    facts, folder, _ = done
    table = read_table(folder / "trace.parquet", "trace/1")
    assert table.schema.names == [
        "fact",
        "phrasing",
        "direction",
        "trained",
        "kind",
        "corruption",
        "stage",
        "step",
        "control",
        "part",
        "layer",
        "head",
        "token",
        "role",
        "sample",
        "value",
    ]
    mine = (pc.field("fact") == "fact-0") & (pc.field("phrasing") == 0)
    first = table.filter(mine & (pc.field("stage") == "first"))
    result = first.filter(pc.field("control") == RESULT)
    tokens = len(causal.tokenizer.encode(facts[0].text).ids) - 1
    for part in ("resid", "mlp", "attn"):
        rows = result.filter(pc.field("part") == part)
        assert rows.num_rows == tokens * causal.net.config.layers * SURVEY.samples
    assert set(first["control"].to_pylist()) == {RESULT, OTHER_FACT, SHUFFLED}
    # The numbers are the trace's own.
    course = unmask.tracing.course.follow(causal, facts[0], SURVEY.steps, LENGTH)
    noise = make_corruption(SURVEY, causal, facts)
    (grid,) = unmask.trace_steps(causal, course, 6, "first", corruption=noise, window=2)
    cell = (pc.field("part") == "mlp") & (pc.field("layer") == 1) & (pc.field("token") == 2)
    found = result.filter(cell & (pc.field("sample") == 1))["value"].to_pylist()
    assert found == pytest.approx([float(grid.values("mlp")[2, 1, 1])], abs=1e-9)
    flows = table.filter(mine & (pc.field("part") == "flow"))
    assert sorted(flows["role"].to_pylist()) == ["committed", "subject"]


def test_averages_have_their_controls_beside_them(done):
    _, folder, _ = done
    rows = read_table(folder / "averages.parquet", "trace-averages/1").to_pylist()
    found = {(row["control"], row["role"]) for row in rows if row["part"] == "mlp"}
    assert (RESULT, "last subject") in found and (OTHER_TOKEN, "placebo") in found
    assert (OTHER_FACT, "last subject") in found and (SHUFFLED, "last subject") in found
    assert all(row["facts"] == 4 for row in rows if row["role"] == "last subject")


def test_a_survey_goes_on_where_it_stopped(causal, facts, tmp_path, monkeypatch):
    """Interrupted after three facts, the rest is traced later and nothing twice."""
    traced, once = [], surveys.trace_fact

    def count(model, fact, *rest):
        if len(traced) == 3:
            raise KeyboardInterrupt
        traced.append((fact.fact_id, fact.phrasing))
        return once(model, fact, *rest)

    monkeypatch.setattr(surveys, "trace_fact", count)
    with pytest.raises(KeyboardInterrupt):
        run_survey(causal, facts, SURVEY, tmp_path / "cut")
    assert not (tmp_path / "cut" / "trace.parquet").exists()
    monkeypatch.setattr(
        surveys,
        "trace_fact",
        lambda model, fact, *rest: (
            traced.append((fact.fact_id, fact.phrasing)) or once(model, fact, *rest)
        ),
    )
    run_survey(causal, facts, SURVEY, tmp_path / "cut")
    assert len(traced) == len(set(traced)) == len(facts)
    monkeypatch.setattr(surveys, "trace_fact", once)
    run_survey(causal, facts, SURVEY, tmp_path / "whole")
    for name in ("trace.parquet", "averages.parquet", "facts.parquet"):
        cut, whole = (tmp_path / each / name for each in ("cut", "whole"))
        assert cut.read_bytes() == whole.read_bytes()


def test_processes_share_the_facts(causal, facts, tmp_path):
    """The first waits for the second's parts and gathers the table that one alone would write."""
    second = Thread(target=run_survey, args=(causal, facts, SURVEY, tmp_path / "two", None, 1, 2))
    # One after the other: a network's captures are one thread's at a time.
    second.start()
    second.join()
    assert len(list((tmp_path / "two" / "records").iterdir())) == len(facts) // 2
    summary = run_survey(causal, facts, SURVEY, tmp_path / "two", None, 0, 2)
    assert summary == run_survey(causal, facts, SURVEY, tmp_path / "one")
    two, one = (tmp_path / each / "trace.parquet" for each in ("two", "one"))
    assert two.read_bytes() == one.read_bytes()


def test_facts_are_chosen_whole_and_phrasings_in_turn(facts):
    assert [fact.phrasing for fact in choose_facts(facts, 3, 1)] == [0, 1, 0]
    assert [fact.phrasing for fact in choose_facts(facts, 2, 2)] == [0, 1, 1, 0]
    assert [fact.fact_id for fact in choose_facts(facts, 3, 1)] == ["fact-0", "fact-1", "fact-2"]


def test_placebos_are_other_facts(causal, facts):
    for fact in facts:
        other = choose_other(fact, facts, causal.tokenizer)
        assert other is not None and other.fact_id != fact.fact_id
        assert other.phrasing == fact.phrasing
        assert other == choose_other(fact, facts, causal.tokenizer)
    assert choose_other(facts[0], facts[:2], causal.tokenizer) is None
    course = recalled(causal, facts)
    foil = make_foil(course, facts[2], causal.tokenizer)
    assert set(foil) <= set(course.answer)
    assert list(foil.values()) == causal.tokenizer.encode(facts[2].completion).ids
    # Where the other answer agrees with the own one, it is no foil.
    answer = dict(course.answer)
    first = min(answer)
    answer[first] = foil[first]
    assert first not in make_foil(replace(course, answer=answer), facts[2], causal.tokenizer)


def test_another_answer_is_as_long_if_there_is_one(causal, facts):
    long = replace(facts[2], object="old clocks of wax masks", fact_id="long")
    long = replace(long, completion=f" {long.object}", object_span=(1, 1 + len(long.object)))
    alike = [fact for fact in facts if fact.phrasing == long.phrasing]
    longer = replace(long, object=f"{long.object} red", fact_id="longer")
    longer = replace(
        longer, completion=f" {longer.object}", object_span=(1, 1 + len(longer.object))
    )
    for seed in range(5):
        other = choose_other(long, [*alike, longer], causal.tokenizer, seed)
        assert other is not None and other.fact_id == "longer"


@pytest.mark.parametrize("metric", ["p", "logp", "logit_difference", "normalised"])
def test_every_metric_makes_a_survey(causal, facts, tmp_path, metric):
    survey = replace(SURVEY, metric=metric, parts=("resid",))
    assert run_survey(causal, facts[:4], survey, tmp_path, pool=facts).kept == 4
    table = read_table(tmp_path / "trace.parquet", "trace/1")
    assert pc.all(pc.is_finite(table["value"])).as_py()
    # A logit difference has both answers in it.
    controls = {RESULT, OTHER_FACT} | ({SHUFFLED} if metric != "logit_difference" else set())
    assert set(table["control"].to_pylist()) == controls
    asked = table.filter(pc.field("part") == ASKED)["value"].to_pylist()
    assert asked and all(1 <= count <= 4 for count in asked)


def test_a_donor_stands_in_a_state_like_ours(taught, facts):
    """Its prompt alone is another: what is committed behind ours stands behind it, too."""
    course = recalled(taught, facts)
    step = max(course.t1, course.t2)
    donor = make_donor(course, facts[2], taught.tokenizer)
    ask = {"prompt_length": course.prompt_length, "donor": donor}
    question = questions.ask(
        taught, course.state_at(step), course.subject, course.open_at(step), Noise(), **ask
    )
    found = question.continue_donor()[0].tolist()
    assert tuple(found[: len(donor.prompt)]) == donor.prompt
    behind = course.state_at(step)[course.prompt_length :].tolist()
    room = max(len(course.state_at(step)), len(donor.prompt))
    assert found[len(donor.prompt) :] == behind[: room - len(donor.prompt)]


def test_facts_may_be_called_anything(causal, facts, tmp_path):
    odd = [replace(fact, fact_id=f"a/b: {i}") for i, fact in enumerate(facts[:2])]
    assert run_survey(causal, odd, replace(SURVEY, at=("first",)), tmp_path).kept == 2
    assert {
        row["fact"] for row in read_table(tmp_path / "facts.parquet", "trace-facts/1").to_pylist()
    } == {
        "a/b: 0",
        "a/b: 1",
    }


def test_a_single_prompt_says_what_it_lacks(causal, taught, facts):
    with pytest.raises(UserError, match="no other subjects to put in"):
        trace_one(causal, facts[0], replace(SURVEY, corruption="replace"))
    with pytest.raises(UserError, match="no answer token is committed before them"):
        trace_one(causal, facts[0], replace(SURVEY, at=("first",), source="committed"))
    difference = replace(SURVEY, metric="logit_difference", at=("first",))
    with pytest.raises(UserError, match="none was given: name a foil"):
        trace_one(causal, facts[0], difference)
    _, grids = trace_one(causal, facts[0], difference, foil=facts[2])
    (grid,) = grids.values()
    assert grid.total_effect > 0


def test_a_donor_that_is_oneself_is_no_placebo(taught, facts):
    """States of the same text, moved nowhere, restore as the clean run's do."""
    course = recalled(taught, facts)
    state = course.state_at(1)
    noise = Noise(sigma=0.5, samples=2)
    settings = (taught, state, course.subject, course.open_at(1), ("resid", "mlp"), 2, noise)
    places = tuple(range(*course.subject))
    more = {"places": places, "prompt_length": course.prompt_length}
    prompt = tuple(state[: course.prompt_length].tolist())
    own = Donor(prompt, {place: place for place in places})
    same = unmask.trace_tokens(*settings, donor=own, **more)
    plain = unmask.trace_tokens(*settings, **more)
    for part in plain.logp:
        torch.testing.assert_close(same.values(part), plain.values(part), atol=1e-6, rtol=0)
    other = make_donor(course, facts[2], taught.tokenizer)
    placebo = unmask.trace_tokens(*settings, donor=other, **more)
    apart = placebo.values("resid", "logp") - plain.values("resid", "logp")
    assert apart.abs().max() > 1e-2
    assert set(other.moved) == set(places)
    with pytest.raises(UserError, match="restored, not ablated"):
        unmask.trace_tokens(*settings, donor=own, mode="ablate", **more)


def test_corruptions_by_name(masked, facts):
    for name in ("gaussian", "uniform", "rome", "mask", "mean", "replace"):
        made = make_corruption(replace(SURVEY, corruption=name), masked, facts)
        assert made.name == name
    noise = make_corruption(SURVEY, masked, facts)
    # Measured over all subjects, the same for every fact.
    assert isinstance(noise, Noise) and noise.sigma is not None


def test_a_subject_without_a_match_is_dropped(causal, facts, tmp_path):
    """No other name is as long in tokens, once its own fact is all there is."""
    swap = replace(SURVEY, corruption="replace", at=("first",))
    alone = run_survey(causal, facts[:2], swap, tmp_path / "alone")
    assert alone.kept == 0 and alone.dropped == {"no subject as long": 2}
    with_pool = run_survey(causal, facts[:2], swap, tmp_path / "pool", pool=facts)
    assert with_pool.kept == 2


def test_one_s_own_words():
    fact = make_fact("Now Ada likes", "Ada", "red boats")
    assert fact.completion == " red boats" and fact.prompt[slice(*fact.subject_span)] == "Ada"
    assert fact.completion[slice(*fact.object_span)] == "red boats"
    with pytest.raises(UserError, match="'Eve' is not in the prompt: write it as it stands"):
        make_fact("Now Ada likes", "Eve", "red boats")
    with pytest.raises(UserError, match="the answer is empty"):
        make_fact("Now Ada likes", "Ada", " ")


def test_a_survey_of_nothing(causal, tmp_path):
    with pytest.raises(UserError, match="no facts were given"):
        run_survey(causal, [], SURVEY, tmp_path)
