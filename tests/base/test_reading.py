"""What others wrote is read within limits: each breach is a sentence that names its file."""

import json
import lzma
import time
from functools import partial
from pathlib import Path

import pyarrow
import pytest

from unmask import UserError
from unmask.base import reading, unpacking
from unmask.base.reading import (
    parse_json,
    parse_yaml,
    read_csv,
    read_json,
    read_json_lines,
    read_json_object,
    read_text,
)

PACKERS = [(".xz", lzma.compress), (".zst", partial(pyarrow.compress, codec="zstd", asbytes=True))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "the key 'c' occurs more than once"),
        ("[" * 100 + "]" * 100, "nested deeper than 64 levels"),
        ("[" * 200_000, "nested deeper than 64 levels"),
        ('{"a":' * 200_000, "nested deeper than 64 levels"),
        ('{"a": 9223372036854775808}', "an integer of 64 bits: expected at most 64 bits"),
        ('{"a": [-9223372036854775809]}', "an integer of 64 bits"),
        ("1" * 5000, "a value cannot be read (Exceeds the limit"),
        (r'{"a": "x\ud800"}', "holds half of a surrogate pair"),
        (r'{"\udc00": 1}', "holds half of a surrogate pair"),
        ('{"a":', "is not valid JSON (Expecting value at column 6)"),
    ],
)
def test_json_has_limits(tmp_path, text, expected):
    (tmp_path / "a.json").write_text(text)
    (tmp_path / "a.jsonl").write_text(f"\n{text}\n")
    for name, read in (
        ("a.json", read_json),
        ("a.jsonl", lambda path: list(read_json_lines(path))),
    ):
        with pytest.raises(UserError) as caught:
            read(tmp_path / name)
        assert expected in str(caught.value)
        where = tmp_path / name
        assert str(caught.value).startswith(f"{where}, line 2" if name == "a.jsonl" else str(where))


def test_json_within_the_limits_is_read_as_it_is(tmp_path):
    value = {"a": [2**63 - 1, -(2**63) + 1, 1.5, None, True, "é😀"], "b": {"c": []}}
    (tmp_path / "a.json").write_text(json.dumps(value))  # escapes: two halves make one character
    assert read_json_object(tmp_path / "a.json") == value
    deep = "[" * 64 + "1" + "]" * 64
    assert json.dumps(parse_json(deep, "text")) == deep
    # `transformers` writes int(1e30) for "no limit" into tokenizer_config.json.
    assert parse_json(str(10**30), "text", wide_integers=True) == 10**30


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{chr(ord(name) - 1)}'] * 10)}]\n" for name in "bcdefghi"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\nb: {c: 1, c: 2}", "the key 'c' occurs more than once"),
        ("[" * 100 + "]" * 100, "nested deeper than 64 levels"),
        ("[" * 50_000, "nested deeper than 64 levels"),
        (LAUGHS, "more than 20,000 values, aliases counted in full"),
        ("a: &a [*a]", "an alias that refers to what it stands in"),
        ("a: 99999999999999999999", "an integer of 67 bits"),
        ("a: " + "9" * 5000, "a value cannot be read"),
        ("a: 2024-13-45", "a value cannot be read (month must be in 1..12)"),
        (r'a: "x\ud800"', "half of a surrogate pair"),
        ("a: !!python/object/apply:os.system [id]", "is not valid YAML"),
        ("a: [", "is not valid YAML"),
    ],
)
def test_yaml_has_limits(text, expected):
    start = time.process_time()
    with pytest.raises(UserError) as caught:
        parse_yaml(text, "recipe.yaml")
    assert str(caught.value).startswith("recipe.yaml") and expected in str(caught.value)
    assert time.process_time() - start < 5


def test_yaml_within_the_limits():
    text = "base: &base {a: 1e-3, b: [1, 2]}\nmore: {<<: *base, c: *base, a: off, d: true}\n"
    base = {"a": 1e-3, "b": [1, 2]}
    assert parse_yaml(text, "text") == {
        "base": base,
        "more": base | {"a": "off", "c": base, "d": True},
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a,b,a\n1,2,3\n", "the header names the column 'a' more than once"),
        ("a,b\n1,2\n1,2,3\n", "line 3: the number of fields differs"),
        ("a,b\n1,2\n1\n", "line 3: the number of fields differs"),
        ("a,b\n1," + "x" * 140_000, "field larger than field limit"),
        ("a,b\n", "is empty"),
        ("", "is empty"),
    ],
)
def test_csv_has_limits(tmp_path, text, expected):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(UserError, match=expected):
        list(read_csv(tmp_path / "a.csv"))


@pytest.mark.parametrize(("ending", "compress"), PACKERS)
def test_what_a_file_unpacks_to_is_bounded(tmp_path, monkeypatch, ending, compress):
    monkeypatch.setattr(unpacking, "FREE_UNPACKED_BYTES", 1 << 20)
    bomb = tmp_path / f"a.jsonl{ending}"
    bomb.write_bytes(compress(b" " * (8 << 20)))
    for read in (read_text, lambda path: list(read_json_lines(path))):
        with pytest.raises(UserError, match="unpacks to more than 1,048,576 bytes, 500 times its"):
            read(bomb)


def test_the_memory_of_unpacking_is_bounded(tmp_path, monkeypatch):
    bomb = tmp_path / "a.jsonl.xz"
    bomb.write_bytes(lzma.compress(b" " * (8 << 20)))
    monkeypatch.setattr(unpacking, "MOST_UNPACKING_MEMORY", 1 << 16)
    with pytest.raises(UserError, match="cannot be read as UTF-8 text: Memory usage limit"):
        read_text(bomb)


@pytest.mark.parametrize(("ending", "compress"), PACKERS)
def test_several_packed_streams_are_read_whole(tmp_path, ending, compress):
    lines = [f"line {i}\n".encode() for i in range(50_000)]
    parts = [compress(b"".join(lines[:20_000])), compress(b"".join(lines[20_000:]))]
    path = tmp_path / f"a.txt{ending}"
    between = b"\0" * 8 if ending == ".xz" else b""
    path.write_bytes(parts[0] + between + parts[1] + between[:4])
    assert read_text(path).encode() == b"".join(lines)
    path.write_bytes(parts[0][:-30])
    with pytest.raises(UserError, match="was cut short"):
        read_text(path)


def test_texts_and_lines_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "MOST_TEXT_BYTES", 100)
    monkeypatch.setattr(reading, "MOST_LINE_CHARACTERS", 50)
    (tmp_path / "a.txt").write_text("x" * 101)
    (tmp_path / "a.txt.xz").write_bytes(lzma.compress(b"x" * 101))
    for name in ("a.txt", "a.txt.xz"):
        with pytest.raises(UserError, match="holds more than 100 bytes"):
            read_text(tmp_path / name)
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{"a": "' + "x" * 50 + '"}\n')
    with pytest.raises(UserError, match="line 2: longer than 50 characters"):
        list(read_json_lines(tmp_path / "a.jsonl"))
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    with pytest.raises(UserError, match="cannot be read as UTF-8 text"):
        read_text(tmp_path / "a.txt")
    (tmp_path / "a.txt").write_text("x" * 100)
    assert len(read_text(Path(tmp_path / "a.txt"))) == 100
