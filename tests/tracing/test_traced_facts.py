"""One fact after the other: which are chosen, how subjects are hidden, what placebos are."""

from dataclasses import replace

import pytest
import torch

import unmask
from tests.tracing.learned import LENGTH
from tests.tracing.plain import read
from tests.tracing.test_steps import recalled
from unmask import UserError
from unmask.base.config import SettingsError
from unmask.tracing import question as questions
from unmask.tracing.corruption import Noise, Replace
from unmask.tracing.facts import (
    choose_facts,
    choose_other,
    make_corruption,
    make_donor,
    make_fact,
    make_foil,
    trace_fact,
)
from unmask.tracing.question import Donor
from unmask.tracing.record import average_states, make_random, record_run
from unmask.tracing.settings import Tracing
from unmask.tracing.table import OTHER_FACT, RANDOM, RESULT, SHUFFLED
from unmask.tracing.windows import window_of

SETTINGS = Tracing(steps=6, length=LENGTH, window=2, samples=2)
KEYS = {"model": "net", "split": "own"}


def trace(model, fact, pool, settings=SETTINGS, **changes):
    chosen = replace(settings, **changes)
    return trace_fact(model, fact, pool, chosen, make_corruption(chosen, model, pool), KEYS)


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
    clean = recalled(causal, facts)
    foil = make_foil(clean, facts[2], causal.tokenizer)
    assert set(foil) <= set(clean.answer)
    assert list(foil.values()) == causal.tokenizer.encode(facts[2].completion).ids
    # Where the other answer agrees with the own one, it is no foil.
    answer = dict(clean.answer)
    first = min(answer)
    answer[first] = foil[first]
    assert first not in make_foil(replace(clean, answer=answer), facts[2], causal.tokenizer)


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


def test_a_donor_stands_in_a_state_like_ours(taught, facts):
    """Its prompt alone is another: what is committed after ours stands after it, too."""
    clean = recalled(taught, facts)
    step = max(clean.t1, clean.t2)
    donor = make_donor(clean, facts[2], taught.tokenizer)
    given = (taught, clean.state_at(step), clean.subject, clean.open_at(step), Tracing())
    question = questions.ask(*given, clean.prompt_length, donor=donor)
    row = question.continue_donor()[0].tolist()
    assert tuple(row[: len(donor.prompt)]) == donor.prompt
    after = clean.state_at(step)[clean.prompt_length :].tolist()
    room = max(len(clean.state_at(step)), len(donor.prompt))
    assert row[len(donor.prompt) :] == after[: room - len(donor.prompt)]


def test_a_donor_that_is_oneself_is_no_placebo(taught, facts):
    """States of the same text, moved nowhere, restore as the clean run's do."""
    clean = recalled(taught, facts)
    state = clean.state_at(1)
    noise = Noise(sigma=0.5, samples=2)
    settings = Tracing(parts=("resid", "mlp"), window=2, corruption=noise)
    given = (taught, state, clean.subject, clean.open_at(1), settings)
    rows = {taught.row_of(position) for position in clean.answer}
    places = (*range(*clean.subject), *sorted(rows))
    more = {"places": places, "prompt_length": clean.prompt_length}
    prompt = tuple(state[: clean.prompt_length].tolist())
    own = Donor(prompt, {place: place for place in places})
    same = unmask.trace_tokens(*given, donor=own, **more)
    plain = unmask.trace_tokens(*given, **more)
    for part in plain.logp:
        torch.testing.assert_close(same.values(part), plain.values(part), atol=1e-6, rtol=0)
    other = make_donor(clean, facts[2], taught.tokenizer)
    placebo = unmask.trace_tokens(*given, donor=other, **more)
    apart = placebo.values("resid", "logp") - plain.values("resid", "logp")
    assert apart.abs().max() > 1e-3
    assert set(other.moved) == set(places)
    with pytest.raises(UserError, match="restored, not ablated"):
        unmask.trace_tokens(*given, donor=own, mode="ablate", **more)


def test_a_random_placebo_is_as_far_away_as_the_clean_state(taught, facts):
    """But in another direction, and where nothing was corrupted it changes nothing."""
    net = taught.net
    x = torch.randn(3, 5, net.config.width, generator=torch.Generator().manual_seed(0))
    x[1:, 0] = x[0, 0]
    both = record_run(net, x)
    clean, corrupted = both.take(slice(0, 1)), both.take(slice(1, None))
    random = make_random(clean, corrupted, 0)
    for ours, right, wrong in zip(random.lists(), clean.lists(), corrupted.lists(), strict=True):
        for placebo, good, bad in zip(ours, right, wrong, strict=True):
            wanted, moved = good - bad, placebo - bad
            torch.testing.assert_close(
                moved.norm(dim=-1), wanted.norm(dim=-1), atol=1e-4, rtol=1e-4
            )
    streams = [each.entering[1] for each in (random, clean, corrupted)]
    cosine = torch.cosine_similarity(streams[0] - streams[2], streams[1] - streams[2], dim=-1)
    assert cosine[:, 1:].abs().max() < 0.9
    assert torch.equal(make_random(clean, corrupted, 0).entering[1], random.entering[1])
    assert not torch.equal(make_random(clean, corrupted, 1).entering[1], random.entering[1])
    if net.config.causal:
        assert torch.equal(random.entering[-1][:, 0], corrupted.entering[-1][:, 0])


