"""Quality of texts: against counts by hand."""

import itertools
import math
import shutil
from functools import partial

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import unmask
from tests.conftest import make_model, make_noised
from tests.measures.asking import show
from unmask.base.errors import UserError
from unmask.blocks.blocks import Figure, Notice, Table
from unmask.evaluation.perplexity import score_documents
from unmask.evaluation.quality import (
    DrawnText,
    draw_texts,
    find_distinct_share,
    find_text_entropy,
    judge_texts,
    list_samplers,
    parse_sampler,
)
from unmask.measures.quality import MEASURE as QUALITY
from unmask.measures.quality import REAL
from unmask.net.counts import count_flops
from unmask.net.paradigm import get_paradigm
from unmask.results.summaries import estimate_means
from unmask.sampling.texts import draw_rows

SMALL = {"texts": 3, "length": 10, "steps": (2, 4), "device": "cpu"}


def test_entropy_and_grams_by_hand():
    assert find_text_entropy([3, 3, 3]) == 0 and find_text_entropy([]) == 0
    assert find_text_entropy([1, 2, 3, 4]) == pytest.approx(math.log(4))
    assert find_distinct_share(["a b a", "a b"], 1) == 2 / 5
    assert find_distinct_share(["a b a", "a b"], 2) == 2 / 3
    assert find_distinct_share(["a"], 2) is None


def test_samplers_are_read():
    assert parse_sampler("random;temperature=0.5;remask=cap=0.05") == {
        "order": "random",
        "temperature": 0.5,
        "remask": "cap=0.05",
    }
    with pytest.raises(UserError, match="unknown setting"):
        parse_sampler("random;no_such=1")
    with pytest.raises(UserError, match="expected an order"):
        parse_sampler("random;left")
    with pytest.raises(UserError, match="sets 'steps', which is the same for all samplers"):
        parse_sampler("random;steps=8")


def test_each_kind_has_the_samplers_that_differ_for_it():
    names = ["random;temperature=0.5", "confidence;temperature=0.5", "random;remask=cap=0.1"]
    masked, uniform, causal = (get_paradigm(kind) for kind in ("masked", "uniform", "causal"))
    assert len(list_samplers(masked, names, (2, 4))) == 6
    assert list_samplers(uniform, names, (2, 4)) == [("temperature=0.5", 2), ("temperature=0.5", 4)]
    assert list_samplers(causal, names, (2, 4)) == [("temperature=0.5", None)]
    assert list_samplers(masked, ["random", "random"], (2, 2)) == [("random", 2)]
    drafted = ["temperature=0.5", "temperature=0.5;drafts=4"]
    assert list_samplers(causal, drafted, (2,)) == [(each, None) for each in drafted]
    for paradigm in (masked, uniform):
        assert list_samplers(paradigm, drafted, (2,)) == [("temperature=0.5", 2)]
    guided = ["random;guidance=0.5"]
    assert list_samplers(uniform, guided, (2,)) == [("guidance=0.5", 2)]
    assert not list_samplers(causal, guided, (2,))
    assert not list_samplers(get_paradigm("gaussian"), guided, (2,))


def test_texts_are_what_the_judge_scores(judge, texts):
    model = make_model()
    result = QUALITY(
        model,
        data=texts,
        judge=judge,
        samplers=("random", "left;corrector=uniform=1"),
        **SMALL,
    )
    rows = result.rows()
    assert {(row["sampler"], row["steps"], row["calls"]) for row in rows} == {
        (REAL, None, 0),
        ("random", 2, 2),
        ("random", 4, 4),
        ("left;corrector=uniform=1", 2, 4),
        ("left;corrector=uniform=1", 4, 8),
    }
    scorer = unmask.load(judge, device="cpu")
    for row in (row for row in rows if row["text"].strip()):
        (cost,) = score_documents(scorer, [row["text"]])
        assert (row["nll"], row["judge_tokens"]) == pytest.approx((cost.nll, cost.tokens))
    pooled = {(row["sampler"], row["metric"]): row["mean"] for row in result.summary["texts"]}
    own = [row for row in rows if row["sampler"] == REAL]
    expected = sum(row["nll"] for row in own) / sum(row["judge_tokens"] for row in own)
    assert pooled[REAL, "perplexity"] == pytest.approx(math.exp(expected))
    # The control repeats four words of two texts: few different ones.
    words = [row["text"].split() for row in own]
    assert pooled[REAL, "distinct_1"] == pytest.approx(
        len({word for each in words for word in each}) / sum(map(len, words))
    )


