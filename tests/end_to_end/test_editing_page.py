"""The page of edits from end to end: every run, also by a worker, and what is resumed."""

import shutil
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


@pytest.mark.prove
def test_a_worker_gives_the_tables_of_this_process(make_runs, place, tmp_path, monkeypatch):
    monkeypatch.undo()  # parts are those of other processes, too
    job = editing.Job("controls", 2, QUICK)
    for name, words in {"whole": (), "shared": ("--on", "local:1")}.items():
        make_runs(name, *words).run(job)
    one, other = (read_result(tmp_path / name / "controls") for name in ("whole", "shared"))
    for name in one.tables:
        assert str(one.tables[name].to_pylist()) == str(other.tables[name].to_pylist())
    assert str(dict(one.summary)) == str(dict(other.summary))


@pytest.mark.prove
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
