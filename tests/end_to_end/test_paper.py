"""`make paper`: folders are trusted by what made them, pieces go on, pages belong to stages."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy
import pyarrow
import pyarrow.parquet
import pytest
import yaml

from tests.scripts import load_script
from unmask.base.errors import UserError
from unmask.base.identity import digest_file
from unmask.base.reading import read_json
from unmask.base.tables import LazyTable, Parts, read_table, write_table

ROOT = Path(__file__).parents[2]
paper = load_script("paper/run.py")
CODE = paper._CODE

COPY = """import sys, pathlib, time
source, out, *page = map(pathlib.Path, sys.argv[1:])
out.mkdir(parents=True, exist_ok=True)
with (out / "log").open("a") as log:
    log.write("ran\\n")
(out / "text").write_text(source.read_text() + ".")
(out / "checkpoints").mkdir(exist_ok=True)
for each in page:
    each.parent.mkdir(parents=True, exist_ok=True)
    each.write_text(f"# Title\\n\\n{source.read_text()}\\n")
"""


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two stages: the first copies a data set, the second copies the first's folder and a page."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(paper, "_CODE", ("__init__.py",))  # reading the whole package takes long
    # Nor do copies fill the memory, which is long to look through; processes of a stage do so.
    monkeypatch.setattr(paper, "_free_memory", lambda: None)
    (tmp_path / "copy.py").write_text(COPY)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "words.txt").write_text("words")
    (tmp_path / "paper").mkdir()
    digest = digest_file(tmp_path / "data" / "words.txt")
    words = {"source": "somewhere", "path": "words.txt", "files": {".": digest}}
    one = {"name": "one-{each}", "each": [1, 2], "run": ["python copy.py {words} {out}"]}
    two = {"name": "two", "run": ["python copy.py {one-2}/text {out} {page}"]}
    two |= {"page": "docs/two.md", "note": "Slowly."}
    content = {"data": {"words": words}, "stages": [one, two]}
    (tmp_path / "stages.yaml").write_text(yaml.safe_dump(content))
    return tmp_path


def run_all(plan: Path, minutes: float | None = None) -> bool:
    data, stages = paper.read_stages(plan / "stages.yaml")
    runner = paper.Runner(data, stages, plan / "data", minutes)
    return all(runner.run(stage) for stage in stages.values())


def count_runs(plan: Path, name: str) -> int:
    return len((plan / "runs" / "paper" / name / "log").read_text().splitlines())


def test_stages_run_once_and_their_pages_are_known(plan: Path) -> None:
    assert run_all(plan)
    assert run_all(plan)
    assert [count_runs(plan, name) for name in ("one-1", "one-2", "two")] == [1, 1, 1]
    assert not (plan / "runs/paper/two/checkpoints").exists()
    page = (plan / "docs/two.md").read_text()
    assert page == "# Title\n\n> **How to read it.** Slowly.\n\nwords.\n"
    known = read_json(plan / "paper/pages.json")["docs/two.md"]
    assert known["files"] == {"two.md": digest_file(plan / "docs/two.md")}


@pytest.mark.parametrize("change", ["script", "output", "command", "data"])
def test_what_changed_is_made_anew(plan: Path, change: str) -> None:
    assert run_all(plan)
    stages = plan / "stages.yaml"
    if change == "script":
        (plan / "copy.py").write_text(COPY + "\n# another\n")
    elif change == "output":
        (plan / "runs/paper/one-2/text").write_text("edited by hand")
    elif change == "command":
        stages.write_text(stages.read_text().replace("{words} {out}", "{words}  {out}"))
    else:
        before = digest_file(plan / "data/words.txt")
        (plan / "data/words.txt").write_text("other words")
        after = digest_file(plan / "data/words.txt")
        stages.write_text(stages.read_text().replace(before, after))
    assert run_all(plan)
    assert count_runs(plan, "one-2") == 1  # the folder was removed, and made again
    expected = "other words." if change == "data" else "words."
    assert (plan / "runs/paper/one-2/text").read_text() == expected
    assert (plan / "runs/paper/two/text").read_text() == expected + "."


def test_kept_tables_need_none_of_what_they_were_made_from(plan: Path) -> None:
    stages = plan / "stages.yaml"
    stages.write_text(stages.read_text().replace("  name: one-", "  keep: true\n  name: one-"))
    script = COPY + "(out / 'parts').mkdir(exist_ok=True)\n(out / 'parts' / 'a').touch()\n"
    (plan / "copy.py").write_text(script)
    assert run_all(plan)
    kept = plan / "docs/results/tables"
    assert sorted(path.name for path in (kept / "one-2").iterdir()) == ["log", "text"]
    (plan / "data/words.txt").unlink()
    (plan / "docs/two.md").write_text("edited")
    shutil.rmtree(plan / "runs")
    assert run_all(plan)
    assert len((kept / "one-2/log").read_text().splitlines()) == 1
    assert "words." in (plan / "docs/two.md").read_text()


def test_other_code_makes_all_anew_but_tables_that_are_kept(plan: Path) -> None:
    stages = plan / "stages.yaml"
    stages.write_text(stages.read_text().replace("  name: one-", "  keep: true\n  name: one-"))
    assert run_all(plan)
    kept = plan / "docs/results/tables/one-2"
    before = read_json(kept.with_suffix(".json"))["code"]
    data, read = paper.read_stages(stages)
    runner = paper.Runner(data, read, plan / "data")
    runner.code = "other code"
    assert all(runner.run(stage) for stage in read.values())
    assert len((kept / "log").read_text().splitlines()) == 1
    assert read_json(kept.with_suffix(".json"))["code"] == before
    assert read_json(plan / "runs/paper/two.json")["code"] == "other code"
    assert read_json(plan / "paper/pages.json")["docs/two.md"]["code"] == "other code"


def test_a_script_may_keep_its_parts(plan: Path) -> None:
    assert run_all(plan)
    stages = plan / "stages.yaml"
    changed = stages.read_text().replace("name: two", "name: two\n  has_parts: true")
    stages.write_text(changed.replace("Slowly", "Slower"))
    assert run_all(plan)
    assert count_runs(plan, "two") == 2


def test_a_piece_ends_in_time_and_the_next_goes_on(plan: Path) -> None:
    (plan / "copy.py").write_text(COPY + "\nif out.name == 'two': time.sleep(30)\n")
    assert not run_all(plan, minutes=0.05)
    record = read_json(plan / "runs/paper/two.json")
    assert record["done"] == 0 and 0 < record["seconds"] < 20
    assert count_runs(plan, "one-2") == 1
    assert not run_all(plan, minutes=0)
    assert count_runs(plan, "two") == 1


def test_a_command_that_stops_by_itself_is_told_its_minutes_and_not_cut(
    plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paper, "STOPPING", (["python", "stop.py"],))
    script = "import pathlib, sys, time\nif '--minutes' in sys.argv: time.sleep(2)\n"
    script += "pathlib.Path(sys.argv[2]).write_text(' '.join(sys.argv))\n"
    (plan / "stop.py").write_text(script)
    (plan / "docs").mkdir()
    stages = plan / "stages.yaml"
    stages.write_text(stages.read_text().replace("copy.py {one-2}/text", "stop.py"))
    assert not run_all(plan, minutes=0.02)
    words = (plan / "docs/two.md").read_text().split()
    assert words[-2] == "--minutes" and 0 < float(words[-1]) <= 0.02
    assert run_all(plan) and "--minutes" not in (plan / "docs/two.md").read_text()


MEETING = """
if source.name == "words.txt":
    (out / "here").touch()
    other = out.with_name({"one-1": "one-2", "one-2": "one-1"}[out.name])
    for _ in range(600):
        if (other / "here").exists(): break
        time.sleep(0.05)
    else: raise SystemExit("the other one never came")
