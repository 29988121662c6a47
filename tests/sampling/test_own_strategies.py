"""Strategies of one's own: what a name gives, a function or an object written here gives too."""

from dataclasses import dataclass

import pytest
import torch

import unmask
from tests.sampling.states import V
from unmask import UserError
from unmask.base.streams import RowStreams
from unmask.sampling.orders import ORDERS
from unmask.sampling.plans import Plan
from unmask.sampling.remasking import Lowest


def right_to_left(state, streams):
    return torch.arange(state.open.shape[1]).double().expand(state.open.shape)


def two_each(state, streams):
    return state.num_open.clamp(max=2)


def test_an_order(model):
    found = unmask.sample(model, [[1, 2]], length=8, plan="one", order=right_to_left)
    assert found.committed_at[0].tolist() == [0, 0, 6, 5, 4, 3, 2, 1]
    same = unmask.sample(model, [[1, 2]], length=8, order=lambda *given: -ORDERS["left"](*given))
    assert torch.equal(
        same.states, unmask.sample(model, [[1, 2]], length=8, order=right_to_left).states
    )
    assert torch.equal(
        unmask.infill(model, [1, 2, *[V - 1] * 6], plan="one", order=right_to_left).tokens,
        found.tokens,
    )
    backwards = [7, 6, 5, 4, 3, 2, 1, 0]
    for order in (torch.tensor(backwards), torch.tensor(backwards).numpy()):
        listed = unmask.sample(model, [[1, 2]], length=8, plan="one", order=order)
        assert torch.equal(listed.states, found.states)


def test_a_plan(model):
    found = unmask.sample(model, [[1, 2]], length=12, steps=5, plan=two_each)
    assert (found.states[:, 0] == V - 1).sum(-1).tolist() == [10, 8, 6, 4, 2, 0]
    hasty = unmask.sample(model, [[1, 2]], length=12, steps=3, plan=two_each)
    assert hasty.states is not None, "the last step commits what the plan left"
    assert (hasty.states[:, 0] == V - 1).sum(-1).tolist() == [10, 8, 6, 0]
    free = unmask.sample(model, [[1, 2]], length=12, plan=Plan(two_each, paces_itself=True))
    assert torch.equal(free.tokens, found.tokens) and free.calls == 5


def test_a_plan_that_commits_nothing_ends(model):
    """And when it ends does not depend on the neighbours."""
    idle = Plan(lambda state, streams: torch.zeros_like(state.num_open), paces_itself=True)
    together = unmask.sample(model, [[1, 2], [3]], length=[6, 9], plan=idle)
    for row, prompt, length in ((0, [1, 2], 6), (1, [3], 9)):
        alone = unmask.sample(model, [prompt], length=length, plan=idle)
        assert int(alone.committed_at.max()) == length - len(prompt)
        assert torch.equal(together.committed_at[row, :length], alone.committed_at[0])
        assert torch.equal(together.tokens[row, :length], alone.tokens[0])


def settled_first(state, streams):
    return -state.kl


def test_a_step_is_seen_whole(model):
    """What a plan or a planner may need: this step, the last one, and the text as proposed."""
    seen = []

    def plan(state, streams):
        seen.append(state)
        return two_each(state, streams)

    how = {"length": [12, 11], "steps": 10, "block": 5, "temperature": 1.0, "remask": "low=0.4"}
    found = unmask.sample(model, [[1, 2], [3]], plan=plan, order=settled_first, **how)
    assert (found.tokens[0] != V - 1).all() and len(seen) == 10, "two blocks, five steps each"
    for state in seen:
        assert torch.equal(state.proposed[~state.open], state.tokens[~state.open])
        assert (state.tokens[state.open] == V - 1).all() and not (state.open & state.written).any()
        chosen = state.logp[state.open].gather(-1, state.proposed[state.open][:, None])[:, 0]
        assert torch.equal(chosen.exp(), state.confidence[state.open])
        if state.step == 1:
            assert state.last_logp is None and (state.kl == torch.inf).all()
            continue
        both = state.open & (state.last_logp > -torch.inf).any(-1)
        now, before = state.logp[both], state.last_logp[both]
        wanted = (now.exp() * (now - before)).sum(-1)
        torch.testing.assert_close(state.kl[both], wanted.clamp(min=0), atol=1e-12, rtol=1e-9)
        assert torch.equal(state.kl < torch.inf, both) and (both.any() or state.step > 3)


@pytest.mark.parametrize("worst", [-torch.inf, -1, False])
def test_an_order_may_score_as_it_likes(model, worst):
    """-inf is a score of an open position as any other; so are whole numbers and truth values."""
    order = lambda state, streams: torch.full(state.open.shape, worst)  # noqa: E731
    found = unmask.sample(model, [[1, 2]], length=8, plan="one", order=order)
    assert found.committed_at[0].tolist() == [0, 0, 1, 2, 3, 4, 5, 6]


