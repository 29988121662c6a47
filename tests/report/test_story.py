"""The page tells its story: the first screen, guesses, words explained, stored results beside."""

import csv
import re
from html import unescape
from pathlib import Path

import pytest

import unmask
from tests.report.reading import list_titles, read_figures, read_own
from unmask.blocks.blocks import Section
from unmask.blocks.labels import COMPARED, GROUPS, LIKENESS_NOTES, LIKENESSES, say_outcome
from unmask.measures.runner import read_result
from unmask.measures.stored import open_stored_run
from unmask.measures.table import list_measures
from unmask.report.document import Document
from unmask.report.page import draw_report
from unmask.report.render_html import render_html


def test_the_first_screen_has_one_fact_both_ways_and_one_figure(page, finished):
    """What it is called, both models writing both ways, every way on one scale; then recall."""
    own = read_own(page)
    head, figures = own.split("<section")[0], read_figures(page)
    recall = finished.results()["recall"].section
    assert "reversal curse" in head and list_titles(own)[0] == recall.title
    assert "diffusion and twin" in re.findall("<h1>(.*?)</h1>", head)[0]
    shown = unescape(head.split("What this study shows")[1].split("</ul>")[0])
    assert shown.count("<li>") == 4 and recall.findings[0].brief in shown
    assert re.findall(r'<figure id="([^"]+)"', head) == ["order-unmasking", "recall-ways"]
    panels = figures["order-unmasking"]["views"]["0|0"]
    assert len({panel["way"] for panel in panels}) == 2
    assert [panel["is_causal"] for panel in panels] == [False, True, False, True]
    (first, *_) = re.findall(r'<p class="finding"[^>]*>(.*?)<span', own, re.DOTALL)
    assert unescape(first).strip() == recall.blocks[0].text


def test_a_result_that_is_printed_says_its_sentences(finished):
    result = finished.results()["recall"]
    first, *sentences = str(result).splitlines()
    assert first == repr(result)
    for finding, sentence in zip(result.section.findings, sentences, strict=True):
        assert sentence == f"{finding.text} [{say_outcome(finding)}]"


def test_masks_hold_what_the_model_would_say(page):
    views = read_figures(page)["order-unmasking"]["views"].values()
    masked = [panel for panels in views for panel in panels if not panel["is_causal"]]
    for panel in masked:
        for step, guesses, piece in zip(
            panel["steps"], panel["guesses"], panel["pieces"], strict=True
        ):
            assert len(guesses) == step and all(len(each) == 5 for each in guesses)
            if step:
                assert guesses[-1][0][0] == piece and guesses[-1][0][1] >= guesses[-1][1][1]


def test_a_headline_is_what_is_clear_of_both_models(finished, tmp_path):
    """Where the difference is clear the page begins with it, and a page of two runs does not."""
    section = Section("s", "Title", [], headline="Taught “A is B”, asked “B is A”: 93 %, 0 %")
    for document in (Document("Title", "Lead.", [], [section]), Document("T", "", [], [section])):
        assert f"<h1>{section.headline}</h1>" in render_html(document)
    two = Document("One and two", "Lead.", [], [section], is_single=False)
    assert "<h1>One and two</h1>" in render_html(two)


def test_roles_and_measures_are_explained_where_they_stand(page, results, tmp_path):
    """By words that can be pointed at or reached by Tab."""
    (figure,) = re.findall(r'<figure id="trace-effects".*?</figure>', page, re.DOTALL)
    roles = read_figures(page)["trace-effects"]["views"]
    shown = {label for panels in roles.values() for panel in panels for label in panel["y"]}
    terms = re.findall(
        r'<button type="button" class="term" aria-describedby="([^"]+)">(.*?)</button>'
        r'<span class="note" role="tooltip" id="([^"]+)">(.+?)</span>', figure,
    )  # fmt: skip
    assert {term for _, term, _, _ in terms} == shown and all(a == b for a, _, b, _ in terms)
    symmetry = draw_report([results["symmetry"]], tmp_path / "page.html").read_text("utf-8")
    for name, label in LIKENESSES.items():
        assert label not in symmetry or unescape(symmetry).count(LIKENESS_NOTES[name]) >= 2


