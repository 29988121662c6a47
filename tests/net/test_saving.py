"""Models are written whole: whatever fails or is killed, a whole model stays."""

import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM

import unmask
from tests.conftest import BLOCKS, build, make_model
from unmask import UserError
from unmask.base import files
from unmask.data.chat import ChatTemplate
from unmask.net import loading
from unmask.net.model import Model


def read_all(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("shard_bytes", [10**9, 50_000])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", BLOCKS)
def test_save_load_save_gives_the_same_bytes(tmp_path, name, causal, shard_bytes):
    model = make_model(name, causal)
    unmask.save(model, tmp_path / "one", shard_bytes=shard_bytes)
    loaded = unmask.load(tmp_path / "one", device="cpu")
    assert loaded.blueprint == model.blueprint
    tokens = torch.arange(30)[None]
    assert torch.equal(loaded.logits(tokens), model.logits(tokens))
    assert loaded.tokenizer is not None
    unmask.save(loaded, tmp_path / "two", shard_bytes=shard_bytes)
    assert read_all(tmp_path / "one") == read_all(tmp_path / "two")
    assert ("model.safetensors.index.json" in read_all(tmp_path / "one")) == (shard_bytes < 10**9)


def test_number_formats(saved, monkeypatch):
    def find_format(**settings) -> torch.dtype:
        return unmask.load(saved.parent / "small", device="cpu", **settings).net.head.weight.dtype

    assert unmask.load(saved, device="cpu").net.embedding.weight.dtype == torch.float32
    small = unmask.load(saved, device="cpu", dtype="bfloat16")
    assert {p.dtype for p in small.net.parameters()} == {torch.bfloat16}
    unmask.save(small, saved.parent / "small")
    assert find_format(dtype="stored") == torch.bfloat16
    for fast, wanted in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(
            "unmask.net.loading.multiplies_bfloat16", lambda _, is_fast=fast: is_fast
        )
        assert find_format() == wanted, "short products would crawl without instructions"


FULL = {
    "write_json": OSError(28, os.strerror(28)),
    "write_weights": SafetensorError("I/O error: No space left on device (os error 28)"),
}


@pytest.mark.parametrize("moment", FULL)
def test_a_failing_save_leaves_the_old_model(saved, monkeypatch, moment):
    before = read_all(saved)

    def fail(*_args):
        raise FULL[moment]

    monkeypatch.setattr(loading, moment, fail)
    with pytest.raises(UserError, match="no space left on device; free some space"):
        unmask.save(make_model(seed=1), saved)
    assert read_all(saved) == before and [saved] == list(saved.parent.iterdir())


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_save_killed_at_the_swap_leaves_a_whole_model(saved, moment, monkeypatch):
    """The process dies just before, or just after, the new folder takes the old one's place."""
    swap = files._exchange

    def die(one, other):
        if moment == "after":
            swap(one, other)
        os._exit(9)

    monkeypatch.setattr(files, "_exchange", die)
    if not (child := os.fork()):
        try:
            unmask.save(make_model(seed=1), saved)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    wanted = make_model(seed=0 if moment == "before" else 1).logits(torch.arange(9)[None])
    assert torch.equal(unmask.load(saved, device="cpu").logits(torch.arange(9)[None]), wanted)


def test_the_swap_has_no_moment_without_a_folder(tmp_path):
    """While two folders are swapped again and again, a watcher always finds one in place."""
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    swaps = threading.Thread(target=lambda: [files._exchange(one, other) for _ in range(4000)])
    swaps.start()
    missed = 0
    while swaps.is_alive():
        missed += not other.exists()
    assert missed == 0


def test_saving_never_removes_what_is_not_a_model(saved, tmp_path, monkeypatch):
    thesis = tmp_path / "thesis"
    thesis.mkdir()
    (thesis / "chapter.tex").write_text("years of work")
    with pytest.raises(UserError, match="holds chapter.tex, which saving a model there would"):
        unmask.save(make_model(), thesis)
    assert (thesis / "chapter.tex").read_text() == "years of work"
    with pytest.raises(UserError, match="is a file: choose a folder"):
        unmask.save(make_model(), thesis / "chapter.tex")
    (tmp_path / "link").symlink_to(saved)
    unmask.save(make_model(seed=1), tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    unmask.save(make_model(), ".")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "link", "model", "thesis"]


PRESETS = {
    "llama": "tiny", "qwen2": "tiny-grouped", "qwen3": "tiny-qwen3", "gpt2": "tiny-gpt2",
    "gpt_neox": "tiny-pythia", "llada": "tiny", "dream": "tiny-grouped",
}  # fmt: skip
"""A network that each dialect can say."""


def make_for(dialect: str) -> Model:
    model = make_model(PRESETS[dialect], causal=dialect not in ("llada", "dream"))
    return replace(model, blueprint=replace(model.blueprint, shift=dialect == "dream"))


@pytest.mark.parametrize("dialect", PRESETS)
def test_special_ids_go_along(tmp_path, dialect):
    model = make_for(dialect)
    unmask.save(model, tmp_path / "one", dialect)
    said = json.loads((tmp_path / "one" / "config.json").read_text())
    assert said["eos_token_id"] == model.tokenizer.end_id == 1
    assert said["pad_token_id"] == model.tokenizer.pad_id == 0
    assert "bos_token_id" not in said, "the tokenizer knows of none"
    again = unmask.load(tmp_path / "one", device="cpu")
    unmask.save(again, tmp_path / "two", dialect)
    assert said == json.loads((tmp_path / "two" / "config.json").read_text())
    if dialect in ("llama", "qwen2", "gpt2"):
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "one")
        assert theirs.config.eos_token_id == theirs.generation_config.eos_token_id == 1
        assert theirs.config.pad_token_id == 0


def test_start_token_of_a_chat_template(tmp_path):
    model = make_for("llama")
    model.tokenizer.chat = ChatTemplate("{{ bos_token }}", {"bos_token": "[PAD]"})
    unmask.save(model, tmp_path / "out", "llama")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["bos_token_id"] == 0


@pytest.mark.parametrize("dialect", ["llada", "dream"])
def test_a_causal_model_has_no_mask(tmp_path, dialect):
    with pytest.raises(UserError) as caught:
        unmask.save(make_model(causal=True), tmp_path / "out", dialect)
    assert f"a causal model has no mask token, and {dialect} models have one" in str(caught.value)
    fitting = "llama, ministral3, unmask"
    assert str(caught.value).endswith(f"Choose one that fits: {fitting}.")
    assert list(tmp_path.iterdir()) == []


def test_a_shape_that_cannot_be_read_back(tmp_path):
    model = build(kind="causal", width=60, heads=8, head_width=16, qkv_bias=True)
    with pytest.raises(UserError, match="dialect qwen2: 'width' 60 is not a multiple of 'heads' 8"):
        unmask.save(model, tmp_path / "x", "qwen2")