"""
"""Two stages that wait for each other."""


class Ended(NamedTuple):
    """What a run of the script left behind."""

    status: int
    out: str
    err: str


@pytest.fixture
def run_together(plan: Path, monkeypatch: pytest.MonkeyPatch, capfd) -> Callable[[], Ended]:
    """`paper/run.py --on local:2` here, where torch is loaded; its stages are processes."""
    monkeypatch.setattr(paper, "_CODE", CODE)  # theirs
    monkeypatch.syspath_prepend(ROOT / "paper")  # as where the script is run
    words = ["--stages", "stages.yaml", "--data", "data", "--on", "local:2"]
    monkeypatch.setattr(sys, "argv", ["paper/run.py", *words, "--stage", "one-1", "two"])
    return lambda: Ended(paper.main(), *capfd.readouterr())


def test_stages_run_side_by_side(plan: Path, run_together) -> None:
    (plan / "copy.py").write_text(COPY + MEETING)
    done = run_together()
    assert done.status == 0 and done.out.endswith("done: one-1, two\n"), done.err
    assert [count_runs(plan, name) for name in ("one-1", "one-2", "two")] == [1, 1, 1]
    known = read_json(plan / "paper/pages.json")["docs/two.md"]
    assert known["files"] == {"two.md": digest_file(plan / "docs/two.md")}
    assert "one-2" not in run_together().out  # nothing is left to do


def test_a_stage_that_fails_stops_only_what_needs_it(plan: Path, run_together) -> None:
    (plan / "copy.py").write_text(COPY + "if out.name == 'one-1': raise SystemExit('no luck')\n")
    failed = run_together()
    assert failed.status == 2 and "failed: one-1; the others went on." in failed.err
    assert "no luck" in failed.out and count_runs(plan, "two") == 1
    (plan / "copy.py").write_text(COPY + "if out.name == 'one-2': raise SystemExit(1)\n")
    failed = run_together()
    assert "failed: one-2;" in failed.err and "two: " not in failed.out


def test_the_longest_chain_goes_first() -> None:
    stages = [
        paper.Stage("page", ("python a.py {out}",)),
        paper.Stage("start", ("python a.py {out}",), minutes=2.0),
        paper.Stage("train", ("python a.py {start} {out}",), minutes=5.0),
    ]
    known = {stage.name: stage for stage in stages}
    rank_stages = sys.modules[paper.run_together.__module__].rank_stages
    minutes, needs = rank_stages(known, stages, lambda stage: stage.name == "page")
    assert list(minutes.items()) == [("start", 7.0), ("train", 5.0)]
    assert needs == {"start": [], "train": ["start"]}


def test_the_list_of_stages_may_be_read_in_part() -> None:
    command = f"{sys.executable} paper/run.py --list | head -n 1"
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.count("\n") == 1 and not done.stderr


def test_mistakes_are_sentences(plan: Path) -> None:
    (plan / "data/words.txt").write_text("wrong")
    with pytest.raises(UserError, match="has the SHA-256 .* comes from somewhere"):
        run_all(plan)
    (plan / "data/words.txt").unlink()
    with pytest.raises(UserError, match="is missing: words comes from somewhere"):
        run_all(plan)
    (plan / "copy.py").write_text("raise SystemExit(3)")
    (plan / "data/words.txt").write_text("words")
    with pytest.raises(UserError, match="ended with 3"):
        run_all(plan)
    stages = plan / "stages.yaml"
    stages.write_text(stages.read_text().replace("{one-2}", "{one-3}"))
    with pytest.raises(UserError, match="needs 'one-3'"):
        paper.read_stages(stages)
    stages.write_text(stages.read_text().replace("{one-3}", "{one-2}").replace("two", "words"))
    with pytest.raises(UserError, match="'words' is there twice"):
        paper.read_stages(stages)
    stages.write_text(stages.read_text().replace("page:", "pages:"))
    with pytest.raises(UserError, match="unknown key 'pages'"):
        paper.read_stages(stages)


def test_pages_are_what_their_stages_wrote() -> None:
    """A page that was edited by hand, or whose stage is gone, fails here."""
    _, stages = paper.read_stages()
    pages = {stage.page for stage in stages.values() if stage.page}
    assert len(pages) == sum(stage.page is not None for stage in stages.values())
    known = read_json(ROOT / paper.PAGES) if (ROOT / paper.PAGES).is_file() else {}
    for page, entry in known.items():
        assert page in pages
        assert paper.digest_page(ROOT / page) == entry["files"], f"{page} was edited by hand"


def test_a_stage_is_made_from_its_sweep_file() -> None:
    stage = paper.Stage("families", ("unmask sweep paper/sweeps/families.yaml --out {out}",))
    assert stage.scripts == [Path("paper/sweeps/families.yaml")]


def test_kept_tables_are_shrunk_and_read_as_wide_numbers(tmp_path) -> None:
    """Seven digits stay, and all else: few values, groups of rows, the schema; summaries go."""
    parts = Parts(tmp_path / "parts", "own/1")
    drawn = numpy.random.default_rng(0).normal(size=(2, 500)).tolist()
    for key, numbers in zip("ab", drawn, strict=True):
        rows = [
            {"text": key, "number": x, "count": i, "rate": 0.1 * (i % 9)}
            for i, x in enumerate(numbers)
        ]
        parts.write(key, rows)
    path = tmp_path / "run" / "own.parquet"
    path.parent.mkdir()
    parts.gather(("a", "b"), path, "bfloat16")
    write_table(path.parent / "summary" / "means.parquet", [{"mean": 0.5}], "means/1")
    before, whole = pyarrow.parquet.ParquetFile(path), read_table(path, "own/1")
    groups, size = before.num_row_groups, path.stat().st_size
    paper.shrink_tables(tmp_path / "run")
    after, small = pyarrow.parquet.ParquetFile(path), read_table(path, "own/1")
    assert not (path.parent / "summary").exists() and path.stat().st_size < size
    assert after.schema_arrow.field("number").type == pyarrow.float32()
    assert after.num_row_groups == groups
    assert after.schema_arrow.metadata == before.schema_arrow.metadata
    assert small.schema == whole.schema and small.drop(["number"]) == whole.drop(["number"])
    wide, narrow = (numpy.array(each["number"]) for each in (whole, small))
    assert narrow == pytest.approx(wide, rel=1e-7) and (narrow != wide).any()
    assert LazyTable([path], "own/1").select().schema.field("number").type == pyarrow.float64()