def test_a_section_shows_its_sentences_and_one_figure(page, finished):
    """The rest is folded away, and the fold says what it holds."""
    own = read_own(page)
    for stage in ("recall", "order", "trace"):
        section = own.split(f'<section id="{stage}-section">')[1].split("</section>")[0]
        seen, fold = section.split('<details class="more">')
        assert len(re.findall('<figure id="(?!.*stored)', seen)) == 1
        assert "<summary>More: " in fold.replace("\n", "")
    extra = own.split('<section id="trace-steps-section">')[1].split("</section>")[0]
    assert "<figure" not in extra.split("<details>")[0]


def test_what_is_not_settled_stands_beside_the_stored_result(page, finished):
    """Marked as stored, with its command; what is clear, and a page of one measure, has none."""
    own, unsettled = unescape(read_own(page)), set()
    for stage, result in finished.results().items():
        if not all(finding.is_clear for finding in result.section.findings):
            unsettled.add(stage)
    sections = {
        stage: own.split(f'<section id="{stage}-section">')[1].split("</section>")[0]
        for stage in finished.results()
    }
    marked = {stage for stage, text in sections.items() if "stored result</p>" in text}
    assert (
        marked == unsettled & {name for name, each in list_measures().items() if each.draw_stored}
        and "trace" in marked
    )
    assert "<code>make paper STAGE=mechanism-shipped</code>" in own
    assert {"trace-stored-shipped", "trace-stored-pretrained"} <= set(read_figures(page))
    alone = draw_report([finished.folder / "trace"], finished.folder.parent / "trace.html")
    assert "stored result</p>" not in alone.read_text("utf-8")


def test_stored_tables_are_small_and_those_that_were_published(page):
    """Averages and curves as docs/results has them; at most 3 MB come with the package."""
    folder = Path(unmask.__file__).parent / "assets" / "results"
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 3_000_000
    results = Path(__file__).parents[2] / "docs" / "results"
    with open_stored_run("tracing") as run, open_stored_run("tracing-berglund") as other:
        stored, published = run.summary["averages"], other.summary["averages"]
    made = read_result(results / "tables" / "shared-shipped" / "trace").summary["averages"]
    keys = ("model", "split", "stage", "part", "layer", "role", "control")
    means = {tuple(row[key] for key in keys): row["mean"] for row in made}
    assert len(stored) > 500
    for row in stored:
        assert row["mean"] == pytest.approx(means[tuple(row[key] for key in keys)], abs=1e-6)
    shown = read_figures(page)["trace-stored-shipped"]["views"].values()
    cells = [value for panels in shown for panel in panels for row in panel["z"] for value in row]
    best = max(row["mean"] for row in stored if row["role"] == "whole subject")
    assert any(value == pytest.approx(best, abs=0.005) for value in cells if value is not None)
    totals = [row for row in published if (row["part"], row["control"]) == ("total", "none")]
    lost = {(row["model"], row["split"]): row for row in totals}
    total, text = lost["mdm", "p2d_reverse"], (results / "tracing.md").read_text("utf-8")
    assert (
        f"takes {total['mean']:.3g} nats per token [{total['low']:.3g}, {total['high']:.3g}" in text
    )
    for file, name in (("recall.csv", "recall-shipped.md"), ("recall-berglund.csv", "recall.md")):
        rows = (folder / file).read_text().splitlines()[1:]
        text = (results / name).read_text("utf-8")
        for row in rows:
            *_, steps, mean, low, high = row.split(",")
            if file == "recall.csv" or steps in ("", "32"):  # a rule's other steps are a figure
                assert f"{mean} [{low}, {high}]" in text
    keys = ("facts", "layer", "compared", "measure")
    for name in ("symmetry", "symmetry-berglund"):
        with (results / name / "symmetry-measures.csv").open(encoding="utf-8") as source:
            made = {
                (row["model"].removeprefix("reversal-"), *(row[column] for column in keys)): row
                for row in csv.DictReader(source)
            }
        rows = list(csv.DictReader((folder / f"{name}.csv").read_text().splitlines()))
        assert len(rows) > 400
        for row in rows:
            names = (GROUPS[row["group"]], row["layer"], COMPARED[row["comparison"]])
            own = made[row["model"], *names, LIKENESSES[row["measure"]]]
            columns = {"value": "likeness", "low": "likeness, low", "null_high": "shuffled, high"}
            for column, source in (columns | {"p_holm": "corrected p"}).items():
                assert float(row[column]) == pytest.approx(float(own[source]), abs=6e-4)
