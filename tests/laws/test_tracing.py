"""What must hold for every trace, of diffusion and of causal networks of every block."""

from itertools import product

import pytest
import torch

from tests.conftest import KINDS, build
from tests.tracing.plain import trace_plainly
from unmask import preset
from unmask.net.model import Model
from unmask.tracing.attribution import estimate_effects
from unmask.tracing.corruption import Corrupted, Mask, Mean, Noise, Replace
from unmask.tracing.grid import TraceGrid
from unmask.tracing.settings import Tracing
from unmask.tracing.tokens import trace_tokens

V, MASK, L, LAYERS = 40, 39, 9, 3
CLOSE = {"atol": 1e-6, "rtol": 0.0}
SUBJECT = (1, 4)


def make(name: str, kind: str) -> Model:
    return build(name, kind, vocab_size=V, layers=LAYERS)


@pytest.fixture(params=KINDS, ids="-".join)
def model(request) -> Model:
    return make(*request.param)


def only(kinds: list[tuple[str, str]]) -> pytest.MarkDecorator:
    """For laws that hold for some kinds of model."""
    return pytest.mark.parametrize("model", kinds, indirect=True, ids="-".join)


def cross(name: str, cases: list) -> pytest.MarkDecorator:
    """For what is the engine's, whatever the block: every kind of model, or a few."""
    return pytest.mark.parametrize(("model", name), cases, indirect=["model"], ids=str)


CAUSAL = only([pair for pair in KINDS if pair[1] == "causal"])
MASKED_KINDS = [pair for pair in KINDS if pair[1] != "causal"]
DIFFUSION = only(MASKED_KINDS)


@pytest.fixture
def state(model) -> tuple[list[int], dict[int, int]]:
    """Tokens, and as an answer of two positions what the model says there."""
    tokens = torch.randint(0, MASK, (L,), generator=torch.Generator().manual_seed(3)).tolist()
    if model.kind == "causal":
        # The second position is the one after the last token.
        tokens[L - 1] = int(model.logits(torch.tensor([tokens]))[0, L - 2, :MASK].argmax())
        said = model.logits(torch.tensor([tokens]))[0, L - 1, :MASK].argmax()
        return tokens, {L - 1: tokens[L - 1], L: int(said)}
    tokens[5], tokens[7], tokens[8] = MASK, MASK, MASK
    said = model.logits(torch.tensor([tokens]))[0, :, :MASK].argmax(-1)
    return tokens, {5: int(said[5]), 7: int(said[7])}


NOISE = Noise(sigma=1.0, samples=2)
PARTS = ("resid", "mlp", "attn")


def corrupt(model: Model, tokens: list[int], corruption=NOISE) -> Corrupted:
    return corruption.apply(model, torch.tensor(tokens), range(*SUBJECT))


def trace(model: Model, state, parts=PARTS, window=1, corruption=NOISE, **how) -> TraceGrid:
    return trace_tokens(
        model, state[0], SUBJECT, state[1], parts=parts, window=window, corruption=corruption, **how
    )


def check(found: TraceGrid, model: Model, state, corruption=NOISE, **how) -> None:
    """Assert that every cell is the plain tracer's; windows are of MLPs and attention."""
    tokens, answer = state
    bad = corrupt(model, tokens, corruption)
    for part in found.logp:
        window = found.window if part in ("mlp", "attn") else 1
        expected = trace_plainly(model, tokens, bad, answer, part, window, **how)
        torch.testing.assert_close(found.values(part), expected, **CLOSE)


@cross("window", [*product(KINDS, [4]), *product(KINDS[:3], [1, 10])])
def test_engine_is_the_plain_tracer(model, state, window):
    """Window 4 has windows that begin together and end apart, window 10 equal ones."""
    found = trace(model, state, PARTS if window == 1 else ("mlp", "attn"), window)
    check(found, model, state)
    for part, scores in found.scores.items():
        assert found.values(part).std() > 1e-4, "the cells should differ visibly"
        torch.testing.assert_close(scores, found.values(part).mean(-1), **CLOSE)


SWAPS = Replace(((1, 2, 3), (4, 5, 6), (7, 8)))


@cross("corruption", [*product(KINDS, [Mean(), SWAPS]), *product(MASKED_KINDS, [Mask()])])
def test_every_corruption_is_the_plain_tracer(model, state, corruption):
    check(trace(model, state, ("mlp",), 2, corruption), model, state, corruption)


@DIFFUSION
def test_guided_is_the_plain_tracer(model, state):
    guided = (0.7, model.logits(torch.tensor([[MASK] * 5 + state[0][5:]])))
    found = trace(model, state, window=2, guidance=0.7, prompt_length=5)
    check(found, model, state, guided=guided)


