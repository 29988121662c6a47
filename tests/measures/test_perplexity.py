"""Perplexity: exact where it can be, a bound with its error elsewhere; sums over documents."""

import json
import math
from dataclasses import replace

import pytest
import torch

import unmask
from tests.conftest import lively, make_model, make_noised
from tests.measures.asking import ask, show
from unmask import UserError
from unmask.evaluation.perplexity import cut_documents, score_documents
from unmask.measures.inputs import find_corpus
from unmask.measures.perplexity import MEASURE
from unmask.measures.runner import pool_results, read_result
from unmask.measures.texts import find_texts
from unmask.net.families import Family, parse_families
from unmask.net.model import Model
from unmask.objectives.likelihood import make_scorer, score_rolling

TEXT = "The caves of Orsel are deep – très profondes. " * 4


def family(model: Model, name: str) -> Family:
    return Family(name, (model,), model.kind)


@pytest.fixture
def documents(tmp_path):
    """A file of seven documents."""
    path = tmp_path / "texts.jsonl"
    texts = [TEXT, "Deep caves.", *(f"The baker of Wrenmouth sings {i}." for i in range(5))]
    path.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    return path, texts


@pytest.mark.parametrize("causal", [False, True])
def test_a_network_that_knows_nothing_has_the_perplexity_of_its_vocabulary(
    causal, documents, tmp_path
):
    """Exactly: equal logits, the mask's own left out, and no noise in the estimate."""
    model, (path, texts) = make_model(causal=causal), documents
    model.net.head.weight.zero_()
    result = ask(MEASURE, [family(model, "m")], path, tmp_path / "run", context=32, repeats=2)
    (row,) = result.summary["models"]
    symbols = model.net.config.logit_rows - (not causal)
    assert row["perplexity"] == pytest.approx(symbols)
    assert row["error"] == pytest.approx(0, abs=1e-6) and row["is_bound"] is not causal
    assert row["tokens"] == sum(map(len, model.tokenizer.encode_documents(texts)))
    assert row["characters"] == sum(map(len, texts)) == row["bytes"] - 3 * 4
    bits = row["tokens"] * math.log2(symbols)
    assert row["bits_per_byte"] == pytest.approx(bits / row["bytes"])
    assert row["bits_per_character"] == pytest.approx(bits / row["characters"])
    assert ("(upper bound)" in result.section.blocks[0].text) is not causal


def test_causal_perplexity_in_one_window_is_exact():
    model = make_model(causal=True)
    (cost,) = score_documents(model, ["The caves of Orsel."])
    ids = [model.tokenizer.end_id, *model.tokenizer.encode("The caves of Orsel.").ids]
    logp = model.logits(torch.tensor([ids]))[0, :-1].double().log_softmax(-1)
    exact = -logp.gather(-1, torch.tensor(ids[1:])[:, None]).sum()
    assert cost.nll == pytest.approx(float(exact), abs=1e-6) and cost.error == 0


def test_masked_perplexity_has_an_error_that_shrinks():
    model = make_model()
    few, many = (
        next(score_documents(model, ["The caves of Orsel."], repeats=repeats))
        for repeats in (4, 64)
    )
    assert 0 < many.error < few.error
    assert abs(few.nll - many.nll) < 5 * few.error


@pytest.mark.parametrize("is_timed", [False, True])
def test_the_cost_from_left_to_right_is_the_chain_rules(is_timed):
    model, text = make_model(), "The caves of Orsel are deep."
    if is_timed:
        config = replace(model.net.config, time=True)
        plan = replace(model.blueprint, config=config)
        model = Model("timed", lively(config), plan, model.tokenizer)
    cost, other = score_documents(model, [text, "Deep caves."], method="chain")
    end, ids = model.tokenizer.end_id, model.tokenizer.encode(text).ids
    exact = unmask.likelihood(model, ids, [end], method="chain")
    assert cost.nll == pytest.approx(exact.nll, rel=1e-5)
    assert cost.error == 0 and cost.tokens == len(ids)
    assert other.nll != cost.nll
    # Not in another order, and not the bound.
    backwards = unmask.likelihood(model, ids, [end], "chain", order=range(len(ids))[::-1])
    assert backwards.nll != pytest.approx(cost.nll, rel=1e-3)
    (bound,) = score_documents(model, [text])
    assert bound.error > 0


def test_windows_of_the_chain_are_those_of_the_bound():
    """Every token counts once, given the tokens of its window that were counted before."""
    model, context, stride = make_model(), 12, 5
    (cost,) = score_documents(model, [TEXT], context, stride, method="chain")
    x0 = torch.tensor([model.tokenizer.end_id, *model.tokenizer.encode(TEXT).ids])
    scorer = make_scorer(model, context)
    expected = score_rolling(lambda x, given, _: scorer.chain(x, given), x0, context, stride)
    assert (cost.nll, cost.tokens) == (pytest.approx(expected.nll, rel=1e-5), len(x0) - 1)
    whole = next(score_documents(model, [TEXT], method="chain"))
    assert whole.tokens == cost.tokens and whole.nll != pytest.approx(cost.nll, rel=1e-5)


def test_tokens_of_all_windows_share_batches(monkeypatch):
    model, sizes = make_model(), []
    original = Model.logits

    def count(self, tokens, *given, **named):
        sizes.append(len(tokens))
        return original(self, tokens, *given, **named)

    monkeypatch.setattr(Model, "logits", count)
    monkeypatch.setattr("unmask.evaluation.chain.fit_rows", lambda *_: 50)
    (cost,) = score_documents(model, [TEXT], 12, 11, method="chain")
    assert sum(sizes) == cost.tokens > 100 and set(sizes[:-1]) == {50}


