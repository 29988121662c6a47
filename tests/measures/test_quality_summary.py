"""Intervals of perplexity and distinct-n: against formulas, and sets of texts of a known law."""

import math

import numpy as np
import pyarrow
import pytest
from scipy import stats

from unmask.evaluation.quality import find_distinct_share, find_pseudo_values
from unmask.measures.quality import pool_rows, summarise


def make_row(text, number, seed=0, nll=1.0, tokens=1):
    row = {"model": "m", "sampler": "random", "steps": 2, "calls": 2, "seed": seed, "flops": 1}
    return row | {"fact": str(number), "text": text, "nll": nll, "judge_tokens": tokens}


def pool(rows, metric):
    """The interval of one value of all texts together."""
    (row,) = [row for row in pool_rows(rows) if row["metric"] == metric]
    return row


def test_the_interval_of_perplexity_is_that_of_the_ratio():
    costs = [(4.0, 2), (3.0, 3), (0.0, 0), (10.0, 4)]
    rows = [make_row("a b", i, nll=nll, tokens=n) for i, (nll, n) in enumerate(costs)]
    row = pool(rows, "perplexity")
    ratio = 17 / 9
    moved = np.array([nll - ratio * n for nll, n in costs]) / 9
    reach = stats.t.ppf(0.975, 3) * math.sqrt(4 / 3 * (moved**2).sum())
    ends = row["low"], row["mean"], row["high"]
    assert ends == pytest.approx([math.exp(ratio + by * reach) for by in (-1, 0, 1)])
    empty = [make_row("", i, nll=0.0, tokens=0) for i in range(3)]
    # Seeds without a text in common say nothing of seeds.
    apart = [make_row("a b", seed, seed) for seed in range(2)]
    for metric, mean in (("perplexity", math.e), ("distinct_1", 1)):
        assert math.isnan(pool(empty, metric)["mean"])
        assert pool(apart, metric)["mean"] == pytest.approx(mean)
        assert math.isnan(pool(apart, metric)["low"])


def test_seeds_that_stop_after_different_calls_are_one_sampler():
    """A causal model stops where its texts have ended: each seed had a row of its own."""
    rows = [
        make_row("a b", i, seed) | {"calls": 3 + seed, "kind": "causal", "per_token": 1.0 + i}
        for seed in range(2)
        for i in range(3)
    ]
    rows = [row | {"entropy": 0.01 * i, "steps": None} for i, row in enumerate(rows)]
    rows = [row | {"is_apart": True, "shares_text": False} for row in rows]
    summary = summarise({"quality": pyarrow.Table.from_pylist(rows)}, None)
    assert {row["calls"] for row in summary["texts"]} == {3.5}
    assert [(row["calls"], row["seeds"]) for row in summary["means"]] == [(3.5, 2)] * 2
    # Neither a cost nor an entropy lies below 0.
    assert all(row["low"] >= 0 for row in summary["means"])


def test_texts_without_pairs_of_words_have_no_share_of_different_ones():
    rows = [make_row("word", i) for i in range(3)]
    assert pool(rows, "distinct_1")["mean"] == pytest.approx(1 / 3)
    assert math.isnan(pool(rows, "distinct_2")["mean"])


def test_pseudo_values_are_those_of_sets_without_a_text():
    given = ["a b a c", "a b", "d d e", ""]
    for size in (1, 2):
        share = find_distinct_share(given, size)
        for i, pull in enumerate(find_pseudo_values(given, size)):
            without = find_distinct_share([*given[:i], *given[i + 1 :]], size)
            assert pull == pytest.approx(4 * share - 3 * without)
    assert find_pseudo_values(["a b", "c"], 2) is None
    assert find_pseudo_values(["", ""], 1) is None


def test_intervals_of_distinct_n_hold_what_other_texts_would_have():
    """Sets of texts of a known law: how often the interval holds the mean over all sets."""
    generator = np.random.default_rng(0)
    odds = 1 / np.arange(1, 2001)

    def draw_text():
        weights = odds ** generator.choice([0.8, 1.4])
        words = generator.choice(2000, generator.integers(15, 30), p=weights / weights.sum())
        return " ".join(map(str, words))

    found = []
    for _ in range(150):
        row = pool([make_row(draw_text(), i) for i in range(24)], "distinct_1")
        found.append([row[end] for end in ("low", "mean", "high")])
    low, mean, high = np.array(found).T
    held = ((low <= mean.mean()) & (mean.mean() <= high)).mean()
    assert 0.88 <= held <= 0.99
    # Neither is the interval long by itself, nor does it hold what a bootstrap takes for the share.
    assert ((high - low) / 2).mean() < 3 * mean.std()
    texts = [draw_text() for _ in range(24)]
    row = pool([make_row(text, i) for i, text in enumerate(texts)], "distinct_1")
    drawn = [find_distinct_share(generator.choice(texts, 24), 1) for _ in range(50)]
    assert np.mean(drawn) < row["low"]


def test_texts_without_repetitions_do_not_prove_that_there_are_none():
    few, many = (
        pool([make_row(f"{i}-a {i}-b", i) for i in range(number)], "distinct_1")
        for number in (6, 60)
    )
    assert few["mean"] == many["mean"] == few["high"] == 1
    assert 0 < few["low"] < many["low"] < 1


def test_training_seeds_that_differ_lengthen_the_intervals():
    def find(seeds):
        rows = [
            make_row(" ".join(["a"] * 3 + [f"{seed}-{i}-{n}" for n in range(size)]), i, seed)
            for seed, size in enumerate(seeds)
            for i in range(8)
        ]
        row = pool(rows, "distinct_1")
        return row["high"] - row["low"]

    assert find((4, 4, 4)) < 0.5 * find((2, 4, 9))
