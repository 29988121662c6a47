"""Windows, operations, memory: what the engine promises besides being right."""

from itertools import product

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.conftest import build, prove_alone
from tests.scripts import load_script
from unmask import UserError, preset, trace_tokens
from unmask.net.model import Model
from unmask.tracing import tokens as tracing_tokens
from unmask.tracing.corruption import Corrupted, Noise
from unmask.tracing.engine import Engine
from unmask.tracing.metrics import score_cells
from unmask.tracing.question import Donor
from unmask.tracing.windows import Trunk, find_trunks, window_of

L, V, SUBJECT = 9, 40, (2, 4)
NOISE = Noise(sigma=0.5, samples=3)
counts = load_script("benchmarks/trace_counts.py")
ROW = torch.ones(1, L, dtype=torch.long)


def make(causal: bool, name: str = "tiny", layers: int = 4) -> tuple[Model, list[int], dict]:
    model = build(name, "causal" if causal else "masked", vocab_size=V, layers=layers)
    tokens = torch.randint(0, V - 1, (L,), generator=torch.Generator().manual_seed(0)).tolist()
    if causal:
        return model, tokens, {L - 2: tokens[L - 2], L - 1: 3}
    tokens[7:] = [V - 1, V - 1]
    return model, tokens, {7: 3, 8: 5}


def test_windows_are_the_reference_s():
    assert [window_of(layer, 10, 20) for layer in (0, 5, 6, 15, 19)] == [
        (0, 5), (0, 10), (1, 11), (10, 20), (14, 20),
    ]  # fmt: skip
    assert [window_of(layer, 3, 4) for layer in range(4)] == [(0, 2), (0, 3), (1, 4), (2, 4)]
    assert [window_of(layer, 1, 3) for layer in range(3)] == [(0, 1), (1, 2), (2, 3)]


def test_windows_that_begin_together_make_one_trunk():
    found = find_trunks(window_of(layer, 10, 8) for layer in range(8))
    assert found == [Trunk(0, (5, 6, 7, 8)), Trunk(1, (8,)), Trunk(2, (8,))]


@pytest.mark.parametrize(
    "name",
    [
        *("tiny", "tiny-blocks", "tiny-llada2"),
        *prove_alone("tiny-gpt2", "tiny-pythia", "tiny-bert", "tiny-post"),
    ],
)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("part", "window"), [("resid", 1), ("attn_k", 1), *product(["mlp", "attn"], [1, 3, 6])]
)
def test_operations_are_the_closed_form(name, causal, part, window):
    """Counted by torch, every product of every layer, and equal to the last one.

    Of windows there are single layers, some that begin or end together, and all layers.
    """
    model, tokens, answer = make(causal, name)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        trace_tokens(model, tokens, SUBJECT, answer, parts=(part,), window=window, corruption=NOISE)
    read = {model.row_of(position) for position in answer}
    length = max(read) + 1 if causal else L
    expected = counts.count_trace_flops(
        model.net.config, length, 3, read, (part,), window, SUBJECT[0] if causal else 0
    )
    assert counter.get_total_flops() == expected


@pytest.mark.parametrize("causal", [False, True])
def test_fewer_operations_than_peers(causal):
    """On the study's shapes, at least what exact savings are known to give."""
    config = preset("1028M", causal=causal)
    read = {51} if causal else {40, 41, 42, 43}
    ours = counts.count_trace_flops(config, 52, 10, read, same_before=5)
    assert counts.count_plain_flops(config, 52, 10, 3) / ours > (5.0 if causal else 2.2)


