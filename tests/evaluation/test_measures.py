"""Perplexity, costs of names and descriptions, both factorizations, plain knowledge."""

import json
import math
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor

import unmask
from tests.conftest import lively, make_model
from tests.evaluation.oracle import make_oracle, make_twin
from unmask import UserError
from unmask.data.corpus import TESTS
from unmask.evaluation.factorization import measure_factorization
from unmask.evaluation.groups import estimate_groups
from unmask.evaluation.knowns import measure_knowns, read_knowns
from unmask.evaluation.perplexity import PerplexitySettings, cut_documents, measure_perplexity
from unmask.evaluation.questions import choose_splits
from unmask.evaluation.surprise import estimate_places, measure_surprise
from unmask.net.model import Blueprint, Model

TEXT = "The caves of Orsel are deep – très profondes. " * 4


@pytest.mark.parametrize("causal", [False, True])
def test_a_network_that_knows_nothing_has_the_perplexity_of_its_vocabulary(causal):
    """Exactly: equal logits, the mask's own left out, and no noise in the estimate."""
    model = make_model(causal=causal)
    model.net.head.weight.zero_()
    found = measure_perplexity(
        model, [TEXT, "Deep caves."], PerplexitySettings(context=32, repeats=2)
    )
    symbols = model.net.config.logit_rows - (not causal)
    assert found.perplexity == pytest.approx(symbols)
    assert found.error == pytest.approx(0, abs=1e-6) and found.is_bound is not causal
    encoded = model.tokenizer.encode_documents([TEXT, "Deep caves."])
    assert found.tokens == sum(map(len, encoded))
    assert found.characters == len(TEXT) + 11 and found.bytes == found.characters + 3 * 4
    bits = found.tokens * math.log2(symbols)
    assert found.bits_per_byte == pytest.approx(bits / found.bytes)
    assert found.bits_per_character == pytest.approx(bits / found.characters)


def test_causal_perplexity_in_one_window_is_exact():
    model = make_model(causal=True)
    found = measure_perplexity(model, ["The caves of Orsel."], PerplexitySettings())
    ids = [model.tokenizer.end_id, *model.tokenizer.encode("The caves of Orsel.").ids]
    logp = model.logits(torch.tensor([ids]))[0, :-1].double().log_softmax(-1)
    exact = -logp.gather(-1, torch.tensor(ids[1:])[:, None]).sum()
    assert found.nll == pytest.approx(float(exact), abs=1e-6) and found.error == 0


def test_masked_perplexity_has_an_error_that_shrinks():
    model = make_model()
    few, many = (
        measure_perplexity(model, ["The caves of Orsel."], PerplexitySettings(repeats=repeats))
        for repeats in (4, 64)
    )
    assert 0 < many.error < few.error
    assert abs(few.nll - many.nll) < 5 * few.error


def test_a_network_that_is_told_the_time_hears_when_as_many_are_masked():
    plain = make_model()
    config = replace(plain.net.config, time=True)
    plan = replace(plain.blueprint, config=config)
    model = Model("timed", lively(config), plan, plain.tokenizer)
    found = measure_perplexity(model, ["The caves of Orsel."], PerplexitySettings())
    assert 1 < found.perplexity < 1e6


def test_perplexity_bad_input():
    model = make_model()
    with pytest.raises(UserError, match="windows of 500 tokens were asked for: expected 2 to 128"):
        measure_perplexity(model, [TEXT], PerplexitySettings(context=500))
    with pytest.raises(UserError, match="no text is left to score"):
        cut_documents(["  "], None)
    for limit in (0, -20):
        with pytest.raises(UserError, match=f"a limit of {limit} characters was given: expected"):
            cut_documents([TEXT], limit)
    assert cut_documents(["abc", "  ", "defg"], 7) == ["abc", "de"]


def test_what_a_model_knows_by_heart_costs_nothing(corpus, tokenizer):
    """Given its prompt; alone it costs a uniform choice for each token."""
    splits = choose_splits(corpus, TESTS, 3)
    oracle = make_oracle(corpus, ("d2p_same",), tokenizer)
    rows = list(measure_surprise(oracle, splits, None))
    uniform = math.log(oracle.net.config.logit_rows)
    for row in rows:
        assert row["asked"] == (
            "name" if row["split"] in ("d2p_same", "p2d_reverse") else "description"
        )
        known = row["split"] == "d2p_same"
        assert row["nll_per_token"] == pytest.approx(0 if known else uniform, abs=1e-6)
        assert row["alone_per_token"] == pytest.approx(uniform)
        assert len(row["nll"]) == len(row["tokens"]) and "".join(row["tokens"]) == row["completion"]
    means = estimate_groups([row | {"seed": 0} for row in rows], ("split",), ("nll_first",))
    assert [group.rows for group in means] == [3] * 4
    assert means[0].means["nll_first"].high == pytest.approx(0, abs=1e-6)
    places = estimate_places([row | {"seed": 0, "model": "oracle"} for row in rows])
    known = [group for group in places if group.key["given"] == "same"]
    assert {(group.key["asked"], group.means["nll"].mean > 1) for group in known} == {
        ("name", False),
        ("description", True),
    }
    shortest = {
        what: min(
            max(len(row["nll"]) for row in rows if (row["fact"], row["trained"]) == (fact, "same"))
            for fact in {
                row["fact"] for row in rows if (row["asked"], row["trained"]) == (what, "same")
            }
        )
        for what in ("name", "description")
    }
    for what, least in shortest.items():
        found = [group.key["place"] for group in known if group.key["asked"] == what]
        assert found == list(range(1, min(least, 24) + 1))
    twin = list(measure_surprise(make_twin(tokenizer), splits, None))
    assert len(twin) == len(rows) and all(cost > 0 for row in twin for cost in row["nll_alone"])


