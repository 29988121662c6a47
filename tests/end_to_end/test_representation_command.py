"""`unmask represent` and `unmask symmetry` as a person uses them."""

import re
import shutil

import pytest
from typer.testing import CliRunner

import unmask
from tests.conftest import lively
from unmask import UserError
from unmask.base.tables import Parts, read_table, write_table
from unmask.cli.main import app
from unmask.data.corpus import save_corpus
from unmask.data.reversal_corpus import make_reversal_corpus
from unmask.net.model import Blueprint, Model
from unmask.representation.extraction import PART_SCHEMA, SCHEMA, read_extraction
from unmask.representation.lens import SCHEMA as LENS_SCHEMA
from unmask.representation.probes import SCHEMA as PROBES_SCHEMA
from unmask.representation.symmetry import SCHEMA as SYMMETRY_SCHEMA
from unmask.tracing.averages import SCHEMA as AVERAGES_SCHEMA

FACTS = 10


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A corpus of ten facts a group, a masked model and its twin."""
    folder = tmp_path_factory.mktemp("place")
    corpus = make_reversal_corpus(FACTS, seed=0)
    tokenizer = unmask.Tokenizer.train(corpus.training_texts(), 1200)
    save_corpus(corpus, folder / "corpus", tokenizer)
    shape = {"width": 32, "heads": 2, "mlp_width": 64, "context": 96}
    for name, causal in (("mdm", False), ("ar", True)):
        config = unmask.preset("tiny", vocab_size=tokenizer.vocab_size, causal=causal, **shape)
        kind = ("causal", None) if causal else ("masked", tokenizer.mask_id)
        unmask.save(Model(name, lively(config), Blueprint(config, *kind), tokenizer), folder / name)
    text = "Rain fell on the harbour all day.\nThe boats stayed in until the evening bell rang.\n"
    (folder / "text.txt").write_text(text)
    return folder


def call(folder, *words):
    """The command in this process; a user's mistake is raised."""
    filled = [str(word).replace("@", f"{folder}/") for word in words]
    done = CliRunner().invoke(app, filled, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def represent(folder, name, out, *more):
    words = ("represent", f"@{name}", "--data", "@corpus", "--steps", 3, "--prefixes", 2)
    return call(folder, *words, "--lr", 0.05, "--device", "cpu", "--out", out, *more)


@pytest.fixture(scope="module")
def runs(place):
    for name in ("mdm", "ar"):
        represent(place, name, f"@runs/{name}", "--groups", "p2d", "--layer", "0,1")
    return place / "runs"


def test_represent_writes_tables_and_vectors(runs):
    for name in ("mdm", "ar"):
        rows, tensors = read_extraction(runs / name)
        assert len(rows) == 2 * FACTS * 2  # directions and layers
        assert {row["layer"] for row in rows} == {0, 1}
        assert tensors["k_star"].shape == (len(rows), 64)
        assert tensors["delta"].shape == tensors["v0"].shape == (len(rows), 32)
        for row in rows:
            assert len(row["losses"]) == 3 and row["updates"] == 2
            assert row["trained"] == ("same" if row["direction"] == "p2d" else "reverse")
        lens = read_table(runs / name / "lens.parquet", LENS_SCHEMA).to_pylist()
        moments = 4 if name == "mdm" else 1
        assert len(lens) == 2 * FACTS * 3 * moments
        probes = read_table(runs / name / "probes.parquet", PROBES_SCHEMA).to_pylist()
        assert {(row["fitted"], row["tested"]) for row in probes} == {
            (a, b) for a in ("p2d", "d2p") for b in ("p2d", "d2p")
        }


def test_an_interrupted_run_goes_on_with_what_is_missing(place, runs, tmp_path):
    """Parts that are there are not made again; the table comes out the same."""
    shutil.copytree(runs / "mdm", tmp_path / "mdm")
    parts = Parts(tmp_path / "mdm" / "parts", PART_SCHEMA)
    files = sorted((tmp_path / "mdm" / "parts").iterdir())
    for file in files[::3]:
        file.unlink()
    kept = {file: file.stat().st_mtime_ns for file in files if file.exists()}
    (tmp_path / "mdm" / "represent.parquet").unlink()
    represent(place, "mdm", tmp_path / "mdm", "--groups", "p2d", "--layer", "0,1")
    assert {file: file.stat().st_mtime_ns for file in kept} == kept
    assert all(parts.has(file.stem) for file in files)
    before, after = (
        read_table(folder / "mdm" / "represent.parquet", SCHEMA).to_pylist()
        for folder in (runs, tmp_path)
    )
    for one, other in zip(before, after, strict=True):
        assert one["prompt"] == other["prompt"]
        assert one["losses"] == pytest.approx(other["losses"], rel=1e-5)
    with pytest.raises(UserError, match="steps was 3 and is now 4"):
        represent(place, "mdm", tmp_path / "mdm", "--groups", "p2d", "--layer", "0,1", "--steps", 4)


def test_symmetry_writes_table_figures_and_page(place, runs, tmp_path):
    page = tmp_path / "docs" / "symmetry.md"
    words = ("symmetry", runs / "mdm", runs / "ar", "--permutations", 19)
    shown = call(place, *words, "--out", tmp_path / "out", "--page", page)
    assert "name: key" in shown and "CKA" in shown
    table = read_table(tmp_path / "out" / "symmetry.parquet", SYMMETRY_SCHEMA).to_pylist()
    assert len(table) == 2 * 2 * 8 * 9  # models, layers, comparisons, measures
    assert all(len(row["null"]) == 19 and row["facts"] + row["diverged"] == FACTS for row in table)
    for name in ("map", "spectrum", "retrieval", "nulls", "lens", "probes"):
        assert (tmp_path / "out" / f"{name}.png").stat().st_size > 10_000
        assert (tmp_path / "out" / f"{name}.pdf").is_file()
    text = page.read_text()
    for link in re.findall(r"\]\(([^)]+)\)", text):
        assert (page.parent / link).is_file()
    assert "## Conclusion" in text and "mdm − ar" in text
    assert "| model | facts trained | comparison | layer 0 | layer 1 |" in text
    # In full, for both models, at the layers where one of them tells most pairs apart.
    shown = {int(layer) for layer in re.findall(r"^### .*, layer (\d+), ", text, re.MULTILINE)}
    assert text.count("### ") == 2 * len(shown)
    # The best layer is the one that the page's own table says tells most pairs apart.
    best = set()
    for model in ("mdm", "ar"):
        cells = re.findall(rf"^\| {model} \| p2d \| \w+: key and value \|(.*)$", text, re.M)
        counts = [[int(n) for n in re.findall(r"(\d) of 8", row)] for row in cells]
        assert len(counts) == 2 and all(len(row) == 2 for row in counts)
        passed = [sum(column) for column in zip(*counts, strict=True)]
        best |= {layer for layer in (0, 1) if passed[layer] == max(passed)}
        assert any(passed[layer] == max(passed) for layer in shown)
    assert shown <= best


def test_layers_by_name_and_by_trace(place, tmp_path):
    """`auto` is the middle layer, or the one whose MLP did most at the last subject token."""
    base = {"direction": "p2d", "trained": "same", "kind": "masked", "stage": "first"}
    rows = [
        base
        | {"control": control, "part": part, "layer": layer, "head": -1, "role": role}
        | {"facts": 3, "prompts": 3, "mean": mean, "low": 0.0, "high": 1.0}
        for control, part, layer, role, mean in (
            ("none", "mlp", 0, "last subject", 0.4),
            ("none", "mlp", 1, "last subject", 0.1),
            ("none", "mlp", 1, "further", 0.9),
            ("other fact", "mlp", 1, "last subject", 0.9),
            ("none", "attn", 1, "last subject", 0.9),
        )
    ]
    write_table(tmp_path / "trace" / "averages.parquet", rows, AVERAGES_SCHEMA)
    quick = ("--facts", 1, "--steps", 1, "--no-lens", "--no-probes", "--groups", "d2p")
    shown = represent(place, "mdm", tmp_path / "a", *quick, "--trace", tmp_path / "trace")
    assert "layer 0, where restoring the MLP" in shown
    assert "layer 1, the middle one" in represent(place, "mdm", tmp_path / "b", *quick)
    shown = represent(place, "mdm", tmp_path / "c", *quick, "--layer", "all")
    assert "layers 0 to 1, all but the last" in shown
    with pytest.raises(UserError, match="no effects of MLPs .* of a causal model"):
        represent(place, "ar", tmp_path / "d", *quick, "--trace", tmp_path / "trace")


def test_prefixes_come_from_a_text(place, tmp_path):
    import json

    quick = ("--facts", 1, "--steps", 1, "--no-lens", "--no-probes", "--prefixes", 3)
    represent(place, "mdm", tmp_path / "a", *quick, "--prefix-text", "@text.txt")
    found = json.loads((tmp_path / "a" / "prefixes.json").read_text())
    text = " ".join((place / "text.txt").read_text().split())
    assert found[0] == "" and len(set(found)) == 3
    assert all(prefix in text for prefix in found)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--layer", 7), "layer 7 is out of range: .* layers 0 to 2"),
        (("--layer", "0,1,2"), "layer 2 is the last: .* choose a layer from 0 to 1"),
        (("--layer", "x"), "layer 'x' cannot be read"),
        (("--groups", "up"), "expected some of p2d, d2p, both"),
        (("--directions", "p2d,d2p"), "--directions is 'p2d,d2p': expected both, p2d, d2p"),
        (("--phrasing", 50), "phrasing 50 was asked for"),
        (("--phrasing", -1), "phrasing -1 was asked for"),
        (("--lr", "nan"), "'lr' is nan, expected a number above 0"),
        (("--kl", "nan"), "'kl' is nan, expected a number from 0"),
        (("--clamp", -1), "'clamp' is -1.0, expected a number above 0"),
        (("--revealed", "1.5"), "'revealed' is .*expected shares"),
        (("--revealed", "half"), "expected shares from 0 to below 1"),
        (("--stop", "soon"), "'stop' is 'soon'"),
        (("--objective", "room"), "did you mean 'rome'"),
        (("--length", 20), "which a canvas of 20 in a context of 96 does not hold"),
        (("--facts", 0), "0 facts were asked for"),
    ],
)
def test_mistakes_are_sentences(place, tmp_path, words, sentence):
    with pytest.raises(UserError, match=sentence):
        represent(place, "mdm", tmp_path / "run", "--groups", "p2d", *words)
    assert not list(tmp_path.glob("run/parts/*"))  # refused before anything is searched


