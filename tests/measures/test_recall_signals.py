"""Signals of wrong answers, AUROC where it is known, and masks for the answer alone."""

from dataclasses import replace

import pytest
import torch

import unmask
from tests.conftest import build, make_model
from tests.evaluation.oracle import make_oracle
from tests.measures.asking import ask, show
from unmask import UserError
from unmask.blocks.tidy import select
from unmask.data.facts import tokenize_fact
from unmask.evaluation.questions import choose_splits
from unmask.evaluation.recall import AskedModel
from unmask.evaluation.signals import SIGNALS, find_signals
from unmask.measures.recall import MEASURE
from unmask.net.families import Family
from unmask.results.signals import NAMES
from unmask.sampling.trajectory import Trajectory


def test_signals_are_those_of_the_tokens_written():
    """Three places, the first given; the last is written first, the other changes its mind."""
    steps = torch.tensor([[0, 2, 1]])
    ids = torch.tensor([[[[-1, -1], [5, 6], [7, 8]]], [[[-1, -1], [6, 5], [-1, -1]]]])
    p = torch.tensor([[[[0, 0], [0.5, 0.4], [0.9, 0.1]]], [[[0, 0], [0.6, 0.3], [0, 0]]]])
    drawn = Trajectory(
        tokens=torch.tensor([[1, 6, 7]]), lengths=torch.tensor([3]), committed_at=steps,
        confidence=torch.ones(1, 3), entropy=torch.tensor([[0.0, 1.0, 0.4]]), calls=2, num_steps=2,
        texts=None, guess_ids=ids, guess_p=p,
    )  # fmt: skip
    (signals,) = find_signals(drawn)
    wanted = {"entropy": 0.7, "entropy_most": 1.0, "margin": 0.55, "margin_least": 0.3}
    assert signals == pytest.approx(wanted | {"changes": 0.5, "backwards": 1.0})
    (nothing,) = find_signals(replace(drawn, committed_at=torch.zeros(1, 3, dtype=torch.long)))
    assert nothing == dict.fromkeys(SIGNALS)


def test_signals_take_no_pass_and_change_no_text():
    model = build(context=16)
    given = {"length": 12, "steps": 4, "cache": "exact"}
    plain, kept = (unmask.sample(model, [[1, 2], [3]], guesses=n, **given) for n in (0, 2))
    assert torch.equal(plain.tokens, kept.tokens) and plain.calls == kept.calls
    assert all(0 <= row["backwards"] <= 1 for row in find_signals(kept))


def test_who_does_not_know_is_unsure(corpus, tokenizer, tmp_path):
    """A model that knows every second fact of a split by heart, and nothing of the others."""
    oracle = make_oracle(corpus, ("d2p_same",), tokenizer)
    facts = sorted({fact.fact_id for fact in corpus["d2p_same"]})[::2]
    rows = [tokenize_fact(x, tokenizer) for x in corpus["d2p_same"] if x.fact_id in facts]
    known = {tuple(row.ids[: row.prompt_length]): row.ids for row in rows}
    family = Family("mdm", (replace(oracle, known=known),), "masked")
    few = {"splits": ("d2p_same",), "steps": (2,), "controls": False}
    result = ask(MEASURE, [family], corpus, tmp_path / "run", signals=True, **few)
    signals = result.summary["signals"]
    for name in ("entropy", "entropy_most", "margin", "margin_least"):
        (row,) = select(signals, metric=name)
        assert row["mean"] == 1.0 and row["wrong"] == row["prompts"] / 2
    assert {row["metric"] for row in signals} <= {*NAMES}
    assert NAMES.keys() == {*SIGNALS}
    assert "tells wrong answers best" in show(result) and "highest entropy" in show(result)
    plain = ask(MEASURE, [family], corpus, tmp_path / "plain", **few)
    assert not plain.summary["signals"] and "entropy_most" not in plain.rows()[0]
    for one, other in zip(result.rows(), plain.rows(), strict=True):
        assert one["generation"] == other["generation"]


def test_masks_of_the_answer_end_where_it_does(corpus, tokenizer):
    model = build(tokenizer=tokenizer, vocab_size=tokenizer.vocab_size, context=64)
    splits = choose_splits(corpus, ("d2p_same", "p2d_same"), 3)
    for masks, more in (("canvas", None), ("answer", 0), ("padded", 1)):
        asked = AskedModel(model, splits, None, masks=masks)
        for split in splits:
            rows = list(asked.measure(split, 2, 0.0, "smdm", "confidence"))
            texts = asked._write(split.facts, {"steps": 2, "guidance": 0.0, "guesses": 0})
            lengths = [len(text.tokens) for text in texts]
            answers = [row["tokens"] for row in rows[: len(lengths)]]
            assert (lengths == [each + (more or 0) for each in answers]) == (more is not None)
            assert min(lengths) > 0


def test_padded_rows_tell_the_length_by_end_tokens(corpus, tokenizer, monkeypatch, tmp_path):
    """What the network is shown: prompt, masks for the answer and a full stop, end tokens."""
    model = build(tokenizer=tokenizer, vocab_size=tokenizer.vocab_size, context=64)
    (split,) = choose_splits(corpus, ("d2p_same",), 1)
    asked, rows = AskedModel(model, [split], None, masks="padded"), []
    monkeypatch.setattr(
        "unmask.evaluation.recall.infill",
        lambda model, given, **more: rows.extend(given) or unmask.infill(model, given, **more),
    )
    list(asked.measure(split, 1, 0.0, "smdm", "confidence"))
    for row, fact in zip(rows, split.facts, strict=True):
        whole = tokenize_fact(fact, tokenizer)
        masks = len(whole.ids) - whole.prompt_length + 1
        ends = asked.length - len(whole.ids) - 1
        wanted = [*whole.ids[: whole.prompt_length], *[model.mask_id] * masks]
        assert row == [*wanted, *[tokenizer.end_id] * ends]
    with pytest.raises(UserError, match="expected one that fills masks"):
        causal = make_model(causal=True)
        MEASURE(causal, data=corpus, masks="padded", out=tmp_path / "run", device="cpu")