@dataclass(frozen=True)
class Pairs(Model):
    """A masked model of two-token texts with any joint distribution, its conditionals exact."""

    joint: Tensor = field(default_factory=lambda: torch.eye(2))

    def logits(
        self, tokens: Tensor, real: Tensor | None = None, at: Tensor | None = None, *_: object
    ) -> Tensor:
        rows = []
        for a, b in tokens[:, :2].tolist():
            first = self.joint.sum(1) if b == self.mask_id else self.joint[:, b]
            second = self.joint.sum(0) if a == self.mask_id else self.joint[a]
            rows.append(torch.stack((first, second)).log())
        logits = torch.stack(rows)
        return logits if at is None else logits.take_along_dim(at[..., None], 1)


def test_a_consistent_model_has_one_joint_and_one_mutual_information():
    facts = unmask.Fact(
        subject="a",
        object="b",
        prompt="a",
        completion="b",
        subject_span=(0, 1),
        object_span=(0, 1),
        fact_id="f",
    )
    tokenizer = unmask.Tokenizer.train(["a", "b"], 259)
    size = tokenizer.vocab_size
    config = unmask.preset("tiny", vocab_size=size, num_logits=size - 1, context=2)
    joint = torch.rand(size - 1, size - 1, generator=torch.Generator().manual_seed(0)).double()
    joint /= joint.sum()
    model = Pairs("pairs", lively(config), Blueprint(config, "masked", size - 1), tokenizer, joint)
    corpus = unmask.data.corpus.Corpus("one", {"d2p_same": [facts]})
    (row,) = measure_factorization(model, choose_splits(corpus, ["d2p_same"], None), 2)
    a, b = tokenizer.encode("ab").ids
    assert row["joint_forward"] == pytest.approx(float(joint[a, b].log()) / 2)
    assert row["gap"] == pytest.approx(0, abs=1e-9)
    shared = float((joint[a, b] / joint[a].sum() / joint[:, b].sum()).log())
    assert row["information_forward"] == pytest.approx(shared)
    assert row["information_backward"] == pytest.approx(shared)


def test_a_causal_model_reads_the_parts_in_both_orders(corpus, tokenizer):
    twin, splits = make_twin(tokenizer), choose_splits(corpus, ["p2d_same"], 2)
    for row, fact in zip(measure_factorization(twin, splits, None), splits[0].facts, strict=True):
        ids = tokenizer.encode(fact.text).ids
        at = len(tokenizer.encode(fact.prompt).ids)
        for text, joint in (
            (ids, row["logp_a"] + row["logp_b_given_a"]),
            (ids[at:] + ids[:at], row["logp_b"] + row["logp_a_given_b"]),
        ):
            whole = torch.tensor([[tokenizer.end_id, *text]])
            logp = twin.logits(whole)[0, :-1].double().log_softmax(-1)
            exact = logp.gather(-1, whole[0, 1:, None]).sum()
            assert joint == pytest.approx(float(exact), abs=1e-4)
        assert row["gap"] > 0


KNOWNS = [
    {"subject": "Orsel", "attribute": "caves", "prompt": "The deep of Orsel are the"},
    {"subject": "Wrenmouth", "attribute": "baker", "prompt": "Who sings in Wrenmouth is the"},
]


@pytest.mark.parametrize("causal", [False, True])
def test_knowns_are_asked_both_ways(tmp_path, causal):
    (tmp_path / "knowns.json").write_text(json.dumps(KNOWNS))
    knowns = read_knowns(tmp_path / "knowns.json")
    tokenizer = unmask.Tokenizer.train([f"{one.prompt} {one.attribute}" for one in knowns] * 3, 320)
    config = unmask.preset("tiny", vocab_size=tokenizer.vocab_size, causal=causal)
    kind = ("causal", None) if causal else ("masked", tokenizer.mask_id)
    model = Model("made", lively(config), Blueprint(config, *kind), tokenizer)
    (answer,) = tokenizer.encode(" caves").ids
    model.net.head.weight.zero_()
    hint = torch.zeros(model.net.config.logit_rows)
    hint[answer] = 20.0
    with model.net.patch({"logits": lambda x: x + hint}):
        rows = list(measure_knowns(model, knowns))
    ways = ["forward", "reverse"] + ([] if causal else ["reverse in place"])
    assert [row["way"] for row in rows] == [way for way in ways for _ in KNOWNS]
    assert rows[0]["hit"] and rows[0]["rank"] == 1 and rows[0]["entropy"] < 0.01
    assert not rows[1]["hit"] and rows[1]["top"][0] == rows[0]["answer"]
    assert "the blank stands for" in rows[2]["prompt"] and "___" in rows[2]["prompt"]
    if not causal:
        assert rows[4]["prompt"] == "The deep of ___ are the caves"


def test_knowns_bad_input(tmp_path):
    path = tmp_path / "knowns.json"
    for content, said in (
        ("[{]", "is not valid JSON"),
        ("{}", "expected a JSON list of objects"),
        ("[]", "holds no facts"),
        (json.dumps([{"subject": "a", "prompt": "a b"}]), "fact 0: 'attribute' is missing"),
        (json.dumps([KNOWNS[0] | {"subject": "Zorvia"}]), "'Zorvia' is not in its prompt"),
    ):
        path.write_text(content)
        with pytest.raises(UserError, match=said):
            read_knowns(path)
    path.write_text(json.dumps(KNOWNS))
    for limit in (0, -1):
        with pytest.raises(UserError, match=f"a limit of {limit} facts was given: expected"):
            read_knowns(path, limit)
