"""Values, remasking, guidance schedules, thresholds and caches: small functions that combine."""

import itertools
from dataclasses import replace

import pytest
import torch

import unmask
from tests.conftest import build, make_model
from tests.fixtures import load_peer
from tests.sampling.states import V, make_state
from unmask import UserError
from unmask.base.streams import RowStreams
from unmask.net.model import Model
from unmask.sampling.guidance import guidance_schedule
from unmask.sampling.orders import ORDERS
from unmask.sampling.plans import PLANS, get_plan
from unmask.sampling.remasking import REMASKINGS, get_remasking
from unmask.sampling.token_sampler import TokenSampler, invert


def make(name: str = "tiny", kind: str = "masked") -> Model:
    rows = V if name == "tiny-gpt2" else V - 1
    return build(name, kind, vocab_size=V, num_logits=rows, context=32)


P = torch.tensor([[0.4, 0.3, 0.2, 0.1]], dtype=torch.float64)


def test_values_let_through():
    squared = (P[0] ** 2 / (P[0] ** 2).sum()).tolist()
    for sampler, expected in (
        (TokenSampler(1.0, top_k=2), [4 / 7, 3 / 7, 0, 0]),
        (TokenSampler(1.0, top_p=0.6), [4 / 7, 3 / 7, 0, 0]),
        (TokenSampler(1.0, top_p=1e-9), [1, 0, 0, 0]),
        (TokenSampler(0.5), squared),
        (TokenSampler(), [1, 0, 0, 0]),
    ):
        assert sampler.sharpen(P.log()).exp()[0].tolist() == pytest.approx(expected)


def test_inversion_has_the_law_of_the_distribution():
    draws = RowStreams.make(0, 20_000).uniform(1)[:, 0]
    found = invert(P.log().expand(20_000, -1), draws)
    shares = torch.bincount(found, minlength=4) / 20_000
    assert (shares - P[0]).abs().max() < 0.012
    impossible = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]]).log().expand(20_000, -1)
    assert set(invert(impossible, draws).tolist()) == {1, 3}


@pytest.mark.parametrize("plan", ["one", "threshold"])
def test_plans_that_pace_themselves_draw_to_the_end(plan):
    """However few steps were named, which are not for them."""
    model = make_model()
    how = {"length": 30, "plan": plan, "temperature": 2.0}
    few, many = (unmask.sample(model, ["The"], steps=steps, **how) for steps in (1, 99))
    assert torch.equal(few.tokens, many.tokens)
    others = [unmask.sample(model, ["The"], steps=1, seed=seed, **how).tokens[0] for seed in (1, 2)]
    assert (others[0] != others[1]).float().mean() > 0.5


def test_hybrid_values_end_greedy():
    values = TokenSampler(0.7, stochastic=0.5)
    kinds = [values.at(step, 4).temperature for step in range(1, 5)]
    assert kinds == [0.7, 0.7, 0.0, 0.0]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (0.8, [0.8] * 3), ("constant=0.8", [0.8] * 3), ("0.8", [0.8] * 3),
        ("up=1", [0, 0.25, 0.5, 0.75, 1]), ("down=1", [1, 0.75, 0.5, 0.25, 0]),
        ("cosine=2", [2, 2**0.5, 0]), ([1, 2, 3], [1, 2, 3]), ("up=1", [0]),
    ],
)  # fmt: skip
def test_guidance_schedules(schedule, expected):
    assert guidance_schedule(schedule, len(expected)) == pytest.approx(expected)


def test_a_schedule_of_guidance_is_what_each_step_uses(model):
    """Strong at the first step and off after it, against a sampler that does so by hand."""
    found = unmask.sample(model, [[1, 2, 3]], steps=2, guidance=[2.0, 0.0], length=9)
    first = unmask.sample(model, [[1, 2, 3]], steps=2, guidance=2.0, length=9)
    assert torch.equal(found.states[1], first.states[1])
    rest = unmask.infill(model, [found.states[1, 0]], steps=1)
    assert torch.equal(found.tokens, rest.tokens)
    # A schedule runs on from block to block.
    blocks = unmask.sample(model, [[1, 2, 3]], steps=2, guidance=[5.0, 0.0], length=9, block=3)
    again = unmask.sample(model, [[1, 2, 3]], steps=2, guidance=5.0, length=9, block=3)
    rest = unmask.infill(model, [blocks.states[1, 0]], steps=1)
    assert torch.equal(blocks.tokens, rest.tokens) and not torch.equal(blocks.tokens, again.tokens)


