"""Pictures in a notebook: the page's own sections in a frame that needs nothing else."""

import html
import re
from dataclasses import replace

import pytest
import torch

import unmask
from tests.report.browser import open_browser
from tests.report.reading import read_figures
from tests.representation.facts import make_model
from unmask import UserError
from unmask.blocks.blocks import Figure
from unmask.measures.table import list_measures
from unmask.report import notebook
from unmask.report.render_html import pack_library

LOCAL = ("file:", "data:", "blob:", "about:")
TEXT = "They say Ada Quill is known as"
HOSTILE = '"></iframe><img src=x><script>1</script>'
FACT = unmask.Fact.of("Ada Quill", "the painter of red boats", "They say {} is known as")


def trace(model, **how):
    settings = {"corruption": "mean", "window": 1} | how
    return unmask.trace_tokens(model, TEXT, "Ada Quill", "the painter", **settings)


def open_frame(shown: str) -> str:
    """The page inside the frame, and nothing beside it."""
    frame = re.fullmatch(
        r'<iframe srcdoc="([^"<]*)" title="[^"<]*" style="[^"<]*"></iframe>', shown
    )
    assert frame is not None
    return html.unescape(frame[1])


THINGS = {
    "model": lambda model: model,
    "trajectory": lambda model: unmask.sample(model, [TEXT, "Now"], steps=3, length=20, guesses=3),
    "grid": trace,
    "grids": lambda model: [trace(model), trace(model, mode="ablate")],
    "heads": lambda model: trace(model, parts=("attn_z",)),
    "lens": lambda model: unmask.logit_lens(model, "They say[MASK]*3", steps=2),
    "edit": lambda model: unmask.edit(model, FACT, "Nowhere", layers=1, search_steps=2, prefixes=1),
}


@pytest.mark.parametrize("name", THINGS)
@pytest.mark.parametrize("kind", ["masked", "causal"])
def test_a_picture_holds_all_that_it_needs(name, kind):
    model = make_model(kind=kind)
    thing = THINGS[name if (name, kind) != ("lens", "causal") else "model"](model)
    picture = unmask.show(thing)
    page = open_frame(picture._repr_html_())
    assert page.startswith("<!doctype html>") and page.count("<!doctype") == 1
    assert re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', page) == []
    assert picture._repr_png_() is None
    has_charts = name not in ("model", "trajectory", "edit") and (name, kind) != ("lens", "causal")
    assert page.count(pack_library()) == has_charts, "plotly comes where it is needed, once"
    if not isinstance(thing, list):
        assert thing._repr_html_() == picture._repr_html_() and repr(thing.show()) == repr(picture)
        assert len(repr(thing)) < 250 and "tensor" not in repr(thing)


def test_the_text_of_a_trajectory_is_what_it_wrote():
    model = make_model()
    drawn = unmask.sample(model, [TEXT, "Now"], steps=3, length=20, guesses=3)
    figure = read_figures(open_frame(drawn._repr_html_()))["trajectory-texts"]
    assert figure["controls"][0]["options"] == ["0", "1"] and set(figure["views"]) == {"0", "1"}
    (panel,) = figure["views"]["1"]
    size = len(panel["pieces"])
    assert panel["steps"] == drawn.committed_at[1, :size].tolist()
    for i, step in enumerate(panel["steps"]):
        assert len(panel["guesses"][i]) == step
        for at, guesses in enumerate(panel["guesses"][i], 1):
            expected = drawn.guesses(at).at(i, row=1)
            assert [word for word, _ in guesses] == [word for word, _ in expected]
            assert [p for _, p in guesses] == pytest.approx([p for _, p in expected], rel=1e-3)
    lines = repr(drawn.show()).splitlines()
    assert len(lines) == 4 and lines[0].startswith(f"before step 1: {TEXT} ░ ░")
    assert lines[-1].startswith("at the end: They say") and "░" not in lines[-1]
    assert len(drawn) == 4 and [row for row, _ in drawn] == [x.partition(": ")[2] for x in lines]
    assert drawn[-1] == drawn[3] and drawn[-1][1].removesuffix("⏎") == drawn.texts[1]
    with pytest.raises(IndexError):
        drawn[4]
    forgotten = replace(drawn, states=None)
    assert forgotten[3] == drawn[3]
    with pytest.raises(UserError, match="no states were kept"):
        forgotten[0]


