"""Tracing along a generation: where the answer stands, what is asked at a step, what flows."""

from dataclasses import replace

import pytest
import torch

import unmask
from tests.tracing.learned import LENGTH
from unmask import UserError
from unmask.tracing.attribution import estimate_effects
from unmask.tracing.clean_run import (
    CleanRun,
    NotTracedError,
    generate,
    generate_corrupted,
    rank_facts,
)
from unmask.tracing.corruption import Corrupted, Mean, Noise
from unmask.tracing.settings import JOINT_ROLES, WHOLE_SUBJECT, Tracing
from unmask.tracing.table import find_roles

STEPS = 6
SETTINGS = Tracing(steps=STEPS, length=LENGTH)
NOISE = Noise(sigma=0.5, samples=2)


def recalled(model, facts) -> CleanRun:
    """The clean run of the first fact that the model recalls."""
    for fact in facts:
        try:
            return generate(model, fact, SETTINGS)
        except NotTracedError:
            continue
    raise AssertionError("the model should have learned something")


def test_facts_generated_at_once_are_ranked_as_one_by_one(taught, facts):
    wrong = replace(facts[0], object="wax masks", completion=" wax masks", object_span=(1, 10))
    recalled, rest = [], []
    for fact in (*facts, wrong):
        try:
            generate(taught, fact, SETTINGS)
            recalled.append(fact)
        except NotTracedError:
            rest.append(fact)
    ranked = rank_facts(taught, [*facts, wrong], SETTINGS)
    assert ranked == ([*recalled, *rest], len(recalled))
    assert recalled and rest[-1] == wrong


def two_steps(clean: CleanRun) -> CleanRun:
    """A masked run with the answer's two tokens committed one after the other."""
    mask_id, (first, second) = clean.model.mask_id, sorted(clean.answer)
    states, at = clean.states.clone(), clean.committed_at.clone()
    at[first], at[second] = 3, 5
    steps = torch.arange(len(states))
    for position in (first, second):
        shown = clean.answer[position]
        states[:, position] = torch.where(steps >= at[position], shown, mask_id)
    answer = {first: clean.answer[first], second: clean.answer[second]}
    return replace(clean, states=states, committed_at=at, answer=answer)


def test_the_answer_is_where_the_model_said_it(taught, facts):
    clean = recalled(taught, facts)
    said = clean.states[-1].tolist()
    assert all(said[position] == token for position, token in clean.answer.items())
    assert min(clean.answer) >= clean.prompt_length and not clean.forced
    assert 1 <= clean.t1 <= clean.t2
    order = [int(clean.committed_at[position]) for position in clean.answer]
    assert order == sorted(order)


def test_a_wrong_answer_is_dropped_with_its_reason(causal, facts):
    wrong = replace(facts[0], object="wax masks", completion=" wax masks", object_span=(1, 10))
    with pytest.raises(NotTracedError, match="not recalled in what the model said: 'red") as caught:
        generate(causal, wrong, SETTINGS)
    assert caught.value.reason == "not recalled"
    forced = generate(causal, wrong, replace(SETTINGS, any_answer=True))
    assert forced.forced and min(forced.answer) == forced.prompt_length
    grids = unmask.trace_steps(causal, forced, steps=STEPS, at="all", corruption=NOISE, window=2)
    assert [grid.step for grid in grids] == [1, 2] and grids[0].clean < 0.5
    with pytest.raises(NotTracedError) as caught:
        generate(causal, facts[0], replace(SETTINGS, length=4))
    assert caught.value.reason == "too long"


def test_a_forced_answer_is_committed_when_its_place_was(masked, facts):
    wrong = replace(facts[0], object="wax masks", completion=" wax masks", object_span=(1, 10))
    own = generate(masked, facts[0], replace(SETTINGS, any_answer=True))
    clean = generate(masked, wrong, replace(SETTINGS, any_answer=True))
    assert clean.forced and torch.equal(clean.committed_at, own.committed_at)
    for step in range(1, STEPS + 2):
        state = clean.states[step - 1]
        for position, token in clean.answer.items():
            shown = int(clean.committed_at[position]) < step
            assert int(state[position]) == (token if shown else masked.mask_id)


