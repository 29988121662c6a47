"""The page: it shows what runs hold, whatever is missing, broken or beside each other."""

import itertools
import re
import shutil
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import unmask
from tests.measures.counting import MEASURE, CountingInputs, CountingSettings
from tests.report.reading import list_titles, read_figures, read_own
from unmask.base.files import write_json
from unmask.base.reading import read_json_object
from unmask.base.runs import read_record
from unmask.blocks.blocks import Figure
from unmask.cli import verbs
from unmask.cli.main import app
from unmask.measures import table
from unmask.measures.runner import run_measure
from unmask.report.document import read_document
from unmask.report.page import draw_report
from unmask.report.provenance import write_command
from unmask.report.render_html import name_block


def differ(results):
    """A measure may refuse to pool runs."""
    shifts = {result.settings.shift for result in results}
    if len(shifts) > 1:
        raise unmask.UserError("the runs count from different numbers.")
    return {"counting": results[0].tables["counting"], "more": results[0].tables["more"]}


REFUSING = replace(MEASURE, name="refusing", pool=differ)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(table.MEASURES._given, "counting", MEASURE)
    monkeypatch.setitem(table.MEASURES._given, "refusing", REFUSING)


def count(folder: Path, *models: str, measure=MEASURE, **changes) -> Path:
    """A run folder of a measure that needs no network."""
    run_measure(measure, CountingInputs(models), CountingSettings(**changes), folder)
    return folder


@pytest.fixture
def copy(finished, tmp_path) -> Path:
    shutil.copytree(finished.folder, tmp_path / "run")
    return tmp_path / "run"


def test_nothing_is_fetched_and_no_path_of_this_machine_is_linked(page):
    own = read_own(page)
    links = re.findall(r"""(?:src|href|action)\s*=\s*["']?([^"'\s>]+)""", own)
    assert links and all(link.startswith(("#", "data:,")) for link in links)
    assert "@import" not in own and "url(" not in own
    assert len(page.encode()) < 3_000_000


