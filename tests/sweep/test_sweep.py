"""`unmask sweep`: cells that resume and are shared, cells that fail, bad files, the comparison."""

import json
import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

import unmask
from tests.sweeps import BOUND, CHANGES, write_sweep
from unmask.base.errors import UserError
from unmask.base.locks import RunRefusedError, claim
from unmask.base.runs import RECORD, make_record, write_record
from unmask.base.tables import read_table
from unmask.base.work import _find
from unmask.cli.main import app
from unmask.data.corpus import save_corpus
from unmask.data.reversal_corpus import make_reversal_corpus
from unmask.evaluation.statistics import Clusters, estimate_mean
from unmask.sweep.compare import SCHEMA, TABLE, draw_sweep
from unmask.sweep.folder import open_folder
from unmask.sweep.grid import MeasureEntry, read_sweep
from unmask.sweep.run import (
    CELLS,
    DONE,
    FAILED,
    TRUNK,
    SweepWork,
    read_outcome,
    run_sweep,
)
from unmask.sweep.summary import compare_sweep, find_best
from unmask.training.recipe import BudgetSettings, ScheduleSettings
from unmask.training.recipes_io import read_recipe, write_recipe


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[Path, Path]:
    """A sweep that has ended, by the command line: its file and its folder."""
    folder = tmp_path_factory.mktemp("sweep")
    file, out = write_sweep(folder), folder / "out"
    page = folder / "page.md"
    words = ["sweep", str(file), "--out", str(out), "--device", "cpu", "--page", str(page)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, (done.output, done.exception)
    assert "y validation" in done.output and "y validation" in page.read_text()
    return file, out


@pytest.fixture
def copied(finished, tmp_path) -> tuple[Path, Path]:
    """The finished sweep in a folder that a test may change."""
    file, whole = finished
    return file, Path(shutil.copytree(whole, tmp_path / "out"))


def test_every_cell_is_trained_and_measured(finished):
    file, out = finished
    sweep = read_sweep(file)
    assert [cell.labels for cell in sweep.cells][1] == {"family": "masked", "seed": "1"}
    for cell in sweep.cells:
        assert (out / CELLS / cell.name / DONE).is_file()
    rows = read_table(out / TABLE, SCHEMA).to_pylist()
    assert [(row["family"], row["seeds"], row["likelihood"]) for row in rows] == [
        ("masked", 2, "upper bound"),
        ("causal", 2, "exact"),
    ]


def test_the_interval_is_that_of_seeds_and_documents(finished):
    file, out = finished
    sweep = read_sweep(file)
    own = [cell for cell in sweep.cells if cell.labels["family"] == "causal"]
    tables = [
        read_table(out / CELLS / cell.name / "bound" / "perplexity.parquet", "perplexity/1")
        for cell in own
    ]
    sums, counts = (
        np.array([table[name].to_pylist() for table in tables], float) for name in ("nll", "tokens")
    )
    expected = estimate_mean(Clusters(sums, counts))
    compared = compare_sweep(sweep, out)["bound"]
    row = next(each for each in compared if each.columns["family"] == "causal")
    assert vars(row.value) == pytest.approx(vars(expected))
    assert row.columns["flops"] > 0 and row.columns["tokens"] == 3 * 4 * 8


def test_best_is_the_lowest_or_the_highest(finished):
    file, out = finished
    rows = compare_sweep(read_sweep(file), out)["bound"]
    low, high = sorted(rows, key=lambda row: row.value.mean)
    entry = MeasureEntry(verb="perplexity", value="nll")
    assert find_best(rows, entry) is low
    assert find_best(rows, replace(entry, better="higher")) is high


def test_a_cell_goes_on_where_it_stopped(finished, copied):
    """Only the measure that is missing is run again, and gives the same numbers."""
    (_, whole), (file, out) = finished, copied
    cell = next((out / CELLS).glob("*masked*seed-0"))
    (cell / DONE).unlink()
    shutil.rmtree(cell / "bound")
    model = next(cell.glob("train/model/*.safetensors"))
    before = model.stat().st_mtime_ns
    assert run_sweep(file, out, device="cpu").done
    assert model.stat().st_mtime_ns == before
    assert [vars(row.value) for row in compare_sweep(read_sweep(file), out)["bound"]] == [
        vars(row.value) for row in compare_sweep(read_sweep(file), whole)["bound"]
    ]


def test_data_that_cells_were_made_from_are_known_by_content(copied):
    """With one cell done and the data replaced, seeds of two corpora were pooled."""
    kept, out = copied
    text = kept.parent / "text.jsonl"
    before = text.read_text()
    try:
        text.write_text(before.replace("cat", "dog"))
        with pytest.raises(
            RunRefusedError, match=r"the contents of \S*text.jsonl changed.: choose"
        ):
            run_sweep(kept, out, device="cpu")
        # Nothing was made from them yet in a folder without cells.
        shutil.rmtree(out / CELLS)
        open_folder(read_sweep(kept), out, "cpu")
        open_folder(read_sweep(kept), out, "cpu")
    finally:
        text.write_text(before)


@pytest.mark.parametrize("is_mixed", [False, True])
def test_training_data_are_known_by_content(tmp_path, is_mixed):
    corpus = tmp_path / "corpus"
    save_corpus(make_reversal_corpus(2, 0), corpus, tokenizer=None)
    data = {"source": "facts", "path": str(corpus)}
    if is_mixed:
        data = {"source": "mixture", "sources": {"own": data, "made": {"source": "reversal"}}}
    changes = CHANGES | {"data": {**data, "context": 32}}
    more = {"recipe": "reversal-mdm", "grids": [{"seed": [0, 1]}], "figures": []}
    file = write_sweep(tmp_path, changes=changes, **more)
    out = tmp_path / "out"
    sweep = read_sweep(file)
    open_folder(sweep, out, "cpu")
    first = out / CELLS / sweep.cells[0].name / "train"
    first.mkdir(parents=True)
    write_record(first, make_record("train", asdict(sweep.cells[0].recipe)))
    open_folder(sweep, out, "cpu")
    facts = next(corpus.glob("train.jsonl"))
    facts.write_text(facts.read_text().replace("the", "thy"))
    with pytest.raises(RunRefusedError, match=r"the contents of \S*corpus changed"):
        open_folder(sweep, out, "cpu")
    (out / RECORD).unlink()
    with pytest.raises(RunRefusedError, match="holds cells but no run.json"):
        open_folder(sweep, out, "cpu")


def test_a_failing_cell_is_told_and_the_rest_goes_on(tmp_path):
    grids = [{"length": {"fits": {}, "short": {"data.context": 2}}}]
    file = write_sweep(tmp_path, grids=grids, figures=[])
    outcome = run_sweep(file, tmp_path / "out", device="cpu")
    assert outcome.done == ["length-fits"]
    assert "too short" in outcome.failed["length-short"]
    failure = json.loads((tmp_path / "out" / CELLS / "length-short" / FAILED).read_text())
    assert "too short" in failure["error"]
    page = tmp_path / "page.md"
    draw_sweep(outcome, page)
    assert "length-short failed" in page.read_text().replace("\\", "")


def test_errors_of_other_libraries_are_shortened(tmp_path, monkeypatch):
    def fail(*_: object) -> str:
        raise MemoryError("no memory is left. " + "Advice of the library. " * 50)

    monkeypatch.setattr(SweepWork, "work", fail)
    file = write_sweep(tmp_path, grids=[{"seed": [0]}], figures=[])
    outcome = run_sweep(file, tmp_path / "out", device="cpu")
    message = outcome.failed["seed-0"]
    assert message.startswith("MemoryError: no memory is left.") and len(message) <= 160
    failure = json.loads((tmp_path / "out" / CELLS / "seed-0" / FAILED).read_text())
    assert failure["traceback"].count("Advice") >= 50


def test_minutes_end_a_call_and_the_next_goes_on(tmp_path):
    file, out = write_sweep(tmp_path, grids=[{"seed": [0]}], figures=[]), tmp_path / "out"
    stopped = run_sweep(file, out, minutes=1e-9, device="cpu")
    assert stopped.ended == "minutes" and not stopped.done
    ended = run_sweep(file, out, device="cpu")
    assert ended.ended == "done" and ended.done == ["seed-0"]
    with pytest.raises(UserError, match="expected a finite number above 0"):
        run_sweep(file, out, minutes=0.0)
    with pytest.raises(UserError, match="--on is 'local:0': expected local:4"):
        run_sweep(file, out, on="local:0")


def test_no_measure_begins_after_the_minutes_are_over(tmp_path, monkeypatch):
    file, out = write_sweep(tmp_path, grids=[{"seed": [0]}], figures=[]), tmp_path / "out"
    train = SweepWork._train

    def train_until_late(worker, *arguments):
        ended, worker.deadline = train(worker, *arguments), 0.0
        return ended

    with monkeypatch.context() as patch:
        patch.setattr(SweepWork, "_train", train_until_late)
        stopped = run_sweep(file, out, minutes=10.0, device="cpu")
    assert stopped.ended == "minutes" and not (out / CELLS / "seed-0" / "bound").exists()
    assert run_sweep(file, out, device="cpu").done == ["seed-0"]


def test_a_call_that_stops_counts_the_later_cells_that_are_done(copied):
    """The page said that they were still to be done."""
    file, out = copied
    first, *others = (cell.name for cell in read_sweep(file).cells)
    shutil.rmtree(out / CELLS / first)
    stopped = run_sweep(file, out, minutes=1e-9, device="cpu")
    assert stopped.ended == "minutes" and stopped.done == others
    _, (*_, page) = draw_sweep(stopped)
    assert f"1 cell of {len(others) + 1} is still to be done." in page.read_text("utf-8")


def test_a_cell_at_which_another_command_is_at_work_is_left_to_it_or_waited_for(tmp_path):
    file, out = write_sweep(tmp_path, grids=[{"seed": [0, 1]}], figures=[]), tmp_path / "out"
    folder = SweepWork(read_sweep(file), out, "cpu", None)
    words = ["sweep", str(file), "--out", str(out), "--device", "cpu"]
    with claim(_find(folder, "seed-0", "lock")) as is_own:
        assert is_own
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 3 and "others are at work on seed-0; --wait" in done.output
        outcome = run_sweep(file, out, device="cpu")
        assert (outcome.left, outcome.done) == (["seed-0"], ["seed-1"])
        assert run_sweep(file, out, device="cpu", cells=["seed-1"]).left == []
    assert run_sweep(file, out, device="cpu", wait=True).left == []


def test_one_cell_is_done_by_its_name(tmp_path):
    file, out = write_sweep(tmp_path, grids=[{"seed": [0, 1]}], figures=[]), tmp_path / "out"
    words = ["sweep", str(file), "--out", str(out), "--device", "cpu", "--cell"]
    assert CliRunner().invoke(app, [*words, "seed-1"]).exit_code == 0
    assert read_outcome(out).done == ["seed-1"]
    with pytest.raises(UserError, match="no cell 'seed-2': did you mean 'seed-"):
        run_sweep(file, out, device="cpu", cells=["seed-2"])


@pytest.mark.prove
def test_cells_are_done_by_workers(finished, tmp_path):
    """One fails; tables are those of one process."""
    file, out = finished
    outcome = run_sweep(file, tmp_path / "on", device="cpu", on="local:2")
    assert len(outcome.done) == 4 and not outcome.left and not outcome.failed
    rows = [compare_sweep(outcome.sweep, each)["bound"] for each in (out, tmp_path / "on")]
    assert [vars(row.value) for row in rows[0]] == [vars(row.value) for row in rows[1]]
    grids = [{"length": {"fits": {}, "short": {"data.context": 2}}}]
    other = write_sweep(tmp_path, grids=grids, figures=[])
    failed = run_sweep(other, tmp_path / "failed", device="cpu", on="local:1")
    assert failed.done == ["length-fits"] and "too short" in failed.failed["length-short"]


def test_a_copy_that_cools_down_is_the_run_under_that_schedule(tmp_path):
    """The law of cool-down copies: the same weights as a run that was planned that way."""
    changes = CHANGES | {"schedule": {"name": "constant", "warmup": 1}}
    text = str(tmp_path / "text.jsonl")
    bound = BOUND | {"data": text}
    more = {"measures": {"bound": bound, "last": bound | {"last_only": True}}}
    more |= {"figures": [{"value": "bound", "x": "step", "line": "step"}]}
    more |= {"cooldowns": {"steps": [4, 8], "share": 0.5}, "grids": [{"seed": [0]}]}
    file = write_sweep(tmp_path, changes=changes, **more)
    out = tmp_path / "out"
    outcome = run_sweep(file, out, device="cpu")
    assert outcome.done == ["seed-0"], outcome.failed
    cell = outcome.sweep.cells[0]
    schedule = ScheduleSettings(name="wsd", warmup=1, decay=0.5)
    for steps in (4, 8):
        recipe = replace(cell.recipe, budget=BudgetSettings(steps=steps), schedule=schedule)
        unmask.train(recipe, tmp_path / f"plain-{steps}", device="cpu")
        ours = load_file(out / CELLS / "seed-0" / f"step-{steps}" / "train/model/model.safetensors")
        theirs = load_file(tmp_path / f"plain-{steps}" / "model/model.safetensors")
        assert all((ours[name] == theirs[name]).all() for name in theirs)
    rows = compare_sweep(outcome.sweep, out)["bound"]
    assert [row.columns["step"] for row in rows] == [4, 8]
    assert not (out / CELLS / "seed-0" / "step-4" / "last").exists()
    assert (out / CELLS / "seed-0" / "step-8" / "last" / "perplexity.parquet").is_file()
    assert (out / CELLS / "seed-0" / TRUNK).is_dir()
    assert run_sweep(file, out, device="cpu").done == ["seed-0"]  # its trunk ends earlier


def test_words_change_entries_and_settings(finished):
    file, _ = finished
    sweep = read_sweep(file, ["title=Other", "batch.rows=8", "measures.bound.settings.repeats=3"])
    assert sweep.file.title == "Other" and sweep.measures["bound"].settings == {"repeats": 3}
    assert {cell.recipe.batch.rows for cell in sweep.cells} == {8}


def test_what_is_drawn_may_change_and_measures_may_be_added(copied):
    """A title, a label or a forgotten measure costs no training; what was run stays as it was."""
    file, out = copied
    weights = sorted(out.glob("cells/*/train/model/*.safetensors"))
    before = [path.stat().st_mtime_ns for path in weights]
    entry = BOUND | {"data": str(file.parent / "text.jsonl")}
    words = ["title=Other", "measures.bound.label=nats", "figures=[]"]
    words.append(f"measures.again={json.dumps(entry | {'settings': {'repeats': 4}})}")
    outcome = run_sweep(file, out, *words, device="cpu")
    assert len(outcome.done) == 4 and read_outcome(out).sweep.file.title == "Other"
    assert [path.stat().st_mtime_ns for path in weights] == before
    assert len(compare_sweep(outcome.sweep, out)["again"]) == 2
    missing = next(out.glob("cells/*/again"))
    shutil.rmtree(missing)  # a cell is done once all of its measures are there
    assert set(outcome.done) - set(read_outcome(out).done) == {missing.parent.name}
    with pytest.raises(UserError, match="measures.bound.settings was .*: choose another folder"):
        run_sweep(file, out, *words, "measures.bound.settings.repeats=3", device="cpu")
    run_sweep(file, out, *words[:-1], device="cpu")  # `again` is taken out, and comes back changed
    with pytest.raises(UserError, match=r"measures.again.repeats was 4 and is now 3\)"):
        run_sweep(file, out, *words, "measures.again.settings.repeats=3", device="cpu")
    assert len(run_sweep(file, out, *words, device="cpu").done) == 4
    for path in out.glob("cells/*/bound/run.json"):  # as another version's measure leaves it
        path.write_text(re.sub('("code in perplexity.py": ")[^"]*', r"\1other", path.read_text()))
    with pytest.raises(RunRefusedError, match="measures.bound: the code in perplexity.py of the m"):
        run_sweep(file, out, *words, device="cpu")


def test_a_recipe_file_that_was_edited_is_another_sweep(tmp_path):
    """The record has its name alone: cells of both would have been pooled as seeds of one model."""
    own = tmp_path / "own.yaml"
    write_recipe(read_recipe("toy-masked"), own)
    file = write_sweep(tmp_path, recipe="own.yaml", grids=[{"seed": [0, 1]}], figures=[])
    out = tmp_path / "out"
    assert len(run_sweep(file, out, device="cpu").done) == 2
    write_recipe(read_recipe("toy-masked", ["optimiser.rate=0.5"]), own)
    with pytest.raises(UserError, match="seed-0: optimiser.rate was 0.005 and is now 0.5"):
        run_sweep(file, out, device="cpu")


def test_a_column_that_is_not_there_is_named(copied):
    file, out = copied
    outcome = run_sweep(file, out, "measures.bound.value=nlll", device="cpu")
    with pytest.raises(UserError, match="bound.value' names 'nlll', .*did you mean 'nll'"):
        compare_sweep(outcome.sweep, out)
    next((out / CELLS).glob("*masked*seed-0/done.json")).unlink()
    failed = run_sweep(file, out, "measures.bound.value=nlll", device="cpu").failed
    assert "'nlll'" in failed["family-masked_seed-0"]
