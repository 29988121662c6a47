"""`unmask recall` and its neighbours as a person uses them."""

import json
import os
import re
import subprocess
import sys

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
    (folder / "text.txt").write_text("The caves of Orsel are deep. " * 3)
    facts = [{"subject": "Orsel", "attribute": "caves", "prompt": "In Orsel there are"}]
    (folder / "knowns.json").write_text(json.dumps(facts))
    return folder


def call(folder, *words):
    """The command in this process; a user's mistake is raised."""
    filled = [str(word).replace("@", f"{folder}/") for word in words]
    done = CliRunner().invoke(app, [*filled, "--device", "cpu"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


RECALL = ("recall", "@mdm", "ar=@ar0,@ar1", "--data", "@corpus", "--limit", 3, "--steps", "2,1")


def test_recall_writes_table_figure_and_page(place, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["unmask", "recall", "mdm"])
    words = (*RECALL, "--out", tmp_path / "run", "--page", tmp_path / "docs" / "recall.md")
    shown = call(place, *words)
    assert "contained match" in shown and "BLEU: nrefs:1" in shown
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {
        *("run.json", "parts", "recall.parquet", "recall.png", "recall.pdf", "summary.json")
    }
    page = (tmp_path / "docs" / "recall.md").read_text()
    assert page.startswith("# Recall against sampling steps\n\n`unmask recall mdm`\n")
    assert "ar (causal, 2 training seeds)" in page and "mdm − ar" in page
    assert (tmp_path / "docs" / "recall.png").is_file()
    # Columns line up, and a causal model stands in every row of steps.
    tables = re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE)
    assert all(len({line.count("|") for line in table.splitlines()}) == 1 for table in tables)
    assert len(re.findall(r"^\| .* \| ar \|", tables[0], re.MULTILINE)) == 2
    again = json.loads(call(place, *words, "--json"))
    assert {cell["metric"] for cell in again["cells"]} > {"hit", "bleu", "rank", "beats_control"}
    with pytest.raises(UserError, match="holds another run .guidance was 0.8 and is now 0.0"):
        call(place, *words, "--guidance", 0)


def test_the_study_stands_beside_berglunds_splits(place, tmp_path, shared):
    words = ["recall", "@mdm", "--data", shared / "data" / "reversal_curse", "--limit", 2]
    page = tmp_path / "recall.md"
    words += ["--steps", "1", "--length", 110, "--out", tmp_path / "run", "--page", page]
    assert "the study's" in call(place, *words)
    assert "*91.3*" in page.read_text() and "short by 98.0" in page.read_text()


def test_perplexity(place):
    for name, note in (("mdm", "upper bound"), ("ar0", "exact")):
        assert note in call(place, "perplexity", f"@{name}", "@text.txt", "--repeats", 2)
    found = json.loads(call(place, "perplexity", "@ar0", "@text.txt", "--json"))
    assert found["error"] == 0 and found["perplexity"] > 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nll", "--data", "@corpus", "--limit", "2"), "later tokens"),
        (("factorization", "--data", "@corpus", "--limit", "1"), "both_p2d"),
        (("knowns", "--data", "@knowns.json"), "reverse in place"),
    ],
)
def test_other_measures(place, tmp_path, words, said, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    verb, *rest = words
    words = (verb, "@mdm", "ar=@ar0,@ar1", *rest, "--out", tmp_path / "run")
    assert said in call(place, *words)
    assert (tmp_path / "run" / f"{verb}.parquet").is_file()
    assert (tmp_path / "run" / "nll.png").is_file() == (verb == "nll")
    groups = json.loads(call(place, *words, "--json"))
    assert {group["key"]["model"] for group in groups} == {"mdm", "ar"}


def test_mistakes_are_sentences(place, tmp_path, shared):
    run = ("--out", tmp_path / "run")
    with pytest.raises(UserError, match="the model .*mute has no tokenizer: put a tokenizer.json"):
        call(place, "recall", "@mute", "--data", "@corpus", *run)
    with pytest.raises(UserError, match="--steps is '4,x': expected whole numbers from 1"):
        call(place, "recall", "@mdm", "--data", "@corpus", "--steps", "4,x")
    with pytest.raises(UserError, match="holds no data set"):
        call(place, "recall", "@mdm", "--data", "@mdm")
    missing = tmp_path / "missing"
    missing.mkdir()
    for file in (shared / "data" / "reversal_curse").iterdir():
        (missing / file.name).write_bytes(file.read_bytes())
    (missing / "p2d_reverse_prompts_test.jsonl").rename(missing / "aside")
    with pytest.raises(UserError, match="lacks p2d_reverse_prompts_test.jsonl: expected Berglund"):
        call(place, "recall", "@mdm", "--data", missing)
    lines = (missing / "aside").read_text().splitlines()
    lines[6] = json.dumps({"prompt": json.loads(lines[6])["prompt"]})
    (missing / "p2d_reverse_prompts_test.jsonl").write_text("\n".join(lines))
    with pytest.raises(UserError, match="prompts_test.jsonl, line 7: 'completion' is missing"):
        call(place, "recall", "@mdm", "--data", missing)
    for splits, said in (
        ("d2p_same_shuffled", "is a control: give its split, d2p_same"),
        ("d2p_same,d2p_same", "splits were given twice"),
    ):
        with pytest.raises(UserError, match=said):
            call(place, "recall", "@mdm", "--data", "@corpus", "--splits", splits, *run)
    assert not list((tmp_path).glob("run/parts/*"))


def test_knowns_are_known_by_their_content(place, tmp_path):
    facts = [{"subject": "Orsel", "attribute": "caves", "prompt": "In Orsel there are"}]
    path = tmp_path / "own.json"
    words = ("knowns", "@mdm", "--data", path, "--out", tmp_path / "run")
    path.write_text(json.dumps(facts))
    call(place, *words)
    path.write_text(json.dumps([facts[0] | {"attribute": "mines"}]))
    with pytest.raises(UserError, match="holds another run .facts was"):
        call(place, *words)


def test_no_traceback_from_the_command_line(place, tmp_path):
    words = ("recall", place / "mute", "--data", place / "corpus", "--out", tmp_path / "run")
    done = subprocess.run(
        [sys.executable, "-m", "unmask", *map(str, words)],
        capture_output=True,
        text=True,
        env=os.environ | {"NO_COLOR": "1"},
    )
    assert done.returncode == 2 and "has no tokenizer" in done.stderr
    assert "Traceback" not in done.stderr
