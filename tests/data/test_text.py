"""Text to shards to batches: nothing lost, nothing repeated, resumable at any step."""

import json
import lzma
import re
from functools import partial

import numpy as np
import pyarrow
import pytest

from unmask import Tokenizer, UserError
from unmask.data.batches import RowOrder
from unmask.data.shards import Shards, Windows, write_shards
from unmask.data.text import read_documents

compress = partial(pyarrow.compress, codec="zstd", asbytes=True)
DOCUMENTS = [f"Document {i}: " + "the caves of Orsel. " * (i % 7 + 1) for i in range(60)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(DOCUMENTS, 290)


def test_all_kinds_of_files(tmp_path):
    lines = "".join(json.dumps({"title": "t", "text": text}) + "\n" for text in DOCUMENTS)
    (tmp_path / "a.jsonl").write_text(lines)
    (tmp_path / "b.jsonl.xz").write_bytes(lzma.compress(lines.encode()))
    (tmp_path / "c.txt").write_text("alone\n\nstill alone")
    (tmp_path / "d.txt.xz").write_bytes(lzma.compress(b"packed"))
    (tmp_path / "e.jsonl.zst").write_bytes(compress(lines.encode()))
    names = ("a.jsonl", "b.jsonl.xz", "c.txt", "d.txt.xz", "e.jsonl.zst")
    paths = [tmp_path / name for name in names]
    found = list(read_documents(paths))
    assert found == [*DOCUMENTS, *DOCUMENTS, "alone\n\nstill alone", "packed", *DOCUMENTS]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", b'{"text": "x"}\n{"txt": "y"}\n', "line 2: 'text' is missing"),
        ("a.jsonl", b'{"text": "x"}\n{"text": 3}\n', "line 2: 'text' is 3"),
        ("a.jsonl", b'{"text": "x"}\n{"text"\n', "line 2 is not valid JSON"),
        ("a.jsonl", b"", "a.jsonl is empty"),
        ("a.txt", b" \n", "a.txt is empty"),
        ("a.txt.xz", b"no xz", "cannot be read as UTF-8 text"),
        ("a.jsonl.xz", lzma.compress(b'{"text": "x"}\n' * 9999)[:-20], "cannot be read"),
        ("a.jsonl.zst", b"no zst", "cannot be read as UTF-8 text: it is damaged or was cut short"),
        ("a.jsonl.zst", compress(b'{"text": "x"}\n' * 9999)[:-9], "it is damaged or was cut short"),
        ("a.pdf", b"x", "text is read from .txt, .md and .jsonl files"),
    ],
)
def test_bad_files(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=re.escape(said)):
        list(read_documents([tmp_path / name]))


@pytest.mark.parametrize("name", ["absent", "absent.pdf", "absent.txt", "absent.jsonl.xz"])
def test_a_file_that_is_not_there_is_not_called_unreadable(tmp_path, name):
    with pytest.raises(UserError, match=f"{name} is not there: expected a file"):
        list(read_documents([tmp_path / name]))


@pytest.mark.parametrize("tokens_a_shard", [10**6, 97])
def test_shards_hold_every_token_in_order(tmp_path, tokenizer, tokens_a_shard):
    info = write_shards(DOCUMENTS, tokenizer, tmp_path / "shards", tokens_a_shard)
    expected = [i for text in DOCUMENTS for i in (*tokenizer.encode(text).ids, tokenizer.end_id)]
    shards = Shards(tmp_path / "shards")
    assert np.concatenate(shards.maps).tolist() == expected
    assert info.documents == len(DOCUMENTS) and max(info.tokens) <= tokens_a_shard
    assert Tokenizer.load(tmp_path / "shards").vocab_size == info.vocab_size
    windows = Windows(shards, 16)
    assert len(windows) == sum(count // 16 for count in info.tokens)
    with pytest.raises(IndexError):
        windows[len(windows)]


def test_batches_resume_exactly_and_see_every_row_once():
    order = RowOrder(num_rows=60, batch=4, seed=1)
    run = [order.rows_at(step) for step in range(40)]
    fresh = RowOrder(num_rows=60, batch=4, seed=1)
    for step in (39, 3, 17, 0):
        assert fresh.rows_at(step) == run[step]
    assert RowOrder(num_rows=60, batch=4, seed=2).rows_at(0) != run[0]
    order = RowOrder(num_rows=10, batch=4, seed=0)
    rows = [row for step in range(5) for row in order.rows_at(step)]
    assert sorted(rows[:10]) == sorted(rows[10:]) == list(range(10)) and rows[:10] != rows[10:]


def test_bad_shards(tmp_path, tokenizer):
    with pytest.raises(UserError, match="no documents were given"):
        write_shards([], tokenizer, tmp_path / "empty")
    assert list(tmp_path.iterdir()) == []
    write_shards(DOCUMENTS[:2], tokenizer, tmp_path / "shards")
    with pytest.raises(UserError, match="too few for one window of 4096"):
        Windows(Shards(tmp_path / "shards"), 4096)
    with pytest.raises(UserError, match="batch of 4096 rows was asked for, but the data has only"):
        RowOrder(len(Windows(Shards(tmp_path / "shards"), 8)), batch=4096, seed=0)
    file = tmp_path / "shards" / "shard-00000.bin"
    assert list(Shards(tmp_path / "shards").find_problems()) == []
    kept = file.read_bytes()
    file.write_bytes(b"\xff" * len(kept))
    (problem,) = Shards(tmp_path / "shards").find_problems()
    assert "shard-00000.bin holds the token 65535, past the vocabulary's" in problem
    with file.open("ab") as cut:
        cut.truncate(10)
    with pytest.raises(UserError, match="has 10 bytes, expected .* cut short"):
        Shards(tmp_path / "shards")
    for record, said in (("[]", "expected an object"), ('{"format": 1}', "'dtype' is missing")):
        (tmp_path / "shards" / "shards.json").write_text(record)
        with pytest.raises(UserError, match=said):
            Shards(tmp_path / "shards")


def test_an_unreadable_input_is_not_told_as_a_full_disk(tmp_path, tokenizer):
    def unreadable():
        yield "a"
        raise PermissionError(13, "Permission denied", "/elsewhere/secret.txt")

    with pytest.raises(PermissionError, match=r"secret\.txt"):
        write_shards(unreadable(), tokenizer, tmp_path / "shards")
    assert list(tmp_path.iterdir()) == []
