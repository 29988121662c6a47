"""`unmask sweep`: cells that resume and are shared, cells that fail, bad files, the comparison."""

import json
import multiprocessing
import os
import shutil
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from typer.testing import CliRunner

import unmask
from unmask.base import locks
from unmask.base.errors import UserError
from unmask.base.locks import claim
from unmask.base.tables import read_table
from unmask.blocks.blocks import Figure
from unmask.cli.main import app
from unmask.evaluation.statistics import Clusters, estimate_mean
from unmask.sweep.compare import SCHEMA, TABLE, describe_sweep, draw_sweep
from unmask.sweep.grid import MeasureEntry, read_sweep
from unmask.sweep.run import (
    CELLS,
    CLAIM,
    DONE,
    FAILED,
    TRUNK,
    SweepOutcome,
    _CellWorker,
    run_sweep,
)
from unmask.sweep.summary import (
    ComparedRow,
    _cluster,
    compare_sweep,
    find_best,
    subtract_best,
)
from unmask.toy.examples import SOURCES
from unmask.training.recipe import BudgetSettings, ScheduleSettings

CHANGES = {
    "network": {"preset": "tiny", "changes": {"layers": 1}},
    "data": {"source": "toy", "context": 8},
    "budget.steps": 3,
    "batch.rows": 4,
    "schedule.warmup": 1,
    "cadence": {"facts": 0, "samples": 0, "log": 1},
    "machine.dtype": "float32",
}
BOUND = {"verb": "perplexity", "settings": {"repeats": 2}, "value": "nll", "per": "tokens"}
BOUND |= {"cluster": "document", "label": "nats per token"}
TEXTS = ["our cat is your friend", "we are your friend s", "dog s are our s"]


