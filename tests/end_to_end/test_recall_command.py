"""`unmask recall` and its neighbours as a person uses them."""

import json

import pytest
from typer.testing import CliRunner

import unmask
from tests.conftest import lively
from unmask import UserError
from unmask.cli.main import app
from unmask.data.corpus import save_corpus
from unmask.data.reversal_corpus import make_reversal_corpus
from unmask.net.model import Blueprint, Model


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A corpus, a masked model, two causal ones and one without a tokenizer."""
    folder = tmp_path_factory.mktemp("place")
    corpus = make_reversal_corpus(3, seed=0)
    tokenizer = unmask.Tokenizer.train(corpus.training_texts(), 1000)
    save_corpus(corpus, folder / "corpus", tokenizer)
    rows = tokenizer.vocab_size
    for name, causal, seed, known in (
        ("mdm", False, 0, tokenizer),
        ("ar0", True, 0, tokenizer),
        ("ar1", True, 1, tokenizer),
        ("mute", False, 0, None),
    ):
        config = unmask.preset("tiny", vocab_size=rows, causal=causal)
        kind = ("causal", None) if causal else ("masked", tokenizer.mask_id)
        model = Model(name, lively(config, seed), Blueprint(config, *kind), known)
        unmask.save(model, folder / name)
    return folder


def call(folder, *words):
    """The command in this process; a user's mistake is raised."""
    filled = [str(word).replace("@", f"{folder}/") for word in words]
    done = CliRunner().invoke(app, [*filled, "--device", "cpu"], catch_exceptions=False)
    if done.exit_code == 2:
        raise UserError(done.output)
    assert done.exit_code == 0, done.output
    return done.stdout


MODELS = ("@mdm", "ar=@ar0,@ar1")
RECALL = ("recall", *MODELS, "--data", "@corpus", "--limit", 2, "--steps", "2,1")
RECALL += ("--splits", "d2p_same,p2d_reverse")


def test_recall_writes_tables_and_a_page(place, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    words = (*RECALL, "--out", tmp_path / "run")
    shown = call(place, *words)
    assert "Asked description → name, reversed: contained" in shown
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {"run.json", "parts", "recall.parquet", "summary"}
    again = json.loads(call(place, *words, "--json"))
    cells = again["summary"]["cells"]
    assert {cell["metric"] for cell in cells} > {"hit", "bleu", "rank", "beats_control"}
    assert {cell["seeds"] for cell in cells if cell["model"] == "ar"} == {2}
    pairs = [row for row in again["summary"]["pairs"] if row["split"] == "p2d_reverse"]
    assert pairs and {row["outcome"] for row in pairs} == {"too few"}
    page = tmp_path / "docs" / "recall.md"
    call(place, *words, "--page", page)
    assert "description → name, reversed" in page.read_text()
    with pytest.raises(UserError, match="holds another run .guidance was 0.0 and is now 0.8"):
        call(place, *words, "--guidance", 0.8)


def test_mistakes_are_sentences(place, tmp_path, berglund):
    run = ("--out", tmp_path / "run")
    with pytest.raises(UserError, match="the model .*mute has no tokenizer: put a tokenizer.json"):
        call(place, "recall", "@mute", "--data", "@corpus", *run)
    with pytest.raises(UserError, match="--steps is '4,x': expected whole numbers"):
        call(place, "recall", "@mdm", "--data", "@corpus", "--steps", "4,x")
    with pytest.raises(UserError, match="holds no data set"):
        call(place, "recall", "@mdm", "--data", "@mdm")
    with pytest.raises(UserError, match="no data were given, and mdm did not come with this"):
        call(place, "recall", "@mdm")
    tests = berglund / "p2d_reverse_prompts_test.jsonl"
    tests.rename(berglund / "aside")
    with pytest.raises(UserError, match="lacks p2d_reverse_prompts_test.jsonl: expected Berglund"):
        call(place, "recall", "@mdm", "--data", berglund)
    lines = (berglund / "aside").read_text().splitlines()
    lines[6] = json.dumps({"prompt": json.loads(lines[6])["prompt"]})
    tests.write_text("\n".join(lines))
    with pytest.raises(UserError, match="prompts_test.jsonl, line 7: 'completion' is missing"):
        call(place, "recall", "@mdm", "--data", berglund)
    with pytest.raises(UserError, match="is a control: give its split, d2p_same"):
        call(place, "recall", "@mdm", "--data", "@corpus", "--splits", "d2p_same_shuffled", *run)
    assert not list((tmp_path).glob("run/parts/*"))