def test_a_page_says_which_costs_are_exact(documents, tmp_path):
    path, _ = documents
    families = [family(make_model(), "mdm"), family(make_model(causal=True), "ar")]
    chain = ask(MEASURE, families, path, tmp_path / "chain", method="chain")
    bound = ask(MEASURE, families, path, tmp_path / "bound", repeats=2)
    mdm, ar = chain.summary["models"]
    assert not mdm["is_bound"] and mdm["error"] == 0
    assert ar["nll"] == bound.summary["models"][1]["nll"]
    text, others = (show(each).partition("Documents stand after")[0] for each in (chain, bound))
    assert "exact, left to right" in text and "upper bound" not in text
    assert "left to right" not in others and "upper bound" in others
    pooled = pool_results([bound, chain]).summary["models"]
    bounds = {row["model"]: row["is_bound"] for row in pooled}
    assert bounds["bound: mdm"] and not bounds["chain: mdm"]


@pytest.mark.parametrize("kind", ["uniform", "hybrid", "gaussian"])
def test_kinds_without_a_chain_rule_are_refused_before_anything_runs(kind, documents, tmp_path):
    families = [family(make_model(), "mdm"), family(make_noised(kind), "other")]
    sentence = f"other is a {kind} model: the cost of writing from left to right is computed for"
    with pytest.raises(UserError, match=sentence):
        ask(MEASURE, families, documents[0], tmp_path / "run", method="chain")
    assert not (tmp_path / "run").exists()
    with pytest.raises(UserError, match="the method 'chian' is unknown: did you mean 'chain'"):
        next(score_documents(make_model(), [TEXT], method="chian"))


def test_models_are_compared_by_document(documents, tmp_path):
    path, texts = documents
    families = [family(make_model(causal=causal), name) for name, causal in
                (("mdm", False), ("ar", True))]  # fmt: skip
    result = ask(MEASURE, families, path, tmp_path / "run", repeats=2)
    assert len(result.rows()) == 2 * len(texts)
    for row in result.summary["models"]:
        own = [each for each in result.rows() if each["model"] == row["model"]]
        assert row["nll"] == sum(each["nll"] for each in own)
        assert row["error"] == pytest.approx(math.hypot(*(each["error"] for each in own)))
    (pair,) = result.summary["differences"]
    mdm, ar = (row["bits_per_byte"] for row in result.summary["models"])
    assert pair["mean"] == pytest.approx(mdm - ar) and pair["documents"] == 7
    assert pair["low"] < pair["mean"] < pair["high"]
    assert pair["outcome"] == ("above" if pair["low"] > 0 else "unsettled")
    first = result.section.blocks[0].text
    assert f"Bits per byte: mdm {mdm:.2f} ±" in first and f"ar {ar:.2f} (exact)" in first
    assert result.section == read_result(tmp_path / "run").section
    # One document cannot say what another text would cost.
    short = ask(MEASURE, families, path, tmp_path / "short", repeats=2, limit=100)
    assert short.outcomes == ["too few"] and "[too few documents]" in show(short)
    with pytest.raises(UserError, match="the runs scored different texts"):
        pool_results([result, short])
    alone = ask(MEASURE, families[:1], path, tmp_path / "alone", repeats=2)
    pooled = pool_results([alone, result])
    costs = {row["model"]: row["nll"] for row in pooled.summary["models"]}
    assert costs["alone: mdm"] == costs["run: mdm"] and len(pooled.summary["differences"]) == 3


def test_a_model_of_several_seeds_is_named_by_their_mean(documents):
    """As in the difference beside it; the first seed's cost stood there."""
    models = [make_model(causal=True, seed=seed) for seed in range(3)]
    result = MEASURE({"ours": models[:2], "theirs": models[2]}, data=documents[0], device="cpu")
    rows = result.summary["models"]
    bits = [row["bits_per_byte"] for row in rows if row["model"] == "ours"]
    said = f"ours {sum(bits) / 2:.2f} (exact, mean of 2 training seeds)"
    assert said in result.section.blocks[0].text


def test_bad_input():
    model = make_model()
    with pytest.raises(UserError, match="windows of 500 tokens were asked for: expected 2 to 128"):
        list(score_documents(model, [TEXT], context=500))
    with pytest.raises(UserError, match="no text is left to score"):
        cut_documents(["  "], None)
    assert cut_documents(["abc", "  ", "defg"], 7) == ["abc", "de"]
    with pytest.raises(UserError, match="no text was given, and"):
        MEASURE(model)


def test_by_default_a_shipped_model_reads_statements_that_training_kept_out(caplog):
    """Which cost it less than guesses; text of another kind costs more, and that is said."""
    families = parse_families(["reversal-ar"])
    texts, _ = find_texts(None, families)
    trained = set(find_corpus(None, families).training_texts())
    assert len(texts) > 100 and not trained & set(texts)
    model = unmask.load("reversal-ar", device="cpu")
    list(score_documents(model, texts[:20]))
    assert not caplog.text
    list(score_documents(model, ["def f(x): return {k: v**2 for k, v in x.items()}"]))
    assert "stranger than chance" in caplog.text and "costs 8.1" in caplog.text
    with pytest.raises(UserError, match="no text was given"):
        find_texts(None, [family(make_model(), "m")])
