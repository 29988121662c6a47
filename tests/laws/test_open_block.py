"""An open block is read both ways, finished text causally, and what follows is not seen."""

from contextlib import nullcontext

import pytest
import torch

import unmask
from tests.conftest import build
from tests.tracing.plain import trace_plainly
from unmask import UserError, sample
from unmask.net.view import find_open_block
from unmask.objectives.bounds import score_bound
from unmask.objectives.rearranged import run_beside_clean
from unmask.representation.patched import PatchedPrompt, score_patched
from unmask.sampling.speculation import count_per_round
from unmask.tracing.corruption import Mask, Noise
from unmask.tracing.question import Donor, write_from
from unmask.tracing.record import average_states
from unmask.tracing.tokens import trace_tokens

BLOCK, START, LENGTH = 4, 5, 12


@pytest.fixture(scope="module")
def model():
    return build("tiny-grouped", block=BLOCK, open_block=True)


def at(*columns: int, rows: int = 1, length: int = LENGTH) -> torch.Tensor:
    inside = torch.zeros(rows, length, dtype=torch.bool)
    inside[:, list(columns)] = True
    return inside


OPEN = tuple(range(START, START + BLOCK))


def agree(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 500, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("inside", [at(), at(0), at(START), at(LENGTH - 1)], ids=[0, 1, 2, 3])
def test_a_block_of_one_token_is_the_causal_reading(model, inside):
    tokens = draw(1, LENGTH)
    agree(model.logits(tokens, inside=inside), model.reading("causal").logits(tokens))


def test_a_block_that_is_all_of_the_text_sees_everything(model):
    tokens, everything = draw(1, LENGTH), torch.ones(1, LENGTH, dtype=torch.bool)
    both_ways = build("tiny-grouped")  # the same seed: the same weights
    agree(model.logits(tokens, inside=everything), both_ways.logits(tokens))


@pytest.mark.parametrize("changed", range(LENGTH))
def test_what_each_token_reaches(model, changed):
    """Itself, all after it, and in the block all of the block; nothing else, to the bit."""
    tokens, inside = draw(1, LENGTH), at(*OPEN)
    other = tokens.clone()
    other[0, changed] += 1
    names = [f"layers.{layer}.resid_out" for layer in range(model.net.config.layers)]
    with model.net.capture(*names) as before:
        logits = model.logits(tokens, inside=inside)
    with model.net.capture(*names) as after:
        moved = model.logits(other, inside=inside)
    first = START if changed in OPEN else changed
    for one, two in [(logits, moved), *((before[name], after[name]) for name in names)]:
        differs = (one != two).any(-1)[0]
        assert not differs[:first].any() and (differs[first:].all() or one is not logits)


def test_finished_text_has_the_same_states_in_both_readings(model):
    tokens, causal, name = draw(1, LENGTH), model.reading("causal"), "layers.2.resid_out"
    with model.net.capture(name) as one, causal.net.capture(name) as other:
        model.logits(tokens, inside=at(*OPEN))
        causal.logits(tokens)
    agree(one[name][:, :START], other[name][:, :START])
    last = START + BLOCK - 1
    assert (one[name][:, START:last] - other[name][:, START:last]).abs().amax(-1).min() > 0.01


def test_it_begins_at_the_first_mask(model):
    tokens = draw(3, LENGTH)
    tokens[0, START:], tokens[1, [2, 4]], mask = model.mask_id, model.mask_id, model.mask_id
    found = find_open_block(tokens == mask, BLOCK, torch.tensor([5, 6]))
    assert found.equal(torch.cat((at(5, 6, 7, 8), at(2, 3, 4, 5), at())))
    inside = found[1:]
    agree(model.logits(tokens[1:]), model.logits(tokens[1:], inside=inside))
    # Masks after the block stand, but none is predicted.
    agree(model.logits(tokens[:1], at=torch.tensor([5, 8])),
          model.logits(tokens[:1], at=torch.tensor([5, 8]), inside=at(*OPEN)))  # fmt: skip
    for beyond in (None, torch.tensor([9]), torch.tensor([[-1]]), at(9)):
        with pytest.raises(UserError, match="one block of 4 tokens at a time"):
            model.logits(tokens[:1], at=beyond)


def test_rows_of_a_batch_with_padding_on_either_side(model):
    texts = [draw(1, 7, seed=1), draw(1, LENGTH, seed=2)]
    blocks = [at(3, 4, 5, 6, length=7), at(*OPEN)]
    alone = [model.logits(text, inside=inside) for text, inside in zip(texts, blocks, strict=True)]
    for left in (0, LENGTH - 7):
        here = slice(left, left + 7)
        tokens, inside = torch.cat((draw(1, LENGTH, seed=3), texts[1])), at(*OPEN, rows=2)
        real = torch.ones(2, LENGTH, dtype=torch.bool)
        real[0], inside[0] = False, False
        tokens[0, here], inside[0, here], real[0, here] = texts[0][0], blocks[0][0], True
        together = model.logits(tokens, real, inside=inside)
        agree(together[:1, here], alone[0])
        agree(together[1:], alone[1])


SETTINGS = {"temperature": 1.0, "seed": 4, "order": "random", "steps": 12}


@pytest.mark.parametrize(
    "more", [{}, {"guidance": 0.7}, {"remask": "cap=0.2"}, {"block": 3}], ids=str
)
def test_caches_are_exact_and_rows_are_those_of_single_prompts(model, more):
    """Prompts and rows of different lengths: as many blocks, which begin at different places."""
    prompts, lengths = [[3, 5, 7], [11, 2, 9, 9, 4, 1]], [15, 18]
    if "remask" in more:
        lengths = [15, 16]  # rows with other numbers of blocks
        more = more | {"steps": 12}
    plain = sample(model, prompts, length=lengths, **SETTINGS | more)
    for cache in ("exact", "approximate"):
        kept = sample(model, prompts, length=lengths, cache=cache, **SETTINGS | more)
        assert kept.tokens.equal(plain.tokens), cache
        agree(kept.confidence, plain.confidence)
    for i, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
        alone = sample(model, [prompt], length=length, **SETTINGS | more)
        assert alone.tokens[0].equal(plain.tokens[i, :length])


def test_a_watched_run_is_the_same(model):
    settings = {"length": 11, "cache": "exact", **SETTINGS, "steps": 8}
    usual = sample(model, [[3, 5, 7]], **settings)
    with model.net.capture("layers.0.attn_pattern", steps=8) as taken:
        watched = sample(model, [[3, 5, 7]], **settings)
    assert watched.tokens.equal(usual.tokens)
    (pattern,) = taken[8].values()
    seen = (pattern > 0).any(1)[0]
    expected = torch.ones(11, 11, dtype=torch.bool).tril()
    expected[7:, 7:] = True  # the second block
    assert seen.equal(expected)


def test_given_text_in_the_block_is_part_of_it(model):
    """A pattern's block holds what stands between masks and after them."""
    row = [3, 5, model.mask_id, 9, model.mask_id, 8, 6, 2]
    filled = unmask.infill(model, [row], steps=1)
    logits = model.logits(torch.tensor([row]), inside=at(2, 3, 4, 5, length=8))[0]
    logits[:, model.mask_id] = -torch.inf
    assert filled.tokens[0, [2, 4]].tolist() == logits[[2, 4]].argmax(-1).tolist()


def test_the_training_pass_reads_each_block_behind_finished_text(model):
    clean, noisy = draw(2, LENGTH, seed=1), draw(2, LENGTH, seed=2)
    x = run_beside_clean(model.net, noisy, clean)
    found = model.net.unembed(x)
    for start in range(0, LENGTH, BLOCK):
        here = slice(start, start + BLOCK)
        tokens = clean.clone()
        tokens[:, here] = noisy[:, here]
        inside = at(*range(start, start + BLOCK), rows=2)
        agree(found[:, here], model.logits(tokens, inside=inside)[:, here])


@pytest.mark.parametrize("drafts", [1, 3, 6])
def test_drafts_of_the_block_leave_greedy_texts_the_causal_reading_s(model, drafts):
    causal, prompts, lengths = model.reading("causal"), [[3, 5, 7], [11], [2, 2]], [12, 9, 4]
    usual = sample(causal, prompts, length=lengths)
    drawn = sample(causal, prompts, length=lengths, drafts=drafts)
    assert drawn.tokens.equal(usual.tokens) and 1 <= count_per_round(drawn) <= drafts + 1


CELLS = [
    ({"window": 1}, {}),
    ({"window": 2, "mode": "ablate"}, {"ablate": True}),
]


@pytest.mark.parametrize(("how", "plainly"), CELLS, ids=["restore", "ablate"])
@pytest.mark.parametrize("corruption", [Noise(sigma=1.0, samples=2), Mask()], ids=["noise", "mask"])
def test_traces_are_those_of_whole_passes(how, plainly, corruption):
    """The block stays where the prompt ends, even where the subject is hidden by masks."""
    model = build("tiny-grouped", block=BLOCK, open_block=True)
    model.net.double()
    tokens, answer = draw(LENGTH)[:10].tolist(), {5: 3, 7: 4}
    tokens[5], tokens[7], tokens[8] = (model.mask_id,) * 3
    bad = corruption.apply(model, torch.tensor(tokens), range(1, 3))
    found = trace_tokens(model, tokens, (1, 3), answer, parts=("resid", "attn", "attn_k"),
                         corruption=corruption, **how)  # fmt: skip
    fixed = write_from(model, START)
    for part in found.logp:
        window = how["window"] if part == "attn" else 1
        expected = trace_plainly(fixed, tokens, bad, answer, part, window, **plainly)
        assert expected.std() > 1e-3 * expected.mean()
        torch.testing.assert_close(found.values(part), expected, atol=0, rtol=1e-4)


def test_answers_under_changed_states_are_read_from_the_first_mask_on(model):
    """Each token of an answer opens a block behind those before it; changes act inside of it."""
    prompt, answer = draw(6, seed=1).tolist(), [7, 9]
    asked = [PatchedPrompt(prompt, (1, 3), [answer])]
    doubled = {0: lambda x, owners: 2 * x}
    for changes in ({}, doubled):
        ((found,),) = score_patched(model, asked, changes, length=12)
        for k, token in enumerate(answer):
            row = torch.tensor([prompt + answer[:k] + [model.mask_id] * (6 - k)])
            at_first = torch.tensor([6 + k])
            patches = {"layers.0.resid_out": lambda x: 2 * x} if changes else {}
            with model.net.patch(patches) if patches else nullcontext():
                logits = model.logits(row, at=at_first)[0, 0]
            logits[model.mask_id] = -torch.inf
            expected = float(logits.log_softmax(-1, dtype=torch.float64)[token])
            assert found.terms[k] == pytest.approx(expected, abs=1e-5)


def test_a_model_that_writes_from_a_position(model):
    tokens, fixed = draw(2, LENGTH), write_from(model, START)
    agree(fixed.logits(tokens), model.logits(tokens, inside=at(*OPEN, rows=2)))
    with model.net.patch({"layers.0.mlp_out": torch.zeros_like}):  # which is attached to both
        agree(fixed.logits(tokens), model.logits(tokens, inside=at(*OPEN, rows=2)))
    assert write_from(build(), 3).net.open_at is None


def test_a_donor_s_block_begins_where_its_prompt_ends(model):
    prompt, other = draw(6, seed=1).tolist(), draw(4, seed=2).tolist()
    masks = [model.mask_id] * 3
    donor = Donor(tuple(other), {1: 0, 2: 1, 6: 4, 7: 5, 8: 6})
    grid = trace_tokens(model, prompt + masks, (1, 3), {6: 7}, parts=("resid",), donor=donor,
                        places=[6], corruption=Mask())  # fmt: skip
    # Its last layer's state at the answer, put there, says what the donor's own run says.
    logits = model.logits(torch.tensor([other + masks]))[0, 4].clone()
    logits[model.mask_id] = -torch.inf
    said = float(logits.log_softmax(-1, dtype=torch.float64)[7].exp())
    assert float(grid.values("resid")[0, -1]) == pytest.approx(said, abs=1e-6)


def test_what_does_not_say_where_the_block_is_refuses(model):
    tokens = draw(1, LENGTH)
    late = torch.where(torch.arange(LENGTH) < START, tokens[0], model.mask_id)
    refusals = {
        "NAME:causal": (
            lambda: model.net(tokens),
            lambda: model.net.run_layers(model.net.embed(tokens)),
            lambda: average_states(model, [tokens[0].tolist()]),
        ),
        "one block of 4": (
            lambda: score_bound(model, LENGTH, 2, 1)(tokens[0], at()[0], 0),
            lambda: sample(model, [[3]], length=12, require=[[4, 5]]),
        ),
        "is not in the block of 4 that follows": (
            lambda: trace_tokens(model, late, (1, 3), {9: 7}),
        ),
        "a cache was asked for": (lambda: model.net.new_cache(1),),
    }
    for sentence, calls in refusals.items():
        for call in calls:
            with pytest.raises(UserError, match=sentence):
                call()
    with pytest.raises(UserError, match="'open_block' needs 'block'"):
        build(open_block=True)
