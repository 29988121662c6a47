"""What a patch is told of its pass, patches of single rows, and those of what runs in parts."""

import contextlib
from collections.abc import Callable
from functools import partial

import pytest
import torch

import unmask
from tests.conftest import prove_alone
from tests.laws.test_patches import HONOURED, IMPOSSIBLE, TRACED, apply, ask, ids, same, score
from tests.representation.facts import make_fact, make_model
from tests.tracing.plain import trace_plainly
from unmask import UserError
from unmask.net.sites import PatchContext
from unmask.net.transformer import Transformer
from unmask.tracing.corruption import Noise, hide

SITE = "layers.1.mlp_out"
TEXTS = "They say Ada", "Now", "They say Ada"


def draw(model, **how):
    """Rows of two lengths, the first and the last alike."""
    prompts = [ids(model, text) for text in TEXTS]
    return unmask.sample(model, prompts, length=[12, 6, 12], seed=3, keep_states=True, **how)


def listen(told: list[PatchContext], shapes: list[torch.Size] | None = None):
    def act(x, context):
        told.append(context)
        if shapes is not None:
            shapes.append(x.shape)
        return x

    return act


@pytest.mark.parametrize("cache", ["none", "exact", "approximate"])
def test_a_sampler_tells_the_state_the_step_and_the_rows(cache):
    model, told, shapes = make_model(), [], []
    with model.net.patch({SITE: listen(told, shapes)}):
        found = draw(model, steps=6, block=6, guidance=0.5, cache=cache)
    assert [context.step for context in told] == [*range(1, 7)] * 2, "parts by number of blocks"
    for context, shape in zip(told, shapes, strict=True):
        with_prompt, without = context.tokens.chunk(2)
        kept = context.rows[: len(with_prompt)]
        assert context.rows == kept * 2 and context.site == SITE
        assert context.tokens.shape == shape[:2], "also where some positions alone are run"
        state = found.states[context.step - 1][list(kept)]
        assert torch.equal(with_prompt, state[:, : with_prompt.shape[1]])
        assert torch.equal(context.open, context.tokens == model.mask_id)
        assert bool((without[:, 0] == model.mask_id).all())
    assert {context.rows for context in told} == {(0, 2, 0, 2), (1, 1)}


def test_a_causal_decoder_tells_them_as_well():
    model, told = make_model(kind="causal"), []
    with model.net.patch({SITE: listen(told)}):
        found = draw(model)
    assert [context.step for context in told] == [*range(1, found.num_steps + 1)]
    assert all(context.rows == (0, 1, 2) and not context.open.any() for context in told)
    assert told[-1].tokens.shape[1] == 11


def test_scores_tell_which_question_a_row_is_about():
    model, told = make_model(), []
    with model.net.patch({SITE: listen(told)}):
        score(model)
    assert {row for context in told for row in context.rows} == {0, 1}
    assert all(len(context.rows) == len(context.tokens) for context in told)


def test_a_trace_is_about_one_text_at_its_step():
    model, told, how = make_model(), [], {"any_answer": True, "length": 20, "steps": 3}
    clean = unmask.find_clean_run(
        model, make_fact(0, "p2d"), unmask.sample(model, make_fact(0, "p2d").prompt, steps=3,
        length=20), any_answer=True,
    )  # fmt: skip
    for run in (
        partial(unmask.trace_steps, at="t1", parts=("resid",), samples=2),
        partial(unmask.cut_edges, step="t1", edges=["answer:subject"], samples=2),
        partial(unmask.patch_paths, sender=("subject", 1, "mlp"), receivers=["final"], step="t1"),
    ):
        told.clear()
        with model.net.patch({SITE: listen(told), "final": listen(told)}):
            run(model, clean, **how)
        assert {context.step for context in told} == {clean.t1}
        assert {row for context in told for row in context.rows} == {0}
        inside = [context for context in told if context.site == SITE]
        assert all(len(context.rows) == len(context.tokens) for context in inside)
        prompt = slice(0, clean.prompt_length)
        assert any(torch.equal(c.tokens[0, prompt], clean.states[0, prompt]) for c in inside)


@pytest.mark.parametrize("kind", ["masked", "causal"])
@pytest.mark.parametrize("site", [SITE, "layers.*.attn_scores", "final", "logits"])
def test_a_patch_of_one_row_leaves_the_others_to_the_bit(kind, site):
    model, how = make_model(kind=kind), {"temperature": 0.7}
    if kind == "masked":
        how |= {"steps": 6, "block": 6, "guidance": 0.5}
    half = {site: lambda x: x * 0.5}
    plain = draw(model, **how)
    with model.net.patch(half):
        every = draw(model, **how)
    for rows in (1, [0, 2]):
        with model.net.patch(half, rows=rows):
            found = draw(model, **how)
        for row in range(3):
            expected = every if row in torch.tensor(rows).view(-1) else plain
            assert torch.equal(found.tokens[row], expected.tokens[row])
            if expected is plain:
                assert torch.equal(found.confidence[row], plain.confidence[row])
        assert not torch.equal(found.confidence, plain.confidence)


