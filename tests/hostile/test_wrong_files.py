"""Files that say something twice, too much or not to the end, read as users have them read."""

import json
import lzma
from pathlib import Path

import pytest
from typer.testing import CliRunner

import unmask
from tests.hostile.fuzzing import guard, run_verb
from unmask import Fact, UserError
from unmask.base import reading, unpacking
from unmask.base.files import path_exists
from unmask.cli.main import app
from unmask.data.corpus import save_corpus
from unmask.data.reversal_corpus import make_reversal_corpus
from unmask.data.shards import Shards, write_shards
from unmask.data.tokenizer import Tokenizer
from unmask.net.hub import find_model
from unmask.net.loading import save
from unmask.sampling import texts
from unmask.training.recipes_io import read_recipe

HEAD = b"subject,object,prompt\n"
ROW = b"Ada,red boats,They say {} makes\n"
RECORD = {"subject": "Ada", "object": "red boats", "prompt": "They say {} makes"}


def write(folder: Path, name: str, content: bytes) -> Path:
    (folder / name).write_bytes(content)
    return folder / name


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", HEAD + b"Ada,red boats\n", "line 2: the number of fields differs"),
        ("a.csv", HEAD + b"Ada,red boats,They say {} makes,more\n", "the number of fields differs"),
        (
            "a.csv",
            b"subject,object,prompt,object\nAda,a,{} b,c\n",
            "column 'object' more than once",
        ),
        ("a.csv", HEAD + b"Ada,\xff\xfe,They say {} makes\n", "cannot be read as UTF-8 text"),
        ("a.jsonl", b'{"subject": "Ada", "subject": "Bob"}', "key 'subject' occurs more than once"),
        ("a.jsonl", b'{"a": ' + b"[" * 70 + b"]" * 70 + b"}", "nested deeper than 64"),
        ("a.jsonl", b'{"a": ' + b"[" * 99_999 + b"]" * 99_999 + b"}", "nested deeper than 64"),
        ("a.jsonl", b'{"phrasing": 18446744073709551616}', "an integer of 65 bits"),
        ("a.jsonl", b'{"subject": "\\ud83d"}', "half of a surrogate pair"),
        ("a.jsonl", b"", "is empty"),
        ("a.csv", b"", "is empty"),
    ],
)
def test_facts_that_are_read_wrongly(name, content, said, tmp_path):
    with guard(tmp_path), pytest.raises(UserError, match=said):
        unmask.read_facts(write(tmp_path, name, content))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("seed: 1\nseed: 2\n", "the key 'seed' occurs more than once"),
        ("a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
            f"{'abcdefgh'[i + 1]}: &{'abcdefgh'[i + 1]} [{', '.join(['*' + 'abcdefgh'[i]] * 10)}]\n"
            for i in range(6)), "more than 20,000 values"),
        ("a: " + "[" * 90 + "]" * 90, "nested deeper than 64"),
        ("seed: 99999999999999999999999", "expected at most 64 bits"),
        ("no such key: 1", "unknown key 'no such key'"),
    ],
)  # fmt: skip
def test_recipes_that_are_read_wrongly(text, said, tmp_path):
    with guard(tmp_path), pytest.raises(UserError, match=said):
        read_recipe(write(tmp_path, "recipe.yaml", text.encode()))


def test_a_mark_at_the_beginning_is_no_part_of_a_text(tmp_path):
    facts = unmask.read_facts(write(tmp_path, "a.csv", b"\xef\xbb\xbf" + HEAD + ROW))
    assert facts == [Fact.of(*RECORD.values())]


def test_packed_files_that_are_cut_or_unpack_without_end(tmp_path, monkeypatch):
    lines = (json.dumps(RECORD) + "\n").encode() * 999
    packed = lzma.compress(lines)
    whole = write(tmp_path, "whole.jsonl.xz", packed)
    cut = write(tmp_path, "cut.jsonl.xz", packed[:-40])
    assert len(unmask.read_facts(whole)) == 999
    with guard(tmp_path), pytest.raises(UserError, match="cut.jsonl.xz cannot be read"):
        unmask.read_facts(cut)
    monkeypatch.setattr(unpacking, "FREE_UNPACKED_BYTES", 100)
    monkeypatch.setattr(unpacking, "MOST_UNPACKED_SHARE", 2)
    with guard(tmp_path), pytest.raises(UserError, match="unpacks to more than"):
        unmask.read_facts(whole)