def write_sweep(folder: Path, **changes: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "text.jsonl"
    text.write_text("".join(json.dumps({"text": each}) + "\n" for each in TEXTS))
    bound = BOUND | {"data": str(text)}
    values = {
        "title": "A small sweep",
        "recipe": "toy-masked",
        "changes": CHANGES,
        "grids": [{"family": {"masked": {}, "causal": {"recipe": "toy-causal"}}, "seed": [0, 1]}],
        "measures": {"bound": bound},
        "figures": [{"value": "bound", "x": "family", "line": "family"}],
    }
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(values | changes, sort_keys=False))
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[Path, Path]:
    """A sweep that has ended, by the command line: its file and its folder."""
    folder = tmp_path_factory.mktemp("sweep")
    file, out = write_sweep(folder), folder / "out"
    page = folder / "page.md"
    words = ["sweep", str(file), "--out", str(out), "--device", "cpu", "--page", str(page)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, (done.output, done.exception)
    assert "Best by validation" in done.output and "Best by validation" in page.read_text()
    return file, out


def test_every_cell_is_trained_and_measured(finished):
    file, out = finished
    sweep = read_sweep(file)
    assert [cell.labels for cell in sweep.cells][1] == {"family": "masked", "seed": "1"}
    for cell in sweep.cells:
        assert (out / CELLS / cell.name / DONE).is_file()
        assert not (out / CELLS / cell.name / CLAIM).exists()
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


def test_a_finished_sweep_does_nothing_again(finished):
    file, out = finished
    weights = sorted(out.glob("cells/*/train/model/*.safetensors"))
    before = [path.stat().st_mtime_ns for path in weights]
    outcome = run_sweep(file, out, device="cpu")
    assert len(outcome.done) == 4 and not outcome.failed
    assert [path.stat().st_mtime_ns for path in weights] == before


def test_a_cell_goes_on_where_it_stopped(finished, tmp_path):
    """Only the measure that is missing is run again, and gives the same numbers."""
    file, whole = finished
    out = tmp_path / "out"
    shutil.copytree(whole, out)
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


def test_an_error_of_another_library_is_told_shortly(tmp_path, monkeypatch):
    def fail(*_: object) -> str:
        raise MemoryError("no memory is left. " + "Advice of the library. " * 50)

    monkeypatch.setattr(_CellWorker, "work", fail)
    file = write_sweep(tmp_path, grids=[{"seed": [0]}], figures=[])
    outcome = run_sweep(file, tmp_path / "out", device="cpu")
    told = outcome.failed["seed-0"]
    assert told.startswith("MemoryError: no memory is left.") and len(told) <= 160
    failure = json.loads((tmp_path / "out" / CELLS / "seed-0" / FAILED).read_text())
    assert failure["traceback"].count("Advice") >= 50


def test_rows_that_are_their_own_lines_need_no_legend(finished):
    file, out = finished
    sweep = read_sweep(file)
    section = describe_sweep(SweepOutcome(sweep, out), compare_sweep(sweep, out))
    (figure,) = (block for block in section.blocks if isinstance(block, Figure))
    dots = [dot for view in figure.views.values() for panel in view for dot in panel.dots]
    assert {(dot.group, dot.colour) for dot in dots} == {("", "p1")}
    assert {dot.label for dot in dots} == {"masked", "causal"}


def test_minutes_end_a_call_and_the_next_goes_on(tmp_path):
    file, out = write_sweep(tmp_path, grids=[{"seed": [0]}], figures=[]), tmp_path / "out"
    stopped = run_sweep(file, out, minutes=1e-9, device="cpu")
    assert stopped.ended == "minutes" and not stopped.done
    ended = run_sweep(file, out, device="cpu")
    assert ended.ended == "done" and ended.done == ["seed-0"]
    with pytest.raises(UserError, match="expected a finite number above 0"):
        run_sweep(file, out, minutes=0.0)
    with pytest.raises(UserError, match="0 processes were given: expected 1 or more"):
        run_sweep(file, out, processes=0)


def test_a_cell_at_which_another_process_is_at_work_is_left_to_it(tmp_path):
    file, out = write_sweep(tmp_path, grids=[{"seed": [0, 1]}], figures=[]), tmp_path / "out"
    with claim(out / CELLS / "seed-0" / CLAIM) as is_own:
        assert is_own
        outcome = run_sweep(file, out, device="cpu")
    assert outcome.elsewhere == ["seed-0"] and outcome.done == ["seed-1"]


def test_processes_of_a_sweep_share_the_threads_of_the_machine(tmp_path, monkeypatch):
    file, out = write_sweep(tmp_path, grids=[{"seed": [0]}], figures=[]), tmp_path / "out"
    seen, before = [], torch.get_num_threads()

    @contextmanager
    def start_nobody(processes, arguments, settings):
        yield []

    def note_threads(worker, begun):
        seen.append(torch.get_num_threads())
        return SweepOutcome(worker.sweep, worker.folder)

    monkeypatch.setattr("unmask.sweep.run._start_others", start_nobody)
    monkeypatch.setattr(_CellWorker, "work_through", note_threads)
    torch.set_num_threads(6)
    try:
        run_sweep(file, out, device="cpu", processes=3)
        run_sweep(file, out, device="cpu")
        assert torch.get_num_threads() == 6
    finally:
        torch.set_num_threads(before)
    assert seen == [2, 6, 6]  # the second call of the first looks at what the others left


@pytest.mark.prove
def test_other_processes_do_what_this_one_does_not(tmp_path, monkeypatch):
    file, out = write_sweep(tmp_path, grids=[{"seed": [0, 1]}], figures=[]), tmp_path / "out"
    work_through, calls = _CellWorker.work_through, []

    def idle_first(worker, begun):
        calls.append(begun)
        if len(calls) == 1:
            return SweepOutcome(worker.sweep, worker.folder)
        return work_through(worker, begun)

    monkeypatch.setattr(_CellWorker, "work_through", idle_first)
    monkeypatch.setattr(_CellWorker, "work", lambda worker, cell, place: pytest.fail(cell.name))
    outcome = run_sweep(file, out, device="cpu", processes=2)
    assert outcome.done == ["seed-0", "seed-1"] and len(calls) == 2
    assert not outcome.elsewhere and not outcome.failed


def _count_own(path: str, start, total) -> None:
    start.wait()
    with claim(path) as is_own:
        with total.get_lock():
            total.value += is_own
        start.wait()  # nobody lets go before all have tried


def test_of_several_processes_one_claims_a_cell(tmp_path):
    context = multiprocessing.get_context("fork")
    start, total = context.Barrier(4), context.Value("i", 0)
    workers = [
        context.Process(target=_count_own, args=(str(tmp_path / CLAIM), start, total))
        for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(20)
    assert total.value == 1 and not (tmp_path / CLAIM).exists()


def test_claims_of_processes_that_are_gone_are_taken_over(tmp_path, monkeypatch):
    path = tmp_path / CLAIM
    with claim(path):
        holder = json.loads(path.read_text())
    gone = holder | {"pid": 2**22 + 1}
    path.write_text(json.dumps(gone))
    with claim(path) as is_own:
        assert is_own
    # On another host a process cannot be looked at: its claim counts while it is touched.
    path.write_text(json.dumps(holder | {"host": "elsewhere"}))
    with claim(path) as is_own:
        assert not is_own
    old = path.stat().st_mtime - locks.STALE_SECONDS - 1
    os.utime(path, (old, old))
    with claim(path) as is_own:
        assert is_own


def test_a_claim_is_touched_while_it_is_held(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "BEAT_SECONDS", 0.01)
    path = tmp_path / CLAIM
    with claim(path):
        os.utime(path, (1, 1))
        for _ in range(500):
            if path.stat().st_mtime > 1:
                break
            os.sched_yield()
            locks.time.sleep(0.01)
        assert path.stat().st_mtime > 1


def test_a_copy_that_cools_down_is_the_run_under_that_schedule(tmp_path):
    """The law of cool-down copies: the same weights as a run that was planned that way."""
    changes = CHANGES | {"schedule": {"name": "constant", "warmup": 1}}
    text = str(tmp_path / "text.jsonl")
    file = write_sweep(
        tmp_path,
        changes=changes,
        grids=[{"seed": [0]}],
        cooldowns={"steps": [4, 8], "share": 0.5},
        measures={
            "bound": BOUND | {"data": text},
            "last": BOUND | {"data": text, "last_only": True},
        },
        figures=[{"value": "bound", "x": "step", "line": "seed"}],
    )
    out = tmp_path / "out"
    outcome = run_sweep(file, out, device="cpu")
    assert outcome.done == ["seed-0"], outcome.failed
    cell = outcome.sweep.cells[0]
    schedule = ScheduleSettings(name="wsd", warmup=1, decay=0.5)
    for steps in (4, 8):
        recipe = replace(cell.recipe, budget=BudgetSettings(steps=steps), schedule=schedule)
        unmask.train(recipe, tmp_path / f"plain-{steps}", device="cpu", sources=SOURCES)
        ours = load_file(out / CELLS / "seed-0" / f"step-{steps}" / "train/model/model.safetensors")
        theirs = load_file(tmp_path / f"plain-{steps}" / "model/model.safetensors")
        assert all((ours[name] == theirs[name]).all() for name in theirs)
    rows = compare_sweep(outcome.sweep, out)["bound"]
    assert [row.columns["step"] for row in rows] == [4, 8]
    assert not (out / CELLS / "seed-0" / "step-4" / "last").exists()
    assert (out / CELLS / "seed-0" / "step-8" / "last" / "perplexity.parquet").is_file()
    assert (out / CELLS / "seed-0" / TRUNK).is_dir()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"gird": []}, "unknown key 'gird'"),
        ({"grids": []}, "'grids' is empty"),
        ({"grids": [{"seed": []}]}, "axis 'seed' has no values"),
        ({"grids": [{}]}, "it has no axes"),
        ({"grids": [{"seed": 3}]}, "expected a list of values"),
        ({"grids": [{"batch.rows": ["many"]}]}, "'batch.rows' is 'many'"),
        ({"grids": [{"no.such": [1]}]}, "no"),
        ({"grids": [{"seed": [0]}, {"seed": [0]}]}, "are alike"),
        ({"measures": {}}, "'measures' is empty"),
        ({"measures": {"x": {"verb": "recal", "value": "hit"}}}, "there is no measure 'recal'"),
        ({"measures": {"x": {"verb": "perplexity", "value": "nll"}}}, "needs"),
        ({"best": "other"}, "'best' is 'other'"),
        ({"figures": [{"value": "bound", "x": "colour", "line": "family"}]}, "'colour'"),
        ({"cooldowns": {"steps": [4]}}, "constant rate"),
        ({"recipe": "no-such-recipe"}, "no-such-recipe"),
    ],
)
def test_bad_files_are_one_sentence(changes, sentence, tmp_path):
    file = write_sweep(tmp_path, **changes)
    with pytest.raises(UserError) as caught:
        read_sweep(file)
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


