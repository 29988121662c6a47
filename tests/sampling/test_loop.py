"""Plans, orders and the loop: counts add up, given tokens stay, mistakes are sentences."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

import unmask
from tests.conftest import build, make_model
from tests.sampling.states import V, make_state
from unmask import Sampling, UserError
from unmask.base.streams import RowStreams
from unmask.sampling.orders import ORDERS, choose_first
from unmask.sampling.plans import PLANS, get_plan
from unmask.sampling.state import Predictions
from unmask.sampling.texts import sample


def run_plan(name: str, masks: int, steps: int) -> list[int]:
    left, counts = torch.tensor([masks]), []
    streams = RowStreams.make(0, 1)
    for step in range(1, steps + 1):
        open_ = (torch.arange(masks) < left)[None]
        p = torch.full((int(left), 3), 1 / 3, dtype=torch.float64)
        count = get_plan(name).count(make_state(open_, p, step, steps, masks), streams)
        counts.append(int(count))
        left = left - count
    return counts


def test_plans_as_their_peers_have_them():
    assert run_plan("smdm", 10, 4) == [2, 2, 2, 4]
    assert run_plan("smdm", 32, 32) == [0, *[1] * 30, 2]
    assert run_plan("llada", 10, 4) == [3, 3, 2, 2]
    assert run_plan("linear", 10, 4) == [3, 2, 3, 2]
    assert run_plan("cosine", 10, 4) == [1, 2, 4, 3]
    assert run_plan("one", 3, 5) == run_plan("threshold", 3, 5) == [1, 1, 1, 0, 0]
    assert run_plan("threshold=0.3", 3, 5) == [3, 0, 0, 0, 0]


@pytest.mark.parametrize("name", [name for name in PLANS if not get_plan(name).paces_itself])
@pytest.mark.parametrize("steps", [1, 3, 16, 40])
def test_plans_fill_everything(name, steps):
    counts = run_plan(name, 23, steps)
    assert sum(counts) == 23 and min(counts) >= 0


def test_ties_go_to_the_left():
    open_ = torch.tensor([[True, False, True, True, True]])
    chosen = choose_first(torch.tensor([[0.5, 9.0, 0.5, 0.7, 0.5]]), open_, torch.tensor([3]))
    assert chosen.tolist() == [[True, False, True, True, False]]


def test_orders_on_known_predictions():
    p = torch.tensor([[0.6, 0.3, 0.1], [0.5, 0.49, 0.01], [0.4, 0.3, 0.3]], dtype=torch.float64)
    state = make_state(torch.tensor([[True, True, True]]), p)
    streams = RowStreams.make(0, 1)
    first = {name: int(order(state, streams).argmax()) for name, order in ORDERS.items()}
    # Surest, least spread out, clearest lead, leftmost.
    assert (first["confidence"], first["entropy"], first["margin"], first["left"]) == (0, 1, 0, 0)


def test_summaries_have_the_shape_of_the_canvas():
    """Against the same computed on whole tensors, with open positions scattered over two rows."""
    open_ = torch.tensor([[True, False, True, True], [False, True, False, True]])
    was_open = torch.tensor([[True, True, False, True], [True, False, True, True]])
    whole, before = (
        torch.rand(2, 4, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        for seed in (0, 1)
    )
    whole[..., 4] = 0  # a token that is never written
    whole, before = (p / p.sum(-1, keepdim=True) for p in (whole, before))
    state = make_state(open_, whole[open_], last=Predictions(was_open, before[was_open].log()))
    at = open_.double()
    torch.testing.assert_close(state.confidence, whole.amax(-1) * at)
    torch.testing.assert_close(state.entropy, torch.special.entr(whole).sum(-1) * at)
    ranked = whole.sort(-1, descending=True).values
    torch.testing.assert_close(state.margin, (ranked[..., 0] - ranked[..., 1]) * at)
    kl = torch.special.xlogy(whole, whole / before).sum(-1)
    torch.testing.assert_close(state.kl, torch.where(open_ & was_open, kl, torch.inf))
    assert torch.equal(state.logp[open_], whole[open_].log())
    assert state.logp.shape == (2, 4, 5) and (state.logp[~open_] == -torch.inf).all()
    assert state.last_logp is not None and torch.equal(state.last_logp[0, 1], before[0, 1].log())
    assert torch.equal(state.num_open, torch.tensor([3, 2]))
    first = make_state(open_, whole[open_])
    assert first.last_logp is None and (first.kl == torch.inf).all()
    none = Predictions(torch.zeros_like(open_), before[:0, 0].log())
    assert (make_state(open_, whole[open_], last=none).kl == torch.inf).all()
    some = open_ & torch.tensor([[True, False, False, True], [False, True, False, False]])
    fresh = make_state(open_, whole[open_]).predictions.entropy_at(some, int(some.sum()))
    assert torch.equal(fresh[some], state.entropy[some])


@pytest.mark.parametrize("order", [*ORDERS, list(range(31, -1, -1))], ids=str)
def test_trajectory_tells_what_happened(model, order):
    found = sample(model, [[1, 2, 3], [4]], steps=7, order=order, temperature=0.5)
    assert found.states.shape == (8, 2, 32)
    assert (found.states[0] == V - 1).sum() == 2 * 32 - 4
    for step in range(1, 8):
        before, after = found.states[step - 1], found.states[step]
        assert torch.equal(before != after, found.committed_at == step)
    assert torch.equal(found.tokens, found.states[-1])
    assert found.tokens[0, :3].tolist() == [1, 2, 3] and (found.committed_at[0, :3] == 0).all()
    written = found.committed_at > 0
    assert ((found.confidence[written] > 0) & (found.confidence[written] <= 1)).all()
    assert (found.entropy[written] > 0).all() and (found.entropy[~written] == 0).all()
    cheap = sample(
        model, [[1, 2, 3], [4]], steps=7, order=order, temperature=0.5, keep_states=False
    )
    assert cheap.states is None and torch.equal(cheap.tokens, found.tokens)


def test_seeds_and_repeated_prompts(model):
    one, two = (sample(model, [[1, 2]] * 3, temperature=1.0, seed=seed).tokens for seed in (0, 1))
    assert not torch.equal(one, two)
    assert not torch.equal(one[0], one[1]), "the same prompt twice is two draws"
    again = sample(model, [[5], [1, 2]], temperature=1.0, seed=0, length=32).tokens
    assert torch.equal(again[1], one[0]), "a row does not depend on its neighbours"


def test_one_prompt_is_a_batch_of_one(model):
    """Text or ids, in a list or a tensor; a text is not its letters."""
    wanted = sample(model, [[1, 2]], length=9).tokens
    for prompts in ([1, 2], torch.tensor([1, 2]), torch.tensor([[1, 2]]), [torch.tensor([1, 2])]):
        assert torch.equal(sample(model, prompts, length=9).tokens, wanted)
    half = [1, 2, *[V - 1] * 7]
    assert torch.equal(unmask.infill(model, half).tokens, wanted)
    assert torch.equal(unmask.infill(model, torch.tensor(half)).tokens, wanted)
    speaking = make_model()
    one, many = (sample(speaking, prompts, length=12) for prompts in ("The", ["The"]))
    assert one.texts == many.texts


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"prompts": []}, "no prompts were given"),
        ({"prompts": [list(range(9))], "length": 9}, "has 9 tokens, which leaves nothing to write"),
        (
            {"prompts": [list(range(8)) * 4]},
            "nothing to write in the model's context of 32: shorten",
        ),
        ({"length": 33}, "a length of 33 was asked for, expected 1 to the context 32"),
        ({"length": [9, 9]}, "2 lengths were given for 1 prompts"),
        ({"order": [0, 2]}, "is not a permutation of 0 to 1"),
        ({"order": [1, 0]}, "names 2 positions, but the canvas has 32"),
        ({"prompts": [[]], "guidance": 0.5}, "guidance needs a prompt in every row"),
        ({"prompts": [[1], []], "guidance": 0.5}, "guidance needs a prompt in every row"),
        ({"block": 10, "steps": 16}, "16 steps cannot be shared by 3 blocks"),
        ({"prompts": ["text"]}, "has no tokenizer: give prompts as token ids"),
        (
            {"which": "twin", "prompts": [[]]},
            "needs a first token, and a prompt is empty or missing",
        ),
        ({"which": "twin", "guidance": 0.5}, "has no unconditional pass: use guidance 0"),
    ],
)
def test_bad_input(request, settings, said):
    settings = {"prompts": [[1, 2]]} | settings
    model = request.getfixturevalue(settings.pop("which", "model"))
    with pytest.raises(UserError, match=said):
        sample(model, **settings)


def test_causal_decoding_is_greedy_and_cached(twin):
    """Every token is the likeliest after those before it, as whole passes say."""
    prompts, lengths = [[1, 2, 3], [4], [5, 6, 7, 8, 9]], [12, 20, 9]
    found = sample(twin, prompts, length=lengths)
    assert found.calls == 19 and found.states is not None and found.states.shape == (20, 3, 20)
    for row, at, prompt, length in zip(
        found.tokens, found.committed_at, prompts, lengths, strict=True
    ):
        for i in range(len(prompt), length):
            logits = twin.net(row[None, :i])[0, -1]
            assert int(row[i]) == int(logits.argmax()) and int(at[i]) == i - len(prompt) + 1
        assert (at[length:] == 0).all()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.8},
        {"temperature": 1.5, "stochastic": 0.5},
        {"length": None},
        {"length": None, "name": "tiny-gpt2"},
    ],
    ids=str,
)
def test_causal_rows_do_not_depend_on_their_batch(settings):
    """Shorter prompts stand behind padding, which must not count as text; nor do finished rows."""
    settings = {"seed": 2, "length": [12, 20, 9], "name": "tiny"} | settings
    twin = build(settings.pop("name"), "causal", vocab_size=V, context=32)
    prompts = [[1, 2, 3], [4], [5] * 5]
    lengths = settings.pop("length") or [32] * 3
    together = sample(twin, prompts, length=lengths, **settings)
    for i, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
        alone = sample(twin, [prompt], length=length, **settings)
        assert torch.equal(together.tokens[i, :length], alone.tokens[0])
        torch.testing.assert_close(
            together.confidence[i, :length], alone.confidence[0], atol=1e-5, rtol=1e-5
        )


def test_causal_decoding_stops_at_the_end_token():
    tokenizer = unmask.Tokenizer.train(["caves of Orsel"] * 9, 280)
    rows = tokenizer.vocab_size
    model = build("tiny", "causal", tokenizer, vocab_size=rows, context=32)
    end = torch.nn.functional.one_hot(torch.tensor(tokenizer.end_id), rows) * 1e3
    with model.net.patch({"logits": lambda x: x + end}):
        found = sample(model, ["caves", "caves of"], length=[20, 30])
    assert found.calls == 1 and found.texts == ["caves", "caves of"]


@pytest.mark.parametrize("which", ["model", "twin"])
def test_not_a_number_says_when(which, request):
    """At the end, or at once where somebody watches."""
    calls, seen, model = itertools.count(1), [], request.getfixturevalue(which)

    def break_third(x):
        return x * torch.nan if next(calls) == 3 else x

    for watch in (None, seen.append):
        calls = itertools.count(1)
        with model.net.patch({"logits": break_third}):
            with pytest.raises(UserError, match="logits are not numbers at step 3"):
                sample(model, [[1]], watch=watch)
    assert len(seen) == 2


def test_an_object_and_keywords_are_the_same(model):
    single = {"steps": 5, "order": "margin", "temperature": 0.7, "seed": 3, "length": 12}
    settings = Sampling(**single)
    by_name = unmask.sample(model, [[1, 2]], **single)
    assert torch.equal(unmask.sample(model, [[1, 2]], settings).states, by_name.states)
    changed = unmask.sample(model, [[1, 2]], settings, seed=4)
    assert torch.equal(
        changed.states, unmask.sample(model, [[1, 2]], **single | {"seed": 4}).states
    )
    assert not torch.equal(changed.tokens, by_name.tokens) and settings.seed == 3
    pattern = [1, 2, *[V - 1] * 10]
    filled = unmask.infill(model, pattern, replace(settings, length=None))
    assert torch.equal(filled.states, by_name.states)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda m: unmask.sample(m, [[1]], step=4), "sample has no argument 'step': did you mean"),
        (lambda m: unmask.infill(m, [V - 1], length=4), "infill has no argument 'length'"),
        (lambda m: unmask.infill(m, [V - 1], Sampling(length=4)), "settings with length 4: a text"),
    ],
)
def test_mistakes_are_sentences(model, call, said):
    with pytest.raises(UserError) as caught:
        call(model)
    assert said in str(caught.value)


def test_numbers_of_other_libraries_are_numbers(model):
    plain = unmask.sample(model, [[1, 2]], steps=4, block=5, length=12, temperature=0.5, seed=2)
    theirs = unmask.sample(
        model, [[1, 2]], steps=np.int64(4), block=np.int32(5), length=np.int64(12),
        temperature=np.float32(0.5), seed=np.int64(2),
    )  # fmt: skip
    assert torch.equal(plain.states, theirs.states)
    with pytest.raises(UserError, match="'steps' is .*0.*, expected at least 1"):
        Sampling(steps=np.int64(0))
