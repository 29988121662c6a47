"""Objectives: the peers' formulas on the same draws, gradients, and what may be noised."""

import pytest
import torch
import torch.nn.functional as F

from tests.conftest import lively
from tests.laws.conftest import MASK, B, L, T, V
from unmask import UserError, preset
from unmask.base.streams import RowStreams
from unmask.noise.hybrid import Hybrid
from unmask.noise.masked import Masked
from unmask.noise.schedules import CosineSchedule, GeometricSchedule, LinearSchedule
from unmask.noise.uniform import Uniform
from unmask.objectives.batch import Batch, draw_length, draw_times
from unmask.objectives.causal import next_token_loss
from unmask.objectives.cross_entropy import weighted_cross_entropy
from unmask.objectives.discrete import noise_tokens, process_loss, round_up, targets_score_entropy
from unmask.objectives.masked import WEIGHTINGS, get_weighting, masked_loss, noise_batch


def draw_hidden(chance: torch.Tensor) -> torch.Tensor:
    """The masks that the streams of seed 5 give."""
    return RowStreams.make(5, B).uniform(L) < chance[:, None]


def compute(net, batch, weighting: str, **options) -> torch.Tensor:
    process = Masked(V - 1, MASK)
    noised = noise_batch(
        process, batch, T, RowStreams.make(5, B), get_weighting(weighting), **options
    )
    return masked_loss(net, process, batch, noised)[0]


def cross_entropies(net, batch, hidden: torch.Tensor) -> torch.Tensor:
    logits = net(torch.where(hidden, MASK, batch.tokens)).double()
    logits = torch.where(torch.arange(V) == MASK, -torch.inf, logits)
    return F.cross_entropy(logits.transpose(1, 2), batch.tokens, reduction="none")


WEIGHED = {
    "smdm": ((1 - 1e-3) * T + 1e-3, {}),
    "smdm_sft": ((1 - 1e-3) * T + 1e-3, {"response_only": True}),
    "llada": ((1 - 1e-3) * T + 1e-3, {"response_only": True}),
    "mdlm": ((1 - 1e-3) * T, {"noise_filling": False}),
}
"""The chance of a mask by the peers' formulas, and what of a row they noise."""


@pytest.mark.parametrize("name", WEIGHED)
def test_weightings_are_the_peers_formulas(small, batch, name):
    p, options = WEIGHED[name]
    hidden = draw_hidden(p)
    hidden &= ~batch.is_prompt() if "response_only" in options else True
    hidden &= ~batch.is_filling() if "noise_filling" in options else True
    weight = 1 / (T if name == "mdlm" else p)[:, None]
    # The filling up to the longest row is part of LLaDA's answers, as in its guidelines.
    counted = {
        "smdm": B * L,
        "smdm_sft": B * L - batch.prompt_length.sum(),
        "llada": B * (L - batch.prompt_length)[:, None],
        "mdlm": (~batch.is_filling()).sum(),
    }[name]
    terms = cross_entropies(small, batch, hidden) * weight / counted
    found = compute(small, batch, name, **options)
    expected = torch.where(hidden, terms, 0.0).sum()
    torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=1e-6)
    gradients, others = (
        torch.autograd.grad(each, list(small.parameters())) for each in (found, expected)
    )
    for one, other in zip(gradients, others, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-3)


def test_bound_is_the_process(small, batch):
    hidden, process = draw_hidden(T), Masked(V - 1, MASK)
    xt = torch.where(hidden, MASK, batch.tokens)
    expected = process.nll(small(xt).double(), batch.tokens, xt, T[:, None]).sum() / B
    found = compute(small, batch, "bound").double()
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
    loss, terms = process_loss(small, process, batch, T, RowStreams.make(5, B))
    torch.testing.assert_close(loss.double() * L, expected, atol=1e-5, rtol=1e-5)
    assert terms.shape == (B, L) and (terms[~hidden] == 0).all()


def test_unknown_weighting():
    with pytest.raises(UserError, match="masked objective 'smdn' is unknown: did you mean 'smdm'"):
        get_weighting("smdn")
    assert set(WEIGHTINGS) == {"bound", "smdm", "smdm_sft", "llada", "mdlm"}


