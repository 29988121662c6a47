"""Path patching: all paths are restoring the sender, single ones are three plain runs."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import unmask
from tests.conftest import KINDS
from tests.laws.test_tracing import LAYERS, make
from tests.tracing.plain import read_each
from tests.tracing.test_knockout import SUBJECT, question
from tests.tracing.test_steps import recalled
from unmask import UserError
from unmask.tracing import tokens
from unmask.tracing.corruption import Noise
from unmask.tracing.knockout import find_rows
from unmask.tracing.paths import patch_senders, patch_state
from unmask.tracing.question import ask
from unmask.tracing.settings import Tracing

NOISE = Noise(sigma=1.0, samples=2)
SENDERS = [("subject", 1, "resid"), ("subject", 0, "mlp"), ("subject", 1, "attn"),
           ("subject", 1, "attn_z", 1)]  # fmt: skip


@pytest.fixture(params=[pair for pair in KINDS if pair[0] != "tiny-post"], ids="-".join)
def model(request):
    """Of every kind but norms after the additions, which have no paths."""
    return make(*request.param)


def noised(model):
    """The question of the knock-out's tests, its subject hidden by noise."""
    asked = question(model)
    tokens, answer = asked.clean[0], asked.answer
    return ask(model, tokens, SUBJECT, answer, Tracing(corruption=NOISE), asked.prompt_length)


def test_all_paths_are_restoring_the_sender(model):
    asked = noised(model)
    for sender in SENDERS:
        _, layer, part, *head = sender
        grid = unmask.trace_tokens(
            *(model, asked.clean[0], SUBJECT, asked.answer),
            corruption=NOISE,
            parts=(part,),
            window=1,
            places=[tuple(range(*SUBJECT))],
            prompt_length=asked.prompt_length,
        )
        restored = grid.logp[part][0, layer]
        restored = restored[head[0]] if head else restored
        paths = patch_state(asked, sender, [["everything"], []])
        torch.testing.assert_close(paths.logp[0], restored, atol=5e-5, rtol=0)
        torch.testing.assert_close(paths.logp[1], paths.corrupted_logp, atol=2e-5, rtol=0)
        torch.testing.assert_close(paths.clean_logp, grid.clean_logp, atol=2e-5, rtol=0)


@pytest.mark.parametrize(
    ("sender", "receiver"),
    [
        (("subject", 0, "mlp"), ("answer", 2, "attn_z", 1)),
        (("subject", 1, "attn"), ("answer", 2, "attn")),
        (("subject", 0, "attn"), ("subject", 2, "mlp")),
    ],
)
def test_one_path_is_three_plain_runs(model, sender, receiver):
    """Record; run with the sender patched and all else frozen; put in what the receiver gave."""
    asked, net = noised(model), model.net
    rows = find_rows(asked, tuple(asked.answer))
    tokens = asked.corrupted.tokens[:, : asked.length]
    corrupt: dict[str, Any] = {"embed": asked.corrupted.embed}
    with net.capture("layers.*") as clean:
        net(asked.clean[:, : asked.length])
    with net.patch(corrupt), net.capture("layers.*") as base:
        net(tokens)
    role, first, part = sender
    sites = {"attn": "attn_out", "mlp": "mlp_out", "attn_z": "attn_z"}
    every = [f"layers.{i}.{site}" for i in range(LAYERS) for site in ("attn_out", "mlp_out")]
    frozen: dict[str, Any] = {site: lambda x, site=site: base[site] for site in every}
    site = f"layers.{first}.{sites[part]}"
    mark = rows[role][:, None]
    frozen[site] = lambda x: torch.where(mark, clean[site].expand_as(x), base[site])
    to_rows, layer, to_part, *head = receiver
    target = f"layers.{layer}.{sites[to_part]}"
    # What the receiver computes is seen before it is frozen.
    with net.patch(corrupt), net.capture(target) as seen, net.patch(frozen):
        net(tokens)
    change = rows[to_rows][:, None]
    if head:
        change = change[..., None] & (torch.arange(net.config.heads) == head[0])[None, :, None]
    put = {target: lambda x: torch.where(change, seen[target], x)}
    with net.patch(corrupt), net.patch(put):
        expected = read_each(model, tokens, asked.answer)
    paths = patch_state(asked, sender, [[receiver], ["final"]])
    torch.testing.assert_close(paths.logp[0, :, 0].double(), expected, atol=5e-5, rtol=0)
    if not (rows["subject"] & rows["answer"]).any():
        # Nobody reads the answer at the subject, so its own stream reaches nothing.
        torch.testing.assert_close(paths.logp[1], paths.corrupted_logp, atol=2e-5, rtol=0)


