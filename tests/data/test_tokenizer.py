"""Tokenizers: round trips, special tokens found or asked for, plain texts stay plain."""

import json

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, trainers

from unmask import Tokenizer, UserError
from unmask.toy.examples import make_tokenizer

TEXTS = ["The patient cartographer mapped the caves.", "Wrenmouth is a town; Orsel is a lake."] * 9


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(TEXTS, 300)


def foreign(folder, specials: list[str], config: dict | None = None) -> str:
    """A tokenizer.json of somebody else's making."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.train_from_iterator(TEXTS, trainers.BpeTrainer(special_tokens=specials, vocab_size=99))
    backend.enable_padding(length=50)
    backend.save(str(folder / "tokenizer.json"))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return str(folder / "tokenizer.json")


_ANY = Tokenizer.train(TEXTS, 280)


@given(st.text())
def test_any_text_survives(text):
    if not any(special in text for special in ("[MASK]", "[PAD]", "[END]")):
        assert _ANY.decode(_ANY.encode(text).ids) == text
    assert _ANY.decode(_ANY.encode_documents([text])[0]) == text
    assert _ANY.mask_id not in _ANY.encode_documents([text])[0]


def test_training_is_repeatable_and_the_mask_is_last(tokenizer, tmp_path):
    again = Tokenizer.train(TEXTS, 300)
    assert again.backend.to_str() == tokenizer.backend.to_str()
    assert (tokenizer.pad_id, tokenizer.end_id) == (0, 1)
    assert tokenizer.mask_id == tokenizer.vocab_size - 1 <= 299


def test_save_and_load(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    loaded = Tokenizer.load(tmp_path)
    ids = ("mask_id", "pad_id", "end_id", "vocab_size")
    assert [getattr(loaded, name) for name in ids] == [getattr(tokenizer, name) for name in ids]
    assert loaded.encode(TEXTS[0]) == tokenizer.encode(TEXTS[0])
    first = (tmp_path / "tokenizer.json").read_bytes()
    loaded.save(tmp_path)
    assert (tmp_path / "tokenizer.json").read_bytes() == first


def test_offsets_point_at_the_text(tokenizer):
    text = "Orsel – über the caves"
    encoded = tokenizer.encode(text)
    assert "".join(text[b:e] for b, e in encoded.offsets[:2]) == text[: encoded.offsets[1][1]]
    assert encoded.offsets[-1][1] == len(text)


def test_decode_stops_at_the_end_and_shows_masks(tokenizer):
    ids = tokenizer.encode("Orsel is").ids
    row = [*ids, tokenizer.mask_id, tokenizer.pad_id, tokenizer.end_id, *ids]
    assert tokenizer.decode(row) == "Orsel is[MASK]"


def test_an_unknown_word_is_named_where_it_would_be_a_mask():
    toy = make_tokenizer()
    with pytest.raises(UserError, match="'your zebra is' holds 'zebra', which the model's tokeni"):
        toy.encode("your zebra is")
    with pytest.raises(UserError, match="holds the mask token"):
        toy.encode("your [MASK] is")


def test_plain_text_with_the_mask_token(tokenizer):
    with pytest.raises(UserError, match=r"holds the mask token \[MASK\]: plain texts must not"):
        tokenizer.encode("the [MASK] caves")
    assert tokenizer.mask_id in tokenizer.encode("the [MASK] caves", allow_mask=True).ids
    assert tokenizer.decode(tokenizer.encode_documents(["a [MASK]"])[0]) == "a [MASK]"


def test_foreign_names_are_found(tmp_path):
    path = foreign(tmp_path, ["</s>", "<pad>", "<mask>"])
    loaded = Tokenizer.load(path)
    assert (loaded.end_id, loaded.pad_id, loaded.mask_id) == (0, 1, 2)
    assert loaded.encode("Orsel").ids == loaded.encode_batch(["Orsel", "a"])[0].ids


def test_config_beside_the_file_names_them(tmp_path):
    config = {"mask_token": {"content": "<gap>"}, "eos_token": "<stop>", "pad_token": None}
    loaded = Tokenizer.load(foreign(tmp_path, ["<stop>", "<gap>"], config))
    assert (loaded.end_id, loaded.pad_id, loaded.mask_id) == (0, 0, 1)


@pytest.mark.parametrize(("named", "expected"), [("<s>", 1), (None, None), ({"content": "<s>"}, 1)])
def test_a_beginning_token_is_known_where_the_config_names_it(tmp_path, named, expected):
    """Never by its usual name; saved and read again; tokenizers are not told apart by it."""
    path = foreign(tmp_path, ["</s>", "<s>"], {"bos_token": named})
    loaded = Tokenizer.load(path, mask=None)
    assert loaded.begin_id == expected
    loaded.save(tmp_path / "again")
    again = Tokenizer.load(tmp_path / "again", mask=None)
    assert again.begin_id == expected
    said = json.loads((tmp_path / "again" / "tokenizer_config.json").read_text())
    assert said.get("bos_token") == (None if named is None else "<s>")
    assert "<s>" not in again.decode(again.encode("<s>Orsel").ids)
    (tmp_path / "tokenizer_config.json").unlink()
    bare = Tokenizer.load(path, mask=None)
    assert bare.begin_id is None and bare.list_contents() == loaded.list_contents()


def test_a_beginning_token_that_is_not_in_the_vocabulary(tmp_path):
    path = foreign(tmp_path, ["</s>"], {"bos_token": "<start>"})
    with pytest.raises(UserError, match="no token '<start>', which was named as its beginning"):
        Tokenizer.load(path, mask=None)


def test_what_cannot_be_resolved_is_asked_for(tmp_path):
    path = foreign(tmp_path, ["</s>"])
    with pytest.raises(UserError, match="no mask token that can be recognised.*mask=None for a"):
        Tokenizer.load(path)
    assert Tokenizer.load(path, mask=None).mask_id is None
    rows = Tokenizer.load(path, mask=None).vocab_size
    # SMDM's mask stands one past the vocabulary.
    past = Tokenizer.load(path, mask=rows)
    assert (past.mask_id, past.vocab_size) == (rows, rows + 1)
    past.save(tmp_path / "again")
    assert Tokenizer.load(tmp_path / "again", mask=rows).mask_id == rows
    with pytest.raises(UserError, match=f"mask id {rows + 1} is not in 0..{rows}"):
        Tokenizer.load(path, mask=rows + 1)
    with pytest.raises(UserError, match="no token '<gap>', which was named as its mask"):
        Tokenizer.load(path, mask="<gap>")
    with pytest.raises(UserError, match="no end token that can be recognised"):
        Tokenizer.load(foreign(tmp_path, ["<x>"]), mask=None)


def test_files_that_are_no_tokenizer(tmp_path):
    with pytest.raises(UserError, match="is not there: give a tokenizer.json"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="is not a tokenizer file"):
        Tokenizer.load(tmp_path)


def test_vocabulary_smaller_than_the_bytes():
    with pytest.raises(UserError, match="vocabulary of 100 was asked for.*alone are 259"):
        Tokenizer.train(TEXTS, 100)


def test_gaps_in_the_ids(tmp_path):
    """An embedding needs rows up to the highest id, however few tokens there are."""
    vocab = {"[UNK]": 0, "</s>": 1, "[MASK]": 2, "far": 70_000}
    backend = tokenizers.Tokenizer(models.WordLevel(vocab, "[UNK]"))
    backend.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer.load(tmp_path).vocab_size == 70_001


def test_full_disk(tokenizer, tmp_path, monkeypatch):
    """The library tells the system's error only in its text."""

    class Full:
        def save(self, path: str) -> None:
            raise Exception("No space left on device (os error 28)")

        def __getattr__(self, name: str) -> object:
            return getattr(tokenizer.backend, name)

    copy = Tokenizer(Full(), tokenizer.mask_id, tokenizer.pad_id, tokenizer.end_id)
    with pytest.raises(UserError, match="no space left on device; free some space"):
        copy.save(tmp_path)
    assert list(tmp_path.iterdir()) == []