def test_all_ways_are_timed_in_turn(judge, texts, monkeypatch):
    """A round by a clock that ticks once a call: what is faster draws more tokens a tick."""
    ticks, drawn = itertools.count(), []

    def draw(model, prompts, sampler, steps, *_):
        drawn.append((sampler, steps, len(prompts)))
        for _ in range((steps or 4) - 1):
            next(ticks)
        return [DrawnText("The caves", [1, 2, 3], steps or 3)] * len(prompts)

    monkeypatch.setattr("unmask.measures.quality_speed.time.perf_counter", lambda: next(ticks))
    monkeypatch.setattr("unmask.evaluation.quality.draw_texts", draw)
    models = {"masked": make_model(seed=1), "causal": make_model(causal=True, seed=6)}
    result = QUALITY(models, data=texts, judge=judge, rounds=3, batch=2, **SMALL)
    ways = [("random", 2), ("random", 4), ("temperature=1", None)]
    ways += [("confidence", 2), ("confidence", 4)]
    timed = [drawn[i : i + 5] for i in range(0, 20, 5)]
    assert all({(a, b) for a, b, _ in each} == {*ways} for each in timed)
    assert {size for each in timed for *_, size in each} == {2}
    assert len({each[0] for each in timed}) == 4, "nobody always follows the same neighbour"
    rows = result.tables["speed"].to_pylist()
    assert len(rows) == 3 * 5 and {row["fact"] for row in rows} == {"1", "2", "3"}
    for row in rows:
        assert row["seconds"] == (row["steps"] or 4) and row["speed"] == 6 / row["seconds"]
    section = show(result)
    assert "causal, token by token, draws 2 [2, 2] tokens a second" in section
    assert "Of 4 ways of drawing by diffusion 2 are faster, and 0 of these cost less" in section
    names = [each.name for each in result.section.walk() if isinstance(each, Figure)]
    assert names == ["by speed", "means"]


def test_another_judge_in_the_same_folder_is_another_run(texts, tmp_path):
    how = SMALL | {"data": texts, "judge": str(tmp_path / "judge"), "out": tmp_path / "run"}
    how |= {"steps": (2,), "samplers": ("random",)}
    unmask.save(make_model(causal=True, seed=5), tmp_path / "judge")
    before = QUALITY(make_model(), **how).rows()
    assert QUALITY(make_model(), **how).rows() == before
    shutil.rmtree(tmp_path / "judge")
    unmask.save(make_model(causal=True, seed=6), tmp_path / "judge")
    with pytest.raises(UserError, match="holds another run"):
        QUALITY(make_model(), **how)
    assert QUALITY(make_model(), **how, fresh=True).rows() != before


def test_empty_texts_are_a_sentence_and_no_figure(judge, texts, monkeypatch):
    how = SMALL | {"data": texts, "judge": judge, "samplers": ("random",)}
    for text, names in (("The caves", ["means"]), (" ", [])):

        def draw(model, prompts, sampler, steps, *_, text=text):
            return [DrawnText(text, [1, 2], steps)] * 3

        monkeypatch.setattr("unmask.evaluation.quality.draw_texts", draw)
        section = QUALITY(make_model(), **how).section
        assert [each.name for each in section.walk() if isinstance(each, Figure)] == names
        notices = [each.text for each in section.walk() if isinstance(each, Notice)]
        assert [("are empty" in notice) for notice in notices] == [True] * (not names)


def test_guidance_needs_a_prompt():
    QUALITY.settings(words=4, samplers=("random;guidance=0.5",))
    with pytest.raises(UserError, match="expected a prompt to guide by"):
        QUALITY.settings(samplers=("random;guidance=0.5",))


def test_drawn_texts_differ_and_repeat_with_the_seed():
    model = make_model()
    one, again, other = (
        [each.text for each in draw_texts(model, [""] * 3, "random", 3, 12, seed)]
        for seed in (0, 0, 1)
    )
    assert one == again and one != other and len(set(one)) == 3


@pytest.mark.parametrize("causal", [False, True])
def test_drawn_texts_do_not_depend_on_the_memory(causal, monkeypatch):
    model, prompts = make_model(causal=causal), ["", "The caves", "", "", "The caves", ""]
    drawn = {}
    for rows in (6, 4, 1):
        monkeypatch.setattr("unmask.evaluation.quality.fit_rows", lambda *_, rows=rows: rows)
        drawn[rows] = [each.tokens for each in draw_texts(model, prompts, "random", 3, 12)]
    assert drawn[6] == drawn[4] == drawn[1]
    assert len(set(map(tuple, drawn[6]))) == len(prompts)


def test_a_batch_without_room_is_halved(monkeypatch):
    sizes = []

    def fail_at_first(model, rows, *more):
        sizes.append(len(rows))
        if len(sizes) == 1:
            raise torch.OutOfMemoryError
        return draw_rows(model, rows, *more)

    expected = list(draw_texts(make_model(), [""] * 4, "random", 3, 12))
    monkeypatch.setattr("unmask.evaluation.quality.draw_rows", fail_at_first)
    assert list(draw_texts(make_model(), [""] * 4, "random", 3, 12)) == expected
    assert sizes == [4, 2, 2]


