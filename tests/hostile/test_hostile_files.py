"""Files that others wrote: what is hostile or says something twice ends in a sentence, at once."""

import json
import os
import pickle
from pathlib import Path

import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file

import unmask
from tests.hostile.fuzzing import limit_processor
from tests.training.runs import CPU, make_trainer, run
from unmask import Tokenizer, UserError
from unmask.base.files import write_json
from unmask.data import patterns
from unmask.data.corpus import read_corpus
from unmask.net.config import NetConfig
from unmask.net.model import Blueprint, Model
from unmask.net.transformer import Transformer
from unmask.training import checkpoints
from unmask.training.loop import run_loop

CHECKPOINT = Path("checkpoints", "step-00000003")


class Hostile:
    """A pickle that makes a file when it is read."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def test_checkpoints_hold_no_pickle_and_go_into_several_files(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "FILE_BYTES", 20_000)
    changes = {"network": {"changes": {"tied": True, "layers": 2, "width": 32}}}
    for settings in ({}, changes):
        folder = tmp_path / f"run-{len(settings)}"
        whole, _ = run(folder, cadence={"checkpoint": 3}, **settings)
        files = sorted(path.name for path in (folder / CHECKPOINT).iterdir())
        assert len(files) > 3 and {Path(name).suffix for name in files} == {".json", ".safetensors"}
        for later in checkpoints.list_checkpoints(folder / "checkpoints")[1:]:
            (later / "checkpoint.json").unlink()
        again, _ = run(folder, cadence={"checkpoint": 3}, **settings)
        assert all(x.equal(whole.tensors()[name]) for name, x in again.tensors().items())


def test_a_hostile_pickle_in_a_checkpoint_is_never_read(tmp_path):
    """Beside a checkpoint it is passed by; as the index of format 1 it is refused."""
    run(tmp_path, budget={"steps": 3})
    mark, record = tmp_path / "executed", tmp_path / CHECKPOINT / "checkpoint.json"
    (tmp_path / CHECKPOINT / ".metadata").write_bytes(pickle.dumps(Hostile(mark)))
    assert run_loop(make_trainer(budget={"steps": 4}), tmp_path).step == 4
    change_json(record, format=1)
    (tmp_path / "checkpoints" / "step-00000004" / "checkpoint.json").unlink()
    with pytest.raises(UserError, match="format 1, expected 2 .*pickle.*begin anew with --fresh"):
        run_loop(make_trainer(), tmp_path)
    assert not mark.exists()


def test_a_damaged_part_is_a_sentence(tmp_path):
    run(tmp_path, budget={"steps": 3})
    (part,) = (tmp_path / CHECKPOINT).glob("*.safetensors")
    part.write_bytes(b"\xff" * part.stat().st_size)
    with pytest.raises(UserError, match="does not fit this run"):
        checkpoints.load_checkpoint(tmp_path / CHECKPOINT, make_trainer().tensors(), CPU)


@pytest.fixture
def saved(tmp_path) -> Path:
    """A small model with a tokenizer, in two shards."""
    tokenizer = Tokenizer.train(["a few words of text"], 300)
    config = NetConfig(
        vocab_size=tokenizer.vocab_size, width=16, layers=2, heads=2, mlp_width=24, context=32
    )
    blueprint = Blueprint(config, "masked", tokenizer.mask_id)
    model = Model("small", Transformer(config, seed=0).eval(), blueprint, tokenizer)
    unmask.save(model, tmp_path / "model", shard_bytes=20_000)
    assert len(list((tmp_path / "model").glob("model-*.safetensors"))) > 1
    return tmp_path / "model"


def change_json(path: Path, **values: object) -> None:
    record = json.loads(path.read_text())
    for key, value in values.items():
        inner = record
        *sections, last = key.split("__")
        for section in sections:
            inner = inner[section]
        inner[last] = value
    path.write_text(json.dumps(record))


def test_the_index_decides_which_shard_a_tensor_is_read_from(saved):
    weights = unmask.load(saved, device="cpu").net.state_dict()
    shards = sorted(saved.glob("model-*.safetensors"))
    first, last = (load_file(path) for path in (shards[0], shards[-1]))
    save_file(last | {name: torch.zeros_like(x) for name, x in first.items()}, shards[-1])
    again = unmask.load(saved, device="cpu").net.state_dict()
    assert all(x.equal(again[name]) for name, x in weights.items())


@pytest.mark.parametrize("name", ["../elsewhere.safetensors", "/tmp/elsewhere.safetensors", ".."])
def test_shards_stay_in_the_folder(saved, name):
    index = saved / "model.safetensors.index.json"
    save_file({"norm.weight": torch.ones(16)}, saved.parent / "elsewhere.safetensors")
    change_json(index, **{"weight_map__norm.weight": name})
    with pytest.raises(UserError, match="expected a file in the same folder"):
        unmask.load(saved, device="cpu")


def test_an_index_that_is_wrong_about_a_shard(saved):
    index = saved / "model.safetensors.index.json"
    home = json.loads(index.read_text())["weight_map"]
    other = next(name for name in home.values() if name != home["embedding.weight"])
    change_json(index, **{"weight_map__embedding.weight": other})
    with pytest.raises(UserError, match=r"says that embedding.weight is in .*does not hold it"):
        unmask.load(saved, device="cpu")


@pytest.mark.parametrize("size", ["layers", "width", "heads", "mlp_width", "vocab_size", "context"])
def test_sizes_are_bounded_by_the_tensors(saved, size):
    change_json(saved / "config.json", **{f"network__{size}": 10**12})
    with limit_processor(5), pytest.raises(UserError, match=f"'{size}' (is )?{10**12}"):
        unmask.load(saved, device="cpu")


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gpt_neox", "qwen2"])
def test_sizes_of_other_formats_are_bounded(tmp_path, kind):
    """Ten thousand million layers, in the words of each format."""
    save_file({"wte.weight": torch.ones(16, 16)}, tmp_path / "model.safetensors")
    layers = {"gpt2": "n_layer"}.get(kind, "num_hidden_layers")
    names = {
        "gpt2": ("vocab_size", "n_embd", "n_head", "n_positions"),
    }.get(kind, ("vocab_size", "hidden_size", "num_attention_heads", "max_position_embeddings"))
    config = dict(zip(names, (16, 16, 2, 16), strict=True)) | {layers: 10**10, "model_type": kind}
    config |= {"intermediate_size": 16, "layer_norm_epsilon": 1e-5, "layer_norm_eps": 1e-5}
    config |= {"rms_norm_eps": 1e-5}
    write_json(tmp_path / "config.json", config)
    with limit_processor(5), pytest.raises(UserError, match="'layers' is 10000000000, but only 1 "):
        unmask.load(tmp_path, device="cpu")


def write_tokenizer(folder: Path, pattern: str) -> Path:
    """A byte-level tokenizer that first cuts texts by a pattern of its own."""
    backend = Tokenizer.train(["a few words of text"], 300).backend
    parts = json.loads(backend.to_str())
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}
    levels = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    inner = [split | {"invert": False}, levels | {"use_regex": False}]
    parts["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": inner}
    write_json(folder / "tokenizer.json", parts)
    return folder / "tokenizer.json"


@pytest.mark.parametrize("pattern", [r"(a+)+$", r"(\w+\s?)+$", r"(foo|fo+o)+$", r"(.*)*x(.*)*y$"])
def test_a_pattern_that_runs_away_is_refused(tmp_path, pattern):
    with (
        limit_processor(30),
        pytest.raises(UserError, match="which fails on some texts .*use another"),
    ):
        Tokenizer.load(write_tokenizer(tmp_path, pattern))


def test_a_pattern_that_takes_too_long_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(patterns, "_TRIAL", patterns._TRIAL + "\nwhile True: pass")
    monkeypatch.setattr(patterns, "MOST_SECONDS", 1)
    with pytest.raises(UserError, match="more than 1 seconds of processor time"):
        Tokenizer.load(write_tokenizer(tmp_path, r"[a-f]+"))


def test_harmless_patterns_are_used_and_known_ones_are_not_tried(tmp_path, monkeypatch):
    tokenizer = Tokenizer.load(write_tokenizer(tmp_path, r"\w+|[^\w\s]+|\s+"))
    assert tokenizer.decode(tokenizer.encode("a few words!").ids) == "a few words!"
    monkeypatch.setattr(patterns, "_try_pattern", None)  # calling it would raise
    for pattern in (patterns.GPT2_WORDS, patterns.LLAMA3_WORDS, patterns.QWEN2_WORDS):
        Tokenizer.load(write_tokenizer(tmp_path, pattern))


@pytest.mark.parametrize("pattern", sorted(patterns.KNOWN_PATTERNS))
def test_known_patterns_would_pass_the_trial(pattern):
    assert patterns._try_pattern(pattern) is None


def test_a_text_has_the_same_tokens_whenever_it_is_read(tmp_path):
    """Dropout leaves out merges at random, which is for training a tokenizer's own models."""
    parts = json.loads(Tokenizer.train(["a few words of text"] * 3, 300).backend.to_str())
    parts["model"]["dropout"] = 0.9
    write_json(tmp_path / "tokenizer.json", parts)
    tokenizer = Tokenizer.load(tmp_path / "tokenizer.json")
    assert len({tuple(tokenizer.encode("a few words of text").ids) for _ in range(20)}) == 1