def test_ablating_is_the_plain_tracer(model, state):
    found = trace(model, state, window=3, mode="ablate")
    check(found, model, state, ablate=True)
    for part in PARTS:
        effects = found.clean - found.values(part).mean(-1)
        torch.testing.assert_close(found.effects(part), effects, **CLOSE)


@pytest.mark.parametrize("severed", ["mlp", "attn"])
def test_severed_is_the_plain_tracer(model, state, severed):
    found = trace(model, state, ("resid",), severed=severed)
    check(found, model, state, severed=severed)
    whole = trace(model, state, ("resid",))
    apart = whole.values("resid", "logp") - found.values("resid", "logp")
    assert apart.abs().max() > 1e-4


def test_heads_are_the_plain_tracer(model, state):
    """Each head alone."""
    found, heads = trace(model, state, ("attn_z",)), model.net.config.heads
    assert found.scores["attn_z"].shape == (L, LAYERS, heads)
    bad = corrupt(model, state[0])
    for head in (0, heads - 1):
        expected = trace_plainly(model, state[0], bad, state[1], "attn_z", head=head)
        torch.testing.assert_close(found.values("attn_z")[:, :, head], expected, **CLOSE)


@cross("mode", [*product(KINDS, ["restore"]), *product(KINDS[:3], ["ablate"])])
def test_queries_keys_and_values_are_the_plain_tracer(model, state, mode):
    """Each of them alone: what a position asks, what it is found by, what it gives."""
    found = trace(model, state, ("attn_q", "attn_k", "attn_v"), window=3, mode=mode)
    check(found, model, state, ablate=mode == "ablate")


def test_queries_keys_and_values_of_all_positions_are_what_attention_adds(model, state):
    tokens, _ = state
    bad = corrupt(model, tokens)
    with model.net.capture("*") as clean:
        model.logits(torch.tensor([tokens]))

    def run(*names: str) -> torch.Tensor:
        sites = [f"layers.1.{name}" for name in names]
        put = {site: lambda x, site=site: clean[site].expand_as(x) for site in sites}
        with model.net.patch({"embed": bad.embed} | put):
            return model.logits(bad.tokens)

    whole = run("attn_q", "attn_k", "attn_v")
    torch.testing.assert_close(whole, run("attn_out"), **CLOSE)
    for pair in (("attn_q", "attn_k"), ("attn_k", "attn_v"), ("attn_q", "attn_v")):
        assert (run(*pair) - whole).abs().max() > 1e-4, pair


def test_an_empty_patch_gives_the_corrupted_run(model, state):
    """Run through the whole engine, not skipped."""
    found = trace(model, state, window=3, places=[()])
    for part in PARTS:
        expected = found.corrupted_values().expand(1, LAYERS, -1)
        torch.testing.assert_close(found.values(part), expected, **CLOSE)


def test_all_embeddings_give_the_clean_run(model, state):
    for places in (tuple(range(*SUBJECT)), tuple(range(L))):
        found = trace(model, state, ("embed",), places=[places])
        assert abs(found.total_effect) > 1e-4
        clean = torch.full((1, 1, NOISE.samples), found.clean, dtype=torch.float64)
        torch.testing.assert_close(found.values("embed"), clean, **CLOSE)


def test_a_state_patched_with_itself_changes_nothing(model, state):
    found = trace(model, state, window=3, corruption=Noise(sigma=0.0, samples=2))
    for part in PARTS:
        clean = torch.full((L, LAYERS, 2), found.clean, dtype=torch.float64)
        torch.testing.assert_close(found.values(part), clean, **CLOSE)


@CAUSAL
def test_a_causal_network_sees_nothing_after_the_answer(model, state):
    """Asked at an early position, everything later, and before the subject, has effect 0."""
    tokens, _ = state
    early = (tokens, {SUBJECT[1] + 1: tokens[SUBJECT[1] + 1]})
    found = trace(model, early, window=3)
    for part in PARTS:
        effects = found.effects(part)
        assert (effects[SUBJECT[1] + 1 :] == 0).all() and (effects[: SUBJECT[0]] == 0).all()
        assert effects[slice(*SUBJECT)].abs().max() > 1e-5
    check(found, model, early)  # what was not run is what running would have given


def test_the_last_layer_is_where_the_answer_is_read(model, state):
    """All answer rows restored at the last layer give the total effect, any other exactly none."""
    rows = tuple(sorted({model.row_of(position) for position in state[1]}))
    others = [place for place in range(L) if place not in rows]
    whole = trace(model, state, ("resid",))
    found = trace(model, state, ("resid",), places=[rows, *others]).effects("resid")[:, -1]
    assert abs(whole.total_effect) > 1e-4
    assert abs(float(found[0]) - whole.total_effect) < 1e-6
    assert (found[1:] == 0).all()


