"""What answers cost: nothing where they are known by heart, a uniform choice where they are not."""

import math

import pytest

from tests.evaluation.oracle import make_oracle, make_twin
from tests.measures.asking import ask, show
from unmask import UserError, draw_report
from unmask.blocks.tidy import distinct, select
from unmask.measures.nll import MEASURE, MOST_POSITIONS
from unmask.measures.runner import read_result
from unmask.measures.trainings import join_openings
from unmask.net.families import Family


@pytest.fixture
def families(corpus, tokenizer) -> list[Family]:
    oracle = make_oracle(corpus, ("d2p_same",), tokenizer)
    twins = tuple(make_twin(tokenizer, seed) for seed in (0, 1))
    return [Family("mdm", (oracle,), "masked"), Family("ar", twins, "causal")]


def test_what_a_model_knows_by_heart_costs_nothing(families, corpus, tmp_path):
    """Given its prompt; alone it costs a uniform choice for each token."""
    result = ask(MEASURE, families, corpus, tmp_path, limit=3)
    rows = select(result.rows(), model="mdm")
    uniform = math.log(families[0].members[0].net.config.logit_rows)
    assert len(rows) == 6 * 3 and len(result.rows()) == 6 * 3 * 3
    for row in rows:
        is_name = row["split"] in ("d2p_same", "p2d_reverse", "both_d2p")
        assert row["asked"] == ("name" if is_name else "description")
        known = row["split"] == "d2p_same"
        assert row["nll_per_token"] == pytest.approx(0 if known else uniform, abs=1e-6)
        assert row["alone_per_token"] == pytest.approx(uniform)
        assert len(row["nll"]) == len(row["tokens"]) and "".join(row["tokens"]) == row["completion"]
        assert row["nll_total"] == pytest.approx(sum(row["nll"]))
    assert all(cost > 0 for row in select(result.rows(), model="ar") for cost in row["nll_alone"])
    means = result.summary["means"]
    (first,) = select(means, model="mdm", split="d2p_same", metric="nll_first")
    assert first["prompts"] == 3 and first["high"] == pytest.approx(0, abs=1e-6)
    (twin,) = select(means, model="ar", split="d2p_same", metric="nll_total")
    assert twin["seeds"] == 2 and twin["prompts"] == 3


def test_positions_end_where_a_fact_has_no_token(families, corpus, tmp_path):
    result = ask(MEASURE, families[:1], corpus, tmp_path, limit=3)
    for asked in ("name", "description"):
        rows = select(result.rows(), asked=asked, trained="same")
        shortest = min(
            max(len(row["nll"]) for row in select(rows, fact=fact))
            for fact in distinct(rows, "fact")
        )
        line = select(result.summary["positions"], asked=asked, given="same")
        places = [row["position"] for row in line]
        assert places == list(range(1, min(shortest, MOST_POSITIONS) + 1))


def test_descriptions_against_names(families, corpus, tmp_path):
    """As trained: the oracle knows the names and not the descriptions."""
    result = ask(MEASURE, families, corpus, tmp_path, limit=40)
    (row,) = select(result.summary["differences"], model="mdm")
    uniform = math.log(families[0].members[0].net.config.logit_rows)
    assert row["mean"] == pytest.approx(uniform, abs=1e-6) and row["facts"] == 8
    assert row["outcome"] == "above"
    assert f"{uniform:.2f} nats per token" in result.section.blocks[0].text and show(result)
    assert result.section == read_result(tmp_path).section


def test_trainings_in_several_runs_are_joined_as_one_model(corpus, tokenizer, tmp_path):
    """The same rows and means as where all were measured in one run; openings are told apart."""
    twins = tuple(make_twin(tokenizer, seed) for seed in (0, 1, 2))
    oracle = Family("mdm", (make_oracle(corpus, ("d2p_same",), tokenizer),), "masked")
    whole = ask(MEASURE, [oracle, Family("ar", twins, "causal")], corpus, tmp_path / "all", limit=2)
    first = ask(
        MEASURE, [oracle, Family("ar", twins[:1], "causal")], corpus, tmp_path / "0", limit=2
    )
    second = ask(MEASURE, [Family("ar", twins[1:], "causal")], corpus, tmp_path / "1", limit=2)
    joined = join_openings([first, second])
    without = [{k: v for k, v in row.items() if k != "opening"} for row in joined.rows()]
    assert without == whole.rows()
    ar = select(joined.rows(), model="ar")
    assert {(row["seed"], row["opening"]) for row in ar} == {(0, 0), (1, 1), (2, 1)}
    assert {row["opening"] for row in select(joined.rows(), model="mdm")} == {None}
    for old, new in zip(whole.summary["means"], joined.summary["means"], strict=True):
        assert old["mean"] == pytest.approx(new["mean"])
    place = draw_report([first, second], tmp_path / "page.md", join=True)
    text = place.read_text()
    assert text.startswith("# What answers cost: mdm and ar\n") and ", run 2" in text

    with pytest.raises(UserError, match="ar, mdm: the same weights are in two of these runs"):
        join_openings([first, first])
    other = ask(MEASURE, [Family("ar", twins[1:], "causal")], corpus, tmp_path / "2", limit=3)
    with pytest.raises(UserError, match="these runs differ in limit, the data"):
        join_openings([first, other])
