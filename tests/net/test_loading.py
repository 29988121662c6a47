"""Models on disk: own format, names, bad input; nothing half-written, nothing half-believed."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import unmask
from tests.conftest import BLOCKS, lively
from unmask import Tokenizer, UserError
from unmask.net import loading
from unmask.net.dialects import known_dialects
from unmask.net.model import Blueprint, Model

TEXTS = ["The caves of Orsel are deep.", "The baker of Wrenmouth sings."] * 5


def make_model(name: str = "tiny", causal: bool = False, seed: int = 0) -> Model:
    tokenizer = Tokenizer.train(TEXTS, 280)
    rows = tokenizer.vocab_size
    config = unmask.preset(name, causal=causal, vocab_size=rows)
    kind = ("causal", None) if causal else ("masked", tokenizer.mask_id)
    return Model("made", lively(config, seed), Blueprint(config, *kind), tokenizer)


@pytest.fixture
def saved(tmp_path) -> Path:
    unmask.save(make_model(), tmp_path / "model")
    return tmp_path / "model"


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


def test_number_formats(saved):
    assert unmask.load(saved, device="cpu").net.embedding.weight.dtype == torch.float32
    small = unmask.load(saved, device="cpu", dtype="bfloat16")
    assert {p.dtype for p in small.net.parameters()} == {torch.bfloat16}
    unmask.save(small, saved.parent / "small")
    again = unmask.load(saved.parent / "small", device="cpu")
    assert again.net.embedding.weight.dtype == torch.bfloat16


def test_a_failing_save_leaves_the_old_model(saved, monkeypatch):
    before = read_all(saved)

    def fail(*_args):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(loading, "write_json", fail)
    with pytest.raises(UserError, match="no space left on device; free some space"):
        unmask.save(make_model(seed=1), saved)
    assert read_all(saved) == before and [saved] == list(saved.parent.iterdir())


def test_a_killed_save_leaves_a_whole_model(saved):
    """A process that saves two models in turn, killed at random moments: always one of the two."""
    script = """
import sys, unmask
from tests.net.test_loading import make_model
models = [make_model(seed=0), make_model(seed=1)]
print("ready", flush=True)
while True:
    for model in models:
        unmask.save(model, sys.argv[1])
