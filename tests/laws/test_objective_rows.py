"""Objectives that separate attention from order: each against the chain rule, term by term."""

from dataclasses import replace
from itertools import permutations

import pytest
import torch
import torch.nn.functional as F

import unmask
from tests.conftest import lively
from tests.laws.conftest import MASK, B, L, V
from tests.training.runs import make_recipe, make_trainer, run, take_steps
from unmask.base.config import SettingsError
from unmask.base.errors import UserError
from unmask.base.streams import RowStreams
from unmask.data.batches import encode_rows, reverse_entities
from unmask.data.facts import Fact
from unmask.data.reversal_corpus import make_reversal_corpus
from unmask.data.tokenizer import Tokenizer
from unmask.net.presets import preset
from unmask.noise.masked import Masked
from unmask.objectives.batch import Batch
from unmask.objectives.causal import next_token_loss
from unmask.objectives.masked import get_weighting, masked_loss, noise_batch, spare_subject
from unmask.objectives.rearranged import copy_masked, draw_order, hide_suffix, interleave
from unmask.objectives.targets import Targets, targets_loss
from unmask.training.losses import LossInputs, PermutedObjective, SuffixObjective
from unmask.training.recipe import ObjectiveSettings

ROWS = {
    "suffix": {"objective": {"name": "suffix"}},
    "fixed_rate": {"objective": {"name": "fixed_rate", "rate": 0.4}},
    "never_masked": {"objective": {"subject": "never_masked"}},
    "no_loss": {"objective": {"subject": "no_loss"}},
    "not_with_object": {"objective": {"subject": "not_with_object"}},
    "object_hidden": {"objective": {"subject": "object_hidden"}},
    "loss_without_object": {"objective": {"subject": "loss_without_object"}},
    "masked": {"kind": "causal", "objective": {"name": "masked"}},
    "masked_copy": {"kind": "causal", "objective": {"name": "masked_copy"}},
    "permuted": {"kind": "causal", "objective": {"name": "permuted"}},
}
SETTINGS = ObjectiveSettings()