def test_steps_are_found_by_name(masked, facts):
    clean = two_steps(recalled(masked, facts))
    assert (clean.t1, clean.t2) == (3, 5)
    assert clean.find_steps(["first", "last"]) == [("first", 1), ("last", 5)]
    assert clean.find_steps(["t1", "t2", 2, "9"]) == [("t1", 3), ("t2", 5), ("2", 2)]
    assert clean.find_steps(["all"]) == [("3", 3), ("4", 4), ("5", 5)]
    with pytest.raises(UserError, match="step 'early' is unknown"):
        clean.find_steps(["early"])


def test_a_step_asks_for_what_is_still_open(masked, facts):
    clean = two_steps(recalled(masked, facts))
    first, second = clean.answer
    grids = unmask.trace_steps(
        masked, clean, steps=STEPS, at=("first", "all"), corruption=NOISE, parts=("resid",)
    )
    assert [grid.step for grid in grids] == [1, 3, 4, 5]
    assert [sorted(grid.answer) for grid in grids] == [[first, second]] * 2 + [[second]] * 2
    assert [grid.committed for grid in grids] == [(), (), (first,), (first,)]
    assert all(grid.run == "teacher_forced" for grid in grids)
    asked = (masked, clean.states[4], clean.subject, {second: clean.answer[second]})
    alone = unmask.trace_tokens(*asked, parts=("resid",), corruption=NOISE)
    assert torch.equal(grids[-1].logp["resid"], alone.logp["resid"])
    roles = find_roles(grids[-1])
    assert roles[first] == "answer token" and roles[second] == "answer mask"


def test_the_chain_rule_at_t2_asks_for_the_whole_answer(masked, facts):
    clean = two_steps(recalled(masked, facts))
    (grid,) = unmask.trace_steps(
        masked, clean, steps=STEPS, at="t2", joint="chain_rule", corruption=NOISE, parts=("mlp",)
    )
    assert grid.joint == "chain_rule" and list(grid.answer) == list(clean.answer)
    first, second = clean.answer
    state = clean.states[4].clone()
    state[[first, second]] = masked.mask_id
    p = 1.0
    for position in clean.answer:
        logits = masked.logits(state[None])[0, position].double()
        p *= float(logits.softmax(-1)[clean.answer[position]])
        state[position] = clean.answer[position]
    assert abs(grid.clean - p) < 1e-6


def test_flows_add_up(taught, facts):
    """Shares of subject and committed tokens sum to what hiding both takes."""
    clean = recalled(taught, facts)
    clean = two_steps(clean) if taught.kind == "masked" else clean
    how = {"steps": STEPS, "corruption": NOISE, "window": 2}
    (grid,) = unmask.trace_steps(taught, clean, at="last", **how)
    flow = grid.flow
    assert flow is not None and grid.committed
    assert abs(flow.subject + flow.committed - (flow.both - flow.neither)) < 1e-12
    assert abs(flow.both - grid.clean) < 1e-9 and abs(flow.no_subject - grid.corrupted) < 1e-9
    (first,) = unmask.trace_steps(taught, clean, at="first", **how)
    assert first.flow is None and not first.committed


def test_a_source_that_is_committed(masked, facts):
    """Hiding the committed token: its own states are what brings the answer back."""
    clean = two_steps(recalled(masked, facts))
    first, _ = clean.answer
    settings = {"corruption": NOISE, "parts": ("embed",), "places": [first]}
    grids = unmask.trace_steps(
        masked, clean, steps=STEPS, at=("first", "t2"), source="committed", **settings
    )
    (grid,) = grids  # at the first step nothing is committed
    assert grid.source == "committed" and grid.corruption == "gaussian of committed"
    assert abs(float(grid.scores["embed"][0, 0]) - grid.clean) < 1e-6
    (both,) = unmask.trace_steps(masked, clean, steps=STEPS, at="t2", source="both", **settings)
    assert both.flow is None and abs(both.corrupted - grid.corrupted) > 0