@dataclass
class EveryOther:
    """Masks every second written token again, in the first half of the time."""

    asked: int = 0

    def set_clock(self, times):
        return times

    def rate(self, times):
        return 0.0

    def choose(self, state, streams):
        self.asked += 1
        return state.written & (state.written.cumsum(-1) % 2 == 0) & (state.times.t > 0.5)


def test_a_remasking(model):
    how = {"length": 22, "steps": 8, "plan": "linear"}
    own = EveryOther()
    found = unmask.sample(model, [[1, 2]], remask=own, **how)
    assert own.asked == 7, "not at the last step"
    alone = unmask.sample(model, [[1, 2]], remask=EveryOther().choose, **how)
    assert torch.equal(found.states, alone.states)
    assert not torch.equal(found.states, unmask.sample(model, [[1, 2]], **how).states)
    named = unmask.sample(model, [[1, 2]], remask="low=0.3", **how)
    again = unmask.sample(model, [[1, 2]], remask=Lowest(0.3), **how)
    assert torch.equal(named.states, again.states)
    nothing = unmask.sample(model, [[1, 2]], remask=None, **how)
    assert torch.equal(nothing.states, unmask.sample(model, [[1, 2]], **how).states)


def test_a_guidance_schedule(model):
    how = {"length": 12, "steps": 5}
    own = unmask.sample(model, [[1, 2]], guidance=lambda done: 2 * done, **how)
    assert torch.equal(own.states, unmask.sample(model, [[1, 2]], guidance="up=2", **how).states)


@pytest.mark.parametrize("plan", ["linear", "ancestral"])
def test_what_one_purpose_draws_changes_no_other(model, plan):
    """An order that draws many numbers, at this step and at every later one."""
    seen: dict[bool, dict[str, list]] = {}
    for greedy in (False, True):
        drawn = seen[greedy] = {"order": [], "count": [], "remasking": []}

        def order(state, streams: RowStreams, drawn=drawn, greedy=greedy):
            if greedy:
                streams.uniform(1000)
            drawn["order"].append(streams.at("more").uniform(3))
            return ORDERS["left"](state, streams)

        def count(state, streams, drawn=drawn):
            drawn["count"].append(streams.uniform(3))
            return two_each(state, streams)

        def remask(state, streams, drawn=drawn):
            drawn["remasking"].append(streams.uniform(3))
            return torch.zeros_like(state.written)

        how = {"length": 20, "steps": 6, "block": 9, "temperature": 1.0, "seed": 1}
        how |= {"plan": plan if plan == "ancestral" else count, "order": order, "remask": remask}
        found = unmask.sample(model, [[1, 2], [3, 4]], **how)
        drawn["states"] = [found.states]
    for purpose, numbers in seen[False].items():
        assert all(map(torch.equal, numbers, seen[True][purpose])), purpose
    every = torch.cat(
        [x.flatten() for name in ("order", "count", "remasking") for x in seen[True][name]]
    ).tolist()
    assert len(set(every)) == len(every) >= 3 * 2 * 6, "no purpose or step shares its numbers"


def test_purposes_are_named(model):
    """The names under which numbers are drawn are what makes a seed's texts the same for ever."""
    names = []

    def order(state, streams):
        names.append(streams.purpose)
        return ORDERS["left"](state, streams)

    unmask.sample(model, [[1, 2]], length=8, steps=4, block=3, order=order)
    assert names == [(block, step, "order") for block in (0, 1) for step in (1, 2)]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"order": lambda state, streams: 3}, "the order returned int: expected a tensor of shape"),
        ({"order": lambda state, streams: torch.zeros(3)}, "the order returned (3,): expected"),
        (
            {"plan": lambda state, streams: 2},
            "the plan returned int: expected a tensor of shape (1,)",
        ),
        ({"remask": lambda *given: None}, "the remasking returned NoneType: expected a tensor"),
        (
            {"order": lambda state, streams: state.open * torch.nan},
            "the order returned scores that are no numbers",
        ),
        (
            {"remask": lambda state, streams: state.open * 2.0},
            "the remasking returned torch.float32: expected true or false",
        ),
        ({"order": [0.5, 1]}, "the order was given as list [0.5, 1]"),
    ],
)
def test_what_is_given_and_returned_is_checked(model, settings, said):
    with pytest.raises(UserError) as caught:
        unmask.sample(model, [[1, 2]], **settings)
    assert said in str(caught.value)
