"""Characters that a tokenizer lacks are named, with their lines, wherever texts become tokens."""

import logging

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers
from typer.testing import CliRunner

import unmask
from unmask import Tokenizer
from unmask.cli.main import app
from unmask.data.corpus import find_corpus_problems, read_corpus, save_corpus
from unmask.data.reversal_corpus import make_reversal_corpus
from unmask.data.shards import Shards, write_shards
from unmask.data.unknown import describe_unknown

LETTERS = ["[MASK]", "<|endoftext|>", "[UNK]", *" .,'abcdefghijklmnopqrstuvwxyz"]


def spell(unknown: str | None = "[UNK]", model: str = "BPE", lower: bool = True) -> Tokenizer:
    """A tokenizer of single letters, as old ones are."""
    ids = {letter: i for i, letter in enumerate(LETTERS)}
    if model == "WordPiece":
        ids |= {f"##{letter}": len(ids) + i for i, letter in enumerate(LETTERS[6:])}
        made = models.WordPiece(ids, unk_token=unknown)
    elif model == "Unigram":
        made = models.Unigram([(letter, -1.0) for letter in [*LETTERS, "▁"]], unk_id=2)
    else:
        made = models.BPE(ids, [], unk_token=unknown)
    backend = tokenizers.Tokenizer(made)
    if lower:
        backend.normalizer = normalizers.Lowercase()
    is_pieces = model == "Unigram"
    backend.pre_tokenizer = (
        pre_tokenizers.Metaspace() if is_pieces else pre_tokenizers.BertPreTokenizer()
    )
    backend.add_special_tokens(LETTERS[:2])
    return Tokenizer(backend, 0, 1, 1)


@pytest.mark.parametrize(
    "tokenizer",
    [spell(), spell(None), spell(model="WordPiece"), spell(model="Unigram")],
    ids=["unknown token", "left out", "whole words", "pieces"],
)
def test_what_is_lacking_is_named_with_its_lines(tokenizer):
    texts = ["Möbius lives", "in Köln.\nAnn lives in 東京", "Bob is here"]
    said = describe_unknown(tokenizer, texts)
    assert "no token for 'ö' (2 lines), " in said
    assert "'東' (1 line)" in said and "'京' (1 line)" in said and said.count("line)") == 2
    assert describe_unknown(tokenizer, ["Ann lives, in rome."]) == ""


def test_words_are_named_where_they_are_tokens():
    said = describe_unknown(Tokenizer.of_words(["a key"]), ["a lock", "a key"])
    assert "'l', " not in said and "(1 line)" in said


@pytest.mark.parametrize("text", ["Möbius 東京 \U0001f600", "เมือง"])
def test_bytes_lack_nothing(text):
    assert describe_unknown(Tokenizer.train(["plain"], 300), [text]) == ""


def test_training_shards_and_checks_say_so(tmp_path, caplog):
    small = spell()
    with caplog.at_level(logging.WARNING):
        write_shards(["Ann in Köln " * 99], small, tmp_path / "shards")
    assert "no token for 'ö' (1 line)" in caplog.text
    assert "no token for 'ö' (1 line)" in next(Shards(tmp_path / "shards").find_problems())
    checked = CliRunner().invoke(app, ["data", "check", str(tmp_path / "shards")])
    assert checked.exit_code == 1 and "no token for" in checked.output
    # A corpus, its tokenizer beside it: the hyphens and capitals of its lines.
    corpus = make_reversal_corpus(2)
    save_corpus(corpus, tmp_path / "corpus", spell(lower=False))
    problems = find_corpus_problems(read_corpus(tmp_path / "corpus"), spell(lower=False))
    assert any("no token for" in problem and "lines)" in problem for problem in problems)
    caplog.clear()
    shape = {"layers": 2, "width": 32, "mlp_width": 48}
    for source, path in (("facts", "corpus"), ("text", "shards")):
        changes = [f"data.path={tmp_path / path}", f"data.source={source}", "data.context=200"]
        changes += [f"network.changes.{name}={value}" for name, value in shape.items()]
        changes += ["batch.rows=2", "budget.steps=1", "cadence.facts=0", "cadence.samples=0"]
        with caplog.at_level(logging.WARNING):
            unmask.train("reversal-mdm", tmp_path / source, *changes, device="cpu")
        assert "no token for" in caplog.text
        caplog.clear()
