"""HTML pages of kept results: which there are, where Markdown says so, and how one is made."""

import re
from pathlib import Path

import pytest

import unmask
from tests.scripts import load_script
from unmask import UserError
from unmask.base.reading import read_json
from unmask.measures.runner import read_result

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
html = load_script("paper/draw_html.py")
pages = load_script("paper/run_pages.py")


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> dict:
    monkeypatch.chdir(ROOT)
    return html.read_stages()[1]


def test_pages_of_kept_tables_are_found(stages):
    found = html.find_pages(stages)
    assert {"recall", "tracing", "knockout", "mechanism", "order"} <= set(found)
    assert not {"quality", "symmetry", "corpora", "editing-shown"} & set(found), "nothing is kept"
    assert {name for name, stage in found.items() if pages.is_slow(stage)} == {
        "embeddings", "mechanism"
    }  # fmt: skip


def test_every_page_that_speaks_of_its_html_page_says_where_it_is(stages):
    found, written = (
        html.find_pages(stages),
        {Path(each.page or "").stem for each in stages.values()},
    )
    for page in sorted(RESULTS.glob("*.md")):
        text = page.read_text("utf-8")
        line = next((each for each in text.splitlines() if each.startswith(pages.BEGIN)), None)
        if page.stem in found:
            assert line and f"`python paper/draw_html.py {page.stem}`" in line, page.name
        elif "HTML page." in text:
            assert line and "not kept" in line and page.stem in written, page.name
        else:
            assert line is None, page.name


def test_every_kept_run_is_read():
    """Settings of earlier records that nothing reads any more are no error, as a typed one is."""
    runs = sorted(RESULTS.glob("tables/**/run.json"))
    assert len(runs) > 70
    for run in runs:
        assert read_result(run.parent).measure.name == read_json(run)["verb"]
    with pytest.raises(UserError, match="unknown key 'seed'|no setting 'seed'"):
        unmask.nll("reversal-mdm", seed=1)


def test_a_page_of_tables_without_a_record_is_drawn(stages, monkeypatch, tmp_path):
    """Tables that a script made outside of the stages are kept all the same."""
    monkeypatch.setattr(html, "PAGES", tmp_path)
    assert not stages["language-tries"].record_path.exists()
    assert html.main(["language-tries"]) == 0 and (tmp_path / "language-tries.html").is_file()


def test_a_page_is_drawn_once_and_leads_back(stages, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(html, "PAGES", tmp_path)
    assert html.main(["knowns"]) == 0
    drawn = tmp_path / "knowns.html"
    text = drawn.read_text("utf-8")
    assert 'href="../results/knowns.html"' in text and "</html>" in text
    before = drawn.stat().st_mtime_ns
    assert html.main(["knowns"]) == 0 and drawn.stat().st_mtime_ns == before
    (tmp_path / "knowns.digest").write_text("of other tables")
    assert html.main(["knowns"]) == 0 and drawn.stat().st_mtime_ns > before
    assert html.main(["quality"]) == 2 and "no kept tables have a page" in capsys.readouterr().err


def test_the_note_of_a_page_stands_on_its_html_page(stages):
    (back, note) = html.describe_page(stages["recall"])
    assert "../results/recall.html" in back
    assert re.search(r'<a href="\.\./results/coverage\.html">', note)
    assert '<a href="../limits.html">' in note


def test_the_site_links_what_was_drawn(monkeypatch, tmp_path):
    site = load_script("docs/conf.py")
    monkeypatch.setattr(site, "EXTRA", tmp_path)
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "order.html").touch()
    source = ["All: `pages/order.html` in the site; `pages/embeddings.html` is slow."]
    site.link_pages(None, "results/order", source)
    assert source == ['All: <a href="../pages/order.html">pages/order.html</a> in the site; '
                      "`pages/embeddings.html` is slow."]  # fmt: skip
