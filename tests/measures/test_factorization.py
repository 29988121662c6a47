"""Both orders of a sentence: equal for a consistent model, the true sums for a causal one."""

from dataclasses import dataclass, field

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from scipy import stats
from torch import Tensor

import unmask
from tests.conftest import lively
from tests.evaluation.oracle import make_twin
from tests.measures.asking import ask, show
from unmask import UserError
from unmask.blocks.tidy import distinct, select
from unmask.measures.factorization import MEASURE
from unmask.measures.recall import MEASURE as RECALL
from unmask.net.families import Family
from unmask.net.model import Blueprint, Model


@dataclass(frozen=True)
class Pairs(Model):
    """A masked model of two-token texts with any joint distribution, its conditionals exact."""

    joint: Tensor = field(default_factory=lambda: torch.eye(2))

    def logits(
        self,
        tokens: Tensor,
        real: Tensor | None = None,
        at: Tensor | None = None,
        *_: object,
        **more: object,
    ) -> Tensor:
        rows = []
        for a, b in tokens[:, :2].tolist():
            first = self.joint.sum(1) if b == self.mask_id else self.joint[:, b]
            second = self.joint.sum(0) if a == self.mask_id else self.joint[a]
            rows.append(torch.stack((first, second)).log())
        logits = torch.stack(rows)
        return logits if at is None else logits.take_along_dim(at[..., None], 1)


def test_a_consistent_model_has_one_joint_and_one_mutual_information(tmp_path):
    fact = unmask.Fact(
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
    family = Family("pairs", (model,), "masked")
    result = ask(MEASURE, [family], [fact], tmp_path, length=2)
    (row,) = result.rows()
    a, b = tokenizer.encode("ab").ids
    assert row["joint_forward"] == pytest.approx(float(joint[a, b].log()) / 2)
    assert row["gap"] == pytest.approx(0, abs=1e-9)
    shared = float((joint[a, b] / joint[a].sum() / joint[:, b].sum()).log())
    assert row["information_forward"] == pytest.approx(shared)
    assert row["information_backward"] == pytest.approx(shared)
    assert "[too few facts]" in show(result)


def test_a_causal_model_reads_the_parts_in_both_orders(corpus, tokenizer, tmp_path):
    twin = make_twin(tokenizer)
    family = Family("ar", (twin,), "causal")
    result = ask(MEASURE, [family], corpus, tmp_path, splits=("p2d_same",), limit=2)
    for row in result.rows():
        fact = next(fact for fact in corpus["p2d_same"] if fact.text == row["text"])
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


def test_facts_trained_both_ways_are_asked_as_well(corpus, tokenizer, tmp_path):
    """Unless splits are named; differences go over all sentences of a model."""
    family = Family("ar", (make_twin(tokenizer),), "causal")
    result = ask(MEASURE, [family], corpus, tmp_path / "run", limit=2)
    splits = distinct(result.rows(), "split")
    assert splits[-2:] == ["both_d2p", "both_p2d"] and len(splits) == 6
    (difference,) = select(result.summary["differences"], metric="difference")
    mean = sum(row["joint_forward"] - row["joint_backward"] for row in result.rows()) / 12
    assert difference["mean"] == pytest.approx(mean) and difference["prompts"] == 12
    assert "description → name, trained both ways" in show(result)


def test_gaps_are_set_beside_recall_fact_by_fact(corpus, tokenizer, tmp_path):
    """By Spearman's correlation, as scipy has it, over means of a fact's prompts and seeds."""
    family = Family("ar", tuple(make_twin(tokenizer, seed) for seed in (0, 1)), "causal")
    recalled = ask(RECALL, [family], corpus, tmp_path / "recall", splits=("p2d_reverse",), limit=8)
    path = tmp_path / "recall" / "recall.parquet"
    table = pyarrow.parquet.read_table(path)
    facts = sorted(set(table["fact"].to_pylist()))
    hits = [facts.index(fact) % 3 > 0 for fact in table["fact"].to_pylist()]
    at = table.column_names.index("hit")
    pyarrow.parquet.write_table(table.set_column(at, "hit", pyarrow.array(hits)), path)
    how = {"splits": ("d2p_same", "p2d_reverse"), "limit": 8, "recall": str(recalled.folder)}
    result = ask(MEASURE, [family], corpus, tmp_path / "both", **how)
    rows = select(result.rows(), split="p2d_reverse")
    for metric in ("gap", "information_forward"):
        (cell,) = select(result.summary["correlations"], metric=metric)
        means = [np.mean([row[metric] for row in select(rows, fact=fact)]) for fact in facts]
        expected = stats.spearmanr(means, [i % 3 > 0 for i in range(len(facts))]).statistic
        assert cell["mean"] == pytest.approx(expected) and cell["facts"] == len(facts) == 4
        assert cell["low"] <= cell["mean"] <= cell["high"] and cell["deviating"] == 2
        assert cell["outcome"] == "too few"
    assert "Spearman's correlation with recall in reverse" in show(result)
    with pytest.raises(UserError, match="both is a run of `unmask factorization`: expected one of"):
        ask(MEASURE, [family], corpus, tmp_path / "c", **how | {"recall": str(result.folder)})
    other = Family("other", family.members, "causal")
    with pytest.raises(UserError, match="no model and reversed split of this run: expected recall"):
        ask(MEASURE, [other], corpus, tmp_path / "d", **how)