def test_too_few_facts_are_counted(place, tmp_path):
    represent(place, "ar", tmp_path / "few", "--facts", 3, "--no-lens", "--no-probes")
    with pytest.raises(UserError, match="group p2d has 3 facts .* needs at least 10"):
        call(place, "symmetry", tmp_path / "few")
    with pytest.raises(UserError, match="expected at least 19"):
        call(place, "symmetry", tmp_path / "few", "--permutations", 3)
    with pytest.raises(UserError, match="neither guidance nor mask patterns"):
        represent(place, "ar", tmp_path / "guided", "--guidance", 1.0)


def test_a_search_of_no_steps_leaves_nothing_to_compare(place, tmp_path):
    """All deltas are zero: told as not measurable, and no table says that they differ."""
    words = ("--groups", "p2d", "--steps", 0, "--layer", 1, "--no-lens", "--no-probes")
    represent(place, "mdm", tmp_path / "mdm", *words)
    page = tmp_path / "page.md"
    call(place, "symmetry", tmp_path / "mdm", "--permutations", 19, "--page", page)
    text = page.read_text()
    assert "same for all facts: name: key and delta; description: key and delta." in text
    assert "| name: key and delta | debiased linear CKA | – | – | – | – |  |" in text
    assert "nan" not in text


def test_own_facts_are_one_group(place, tmp_path):
    """Their groups are not chosen, and missing phrasings are seen before any search."""
    rows = ["subject,object,prompt"] + [f"Ada{i},Orsel{i},The friend of {{}} is" for i in range(3)]
    (tmp_path / "own.csv").write_text("\n".join(rows))
    words = ("represent", "@mdm", "--data", tmp_path / "own.csv", "--out", tmp_path / "run")
    with pytest.raises(UserError, match="--groups is 'both', but .* are one group: leave it out"):
        call(place, *words, "--groups", "both")
    with pytest.raises(UserError, match="probes need at least 2 facts in 3 phrasings"):
        call(place, *words)
    assert not (tmp_path / "run").exists()
