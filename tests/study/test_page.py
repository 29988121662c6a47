"""The page: what it shows is what the tables hold, whatever is missing or broken."""

import itertools
import json
import re
import shutil
from html import unescape

import pytest
from typer.testing import CliRunner
from unmask.report.artefacts import CONSIDERED, PAGE, SUMMARY, UNMASKING, StudyFolder
from unmask.report.blocks import format_interval, shorten
from unmask.report.recall_section import name_asked
from unmask.report.story import tell_story
from unmask.report.tracing_names import SPLITS

import unmask
from unmask.base.files import read_json_object, write_json
from unmask.cli.main import app
from unmask.report.page import RESULTS, write_page
from unmask.study.settings import SIZES

MOST_STEPS = SIZES["quick"].steps[-1]


def read_figures(text: str) -> dict:
    (found,) = re.findall(
        r'<script type="application/json" id="figures">(.*?)</script>', text, re.DOTALL
    )
    return json.loads(found)


@pytest.fixture(scope="module")
def page(finished) -> str:
    return (finished.path / PAGE).read_text("utf-8")


@pytest.fixture
def copy(finished, tmp_path) -> StudyFolder:
    shutil.copytree(finished.path, tmp_path / "run")
    return StudyFolder(tmp_path / "run")


def redraw(run: StudyFolder) -> str:
    write_page([run], run.path / "again.html")
    return (run.path / "again.html").read_text("utf-8")


def test_nothing_is_fetched(page):
    own = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"""(?:src|href|action)\s*=\s*["']?(?:https?:)?//""", own)
    assert "@import" not in own and "url(" not in own
    assert len(page.encode()) < 8_000_000


def test_full_tables_are_linked(finished, page):
    footer = page.split("<footer>")[1].split("</footer>")[0]
    links = re.findall(r'<a href="([^"]+)">', footer)
    assert {link.rpartition("/")[2] for link in links} == {f"{name}.md" for name in RESULTS}
    assert all((finished.path / link).is_file() for link in links)


def test_headings_are_nested_and_names_unique(page):
    levels = [int(level) for level in re.findall(r"<h([1-6])", page.split("<script")[0])]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    names = re.findall(r' id="([^"]+)"', page.split("<script")[0])
    assert len(names) == len(set(names))
    links = re.findall(r'<a href="#([^"]+)"', page.split("<script")[0])
    assert set(links) <= {*names}


def test_every_figure_has_words_and_a_download(page):
    drawn = re.findall(r"<figure.*?</figure>", page, re.DOTALL)
    assert len(drawn) == len(read_figures(page)) >= 6
    for figure in drawn:
        (alt,) = re.findall(r'aria-label="([^"]+)"', figure)
        assert len(alt) > 60 and "download=" in figure and "<figcaption>" in figure


def test_recall_is_the_summary(finished, page):
    panels = read_figures(page)["recall"]["panels"]
    assert len(panels) == 4
    cell = finished.summary.find("diffusion", "p2d_reverse", MOST_STEPS)
    (line,) = [
        line
        for panel in panels
        if panel["title"] == "description given, in reverse"
        for line in panel["lines"]
        if line["name"] == "diffusion"
    ]
    at = line["x"].index(MOST_STEPS)
    shown = [line[name][at] for name in ("y", "low", "high")]
    wanted = [100 * getattr(cell.value, name) for name in ("mean", "low", "high")]
    assert shown == pytest.approx(wanted, rel=1e-4)
    assert "published" in page and "31.0" in page  # the study's own table beside ours


def test_heatmaps_are_the_tables(finished, page):
    figure = read_figures(page)["texts"]
    cells = {
        (
            cell["fact"],
            cell["direction"],
            cell["part"],
            cell["step"],
            cell["token"],
            cell["layer"],
        ): (cell["effect"])
        for cell in finished.rows("tracing/maps.parquet")
    }
    texts = list(dict.fromkeys(key[:2] for key in cells))
    steps = sorted({key[3] for key in cells})
    compared = 0
    for name, view in figure["views"].items():
        text, _, step = (int(part) for part in name.split("|"))
        for label, row in zip(view["y"], view["z"], strict=True):
            place = int(label.split()[0])
            for layer, value in enumerate(row):
                wanted = cells[*texts[text], "resid", steps[step], place, layer]
                assert value == pytest.approx(wanted, rel=1e-4)
                compared += 1
    assert compared >= 100


def test_recalled_facts_are_traced_first(finished, page):
    for row in finished.rows(CONSIDERED):
        told = f"{row['recalled']} of {row['considered']}, {name_asked(row['split'])}"
        assert told in unescape(page)
        kept = [
            fact
            for fact in finished.rows("tracing/facts.parquet")
            if SPLITS[fact["direction"], fact["trained"]] == row["split"]
            and (fact["kind"], fact["corruption"], fact["kept"]) == ("masked", "mask", True)
        ]
        assert len(kept) == min(row["recalled"], SIZES["quick"].traced)


def test_averages_carry_their_intervals(finished, page):
    figure = read_figures(page)["effects"]
    rows = [row for row in finished.rows("tracing/averages.parquet") if row["control"] == "none"]
    groups = figure["controls"][0]["options"]
    at = groups.index("diffusion: description given, in reverse")
    view = figure["views"][f"{at}|0|0"]
    for row in rows:
        key = tuple(row[name] for name in ("kind", "direction", "trained", "stage", "corruption"))
        if key == ("masked", "d2p", "reverse", "first", "mask") and row["part"] == "resid":
            i = view["y"].index(row["role"])
            shown = [view[name][i][row["layer"]] for name in ("z", "low", "high")]
            # One fact has no interval: not a number in the table, nothing on the page.
            shown = [float("nan") if each is None else each for each in shown]
            wanted = [row["mean"], row["low"], row["high"]]
            assert shown == pytest.approx(wanted, rel=1e-4, nan_ok=True)