def test_a_word_without_a_token_is_a_sentence(tmp_path):
    parts = json.loads(Tokenizer.train(["a few words"], 300).backend.to_str())
    vocabulary = {token: i for i, token in enumerate(["[PAD]", "[EOS]", "[MASK]", "a", "few"])}
    parts["model"] = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}
    parts |= {"pre_tokenizer": {"type": "Whitespace"}, "decoder": None, "added_tokens": []}
    write_json(tmp_path / "tokenizer.json", parts)
    tokenizer = Tokenizer.load(tmp_path / "tokenizer.json", mask="[MASK]")
    assert len(tokenizer.encode("a few").ids) == 2
    with pytest.raises(UserError, match="cannot cut the text 'a few words': .*Missing"):
        tokenizer.encode("a few words")


def test_a_panic_of_the_library_is_a_sentence():
    """Made by hand: a pattern that nobody tried, on a text that it cannot cut."""
    backend = Tokenizer.train(["a few words"], 300).backend
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("(a+)+$"), "isolated")
    tokenizer = Tokenizer(backend, None, 0, 1)
    for encode in (tokenizer.encode, lambda text: tokenizer.encode_documents([text])):
        with pytest.raises(UserError, match="the text 'aaaa.* makes the tokenizer library fail"):
            encode("a" * 40 + "!")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a\ud800b", "half of a surrogate pair"), (None, "None was given"), (b"a", "b'a' was given")],
)
def test_texts_that_are_none(text, expected):
    tokenizer = Tokenizer.train(["a few words"], 300)
    with pytest.raises(UserError, match=expected):
        tokenizer.encode(text)


@pytest.mark.parametrize("name", ["../elsewhere", "/tmp/elsewhere", "a/b"])
def test_splits_stay_in_the_folder(tmp_path, name):
    record = {"format": 1, "source": "x", "splits": {name: 1}}
    write_json(tmp_path / "corpus.json", record)
    with pytest.raises(UserError, match="expected a plain name"):
        read_corpus(tmp_path)