def test_a_figure_may_have_a_line_for_each_place_on_its_x_axis(tmp_path):
    grids = [{"batch.rows": [2, 4]}]
    figures = [{"value": "bound", "x": "batch.rows", "line": "batch.rows"}]
    sweep = read_sweep(write_sweep(tmp_path, grids=grids, figures=figures))
    facts = {"seeds": 1, "tokens": 8, "flops": 1.0, "likelihood": "exact"}
    clusters = Clusters(np.ones((1, 3)), np.ones((1, 3)))
    rows = [
        ComparedRow({"batch.rows": name, **facts}, range(3), clusters, estimate_mean(clusters))
        for name in ("2", "4")
    ]
    section = describe_sweep(SweepOutcome(sweep, tmp_path / "out"), {"bound": rows})
    figure = next(each for each in section.blocks if isinstance(each, Figure))
    ((panel,),) = figure.views.values()
    assert [(line.name, line.x) for line in panel.lines] == [("2", [2.0]), ("4", [4.0])]


def compare_rows(**values: dict[str, list[float | None]]) -> dict[str, ComparedRow]:
    """Rows of one measured value: for each seed of each model the values of documents 0, 1, …"""
    entry, compared = MeasureEntry(verb="quality", value="per_token", cluster="fact"), {}
    for model, seeds in values.items():
        rows = [
            {"seed": seed, "fact": str(number), "per_token": value}
            for seed, own in seeds.items()
            for number, value in enumerate(own)
        ]
        units, clusters = _cluster(rows, entry)
        compared[model] = ComparedRow({}, units, clusters, estimate_mean(clusters))
    return compared