def test_free_running_states_are_the_corrupted_prompt_s_own(masked, facts):
    clean = two_steps(recalled(masked, facts))
    (free,) = unmask.trace_steps(
        masked, clean, steps=STEPS, at="t2", run="free_running", corruption=Mean(), parts=("resid",)
    )
    assert free.run == "free_running" and free.flow is None
    bad = Mean().apply(masked, clean.states[0], range(*clean.subject))
    states = generate_corrupted(clean, bad, SETTINGS)
    assert states.shape[1] == 1 and (states[-1] != masked.mask_id).all()
    # Sampling by hand, with the same blanked embeddings, gives the same states.
    with masked.net.patch({"embed": bad.embed}):
        again = unmask.sample(
            masked, [clean.states[0, : clean.prompt_length].tolist()], steps=STEPS, length=LENGTH
        )
    assert torch.equal(states, again.states)
    reached = states[4].clone()
    _, second = clean.answer
    reached[:, second] = masked.mask_id
    asked = (masked, clean.states[4], clean.subject, {second: clean.answer[second]})
    blank = Corrupted(reached, blanked=bad.blanked, blank=bad.blank)
    more = {"parts": ("resid",), "prompt_length": clean.prompt_length}
    alone = unmask.trace_tokens(*asked, corruption=blank, **more)
    assert torch.equal(free.corrupted_logp, alone.corrupted_logp)


def test_free_running_of_a_causal_model(causal, facts):
    clean = recalled(causal, facts)
    grids = {
        run: unmask.trace_steps(
            causal, clean, steps=STEPS, at="all", run=run, corruption=Mean(), window=2
        )
        for run in ("teacher_forced", "free_running")
    }
    # Nothing is committed before the first step, so the two are one there.
    first = [grids[run][0].corrupted for run in grids]
    assert first[0] == first[1]


def test_roles_of_a_text(masked, facts):
    clean = recalled(masked, facts)
    (grid,) = unmask.trace_steps(masked, clean, steps=STEPS, at="first", corruption=NOISE, window=2)
    roles = find_roles(grid)
    begin, end = grid.subject
    assert roles[begin:end] == ["last subject"], "a subject of one token has one role"
    assert roles[:begin] == ["before subject"] * begin
    assert roles[grid.prompt_length - 1] == "last prompt"
    assert roles.count("answer mask") == len(clean.answer)
    assert set(roles[grid.prompt_length :]) == {"answer mask", "other mask"}
    wide = replace(grid, subject=(0, 3), tokens=tuple(range(1, 9)), prompt_length=7, answer={})
    assert find_roles(wide) == [
        "first subject", "middle subject", "last subject", "first after", "further", "further",
        "last prompt", "other token",
    ]  # fmt: skip


def test_what_steps_and_estimates_do_not_do(masked, facts):
    clean = recalled(masked, facts)
    with pytest.raises(UserError, match="'attn_z' is not estimated"):
        estimate_effects(
            masked, clean.state_at(1), clean.subject, clean.answer, parts=("attn_z",), window=2
        )
    with pytest.raises(UserError, match="corrupts the subject"):
        unmask.trace_steps(masked, clean, steps=STEPS, run="free_running", source="both")


def test_cells_are_watched_as_they_are_run(taught, facts):
    """Every cell that is run comes once, the first place alone first, with the grid's own log p."""
    model, clean = taught, recalled(taught, facts)
    places = (clean.subject[0], *(i for i in range(LENGTH) if i != clean.subject[0]))
    places = tuple(place for place in places if place < len(clean.state_at(clean.t1)))
    settings = replace(SETTINGS, parts=("resid", "mlp"), corruption=NOISE, at="first")
    seen, batches = {}, []

    def watch(part, layer, head, at, logp):
        assert head is None
        batches.append(sorted(set(at[:, 0].tolist())))
        for (place, sample), each in zip(at.tolist(), logp, strict=True):
            assert (part, layer, place, sample) not in seen
            seen[part, layer, place, sample] = each

    (grid,) = unmask.trace_steps(model, clean, settings, places=places, watch=watch)
    (usual,) = unmask.trace_steps(model, clean, settings, places=places)
    assert batches[0] == [0] and max(map(len, batches)) > 1
    assert {key[:2] for key in seen} == {
        (p, i) for p in range(2) for i in range(model.net.config.layers)
    }
    for (part, layer, place, sample), logp in seen.items():
        torch.testing.assert_close(grid.logp[settings.parts[part]][place, layer, sample], logp)
    for part in settings.parts:
        torch.testing.assert_close(grid.logp[part], usual.logp[part], rtol=1e-4, atol=1e-5)
    calls = 0

    def leave(*_):
        nonlocal calls
        calls += 1
        raise InterruptedError

    with pytest.raises(InterruptedError):
        unmask.trace_steps(model, clean, settings, places=places, watch=leave)
    assert calls == 1