"""
    wanted = [make_model(seed=seed).logits(torch.arange(9)[None]) for seed in (0, 1)]
    root = Path(__file__).parents[2]
    for moment in (0.0, 0.013, 0.05, 0.11):
        command = [sys.executable, "-c", script, str(saved)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(moment)
            process.kill()
        found = unmask.load(saved, device="cpu").logits(torch.arange(9)[None])
        assert any(torch.equal(found, one) for one in wanted)


def change_config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    for key, value in changes.items():
        holder = config["network"] if key in config["network"] else config
        if value is None:
            del holder[key]
        else:
            holder[key] = value
    (folder / "config.json").write_text(json.dumps(config))


def change_weights(folder: Path, drop: str | None = None, **add: torch.Tensor) -> None:
    weights = load_file(folder / "model.safetensors")
    if drop:
        del weights[drop]
    save_file(weights | add, folder / "model.safetensors")


def cut_short(folder: Path) -> None:
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(5000)


def add_pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def add_gguf(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model.Q4_1.gguf")


def add_second(folder: Path) -> None:
    weights = folder / "model.safetensors"
    (folder / "other.safetensors").write_bytes(weights.read_bytes())
    weights.rename(folder / "one.safetensors")


NORM, EXTRA = "layers.1.mlp_norm.weight", torch.zeros(3)
NARROW = {NORM: torch.ones(5)}
BAD = {
    "not a whole safetensors file": cut_short,
    f"{NORM} has shape [5], expected [64]": lambda f: change_weights(f, **NARROW),
    f"1 missing ({NORM})": lambda f: change_weights(f, drop=NORM),
    "1 too many (stray)": lambda f: change_weights(f, stray=EXTRA),
    "tokens, but its embedding has 200 rows": lambda f: change_config(
        f, vocab_size=200, num_logits=200
    ),
    "'width' is missing": lambda f: change_config(f, width=None),
    "'kind' is missing": lambda f: change_config(f, kind=None),
    "'kind' is 'painted', expected one of masked": lambda f: change_config(f, kind="painted"),
    "model format 9, expected 1": lambda f: change_config(f, format=9),
    "holds 2 candidate models (one.safetensors, other.safetensors)": add_second,
    "holds pickled weights, which can run code when they are read: convert them": add_pickle,
    "is a GGUF file": add_gguf,
    "model_type 'mamba'": lambda f: change_config(f, model_type="mamba"),
    "is not valid JSON": lambda f: (f / "config.json").write_text("{"),
    "holds no weights": lambda f: (f / "model.safetensors").unlink(),
    "numbers that are not finite": lambda f: change_weights(
        f, **{NORM: torch.full((64,), torch.nan)}
    ),
    "mask id 4096 is not in": lambda f: change_config(f, mask_id=4096),
}


@pytest.mark.parametrize("said", BAD)
def test_bad_input(saved, said):
    BAD[said](saved)
    # A mask id out of range would be met by the tokenizer first.
    tokenizer = None if said.startswith("mask id") else "auto"
    with pytest.raises(UserError) as caught:
        unmask.load(saved, device="cpu", tokenizer=tokenizer)
    assert said in str(caught.value)


def test_files_by_name(saved, tmp_path):
    assert unmask.load(saved / "model.safetensors", device="cpu").kind == "masked"
    for name, said in (("w.pt", "pickled"), ("w.gguf", "GGUF"), ("w.txt", "is no checkpoint")):
        (tmp_path / name).write_bytes(b"x")
        with pytest.raises(UserError, match=said):
            unmask.load(tmp_path / name)
    with pytest.raises(UserError, match="is not there: expected a model's folder"):
        unmask.load(tmp_path / "absent")


def test_shards_that_are_missing(tmp_path):
    unmask.save(make_model(), tmp_path / "model", shard_bytes=50_000)
    next((tmp_path / "model").glob("model-00002-*")).unlink()
    with pytest.raises(UserError, match="names model-00002-of-.*, not there"):
        unmask.load(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match="two candidate models"):
        unmask.load(tmp_path / "model")


def test_memory_is_told_and_checked(saved, capsys, monkeypatch):
    unmask.load(saved, device="cpu")
    assert "float32 on cpu" in capsys.readouterr().err
    unmask.load(saved, device="cpu", quiet=True)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(loading, "free_bytes", lambda device: 1000)
    with pytest.raises(
        UserError, match="does not fit: it needs .* 1 kB are free; choose a smaller"
    ):
        unmask.load(saved, device="cpu")


def test_tokenizers_by_choice(saved, tmp_path):
    assert unmask.load(saved, device="cpu", tokenizer=None).tokenizer is None
    Tokenizer.train(TEXTS[::-1], 280).save(tmp_path / "other")
    model = unmask.load(saved, device="cpu", tokenizer=tmp_path / "other")
    assert model.tokenizer is not None and model.mask_id == model.tokenizer.mask_id


@pytest.mark.parametrize(
    ("dialect", "said"),
    [
        ("llama", "causal False would become True"),
        ("gpt2", "norm 'rms' would become 'layer'"),
        ("dream", "shift False would become True; qkv_bias False would become True"),
        ("smdm", "rotary_tables 'float32' would become 'bfloat16'"),
        ("lama", "dialect 'lama' is unknown: did you mean 'llama'"),
    ],
)
def test_a_dialect_that_cannot_say_it_refuses(tmp_path, dialect, said):
    with pytest.raises(UserError) as caught:
        unmask.save(make_model(), tmp_path / "out", dialect)
    assert said in str(caught.value) and list(tmp_path.iterdir()) == []


def test_diffusion_model_as_llada(tmp_path):
    model = make_model()
    unmask.save(model, tmp_path / "llada", "llada")
    found = unmask.load(tmp_path / "llada", device="cpu")
    assert replace(found.blueprint, config=model.net.config) == model.blueprint
    tokens = torch.arange(30)[None]
    assert torch.equal(found.logits(tokens), model.logits(tokens))


def test_known_dialects():
    assert set(known_dialects()) == {"unmask", "smdm", "llada", "dream", "llama", "qwen2", "gpt2"}


def test_smdm_size_from_the_file_name(tmp_path):
    config = unmask.preset("6M", vocab_size=33, num_logits=32)
    net = unmask.Transformer(config).bfloat16()
    unmask.save(Model("x", net, Blueprint(config, "masked", 32)), tmp_path / "x", "smdm")
    named = tmp_path / "mdm-6M-10e18.safetensors"
    (tmp_path / "x" / "model.safetensors").rename(named)
    loaded = unmask.load(named, device="cpu")
    assert loaded.net.config == config and loaded.mask_id == 32
    named.rename(tmp_path / "mine.safetensors")
    with pytest.raises(UserError, match="does not say how large it is: expected a name such as"):
        unmask.load(tmp_path / "mine.safetensors")