@pytest.mark.parametrize("causal", [False, True])
def test_memory_that_runs_out_halves_the_batch(causal, monkeypatch):
    """Scores are the same, and the batches became as small as they had to."""
    model, tokens, answer = make(causal)
    expected = trace_tokens(model, tokens, SUBJECT, answer, corruption=NOISE)
    sizes, run = [], Engine.run

    def run_out(self, batch, *rest, **more):
        sizes.append(batch.rows)
        if batch.rows > 4:
            raise torch.OutOfMemoryError("no memory")
        return run(self, batch, *rest, **more)

    monkeypatch.setattr(Engine, "run", run_out)
    found = trace_tokens(model, tokens, SUBJECT, answer, corruption=NOISE)
    assert sizes[0] > 4 and 2 <= max(sizes[5:]) <= 4
    for part in expected.logp:
        torch.testing.assert_close(found.values(part), expected.values(part), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("engine.Engine.run", "memory ran out on cpu for a single restored run"),
        ("tokens.record_run", "for the clean and 3 corrupted runs of 9 tokens: ask for"),
    ],
)
def test_memory_that_is_too_small_for_one_run(place, said, monkeypatch):
    model, tokens, answer = make(False)

    def run_out(*_, **__):
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(f"unmask.tracing.{place}", run_out)
    with pytest.raises(UserError, match=said):
        trace_tokens(model, tokens, SUBJECT, answer, corruption=NOISE)


def test_memory_setting_bounds_the_batch(monkeypatch):
    """A larger setting makes larger batches, from one row to all."""
    model, tokens, answer = make(False)
    sizes, run = [], Engine.run

    def watch(self, batch, *rest, **more):
        sizes.append(batch.rows)
        return run(self, batch, *rest, **more)

    monkeypatch.setattr(Engine, "run", watch)
    most = []
    for memory in (1, 2**20, 2**22, 2**30):
        sizes.clear()
        trace_tokens(
            model, tokens, SUBJECT, answer, parts=("resid",), corruption=NOISE, memory=memory
        )
        most.append(max(sizes))
    assert most[0] == 1 and most == sorted(most) and most[-1] == L * 3 and most[1] < most[2]


BAD = {
    "the subject is [4, 4)": {"subject": (4, 4)},
    "expected a range within 0..9": {"subject": (4, 12)},
    "overlaps the answer at position 7": {"subject": (6, 8)},
    "no answer was given": {"answer": {}},
    "expected none twice": {"parts": ("mlp", "mlp")},
    "position 9 is not in 0..8": {"answer": {9: 1}},
    "token 39 is none that the model can say": {"answer": {7: 39}},
    "position 5 of the answer holds the token": {"answer": {5: 1}},
    "'parts' is ('mlps',), expected a list of one of 'resid', 'mlp'": {"parts": ("mlps",)},
    "compares the answer with another one": {"metric": "logit_difference"},
    "for the part resid alone": {"severed": "mlp"},
    "the foil names the token 3 at position 2": {"foil": {2: 3}},
    "the foil names the token 39 at position 7": {"foil": {7: 39}},
    "the places (99,) are not all": {"places": [99]},
    "not all among those that the donor stands in for": {"donor": Donor((1, 2, 3), {2: 1})},
    "the text holds the token 40, expected tokens in 0..39": {"tokens": [40, *[1] * 6, 39, 39]},
    "the corrupted rows have the shape (1, 3), the clean text": {
        "corruption": Corrupted(ROW[:, :3])
    },
    "trace_tokens has no argument 'windw': did you mean 'window'": {"windw": 2},
    "trace_tokens: 'settings' is ('mlp',), expected Tracing": {"settings": ("mlp",)},
}


@pytest.mark.parametrize("sentence", BAD)
def test_mistakes_are_sentences(sentence):
    model, tokens, answer = make(False)
    given = {"tokens": tokens, "subject": SUBJECT, "answer": answer, "corruption": NOISE}
    with pytest.raises(UserError) as caught:
        trace_tokens(model, **(given | BAD[sentence]))
    assert sentence in str(caught.value)


def test_mistakes_with_a_causal_model():
    model, tokens, answer = make(True)
    with pytest.raises(UserError, match="does not predict position 0"):
        trace_tokens(model, tokens, SUBJECT, {0: 3}, corruption=NOISE)
    with pytest.raises(UserError, match="but the answer has 1 there"):
        trace_tokens(model, tokens, SUBJECT, {7: 1, 8: 1}, corruption=NOISE)
    with pytest.raises(UserError, match="stands after the answer's first position"):
        trace_tokens(model, tokens, (6, 8), {5: tokens[5]}, corruption=NOISE)
    with pytest.raises(UserError, match="no unconditional pass"):
        trace_tokens(model, tokens, SUBJECT, answer, corruption=NOISE, guidance=1.0)