@pytest.mark.parametrize("order", ["confidence", "left"])
def test_steps_counted_from_t1(masked, facts, order):
    """The same steps as by number, each asked for what is open; from the left in order."""
    settings = replace(SETTINGS, order=order, at=("t1..t2",), parts=("resid",), corruption="mean")
    for fact in facts:
        clean = generate(masked, fact, replace(settings, any_answer=True))
        steps = clean.find_steps(("t1..t2",))
        assert [step for _, step in steps] == [step for _, step in clean.find_steps(("all",))]
        assert [label for label, _ in steps] == [f"t1+{step - clean.t1}" for _, step in steps]
        if order == "left":
            written = [int(clean.committed_at[at]) for at in sorted(clean.answer)]
            assert written == sorted(written)
    grids = unmask.trace_steps(masked, clean, settings)
    assert [grid.step for grid in grids] == [step for _, step in steps]
    for grid in grids:
        assert set(grid.answer) == set(clean.open_at(grid.step)) and set(grid.answer)
        assert set(grid.committed) == set(clean.answer) - set(grid.answer)


def test_masks_that_come_back_are_asked_again(masked, facts):
    """What is open is what the state masks; t1 is the first time that a token stood there."""
    clean = recalled(masked, facts)
    first, *rest = sorted(clean.answer)
    mask = masked.mask_id
    rows = [clean.states[0].clone() for _ in range(4)]
    rows[1][first] = clean.answer[first]  # written, masked again, and written with the others
    for position, token in clean.answer.items():
        rows[3][position] = token
    committed = clean.committed_at.clone()
    committed[list(clean.answer)] = 3
    again = replace(clean, states=torch.stack(rows), committed_at=committed)
    assert (again.t1, again.t2) == (1, 3) and rows[2][first] == mask
    assert set(again.open_at(2)) == set(rest) and again.committed_before(2) == (first,)
    assert set(again.open_at(3)) == set(clean.answer) and again.committed_before(3) == ()
    wrong = [row.clone() for row in rows]
    wrong[1][first] = clean.answer[first] + 1
    other = replace(again, states=torch.stack(wrong))
    assert other.t1 == 3 and other.committed_before(2) == () and first not in other.open_at(2)
    for remask in ("low=0.3", "loop"):
        run = generate(masked, facts[0], replace(SETTINGS, remask=remask, any_answer=True))
        for _, step in run.find_steps(("all",)):
            assert run.open_at(step) and all(
                run.state_at(step)[at] == mask for at in run.open_at(step)
            )


@pytest.mark.parametrize("joint", ["mean_field", "chain_rule"])
def test_roles_are_restored_as_a_whole(taught, facts, joint):
    """Every position has one role, and a role's cell restores all of its positions."""
    clean = recalled(taught, facts)
    settings = {"at": "t2", "joint": joint, "corruption": "mean", "parts": ("resid", "mlp")}
    settings |= {"window": 1, "metric": "logp"}
    (grid,) = unmask.trace_steps(taught, clean, cells="roles", **settings)
    rows = [grid.places[row] for row in grid.together.values()]
    assert sorted(at for each in rows for at in each) == list(range(len(grid.tokens)))
    assert list(grid.together) == [role for role in JOINT_ROLES if role in grid.together]
    assert grid.places[grid.together[WHOLE_SUBJECT]] == tuple(range(*clean.subject))
    (plain,) = unmask.trace_steps(taught, clean, places=rows, **settings)
    for part in plain.logp:
        torch.testing.assert_close(grid.values(part), plain.values(part), atol=1e-6, rtol=0)
    (whole,) = unmask.trace_steps(
        taught, clean, places=[tuple(range(len(grid.tokens)))], **settings
    )
    assert float(whole.values("resid")[0, -1]) == pytest.approx(whole.clean_value("logp"), abs=1e-4)
