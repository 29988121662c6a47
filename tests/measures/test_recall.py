"""Recall: what a model knows is found and nothing else; runs resume, and pool what they share."""

from dataclasses import fields, replace

import pytest

from tests.evaluation.oracle import make_oracle, make_twin
from tests.measures.asking import ask, show
from unmask import UserError
from unmask.base.config import SettingsError
from unmask.blocks.blocks import Notice, Table
from unmask.blocks.tidy import select
from unmask.data.corpus import TESTS, Corpus
from unmask.data.sources import read_corpus_folder
from unmask.evaluation import recall
from unmask.measures.recall import MEASURE, RecallSettings
from unmask.measures.recall_texts import judge_kept
from unmask.measures.result import Result
from unmask.measures.runner import pool_results, read_result
from unmask.net.families import Family
from unmask.sampling.orders import ORDERS
from unmask.sampling.plans import PLANS

SMALL = {"steps": (1, 3), "limit": 5, "splits": TESTS}
CONTROL = "_shuffled"
REVERSED = SMALL | {"splits": ("p2d_reverse",)}
JUDGED = ("plain", "content", "surname", "first_name")


@pytest.fixture(scope="module")
def masked(corpus, tokenizer) -> Family:
    """A model that knows two of the splits."""
    oracle = make_oracle(corpus, ("d2p_same", "p2d_reverse"), tokenizer)
    return Family("mdm", (oracle,), "masked")


@pytest.fixture(scope="module")
def causal(tokenizer) -> Family:
    """Two training seeds of a model that knows nothing."""
    seeds = tuple(make_twin(tokenizer, seed) for seed in (0, 1))
    return Family("ar", seeds, "causal")


@pytest.fixture(scope="module")
def both(masked, causal, corpus, tmp_path_factory) -> tuple[Result, int]:
    """What both models are asked, to look at, and how often answers were scored."""
    scored, score = [], recall.score_answers
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recall, "score_answers", lambda *words: scored.append(1) or score(*words))
        folder = tmp_path_factory.mktemp("both")
        result = ask(MEASURE, [masked, causal], corpus, folder, **SMALL)
    return result, len(scored)


def find(result: Result, model: str, split: str, steps: int | None, metric: str = "hit"):
    (cell,) = select(result.summary["cells"], model=model, split=split, steps=steps, metric=metric)
    return cell


def test_kept_texts_are_judged_as_runs_judge_them(both):
    """Tables of before have the texts alone; reading them gives what a run writes now."""
    table = both[0].tables["recall"]
    judged = judge_kept(table.drop_columns(list(JUDGED)))
    for name in JUDGED:
        assert judged[name].to_pylist() == table[name].to_pylist(), name
        assert name in ("surname", "first_name") or set(judged[name].to_pylist()) == {True, False}


def test_the_table_says_what_is_known(both):
    result = both[0]
    # 4 splits and their controls, 5 prompts; 2 step counts of one model, 2 seeds of the other.
    assert len(result.rows()) == 8 * 5 * (2 + 2)
    for row in result.rows():
        knows = row["model"] == "mdm" and row["split"] in ("d2p_same", "p2d_reverse")
        assert row["hit"] == row["starts"] == row["strict"] == knows, row
        assert (row["token_accuracy"] == 1) == (row["bleu"] > 99) == knows
        if knows:
            assert row["rank"] == 1 and row["logp"] == pytest.approx(0, abs=1e-6)
            assert row["first_token_entropy"] == pytest.approx(0, abs=1e-6)
            assert row["generation"] == row["completion"]
        if row["model"] == "ar":
            assert row["steps"] is row["guidance"] is row["logp_mean_field"] is None
    for steps in (1, 3):
        assert find(result, "mdm", "d2p_same", steps)["mean"] == 1
        assert find(result, "mdm", "d2p_same" + CONTROL, steps)["mean"] == 0
        assert find(result, "mdm", "d2p_reverse", steps)["mean"] == 0
        assert find(result, "mdm", "p2d_reverse", steps, "beats_control")["mean"] == 1
    assert find(result, "ar", "d2p_same", None)["seeds"] == 2
    pairs = select(result.summary["pairs"], metric="hit")
    pairs = {(row["split"], row["steps"]): row["mean"] for row in pairs}
    assert pairs["p2d_reverse", 3] == 1 and pairs["p2d_same", 1] == 0 and len(pairs) == 4 * 2
    assert {row["mean"] for row in result.summary["gains"]} == {0}