@pytest.mark.parametrize(
    "plan,order,remask",
    [
        *itertools.product(PLANS, ["confidence"], ["none", "low=0.3"]),
        *itertools.product(["smdm", "ancestral"], ["random"], REMASKINGS),
        *itertools.product(["linear"], ORDERS, ["conf", "cap=0.5"]),
        ("threshold=0.2", "margin", "loop=0.3"),
    ],
)
@pytest.mark.parametrize("block", [None, 5])
def test_everything_combines_and_rows_stay_their_own(model, plan, order, remask, block):
    """Any combination fills every mask, and a row is the same alone and in company."""
    rows, lengths = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11]], [9, 7, 14]
    how = {"plan": plan, "order": order, "remask": remask, "block": block, "steps": 4}
    how |= {"temperature": 0.8, "top_p": 0.9, "stochastic": 0.7, "guidance": "down=0.5", "seed": 5}
    together = unmask.sample(model, rows, length=lengths, **how)
    for i in (0, 1, 2):
        length = lengths[i]
        alone = unmask.sample(model, [rows[i]], length=length, **how)
        assert (alone.tokens != model.mask_id).all()
        assert torch.equal(together.tokens[i, :length], alone.tokens[0])
        if block is None or not get_plan(plan).paces_itself:  # else neighbours may take more steps
            assert torch.equal(together.committed_at[i, :length], alone.committed_at[0])
        torch.testing.assert_close(
            together.confidence[i, :length], alone.confidence[0], atol=1e-5, rtol=1e-5
        )
    assert together.lengths.tolist() == lengths
    for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        assert (together.states[:, i, : len(row)] == torch.tensor(row)).all()
        assert (together.committed_at[i, length:] == 0).all()