def test_receivers_give_an_answer_back(taught, facts):
    clean = recalled(taught, facts)
    last = taught.net.config.layers - 1
    receivers: list[Any] = [
        "everything",
        ("answer", last, "attn"),
        [("masks", last, "mlp"), "final"],
    ]
    paths = unmask.patch_paths(taught, clean, ("subject", 0, "resid"), receivers, corruption="mean")
    effects = paths.effects("logp")
    grid = unmask.trace_tokens(
        *(taught, clean.state_at(1), clean.subject, clean.open_at(1)),
        corruption="mean",
        joint="chain_rule",
        parts=("resid",),
        metric="logp",
        places=[tuple(range(*clean.subject))],
    )
    assert float(effects[0]) == pytest.approx(float(grid.effects("resid")[0, 0]), abs=1e-4)
    assert abs(effects[1]) > 1e-2 and abs(effects[2]) < 1e-5
    one = unmask.patch_paths(
        taught, clean, ("subject", 0, "resid"), receivers, corruption="mean", memory=1
    )
    torch.testing.assert_close(one.effects("logp"), effects, atol=1e-5, rtol=0)
    wrong = {
        "expected \\(role, layer, part\\)": (("subject", 1), receivers),
        "names the role 'subjct'": (("subjct", 0, "mlp"), receivers),
        "names the part 'embed'": (("subject", 0, "embed"), receivers),
        "names layer 9": (("subject", 9, "mlp"), receivers),
        "names layer nan": (("subject", float("nan"), "mlp"), receivers),
        "expected a head from 0": (("subject", 0, "attn_z"), receivers),
        "the sender is 3": (3, receivers),
        "after no other part": (("subject", 0, "mlp", 1), receivers),
        "expected a list": (("subject", 0, "mlp"), "final"),
        "the receiver names the part 'resid'": (("subject", 0, "mlp"), [("answer", 1, "resid")]),
    }
    for sentence, (sender, given) in wrong.items():
        with pytest.raises(UserError, match=sentence):
            unmask.patch_paths(taught, clean, sender, given)


def test_factors_run_together_are_those_run_alone(monkeypatch):
    """By the chain rule, where rows of the answer become written ones; embeddings are the clean
    run, and a placebo is what a trace with it restores."""
    model = make("tiny-grouped", "shifted")
    asked = noised(model)
    settings = Tracing(corruption=NOISE, joint="chain_rule")
    more = (settings, asked.prompt_length)
    question = ask(model, asked.clean[0], SUBJECT, asked.answer, *more, None, "random")
    own = replace(question, donor=None)
    receivers: list[Any] = [["everything"], [("answer", 2, "attn")], [("written", 2, "attn")]]
    paths = [(("subject", layer, "resid"), receivers) for layer in (-1, 1)]
    together, placebo = patch_senders(own, paths), patch_senders(question, paths)
    monkeypatch.setattr(tokens, "MOST_ROWS", 1)
    for one, other in zip(together, patch_senders(own, paths), strict=True):
        torch.testing.assert_close(one.logp, other.logp, atol=2e-5, rtol=0)
    clean = together[0].clean_logp.expand(2, -1, -1)
    torch.testing.assert_close(together[0].logp[0], clean, atol=5e-5, rtol=0)
    grid = tokens.trace_tokens(
        *(model, asked.clean[0], SUBJECT, asked.answer, settings),
        parts=("resid",),
        places=[tuple(range(*SUBJECT))],
        prompt_length=asked.prompt_length,
        donor="random",
    )
    torch.testing.assert_close(placebo[1].logp[0], grid.logp["resid"][0, 1], atol=5e-5, rtol=0)
    assert (placebo[1].logp[0] - together[1].logp[0]).abs().max() > 1e-3
