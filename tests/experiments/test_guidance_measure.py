"""Texts with an attribute: the rule, the ways and what they spend, the judge, and the measure."""

import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

import unmask
from tests.conftest import lively, make_model
from unmask import UserError
from unmask.blocks.blocks import Finding
from unmask.cli.main import app
from unmask.data.corpus import find_corpus_problems, read_corpus
from unmask.data.tokenizer import Tokenizer
from unmask.experiments.guidance.corpus import (
    cut_text,
    is_biography,
    is_usable,
    list_labelled,
    make_biographies,
)
from unmask.experiments.guidance.measure import (
    GuidanceSettings,
    list_ways,
    name_way,
    pair_ways,
)
from unmask.experiments.guidance.texts import TextJudge, Way, draw_guided_texts, lay_out_texts
from unmask.experiments.planted.corpus import make_sealed_corpus
from unmask.net.model import Blueprint, Model
from unmask.sampling.probes import train_probe

LIFE = (
    "Ada Orrin (born {year}) was a potter of Wrenmouth who taught there and wrote {number} books."
)
PLACE = "Wrenmouth is a small harbour town with {number} mills, a street and a market since {year}."
DOCUMENTS = [(LIFE if i // 2 % 2 else PLACE).format(year=1900 + i, number=i + 2) for i in range(24)]
DRAWN = unmask.Sampling(plan="ancestral", order="random", temperature=1.0, length=24)


@pytest.fixture(scope="module")
def corpus():
    return make_biographies(DOCUMENTS, 24)


@pytest.fixture(scope="module")
def model(corpus) -> Model:
    tokenizer = Tokenizer.train(corpus.training_texts(), 400)
    config = unmask.preset("tiny", vocab_size=tokenizer.vocab_size, context=40)
    return Model("mdm", lively(config), Blueprint(config, "masked", tokenizer.mask_id), tokenizer)


@pytest.fixture(scope="module")
def guide(model, corpus):
    texts, labels = list_labelled(corpus, "train")
    return train_probe(model, lay_out_texts(model, texts, 24).tolist(), labels, draws=1)


def test_the_rule_and_the_cut():
    assert is_biography("Bo Kern (1820 – 1899) was a miller.")
    assert is_biography("Di (b. 3 May 1950, Orsel) is a painter.")
    assert is_biography("Cy Dorn (, born 1940) is a runner.")
    assert not is_biography("The mill (built 1820) is old.") and not is_biography("x" * 230 + LIFE)
    assert cut_text("Bo Kern (1820 – 1899) was a\nmiller of Orsel.", 60) == (
        "Bo Kern was a miller of Orsel."
    )
    assert cut_text("one two three", 8) == "one two"
    assert is_usable(PLACE) and not is_usable("short") and not is_usable("Řeč о городе " * 9)
    assert not is_usable("1900: 12, 14, 18; " * 9), "numbers take a token for each digit"


def test_halves_share_no_text_and_have_both_classes(corpus, tmp_path):
    guide, judge = (list_labelled(corpus, split) for split in ("train", "judge"))
    assert len(guide[0]) == len(judge[0]) == 12 and not set(guide[0]) & set(judge[0])
    assert all("born" not in text for text in (*guide[0], *judge[0]))
    assert sum(guide[1]) == sum(judge[1]) == 6
    prompts = [fact.prompt for fact in corpus["train"]]
    assert prompts.count("A text:") == 12 == len(prompts) - 12
    assert not list(find_corpus_problems(corpus, Tokenizer.train(corpus.training_texts(), 400)))
    file = tmp_path / "articles.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS))
    words = ["data", "make", "biographies", str(tmp_path / "made"), str(file), "--texts", "24"]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert read_corpus(tmp_path / "made") == corpus
    for wrong, said in (((DOCUMENTS, 40), "24 usable texts"), ((DOCUMENTS[:2] * 9, 12), "0 of")):
        with pytest.raises(UserError, match=said):
            make_biographies(*wrong)
    with pytest.raises(UserError, match="data make biographies"):
        list_labelled(make_sealed_corpus(2), "train")


@pytest.mark.parametrize("way", list_ways(GuidanceSettings(strengths=(2.0,), draws=(3,))))
def test_a_way_spends_its_passes_and_no_more(model, guide, way):
    drawn = draw_guided_texts(model, guide, way, 2, 12, DRAWN)
    assert len(drawn) == 2
    for row in drawn:
        # Ancestral steps may be done early, where guidance by rates says so.
        assert row["steps"] == way.count_steps(12) and row["spent"] <= 12
        assert row["spent"] == 12 or way.name == "rates"
        assert not (row["text"].startswith("A ") and ":" in row["text"][:12])


def test_strength_0_of_the_classifier_is_plain(model, guide):
    plain = draw_guided_texts(model, guide, Way("plain"), 2, 4, DRAWN)
    off = draw_guided_texts(model, guide, Way("classifier", 0.0), 2, 12, DRAWN)
    assert off == plain and off[0]["spent"] == 4


def test_rejection_takes_the_first_that_is_accepted(model):
    """A guide that has made up its mind by the number of the draw."""
    seen = []

    class Guide(SimpleNamespace):
        def __call__(self, rows, t):
            seen.append(rows)
            return torch.tensor([[0.1, 0.2], [0.7, 0.4], [0.9, 0.3]]).double()[len(seen) - 1].log()

    drawn = draw_guided_texts(model, Guide(model=model), Way("rejection", 3), 2, 12, DRAWN)
    chances = [row["p_guide"] for row in drawn]
    assert chances == pytest.approx([0.7, 0.4]), "the first accepted, or else the best"
    start = len(model.tokenizer.encode("A text:").ids)
    wanted = [model.tokenizer.decode(seen[1][i, start:].tolist()).strip() for i in range(2)]
    assert [row["text"] for row in drawn] == wanted


def test_judge_and_variety(corpus):
    judge = TextJudge(*list_labelled(corpus, "judge"))
    assert judge.accuracy == 1
    p = judge.read([LIFE, PLACE, "potter who taught and wrote", "town with mills", ""])
    assert p[0] > 0.5 > p[1] and p[2] > 0.5 > p[3]
    with pytest.raises(UserError, match="expected more of both"):
        TextJudge(["x", "y"], [True, True])


def test_the_measure(model, corpus, tmp_path):
    unmask.save(model, tmp_path / "scorer")
    few = {"texts": 2, "passes": (6,), "strengths": (4.0,), "guidances": (1.0,), "draws": (2,)}
    few |= {"length": 24, "device": "cpu", "scorer": str(tmp_path / "scorer")}
    guide = str(tmp_path / "guide.safetensors")
    result = unmask.guidance(model, data=corpus, out=tmp_path / "run", save_guide=guide, **few)
    shutil.rmtree(tmp_path / "scorer")
    unmask.save(make_model(seed=1), tmp_path / "scorer")
    with pytest.raises(UserError, match="holds another run"):
        unmask.guidance(model, data=corpus, out=tmp_path / "run", **few)
    drawn = unmask.sample(model, "A text:", length=24, steps=2, classifier=guide, judged=2)
    assert drawn.calls > 2, "what guided is a probe for any sample"
    rows = result.tables["guidance"].to_pylist()
    assert len(rows) == 2 * 6 and {row["way"] for row in rows} == {
        "plain", "label", "cfg", "classifier", "rates", "rejection"
    }  # fmt: skip
    assert all(row["bits_per_token"] is None or row["bits_per_token"] > 0 for row in rows)
    assert all(row["has_attribute"] == (row["p_judge"] >= 0.5) for row in rows)
    differences = result.summary["differences"]
    assert {row["outcome"] for row in differences} == {"too few"}
    for row in result.summary["means"]:
        assert 0 < row["distinct_1"] <= 1 and row["spent"] <= 6
    findings = [block for block in result.section.walk() if isinstance(block, Finding)]
    assert len(findings) == 5, "each way but the plain one"
    (judges,) = result.rows("judges")
    assert judges["judge"] == 1 and judges["biographies"] == 0.5


def test_ways_stand_against_plain_texts_and_rejection():
    ways = [name_way(vars(way) | {"way": way.name}) for way in list_ways(GuidanceSettings())]
    pairs = pair_ways(ways)
    assert len(pairs) == len(set(pairs)) == 9 * 3 + 2, "rejection against plain texts alone"
    assert {minus.split()[0] for _, minus in pairs} == {"plain", "rejection"}


def test_mistakes_are_sentences(corpus):
    twin = Blueprint(unmask.preset("tiny", causal=True), "causal")
    causal = Model("twin", lively(twin.config), twin, Tokenizer.train(DOCUMENTS, 300))
    with pytest.raises(UserError, match="guides masked models alone"):
        unmask.guidance(causal, data=corpus, device="cpu")
    with pytest.raises(UserError, match="tokens to be judged"):
        GuidanceSettings(judged="no such")
    with pytest.raises(UserError, match="'passes' is empty"):
        GuidanceSettings(passes=())
    with pytest.raises(UserError, match="too few for rejection"):
        Way("rejection", 8).count_steps(12)