def test_blocks_are_filled_in_turn(model):
    found = unmask.sample(model, [[1, 2]], length=22, block=5, steps=8, remask="low=0.5")
    at = found.committed_at[0, 2:].view(4, 5)
    assert [(int(row.min()) - 1) // 2 for row in at] == [0, 1, 2, 3]
    assert [(int(row.max()) - 1) // 2 for row in at] == [0, 1, 2, 3]


def test_threshold_takes_as_few_steps_as_confidence_allows(model):
    hasty = unmask.sample(model, [[1, 2]], plan="threshold=0.001", length=20)
    slow = unmask.sample(model, [[1, 2]], plan="threshold=1", length=20)
    assert hasty.calls == 1 and slow.calls == 18 == int(slow.committed_at.max())
    one = unmask.sample(model, [[1, 2]], plan="one", length=20)
    assert torch.equal(slow.tokens, one.tokens)
    blocks = unmask.sample(model, [[1, 2]], plan="one", length=20, block=7)
    assert blocks.calls == 18, "16 steps need not be shared by 3 blocks"


@pytest.mark.parametrize("share", [0.2, 0.5])
def test_the_least_sure_go_back(model, share):
    """So many that the plan's schedule of masks is kept."""
    seen: list[unmask.Trajectory] = []
    how = {"plan": "linear", "steps": 6, "length": 26, "remask": f"low={share}"}
    found = unmask.sample(model, [[1, 2]], **how, watch=seen.append)
    hidden = found.states[:, 0] == model.mask_id
    assert hidden.sum(-1).tolist() == [24, 20, 16, 12, 8, 4, 0]
    returned = (~hidden[:-1] & hidden[1:]).sum(-1).tolist()
    assert share == 0.2 or returned == [0, 2, 4, 6, 4, 0], "half of what was written, if it fits"
    for before, after in itertools.pairwise(seen):
        written = before.committed_at > 0
        back = written & (after.tokens == model.mask_id)
        if back.any() and (written & ~back).any():
            assert before.confidence[back].max() <= before.confidence[written & ~back].min()


def test_doubt_is_shared_by_confidence():
    """ReMDM conf: sigma_max times softmax(-confidence) over what is written."""
    rows = 40_000
    open_ = torch.tensor([[False, False, True]]).expand(rows, -1)
    state = replace(
        make_state(open_, torch.full((rows, 3), 1 / 3), step=2, steps=4),
        written_confidence=torch.tensor([[0.1, 0.9, 0.5]], dtype=torch.float64).expand(rows, -1),
        written=~open_,
    )
    remasking = get_remasking("conf")
    back = remasking.choose(state, RowStreams.make(0, rows))
    wanted = state.times.highest_rate * torch.tensor([-0.1, -0.9]).softmax(-1)
    assert (back[:, :2].double().mean(0) - wanted).abs().max() < 0.012 and not back[:, 2].any()


@pytest.mark.parametrize("plan", ["smdm", "ancestral", "threshold=0.05"])
@pytest.mark.parametrize("guidance", [0.0, 0.8, "down=9"])
def test_the_exact_cache_changes_nothing_but_the_work(model, plan, guidance):
    rows, lengths = [[1, 2, 3], [4], [5, 6, 7, 8]], [9, 8, 12]
    how = {"plan": plan, "steps": 24, "guidance": guidance, "temperature": 0.9, "length": lengths}
    plain = unmask.sample(model, rows, **how)
    kept = unmask.sample(model, rows, **how, cache="exact")
    assert torch.equal(plain.tokens, kept.tokens)
    assert torch.equal(plain.committed_at, kept.committed_at)
    if plan == "ancestral" and guidance != "down=9":
        alone = unmask.sample(model, [[4]], **how | {"length": 8}, cache="exact")
        assert alone.calls <= 7 < 24, "once a token at most"


@pytest.mark.parametrize(
    "name,kind", [("tiny", "masked"), ("tiny-gpt2", "masked"), ("tiny", "shifted")]
)
@pytest.mark.parametrize("guidance", [0.0, 0.8])
def test_the_approximate_cache(name, kind, guidance):
    """The first step of each block is exact; a network that does not attend loses nothing."""
    model = make(name, kind)
    rows, lengths = [[1, 2, 3], [4], [5, 6, 7, 8]], [15, 13, 16]
    how = {"block": 4, "steps": 12, "guidance": guidance, "length": lengths, "plan": "linear"}
    plain = unmask.sample(model, rows, **how)
    kept = unmask.sample(model, rows, **how, cache="approximate")
    assert torch.equal(plain.states[1], kept.states[1])
    assert (kept.tokens[:, :13] != model.mask_id).all()
    for i in (0, 1, 2):
        alone = unmask.sample(model, [rows[i]], **how | {"length": lengths[i]}, cache="approximate")
        assert torch.equal(kept.tokens[i, : lengths[i]], alone.tokens[0])
    for layer in model.net.layers:
        layer.attn.out.weight.zero_()
    blind = unmask.sample(model, rows, **how)
    again = unmask.sample(model, rows, **how, cache="approximate")
    assert torch.equal(blind.tokens, again.tokens)


def test_the_approximate_cache_runs_everything_where_a_block_starts_and_the_rest_after(model):
    widths: list[int] = []
    hook = model.net.block(0).register_forward_pre_hook(
        lambda _, given: widths.append(given[0].shape[1])
    )
    unmask.sample(model, [[1, 2]], length=14, block=4, steps=9, cache="approximate")
    hook.remove()
    assert widths == [14, 12, 12, 14, 8, 8, 14, 4, 4]


def test_snapshots_take_shorter_numbers(model):
    """As autocast makes them."""
    kept = model.net.new_snapshot(2, 5)
    new = torch.ones(2, kept.keys.shape[2], 2, kept.keys.shape[4], dtype=torch.bfloat16)
    whole = torch.zeros_like(kept.keys[0])
    kept.extend(0, whole, whole)
    keys, _ = kept.move_to(torch.tensor([[1, 2], [3, 4]])).extend(0, new, new)
    assert keys[0, 0, :, 0].tolist() == [0, 1, 1, 0, 0]
    assert keys[1, 0, :, 0].tolist() == [0, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"remask": "cap=3"}, "cap=3 is not a share"),
        ({"guidance": [1, 2]}, "2 guidance strengths were given for 16 steps"),
        ({"top_k": 5}, "give a temperature above 0"),
        ({"chat": True, "prompts": ["hello"]}, "has no chat template"),
        ({"forbid": list(range(V - 2))}, "tokens were forbidden: leave some"),
        ({"forbid": [7], "require": [[7]]}, "token 7 is both required and forbidden"),
        ({"forbid": [7], "fixed": {9: [7]}}, "token 7 is both fixed and forbidden"),
        ({"fixed": {0: [7]}}, "position 0 was fixed as token 7, but another token is given"),
        ({"fixed": {32: [7]}}, "fixed at position 32, but the rows are 32 tokens long"),
        ({"require": [list(range(31))]}, "31 tokens in a row, but a row has no such space"),
        ({"require": [[99]]}, "token 99 was given, but tokens run from 0 to 39"),
        ({"require": [[V - 1]]}, "token 39 was required, but is never part of a text"),
        ({"fixed": {9: [V - 1]}}, "token 39 was fixed, but is never part of a text"),
        ({"prompts": [[1, 99]]}, "token 99 was given, but tokens run from 0 to 39"),
    ],
)
def test_bad_input(model, settings, said):
    with pytest.raises(UserError) as caught:
        unmask.sample(model, **({"prompts": [[1, 2]]} | settings))
    assert said in str(caught.value)


