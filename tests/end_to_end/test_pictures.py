"""Pictures and the notebook in docs are not older than what they show."""

import json

import pytest

from tools import draw_pictures
from tools.draw_pictures import RECORD, ROOT, SHOWN, digest_shown


@pytest.mark.parametrize(
    ("tool", "picture"), [(tool, name) for tool in SHOWN for name in SHOWN[tool]]
)
def test_it_shows_what_is_there(tool, picture):
    drawn_of = json.loads(RECORD.read_text("utf-8")).get(picture)
    assert (ROOT / picture).is_file() and drawn_of == digest_shown(tool, picture), (
        f"{picture} is older than what it shows: make pictures"
    )


def test_a_changed_source_is_seen(monkeypatch, tmp_path):
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/draw.py").write_text("")
    (tmp_path / "page.js").write_text("one")
    monkeypatch.setattr(draw_pictures, "ROOT", tmp_path)
    monkeypatch.setitem(SHOWN, "draw.py", {"page.png": ("*.js",)})
    before = digest_shown("draw.py", "page.png")
    (tmp_path / "page.js").write_text("two")
    assert digest_shown("draw.py", "page.png") != before
