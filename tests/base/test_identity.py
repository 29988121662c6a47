"""Digests of files: all bytes count, a large file is read once, and any change is noticed."""

import hashlib
import os
import threading
from dataclasses import dataclass, field

import pytest

from unmask.base import identity
from unmask.base.identity import digest_file, digest_values

SIZE = identity.LEAST_BYTES + 5


@pytest.fixture
def reads(monkeypatch, tmp_path) -> list:
    """Files that were read in full, with an empty cache; young files count as settled."""
    reads, read_all = [], identity._read_all

    def count(path):
        reads.append(path.name)
        return read_all(path)

    monkeypatch.setattr(identity, "_read_all", count)
    monkeypatch.setattr(identity, "SETTLED_SECONDS", 0.0)
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "cache"))
    return reads


@pytest.fixture
def large(tmp_path):
    path = tmp_path / "large.bin"
    path.write_bytes(bytes(SIZE))
    return path


def change_middle(path) -> None:
    """Another byte in the middle, with the size, the name and the time of writing as they were."""
    stat = path.stat()
    with path.open("r+b") as file:
        file.seek(SIZE // 2)
        file.write(b"x")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_a_large_file_is_read_once_until_it_changes(large, reads):
    first = digest_file(large)
    assert first == hashlib.sha256(bytes(SIZE)).hexdigest() == digest_file(large)
    assert len(reads) == 1
    change_middle(large)
    second = digest_file(large)
    assert second != first and len(reads) == 2
    # The same bytes in another file of the same name are another file.
    other = large.with_name("other.bin")
    other.write_bytes(large.read_bytes())
    other.replace(large)
    assert digest_file(large) == second and len(reads) == 3
    link = large.with_name("link.bin")
    link.symlink_to(large)
    assert digest_file(link) == second and len(reads) == 3


def test_a_file_that_was_just_written_is_not_remembered(large, reads, monkeypatch):
    """It could be written again within the resolution of its times."""
    monkeypatch.setattr(identity, "SETTLED_SECONDS", 3600.0)
    digest_file(large)
    digest_file(large)
    assert len(reads) == 2


def test_a_file_that_changes_while_it_is_read_is_not_remembered(large, reads, monkeypatch):
    read_all = identity._read_all

    def disturb(path):
        digest = read_all(path)
        if len(reads) == 1:
            change_middle(path)
        return digest

    monkeypatch.setattr(identity, "_read_all", disturb)
    first, second = digest_file(large), digest_file(large)
    assert first != second == digest_file(large) and len(reads) == 2


@pytest.mark.parametrize(
    "content", ["", "{", "[1]", '{"PATH": 3}', '{"PATH": {"state": []}}', "\0"]
)
def test_a_damaged_cache_is_written_anew(content, large, reads, tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "digests.json").write_text(content.replace("PATH", str(large)))
    first = digest_file(large)
    assert first == hashlib.sha256(bytes(SIZE)).hexdigest() == digest_file(large)
    assert len(reads) == 1


def test_a_cache_that_cannot_be_written_is_none(large, reads, tmp_path, monkeypatch, caplog):
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert digest_file(large) == digest_file(large)
    assert len(reads) == 2 and not caplog.text


def test_small_files_leave_no_entry(reads, tmp_path):
    (tmp_path / "small").write_text("text")
    digest_file(tmp_path / "small")
    assert not (tmp_path / "cache").exists()


def test_entries_of_files_that_are_gone_are_dropped(large, reads, tmp_path):
    digest_file(large)
    moved = large.rename(large.with_name("moved.bin"))
    digest_file(moved)
    text = (tmp_path / "cache" / "digests.json").read_text()
    assert "moved.bin" in text and "large.bin" not in text


def test_the_cache_folder_is_the_users(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "own"))
    assert identity.find_cache_folder() == tmp_path / "own"
    monkeypatch.delenv("UNMASK_CACHE")
    assert identity.find_cache_folder() == tmp_path / "xdg" / "unmask"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert identity.find_cache_folder() == tmp_path / ".cache" / "unmask"


def test_values_are_told_apart():
    assert digest_values(["a", "b"]) == digest_values(["a", "b"])
    different = [
        ["a", "b"], ["ab"], ["b", "a"], ["a", b"b"], [("a", "b")], ["a", "b", ""], [1], [1.0],
    ]  # fmt: skip
    assert len({digest_values(each) for each in different}) == len(different)


@dataclass(frozen=True)
class Word:
    text: str
    places: tuple[int, ...] = (3,)
    unseen: str = field(default="", repr=False)


def test_values_are_digested_as_they_are_written_out():
    """Digests that are stored in runs and edits are of what `repr` says."""
    word = Word("it's")
    for value in (word, (word,), (word, 1), (), [word, [None]], {"a": word, 2: [1.5]}, {3}, b"x"):
        text = value if isinstance(value, bytes) else repr(value).encode()
        known = hashlib.sha256(len(text).to_bytes(8, "big") + text).hexdigest()
        assert digest_values([value]) == known


def test_an_interrupt_within_a_repr_changes_no_digest():
    """A stop right after a dataclass noted that it is being written out, and before it unnotes."""
    word = Word("once")
    digest = digest_values([(word, "more")])
    (noted,) = (cell.cell_contents for cell in Word.__repr__.__closure__
                if isinstance(cell.cell_contents, set))  # fmt: skip
    noted.add((id(word), threading.get_ident()))
    assert repr(word) == "..."
    assert digest_values([(word, "more")]) == digest
