"""Files are whole or not there, whatever goes wrong in between."""

import errno
import os
from pathlib import Path

import pytest

from unmask import UserError
from unmask.base import files
from unmask.base.files import create_folder, replace_file, write_json
from unmask.base.reading import read_json


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


def test_replace_file_is_all_or_nothing(tmp_path):
    target = tmp_path / "a" / "settings.json"
    write_json(target, {"version": 1})
    with pytest.raises(ZeroDivisionError), replace_file(target) as draft:
        draft.write_text("half")
        raise ZeroDivisionError
    assert read_json(target) == {"version": 1}
    assert listing(tmp_path) == ["a", "settings.json"]


def test_create_folder_is_all_or_nothing(tmp_path):
    target = tmp_path / "corpus"
    with pytest.raises(ZeroDivisionError), create_folder(target) as draft:
        (draft / "half.txt").write_text("half")
        raise ZeroDivisionError
    assert listing(tmp_path) == []
    with create_folder(target) as draft:
        (draft / "whole.txt").write_text("whole")
    assert listing(tmp_path) == ["corpus", "whole.txt"]
    with pytest.raises(UserError, match="already exists and would be overwritten"):
        with create_folder(target):
            pass
    assert (target / "whole.txt").read_text() == "whole"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (errno.ENOSPC, "no space left on device; free some space"),
        (errno.EACCES, "permission denied; choose a folder you may write to"),
        (errno.EROFS, "read-only file system; choose a folder on a disk that is not read-only"),
    ],
)
@pytest.mark.parametrize("moment", ["write", "sync"])
def test_disk_errors_are_sentences(tmp_path, monkeypatch, code, said, moment):
    """Injected, since tests may run as root, whom no permission stops."""
    target = tmp_path / "settings.json"
    write_json(target, {"version": 1})

    def fail(*_args, **_kwargs):
        raise OSError(code, os.strerror(code))

    where = (Path, "write_text") if moment == "write" else (files, "_sync")
    monkeypatch.setattr(*where, fail)
    with pytest.raises(UserError) as caught:
        write_json(target, {"version": 2})
    monkeypatch.undo()
    assert str(target) in str(caught.value) and said in str(caught.value)
    assert read_json(target) == {"version": 1}
    assert listing(tmp_path) == ["settings.json"]


def test_parent_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="not a directory; choose a path whose parents"):
        write_json(tmp_path / "file" / "a" / "settings.json", {})