def test_lines_have_a_longest_one(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "MOST_LINE_CHARACTERS", 50)
    path = write(tmp_path, "a.jsonl", json.dumps(RECORD | {"object": "x" * 60}).encode())
    with pytest.raises(UserError, match="line 1: longer than 50 characters"):
        unmask.read_facts(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"prompt": "They say Adamant makes"}, "but as a part of another word"),
        ({"prompt": "Ada, so Ada"}, "names its subject 'Ada' 2 times"),
        ({"prompt": "Ada makes", "subject_span": [0, 10]}, "subject_span is .* expected"),
        ({"prompt": "Ada makes", "subject_span": [3, 3]}, "subject_span is .* expected"),
        ({"completion": " red boats", "object_span": [1, 11]}, "object_span is .* expected"),
        ({"completion": " infrared boats"}, "is not in its completion"),
        ({"phrasing": "9" * 5000}, "expected a whole number from 0"),
        ({"trained": "twice"}, "expected same or reverse"),
    ],
)
def test_facts_that_are_in_no_place_or_in_several(change, said, tmp_path):
    path = write(tmp_path, "a.jsonl", json.dumps(RECORD | change).encode())
    with pytest.raises(UserError, match=said):
        unmask.read_facts(path)


def find_problems(path: Path) -> str:
    done = CliRunner().invoke(app, ["data", "check", str(path)], env={"COLUMNS": "999"})
    return " ".join(done.output.split()) if done.exit_code == 1 else f"none ({done.exit_code})"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("Ada,red boats,They say {} makes,p2d,same,x\nBob,old clocks,They say {} has,p2d,same,x",
         "2 facts have this id"),
        ("Ada,red boats,{} makes,p2d,same,a\nred boats,Ada,Who made {}? It is,d2p,reverse,a\n"
         "wax,Cyd,It was of red boats that we spoke. Ada said that {} is from,d2p,same,c",
         "as the reversed question does"),
        ("Ada,red boats,{} makes,p2d,same,a\nAda,red boats,{} makes,p2d,same,a",
         "is there 2 times"),
        ("Ada,red boats,{} makes,p2d,same,a\nAda,old clocks,{} makes,p2d,same,b",
         "has the objects"),
    ],
)  # fmt: skip
def test_a_check_finds_what_is_planted(rows, said, tmp_path):
    head = "subject,object,prompt,direction,trained,fact_id\n"
    assert said in find_problems(write(tmp_path, "own.csv", (head + rows + "\n").encode()))


def test_a_check_finds_what_a_corpus_lacks(tmp_path):
    corpus = make_reversal_corpus(2)
    plain = Tokenizer.train(corpus.training_texts(), 300)
    save_corpus(corpus, tmp_path / "corpus", plain)
    assert find_problems(tmp_path / "corpus") == "none (0)"
    letters = Tokenizer.of_words(["no letters of theirs"])
    letters.save(tmp_path / "corpus")
    assert "has no token for" in find_problems(tmp_path / "corpus")
    file = tmp_path / "corpus" / "train.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(UserError, match="lines, expected .* the file was changed"):
        run_verb(["data", "check", str(tmp_path / "corpus")])
    write_shards(["a few words of text"], plain, tmp_path / "shards")
    shard = next((tmp_path / "shards").glob("*.bin"))
    whole = shard.read_bytes()
    for changed in (whole[:-2], whole + b"\0\0"):
        shard.write_bytes(changed)
        with pytest.raises(UserError, match="bytes, expected"):
            Shards(tmp_path / "shards")


@pytest.mark.parametrize("name", ["hub:a/b/model.bin", "hub:a/b/pytorch_model.pt", "hub:a/b/c.pkl"])
def test_nothing_but_safetensors_is_fetched(name):
    with pytest.raises(UserError, match="is not a .safetensors file, and no other weights"):
        find_model(name, fetch=False)


def test_nothing_is_at_a_path_that_cannot_be():
    assert not path_exists("a\0b") and not path_exists("x" * 99_999)


def test_a_model_is_not_saved_over_other_files(pieces, tmp_path):
    (tmp_path / "mine").mkdir()
    write(tmp_path / "mine", "notes.txt", b"mine")
    with pytest.raises(UserError, match="notes.txt"):
        save(pieces.model, tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_the_ends_of_what_a_model_takes(pieces, monkeypatch):
    model = pieces.model
    config = model.net.config
    for token in (config.vocab_size, -1):
        with pytest.raises(UserError, match="tokens run from 0 to"):
            unmask.sample(model, [[1, token]], steps=1, length=4)
    with pytest.raises(UserError, match="expected 1 to the context"):
        unmask.sample(model, "They", steps=1, length=config.context + 1)
    assert unmask.sample(model, "They", steps=1, length=config.context).tokens.shape[1] == (
        config.context
    )
    monkeypatch.setattr(texts, "MOST_GUESS_BYTES", 100)
    with pytest.raises(UserError, match="guesses"):
        unmask.sample(model, "They", steps=2, length=8, guesses=5)
    for device in ("meta", "xpu", "cpu:x"):
        with pytest.raises(UserError, match="device"):
            unmask.load("reversal-mdm", device=device)