@pytest.mark.parametrize("chunk", [1, 7, 4096])
@pytest.mark.parametrize("forbidden", [None, 4])
def test_chunked_cross_entropy_is_cross_entropy(chunk, forbidden):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(23, 8, dtype=torch.float64, generator=generator, requires_grad=True)
    head = torch.randn(5, 8, dtype=torch.float64, generator=generator, requires_grad=True)
    targets = torch.randint(0, 4, (23,), generator=generator)
    weights = torch.rand(23, dtype=torch.float64, generator=generator)
    loss, nll = weighted_cross_entropy(x, head, targets, weights, forbidden, chunk)
    logits = x @ head.T
    if forbidden is not None:
        logits = torch.where(torch.arange(5) == forbidden, -torch.inf, logits)
    plain = F.cross_entropy(logits, targets, reduction="none")
    torch.testing.assert_close(nll, plain.detach())
    found, expected = (
        torch.autograd.grad(2.5 * each, (x, head)) for each in (loss, (plain * weights).sum())
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("sure", [0.0, 6.0, 12.0])
def test_chunked_cross_entropy_in_a_short_format(sure):
    """Sure targets, as memorised facts have: p - 1 must survive rounding, in autocast as well."""
    generator = torch.Generator().manual_seed(0)
    head = torch.randn(30, 16, generator=generator)
    targets = torch.randint(0, 30, (50,), generator=generator)
    x = 0.3 * torch.randn(50, 16, generator=generator) + sure * F.normalize(head[targets], dim=-1)
    x, head = (a.bfloat16().float().requires_grad_() for a in (x, head))
    weights = torch.rand(50, generator=generator) + 0.5
    plain = (F.cross_entropy(x @ head.T, targets, reduction="none") * weights).sum()
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = weighted_cross_entropy(x, head, targets, weights)
    found, expected = (torch.autograd.grad(each, (x, head)) for each in (loss, plain))
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.float32
        assert float((one - other).norm() / other.norm()) < 0.03


def test_no_gradient_is_made_where_none_is_wanted(monkeypatch):
    x, head = torch.randn(4, 3, requires_grad=True), torch.randn(5, 3, requires_grad=True)
    monkeypatch.setattr(torch, "expm1", lambda *_: pytest.fail("a gradient was computed"))
    with torch.no_grad():
        weighted_cross_entropy(x, head, torch.zeros(4, dtype=torch.long), torch.ones(4))


NOISES = {"uniform": Uniform(V - 1), "hybrid": Hybrid(V - 1), "masked": Masked(V - 1, MASK)}


@pytest.mark.parametrize("process", NOISES.values(), ids=NOISES)
def test_a_row_is_noised_the_same_in_any_batch_and_however_it_is_padded(process, batch):
    longer = F.pad(batch.tokens, (0, 5))
    short = process.corrupt(batch.tokens, T[:, None], RowStreams.make(5, B))
    assert torch.equal(process.corrupt(longer, T[:, None], RowStreams.make(5, B))[:, :L], short)
    masked, weighting = Masked(V - 1, MASK), get_weighting("smdm")

    def noise(row, rows, t=T):
        streams = RowStreams.make(5, rows)
        return noise_batch(masked, row, t, streams, weighting, drop_prompt=0.5).xt

    whole = noise(batch, B)
    padded = Batch(longer, batch.prompt_length, batch.length)
    assert torch.equal(whole, noise(padded, B)[:, :L])
    one = Batch(batch.tokens[2:3], batch.prompt_length[2:3], batch.length[2:3])
    assert torch.equal(whole[2:3], noise(one, [2], T[2:3]))


@pytest.mark.parametrize("process", [Uniform(V - 1), Hybrid(V - 1)], ids=["uniform", "hybrid"])
def test_only_the_response_is_noised_and_counted(process, small, batch):
    kept = batch.is_prompt() | batch.is_filling()
    options = {"response_only": True, "noise_filling": False}
    with small.capture("embed") as sites:
        loss, terms = process_loss(small, process, batch, T, RowStreams.make(5, B), **options)
    noised = process.corrupt(batch.tokens, T[:, None], RowStreams.make(5, B))
    xt = torch.where(kept, batch.tokens, noised)
    torch.testing.assert_close(sites["embed"], small.embedding(xt))
    expected = process.nll(small(xt), batch.tokens, xt, T[:, None])
    assert (terms[kept] == 0).all()
    torch.testing.assert_close(terms[~kept], expected[~kept].detach(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(loss, expected[~kept].mean(), atol=1e-4, rtol=1e-4)


def test_dropped_prompts_of_any_process_with_a_mask(small, batch):
    options = {"response_only": True, "drop_prompt": 1.0}
    with small.capture("embed") as sites:
        _, terms = process_loss(small, Hybrid(V - 1), batch, T, RowStreams.make(5, B), **options)
    hidden = sites["embed"][batch.is_prompt()]
    torch.testing.assert_close(hidden, small.embedding.weight[MASK].expand_as(hidden))
    assert (terms[batch.is_prompt()] == 0).all()
    with pytest.raises(UserError, match="Uniform noise has no mask to drop prompts with"):
        process_loss(small, Uniform(V - 1), batch, T, RowStreams.make(5, B), drop_prompt=0.1)


def test_weightings_of_peers_are_linear(small, batch):
    curved = Masked(V - 1, MASK, CosineSchedule())
    with pytest.raises(UserError, match="have linear noise, but the process has CosineSchedule"):
        noise_batch(curved, batch, T, RowStreams.make(5, B), get_weighting("smdm"))
    noise_batch(curved, batch, T, RowStreams.make(5, B), get_weighting("bound"))


def test_prompts_are_dropped_whole(batch):
    process, weighting = Masked(V - 1, MASK), get_weighting("smdm_sft")
    many = Batch(batch.tokens[:1].expand(400, L), torch.full((400,), 3))
    t = torch.full((400,), 0.3, dtype=torch.float64)
    noised = noise_batch(
        process, many, t, RowStreams.make(0, 400), weighting, response_only=True, drop_prompt=0.25
    )
    masked = (noised.xt[:, :3] == MASK).sum(-1)
    assert set(masked.tolist()) == {0, 3} and 0.17 < (masked == 3).double().mean() < 0.33
    assert not noised.hidden[:, :3].any(), "a dropped prompt is not predicted"


def test_nothing_to_noise(small, batch):
    full = Batch(batch.tokens, torch.full((B,), L), batch.length)
    with pytest.raises(UserError, match="nothing to noise: every position is prompt or filling"):
        compute(small, full, "smdm_sft", response_only=True)
    with pytest.raises(UserError, match="clean tokens hold the mask id 39"):
        compute(small, Batch(torch.full((B, L), MASK)), "smdm")


def test_antithetic_times_spread_evenly_over_ranks():
    def draw(number, **how):
        return draw_times(RowStreams.make(1, 1), number, **how)

    whole, free = draw(8), draw(8, antithetic=False)
    assert torch.equal((whole * 8).long().sort().values, torch.arange(8))
    for is_even, expected in ((True, whole), (False, free)):
        halves = [draw(4, antithetic=is_even, first=first, total=8) for first in (0, 4)]
        torch.testing.assert_close(torch.cat(halves), expected)
    assert ((free > 0) & (free < 1)).all() and len(set(free.tolist())) == 8


def test_stochastic_length(batch):
    lengths = [
        draw_length(batch, 0.5, RowStreams.make(seed, 1)).tokens.shape[1] for seed in range(400)
    ]
    cut = [length for length in lengths if length < L]
    assert 120 < len(cut) < 250 and set(lengths) == set(range(1, L + 1))
    assert draw_length(batch, 0.0, RowStreams.make(0, 1)) is batch
    short = batch.truncate(4)
    assert short.prompt_length.tolist() == [3, 1, 4, 2, 4, 3] and short.length.tolist() == [4] * B


def test_next_token(batch):
    net = lively(preset("tiny", vocab_size=V, causal=True))
    loss, _ = next_token_loss(net, batch)
    plain = F.cross_entropy(net(batch.tokens)[:, :-1].transpose(1, 2), batch.tokens[:, 1:])
    torch.testing.assert_close(loss, plain)
    answers, nll = next_token_loss(net, batch, response_only=True, learn_filling=False)
    assert len(nll) == int((batch.length - batch.prompt_length).sum())
    torch.testing.assert_close(answers, nll.mean())
    with pytest.raises(UserError, match="this network sees the next token"):
        next_token_loss(lively(preset("tiny", vocab_size=V)), batch)


@pytest.mark.parametrize(
    "schedule", [LinearSchedule(), GeometricSchedule(1e-2, 8.0)], ids=["linear", "geometric"]
)
def test_score_entropy_of_a_normalised_network_is_the_bound(batch, schedule):
    """Outputs that are log-probabilities make SEDD's loss the masked bound on the same draws."""
    net = lively(preset("tiny", vocab_size=V, num_logits=V - 1))
    process = Masked(V - 1, MASK, schedule)
    xt = process.corrupt(batch.tokens, T[:, None], RowStreams.make(5, B))
    bound = process.nll(net(xt), batch.tokens, xt, T[:, None]).mean()
    noised = noise_tokens(process, batch, T, RowStreams.make(5, B))

    def find_loss():
        return (noised.targets.weights * targets_score_entropy(net, process, noised)).sum()

    with net.patch({"logits": lambda x: x.log_softmax(-1)}):
        score = find_loss()
    torch.testing.assert_close(score, bound, atol=1e-4, rtol=1e-4)
    # Scores that are not normalised cost more.
    with net.patch({"logits": lambda x: x.log_softmax(-1) + 0.4}):
        assert find_loss() > score


def test_auxiliary_cross_entropy(small, batch):
    """D3PM's hybrid loss: the bound in steps, and a share of the plain cross-entropy."""
    process = Uniform(V - 1, mixture=True)
    (plain, terms), (both, more) = (
        process_loss(small, process, batch, T, RowStreams.make(5, B), num_steps=9, auxiliary=share)
        for share in (0.0, 0.001)
    )
    xt = process.corrupt(batch.tokens, round_up(T, 9)[:, None], RowStreams.make(5, B))
    extra = F.cross_entropy(small(xt).transpose(1, 2), batch.tokens, reduction="none")
    torch.testing.assert_close(more - terms, 0.001 * extra.detach(), atol=1e-4, rtol=1e-2)
    assert both > plain


def test_steps_of_time():
    t = torch.tensor([0.0, 0.1, 0.25, 0.999], dtype=torch.float64)
    assert round_up(t, 4).tolist() == [0.25, 0.25, 0.5, 1.0]
    with pytest.raises(UserError, match="0 noise steps were asked for"):
        round_up(t, 0)