def test_texts_without_a_value_do_not_count():
    """A text that is empty costs nothing per token: neither a crash nor a 0."""
    row = compare_rows(ours={"0": [1.0, None, 3.0], "1": [1.0, 9.0, 3.0]})["ours"]
    assert row.units == ["0", "2"] and row.value.mean == 2.0
    assert _cluster([{"seed": "0", "per_token": None}], MeasureEntry(verb="x", value="per_token"))[
        1
    ].sums.shape == (1, 0)


def test_differences_are_paired_by_what_clusters_are_not_by_their_place():
    entry = MeasureEntry(verb="quality", value="per_token")
    rows = compare_rows(best={"0": [None, 2.0, 3.0, 5.0]}, other={"0": [1.0, 3.0, 4.0, None]})
    difference = subtract_best(rows["other"], rows["best"], entry)
    assert vars(difference) == pytest.approx({"mean": 1.0, "low": 1.0, "high": 1.0})
    apart = compare_rows(best={"0": [1.0, None]}, other={"0": [None, 1.0]})
    assert subtract_best(apart["other"], apart["best"], entry) is None


def test_words_change_entries_and_settings(finished):
    file, _ = finished
    sweep = read_sweep(file, ["title=Other", "batch.rows=8", "measures.bound.settings.repeats=3"])
    assert sweep.file.title == "Other" and sweep.measures["bound"].settings == {"repeats": 3}
    assert {cell.recipe.batch.rows for cell in sweep.cells} == {8}


@pytest.mark.parametrize("path", sorted(Path("paper/sweeps").glob("*.yaml")), ids=lambda p: p.stem)
def test_sweeps_of_the_paper_can_be_read(path, tmp_path):
    """Every cell has a recipe, every measure its settings; only data and judge are to be given."""
    entries = yaml.safe_load(path.read_text())["measures"]
    words = [f"measures.{name}.data=x" for name, each in entries.items() if "of" not in each]
    sweep = read_sweep(path, words)
    assert len(sweep.cells) >= 4 and sweep.best in sweep.measures


def test_another_sweep_is_refused(finished):
    file, out = finished
    with pytest.raises(UserError, match="holds another run"):
        run_sweep(file, out, "batch.rows=8", device="cpu")