def test_placebos_are_put_in_at_the_rows_of_the_answer(taught, facts):
    corruption = make_corruption(SETTINGS, taught, facts)
    recalled(taught, facts)
    both = (OTHER_FACT, RANDOM)
    trace = trace_fact(taught, facts[0], facts, SETTINGS, corruption, KEYS, placebos=both)
    rows = trace.cells.to_pylist()
    for control in (OTHER_FACT, RANDOM):
        roles = {row["role"] for row in rows if row["control"] == control and row["token"] >= 0}
        assert "last subject" in roles and roles & {"answer mask", "last prompt"}
    values = {
        control: [row["value"] for row in rows if row["control"] == control and row["layer"] >= 0]
        for control in (OTHER_FACT, RANDOM)
    }
    assert values[OTHER_FACT] != values[RANDOM]


def test_corruptions_by_name(masked, facts):
    noise = make_corruption(replace(SETTINGS, corruption="gaussian"), masked, facts)
    # Measured over all subjects, the same for every fact.
    assert isinstance(noise, Noise) and noise.sigma is not None and noise.samples == 2
    swap = make_corruption(replace(SETTINGS, corruption="replace", seed=3), masked, facts)
    assert isinstance(swap, Replace) and (swap.samples, swap.seed) == (2, 3)
    assert len(swap.subjects) == len(facts)


@pytest.mark.parametrize(
    ("changes", "pool", "reason", "sentence"),
    [
        ({"corruption": "replace"}, 2, "no subject as long", "no other subject has"),
        ({"at": ("first",), "source": "committed"}, 8, "no such step", "name others"),
        ({"metric": "logit_difference"}, 2, "no other answer", "name a --foil"),
        ({"length": 3}, 8, "too long", "more than the length 3"),
    ],
)
def test_a_fact_that_is_left_out_says_why(causal, facts, changes, pool, reason, sentence):
    found = trace(causal, facts[0], facts[:pool], **changes)
    assert found.cells is None and found.tokens == []
    assert found.record["reason"] == found.error.reason == reason and not found.record["kept"]
    assert sentence in str(found.error)


def test_what_a_foil_is_compared_with_is_no_placebo(causal, facts):
    """An answer that was named for the same prompt is read, but has no states of its own."""
    foil = replace(make_fact("Now Ada likes", "Ada", "wax masks"), fact_id="foil")
    own = trace(causal, facts[0], [facts[0], foil], at=("first",))
    assert set(own.cells["control"].to_pylist()) == {RESULT, SHUFFLED}
    others = trace(causal, facts[0], facts, at=("first",))
    assert set(others.cells["control"].to_pylist()) == {RESULT, SHUFFLED, OTHER_FACT}
    difference = trace(causal, facts[0], [facts[0], foil], at=("first",), metric="logit_difference")
    assert set(difference.cells["control"].to_pylist()) == {RESULT}


@pytest.mark.parametrize("mode", ["zero", "mean"])
def test_zero_and_mean_ablation_equal_patched_runs(taught, facts, mode):
    """At one position, in windows, of heads, and with means of other texts."""
    clean = recalled(taught, facts)
    state, answer, net = clean.state_at(1), clean.open_at(1), taught.net
    texts = [taught.tokenizer.encode(fact.text).ids for fact in facts[:3]]
    means = average_states(taught, texts)
    settings = Tracing(mode=mode, parts=("resid", "mlp", "attn", "attn_z"), corruption="mean")
    grid = unmask.trace_tokens(
        *(taught, state, clean.subject, answer, settings),
        window=2,
        means=means,
        prompt_length=clean.prompt_length,
    )
    sites = {"resid": "resid_out", "mlp": "mlp_out", "attn": "attn_out", "attn_z": "attn_z"}
    kept = []
    for ids in texts:
        with net.capture("layers.*") as states:
            net(torch.tensor([ids]))
        kept.append(states)
    row = state[None, : max(taught.row_of(at) for at in answer) + 1 if net.config.causal else None]
    at = clean.subject[0]

    def put(name, is_head):
        every = torch.cat([each[name][0] for each in kept])
        value = torch.zeros_like(every[0]) if mode == "zero" else every.mean(0)

        def act(x):
            x = x.clone()
            where = (0, at, 1) if is_head else (0, at)
            x[where] = value[1] if is_head else value
            return x

        return act

    for part, site in sites.items():
        for layer in range(net.config.layers):
            low, high = window_of(layer, 2 if part in ("mlp", "attn") else 1, net.config.layers)

            names = [f"layers.{each}.{site}" for each in range(low, high)]
            with net.patch({name: put(name, part == "attn_z") for name in names}):
                expected = read(taught, row, answer)
            values = grid.values(part, "p")[at, layer]
            value = values[1] if part == "attn_z" else values
            torch.testing.assert_close(value, expected, atol=1e-6, rtol=1e-4)
    effects = grid.effects("resid")
    torch.testing.assert_close(effects, grid.clean_value() - grid.values("resid").mean(-1))
    own = unmask.trace_tokens(
        *(taught, state, clean.subject, answer, replace(settings, mode="mean", parts=("resid",))),
        prompt_length=clean.prompt_length,
    )
    assert not torch.equal(own.values("resid"), grid.values("resid"))
    with pytest.raises(SettingsError, match="not for the parts attn_q"):
        replace(settings, parts=("attn_k",))