def test_headings_are_nested_and_names_unique(page):
    own = read_own(page)
    levels = [int(level) for level in re.findall(r"<h([1-6])", own)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    names = re.findall(r' id="([^"]+)"', own)
    assert len(names) == len(set(names))
    assert set(re.findall(r'<a[^>]* href="#([^"]+)"', own)) <= {*names}


def test_every_figure_has_words_an_anchor_and_files(page):
    drawn = re.findall(r"<figure.*?</figure>", page, re.DOTALL)
    assert len(drawn) == len(read_figures(page)) >= 8
    for figure in drawn:
        (name,) = re.findall(r'<figure id="([^"]+)"', figure)
        assert len(re.findall(r'role="img" aria-label="([^"]+)"', figure)[0]) > 40
        assert f'class="anchor" href="#{name}"' in figure and f'download="{name}.csv"' in figure
        assert ('data-format="svg"' in figure) == ("unmasking" not in name)


def test_figures_are_those_of_the_results(page, finished):
    drawn, compared = read_figures(page), 0
    for stage, result in finished.results().items():
        section = replace(result.section, name=stage)
        for figure in (block for block in section.walk() if isinstance(block, Figure)):
            packed = drawn[name_block(section, figure)]
            assert [control["options"] for control in packed["controls"]] == [
                list(control.options) for control in figure.controls
            ]
            for choice, panels in figure.views.items():
                shown = packed["views"]["|".join(map(str, choice))]
                for one, other in zip(shown, panels, strict=True):
                    compared += hold_equal(one, other)
    assert compared > 500


def hold_equal(shown: dict, panel) -> int:
    """Compare a panel of the page with its block; how many values that were."""
    if hasattr(panel, "lines"):
        pairs = [(a["y"], b.y) for a, b in zip(shown["lines"], panel.lines, strict=True)]
    elif hasattr(panel, "dots"):
        dots = zip(shown["dots"], panel.dots, strict=True)
        pairs = [(list(a["value"].values()), list(vars(b.value).values())) for a, b in dots]
    elif hasattr(panel, "z"):
        pairs = list(zip(shown["z"], panel.z, strict=True))
    else:
        pairs = [(shown["confidence"], panel.confidence)]
    for one, other in pairs:
        wanted = [None if x is None or x != x else pytest.approx(x, rel=1e-4) for x in other]
        assert one == wanted
    return sum(len(one) for one, _ in pairs)


def test_what_could_not_be_measured_is_a_sentence_from_its_code(page, finished):
    missing = finished.records()["symmetry"]["missing"]
    assert missing["code"] == "few pairs"
    own = unescape(read_own(page))
    assert "Do keys and values mirror each other?" in own
    assert f"{missing['values']['needed']} are needed" in own and "few pairs" not in own


def test_drawing_again_gives_the_same_page_without_a_model(copy, page, monkeypatch):
    def refuse(*words, **more):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("unmask.net.loading.load", refuse)
    assert draw_report([copy]).read_text("utf-8") == page


def test_a_page_elsewhere_leaves_the_run_alone(copy, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("*")}
    words = ["report", str(copy), "--out", str(tmp_path / "again.html")]
    shown = CliRunner().invoke(app, words, catch_exceptions=False)
    assert "again.html" in shown.stdout and (tmp_path / "again.html").is_file()
    assert {path: path.stat().st_mtime_ns for path in copy.rglob("*")} == before


def test_a_broken_stage_costs_its_own_section(copy, page):
    broken = copy / "order" / "order.parquet"
    broken.write_bytes(broken.read_bytes()[:100])
    record = read_json_object(copy / "factorization" / "run.json")
    write_json(copy / "factorization" / "run.json", record | {"format": 99})
    text = unescape(draw_report([copy]).read_text("utf-8"))
    assert "order.parquet cannot be read" in text and "in run format 99" in text
    assert list_titles(text) == list_titles(page)
    assert set(read_figures(page)) - set(read_figures(text)) == {
        name for name in read_figures(page) if name.startswith(("order", "factorization"))
    }


def test_a_study_that_was_cut_short_is_drawn_as_far_as_it_goes(copy):
    (copy / "stages.json").unlink()
    for stage in ("trace", "trace-steps", "trace-denoising", "represent"):
        shutil.rmtree(copy / stage)
    titles = list_titles(draw_report([copy]).read_text("utf-8"))
    assert titles[0] == "What is recalled" and titles[-1] == "Settings and versions"
    assert "What an answer needs to read" in titles and len(titles) == 5
    for stage in ("recall", "order", "factorization", "knockout"):
        shutil.rmtree(copy / stage)
    mine = copy.rename(copy.parent / "my study")
    with pytest.raises(unmask.UserError, match="a study without a finished stage") as caught:
        draw_report([mine])
    assert f"resume it with `unmask study --resume --out '{mine}'`" in str(caught.value)


def test_two_studies_stand_side_by_side(finished, copy, tmp_path):
    out = draw_report([finished.folder, copy], tmp_path / "two.html")
    text = unescape(out.read_text("utf-8"))
    titles = list_titles(text)
    assert len(titles) == len(set(titles)), "each stage is one section"
    lines = read_figures(text)["recall"]["views"][""][0]["lines"]
    assert len([line for line in lines if line["name"].endswith(": diffusion")]) == 2
    assert len(re.findall(r"\d are needed", read_own(text))) == 2, "both lack what symmetry needs"


def test_runs_of_one_measure_are_pooled(tmp_path):
    one, other = count(tmp_path / "one", "a", "b"), count(tmp_path / "other", "a", shift=1.0)
    text = draw_report([one, other], tmp_path / "page.html").read_text("utf-8")
    assert list_titles(text) == ["How far models count", "Settings and versions"]
    assert re.findall(r"<tr class=\"strong\"><td>([^<]+)</td><td class=number>", text) == [
        "one: a", "b", "other: a",
    ]  # fmt: skip
    assert "<h1>one and other, side by side</h1>" in text


def test_runs_beside_each_other_say_how_they_differ(tmp_path):
    one = count(tmp_path / "one", "a", "b", facts=5)
    other = count(tmp_path / "other", "a", facts=5, shift=1.0)
    text = draw_report([one, other], tmp_path / "p.html").read_text()
    (lead,) = re.findall(r'<p class="lead">(.*?)</p>', text)
    assert unescape(lead) == "Different: models (a, b; a), shift (0.0, 1.0)."
    again = count(tmp_path / "again", "a", "b", facts=5)
    assert read_document([one, again]).lead == "No setting differs."
    elsewhere = count(tmp_path / "elsewhere", "a", measure=REFUSING, facts=5, shift=1.0)
    lead = read_document([again, elsewhere]).lead  # settings of other measures are not compared
    assert lead == "Different: models (a, b; a)."


def test_runs_that_cannot_be_pooled_stand_below_each_other(tmp_path):
    one = count(tmp_path / "one", "a", measure=REFUSING)
    other = count(tmp_path / "other", "a", measure=REFUSING, shift=1.0)
    text = draw_report([one, other], tmp_path / "page.html").read_text("utf-8")
    assert list_titles(text)[:2] == ["How far models count: one", "How far models count: other"]
    assert text.count("are not pooled: the runs count from different numbers.") == 1


def test_measures_come_in_the_order_of_their_table(tmp_path, results):
    runs = [count(tmp_path / "own", "a"), results["nll"], results["recall"]]
    titles = list_titles(draw_report(runs, tmp_path / "page.html").read_text("utf-8"))
    assert titles == [
        "What is recalled", "What answers cost", "How far models count", "Settings and versions",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda folder: None, "there is no folder"),
        (lambda folder: folder.mkdir(), "has no run.json: expected the folder of a run"),
        (lambda folder: change(count(folder, "a"), format=99), "in run format 99"),
        (lambda folder: change(count(folder, "a"), verb="none"), "measure 'none' is unknown"),
    ],
)
def test_what_is_no_run_is_an_error_alone_and_a_sentence_beside_others(tmp_path, make, reason):
    make(tmp_path / "broken")
    with pytest.raises(unmask.UserError, match=reason):
        draw_report([tmp_path / "broken"])
    runs = [tmp_path / "broken", count(tmp_path / "whole", "a")]
    text = unescape(draw_report(runs, tmp_path / "page.html").read_text("utf-8"))
    (notice,) = re.findall(r'<p class="notice" role="note">(.*?)</p>', text)
    assert re.search(reason, re.sub("</?code>", "`", notice))
    assert list_titles(text) == ["How far models count", "Settings and versions"]