def test_models_in_any_order_have_the_same_means(both, masked, causal, corpus, tmp_path):
    one = both[0]
    other = ask(MEASURE, [causal, masked], corpus, tmp_path, **SMALL)
    for name in ("cells", "pairs", "controls", "gains"):
        assert sorted(one.summary[name], key=str) == sorted(other.summary[name], key=str), name
    assert one.section.blocks[0] == other.section.blocks[0], "the same sentence"


def test_a_stopped_run_says_what_it_has_and_answers_are_scored_once(
    both, masked, causal, corpus, tmp_path, monkeypatch
):
    assert both[1] == 4 * 3, "once for each checkpoint and split, whatever the step counts"
    calls, draw = [], recall.sample

    def stop_at_the_fourth(*words, **settings):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return draw(*words, **settings)

    monkeypatch.setattr(recall, "sample", stop_at_the_fourth)
    with pytest.raises(KeyboardInterrupt):
        ask(MEASURE, [masked, causal], corpus, tmp_path / "cut", **SMALL)
    cut = read_result(tmp_path / "cut")
    assert not cut.is_complete and len(cut.rows()) == 3 * 2 * 5
    assert "cut short" in show(cut) and "mdm 0 %" in show(cut)


def test_prompts_without_a_control_are_left_out_of_its_numbers(masked, corpus, tmp_path):
    """Those whose shuffled answer is their own fact's."""
    asked, shuffled = corpus["p2d_reverse"], list(corpus["p2d_reverse" + CONTROL])
    same = replace(shuffled[0], completion=asked[0].completion)
    splits = {"p2d_reverse": asked, "p2d_reverse" + CONTROL: [same, *shuffled[1:]]}
    data = Corpus("made", splits)
    result = ask(MEASURE, [masked], data, tmp_path, **REVERSED | {"limit": None})
    prompts = len(asked)
    assert find(result, "mdm", "p2d_reverse", 3)["prompts"] == prompts
    assert find(result, "mdm", "p2d_reverse" + CONTROL, 3)["prompts"] == prompts - 1
    assert find(result, "mdm", "p2d_reverse", 3, "beats_control")["prompts"] == prompts - 1


def test_runs_of_other_steps_and_prompts_are_compared_on_what_they_share(
    masked, causal, corpus, tmp_path
):
    models, how = [masked, causal], {"splits": ("d2p_same", "p2d_reverse")}
    few = ask(MEASURE, models, corpus, tmp_path / "few", steps=(1, 2), limit=2, **how)
    many = ask(MEASURE, models, corpus, tmp_path / "many", steps=(2, 3), limit=3, **how)
    pooled = pool_results([few, many])
    assert set(pooled.kinds) == {"few: mdm", "few: ar", "many: mdm", "many: ar"}
    cells = select(pooled.summary["cells"], metric="hit", kind="masked")
    assert {cell["steps"] for cell in cells} == {2} and {cell["prompts"] for cell in cells} == {2}
    for cell in cells:
        model = cell["model"].partition(": ")[2]
        assert cell["mean"] == find(few, model, cell["split"], 2)["mean"]
    assert len(pooled.summary["pairs"]) == 6 * 2 * 2, "two rules of each way of asking"
    (notice,) = (block for block in pooled.section.blocks if isinstance(block, Notice))
    assert "the 4 prompts that all of them asked; left out: 2 prompts and the step counts 1, 3" in (
        notice.text
    )
    # Equal runs leave nothing out, and a run of causal models alone has no steps to share.
    same = pool_results([few, ask(MEASURE, [causal], corpus, tmp_path / "ar", limit=2, **how)])
    assert "left_out" not in same.summary
    assert {row["steps"] for row in same.summary["pairs"]} == {None, 1, 2}