@pytest.mark.parametrize("where", ["clean", "restored"])
def test_runs_that_are_no_numbers_and_other_errors_are_raised(where, monkeypatch):
    model, tokens, answer = make(False)
    run = Engine.run

    def spoil(self, *rest, **more):
        return ((stop, logp * torch.nan) for stop, logp in run(self, *rest, **more))

    def fail(self, *rest, **more):
        raise RuntimeError("something else")

    if where == "clean":
        model.net.norm.weight[0] = torch.nan
    else:
        monkeypatch.setattr(Engine, "run", spoil)
    with pytest.raises(UserError, match="the network's logits are not numbers"):
        trace_tokens(model, tokens, SUBJECT, answer, corruption=NOISE)
    model.net.norm.weight[0] = 1.0
    monkeypatch.setattr(Engine, "run", fail)
    with pytest.raises(RuntimeError, match="something else"):
        trace_tokens(model, tokens, SUBJECT, answer, corruption=NOISE)


def test_metrics_of_one_trace():
    """All metrics come from the same log-probabilities."""
    model, tokens, answer = make(False)
    foil = {7: 11, 8: 12}
    grid = trace_tokens(
        model, tokens, SUBJECT, answer, parts=("mlp",), window=2, corruption=NOISE, foil=foil
    )
    p, logp = grid.values("mlp", "p"), grid.values("mlp", "logp")
    torch.testing.assert_close(p.log(), logp)
    difference = grid.values("mlp", "logit_difference")
    torch.testing.assert_close(difference, logp - grid.values("mlp", "p", which=1).log())
    normalised = grid.values("mlp", "normalised")
    low = grid.corrupted_values("p").mean()
    torch.testing.assert_close(normalised, (p - low) / (grid.clean_value("p") - low))
    assert abs(grid.clean_value("normalised") - 1) < 1e-9
    # The foil's effect is a share of the answer's total effect, too.
    other, its_low = grid.values("mlp", "p", 1), grid.corrupted_values("p", 1).mean()
    share = (other - its_low) / (grid.clean_value("p") - low)
    torch.testing.assert_close(grid.values("mlp", "normalised", 1), share)
    same = torch.zeros(1, 1, 1)
    with pytest.raises(UserError, match="the corruption changed nothing"):
        score_cells("normalised", same, same, same)


ONE = Noise(sigma=0.5, samples=1)
CHOICES = [{"mode": "ablate"}, {"mode": "mean", "corruption": ONE},
           {"mode": "zero", "corruption": ONE}, {"donor": "random"},
           {"donor": Donor((3, 1, 2, 6), {2: 0, 3: 1, 4: 2}), "places": [4, (2, 3)]},
           {"foil": {5: 3}}]  # fmt: skip


@pytest.mark.parametrize("changes", CHOICES, ids=lambda changes: ",".join(changes))
def test_factors_run_together_are_those_run_alone(changes, monkeypatch):
    """By the chain rule, whatever is put in; a foil may stand at some positions only."""
    model, tokens, _ = make(causal=False, name="tiny-grouped")
    tokens[5:] = [V - 1] * 4
    usual = {"parts": ("resid", "attn"), "corruption": NOISE, "joint": "chain_rule"}
    grids = []
    for most in (tracing_tokens.MOST_ROWS, 1):
        monkeypatch.setattr(tracing_tokens, "MOST_ROWS", most)
        grids.append(trace_tokens(model, tokens, SUBJECT, {7: 2, 5: 9, 6: 1}, **usual | changes))
    together, alone = grids
    for part, logp in together.logp.items():
        torch.testing.assert_close(logp, alone.logp[part], atol=2e-5, rtol=0, equal_nan=True)
    for name in ("clean_logp", "corrupted_logp"):
        one, other = getattr(together, name), getattr(alone, name)
        torch.testing.assert_close(one, other, atol=2e-5, rtol=0, equal_nan=True)