def change(folder: Path, **values) -> None:
    write_json(folder / "run.json", read_json_object(folder / "run.json") | values)


def test_mistakes_are_sentences(tmp_path):
    run = count(tmp_path / "run", "a")
    for runs, out, reason in (
        ([], None, "no run was given"),
        ([run], tmp_path / "page.pdf", "ends in .pdf: expected .html, .md or a folder"),
        ([run, run], tmp_path / "page.html", "a run was given twice"),
    ):
        with pytest.raises(unmask.UserError, match=reason):
            draw_report(runs, out)


def test_a_page_that_no_mail_takes_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("unmask.report.page.MOST_BYTES", 1000)
    with pytest.raises(unmask.UserError, match="more than 0: report fewer runs at once"):
        draw_report([count(tmp_path / "run", "a")])
    assert not (tmp_path / "run" / "page.html").exists()


def test_markdown_holds_its_pictures_and_long_tables(results, tmp_path, monkeypatch):
    """Everything that a page links lies beside it, and nothing else does."""

    def touch(canvas, path: Path, is_paper: bool) -> None:
        path.parent.mkdir(exist_ok=True)
        path.with_name(f"{path.name}.png").touch()

    monkeypatch.setattr("unmask.report.render_figures.save_figure", touch)
    chosen = list(results.values())
    text = draw_report(chosen, tmp_path / "page.md").read_text("utf-8")
    links = re.findall(r"\]\((page/[^)]+)\)", text)
    beside = {path.name for path in (tmp_path / "page").iterdir()}
    assert {f"page/{name}" for name in beside} == set(links)
    assert {Path(name).suffix for name in beside} == {".csv", ".png"}
    for section in read_document(chosen).sections:
        assert f"## {section.title}\n" in text
    figures = draw_report(chosen[:2], tmp_path / "figures")
    drawn = {path.name for path in figures.iterdir()}
    names = tuple(f"{section.name}-" for section in read_document(chosen[:2]).sections)
    own = {name for name in beside if name.endswith(".png") and name.startswith(names)}
    assert own and drawn >= own


settings_of_a_run = st.fixed_dictionaries(
    {},
    optional={
        "facts": st.integers(1, 99),
        "shift": st.floats(-1e6, 1e6),
        "words": st.lists(st.text("ab-_ '$", min_size=1).map(str.strip).filter(bool)).map(tuple),
        "sizes": st.lists(st.integers(1, 9), min_size=1).map(tuple),
        "dtype": st.sampled_from(["auto", "float32"]),
    },
)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(changes=settings_of_a_run)
def test_the_command_on_the_page_repeats_the_run(changes, tmp_path_factory):
    """What the command line reads in it are the settings and the models of the run."""
    import shlex

    import typer

    folder = count(tmp_path_factory.mktemp("run"), "a", "b", **changes)
    words = shlex.split(write_command(read_record(folder)))
    assert words[:2] == ["unmask", "counting"]
    repeated = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verbs, "run_verb", lambda *given, **_: repeated.append(given[1:3]))
        command = typer.Typer()
        command.command()(verbs.make_verb(MEASURE))
        CliRunner().invoke(command, words[2:], catch_exceptions=False)
    assert repeated == [({"models": ["a", "b"]}, CountingSettings(**changes))]


def test_settings_are_readable(tmp_path):
    run = count(tmp_path / "run", "a", sizes=(3, 4))
    text = draw_report([run]).read_text("utf-8")
    own = unescape(read_own(text))
    assert "<code>unmask counting a --sizes 3,4</code>" in own
    assert "<td>3, 4</td>" in own and "null" not in own and "None" not in own
    assert own.index("How far models count") < own.index("Settings and versions")