def test_runs_that_share_nothing_are_not_pooled(masked, corpus, tmp_path):
    runs = [
        ask(MEASURE, [masked], corpus, tmp_path / name, steps=steps, limit=1, splits=(split,))
        for name, steps, split in (
            ("a", (1,), "d2p_same"),
            ("b", (2, 3), "d2p_same"),
            ("c", (1,), "p2d_same"),
        )
    ]
    with pytest.raises(UserError, match=r"a and b share no step count \(1 against 2, 3\): measure"):
        pool_results(runs[:2])
    with pytest.raises(UserError, match="a and c share no prompt: expected runs over the same"):
        pool_results([runs[0], runs[2]])


def test_own_facts_and_one_model_alone(masked, causal, corpus, tmp_path):
    facts = corpus["d2p_same"][:3]
    result = ask(MEASURE, [masked], facts, tmp_path / "own", steps=(1, 3))
    assert {row["split"] for row in result.rows()} == {"own"} and not result.summary["pairs"]
    assert "mdm: 100 %" in show(result) and "published" not in show(result).lower()
    twin = ask(MEASURE, [causal], corpus, tmp_path / "ar", **REVERSED)
    assert {row["steps"] for row in twin.summary["cells"]} == {None}
    assert "ar 0 %; ar, shuffled 0 %" in show(twin) and "published" not in show(twin).lower()
    assert not twin.section.numbers
    plain = ask(MEASURE, [masked], corpus, tmp_path / "plain", **REVERSED, controls=False)
    assert not any(row["split"].endswith(CONTROL) for row in plain.rows())
    assert plain.summary["controls"] == [] and plain.section.blocks[0].outcome == "not measured"
    assert plain.section == read_result(tmp_path / "plain").section


def test_published_numbers_stand_beside_berglunds_data_alone(masked, corpus, berglund, tmp_path):
    named = Corpus(read_corpus_folder(berglund).source, corpus.splits)
    assert "published" in show(ask(MEASURE, [masked], named, tmp_path, **REVERSED))


def test_guidance_of_several_strengths(masked, causal, corpus, tmp_path):
    """Each is a model of its own in all tables; a single one is recorded as it always was."""
    assert RecallSettings(guidance=(0.0,)) == RecallSettings(guidance=0.0) == RecallSettings()
    assert RecallSettings().to_record()["guidance"] == 0.0
    with pytest.raises(SettingsError, match="'guidance' is -1.0, expected at least 0"):
        RecallSettings(guidance=(0.0, -1.0))
    with pytest.raises(SettingsError, match="'guidance' is empty"):
        RecallSettings(guidance=())
    how = REVERSED | {"guidance": (0.0, 0.8)}
    result = ask(MEASURE, [masked, causal], corpus, tmp_path, **how)
    models = {cell["model"] for cell in result.summary["cells"]}
    assert models == {"mdm, guidance 0", "mdm, guidance 0.8", "ar"}
    assert {(row["model"], row["guidance"]) for row in result.rows()} == {
        ("mdm", 0.0), ("mdm", 0.8), ("ar", None)
    }  # fmt: skip
    (gap,) = select(result.summary["pairs"], one="mdm, guidance 0", other="mdm, guidance 0.8",
                    steps=3, metric="hit")  # fmt: skip
    assert gap["mean"] == 0
    assert "mdm, guidance 0 100 %" in result.section.blocks[0].text, "where traces are made"
    assert find(result, "mdm, guidance 0", "p2d_reverse", 3)["mean"] == 1
    read = read_result(tmp_path)
    assert read.settings.strengths == (0.0, 0.8) and read.section == result.section