def test_the_cells_of_a_trace_are_its_effects():
    model = make_model()
    grid = trace(model)
    figure = read_figures(open_frame(grid._repr_html_()))["trace-effects"]
    for panel, part in zip(figure["views"][""], grid.logp, strict=True):
        drawn = torch.tensor(panel["z"], dtype=torch.float64)
        torch.testing.assert_close(drawn, grid.effects(part), atol=1e-6, rtol=1e-3)
        assert len(panel["y"]) == len(grid.tokens)
    labels = [re.sub(r"^\d+ ", "", label) for label in panel["y"]]
    assert "".join(labels[slice(*grid.subject)]).replace("*", "") == "AdaQuill"
    assert [i for i, label in enumerate(labels) if label.startswith("→")] == list(grid.answer)


def test_the_cells_of_a_lens_are_its_probabilities():
    lens = unmask.logit_lens(make_model(), "They say[MASK]*3", steps=2)
    figure = read_figures(open_frame(lens._repr_html_()))["lens"]
    assert figure["controls"][0]["is_slider"] and set(figure["views"]) == {"0", "1"}
    said, followed = figure["views"]["1"]
    drawn = torch.tensor(followed["z"], dtype=torch.float64)
    torch.testing.assert_close(drawn, lens.logp[1].exp().T, atol=1e-6, rtol=1e-3)
    for position, words in zip(lens.positions, said["words"], strict=True):
        assert words == [layer[0][0] for layer in lens.at(position, lens.steps[1])]


def test_a_pattern_of_attention_has_a_view_of_each_head():
    model = make_model()
    ids = model.tokenizer.encode(TEXT).ids
    with torch.no_grad(), model.net.capture("layers.1.attn_pattern") as kept:
        model.logits(torch.tensor([ids]))
    pattern = kept["layers.1.attn_pattern"]
    words = [model.tokenizer.piece(token) for token in ids]
    views = read_figures(open_frame(unmask.show(pattern, words=words)._repr_html_()))["pattern"]
    for number, expected in enumerate([pattern[0].mean(0), *pattern[0]]):
        (panel,) = views["views"][str(number)]
        drawn = torch.tensor(panel["z"])
        torch.testing.assert_close(drawn, expected, atol=1e-5, rtol=1e-3)
        assert panel["y"][1] == panel["x"][1] == f"1 {words[1].strip()}"
    with pytest.raises(UserError, match="3 words were given"):
        unmask.show(pattern, words=words[:3])
    with pytest.raises(UserError, match="attention of one text"):
        unmask.show(torch.zeros(5))


def test_one_cell_of_a_notebook_brings_plotly_along(monkeypatch):
    """The first with a chart does, whenever it runs; elsewhere every picture does."""
    grid = trace(make_model())
    monkeypatch.setattr(notebook, "_carrier", None)
    for cell, brings in [(None, 1), ("one", 1), ("two", 0), ("one", 1), (None, 1)]:
        monkeypatch.setattr(notebook, "find_cell", lambda cell=cell: cell)
        assert open_frame(grid._repr_html_()).count(pack_library()) == brings


def test_the_facts_of_an_edit_are_told_as_it_has_them():
    edit = THINGS["edit"](make_model())
    page = open_frame(edit._repr_html_())
    (fact,) = edit.record["facts"]
    assert FACT.prompt in page and "Nowhere" in page and FACT.object in page
    assert f"{fact['p_after']:.3f}" in page and f"{edit.magnitude:.3f}" in page
    assert repr(edit) == f"Edit(1 fact in layers 1, norm {edit.magnitude:.3g})"


@pytest.mark.prove
def test_every_measure_s_result_is_shown(results):
    assert {result.measure.name for result in results.values()} == set(list_measures())
    for result in results.values():
        page = open_frame(result._repr_html_())
        figures = [block for block in result.section.walk() if isinstance(block, Figure)]
        assert len(read_figures(page)) == len(figures)
        assert result.section.title in html.unescape(page)
        assert re.match(rf"Result\({result.measure.name}.* outcomes clear, in ", repr(result))
        assert len(repr(result)) < 400