@pytest.mark.parametrize("kind", ["uniform", "gaussian", "hybrid"])
def test_every_kind_is_drawn_from(kind):
    drawn = list(draw_texts(make_noised(kind), ["", "The caves"], "temperature=1", 3, 12))
    assert len(drawn) == 2 and drawn[1].text.startswith("The caves")
    assert {each.calls for each in drawn} == {3}


def test_the_judge_is_causal_and_another(judge, texts):
    with pytest.raises(UserError, match="expected a causal one"):
        judge_texts(make_model(), ["The caves"])
    assert judge_texts(make_model(causal=True), ["", "The caves"])[0].tokens == 0
    with pytest.raises(UserError, match="no judge"):
        QUALITY(make_model(), data=texts, **SMALL)


def test_a_model_that_can_use_no_sampler_is_refused(judge, texts):
    """Its control alone would say nothing of it."""
    models = {"causal": make_model(causal=True, seed=6), "masked": make_model(seed=1)}
    given = {"data": texts, "judge": judge, "samplers": ("random;remask=cap=0.05",), **SMALL}
    with pytest.raises(UserError, match="causal can use none of the samplers"):
        QUALITY(models, **given)


def test_a_judge_of_another_kind_is_refused_before_texts_are_drawn(texts, tmp_path, monkeypatch):
    unmask.save(make_model(seed=5), tmp_path / "judge")
    monkeypatch.setattr("unmask.evaluation.quality.draw_texts", lambda *_: pytest.fail("drawn"))
    given = {"data": texts, "judge": str(tmp_path / "judge"), "control": False, **SMALL}
    with pytest.raises(UserError, match="expected a causal one"):
        QUALITY(make_model(seed=1), **given)


def test_operations_are_those_of_the_networks():
    """Against PyTorch's own counter, which sees matrix products but on a CPU no attention."""

    def count(model, draw, passes, length):
        config, counter = model.net.config, FlopCounterMode(display=False)
        with counter:
            (drawn,) = draw()
        attention = 4 * length**2 * config.heads * config.head_dim * config.layers
        return drawn.flops, counter.get_total_flops() + passes * attention

    # Being told the time takes a little that is not counted.
    uniform = make_noised("uniform")
    found, run = count(uniform, lambda: draw_texts(uniform, [""], "temperature=1", 3, 12), 3, 12)
    assert found == 3 * count_flops(uniform.net.config, 12) == pytest.approx(run, rel=0.01)
    # Masked models read the head at masks alone.
    model, config = make_model(), make_model().net.config
    draw = partial(draw_texts, model, ["The caves"], "random;guidance=1", 3, 12)
    found, run = count(model, draw, 6, 12)  # a guided pass counts twice
    assert found == 6 * count_flops(config, 12) > run > 6 * count_flops(config, 12, 0)
    causal = make_model(causal=True)
    draw = partial(draw_texts, causal, ["The caves"], "temperature=1", None, 12)
    given = len(causal.tokenizer.encode("The caves").ids)
    found, run = count(causal, draw, 1, given + next(iter(draw())).calls - 1)
    assert found == run > 0


def test_models_of_one_tokenizer_have_one_control(judge, texts):
    models = {"first": make_model(), "second": make_model()}
    section = QUALITY(models, data=texts, judge=judge, samplers=("random",), **SMALL).section
    (table,) = (each for each in section.walk() if isinstance(each, Table))
    assert [row.values[0] for row in table.rows if row.values[1] == REAL] == ["–"]
    for figure in (each for each in section.walk() if isinstance(each, Figure)):
        for panel in (panel for view in figure.views.values() for panel in view):
            (level,) = (line for line in panel.lines if line.name == REAL)
            assert list(level.x) == [2, 4] and level.y[0] == level.y[1]


def test_a_text_that_one_seed_left_empty_is_left_out_of_all_seeds():
    rows = [
        {"seed": seed, "fact": fact, "per_token": None if (seed, fact) == ("1", "0") else 2.0}
        for seed in ("0", "1", "2")
        for fact in ("0", "1", "2")
    ]
    (mean,) = estimate_means(rows, (), ("per_token",))
    assert (mean["mean"], mean["facts"], mean["seeds"], mean["prompts"]) == (2.0, 2, 3, 2)
    nothing = [{"seed": seed, "fact": seed, "per_token": 2.0} for seed in ("0", "1")]
    assert estimate_means(nothing, (), ("per_token",)) == []