def test_ranks_by_the_chain_rule_are_one_score_for_both_kinds(masked, causal, corpus, tmp_path):
    how = SMALL | {"splits": ("p2d_reverse", "both_p2d")}
    plain = ask(MEASURE, [masked, causal], corpus, tmp_path / "plain", **how)
    chain = ask(MEASURE, [masked, causal], corpus, tmp_path / "chain", **how, ranks="chain_rule")
    for row, other in zip(plain.rows(), chain.rows(), strict=True):
        assert row["rank"] == other["rank"]
        is_scored = row["kind"] == "causal" or not row["split"].endswith(CONTROL)
        assert (other["rank_chain"] is not None) == is_scored
        assert row["rank_chain"] == (row["rank"] if row["kind"] == "causal" else None)
    assert find(chain, "mdm", "p2d_reverse", 3, "rank_chain")["mean"] == 1
    assert "rank, chain rule" in show(chain)


def test_controls_that_came_with_the_data_are_named(masked, berglund, tmp_path):
    """Beside those of the same phrasing; two-way facts are asked as well, unless others are."""
    result = ask(MEASURE, [masked], read_corpus_folder(berglund), tmp_path, steps=(1,), limit=4)
    splits = {row["split"] for row in result.rows()}
    assert {"d2p_reverse_shuffled", "d2p_reverse_file_shuffled", "both_d2p", "both_p2d"} < splits
    assert "d2p_same_file_shuffled" not in splits and "both_p2d_shuffled" in splits
    metrics = {(cell["split"], cell["metric"]) for cell in result.summary["cells"]}
    assert ("d2p_reverse", "beats_file") in metrics and ("both_d2p", "beats_control") in metrics
    assert ("d2p_same", "beats_file") not in metrics
    text = show(result)
    assert "mdm, Berglund's shuffled file" in text and "trained both ways" in text
    tables = [block for block in result.section.walk() if isinstance(block, Table)]
    for table in (each for each in tables if each.name in ("matches", "metrics")):
        named = [tuple(row.values[:2]) for row in table.rows]
        assert len(set(named)) == len(named) >= 6


def test_steps_are_counted_per_token_of_the_answer(both):
    result = both[0]
    rows = select(result.rows(), model="mdm", split="d2p_same", steps=3)
    tokens = sum(row["tokens"] for row in rows) / len(rows)
    (budget,) = select(result.summary["budgets"], model="mdm", split="d2p_same", steps=3)
    assert budget["tokens"] == tokens and budget["per_token"] == pytest.approx(3 / tokens)
    (budget,) = select(result.summary["budgets"], model="ar", split="d2p_same")
    assert budget["steps"] is budget["per_token"] is None


def test_strategies_of_ones_own(masked, corpus, tmp_path):
    """A function is recorded by its name; the run is read back without it."""

    def from_the_right(guess, streams):
        return -ORDERS["left"](guess, streams)

    result = ask(
        MEASURE, [masked], corpus, tmp_path, **REVERSED, order=from_the_right, plan="linear"
    )
    assert find(result, "mdm", "p2d_reverse", 3)["mean"] == 1
    read = read_result(tmp_path)
    assert "from_the_right" in read.settings.order and read.section == result.section
    with pytest.raises(UserError, match="order 'confidense' is unknown: did you mean 'confidence'"):
        ask(MEASURE, [masked], corpus, tmp_path / "other", order="confidense")
    helps = {field.name: field.metadata["help"] for field in fields(RecallSettings)}
    assert all(name in helps["plan"] for name in PLANS.own)
    assert all(name in helps["order"] for name in ORDERS.own)


def test_bad_input(masked, corpus, tmp_path):
    with pytest.raises(UserError, match="has no split 'd2p_sam': did you mean 'd2p_same'"):
        ask(MEASURE, [masked], corpus, tmp_path, splits=("d2p_sam",))
    with pytest.raises(SettingsError, match="'steps' is empty"):
        RecallSettings(steps=())
    with pytest.raises(UserError, match=r"a length of 20 does not hold it: give a --length of \d+"):
        ask(MEASURE, [masked], corpus, tmp_path, steps=(1,), length=20)