def test_hostile_texts_are_texts():
    """HTML in a prompt or a name stays what it is, in the frame and around it."""
    model = make_model()
    drawn = unmask.sample(model, HOSTILE, length=60, steps=2)
    grid = unmask.trace_tokens(model, f"{HOSTILE} Ada is", "Ada", "red", corruption="mean")
    for thing in (type(model)(HOSTILE, model.net, model.blueprint, model.tokenizer), drawn, grid):
        shown = thing._repr_html_()
        page = open_frame(shown)
        assert "<img" not in page and "<script>1" not in page
        assert shown.count("<") == 2


def test_still_pictures(tmp_path):
    grid = trace(make_model())
    still = grid.plot()
    assert still._repr_html_() is None and still._repr_png_()[:8] == b"\x89PNG\r\n\x1a\n"
    assert still.save(tmp_path / "a.pdf").read_bytes()[:4] == b"%PDF"
    page = grid.show().save(tmp_path / "a.html").read_text("utf-8")
    assert pack_library() in page and page.startswith("<!doctype html>")
    with pytest.raises(UserError, match="ends in '.gif': expected .html, .png or .pdf"):
        still.save(tmp_path / "a.gif")
    with pytest.raises(UserError, match="has no figure: save it as .html"):
        make_model().plot().save(tmp_path / "a.png")


def test_a_model_lists_its_sites():
    model = make_model()
    with model.net.capture("*") as captured:
        model.logits(TEXT)
    assert tuple(captured) == model.sites


def test_what_cannot_be_shown(monkeypatch):
    for thing in (3, [], [trace(make_model()), 3]):
        with pytest.raises(UserError, match="was given to show: expected a model, a trajectory"):
            unmask.show(thing)
    model = make_model()
    monkeypatch.setattr("unmask.base.extras.find_spec", lambda name: None)
    assert model._repr_html_() is None, "a notebook falls back to the text"
    with pytest.raises(UserError, match="showing pictures needs jinja2, plotly, matplotlib"):
        model.show()


@pytest.mark.prove
def test_cells_in_a_browser(tmp_path, results, monkeypatch):
    """Each frame draws itself offline, is as high as its content, and says nothing; the last takes
    plotly from the cell that the trace stands in."""
    model = make_model()
    drawn = unmask.sample(model, TEXT, steps=4, length=20, guesses=3)
    things = [model, drawn, trace(model), results["recall"]]
    numbers = iter("ab")
    monkeypatch.setattr(notebook, "_carrier", None)
    monkeypatch.setattr(notebook, "find_cell", lambda: next(numbers))
    cells = "".join(f"<div>{thing._repr_html_()}</div>" for thing in things)
    assert cells.count(html.escape(pack_library())) == 1
    (tmp_path / "cells.html").write_text(f"<!doctype html><meta charset=utf-8>{cells}", "utf-8")
    said: list[str] = []
    for browser in open_browser():
        page = browser.new_page(viewport={"width": 1000, "height": 800})
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda r: None if r.url.startswith(LOCAL) else said.append(r.url))
        page.goto((tmp_path / "cells.html").as_uri())
        frames = [page.frame_locator(f"iframe >> nth={i}") for i in range(len(things))]
        frames[2].locator(".js-plotly-plot").wait_for()
        frames[3].locator(".js-plotly-plot").first.wait_for()
        assert frames[0].locator("h2").inner_text() == model.name
        player = frames[1]
        assert player.locator(".mask.hidden").count() == 0
        for _ in range(4):
            player.get_by_role("button", name="One step back").click()
        assert player.locator(".mask.hidden").count() == int((drawn.committed_at > 0).sum())
        page.wait_for_timeout(300)
        for frame in page.frames[1:]:
            room, high = frame.evaluate("[innerHeight, document.body.scrollHeight]")
            assert high <= room <= high + 40
        assert page.title() == "" and said == []
