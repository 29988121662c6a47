"""Measures of another package: one file each, and everything is derived from it."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.study.pair import make_corpus
from unmask.data.corpus import save_corpus

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"

COMMANDS = """
import json, sys
from tests.commands import run
for words in json.load(sys.stdin):
    done = run(*words, columns=160)
    print(json.dumps([done.returncode, done.stdout, done.stderr]))
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    """Both examples as an installed package: their files and the entry points that name them."""
    folder = tmp_path_factory.mktemp("site")
    for name in ("calibration", "paraphrases"):
        (folder / f"{name}_of_theirs.py").write_text((EXAMPLES / f"{name}.py").read_text("utf-8"))
    info = folder / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[unmask.plugins]\nmeasure.calibration = calibration_of_theirs:MEASURE\n"
        "measure.paraphrases = paraphrases_of_theirs:MEASURE\n"
        "measure.broken = a_module_that_is_not_there:MEASURE\n"
    )
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """The small pair's corpus with a second phrasing of every question."""
    folder, corpus = tmp_path_factory.mktemp("phrasings") / "corpus", make_corpus()
    for facts in corpus.splits.values():
        facts += [replace(fact, phrasing=1, prompt=f"{fact.prompt} the") for fact in facts]
    save_corpus(corpus, folder, tokenizer=None)
    return folder


def run_all(package: Path, *commands: list) -> tuple[list[tuple[int, str, str]], str]:
    """Each command's exit code and what it prints, of one process; what that prints besides."""
    paths = [str(package), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS],
        input=json.dumps([[str(word) for word in words] for words in commands]),
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()], done.stderr


def test_verbs_stages_sections_and_reports(package, data, place, tmp_path):
    """No file of this package knows the measures."""
    folder = tmp_path / "run"
    ask = ["calibration", place.model, place.twin, "--data", place.data, "--steps", 4]
    pairs = ["paraphrases", place.model, "--data", data, "--facts", 2, "--steps", 2, "--json"]
    pairs += ["--out", tmp_path / "pairs"]  # not in the folder that tests are run in
    study = ["study", "--model", place.model, "--twin", place.twin, "--data", data, "--quick"]
    outs = [tmp_path / name for name in ("page.md", "page.html", "figures")]
    done, said = run_all(
        package,
        [*ask, "--out", folder],
        ["calibration", "--help"],
        ["--help"],
        [*ask, "--steps", 0, "--out", tmp_path / "none"],
        [*ask, "--out", folder, "--json"],
        *(["report", folder, "--out", out] for out in outs),
        [*study, "--stages", "calibration,paraphrases", "--out", tmp_path / "study"],
        pairs,
        ["paraphrases", place.model, "--data", place.data, "--out", tmp_path / "alone"],
    )
    assert [code for code, _, _ in done] == [0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 2], done
    asked, shown, verbs, wrong, printed, *_, compared, alone = done
    assert "0 facts in several phrasings" in alone[2]
    assert "Is a model as sure as it is right?" in asked[1]
    assert "description → name, reversed" in asked[1] and "[too few facts]" in asked[1]
    # An entry point that fails is one sentence where all measures are gone through.
    said += "".join(each for _, _, each in done)
    assert "the measure 'broken' of theirs 1.0 cannot be imported" in said
    assert "Traceback" not in said

    assert "--steps" in shown[1] and "Sampling steps." in shown[1]
    assert "calibration" in verbs[1] and "paraphrases" in verbs[1]
    assert "'steps' is 0, expected at least 1" in wrong[2]
    gaps = [row for row in json.loads(printed[1])["summary"]["means"] if row["metric"] == "gap"]
    assert {row["model"] for row in gaps if row["outcome"]} == {"diffusion", "twin"}

    for page in outs[:2]:
        text = page.read_text("utf-8")
        assert "Is a model as sure as it is right?" in text and "Confidence minus hits" in text
    assert list(outs[2].rglob("*.png"))
    page = (tmp_path / "study" / "page.html").read_text("utf-8")
    assert (
        "Is a model as sure as it is right?" in page and "Are paraphrases answered alike?" in page
    )

    summary = json.loads(compared[1])["summary"]
    assert {(row["pair"], row["facts"]) for row in summary["means"]} == {("one", 2), ("two", 2)}
    assert all(0 <= row["mean"] <= 1 for row in summary["means"])
    shares = {(row["split"], row["pair"]): row["mean"] for row in summary["means"]}
    for row in summary["differences"]:
        gap = shares[row["split"], "one"] - shares[row["split"], "two"]
        assert row["mean"] == pytest.approx(gap) and row["outcome"] == "too few"


def test_a_notebook_registers_by_a_call(place, monkeypatch):
    """In one process, without an entry point; the measure itself is the call."""
    import importlib.util

    import unmask
    from unmask.measures.table import MEASURES, find_measure

    monkeypatch.setattr(MEASURES, "_given", {})  # other tests go over all measures
    spec = importlib.util.spec_from_file_location(
        "calibration_of_a_notebook", EXAMPLES / "calibration.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    measure = unmask.register("measure", module.MEASURE)
    assert find_measure("calibration") is measure
    result = measure(unmask.load(place.model), data=place.data, steps=2)
    assert len(result.outcomes) == len(result.summary["means"]) / 3 and result.rows()
    with pytest.raises(unmask.UserError, match="the name 'nll' is that of another measure"):
        from dataclasses import replace

        unmask.register("measure", replace(measure, name="nll"))