PROMPTS = [[3, 4, 5], [6, 7, 8, 9, 10], [11]]


def make_blocks(kind: str = "masked") -> Model:
    model = build("tiny-blocks", kind)
    model.net.double()
    return model


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"guidance": 0.7},
        {"remask": "low=0.3", "temperature": 0.8, "seed": 2},
        {"block": 6, "order": "random", "seed": 1},
        {"plan": "threshold=0.01"},
        {"planted": {9: {5: 7}}, "length": [21, 18, 13]},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["masked", "shifted"])
def test_nothing_changes(settings, kind):
    """Rows of several lengths, whose blocks begin at different positions."""
    check(make_blocks(kind), PROMPTS, 1e-9, {"length": [21, 18, 9], "steps": 12} | settings)


def check(model: Model, prompts: list[list[int]], close: float, settings: dict) -> None:
    plain, cached = (
        unmask.sample(model, prompts, cache=cache, **settings) for cache in ("none", "exact")
    )
    assert torch.equal(plain.tokens, cached.tokens)
    torch.testing.assert_close(plain.confidence, cached.confidence, atol=close, rtol=0)
    assert len(prompts) == 3 or len(plain.tokens.unique()) > 12


@pytest.mark.parametrize("cache", ["none", "exact"])
def test_fewer_positions_are_run(cache):
    model, counts = make_blocks(), []
    model.net.block(0).register_forward_pre_hook(lambda _, given: counts.append(given[0][..., 0]))
    unmask.sample(model, [[3]], length=40, steps=40, cache=cache)
    # 40 passes of 40; one of 40, then 4 positions a pass and 4 more in the first pass of a block.
    expected = {"none": 1600, "exact": 40 + 39 * 4 + 9 * 4}[cache]
    assert sum(x.numel() for x in counts) == expected


@pytest.mark.parametrize("peer", ["sdar-tiny", "fast-dllm-v2-tiny", "llada2-tiny"])
@pytest.mark.parametrize("settings", [{}, {"block": 2}, {"plan": "threshold=0.02"}], ids=str)
def test_peers_with_and_without(peer, settings):
    """Networks of the peers, by settings of ours: row i or i + 1, dense or of experts."""
    mask = {"sdar-tiny": 317, "fast-dllm-v2-tiny": 314, "llada2-tiny": 252}[peer]
    given = {"length": 16, "steps": 24, "seed": 3, "temperature": 0.9} | settings
    prompts = [[5, 6, 7, 8, 9], [11, 12, 13, 14, 15]]
    check(load_peer(peer, mask=mask, block=4), prompts, 1e-4, given)