def test_unmasking_is_the_trajectory(finished, page):
    (example,) = [
        each
        for each in read_figures(page)["unmasking"]["examples"]
        if "reverse: Dan" in each["label"]
    ]
    rows = [row for row in finished.rows(UNMASKING) if row["completion"] == " Dan"]
    assert example["at"] == [row["step"] for row in rows] and example["hit"]
    given = "".join(p for p, at in zip(example["pieces"], example["at"], strict=True) if not at)
    assert given == rows[0]["prompt"]
    text = "".join(p for p, at in zip(example["pieces"], example["at"], strict=True) if at)
    assert text.startswith(" Dan")


def test_story_follows_the_intervals(finished):
    told = " ".join(tell_story(finished))
    assert (
        f"recalls 100 % [29, 100] of the answers (3 prompts of 3 facts, {MOST_STEPS} steps)" in told
    )
    # Three facts that all hit and three that all miss are not many.
    assert "points that could be chance" in told
    assert "too few to tell it from its placebos" in told and "that hiding the subject took" in told
    assert "the intervals overlap" in told or "More denoising steps help" in told
    assert "nothing to trace" in told


def test_redrawn_page_is_the_same(copy, page):
    assert redraw(copy) == page


@pytest.mark.parametrize(
    ("broken", "sentence", "still"),
    [
        ("recall/summary.json", "summary.json is not there", "How answers un-mask"),
        ("denoising/order.parquet", "order.parquet is not there", 'id="unmasking"'),
        ("denoising/unmasking.parquet", "unmasking.parquet is not there", 'id="order"'),
        ("tracing/facts.parquet", "facts.parquet is not there", 'id="effects"'),
        ("tracing/along/averages.parquet", "averages.parquet is not there", 'id="texts"'),
        ("tracing/averages.parquet", "averages.parquet is not there", 'id="unmasking"'),
        ("tracing/maps.parquet", "maps.parquet is not there", 'id="effects"'),
        ("data/questions.parquet", "questions.parquet is not there", 'id="effects"'),
    ],
)
def test_missing_artefacts_are_sentences(copy, broken, sentence, still):
    (copy.path / broken).unlink()
    text = redraw(copy)
    assert sentence in text and still in text


def test_broken_tables_and_other_versions_are_sentences(copy):
    table = copy.path / "denoising/unmasking.parquet"
    table.write_bytes(table.read_bytes()[:200])
    summary = read_json_object(copy.path / SUMMARY)
    write_json(copy.path / SUMMARY, {"cells": [{"old": 1}], "pairs": [], "bleu": summary["bleu"]})
    text = redraw(copy)
    assert "unmasking.parquet cannot be read" in text and "is of another version" in text
    assert 'id="effects"' in text


def test_a_page_elsewhere_leaves_the_run_alone(copy, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in copy.path.rglob("*")}
    CliRunner().invoke(
        app,
        ["report", str(copy.path), "--out", str(tmp_path / "page.html")],
        catch_exceptions=False,
    )
    assert (tmp_path / "page.html").is_file()
    assert {path: path.stat().st_mtime_ns for path in copy.path.rglob("*")} == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": 99}, "was written in run format 99"),
        ({"verb": "trace"}, "holds a run of `unmask trace`"),
    ],
)
def test_other_run_folders_are_refused(copy, change, said):
    record = read_json_object(copy.path / "run.json")
    write_json(copy.path / "run.json", record | change)
    found = CliRunner().invoke(app, ["report", str(copy.path)])
    assert isinstance(found.exception, unmask.UserError) and said in str(found.exception)


def test_report_redraws_and_compares(finished, copy, tmp_path, monkeypatch):
    def refuse(*words, **more):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("unmask.net.loading.load", refuse)
    out = tmp_path / "two.html"
    words = ["report", str(finished.path), str(copy.path), "--out", str(out)]
    shown = CliRunner().invoke(app, words, catch_exceptions=False)
    assert "two.html" in shown.stdout
    text = out.read_text()
    figures = read_figures(text)
    assert {"comparison", "r0-recall", "r1-recall", "r1-texts"} <= figures.keys()
    names = {line["name"] for line in figures["comparison"]["panels"][0]["lines"]}
    assert len([name for name in names if name.endswith("diffusion")]) == 2
    assert "0 [−71, 71]" in text  # the same run twice: no difference, as far as 3 facts say
    with pytest.raises(unmask.UserError, match="3 runs were given"):
        app(["report", "a", "b", "c"], standalone_mode=False)


def test_splits_and_ways_are_one_to_one():
    """A fact asked in reverse was trained in the other direction."""
    for (direction, trained), split in SPLITS.items():
        group, way = split.split("_")
        assert way == trained and (group == direction) == (trained == "same")


def test_numbers_are_shortened_and_signed():
    nan = float("nan")
    assert shorten({"a": [1.23456789, nan, 3], "b": -0.0}) == {"a": [1.2346, None, 3], "b": 0.0}
    assert format_interval(-0.001, -0.2, 0.1, digits=1) == "0.0 [−0.2, 0.1]"
    assert format_interval(0.5, nan, nan) == "0.500"
