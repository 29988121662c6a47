"""The page of edits from end to end: every run, shares of one, the answer, and what is resumed."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scripts import load_script
from tests.study.pair import place
from unmask import UserError
from unmask.data.reversal_corpus import make_reversal_corpus
from unmask.measures import edit
from unmask.measures.runner import read_result

__all__ = ["place"]
ROOT = Path(__file__).parents[2]
editing = load_script("paper/editing.py")
page = load_script("paper/report_editing.py")
QUICK = {"groups": ("p2d", "d2p"), "objects": "swap", "moments": "identity", "layer": "0"}
QUICK |= {"length": 24, "steps": 2, "search_steps": 2, "prefixes": 1, "neighbours": 1}
QUICK |= {"controls": ("tuned", "tuned-layer"), "tune_updates": 1, "recalled": False}


@pytest.fixture
def make_runs(place, tmp_path, monkeypatch):
    """Runs of a tiny pair in a folder; a part has two edits."""
    monkeypatch.setattr(edit, "CHUNK", 2)
    models = [f"mdm={place.model}", f"ar={place.twin}"]

    def make(name, *words):
        words = [*models, "--data", str(place.data), "--out", str(tmp_path / name), *words]
        return editing.Runs(editing.parse_options(words))

    return make


def test_shares_of_a_run_give_the_tables_of_one_process(make_runs, place, tmp_path):
    whole, shared = make_runs("whole"), make_runs("shared")
    job = editing.Job("controls", 2, QUICK)
    whole.run(job)
    shares = shared.list_shares(job)
    assert shares == ["1/4", "2/4", "3/4", "4/4"], "four edits of each model"
    assert shared.list_shares(job._replace(changes={})) == [None]
    for share in reversed(shares):
        assert not (tmp_path / "shared/controls/edit.parquet").exists()
        shared.run(job, share)
    one, other = (read_result(tmp_path / name / "controls") for name in ("whole", "shared"))
    for name in one.tables:
        assert str(one.tables[name].to_pylist()) == str(other.tables[name].to_pylist())
    assert str(dict(one.summary)) == str(dict(other.summary))


def test_a_page_is_drawn_from_all_runs_or_it_says_which_is_missing(make_runs, place, tmp_path):
    make_runs("made").run(editing.Job("run", 2, QUICK))
    make_runs("made").run(editing.Job("bare", 2, QUICK | {"controls": ()}))
    runs = tmp_path / "runs"
    for name in (*page.CHANGES, "layer-0-4", "controls"):
        shutil.copytree(tmp_path / "made/run", runs / name)
    words = [str(runs), "--page", str(tmp_path / "page.md")]
    page.main([*words, "--data", str(place.data)])
    text = (tmp_path / "page.md").read_text()
    for sentence in ("Learned in the whole network", "says its old owner in", "over 1 layer |"):
        assert sentence in text
    with pytest.raises(UserError, match="mdm .* did not come with this package: name the corpus"):
        page.main(words)
    with pytest.raises(UserError, match="has no object .* expected the corpus that was edited"):
        page.make_document(page.read_runs(runs), make_reversal_corpus(9, 0))
    (runs / "controls/edit.parquet").unlink()
    with pytest.raises(UserError, match="an unfinished run `controls`: expected every run"):
        page.read_runs(runs)
    shutil.rmtree(runs / "controls")
    assert "controls" not in page.read_runs(runs), "the run `edit` has them"
    shutil.rmtree(runs / "edit")
    shutil.copytree(tmp_path / "made/bare", runs / "edit")
    with pytest.raises(UserError, match="no run `controls`, and no controls in its run `edit`"):
        page.read_runs(runs)
    page.main([*words, "--data", str(place.data), "--without-controls"])
    assert "no statement was learned" in (tmp_path / "page.md").read_text()
    shutil.rmtree(runs / "swap")
    with pytest.raises(UserError, match="has no run `swap`: .* does what is missing"):
        page.read_runs(runs)


@pytest.mark.prove
def test_every_change_has_its_run_and_its_row(tmp_path):
    command = [sys.executable, "paper/editing.py", "reversal-mdm", "reversal-ar", "--tiny"]
    command += ["--facts", "1", "--few", "1", "--layers", "1"]
    command += ["--clamps", "4", "--few-controls", "--processes", "2"]
    command += ["--out", str(tmp_path / "runs")]
    drawing = [sys.executable, "paper/report_editing.py", str(tmp_path / "runs")]
    drawing += ["--page", str(tmp_path / "page.md")]
    for words in (command, drawing):
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    names = {"edit", "swap", "ridge-low", "ridge-high", "cycle", "random", "clean", "identity"}
    assert {path.name for path in (tmp_path / "runs").iterdir()} == names | {
        *("layer-1-4", "controls", "spread")
    }
    text = (tmp_path / "page.md").read_text()
    for words in ("the reverse", "Learned in the whole network", "spread over 3 layers"):
        assert words in text
    assert text.count("says its old owner in") == 2, "each model, where objects are swapped"
    for words in ("generated before", "efficacy, %", "right is likelier", "equal norm"):
        assert words not in text, "an answer is preferred, or said"
    head = "| model | change | facts | new object preferred, % | new object said, % |"
    first, *rest = text.split(head)[1:]
    assert len(rest) == 1, "the controls stand once, with the answer; the edits have their own"
    assert [line.split(" | ")[1] for line in first.splitlines()[2:9]] == [
        *("no change", "the edit", "in a random layer", "the wrong subject's key"),
        *("another fact's delta", "learned, whole network", "learned, edited projections"),
    ]
    controls = read_result(tmp_path / "runs" / "controls")
    variants = {row["variant"] for row in controls.rows()}
    assert variants == {"edit", "layer", "key", "delta", "tuned", "tuned-layer"}
    for name in ("cycle", "random", "clean"):
        assert {row["kind"] for row in read_result(tmp_path / "runs" / name).rows()} == {"masked"}
    high, none = (read_result(tmp_path / "runs" / name).rows() for name in ("ridge-high", "edit"))
    assert high[0]["magnitude"] < none[0]["magnitude"]
    resumed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert resumed.returncode == 0 and "layer 1 and a clamp of 4 are chosen" in resumed.stdout
    subprocess.run(drawing, cwd=ROOT, check=True)
    assert (tmp_path / "page.md").read_text() == text