def log_p(logits: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
    """log p of a token; the mask has probability 0."""
    logits = torch.where(torch.arange(V) == MASK, -torch.inf, logits.double())
    return logits.log_softmax(-1)[token]


def test_every_cut_is_the_chain_rule(small, batch):
    """All cuts of a row together are -log p from left to right, under a network that sees all."""
    may = torch.ones(B, L, dtype=torch.bool)
    terms = torch.zeros(B, dtype=torch.float64)
    for cut in range(L):
        t = torch.full((B,), (cut + 0.5) / L, dtype=torch.float64)
        made = hide_suffix(batch, may, t, MASK)
        x = small.run_layers(small.embed(made.tokens))
        terms += targets_loss(small, x, made.targets, MASK)[1].double()
    expected = torch.zeros(B, dtype=torch.float64)
    for i in range(L):
        seen = batch.tokens.clone()
        seen[:, i:] = MASK
        logits = small(seen)[:, i]
        expected -= torch.stack(
            [log_p(*pair) for pair in zip(logits, batch.tokens[:, i], strict=True)]
        )
    torch.testing.assert_close(terms, expected, atol=1e-4, rtol=1e-5)


def test_cuts_are_even_and_stay_in_the_answer(batch):
    objective = SuffixObjective(replace(SETTINGS, response_only=True, filling=False), MASK)
    counts = torch.zeros(B, L)
    for number in range(90):  # a multiple of every answer's length
        t = torch.full((B,), (number + 0.5) / 90, dtype=torch.float64)
        targets = objective.prepare(batch, t, RowStreams.make(0, B)).targets
        counts.view(-1)[targets.at] += 1
    answer = ~batch.is_prompt() & ~batch.is_filling()
    share = answer / answer.sum(-1, keepdim=True) * 90
    assert torch.equal(counts, share.round())


def test_a_shifted_cut_is_read_one_position_earlier(batch):
    may = torch.ones(B, L, dtype=torch.bool)
    t = torch.tensor([0.0, 0.11, 0.3, 0.5, 0.7, 0.99], dtype=torch.float64)
    plain, shifted = (hide_suffix(batch, may, t, MASK, shift) for shift in (False, True))
    assert shifted.targets.at.tolist() == [at - (at % L > 0) for at in plain.targets.at.tolist()]
    assert torch.equal(plain.tokens, shifted.tokens)


def test_a_permuted_row_is_the_chain_rule_in_its_order(causal):
    """Term by term, each computed anew with only what was written before it; for every order."""
    row = torch.tensor([[7, 3, 30, 3]])
    may = torch.ones(1, 4, dtype=torch.bool)
    for order in permutations(range(4)):
        made = interleave(Batch(row), may, torch.tensor([order]), MASK)
        x = causal.run_layers(causal.embed(made.tokens), positions=made.positions)
        nll = targets_loss(causal, x, made.targets, MASK)[1]
        for turn, position in enumerate(order):
            # What came before, then a mask at the wanted position, nothing after it.
            tokens, places = made.tokens[:, : 2 * turn + 1], made.positions[:, : 2 * turn + 1]
            assert tokens[0, -1] == MASK and places[0, -1] == position
            alone = causal.run_layers(causal.embed(tokens), positions=places)
            expected = log_p(causal.unembed(alone)[0, -1], row[0, position])
            torch.testing.assert_close(-nll[turn].double(), expected, atol=1e-5, rtol=1e-5)


def test_tokens_move_with_their_positions(causal):
    """The last token's state depends on where the others stand, not on when they were written."""
    one = lively(preset("tiny", vocab_size=V, causal=True, layers=1))
    tokens, positions = torch.tensor([[5, 9, 2, 7]]), torch.tensor([[0, 1, 2, 3]])
    swapped = torch.tensor([1, 2, 0, 3])
    plain = one.run_layers(one.embed(tokens), positions=positions)[:, -1]
    moved = one.run_layers(one.embed(tokens[:, swapped]), positions=positions[:, swapped])[:, -1]
    torch.testing.assert_close(plain, moved, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(plain, one.run_layers(one.embed(tokens[:, swapped]))[:, -1])


def test_orders_are_drawn_evenly_after_the_prompt():
    batch = Batch(
        torch.zeros(600, 5, dtype=torch.long), torch.full((600,), 2), torch.full((600,), 5)
    )
    may = ~batch.is_prompt()
    order = draw_order(batch, may, RowStreams.make(0, 600).uniform(5))
    assert torch.equal(order[:, :2], torch.tensor([0, 1]).expand(600, 2))
    kinds, counts = order[:, 2:].unique(dim=0, return_counts=True)
    assert len(kinds) == 6 and counts.min() > 70
    objective = PermutedObjective(replace(SETTINGS, response_only=True), MASK)
    inputs = objective.prepare(batch, torch.zeros(600), RowStreams.make(0, 600))
    assert len(inputs.targets.at) == 3 * 600 and (inputs.targets.at % 10 >= 4).all()


def test_a_masked_copy_tells_its_tokens_and_no_others(causal, batch):
    """What follows the separator is the next token; what the copy shows matters, the rest not."""
    may, nothing = torch.ones(B, L, dtype=torch.bool), torch.zeros(B, L, dtype=torch.bool)
    made = copy_masked(batch, may, nothing, MASK, 0)
    # With nothing masked the row stands there twice.
    assert (
        torch.equal(made.tokens[:, :L], made.tokens[:, L + 1 :]) and (made.tokens[:, L] == 0).all()
    )
    x = causal.run_layers(causal.embed(made.tokens))
    loss = targets_loss(causal, x, made.targets, MASK)[0]
    plain = Batch(made.tokens)
    wanted = plain.positions.expand(B, -1) > L
    logits = causal(made.tokens)[:, :-1].double()
    logits[..., MASK] = -torch.inf
    nll = F.cross_entropy(logits.transpose(1, 2), made.tokens[:, 1:], reduction="none")
    torch.testing.assert_close(loss.double(), nll[wanted[:, 1:]].mean(), atol=1e-5, rtol=1e-5)
    # With all masked no token of the row is seen before it is predicted.
    blind = copy_masked(batch, may, ~nothing, MASK, 0)
    changed = replace(batch, tokens=(batch.tokens + 1) % MASK)
    assert torch.equal(
        blind.tokens[:, : L + 1], copy_masked(changed, may, ~nothing, MASK, 0).tokens[:, : L + 1]
    )


def test_a_fixed_rate_is_a_slice_of_the_masked_objective(small, batch):
    process = Masked(V - 1, MASK)
    t = torch.linspace(0.1, 0.9, B, dtype=torch.float64)
    for rate in (0.15, 0.4, 0.85):
        noised = noise_batch(
            process, batch, t, RowStreams.make(5, B), get_weighting("fixed_rate", rate)
        )
        at_rate = torch.full_like(t, rate)
        mdlm = noise_batch(process, batch, at_rate, RowStreams.make(5, B), get_weighting("bound"))
        assert torch.equal(noised.xt, mdlm.xt) and not torch.equal(noised.xt, batch.tokens)
        # The bound is nats per row, the fixed rate nats per position.
        losses = [masked_loss(small, process, batch, each)[0] for each in (noised, mdlm)]
        torch.testing.assert_close(losses[0], losses[1] / L, atol=1e-6, rtol=1e-5)
        share = float(noised.weights.sum() / noised.hidden.sum() * B * L)
        assert share == pytest.approx(1 / rate)


def test_masked_targets_of_a_causal_network_are_read_one_position_before():
    """In what masks the token itself: reversed questions are 0 by construction for one copy."""
    trainer = make_trainer(**ROWS["masked"])
    inputs = trainer.feed(0)[0].inputs
    tokens = inputs.batch.tokens
    assert trainer.net.config.causal and (tokens == trainer.job.model.require_mask()).any()
    row, at = inputs.targets.at // tokens.shape[1], inputs.targets.at % tokens.shape[1]
    clean = trainer.job.examples.parts[""].take(trainer.orders[""].rows_at(0)).tokens
    assert torch.equal(clean[row, (at + 1).clamp(max=79)][at > 0], inputs.targets.tokens[at > 0])


@pytest.mark.parametrize("rule", ["never_masked", "no_loss", "not_with_object"])
def test_subjects_are_spared(rule):
    trainer = make_trainer(batch={"rows": 32}, objective={"subject": rule})
    usual = make_trainer(batch={"rows": 32})
    mask_id, met = trainer.job.model.require_mask(), {"subject": 0, "object": 0, "both": 0}
    for step in range(20):
        clean = trainer.job.examples.parts[""].take(trainer.orders[""].rows_at(step))
        inputs, plain = trainer.feed(step)[0].inputs, usual.feed(step)[0].inputs
        masked = inputs.batch.tokens == mask_id
        scored = torch.zeros_like(masked)
        scored.view(-1)[inputs.targets.at] = True
        subject, object_ = (clean.is_entity(number) for number in (0, 1))
        assert not (scored & ~masked).any()
        if rule == "no_loss":
            assert torch.equal(inputs.batch.tokens, plain.batch.tokens)
            assert not (scored & subject).any() and torch.equal(scored, masked & ~subject)
        else:
            assert torch.equal(scored, masked)
            elsewhere = ~subject & ~object_
            assert torch.equal(masked[elsewhere], (plain.batch.tokens == mask_id)[elsewhere])
        one, other = (masked & subject).any(-1), (masked & object_).any(-1)
        met["subject"] += int(one.sum())
        met["object"] += int(other.sum())
        met["both"] += int((one & other).sum())
    assert (met["subject"] == 0) == (rule == "never_masked") and met["object"] > 0
    assert (met["both"] == 0) == (rule != "no_loss")


def test_subjects_are_predicted_without_their_objects():
    """Where a subject has masks no token of the object is seen; loss is where it was before."""
    rules = ("object_hidden", "usual")
    hiding, usual = (make_trainer(batch={"rows": 32}, objective={"subject": r}) for r in rules)
    mask_id, learned = hiding.job.model.require_mask(), 0
    for step in range(20):
        clean = hiding.job.examples.parts[""].take(hiding.orders[""].rows_at(step))
        inputs, plain = hiding.feed(step)[0].inputs, usual.feed(step)[0].inputs
        masked, before = (each.batch.tokens == mask_id for each in (inputs, plain))
        subject, object_ = (clean.is_entity(number) for number in (0, 1))
        meet = (masked & subject).any(-1)
        assert masked[object_ & meet[:, None]].all()
        assert torch.equal(masked[~meet], before[~meet])
        assert torch.equal(masked[~object_], before[~object_])
        assert torch.equal(inputs.targets.at, plain.targets.at)
        assert torch.equal(inputs.targets.weights, plain.targets.weights)
        learned += int(subject.view(-1)[inputs.targets.at].sum())
    assert learned > 0


def test_subjects_are_seen_masked_beside_their_objects_and_predicted_without():
    """A subject's loss stands where no token of the object does; elsewhere it has none."""
    rules = ("loss_without_object", "usual")
    half, usual = (make_trainer(batch={"rows": 32}, objective={"subject": r}) for r in rules)
    mask_id, met = half.job.model.require_mask(), {"asked": 0, "beside": 0}
    for step in range(20):
        clean = half.job.examples.parts[""].take(half.orders[""].rows_at(step))
        inputs, plain = half.feed(step)[0].inputs, usual.feed(step)[0].inputs
        masked, before = (each.batch.tokens == mask_id for each in (inputs, plain))
        scored = torch.zeros_like(masked)
        scored.view(-1)[inputs.targets.at] = True
        subject, object_ = (clean.is_entity(number) for number in (0, 1))
        is_asked = (scored & subject).any(-1)
        assert masked[object_ & is_asked[:, None]].all()
        assert torch.equal(masked[~object_], before[~object_])
        assert torch.equal((scored & ~subject), (before & ~subject))
        is_beside = (masked & subject).any(-1) & (object_ & ~masked).any(-1)
        assert not (is_asked & is_beside).any()
        met["asked"] += int(is_asked.sum())
        met["beside"] += int(is_beside.sum())
    assert min(met.values()) > 0


def test_rules_for_subjects_need_facts(batch):
    noised = noise_batch(Masked(V - 1, MASK), batch, torch.full((B,), 0.5).double(),
                         RowStreams.make(0, B), get_weighting("smdm"))  # fmt: skip
    with pytest.raises(UserError, match="subject is for facts"):
        spare_subject(noised, batch, "no_loss", RowStreams.make(0, B), MASK)


def test_lines_in_reverse():
    fact = Fact.of(
        "Mira Holtby", "the old smith", "In short, {} is", completion=" the old smith, they say."
    )
    reversed_ = reverse_entities(fact)
    assert reversed_.text == "say. they , the old smith is Mira Holtby short, In"
    assert reversed_.prompt[slice(*reversed_.subject_span)] == "the old smith"
    assert reversed_.completion[slice(*reversed_.object_span)] == "Mira Holtby"
    facts = make_reversal_corpus(2)["train"]
    tokenizer = Tokenizer.train([fact.text for fact in facts], 600)
    rows = encode_rows([reverse_entities(fact) for fact in facts], tokenizer, 90)
    for row, entities, fact in zip(rows.tokens, rows.entities.tolist(), facts, strict=True):
        first, second = entities[:2], entities[2:]
        assert first[1] <= second[0]
        given = tokenizer.decode(row[slice(*first)].tolist()).strip()
        assert given in fact.completion and given


def test_rows_are_left_out_and_added():
    plain = make_trainer().job.examples
    half = make_trainer(data={"without": "both"}).job.examples
    double = make_trainer(data={"reverse_entities": True, "context": 90}).job.examples
    assert 0 < half.num_rows < plain.num_rows and double.num_rows == 2 * plain.num_rows
    named = make_trainer(data={"identities": True, "context": 90}).job.examples
    assert named.num_rows == 3 * plain.num_rows
    with pytest.raises(UserError, match="keeps .* lines: expected how the ids"):
        make_trainer(data={"without": "nobody"})


def test_decoders_get_a_mask_and_longer_rows(tmp_path):
    run(tmp_path / "start", kind="causal", budget={"steps": 2}, data={"context": 161})
    for name, expected in {"masked": 80, "masked_copy": 161, "permuted": 160}.items():
        recipe = {"kind": "causal", "objective": {"name": name}, "network": {"changes": {}}}
        start = {"start": {"model": str(tmp_path / "start" / "model")}}
        trainer = make_trainer(**recipe | start)
        model = trainer.job.model
        assert model.mask_id == model.net.config.vocab_size - 1 and model.net.config.causal
        length = trainer.feed(0)[0].inputs.batch.tokens.shape[1]
        assert length == trainer.job.recipe.input_length == expected
        take_steps(trainer, 1)


def test_decoders_that_read_masks_never_write_one(tmp_path):
    changes = {"layers": 1, "width": 32, "mlp_width": 48, "tied": True}
    run(tmp_path, **ROWS["masked"], budget={"steps": 2}, network={"changes": changes})
    model = unmask.load(str(tmp_path / "model"), device="cpu")
    mask_id, prompt = model.require_mask(), torch.tensor([[3, 4, 5]])
    with torch.no_grad():  # the mask would be likeliest
        state = model.net.norm(model.net.run_layers(model.net.embed(prompt))[0, -1])
        model.net.embedding.weight[mask_id] = 100 * state
    assert int(model.net(prompt)[0, -1].argmax()) == mask_id
    drawn = unmask.sample(model, prompt.tolist(), length=12)
    assert mask_id not in drawn.tokens[0].tolist()


def test_settings_that_nothing_reads_are_refused():
    for kind, objective in (
        ("masked", {"name": "fixed_rate"}),
        ("masked", {"rate": 0.4}),
        ("masked", {"name": "fixed_rate", "rate": 1.4}),
        ("masked", {"name": "suffix", "subject": "no_loss"}),
        ("causal", {"subject": "no_loss"}),
        ("masked", {"name": "suffix", "drop_prompt": 0.1}),
        ("masked", {"name": "permuted"}),
        ("causal", {"name": "suffix"}),
    ):
        with pytest.raises(SettingsError, match="objective"):
            make_recipe(kind=kind, objective=objective)
    with pytest.raises(UserError, match="expected a network with rotary positions"):
        make_trainer(**ROWS["permuted"], network={"preset": "tiny-gpt2", "changes": {}})


def test_inputs_move_with_their_positions():
    inputs = make_trainer(**ROWS["permuted"]).feed(0)[0].inputs
    moved = inputs.to(torch.device("meta"))
    assert isinstance(moved, LossInputs) and moved.positions is not None
    assert moved.positions.shape == inputs.batch.tokens.shape
    assert isinstance(moved.targets, Targets)


def test_next_token_and_permuted_agree_where_they_must(causal, batch):
    """Without positions and masks in between, the identity order is the next token's loss."""
    may = torch.ones(B, L, dtype=torch.bool)
    made = interleave(batch, may, torch.arange(L).expand(B, L), MASK)
    keep = torch.arange(1, 2 * L, 2)
    assert torch.equal(made.tokens[:, keep], batch.tokens)
    assert torch.equal(made.positions[:, keep], torch.arange(L).expand(B, L))
    x = causal.run_layers(causal.embed(made.tokens[:, keep]), positions=made.positions[:, keep])
    expected, nll = next_token_loss(causal, batch)
    logits = causal.unembed(x)[:, :-1]
    mean = F.cross_entropy(logits.flatten(0, 1), batch.tokens[:, 1:].flatten())
    torch.testing.assert_close(mean, expected, atol=1e-5, rtol=1e-5)
    # Each predicts its tokens in the same order, the permuted row its first one as well.
    assert torch.equal(
        made.targets.tokens.view(B, L)[:, 1:].flatten(), batch.tokens[:, 1:].flatten()
    )
    assert len(made.targets.at) == len(nll) + B