def test_a_patch_of_one_question_leaves_the_others():
    model = make_model()
    plain = score(model)
    with model.net.patch({SITE: lambda x: x * 0.5}, rows=1):
        found = score(model)
    assert same(found[:2], plain[:2]) and not same(found[2:], plain[2:])


def test_rows_that_never_come():
    model, half = make_model(), {SITE: lambda x: x * 0.5}
    with pytest.raises(UserError, match="at rows 1, but none of these came.* a trace has one text"):
        with model.net.patch(half, rows=1):
            unmask.trace_tokens(model, *ask(model))
    for rows in (-1, "first", (), [1.5]):
        with pytest.raises(UserError, match="expected whole numbers from 0"):
            with model.net.patch(half, rows=rows):
                pass
    assert not model.net.taps.attached and model.net.taps.rows is None


def blank_head(part: str, head: int = 1) -> Callable[[Transformer], None]:
    """What makes a head's queries, keys or values nothing, in layer 1."""

    def change(net: Transformer) -> None:
        size, first = net.config.head_dim, {"q": 0, "k": 1, "v": 2}[part] * net.config.heads
        net.block(1).attn.qkv.weight.data[(first + head) * size : (first + head + 1) * size] = 0

    return change


@pytest.mark.parametrize("part", ["q", "k", "v"])
def test_a_head_can_read_something_else_than_the_others(part):
    model, tokens = make_model(), torch.arange(12).view(2, 6)
    plain, expected = model.net(tokens), apply(model, blank_head(part)).net(tokens)
    second = torch.tensor([1])
    with model.net.patch({f"layers.1.attn_{part}_in": lambda x: x.index_fill(2, second, 0.0)}):
        torch.testing.assert_close(model.net(tokens), expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(plain, expected, atol=1e-3)


NETWORKS = {"tiny-grouped": "causal", "tiny-llada2": "masked", "tiny-blocks": "masked"}
NETWORKS |= {"tiny-post": "shifted"}
"""Heads in groups, experts, blocks that see those before, norms after additions; and both kinds."""
KEPT = ("blocks", "cache exact", "cache approximate", "score_answers", *TRACED)


@pytest.mark.parametrize(
    "name", [*prove_alone("tiny-llada2", "tiny-post"), "tiny-grouped", "tiny-blocks"]
)
def test_what_writes_back_what_stands_there_changes_nothing_to_the_bit(name):
    """At every site, in all that runs parts of the network or keeps what ran before."""
    model = make_model(name, NETWORKS[name])
    sites = {"key": ["embed", "layers.0.*", "layers.1.*"]}
    tried = 0
    for feature in KEPT:
        run = HONOURED[feature]
        if (model.kind, feature) in IMPOSSIBLE:
            continue
        with contextlib.suppress(UserError):  # steps that blocks cannot share, paths after a norm
            plain, tried = run(model), tried + 1
            with model.net.patch(dict.fromkeys(sites.get(feature, ["*"]), torch.clone)):
                assert same(run(model), plain), feature
    assert tried >= 7


def mix(x: torch.Tensor) -> torch.Tensor:
    """Every position gets some of the one before it, the first of the last one."""
    return x + 0.3 * x.roll(1, 1)


@pytest.mark.parametrize(("name", "kind"), [("tiny", "masked"), ("tiny-experts", "causal")])
def test_traces_under_a_patch_that_moves_states_between_positions(name, kind):
    """Against whole passes; there is no network with such weights."""
    model = make_model(name, kind)
    tokens, subject, answer = ask(model)
    hidden = hide(Noise(samples=2), model, torch.tensor(tokens), range(*subject))
    how = {"corruption": hidden, "metric": "logp", "window": 2}
    for site in ("layers.1.mlp_out", "layers.3.resid_out"):
        with model.net.patch({site: mix}):
            grid = unmask.trace_tokens(model, tokens, subject, answer, parts=tuple(WINDOWS), **how)
            for part, window in WINDOWS.items():
                expected = trace_plainly(model, tokens, hidden, answer, part, window).log()
                torch.testing.assert_close(grid.values(part), expected, atol=2e-5, rtol=0)


WINDOWS = {"resid": 1, "mlp": 2, "attn": 2, "attn_k": 1}