def test_batches_change_nothing(model, state):
    """One row at a time, a few, or all at once."""
    usual = trace(model, state, window=4)
    for memory, at in ((1, [2, 7]), (2**19, [*range(L)]), (2**34, [*range(L)])):
        found = trace(model, state, window=4, memory=memory, places=at)
        for part in PARTS:
            torch.testing.assert_close(found.values(part), usual.values(part)[at], **CLOSE)


def test_a_position_is_read_where_its_logits_are(model, state):
    """`row_of` and `align` are one rule."""
    tokens, answer = state
    row = torch.tensor([tokens])
    x = model.net.run_layers(model.net.embed(row))
    aligned = model.net.unembed(model.align(x))[0]
    for position in (*answer, 1):
        late = 1 if model.kind == "causal" else 0
        raw = model.net.unembed(x)[0, model.row_of(position)]
        torch.testing.assert_close(aligned[position - late], raw, **CLOSE)


@DIFFUSION
def test_the_chain_rule_is_a_product_of_questions(model, state):
    """Each factor is a trace of its own state; the joint is their product, sample by sample."""
    tokens, answer = state
    (first, a), (second, b) = answer.items()
    both = trace(model, state, window=3, joint="chain_rule")
    shown = [*tokens[:first], a, *tokens[first + 1 :]]
    bad = corrupt(model, tokens)
    rest = Corrupted(torch.tensor(shown).expand(NOISE.samples, -1), bad.noisy, bad.added)
    one = trace(model, (tokens, {first: a}), window=3, corruption=bad)
    other = trace(model, (shown, {second: b}), window=3, corruption=rest)
    assert both.joint == "chain_rule"
    assert abs(both.clean - one.clean * other.clean) < 1e-6
    for part in PARTS:
        product = one.values(part) * other.values(part)
        torch.testing.assert_close(both.values(part), product, **CLOSE)
    assert abs(trace(model, state, window=3).clean - both.clean) > 1e-5


@DIFFUSION
def test_guidance_mixes_with_a_pass_without_the_prompt(model, state):
    tokens, answer = state
    found = trace(model, state, ("resid",), guidance=0.8)
    hidden, bad, expected = torch.tensor([[MASK] * 5 + tokens[5:]]), corrupt(model, tokens), []
    for rows, patch in ((torch.tensor([tokens]), {}), (bad.tokens, {"embed": bad.embed})):
        with model.net.patch(patch):
            conditional = model.logits(rows)
        without = model.logits(hidden)
        logits = without + 1.8 * (conditional - without)
        logits[..., MASK] = -torch.inf
        logp = logits.double().log_softmax(-1)
        expected.append(sum(logp[:, at, token] for at, token in answer.items()).exp())
    assert abs(found.clean - float(expected[0])) < 1e-6
    torch.testing.assert_close(found.corrupted_values(), expected[1], **CLOSE)
    # All subject states restored at the embedding: the clean run, guided.
    whole = trace(model, state, ("embed",), guidance=0.8, places=[tuple(range(*SUBJECT))])
    assert (whole.values("embed") - whole.clean).abs().max() < 1e-6


@only([pair for pair in KINDS if preset(pair[0]).experts is None])
def test_the_estimate_is_right_to_first_order(model, state):
    """Halving small noise quarters the error of the gradients' estimate of log p.

    For single layers: the sum over a window takes each of its layers as if alone. Where noise sends
    a token to other experts the network jumps, and no gradient knows of it.
    """
    tokens, answer = state
    errors = {part: [] for part in PARTS}
    scale = float(model.net.embedding.weight.std())
    for sigma in (0.02 * scale, 0.01 * scale):
        given = (model, tokens, SUBJECT, answer)
        settings = Tracing(parts=PARTS, window=1, corruption=Noise(sigma=sigma, samples=1))
        exact = trace_tokens(*given, settings, metric="logp")
        guess = estimate_effects(*given, settings)
        assert guess.estimate and guess.metric == "logp" and not exact.estimate
        torch.testing.assert_close(guess.corrupted_logp, exact.corrupted_logp, atol=1e-5, rtol=0)
        for part in PARTS:
            effects = exact.effects(part)
            error = (guess.effects(part) - effects).abs().max()
            assert error < 0.5 * effects.abs().max()
            errors[part].append(float(error))
    for first, second in errors.values():
        assert second < 0.4 * first + 2e-5
